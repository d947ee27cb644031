"""Collectives on teams, for a thread, a warp or a block (OpenSHMEM 1.5, "Collective Routines").

**Who calls.** Every member of the team calls the same function, with the same team, sizes, root and op; nobody else may call. In a kernel
one thread calls, or all threads of a warp (``_warp``) or block (``_block``) together. The kernels must run at the same time on all members,
and no block may wait for one that has not started: use pgas.launch(). The host may call these functions, too.

**Channels.** A team has PGAS_CHANNELS channels (16 by default), or as many as ``channels=`` asked for when it was made. A channel has one
collective at a time, and all members make their calls on a channel in the same order. Blocks that call at once name different channels:
with ``channel=cuda.blockIdx.x``, k blocks perform k collectives side by side. Threads of one block that call on the same channel one after
another need a syncthreads() in between.

**Arrays.** dest and source are contiguous arrays on the symmetric heap, of one dtype and any shape; their sizes say how much is moved. All
members name the same arrays, or slices at the same place of them. dest and source must not overlap, unless an entry says that they may be
the same.

**Before the call,** dest must be free to be overwritten on every member: a member that is ahead may write to this member's dest before this
member calls. So call team_sync() between the last read of dest and the next collective that writes it, or use two arrays by turns.
Messages of up to PGAS_LL_BYTES from a member to another need neither: they go through memory of the team, and only this member's own call
writes its dest. This does not hold for alltoallv and collect, which always write to dest directly.

**On return,** dest is complete on this member, all threads that called may read it, and source may be reused. A collective is no barrier
and no quiet: other members may not have returned, or not have called yet, and puts from before the call may still be on their way.

On the host, and on CUDA streams: pgas/api/host_collectives.py.
"""

from typing import Any

from pgas.kernels.collectives import barriers, movement
from pgas.kernels.compiler.binding import Integer, device_function
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


@device_function(barriers.of_team("team_sync", THREAD, completes=False))
def team_sync(team: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Wait until all members of a team have arrived (OpenSHMEM 1.5: shmem_team_sync).

    It completes and orders nothing, as NVSHMEM's: data that other members are to see afterwards needs a fence() before the call, or
    barrier() instead.

    Completion:
        on return: all members have arrived; what they stored before a fence() before the call is visible.
        complete: nothing.

    Args:
        team: the team: pgas.TEAM_WORLD, another predefined one, or one that was made on the host and passed to the kernel.
        channel: 0 to the team's number of channels - 1. Default on the host: a channel that kernels cannot name.
        stream: on the host only: a CUDA stream of Numba, cuda.core, CuPy or PyTorch, or 0; the call returns at once. None: the call waits
            for its end.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: team or channel is no integer; team is None, as for a PE that
            is no member.
        DeviceError: later, on the host: this PE is not a member of the team, the channel does not exist, or a member has not come after
            PGAS_TIMEOUT seconds; names function, team, channel and member.
        ValueError: on the host, at the call: the channel does not exist.

    Example:
        >>> @pgas.jit
        ... def meet(team):
        ...     pgas.team_sync(team)
        >>> pgas.launch(meet, 1, 1, (pgas.TEAM_WORLD,))
        >>> pgas.team_sync(pgas.TEAM_NODE)  # on the host
    """


@device_function(barriers.of_team("barrier", THREAD, completes=True))
def barrier(team: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Wait until all members of a team have arrived and their operations are complete (OpenSHMEM 1.5: shmem_barrier).

    It completes what quiet() would complete in the threads that call, on every member.

    Completion:
        on return: all members have arrived, and the operations that quiet() covers in each are complete.
        complete: on return.

    Args:
        team: the team.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: as team_sync().
        DeviceError: as team_sync().
        ValueError: as team_sync().

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, out = pgas.zeros(1, np.int32), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def step(team, dest, out, pe):
        ...     pgas.p(dest, 0, 3, pe)
        ...     pgas.barrier(team)
        ...     out[0] = dest[0]
        >>> pgas.launch(step, 1, 1, (pgas.TEAM_WORLD, dest, out, right))
        >>> pgas.synchronize()
        >>> int(out[0])
        3
    """


@device_function(movement.alltoall(THREAD))
def alltoall(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Exchange parts: part q of this member's source goes to member q, into the part of its dest that is this member's.

    With n members, source and dest have n parts of ``source.size // n`` elements each, in the order of members (OpenSHMEM 1.5:
    shmem_alltoall).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements, of any dtype; not source.
        source: array whose size is a multiple of n.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, dest is source, or as team_sync().
        ValueError: on the host, at the call: the same.

    Example:
        >>> n = pgas.n_pes()
        >>> source, dest = pgas.array(10 * pgas.my_pe() + np.arange(n)), pgas.zeros(n, np.int64)  # an element for each PE
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.alltoall_block(team, dest, source)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist() == [10 * pe + pgas.my_pe() for pe in range(n)]
        True
    """


@device_function(movement.alltoallv(THREAD))
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
    """Exchange parts of different sizes, with counts and displacements that are read on the device (MPI_Alltoallv).

    Member p sends ``source_counts[q]`` elements of its source, from element ``source_displs[q]`` on, to member q. They go to element
    ``dest_displs[p]`` of q's dest and the following ones, where q has room for ``dest_counts[p]``. A member may send fewer, never more; the
    receiver is not told how many came. If receivers do not know the counts, exchange them first:
    ``alltoall(team, dest_counts, source_counts)``.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team, of n members.
        dest: array of any dtype; not source. It must be free to be overwritten on every member, whatever the size of the message.
        dest_counts: array of at least n integers: how many elements may come from each member.
        dest_displs: array of at least n integers: where they go, in elements from the start of dest. Parts must not overlap.
        source: array of what is sent.
        source_counts: array of at least n integers: how many elements go to each member; 0 sends nothing.
        source_displs: array of at least n integers: where they are, in elements from the start of source.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: a part is not inside dest or source, a member sends more than is expected, or as team_sync().
        ValueError: on the host, at the call: an array of integers has fewer than n elements, or dest is source.

    Example:
        >>> n = pgas.n_pes()
        >>> source, dest = pgas.full(n * 2, pgas.my_pe()), pgas.full(n * 2, -1)
        >>> counts, displs = pgas.full(n, 2), pgas.array(2 * np.arange(n))  # two elements for each PE
        >>> pgas.alltoallv(pgas.TEAM_WORLD, dest, counts, displs, source, counts, displs)
        >>> dest[:4].copy_to_host().tolist()
        [0, 0, 1, 1]
    """


@device_function(movement.broadcast(THREAD))
def broadcast(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0, *, stream: Any = None) -> None:
    """Copy the root's source to every member's dest, its own included (OpenSHMEM 1.5: shmem_broadcast).

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements, of any dtype; may be source.
        source: array: on the root what is sent, on other members only its size counts.
        root: the root's number in the team.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, root is no member, or as team_sync().
        ValueError: on the host, at the call: the same.

    Example:
        >>> source, dest = pgas.full(4, pgas.my_pe() + 1), pgas.zeros(4, np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.broadcast_block(team, dest, source, 1)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [2, 2, 2, 2]
    """


@device_function(movement.fcollect(THREAD))
def fcollect(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Concatenate the sources of all members in every dest, in the order of members (all-gather; OpenSHMEM 1.5: shmem_fcollect).

    All sources have the same size; collect() takes different ones.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team, of n members.
        dest: array of at least ``n * source.size`` elements, of any dtype.
        source: array; may be this member's own part of dest.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
        ValueError: on the host, at the call: the same.

    Example:
        >>> source, dest = pgas.full(2, pgas.my_pe()), pgas.zeros(2 * pgas.n_pes(), np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.fcollect_block(team, dest, source)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest[:4].copy_to_host().tolist()
        [0, 0, 1, 1]
    """


@device_function(movement.collect(THREAD))
def collect(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Concatenate the sources of all members in every dest, in the order of members; sizes may differ (OpenSHMEM 1.5: shmem_collect).

    The receiver is not told how many elements came from each member.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least as many elements as all sources have together, of any dtype; not source. It must be free to be overwritten
            on every member, whatever the size of the message.
        source: array; may be empty.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: dest is too short or is source, or as team_sync().
        ValueError: on the host, at the call: dest is source, or channel does not exist.

    Example:
        >>> source, dest = pgas.full(3, pgas.my_pe()), pgas.zeros(3 * pgas.n_pes(), np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.collect_block(team, dest, source[: pgas.my_pe() + 1])
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest[:3].copy_to_host().tolist()  # one element of PE 0, two of PE 1
        [0, 1, 1]
    """


@device_function(barriers.of_team("team_sync", WARP, completes=False))
def team_sync_warp(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(barriers.of_team("team_sync", BLOCK, completes=False))
def team_sync_block(team: Integer, channel: Integer = 0) -> None:
    """team_sync() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(barriers.of_team("barrier", WARP, completes=True))
def barrier_warp(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(barriers.of_team("barrier", BLOCK, completes=True))
def barrier_block(team: Integer, channel: Integer = 0) -> None:
    """barrier() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(movement.alltoall(WARP))
def alltoall_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(movement.alltoall(BLOCK))
def alltoall_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """alltoall() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(movement.alltoallv(WARP))
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


@device_function(movement.alltoallv(BLOCK))
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


@device_function(movement.broadcast(WARP))
def broadcast_warp(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(movement.broadcast(BLOCK))
def broadcast_block(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """broadcast() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(movement.fcollect(WARP))
def fcollect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(movement.fcollect(BLOCK))
def fcollect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """fcollect() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(movement.collect(WARP))
def collect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(movement.collect(BLOCK))
def collect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """collect() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""
