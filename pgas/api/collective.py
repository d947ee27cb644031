"""Collectives on teams, in kernels: for a thread, a warp or a block (OpenSHMEM 1.5, section 9.11; scans: 1.6).

Every member of the team calls, in the same order for each (team, channel). ``channel`` lets blocks call at once: k blocks that each name
another one perform k collectives side by side. A (team, channel) has one collective at a time.

On return the caller's dest is complete and its source may be reused; nothing is said of other members' dest, and neither a barrier nor a
quiet is implied. Before the call, dest must be ready to be overwritten on every member (after an earlier barrier or collective), unless the
message takes staging: up to PGAS_LL_BYTES for a pair of members.

dest and source are symmetric arrays of one dtype, contiguous; counts follow from their sizes. Sizes, root, team and op must agree on all
members. On the host: pgas/api/team.py.
"""

from typing import Any

from pgas.kernels.codes import OPERATIONS
from pgas.kernels.compiler.binding import Integer, device_function
from pgas.kernels.ops import collective
from pgas.kernels.scope import BLOCK, THREAD, WARP

SUM, PROD, MIN, MAX, AND, OR, XOR = OPERATIONS.values()

__all__ = [
    "AND",
    "MAX",
    "MIN",
    "OR",
    "PROD",
    "SUM",
    "XOR",
    "alltoall",
    "alltoall_block",
    "alltoall_warp",
    "alltoallv",
    "alltoallv_block",
    "alltoallv_warp",
    "barrier",
    "barrier_block",
    "barrier_warp",
    "broadcast",
    "broadcast_block",
    "broadcast_warp",
    "collect",
    "collect_block",
    "collect_warp",
    "exscan",
    "exscan_block",
    "exscan_warp",
    "fcollect",
    "fcollect_block",
    "fcollect_warp",
    "inscan",
    "inscan_block",
    "inscan_warp",
    "maxloc",
    "maxloc_block",
    "maxloc_warp",
    "minloc",
    "minloc_block",
    "minloc_warp",
    "reduce",
    "reduce_block",
    "reduce_warp",
    "reducescatter",
    "reducescatter_block",
    "reducescatter_warp",
    "team_sync",
    "team_sync_block",
    "team_sync_warp",
]


@device_function(collective.meeting("team_sync", THREAD, completes=False))
def team_sync(team: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Wait until all members of a team have arrived (OpenSHMEM 1.5, section 9.11.3 SHMEM_SYNC).

    It orders nothing by itself, as NVSHMEM's: data that others are to see afterwards needs a fence() before, or barrier() instead.

    Completion:
        on return: all members have arrived; what they stored before a fence() before the call is visible.
        complete: nothing.

    Args:
        team: the team.
        channel: 0 to the team's number of channels - 1; other blocks may use others at the same time.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: this PE is not a member of the team, the channel does not exist, or a member has not come after
            PGAS_TIMEOUT seconds; names team, channel and member.
    """


@device_function(collective.meeting("barrier", THREAD, completes=True))
def barrier(team: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Wait until all members of a team have arrived and their operations before are complete (OpenSHMEM 1.5, section 9.11.1).

    Completion:
        on return: all members have arrived, and the operations that quiet() covers in each are complete.
        complete: on return.

    Args:
        team: the team.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        DeviceError: as team_sync().
    """


@device_function(collective.alltoall(THREAD))
def alltoall(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Send a part of source to every member: part q of this member's source becomes part ``my number`` of member q's dest.

    OpenSHMEM 1.5, section 9.11.5. All parts have ``source.size // team_n_pes(team)`` elements.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; not source.
        source: array of a multiple of the team's size.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.alltoallv(THREAD))
def alltoallv(
    team: Integer,
    dest: Any,
    dest_counts: Any,
    dest_displs: Any,
    source: Any,
    source_counts: Any,
    source_displs: Any,
    channel: Integer = 0,
    *,
    stream: Any = None,
) -> None:
    """Send a part of source to every member, of a size of its own; counts and displacements are read on the device (MPI_Alltoallv).

    Elements ``source_displs[q]`` to ``source_displs[q] + source_counts[q]`` of source go to member q, which takes those of member p at
    ``dest_displs[p]`` of its dest. A member may send less than ``dest_counts`` allows, never more. Where counts are not known, exchange
    them before: ``alltoall(team, dest_counts, source_counts)``.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array for what comes; must be ready to be overwritten on every member, whatever its size.
        dest_counts: integers, one for each member: the most elements that come from it.
        dest_displs: integers, one for each member: where they go, in elements of dest.
        source: array of what is sent.
        source_counts: integers, one for each member: the elements that go to it.
        source_displs: integers, one for each member: where they lie, in elements of source.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: a part lies beyond dest or source, a member sends more than is allowed, or as team_sync().
    """


@device_function(collective.broadcast(THREAD))
def broadcast(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Copy the root's source into every member's dest, also the root's (OpenSHMEM 1.5, section 9.11.6).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; may be source.
        source: array; its elements matter on the root, its size on every member.
        root: number of the root in the team.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, root is no member, or as team_sync().
    """


@device_function(collective.fcollect(THREAD))
def fcollect(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Concatenate the sources of all members, in their order, in every dest; all have the same size (OpenSHMEM 1.5, section 9.11.7).

    Also known as all-gather.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least ``team_n_pes(team) * source.size`` elements.
        source: array; may be this member's own part of dest.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.collect(THREAD))
def collect(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Concatenate the sources of all members, in their order, in every dest; sizes may differ (OpenSHMEM 1.5, section 9.11.7).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array for all elements; must be ready to be overwritten on every member, whatever its size.
        source: array; may be empty.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: dest is too short, or as team_sync().
    """


@device_function(collective.reduce(THREAD))
def reduce(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Combine the sources of all members element by element into every dest (all-reduce; OpenSHMEM 1.5, section 9.11.9).

    Elements are combined in the order of members, so all members get the same bits. float16 and bfloat16 are accumulated in float32 and
    rounded once, integers wrap.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; may be source.
        source: array of integers for every op; of floats (float16, bfloat16, float32, float64) for SUM, PROD, MIN and MAX; of complex
            numbers for SUM.
        op: pgas.SUM, PROD, MIN, MAX, AND, OR or XOR, by name: the kernel is compiled for it.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.reducescatter(THREAD))
def reducescatter(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Combine the sources of all members, and leave part q of the result in member q's dest (NVSHMEM's reducescatter).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array; its size is that of a part. It may be this member's own part of source.
        source: array of at least ``team_n_pes(team) * dest.size`` elements, of types as for reduce().
        op: as reduce().
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.inscan(THREAD))
def inscan(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Inclusive scan: combine the sources of members 0 to this one (OpenSHMEM 1.6, sum_inscan, for every op).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; may be source.
        source: array, of types as for reduce().
        op: as reduce().
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.exscan(THREAD))
def exscan(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Exclusive scan: combine the sources of the members before this one (OpenSHMEM 1.6, sum_exscan, for every op).

    Member 0 gets the identity of op: 0 for SUM, OR and XOR, 1 for PROD, all ones for AND, the largest value for MIN, the least for MAX.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; may be source.
        source: array, of types as for reduce().
        op: as reduce().
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.best("maxloc", THREAD, least=False))
def maxloc(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Find for each row the member with the largest value (NVSHMEM's maxloc, MPI_MAXLOC).

    A row is (value, location). The row of the largest value is every member's result; of equal values, that of the least location.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of shape (n, 2) in C order, with at least as many rows as source; may be source.
        source: array of shape (n, 2) in C order, of integers or floats of 32 or 64 bits.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.best("minloc", THREAD, least=True))
def minloc(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """maxloc() for the smallest value.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: as maxloc().
        source: as maxloc().
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
    """


@device_function(collective.meeting("team_sync", WARP, completes=False))
def team_sync_warp(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.meeting("team_sync", BLOCK, completes=False))
def team_sync_block(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.meeting("barrier", WARP, completes=True))
def barrier_warp(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.meeting("barrier", BLOCK, completes=True))
def barrier_block(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.alltoall(WARP))
def alltoall_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.alltoall(BLOCK))
def alltoall_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.alltoallv(WARP))
def alltoallv_warp(
    team: Integer,
    dest: Any,
    dest_counts: Any,
    dest_displs: Any,
    source: Any,
    source_counts: Any,
    source_displs: Any,
    channel: Integer = 0,
) -> None:
    """alltoallv() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.alltoallv(BLOCK))
def alltoallv_block(
    team: Integer,
    dest: Any,
    dest_counts: Any,
    dest_displs: Any,
    source: Any,
    source_counts: Any,
    source_displs: Any,
    channel: Integer = 0,
) -> None:
    """alltoallv() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.broadcast(WARP))
def broadcast_warp(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.broadcast(BLOCK))
def broadcast_block(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.fcollect(WARP))
def fcollect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.fcollect(BLOCK))
def fcollect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.collect(WARP))
def collect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.collect(BLOCK))
def collect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.reduce(WARP))
def reduce_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reduce() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.reduce(BLOCK))
def reduce_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reduce() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.reducescatter(WARP))
def reducescatter_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reducescatter() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.reducescatter(BLOCK))
def reducescatter_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reducescatter() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.inscan(WARP))
def inscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """inscan() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.inscan(BLOCK))
def inscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """inscan() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.exscan(WARP))
def exscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """exscan() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.exscan(BLOCK))
def exscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """exscan() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.best("maxloc", WARP, least=False))
def maxloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """maxloc() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.best("maxloc", BLOCK, least=False))
def maxloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """maxloc() by all threads of one block of every member, which meet on entry and return. None may have returned."""


@device_function(collective.best("minloc", WARP, least=True))
def minloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """minloc() by all threads of one warp of every member, which meet on entry and return. None may have returned."""


@device_function(collective.best("minloc", BLOCK, least=True))
def minloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """minloc() by all threads of one block of every member, which meet on entry and return. None may have returned."""
