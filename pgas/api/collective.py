"""Collectives on teams, for a thread, a warp, or a block (OpenSHMEM 1.5, "Collective Routines").

**Callers.** Every member of the team must call the same function, with the same team, sizes, root, and op; no other PE may call it. In a
kernel, either one thread calls, or all threads of a warp (``_warp``) or block (``_block``) call together. The kernels must run at the same
time on all members, and no block may wait for a block that has not started: use pgas.launch(). The host may also call these functions.

**Channels.** A team has PGAS_CHANNELS channels (16 by default), or the number given with ``channels=`` when it was made. A channel has one
collective at a time, and all members must make their calls on a channel in the same order. Blocks that call concurrently must use different
channels: with ``channel=cuda.blockIdx.x``, k blocks perform k collectives side by side. Threads of one block that call on the same channel
one after another need a syncthreads() in between.

**Arrays.** dest and source are contiguous arrays on the symmetric heap, of the same dtype and of any shape; their sizes determine how much
is moved. All members must pass the same arrays, or slices at the same offset in them. dest and source must not overlap, unless an entry
says that they may be the same.

**Before the call,** dest must be free to be overwritten on every member: a member that is ahead may write to this member's dest before this
member calls. Therefore, call team_sync() between the last read of dest and the next collective that writes it, or alternate between two
arrays. Messages of up to PGAS_LL_BYTES from one member to another need neither, because they go through memory of the team, and only this
member's own call writes its dest. In calls by one thread, except of broadcast and scans, this applies to messages of up to 128 bytes only.
It does not apply to alltoallv and collect, which always write to dest directly.

**On return,** dest is complete on this member, all threads that called may read it, and source may be reused. A collective is neither a
barrier nor a quiet: other members may not have returned, or even called, yet, and puts issued before the call may still be in flight.

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

    Like NVSHMEM's, it completes and orders nothing. Other members then see what a kernel stored to its own memory before a fence(), and
    what it put before a quiet(). barrier() needs neither. All members must call it, in the same order on a channel, in kernels that run at
    the same time: use pgas.launch().

    Completion:
        on return: all members have arrived; what they stored to their own memory before a fence() before the call is visible.
        complete: nothing.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if this PE is not a member of the team, the channel does not exist, or a member has not
            arrived within PGAS_TIMEOUT seconds; the message names function, team, channel, and member.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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

    On every member, it completes what quiet() would complete in the threads that call. To wait without completing anything, use
    team_sync(). All members must call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch().

    Completion:
        on return: all members have arrived, and the operations that quiet() covers are complete on each of them.
        complete: on return.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if this PE is not a member of the team, the channel does not exist, or a member has not
            arrived within PGAS_TIMEOUT seconds; the message names function, team, channel, and member.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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
    """Exchange parts: part q of this member's source is copied to member q, into this member's part of member q's dest.

    With n members, source and dest have n parts of ``source.size // n`` elements each, in member order (OpenSHMEM 1.5: shmem_alltoall). All
    members must call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch(). Before that, dest must be
    free to be overwritten on all members, unless messages have at most PGAS_LL_BYTES (128 bytes in calls by one thread): then only this
    member's own call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team, of n members: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least source.size elements, of any dtype; must not be source.
        source: array on the symmetric heap with dest's dtype, whose size is a multiple of n.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if sizes do not match, dest is source, an array is not contiguous, this PE is not a member of
            the team, the channel does not exist, or a member has not arrived within PGAS_TIMEOUT seconds.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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

    Member p sends ``source_counts[q]`` elements of its source, starting at element ``source_displs[q]``, to member q. They are copied to
    q's dest, starting at element ``dest_displs[p]``, where q has room for ``dest_counts[p]`` elements. A member may send fewer, but never
    more; the receiver is not informed how many arrived. If receivers do not know the counts, exchange them first:
    ``alltoall(team, dest_counts, source_counts)``.

    All members must call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch(). Before that, dest
    must be free to be overwritten on all members.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team, of n members: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap, of any dtype; must not be source.
        dest_counts: array of at least n integers: maximum number of elements from each member.
        dest_displs: array of at least n integers: index in dest at which each member's elements begin. Parts must not overlap.
        source: array on the symmetric heap with dest's dtype.
        source_counts: array of at least n integers: number of elements for each member; 0 sends nothing.
        source_displs: array of at least n integers: index in source at which the elements for each member begin.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if a part is not inside dest or source, a member sends more than is expected, dest is source,
            an array is not contiguous, this PE is not a member of the team, the channel does not exist, or a member has not arrived within
            PGAS_TIMEOUT seconds.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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

    The root may return before other members have called. All members must call it, in the same order on a channel, in kernels that run at
    the same time: use pgas.launch(). Before that, dest must be free to be overwritten on all members, unless messages have at most
    PGAS_LL_BYTES: then only this member's own call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least source.size elements, of any dtype; may be source.
        source: array on the symmetric heap with dest's dtype: the data on the root; on other members only its size counts.
        root: the root's number in the team.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if sizes do not match, root is not a member, an array is not contiguous, this PE is not a
            member of the team, the channel does not exist, or a member has not arrived within PGAS_TIMEOUT seconds.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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
    """Concatenate the sources of all members in every dest, in member order (all-gather; OpenSHMEM 1.5: shmem_fcollect).

    All sources must have the same size; for different sizes use collect(). All members must call it, in the same order on a channel, in
    kernels that run at the same time: use pgas.launch(). Before that, dest must be free to be overwritten on all members, unless messages
    have at most PGAS_LL_BYTES (128 bytes in calls by one thread): then only this member's own call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team, of n members: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least ``n * source.size`` elements, of any dtype.
        source: array on the symmetric heap with dest's dtype; may be this member's own part of dest.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if sizes do not match, an array is not contiguous, this PE is not a member of the team, the
            channel does not exist, or a member has not arrived within PGAS_TIMEOUT seconds.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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
    """Concatenate the sources of all members in every dest, in member order; sizes may differ (OpenSHMEM 1.5: shmem_collect).

    The receiver is not informed how many elements came from each member. All members must call it, in the same order on a channel, in
    kernels that run at the same time: use pgas.launch(). Before that, dest must be free to be overwritten on all members.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least as many elements as all sources have together, of any dtype; must not be source.
        source: array on the symmetric heap with dest's dtype; may be empty.
        channel: from 0 to the team's number of channels - 1. Default: 0 in a kernel; on the host a channel that kernels cannot use.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type, or team is None because this PE
            is not a member.
        DeviceError: raised later on the host, if dest is too short or is source, an array is not contiguous, this PE is not a member of the
            team, the channel does not exist, or a member has not arrived within PGAS_TIMEOUT seconds.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.
        PgasError: on the host, at the call, if the team was destroyed.

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
    """Like team_sync(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(barriers.of_team("team_sync", BLOCK, completes=False))
def team_sync_block(team: Integer, channel: Integer = 0) -> None:
    """Like team_sync(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(barriers.of_team("barrier", WARP, completes=True))
def barrier_warp(team: Integer, channel: Integer = 0) -> None:
    """Like barrier(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return. Completes the operations of all these threads.
    """


@device_function(barriers.of_team("barrier", BLOCK, completes=True))
def barrier_block(team: Integer, channel: Integer = 0) -> None:
    """Like barrier(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return. Completes the operations of all these threads.
    """


@device_function(movement.alltoall(WARP))
def alltoall_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like alltoall(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(movement.alltoall(BLOCK))
def alltoall_block(team: Integer, dest: Any, source: Any, channel: Integer = 0, part: tuple[Integer, Integer] | None = None) -> None:
    """Like alltoall(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.

    part=(i, k) makes this call part i of k calls that move one message together, each by another block, on another channel: it moves
    about 1 / k of every member's elements, and completes only those. All members pass the same part on a channel. Example:
    ``channel=cuda.blockIdx.x, part=(cuda.blockIdx.x, cuda.gridDim.x)``. Without it, the call moves the whole message.
    """


@device_function(movement.alltoallv(WARP))
def alltoallv_warp(
    team: Integer, dest: Any, dest_counts: Any, dest_displs: Any, source: Any, source_counts: Any, source_displs: Any, channel: Integer = 0
) -> None:
    """Like alltoallv(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(movement.alltoallv(BLOCK))
def alltoallv_block(
    team: Integer, dest: Any, dest_counts: Any, dest_displs: Any, source: Any, source_counts: Any, source_displs: Any, channel: Integer = 0
) -> None:
    """Like alltoallv(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(movement.broadcast(WARP))
def broadcast_warp(team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0) -> None:
    """Like broadcast(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(movement.broadcast(BLOCK))
def broadcast_block(
    team: Integer, dest: Any, source: Any, root: Integer, channel: Integer = 0, part: tuple[Integer, Integer] | None = None
) -> None:
    """Like broadcast(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.

    part=(i, k) makes this call part i of k calls that move one message together, each by another block, on another channel: it moves
    about 1 / k of every member's elements, and completes only those. All members pass the same part on a channel. Example:
    ``channel=cuda.blockIdx.x, part=(cuda.blockIdx.x, cuda.gridDim.x)``. Without it, the call moves the whole message.
    """


@device_function(movement.fcollect(WARP))
def fcollect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like fcollect(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(movement.fcollect(BLOCK))
def fcollect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0, part: tuple[Integer, Integer] | None = None) -> None:
    """Like fcollect(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.

    part=(i, k) makes this call part i of k calls that move one message together, each by another block, on another channel: it moves
    about 1 / k of every member's elements, and completes only those. All members pass the same part on a channel. Example:
    ``channel=cuda.blockIdx.x, part=(cuda.blockIdx.x, cuda.gridDim.x)``. Without it, the call moves the whole message.
    """


@device_function(movement.collect(WARP))
def collect_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like collect(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(movement.collect(BLOCK))
def collect_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like collect(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """
