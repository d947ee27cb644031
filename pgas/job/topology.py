"""The choice of the transport from the PEs' machines, GPUs and NICs, and checks of these. Pure functions of the PEs' descriptions."""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from pgas.base import config
from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.base.remedies import START_MPS
from pgas.transports import registry
from pgas.transports.ibgda.transport import IBGDA
from pgas.transports.ibrc.transport import IBRC
from pgas.transports.p2p import P2P
from pgas.transports.selection import SOFTHCA

__all__ = ["PE", "check_memory", "check_shared_gpus", "choose_transport"]


for _transport in (P2P(), IBGDA(), IBRC()):
    registry.register(_transport)


@dataclass(frozen=True)
class PE:
    """A PE's description of itself for the others, at init."""

    number: int
    node: str
    pid: int
    version: str
    #: UUID of its GPU; None in the simulator.
    gpu: str | None
    gpu_name: str
    #: Whether it is a client of an MPS server.
    mps: bool
    #: Bytes of GPU memory (0 in the simulator).
    gpu_memory: int
    #: Options that must be equal on all PEs: (name, value) pairs.
    options: tuple[tuple[str, object], ...]
    #: Its NIC, e.g. "mlx5_0:1", and why; "softhca" is the software card, "" no NIC.
    nic: str = SOFTHCA
    nic_reason: str = ""
    #: Bytes of its machine's memory.
    host_memory: int = field(default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def check_alike(pes: Sequence[PE]) -> None:
    """Refuse a job whose PEs were started differently.

    Raises:
        BootstrapError: versions, options or kinds of machine differ; the text gives the first difference.
    """
    for pe in pes[1:]:
        for name, first, other in (
            ("the version of pgas", pes[0].version, pe.version),
            ("where kernels run", "the simulator" if pes[0].gpu is None else "a GPU", "the simulator" if pe.gpu is None else "a GPU"),
            *((option, value, dict(pe.options).get(option)) for option, value in pes[0].options),
        ):
            if first != other:
                raise BootstrapError(f"PEs differ in {name}: PE 0 has {first}, PE {pe.number} has {other}; it must be the same on all")


def check_shared_gpus(pes: Sequence[PE]) -> None:
    """Refuse PEs that share a GPU without MPS: with time slices, a round trip between their kernels takes milliseconds.

    Raises:
        TransportError: PEs share a GPU without MPS; the text names them and the GPU, and says how to start MPS.
    """
    sharing = defaultdict(list)
    for pe in pes:
        if pe.gpu is not None:
            sharing[pe.node, pe.gpu].append(pe)
    for group in sharing.values():
        if len(group) > 1 and not all(pe.mps for pe in group):
            numbers = ", ".join(str(pe.number) for pe in group)
            raise TransportError(
                f"PEs {numbers} share one GPU ({group[0].gpu_name}, {group[0].gpu}) without MPS, which would time-slice their kernels: "
                f"give every PE a GPU of its own, or start MPS first: {START_MPS}"
            )


def check_memory(pes: Sequence[PE], size: int) -> None:
    """Refuse heaps that together exceed the memory of a GPU or, in the simulator, of a machine.

    In the simulator the default size is never refused: memory is allocated on first use, and PEs on a laptop seldom fill their heaps.

    Args:
        pes: all PEs.
        size: value of PGAS_SYMMETRIC_SIZE.

    Raises:
        HeapError: they do; the text gives the size of the heaps, the memory, and the largest size of each heap.
    """
    variable = config.VARIABLES["PGAS_SYMMETRIC_SIZE"]
    default = variable.parse(variable.default)
    sharing = defaultdict(list)
    for pe in pes:
        sharing[pe.node, pe.gpu].append(pe)
    for group in sharing.values():
        on_gpu = group[0].gpu is not None
        memory = group[0].gpu_memory if on_gpu else group[0].host_memory
        if len(group) * size > memory and (on_gpu or size != default):
            numbers = ", ".join(str(pe.number) for pe in group)
            heaps = f"the heaps of PEs {numbers} take {len(group) * size}" if len(group) > 1 else f"the heap of PE {numbers} takes {size}"
            raise HeapError(
                f"PGAS_SYMMETRIC_SIZE={size}: {heaps} bytes, and {'the GPU' if on_gpu else 'the machine'} has {memory}; "
                f"it may be {memory // len(group)} at most"
            )


def slow_engine(pes: Sequence[PE], gpu: str) -> str | None:
    """Return a warning if the cuda engine of the software card would share a GPU with a PE without MPS, else None.

    Args:
        pes: all PEs.
        gpu: UUID of the engine's GPU, on the node of the PEs.
    """
    for pe in pes:
        if pe.gpu == gpu and not pe.mps:
            return (
                f"PE {pe.number} and the engine of the software card share one GPU ({pe.gpu_name}, {gpu}) without MPS, which time-slices "
                f"them: each wait of a kernel takes milliseconds; give the engine a spare GPU, or start MPS first: {START_MPS}"
            )
    return None


def choose_engine(requested: str, on_gpus: bool) -> str:
    """Return the engine of the software card.

    Args:
        requested: value of PGAS_ENGINE.
        on_gpus: whether heaps are in GPU memory.

    Raises:
        TransportError: the requested engine cannot reach the heaps.
    """
    if requested == "cpu" and on_gpus:
        raise TransportError(
            "PGAS_ENGINE=cpu: the CPU cannot reach heaps in GPU memory; use cuda, or the simulator (NUMBA_ENABLE_CUDASIM=1)"
        )
    return {"auto": "cuda" if on_gpus else "cpu"}.get(requested, requested)


def choose_transport(requested: str, pes: Sequence[PE], access: Sequence[Sequence[str | None]], engine: str = "auto") -> tuple[str, str]:
    """Return the transport of the job, and the reason.

    Args:
        requested: value of PGAS_TRANSPORT.
        pes: all PEs.
        access: access[a][b] is None if PE a can map PE b's memory, else the reason that it cannot.
        engine: value of PGAS_ENGINE.

    Raises:
        TransportError: no transport can connect all PEs, or the requested one cannot; the text names the missing prerequisite.
    """
    transport = registry.get(requested)
    name, through_nic = transport.name, not transport.maps_peers
    if through_nic and (real := [pe for pe in pes if pe.nic != SOFTHCA]):
        return name, _over_devices(pes, real)
    if nodes := sorted({pe.node for pe in pes if pe.node != pes[0].node}):
        other = next(pe.number for pe in pes if pe.node == nodes[0])
        raise TransportError(
            f"PE 0 ({_host(pes[0].node)}) and PE {other} ({_host(nodes[0])}) are on different machines or in different containers: "
            f"{f'{name} over the software card' if through_nic else name} connects PEs of one machine only"
        )
    if through_nic:
        why = f": {pes[0].nic_reason}" if pes[0].nic_reason else ""
        return name, f"asked for; over the software card ({choose_engine(engine, pes[0].gpu is not None)} engine){why}"
    for a, row in enumerate(access):
        for b, reason in enumerate(row):
            if reason is not None:
                raise TransportError(f"transport {name}: PE {a} cannot reach the memory of PE {b}: {reason}")
    return name, "all PEs are on one machine and map each other's memory"


def _over_devices(pes: Sequence[PE], real: Sequence[PE]) -> str:
    """Return the devices and ports of a job over RDMA devices, and why each was chosen.

    Raises:
        TransportError: some PEs chose the software card, which has no network.
    """
    if card := [pe for pe in pes if pe.nic == SOFTHCA]:
        raise TransportError(
            f"PE {card[0].number} uses the software card ({card[0].nic_reason}), PE {real[0].number} {real[0].nic} ({real[0].nic_reason}): "
            "all PEs use an RDMA device, or none does (PGAS_HCA)"
        )
    chosen = {(pe.nic, pe.nic_reason): pe.number for pe in reversed(pes)}
    if len(chosen) == 1:
        return f"asked for; over {pes[0].nic} ({pes[0].nic_reason})"
    return "asked for; over " + ", ".join(f"{name} ({why}; PE {pe})" for (name, why), pe in sorted(chosen.items(), key=lambda c: c[1]))


def _host(node: str) -> str:
    return node.split("/", maxsplit=1)[0]
