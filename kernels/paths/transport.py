"""The transport that kernels of this job are compiled for.

A transport has put, get, strided, put_signal, p, g, atomic (each makes a device function for a scope or dtype), and
the device functions signal, flag, quiet, quiet_pe, flush and fence; p2p.py says what they take.
"""

from typing import Any

from pgas.kernels import window
from pgas.kernels.paths import p2p

__all__ = ["current", "maps_peers", "queue_pairs"]


def current() -> Any:
    """Return the transport of the job."""
    constants = window.constants()
    if constants.transport == "ibgda":
        from pgas.kernels.paths import ibgda  # compiled when it is needed: p2p jobs do not pay for it

        return ibgda.make(constants)
    if constants.transport == "ibrc":
        from pgas.kernels.paths import proxy

        return proxy.make(constants)
    return p2p


def maps_peers() -> bool:
    """Whether kernels reach other PEs' memory by address."""
    return window.constants().transport == "p2p"


def queue_pairs() -> int | None:
    """How many queue pairs a NIC transport has from each PE to each PE; None without a NIC."""
    return None if maps_peers() else window.constants().num_qps
