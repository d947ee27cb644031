"""The registry of transports. A transport is one object with all its properties, so that no other code compares transport names.

pgas/job/paths/topology.py registers those of pgas: p2p.P2P, ibgda.transport.IBGDA, ibrc.transport.IBRC. A pair of them is also an object.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pgas.base import config
from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports.devices import Device, Port
from pgas.transports.memory.protocol import Segment
from pgas.transports.nic.adapter import Opener
from pgas.transports.nic.protocol import NIC, Part
from pgas.transports.selection import Choice


@dataclass(frozen=True)
class Setting:
    """A transport's view of the job."""

    requested: Mapping[str, Any]  #: values of the PGAS_* variables
    choice: Choice | None  #: the NIC of this PE; None for a transport that maps peers' memory
    on_gpu: bool  #: whether heaps are in GPU memory
    software_card: Callable[[bool], Opener]  #: makes the opener of the software NIC; argument: whether a CPU rings doorbells
    warn: Callable[[str], None]  #: function that shows the user a warning


class Transport(Protocol):
    """A data path to other PEs' memory."""

    name: str  #: its value of PGAS_TRANSPORT

    #: Whether kernels access peers' memory by address. Otherwise each PE has a NIC.
    maps_peers: bool

    #: Name of the module with its device functions, a kernels.paths.transport.Path; imported when the first kernel needs it.
    path: str

    #: Requirements on the machine, by the names that doctor uses: "gpu", "peer access", "nic", "devx".
    needs: frozenset[str]

    #: Texts for doctor's line "in the simulator, A; not B": how it runs in the simulator, and how it cannot run on this machine.
    simulated: tuple[str, str]

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        """Return the transport's own fields of window.Constants, which are compiled into kernels."""

    def why_not(self, device: Device, port: Port) -> str | None:
        """Return why a device and port do not support the transport, None if they do (selection.Suits)."""

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        """Return the segments of a slot in addition to team memory and heap. Raises TransportError if there is no room for them."""

    def connect(self, part: Part, setting: Setting) -> NIC | None:
        """Connect this PE to the others: map their slots, or return a connected NIC. Collective.

        Raises:
            TransportError: some PE cannot; on every PE.
        """


class Pair:
    """Two transports of one job: ``for_near`` between PEs that map each other's memory, ``for_far`` between the others."""

    maps_peers = True

    def __init__(self, near: Transport, far: Transport) -> None:
        self.for_near, self.for_far = near, far
        self.name, self.path, self.needs = f"{near.name},{far.name}", near.path, near.needs | far.needs
        self.simulated, self.why_not, self.segments = far.simulated, far.why_not, far.segments

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        own = {"far_path": self.for_far.path, "atomics_by_peers": requested["PGAS_AMO"] == "peer"}
        return {**self.for_near.constants(requested), **self.for_far.constants(requested), **own}

    def connect(self, part: Part, setting: Setting) -> NIC | None:
        """Map the heaps of near PEs, but not their queues; connect a NIC to all PEs."""
        self.for_near.connect(replace(part, segments=part.segments[:1], fds=part.fds[:1]), setting)
        return self.for_far.connect(part, setting)


_registered: dict[str, Transport] = {}


def register(transport: Transport) -> None:
    """Add a transport, so that PGAS_TRANSPORT accepts its name and its pairs. "auto" begins with the first one that maps peers."""
    _registered[transport.name] = transport
    config.TRANSPORTS[:] = ["auto", *names(), *pairs()]


def get(name: str) -> Transport:
    """Return a transport or a pair by name, or the one that "auto" selects on a single node.

    Raises:
        TransportError: no transport has that name.
    """
    if name == "auto":
        return _nearest()
    if name in pairs():
        near, _, far = name.partition(",")
        return Pair(_registered[near], _registered[far])
    if name not in _registered:
        raise TransportError(f"PGAS_TRANSPORT={name}: this version of pgas has no such transport; available: {', '.join(_registered)}")
    return _registered[name]


def parts(transport: Transport) -> tuple[Transport, Transport]:
    """Return the transports to near PEs and to the others: those of a pair, otherwise the given one twice."""
    return (transport.for_near, transport.for_far) if isinstance(transport, Pair) else (transport, transport)


def _nearest() -> Transport:
    return next(transport for transport in _registered.values() if transport.maps_peers)


def names() -> tuple[str, ...]:
    """Return the names of all transports."""
    return tuple(_registered)


def pairs() -> tuple[str, ...]:
    """Return the names of all pairs of transports."""
    return tuple(f"{_nearest().name},{far}" for far in through_nics())


def over_nic(name: str) -> tuple[str, ...]:
    """Return the NIC transports of a job; for "auto" all, because it may use any of them if not all PEs map each other's memory."""
    if name == "auto":
        return through_nics()
    _, far = parts(get(name))
    return () if far.maps_peers else (far.name,)


def through_nics() -> tuple[str, ...]:
    """Return the names of the NIC transports."""
    return tuple(name for name, transport in _registered.items() if not transport.maps_peers)


#: Usual number of queue pairs from each PE to each PE.
QUEUE_PAIRS = 2


def queue_pairs(wanted: int | str) -> int:
    """Return a value of PGAS_IBGDA_NUM_RC_PER_PE, for "auto" the usual number."""
    return wanted if isinstance(wanted, int) else QUEUE_PAIRS


def of_queues(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of window.Constants for queues, which all NIC transports have."""
    return {
        "num_qps": queue_pairs(requested["PGAS_IBGDA_NUM_RC_PER_PE"]),
        "map_by": requested["PGAS_IBGDA_RC_MAP_BY"],
        "depth": requested["PGAS_QP_DEPTH"],
        "batch": requested["PGAS_IBGDA_NUM_REQUESTS_IN_BATCH"],
        "settles": requested["PGAS_NIC_ORDERING"] == "none",
    }


def needing(prerequisite: str) -> frozenset[str]:
    """Return the names of the transports with a requirement (Transport.needs)."""
    return frozenset(name for name, transport in _registered.items() if prerequisite in transport.needs)
