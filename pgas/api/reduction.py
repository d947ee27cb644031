"""Reductions and scans on teams (OpenSHMEM 1.5, "SHMEM_REDUCTIONS"; scans: 1.6). The rules of collective.py apply."""

from typing import Any

from pgas.kernels.codes import OPERATIONS
from pgas.kernels.collectives import reductions
from pgas.kernels.compiler.binding import Integer, device_function
from pgas.kernels.scope import BLOCK, THREAD, WARP

#: Operations of reduce(), reducescatter() and scans.
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
    """Combine the sources of all members, element by element, into every dest (all-reduce; OpenSHMEM 1.5: shmem_sum_reduce and its like).

    All members get the same bits. Elements are combined in the order of members; for more than 2 * PGAS_LL_BYTES per member through a NIC
    that order is rotated. float16 and bfloat16 are accumulated in float32 and rounded once; integers wrap.

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team.
        dest: array of at least source.size elements; may be source.
        source: array of integers, for every op; of float16, bfloat16, float32 or float64, for SUM, PROD, MIN and MAX; of complex numbers,
            for SUM; of bools, for AND, OR and XOR.
        op: pgas.SUM, PROD, MIN, MAX, AND, OR or XOR, by name: the kernel is compiled for it. NaN of any member is the result of MIN and
            MAX, as of numpy.minimum and numpy.maximum.
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
        ValueError: on the host, at the call: the same, or op is another.

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
    """Combine the sources of all members, element by element, and leave part q of the result in member q's dest (NVSHMEM's reducescatter).

    Order and types are those of reduce().

    Completion:
        on return: dest is complete here, source may be reused.
        complete: nothing at other members.

    Args:
        team: the team, of n members.
        dest: array: its size is that of a part. May be this member's own part of source.
        source: array of at least ``n * dest.size`` elements: n parts, in the order of members.
        op: as reduce().
        channel: as team_sync().
        stream: on the host only, as team_sync().

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: sizes do not fit, or as team_sync().
        ValueError: on the host, at the call: the same, or op is another.

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
    """Inclusive scan: combine the sources of members 0 to this one, element by element (OpenSHMEM 1.6: shmem_sum_inscan).

    For every op of reduce(), in its order and for its types.

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
        ValueError: on the host, at the call: the same, or op is another.

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
    """Exclusive scan: combine the sources of the members before this one, element by element (OpenSHMEM 1.6: shmem_sum_exscan).

    Member 0 gets the identity of op: 0 for SUM, OR and XOR, 1 for PROD, all ones for AND, the largest value for MIN, the least for MAX. For
    every op of reduce(), in its order and for its types.

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
        ValueError: on the host, at the call: the same, or op is another.

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
    the one with the least location. NaN comes before every number, for minloc() too. What a location means is up to the program: often it
    is the number of the member.

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
        ValueError: on the host, at the call: the same.

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
    """Find, for each row, the pair with the smallest value among all members; else as maxloc().

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
        ValueError: on the host, at the call: the same.

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
    """reduce() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.reduce(BLOCK))
def reduce_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reduce() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(reductions.reducescatter(WARP))
def reducescatter_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reducescatter() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.reducescatter(BLOCK))
def reducescatter_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """reducescatter() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(reductions.inscan(WARP))
def inscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """inscan() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.inscan(BLOCK))
def inscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """inscan() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(reductions.exscan(WARP))
def exscan_warp(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """exscan() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.exscan(BLOCK))
def exscan_block(team: Integer, dest: Any, source: Any, op: Any, channel: Integer = 0) -> None:
    """exscan() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(reductions.best("maxloc", WARP, least=False))
def maxloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """maxloc() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.best("maxloc", BLOCK, least=False))
def maxloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """maxloc() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""


@device_function(reductions.best("minloc", WARP, least=True))
def minloc_warp(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """minloc() by all threads of one warp of every member; synchronizes the warp on entry and return. None may have exited."""


@device_function(reductions.best("minloc", BLOCK, least=True))
def minloc_block(team: Integer, dest: Any, source: Any, channel: Integer = 0) -> None:
    """minloc() by all threads of one block of every member; synchronizes the block on entry and return. None may have exited."""
