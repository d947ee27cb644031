"""The choice of transports from the PEs' nodes, GPUs, and NICs, and checks of these, by pure functions of the PEs' descriptions."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgas.base import config
from pgas.base.config import size_text
from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.base.remedies import START_MPS
from pgas.transports import registry
from pgas.transports.ibgda.transport import IBGDA
from pgas.transports.ibrc.transport import IBRC
from pgas.transports.p2p import P2P
from pgas.transports.selection import SOFTHCA

for _transport in (P2P(), IBGDA(), IBRC()):
    registry.register(_transport)


@dataclass(frozen=True)
class PE:
    """A PE's description of itself for the others, at init."""

    number: int
    node: str
    pid: int
    version: str
    gpu: str | None  #: UUID of its GPU; None in the simulator
    gpu_name: str
    mps: bool  #: whether it is a client of an MPS server
    gpu_memory: int  #: bytes of GPU memory; 0 in the simulator
    options: tuple[tuple[str, object], ...]  #: names and values of options that must be equal on all PEs
    nic: str = SOFTHCA  #: its NIC, such as "mlx5_0:1"; "softhca": the software NIC; "": a requested device that cannot be used
    nic_reason: str = ""
    #: Size of its node's memory in bytes.
    host_memory: int = field(default_factory=lambda: os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def check_alike(pes: Sequence[PE]) -> None:
    """Reject a job whose PEs were started differently.

    Raises:
        BootstrapError: if versions, options, or backends (GPU or simulator) differ; the message gives the first difference.
    """
    for pe in pes[1:]:
        for name, first, other in (
            ("the version of pgas", pes[0].version, pe.version),
            ("where kernels run", "the simulator" if pes[0].gpu is None else "a GPU", "the simulator" if pe.gpu is None else "a GPU"),
            *((option, value, dict(pe.options).get(option)) for option, value in pes[0].options),
        ):
            if first != other:
                first, other = ("nothing" if value in (None, "") else value for value in (first, other))
                raise BootstrapError(f"PEs differ in {name}: PE 0 has {first}, PE {pe.number} has {other}; it must be the same on all PEs")


def by_gpu(pes: Sequence[PE]) -> list[list[PE]]:
    """Return the PEs in groups that use one GPU, or in the simulator one node."""
    groups = defaultdict(list)
    for pe in pes:
        groups[pe.node, pe.gpu].append(pe)
    return list(groups.values())


def check_shared_gpus(pes: Sequence[PE]) -> None:
    """Reject PEs that share a GPU without MPS, because with time slices, a round trip between their kernels takes milliseconds.

    Raises:
        TransportError: if PEs share a GPU without MPS; the message names them and the GPU, and gives the command that starts MPS.
    """
    for group in by_gpu(pes):
        if len(group) > 1 and group[0].gpu is not None and not all(pe.mps for pe in group):
            numbers = ", ".join(str(pe.number) for pe in group)
            raise TransportError(
                f"PEs {numbers} share one GPU ({group[0].gpu_name}, {group[0].gpu}) without MPS, which would time-slice their kernels: "
                f"give every PE a GPU of its own, or start MPS first: {START_MPS}"
            )


def check_memory(pes: Sequence[PE], size: int) -> None:
    """Reject heaps that together exceed the memory of a GPU or, in the simulator, of a node.

    In the simulator, the default size is never rejected, because memory is allocated on first use, and PEs on a laptop seldom fill their
    heaps.

    Raises:
        HeapError: if they do; the message gives the size of the heaps, the memory, and the largest size of each heap.
    """
    variable = config.VARIABLES["PGAS_SYMMETRIC_SIZE"]
    default = variable.parse(variable.default)
    for group in by_gpu(pes):
        on_gpu = group[0].gpu is not None
        memory = group[0].gpu_memory if on_gpu else group[0].host_memory
        if len(group) * size > memory and (on_gpu or size != default):
            numbers = ", ".join(str(pe.number) for pe in group)
            heaps = f"the heaps of PEs {numbers} take" if len(group) > 1 else f"the heap of PE {numbers} takes"
            raise HeapError(
                f"PGAS_SYMMETRIC_SIZE={size_text(size)}: {heaps} {size_text(len(group) * size)}, and "
                f"{'the GPU' if on_gpu else 'the node'} has {size_text(memory)}; it may be at most {size_text(memory // len(group))}"
            )


def slow_engine(pes: Sequence[PE], gpu: str) -> str | None:
    """Return a warning if the kernel of the software NIC would share a GPU with a PE without MPS; None otherwise.

    Args:
        gpu: UUID of the engine's GPU, on the node of the PEs.
    """
    for pe in pes:
        if pe.gpu == gpu and not pe.mps:
            return (
                f"PE {pe.number} and the engine of the software NIC share one GPU ({pe.gpu_name}, {gpu}) without MPS, which time-slices "
                f"them: each wait of a kernel takes milliseconds; give the engine a spare GPU, or start MPS first: {START_MPS}"
            )
    return None


def choose_engine(requested: str, on_gpus: bool, several: bool) -> str:
    """Return the engine of the software NIC.

    Args:
        requested: value of PGAS_ENGINE.
        on_gpus: whether heaps are in GPU memory.
        several: whether the job has several nodes without RDMA devices, between which WQEs need a port.

    Raises:
        TransportError: if the requested engine cannot access the heaps.
    """
    if requested == "cpu" and on_gpus:
        raise TransportError(
            "PGAS_ENGINE=cpu: the CPU cannot reach heaps in GPU memory; use cuda or dma, or the simulator (NUMBA_ENABLE_CUDASIM=1)"
        )
    if requested != "auto":
        return requested
    return ("dma" if several else "cuda") if on_gpus else "cpu"


def numbers_for_tests(per_node: Sequence[int], n_pes: int) -> list[int]:
    """Return the node number of each PE under PGAS_PES_PER_NODE, which is one count for all nodes, or one for each.

    Raises:
        ValueError: if it does not fit the number of PEs.
    """
    counts = list(per_node)
    if len(counts) == 1 and n_pes % counts[0] == 0:
        counts *= n_pes // counts[0]
    if counts and sum(counts) != n_pes:
        given = ",".join(map(str, per_node))
        wrong = f"not a multiple of {given}" if len(per_node) == 1 else f"not {sum(counts)}"
        raise ValueError(f"PGAS_PES_PER_NODE={given}: {n_pes} PEs are {wrong} (a list, such as 2,1, gives the number of PEs on each node)")
    return [number for number, count in enumerate(counts) for _ in range(count)] or [0] * n_pes


_APART = "on different nodes or in different containers"


@dataclass(frozen=True)
class Neighbors:
    """Which PEs are on one node, and which of these map each other's memory.

    Args:
        access: access[a][b] is None if PE a can map PE b's memory, otherwise the reason why it cannot; used only for PEs on one node.
        per_node: PGAS_PES_PER_NODE.

    Raises:
        ValueError: if per_node does not fit the number of PEs.
    """

    pes: Sequence[PE]
    access: Sequence[Sequence[str | None]]
    per_node: tuple[int, ...] = ()
    numbers: list[int] = field(init=False)  #: number of each PE's node under per_node
    groups: tuple[Sequence[int], ...] = field(init=False)  #: groups that map each other's memory; ranges if consecutive
    nodes: tuple[Sequence[int], ...] = field(init=False)  #: the PEs of each node; ranges if consecutive

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", numbers_for_tests(self.per_node, len(self.pes)))
        object.__setattr__(self, "groups", self._grouped(lambda a, b: self.apart(a, b) is None))
        object.__setattr__(self, "nodes", self._grouped(self.together))

    def _grouped(self, belong: Callable[[int, int], bool]) -> tuple[Sequence[int], ...]:
        """Return groups in which each two PEs belong together."""
        groups: list[list[int]] = []
        for pe in range(len(self.pes)):
            group = next((g for g in groups if all(belong(pe, other) for other in g)), None)
            groups.append([pe]) if group is None else group.append(pe)
        rows = (range(group[0], group[-1] + 1) for group in groups)
        return tuple(r if len(r) == len(g) else tuple(g) for r, g in zip(rows, groups, strict=True))

    def apart(self, a: int, b: int) -> str | None:
        """Return why two PEs do not map each other's memory, None if they do."""
        if self.pes[a].node != self.pes[b].node:
            return _APART
        if not self.together(a, b):
            return f"on different nodes according to PGAS_PES_PER_NODE={','.join(map(str, self.per_node))}"
        return self.access[a][b] or self.access[b][a]

    def together(self, a: int, b: int) -> bool:
        return (self.pes[a].node, self.numbers[a]) == (self.pes[b].node, self.numbers[b])

    @property
    def one_machine(self) -> bool:
        """Whether the PEs are on one machine, whatever per_node is."""
        return len({pe.node for pe in self.pes}) == 1


#: Function that queries all PEs for their NICs for a transport, and returns the PEs with these. Collective.
Ask = Callable[[str], Sequence[PE]]


def choose_transport(requested: str, neighbors: Neighbors, ask: Ask, engine: str = "auto") -> tuple[str, str]:
    """Return the name of the transport, or pair of transports, of the job, and the reason. Collective if ask is.

    Args:
        requested: value of PGAS_TRANSPORT.
        neighbors: the nodes of the PEs, and which PEs map each other's memory.
        ask: function that queries NICs.
        engine: value of PGAS_ENGINE.

    Raises:
        TransportError: if no transport can connect all PEs, or the requested one cannot; the message names the missing prerequisite.
    """
    transport, through = registry.get(requested), registry.over_nic(requested)
    if requested != "auto" and through:
        what = _over(through[0], neighbors, ask(through[0]), engine)
        return requested, f"asked for; {what}" if through == (requested,) else f"asked for; {through[0]} {what}"
    if len(neighbors.groups) == 1:
        return transport.name, "all PEs are on one node and map each other's memory"
    refusal = _unmapped(transport.name, neighbors)
    if not through:
        raise TransportError(f"{refusal}; with NICs: PGAS_TRANSPORT={' or '.join(registry.pairs())}")
    having: dict[str, Sequence[PE]] = {}
    lacking: dict[str, list[str]] = {}
    for name in through:
        having[name] = ask(name)
        without = min((pe for pe in having[name] if pe.nic in ("", SOFTHCA)), key=lambda pe: pe.nic, default=None)
        if without is None:
            return _with_nics(transport.name, name, neighbors, having[name], engine)
        lacking.setdefault(f"PE {without.number} has no NIC ({without.nic_reason})", []).append(name)
    if neighbors.one_machine:
        joined = bool(neighbors.per_node) and all(pe.nic for pes in having.values() for pe in pes)
    else:
        joined = has_wire(engine, neighbors.pes[0]) and all(pe.nic == SOFTHCA for pes in having.values() for pe in pes)
    if joined:
        return _with_nics(transport.name, through[0], neighbors, having[through[0]], engine)
    nics = ", ".join(f"for {' and '.join(names)} {why}" for why, names in lacking.items())
    raise TransportError(f"{refusal}; {nics}")


def _with_nics(near: str, far: str, neighbors: Neighbors, pes: Sequence[PE], engine: str) -> tuple[str, str]:
    """Return the name and the reason of a job whose PEs use NICs, and a second transport where they map each other's memory."""
    alone = all(len(group) == 1 for group in neighbors.groups)  # Then no pair of PEs would use a second transport.
    why = "no PE maps another's memory" if alone else "not all PEs map each other's memory"
    return far if alone else f"{near},{far}", f"{why}; {far} {_over(far, neighbors, pes, engine)}"


def _unmapped(name: str, neighbors: Neighbors) -> str:
    """Return the error of a transport that needs all PEs to map each other's memory. It names the first two PEs that do not."""
    pes, n = neighbors.pes, len(neighbors.pes)
    a, b, why = next((a, b, why) for b in range(n) for a in range(b) if (why := neighbors.apart(a, b)) is not None)
    if not neighbors.together(a, b):
        return f"{_hosts(pes[a], pes[b])} are {why}: {name} connects only PEs on one node"
    if neighbors.access[a][b] is None:
        a, b = b, a
    return f"transport {name}: PE {a} cannot reach the memory of PE {b}: {why}"


def _over(name: str, neighbors: Neighbors, pes: Sequence[PE], engine: str) -> str:
    """Return a text with the PEs' NICs that a transport uses, or with the software NIC.

    Raises:
        TransportError: if some PEs have no NIC, or a software NIC without a wire would have to connect nodes.
    """
    if real := [pe for pe in pes if pe.nic != SOFTHCA]:
        return _over_devices(pes, real)
    why = f": {pes[0].nic_reason}" if pes[0].nic_reason else ""
    by = choose_engine(engine, pes[0].gpu is not None, not neighbors.one_machine)
    if neighbors.one_machine:
        return f"over the software NIC ({by} engine){why}"
    if not has_wire(engine, pes[0]):
        where = _hosts(pes[0], next(pe for pe in pes if pe.node != pes[0].node))
        raise TransportError(f"{where} are {_APART}: {name} over the software NIC with the {by} engine connects only PEs on one node")
    return f"over the software NICs of the nodes, with RoCE v2 over UDP between them ({by} engine){why}"


def has_wire(engine: str, pe: PE) -> bool:
    """Whether the software NIC of a PE's node can reach other nodes, which the cuda engine cannot."""
    return choose_engine(engine, pe.gpu is not None, several=True) != "cuda"


def _over_devices(pes: Sequence[PE], real: Sequence[PE]) -> str:
    """Return a text with the devices and ports of a job over RDMA devices, and why each was chosen.

    Raises:
        TransportError: if some PEs chose the software NIC, which has no network.
    """
    if card := [pe for pe in pes if pe.nic == SOFTHCA]:
        raise TransportError(
            f"PE {card[0].number} uses the software NIC ({card[0].nic_reason}), PE {real[0].number} {real[0].nic} ({real[0].nic_reason}): "
            "either all PEs must use an RDMA device, or none (PGAS_HCA)"
        )
    chosen = {(pe.nic, pe.nic_reason): pe.number for pe in reversed(pes)}
    if len(chosen) == 1:
        return f"over {pes[0].nic} ({pes[0].nic_reason})"
    return "over " + ", ".join(f"{name} ({why}; PE {pe})" for (name, why), pe in sorted(chosen.items(), key=lambda c: c[1]))


def _hosts(one: PE, other: PE) -> str:
    return " and ".join(f"PE {pe.number} ({pe.node.split('/', maxsplit=1)[0]})" for pe in (one, other))
