"""Reductions and scans on teams (OpenSHMEM 1.5, "SHMEM_REDUCTIONS"; scans: 1.6). The rules of collective.py apply."""

from typing import Any

from pgas.kernels.codes import OPERATIONS
from pgas.kernels.collectives import reductions
from pgas.kernels.compiler.binding import Integer, device_function
from pgas.kernels.scope import BLOCK, THREAD, WARP

#: Operations of reduce(), reducescatter(), and scans.
SUM, PROD, MIN, MAX, AND, OR, XOR = OPERATIONS.values()

__all__ = [
    "AND",
    "MAX",
    "MIN",
    "OR",
    "PROD",
    "SUM",
    "XOR",
    "exscan",
    "exscan_block",
    "exscan_warp",
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
]


@device_function(reductions.reduce(THREAD))
def reduce(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Combine the sources of all members, element by element, into every dest (all-reduce; OpenSHMEM 1.5: shmem_sum_reduce etc.).

    The result is bitwise identical on all members. Elements are combined in member order; for more than 2 * PGAS_LL_BYTES per member
    through a NIC, that order is rotated. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap. All members must
    call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch(). Before that, dest must be free to be
    overwritten on all members, unless messages have at most PGAS_LL_BYTES (128 bytes in calls by one thread): then only this member's own
    call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least source.size elements; may be source.
        source: array on the symmetric heap with dest's dtype: integers (every op); float16, bfloat16, float32, or float64 (SUM, PROD, MIN,
            and MAX); complex numbers (SUM); bools (AND, OR, and XOR).
        op: pgas.SUM, PROD, MIN, MAX, AND, OR, or XOR, named in the kernel, which is compiled for it. A NaN among the combined elements is
            the result of MIN and MAX.
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
        >>> source, dest = pgas.full(4, pgas.my_pe() + 1), pgas.zeros(4, np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.reduce_block(team, dest, source, pgas.MAX)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist() == [pgas.n_pes()] * 4
        True
    """


@device_function(reductions.reducescatter(THREAD))
def reducescatter(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Combine the sources of all members, element by element, and store part q of the result in member q's dest (NVSHMEM).

    Elements are combined in member order; in a job with two transports, for more than PGAS_LL_BYTES per member, those of a node are
    combined first. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap. All members must call it, in the
    same order on a channel, in kernels that run at the same time: use pgas.launch(). Before that, dest must be free to be overwritten
    on all members, unless messages have at most PGAS_LL_BYTES (128 bytes in calls by one thread): then only this member's own call
    writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team, of n members: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap with the size of a part; may be this member's own part of source.
        source: array on the symmetric heap of at least ``n * dest.size`` elements with dest's dtype, n parts in member order: integers
            (every op); float16, bfloat16, float32, or float64 (SUM, PROD, MIN, and MAX); complex numbers (SUM); bools (AND, OR, and XOR).
        op: pgas.SUM, PROD, MIN, MAX, AND, OR, or XOR, named in the kernel, which is compiled for it. A NaN among the combined elements is
            the result of MIN and MAX.
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
        >>> n = pgas.n_pes()
        >>> source, dest = pgas.array(np.arange(n)), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.reducescatter_block(team, dest, source, pgas.SUM)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> int(dest[0]) == n * pgas.my_pe()
        True
    """


@device_function(reductions.inscan(THREAD))
def inscan(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Inclusive scan: combine the sources of members 0 to this one, element by element (OpenSHMEM 1.6: shmem_sum_inscan etc.).

    Elements are combined in member order. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap. All members must
    call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch(). Only this member's own call writes its
    dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least source.size elements; may be source.
        source: array on the symmetric heap with dest's dtype: integers (every op); float16, bfloat16, float32, or float64 (SUM, PROD, MIN,
            and MAX); complex numbers (SUM); bools (AND, OR, and XOR).
        op: pgas.SUM, PROD, MIN, MAX, AND, OR, or XOR, named in the kernel, which is compiled for it. A NaN among the combined elements is
            the result of MIN and MAX.
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
        >>> source, dest = pgas.full(1, 5), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.inscan_block(team, dest, source, pgas.SUM)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> int(dest[0]) == 5 * (pgas.my_pe() + 1)
        True
    """


@device_function(reductions.exscan(THREAD))
def exscan(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Exclusive scan: combine the sources of the members before this one, element by element (OpenSHMEM 1.6: shmem_sum_exscan etc.).

    Member 0 gets the identity of op: 0 for SUM, OR, and XOR; 1 for PROD; all ones for AND; the largest value for MIN; the smallest for MAX.
    Elements are combined in member order. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap. All members must
    call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch(). Only this member's own call writes its
    dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array on the symmetric heap of at least source.size elements; may be source.
        source: array on the symmetric heap with dest's dtype: integers (every op); float16, bfloat16, float32, or float64 (SUM, PROD, MIN,
            and MAX); complex numbers (SUM); bools (AND, OR, and XOR).
        op: pgas.SUM, PROD, MIN, MAX, AND, OR, or XOR, named in the kernel, which is compiled for it. A NaN among the combined elements is
            the result of MIN and MAX.
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
        >>> source, dest = pgas.full(1, 5), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.exscan_block(team, dest, source, pgas.SUM)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> int(dest[0]) == 5 * pgas.my_pe()
        True
    """


@device_function(reductions.best("maxloc", THREAD, least=False))
def maxloc(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Find, for each row, the pair with the largest value among all members (NVSHMEM's double2_maxloc_reduce, MPI_MAXLOC).

    A row of source is a pair (value, location). Every member's dest gets, for each row, the pair with the largest value; of equal values,
    the one with the smallest location. NaN takes precedence over every number. The program defines what a location means; often it is the
    number of the member. All members must call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch().
    Before that, dest must be free to be overwritten on all members, unless messages have at most PGAS_LL_BYTES (128 bytes in calls by one
    thread): then only this member's own call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array of shape (n, 2) in C order on the symmetric heap, with at least as many rows as source; may be source.
        source: array of shape (n, 2) in C order on the symmetric heap, of 32- or 64-bit integers or floats.
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
        >>> source, dest = pgas.array([[pgas.my_pe() / 2, pgas.my_pe()]]), pgas.zeros((1, 2))  # value, location
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.maxloc_block(team, dest, source)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist() == [[(pgas.n_pes() - 1) / 2, pgas.n_pes() - 1]]
        True
    """


@device_function(reductions.best("minloc", THREAD, least=True))
def minloc(team: Integer, dest: Any, source: Any, channel: Integer = 0, *, stream: Any = None) -> None:
    """Find, for each row, the pair with the smallest value among all members (MPI_MINLOC).

    A row of source is a pair (value, location). Every member's dest gets, for each row, the pair with the smallest value; of equal values,
    the one with the smallest location. NaN takes precedence over every number. The program defines what a location means; often it is the
    number of the member. All members must call it, in the same order on a channel, in kernels that run at the same time: use pgas.launch().
    Before that, dest must be free to be overwritten on all members, unless messages have at most PGAS_LL_BYTES (128 bytes in calls by one
    thread): then only this member's own call writes its dest.

    Completion:
        on return: dest is complete on this member; source may be reused.
        complete: nothing on other members.

    Args:
        team: the team: a predefined one such as pgas.TEAM_WORLD, or one that was made on the host and passed to the kernel.
        dest: array of shape (n, 2) in C order on the symmetric heap, with at least as many rows as source; may be source.
        source: array of shape (n, 2) in C order on the symmetric heap, of 32- or 64-bit integers or floats.
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
        >>> source, dest = pgas.array([[pgas.my_pe() / 2, pgas.my_pe()]]), pgas.zeros((1, 2))  # value, location
        >>> @pgas.jit
        ... def exchange(team, dest, source):
        ...     pgas.minloc_block(team, dest, source)
        >>> pgas.launch(exchange, 1, 32, (pgas.TEAM_WORLD, dest, source))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [[0.0, 0.0]]
    """


@device_function(reductions.reduce(WARP))
def reduce_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like reduce(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.reduce(BLOCK))
def reduce_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, part: tuple[Integer, Integer] | None = None) -> None:
    """Like reduce(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.

    part=(i, k) makes this call part i of k calls that move one message together, each by another block, on another channel: it moves
    about 1 / k of every member's elements, and completes only those. All members pass the same part on a channel. Example:
    ``channel=cuda.blockIdx.x, part=(cuda.blockIdx.x, cuda.gridDim.x)``. Without it, the call moves the whole message.
    """


@device_function(reductions.reducescatter(WARP))
def reducescatter_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like reducescatter(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.reducescatter(BLOCK))
def reducescatter_block(
    team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0, part: tuple[Integer, Integer] | None = None
) -> None:
    """Like reducescatter(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.

    part=(i, k) makes this call part i of k calls that move one message together, each by another block, on another channel: it moves
    about 1 / k of every member's elements, and completes only those. All members pass the same part on a channel. Example:
    ``channel=cuda.blockIdx.x, part=(cuda.blockIdx.x, cuda.gridDim.x)``. Without it, the call moves the whole message.
    """


@device_function(reductions.inscan(WARP))
def inscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like inscan(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.inscan(BLOCK))
def inscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like inscan(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(reductions.exscan(WARP))
def exscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like exscan(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.exscan(BLOCK))
def exscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """Like exscan(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(reductions.best("maxloc", WARP, least=False))
def maxloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like maxloc(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.best("maxloc", BLOCK, least=False))
def maxloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like maxloc(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """


@device_function(reductions.best("minloc", WARP, least=True))
def minloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like minloc(), but called by all threads of one warp on every member; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(reductions.best("minloc", BLOCK, least=True))
def minloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """Like minloc(), but called by all threads of one block on every member; none may have exited.

    Synchronizes the block on entry and on return.
    """
