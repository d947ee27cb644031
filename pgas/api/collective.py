"""Collectives on teams, in kernels: for a thread, a warp or a block (OpenSHMEM 1.5, section 9.11; scans: 1.6).

Every member of the team calls, in the same order for each (team, channel). A (team, channel) has one collective at a time. Blocks that pass
different channels can call at the same time.

On return the caller's dest is complete and its source may be reused. Other members' dest may be incomplete: no barrier and no quiet is
implied. Before the call, dest must be ready to be overwritten on every member, for example after a barrier. This is not needed for short
messages, which go through staging: up to PGAS_LL_BYTES from each member to each other.

dest and source are contiguous symmetric arrays of one dtype, and their sizes determine the number of elements. Sizes, root, team and op
must be the same on all members.

On the host, and on CUDA streams: pgas/api/host_collectives.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Integer, device_function
from pgas.kernels.ops import collective, meeting
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
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
    "fcollect",
    "fcollect_block",
    "fcollect_warp",
    "team_sync",
    "team_sync_block",
    "team_sync_warp",
]


@device_function(meeting.of_team("team_sync", THREAD, completes=False))
def team_sync(team: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Wait until all members of a team have arrived (OpenSHMEM 1.5, section 9.11.3 SHMEM_SYNC).

    As NVSHMEM's, it orders nothing by itself: for data that others read afterwards call fence() before it, or use barrier().

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


@device_function(meeting.of_team("barrier", THREAD, completes=True))
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
    """Send part q of source to member q, for all members; it becomes part ``team_my_pe(team)`` of member q's dest.

    OpenSHMEM 1.5, section 9.11.5. All parts have ``source.size // team_n_pes(team)`` elements.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; not source.
        source: array whose size is a multiple of the team's size.
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
    """Send parts of different sizes to all members; counts and displacements are read on the device (MPI_Alltoallv).

    ``source_counts[q]`` elements of source from ``source_displs[q]`` on go to member q, which puts those of member p at ``dest_displs[p]``
    of its dest. A member may send fewer than ``dest_counts[p]`` elements, but not more. If receivers do not know the counts, exchange them
    first: ``alltoall(team, dest_counts, source_counts)``.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array for the received elements; must be ready to be overwritten on every member, whatever its size.
        dest_counts: array of integers, one for each member: most elements from it.
        dest_displs: array of integers, one for each member: index in dest of its elements.
        source: array of the elements to send.
        source_counts: array of integers, one for each member: number of elements for it.
        source_displs: array of integers, one for each member: index in source of its elements.
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
        source: array of the same size on every member; its elements matter on the root only.
        root: the root's number in the team.
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


@device_function(meeting.of_team("team_sync", WARP, completes=False))
def team_sync_warp(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(meeting.of_team("team_sync", BLOCK, completes=False))
def team_sync_block(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(meeting.of_team("barrier", WARP, completes=True))
def barrier_warp(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(meeting.of_team("barrier", BLOCK, completes=True))
def barrier_block(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(collective.alltoall(WARP))
def alltoall_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(collective.alltoall(BLOCK))
def alltoall_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


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
    """alltoallv() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


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
    """alltoallv() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(collective.broadcast(WARP))
def broadcast_warp(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(collective.broadcast(BLOCK))
def broadcast_block(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(collective.fcollect(WARP))
def fcollect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(collective.fcollect(BLOCK))
def fcollect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(collective.collect(WARP))
def collect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(collective.collect(BLOCK))
def collect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""
