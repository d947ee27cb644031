"""The paths of a job: which PEs map each other's memory, which transport each pair of PEs uses, and which NIC each PE uses."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pgas.base.errors import TransportError
from pgas.base.text import ranges
from pgas.job.bootstrap.calls import Collective
from pgas.job.paths import hca, topology
from pgas.kernels import window
from pgas.transports import registry
from pgas.transports.selection import Choice

if TYPE_CHECKING:
    from pgas.job.paths.gpu import GPU

#: Maximum number of pairs of nodes in a line of Paths.reasons().
_PAIRS = 12


@dataclass(frozen=True)
class Paths:
    """The paths of a job."""

    transport: registry.Transport
    reason: str  #: for messages: why this transport
    neighbors: topology.Neighbors
    pes: Sequence[topology.PE]  #: with their NICs
    choice: Choice | None  #: the NIC of this PE, None if it uses none

    @property
    def groups(self) -> tuple[Sequence[int], ...]:
        """All PEs, in groups that map each other's memory."""
        return self.neighbors.groups if self.transport.maps_peers else tuple(range(pe, pe + 1) for pe in range(len(self.pes)))

    @property
    def nodes(self) -> tuple[Sequence[int], ...]:
        """All PEs, in groups of one node each."""
        return self.neighbors.nodes

    @property
    def in_row(self) -> bool:
        """Whether the numbers of the PEs in each group are consecutive."""
        return all(isinstance(pes, range) for pes in self.groups)

    def near_pes(self, pe: int) -> Sequence[int]:
        """Return the PEs that map a PE's memory, itself among them."""
        return next(pes for pes in self.groups if pe in pes)

    def constants(self, requested: Mapping[str, Any], gpu: "GPU | None") -> window.Constants:
        """Return the constants with which this PE's kernels are compiled."""
        largest = max(pe.gpu_memory for pe in self.pes)
        settled = {
            **requested,
            "PGAS_NIC_ORDERING": hca.ordering(requested, gpu, self.choice),
            "PGAS_IBGDA_NUM_RC_PER_PE": hca.queue_pairs(requested, () if self.choice is None else self.pes),
        }
        return window.Constants.of(settled, self.transport, largest, near_in_row=self.in_row)

    @property
    def two(self) -> bool:
        near, far = registry.parts(self.transport)
        return near is not far

    @property
    def far(self) -> str:
        """The name of the transport to PEs whose memory is not mapped; "" in a job with one transport."""
        return registry.parts(self.transport)[1].name if self.two else ""

    def ways_to(self, me: int) -> str:
        """Return ": PEs 0-1 over p2p; PEs 2-3 over ibgda", for messages; "" in a job with one transport."""
        if not self.two:
            return ""
        near = self.near_pes(me)
        far = [pe for pe in range(len(self.pes)) if pe not in near]
        by_near, by_far = registry.parts(self.transport)
        ways = [(near, by_near.name), *([(far, by_far.name)] if far else [])]
        return ": " + "; ".join(f"PE{'s' * (len(pes) > 1)} {ranges(pes)} over {name}" for pes, name in ways)

    def between(self, a: int, b: int) -> str:
        near, far = registry.parts(self.transport)
        return (near if b in self.near_pes(a) else far).name

    def why(self, a: int, b: int) -> str:
        if not self.two:
            return self.reason
        if b in self.near_pes(a):
            return "memory is mapped"
        return self.neighbors.apart(a, b) or "other PEs on their node do not map each other's memory"

    def reasons(self) -> list[str]:
        """Return lines about the paths of all pairs of PEs and the reasons for them."""
        alike: dict[tuple[str, str], list[str]] = {}
        for i, some in enumerate(self.groups):
            for others in self.groups[i:]:
                a, b = some[0], others[0]
                pes = ranges(some) if some is others else f"{ranges(some)} and {ranges(others)}"
                alike.setdefault((self.between(a, b), self.why(a, b)), []).append(pes)
        cut = {key: [*pairs[:_PAIRS], *(["..."] if len(pairs) > _PAIRS else [])] for key, pairs in alike.items()}
        return [f"{name} ({why}): PEs {'; '.join(pairs)}" for (name, why), pairs in cut.items()]


def choose(
    job: Collective, me: int, requested: Mapping[str, Any], gpu: "GPU | None", pes: Sequence[topology.PE], warn: Callable[[str], None]
) -> Paths:
    """Choose the paths of a job. Collective.

    Args:
        requested: the values of the PGAS_* variables, which are the same on every PE except those of hca.LOCAL.
        warn: function that shows the user a warning.

    Raises:
        TransportError: if the requested transport cannot connect all PEs, or PGAS_HCA names no NIC that it can use.
        ValueError: if PGAS_PES_PER_NODE does not fit the number of PEs.
        BootstrapError: if another PE failed.
    """
    wanted, nodes = requested["PGAS_TRANSPORT"], [pe.node for pe in pes]
    turn = nodes[:me].count(nodes[me])
    own, _ = job.together("pgas.init()", lambda: [None if gpu is None else gpu.access(pe.gpu or "") for pe in pes])
    neighbors = topology.Neighbors(pes, job.exchange(own), requested["PGAS_PES_PER_NODE"])
    choices: dict[str, Choice] = {}
    asked: dict[str, Sequence[topology.PE]] = {}

    def nic(name: str) -> tuple[str, str]:
        try:
            choices[name] = hca.choose(name, requested, gpu, turn)
        except TransportError as error:
            if name == wanted or wanted in registry.pairs():
                raise
            return "", str(error)  # Another transport may be possible.
        return choices[name].name, choices[name].reason

    def ask(name: str) -> Sequence[topology.PE]:
        own, _ = job.together("pgas.init()", lambda: nic(name))
        met = job.exchange(own)
        asked[name] = [replace(pe, nic=found, nic_reason=reason) for pe, (found, reason) in zip(pes, met, strict=True)]
        return asked[name]

    name, reason = topology.choose_transport(wanted, neighbors, ask, requested["PGAS_ENGINE"])
    through = next(iter(registry.over_nic(name)), None)
    if through is None and turn == 0 and (remark := hca.unused(requested)):
        warn(f"{remark}; transport {name} uses none")
    return Paths(registry.get(name), reason, neighbors, asked.get(through or "", pes), choices.get(through or ""))
