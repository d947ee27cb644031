"""The registry of transports. A transport is one object with all its properties, so no other code compares transport names.

pgas/job/topology.py registers those of pgas: p2p.P2P, ibgda.transport.IBGDA, ibrc.transport.IBRC.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pgas.base import config
from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports.adapter import Opener
from pgas.transports.devices import Device, Port
from pgas.transports.memory.protocol import Segment
from pgas.transports.nic import NIC, Part
from pgas.transports.selection import Choice

__all__ = ["Setting", "Transport", "get", "names", "needing", "of_queues", "register", "through_nics"]


@dataclass(frozen=True)
class Setting:
    """A transport's view of the job."""

    requested: Mapping[str, Any]  #: the values of the PGAS_* variables
    choice: Choice | None  #: the NIC of this PE; None for a transport that maps peers' memory
    on_gpu: bool  #: whether heaps are in GPU memory
    software_card: Callable[[bool], Opener]  #: returns the opener of the software card; argument: whether a CPU rings its registers
    warn: Callable[[str], None]  #: shows the user a warning


class Transport(Protocol):
    """A way to other PEs' memory."""

    name: str  #: its value of PGAS_TRANSPORT

    #: Whether kernels access peers' memory by address. If not, each PE has a NIC.
    maps_peers: bool

    #: The module of its device functions, a kernels.paths.transport.Path; imported when the first kernel needs it.
    path: str

    #: Requirements on the machine, in doctor's words: "gpu", "peer access", "nic", "devx".
    needs: frozenset[str]

    #: In doctor's words: its way in the simulator, and the way that it cannot take there.
    simulated: tuple[str, str]

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return its own fields of window.Constants, which are compiled into kernels."""

    def why_not(self, device: Device, port: Port) -> str | None:
        """Return why a device and port cannot carry it, None if they can (selection.Suits)."""

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        """Return the segments of a slot beside team memory and heap. Raises TransportError: there is no room for them."""

    def connect(self, part: Part, setting: Setting) -> NIC | None:
        """Connect this PE with the others: map their slots, or return a connected NIC. Collective.

        Raises:
            TransportError: some PE cannot; on every PE.
        """


_registered: dict[str, Transport] = {}


def register(transport: Transport) -> None:
    """Add a transport; PGAS_TRANSPORT accepts its name from now on. "auto" means the first one that maps peers."""
    _registered[transport.name] = transport
    config.TRANSPORTS[:] = ["auto", *_registered]


def get(name: str) -> Transport:
    """Return a transport by name, or the one of "auto".

    Raises:
        TransportError: no transport has that name.
    """
    if name == "auto":
        return next(transport for transport in _registered.values() if transport.maps_peers)
    if name not in _registered:
        raise TransportError(f"PGAS_TRANSPORT={name}: this version of pgas has no such transport; there are {', '.join(_registered)}")
    return _registered[name]


def names() -> tuple[str, ...]:
    """Return the names of all transports."""
    return tuple(_registered)


def through_nics() -> tuple[str, ...]:
    """Return the names of the transports over a NIC."""
    return tuple(name for name, transport in _registered.items() if not transport.maps_peers)


def of_queues(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of window.Constants for queues, which all transports over a NIC have."""
    return {
        "num_qps": requested["PGAS_IBGDA_NUM_RC_PER_PE"],
        "map_by": requested["PGAS_IBGDA_RC_MAP_BY"],
        "depth": requested["PGAS_QP_DEPTH"],
        "batch": requested["PGAS_IBGDA_NUM_REQUESTS_IN_BATCH"],
    }


def needing(prerequisite: str) -> frozenset[str]:
    """Return the names of the transports with a requirement (Transport.needs)."""
    return frozenset(name for name, transport in _registered.items() if prerequisite in transport.needs)
