"""Operations of the host: copies, signals, atomics, collectives (nvshmem4py's rma, amo, and collective)."""

import functools
import time
from enum import IntEnum
from typing import Any

from pgas import api
from pgas.nvshmem.core.device.numba import OPERATIONS
from pgas.nvshmem.core.memory import typed, whole
from pgas.nvshmem.core.setup import ComparisonType, SignalOp
from pgas.nvshmem.core.teams import handle, team_n_pes

__all__ = [
    "alltoall", "barrier", "barrier_all", "broadcast", "collective_on_buffer", "fcollect", "flush", "get", "get_nbi", "put", "put_nbi",
    "put_signal", "put_signal_nbi", "quiet", "reduce", "reducescatter", "signal_fetch", "signal_op", "signal_wait", "sync", "sync_all",
]  # fmt: skip


def _of_all(order: Any) -> Any:
    @functools.wraps(order)
    def ordered(stream: Any = None) -> None:
        order(stream=stream)

    return ordered


def _of_team(meet: Any) -> Any:
    @functools.wraps(meet)
    def met(team: Any, stream: Any = None) -> None:
        meet(handle(team), stream=stream)

    return met


quiet, flush, barrier_all, sync_all = map(_of_all, (api.quiet, api.flush, api.barrier_all, api.sync_all))
barrier, sync = map(_of_team, (api.barrier, api.team_sync))


def _pair(dst: Any, src: Any) -> tuple[Any, Any]:
    """Return operands as arrays of as many bytes as the smaller one has."""
    dest, source = whole(dst), whole(src)
    return _first(dest, source.size), _first(source, dest.size)


def _first(array: Any, size: int) -> Any:
    """Return the first elements of an array, or the array itself if it has no more."""
    return array[:size] if size < array.size else array


def _code(function: str, codes: type[IntEnum], signal_op: Any) -> int:
    """Return the number of a signal operation or comparison."""
    try:
        return int(codes(signal_op))
    except ValueError:
        allowed = ", ".join(f"{codes.__name__}.{name}" for name in codes.__members__)
        raise ValueError(f"nvshmem.core.{function}: signal_op must be one of {allowed}, not {signal_op!r}") from None


def _copy(move: Any) -> Any:
    return lambda dst, src, remote_pe=-1, stream=None: move(*_pair(dst, src), remote_pe, stream=stream)


def _copy_and_signal(move: Any) -> Any:
    return lambda dst, src, signal_var, signal_val, signal_op, remote_pe=-1, stream=None: move(
        *_pair(dst, src), typed(signal_var, "uint64"), 0, signal_val, _code(move.__name__, SignalOp, signal_op), remote_pe, stream=stream
    )


put, put_nbi, get, get_nbi = map(_copy, (api.put, api.put_nbi, api.get, api.get_nbi))
put_signal, put_signal_nbi = _copy_and_signal(api.put_signal), _copy_and_signal(api.put_signal_nbi)


def signal_op(signal_var: Any, signal_val: int, signal_op: int, remote_pe: int = -1, stream: Any = None) -> None:
    """Set or add to a signal on PE remote_pe."""
    api.signal_op(typed(signal_var, "uint64"), 0, signal_val, _code("signal_op", SignalOp, signal_op), remote_pe, stream=stream)


def signal_wait(signal_var: Any, signal_val: int, signal_op: int, stream: Any = None) -> None:
    """Wait until this PE's signal satisfies the comparison signal_op; with a stream, only its later work waits."""
    api.wait_until(typed(signal_var, "uint64"), 0, _code("signal_wait", ComparisonType, signal_op), signal_val, stream=stream)


def signal_fetch(signal_var: Any) -> int:
    """Return this PE's signal."""
    return int(api.signal_fetch(typed(signal_var, "uint64"), 0))


def _atomic(update: Any, takes: tuple[str, ...]) -> Any:
    def atomic(target: Any, *arguments: Any, offset: int = 0, dtype: Any = None, **keywords: Any) -> Any:
        given = {"remote_pe": -1} | dict(zip((*takes, "remote_pe"), arguments, strict=False)) | keywords
        return update(typed(target, dtype), offset, *(given[name] for name in (*takes, "remote_pe")))

    return atomic


for _takes, _names in {
    (): "fetch inc fetch_inc",
    ("value",): "set swap add and or xor fetch_add fetch_and fetch_or fetch_xor",
    ("cond", "value"): "compare_swap",
}.items():
    for _name in [f"atomic_{name}" for name in _names.split()]:
        globals()[_name] = _atomic(getattr(api, _name), _takes)
        __all__ += [_name]


def _perform(coll: str, team: int, dest: Any, source: Any, argument: Any, stream: Any) -> None:
    """Perform a collective. argument: the op or the root, if there is one."""
    if coll in ("reduce", "reducescatter"):
        if argument not in OPERATIONS:
            raise ValueError(f"nvshmem.core.{coll}: op must be {', '.join(OPERATIONS)}, not {argument!r}")
        argument = getattr(api, argument.upper())
    size = {"reduce": dest.size, "broadcast": dest.size, "alltoall": source.size - source.size % team_n_pes(team)}.get(coll, source.size)
    getattr(api, coll)(handle(team), dest, _first(source, size), *(() if argument is None else (argument,)), stream=stream)


def _collective(coll: str) -> Any:
    return lambda team, dst_array, src_array, stream=None: _perform(coll, team, typed(dst_array), typed(src_array), None, stream)


def _reduction(coll: str) -> Any:
    return lambda team, dst_array, src_array, op, stream=None: _perform(coll, team, typed(dst_array), typed(src_array), op, stream)


alltoall, fcollect = map(_collective, ("alltoall", "fcollect"))
reduce, reducescatter = map(_reduction, ("reduce", "reducescatter"))


def broadcast(team: int, dst_array: Any, src_array: Any, root: int = 0, stream: Any = None) -> None:
    """Copy the root's array to all members."""
    _perform("broadcast", team, typed(dst_array), typed(src_array), root, stream)


def collective_on_buffer(
    coll: str, team: int, dest: Any, src: Any, dtype: Any = None, op: Any = None, root: int = 0, stream: Any = None,
    enable_timing: bool = False,
) -> float:  # fmt: skip
    """Perform the collective ``coll`` on buffers, and return its time in ms if enable_timing is set, otherwise 0."""
    argument = {"reduce": op, "reducescatter": op, "broadcast": root, "alltoall": None, "fcollect": None}[coll]
    started = time.perf_counter()
    _perform(coll, team, typed(dest, dtype), typed(src, dtype), argument, stream)
    if not enable_timing:
        return 0
    api.synchronize(stream)
    return 1e3 * (time.perf_counter() - started)
