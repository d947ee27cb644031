"""Functions of a whole warp of the cuda engine: all 32 lanes must call them. Values are u64 unless stated otherwise."""

from typing import Any

from pgas.kernels.compiler import constant, device, i64, ptx, u32, u64
from pgas.transports.softhca.engine.ops import copier, kernel_ops

#: An address above all others.
NEVER = 1 << 62

FULL = u32(0xFFFF_FFFF)
_0, _1, _31, _32, _NEVER = (constant(c) for c in (0, 1, 31, 32, NEVER))
_STEPS = (1, 2, 4, 8, 16)

load_any, store_data = map(kernel_ops.for_kernel, (kernel_ops.load_any, kernel_ops.store_data))
copy_few = copier(kernel_ops)
_copy_16 = ptx.copy_run_16


@device
def reached(lane: Any, blocks: Any) -> Any:
    """Return the mask of lanes where WQEs begin if one begins in this lane, and the position of the first WQE after the warp.

    Positions count from lane 0. blocks: WQEBBs of the WQE that would begin here.
    """
    mask = _1 << lane
    after = lane + blocks
    for _ in range(5):  # each round doubles the number of known steps
        inside = after < _32
        source = u32(after & _31)
        masks, afters = ptx.shfl_u64(FULL, mask, source), ptx.shfl_u64(FULL, after, source)
        if inside:
            mask, after = mask | masks, afters
    return mask, after


@device
def highest_before(lane: Any, high: Any) -> Any:
    """Return the highest value of the lanes before this one (0 for lane 0), and the highest of the warp."""
    most = high
    for step in _STEPS:
        other = ptx.shfl_u64(FULL, most, u32(lane - step if lane >= step else lane))
        most = max(most, other)
    before = ptx.shfl_u64(FULL, most, u32(lane - _1 if lane != _0 else _0))
    return before if lane != _0 else _0, ptx.shfl_u64(FULL, most, u32(_31))


@device
def apart(lane: Any, low: Any, high: Any) -> Any:
    """Return whether the lanes' ranges [low, high) ascend without overlap (low NEVER: no range), the lowest low and the highest high."""
    some = low != _NEVER
    before, most = highest_before(lane, high if some else _0)
    ascending = ptx.vote_all(FULL, u32(1 if low >= before else 0)) != 0  # NEVER is the highest
    least = low
    for step in _STEPS:
        least = min(least, ptx.shfl_u64(FULL, least, u32(lane ^ u64(step))))
    return ascending, least, most


@device
def copy_together(rank: Any, size: Any, dest: Any, source: Any, nbytes: Any) -> None:
    """Copy by `size` threads; the caller is number `rank`. The ranges must not overlap. Values are i64.

    Aligned 8-byte words of dest are stored whole.
    """
    if (dest | source) & 15 == 0:
        body = nbytes >> 4 << 4
        _copy_16(u64(dest), u64(source), u64(rank), u64(nbytes >> 4), u64(size), False)
        head = i64(0)
    else:
        head = min(-dest & 7, nbytes)
        body = (nbytes - head) >> 3 << 3
        if rank == 0:
            copy_few(dest, source, head)
        at = head + rank * 8
        while at < head + body:
            store_data(dest + at, load_any(source + at))
            at += size * 8
    if rank == 0:
        copy_few(dest + head + body, source + head + body, nbytes - head - body)
