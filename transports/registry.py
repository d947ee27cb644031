"""The transports that there are. Each is one object, which says all that others have to know of it; nobody else compares their names.

pgas/job/topology.py registers pgas's own: p2p.P2P, ibgda.transport.IBGDA, ibrc.transport.IBRC.
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
    """What a job offers to the transport that it takes."""

    requested: Mapping[str, Any]  #: the variables
    choice: Choice | None  #: the NIC of this PE, None where peers' memory is mapped
    on_gpu: bool  #: whether heaps lie in GPU memory
    software_card: Callable[[bool], Opener]  #: what opens the software card; the argument: whether a CPU rings its registers
    warn: Callable[[str], None]  #: called with what the user should know


class Transport(Protocol):
    """A way to other PEs' memory."""

    name: str  #: as PGAS_TRANSPORT has it

    #: Whether kernels reach peers' memory by address. If not, each PE has a NIC.
    maps_peers: bool

    #: The module of its device functions, a kernels.paths.transport.Path; imported when the first kernel needs it.
    path: str

    #: What a machine must have (doctor's words): "gpu", "peer access", "nic", "devx".
    needs: frozenset[str]

    #: How it runs in the simulator, and what it does not run on there (doctor's words).
    simulated: tuple[str, str]

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of window.Constants that its kernels contain, beside those of every transport."""

    def why_not(self, device: Device, port: Port) -> str | None:
        """Return why a device and port cannot carry it, None if they can (selection.Suits)."""

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        """Return the segments that a slot has beside system area and heap. Raises TransportError: there is no room for them."""

    def connect(self, part: Part, setting: Setting) -> NIC | None:
        """Let this PE reach the others: map their slots, or return the NIC that does. Collective.

        Raises:
            TransportError: some PE cannot; on every PE.
        """


_registered: dict[str, Transport] = {}


def register(transport: Transport) -> None:
    """Add a transport; PGAS_TRANSPORT takes its name from now on. Of those that map peers the first is what "auto" means."""
    _registered[transport.name] = transport
    config.TRANSPORTS[:] = ["auto", *_registered]


def get(name: str) -> Transport:
    """Return a transport by its name, or by "auto".

    Raises:
        TransportError: there is none of that name.
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
    """Return the names of those that take a NIC."""
    return tuple(name for name, transport in _registered.items() if not transport.maps_peers)


def of_queues(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of window.Constants that all transports over a NIC have."""
    return {
        "num_qps": requested["PGAS_IBGDA_NUM_RC_PER_PE"],
        "map_by": requested["PGAS_IBGDA_RC_MAP_BY"],
        "depth": requested["PGAS_QP_DEPTH"],
        "batch": requested["PGAS_IBGDA_NUM_REQUESTS_IN_BATCH"],
    }


def needing(prerequisite: str) -> frozenset[str]:
    """Return the names of those that need something (Transport.needs)."""
    return frozenset(name for name, transport in _registered.items() if prerequisite in transport.needs)
