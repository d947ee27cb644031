"""Loads, stores and atomics on raw addresses of this process, lock-free and visible to every process that maps the page.

Addresses are ints. Values are unsigned ints; larger and negative ones are wrapped to the width. Nothing is checked: a bad address ends
the process. Accesses are single and untorn if the address is aligned to its width.

The accesses themselves are those of `pgas.native.atomics`.
"""

from collections.abc import Callable

from pgas.native import atomics
from pgas.sim import activity

_MASKS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: 0xFFFF_FFFF_FFFF_FFFF}
_M32, _M64 = _MASKS[4], _MASKS[8]

_LOAD = {1: atomics.load_u8, 2: atomics.load_u16, 4: atomics.load_u32, 8: atomics.load_u64}
_LOAD_ACQUIRE = {1: atomics.load_acquire_u8, 2: atomics.load_acquire_u16, 4: atomics.load_acquire_u32, 8: atomics.load_acquire_u64}
_STORE = {1: atomics.store_u8, 2: atomics.store_u16, 4: atomics.store_u32, 8: atomics.store_u64}
_STORE_RELEASE = {1: atomics.store_release_u8, 2: atomics.store_release_u16, 4: atomics.store_release_u32, 8: atomics.store_release_u64}


def load(addr: int, nbytes: int) -> int:
    """Return the unsigned integer of 1, 2, 4 or 8 bytes at addr (relaxed)."""
    return _LOAD[nbytes](addr)


def load_acquire(addr: int, nbytes: int) -> int:
    """Like `load`; later accesses of this thread come after it."""
    return _LOAD_ACQUIRE[nbytes](addr)


def store(addr: int, value: int, nbytes: int) -> None:
    """Store the low 1, 2, 4 or 8 bytes of value at addr (relaxed)."""
    activity.stores += 1
    _STORE[nbytes](addr, int(value) & _MASKS[nbytes])


def store_release(addr: int, value: int, nbytes: int) -> None:
    """Like `store`; earlier accesses of this thread come before it."""
    activity.stores += 1
    _STORE_RELEASE[nbytes](addr, int(value) & _MASKS[nbytes])


def _update(narrow: Callable[..., int], wide: Callable[..., int]) -> Callable[[int, int, int], int]:
    """Make a function of an address, a value, and 4 or 8 bytes that returns the old value."""

    def update(addr: int, value: int, nbytes: int) -> int:
        activity.stores += 1
        if nbytes == 8:
            return wide(addr, int(value) & _M64)
        return _narrow(narrow, nbytes)(addr, int(value) & _M32)

    return update


#: Atomic updates: add, wrapping; store; bitwise and, or, exclusive or.
atomic_add = _update(atomics.atomic_add_u32, atomics.atomic_add_u64)
atomic_exchange = _update(atomics.atomic_exchange_u32, atomics.atomic_exchange_u64)
atomic_and = _update(atomics.atomic_and_u32, atomics.atomic_and_u64)
atomic_or = _update(atomics.atomic_or_u32, atomics.atomic_or_u64)
atomic_xor = _update(atomics.atomic_xor_u32, atomics.atomic_xor_u64)


def atomic_compare_swap(addr: int, expected: int, value: int, nbytes: int) -> int:
    """Store value if expected is there. Return the old value, which equals expected if value was stored."""
    activity.stores += 1
    if nbytes == 8:
        return atomics.atomic_compare_swap_u64(addr, int(expected) & _M64, int(value) & _M64)
    if nbytes == 2:
        return atomics.atomic_compare_swap_u16(addr, int(expected) & 0xFFFF, int(value) & 0xFFFF)
    return _narrow(atomics.atomic_compare_swap_u32, nbytes)(addr, int(expected) & _M32, int(value) & _M32)


def atomic_add_f32(addr: int, value: float) -> float:
    """Add to a float32; return the old value."""
    activity.stores += 1
    return atomics.atomic_add_f32(addr, float(value))


def atomic_add_f64(addr: int, value: float) -> float:
    """Add to a float64; return the old value."""
    activity.stores += 1
    return atomics.atomic_add_f64(addr, float(value))


def fence(scope: str = "sys") -> None:
    """Order this thread's earlier accesses before its later ones. The scope ("block", "gpu", "sys") matters only to `pgas.sim.weak`."""
    atomics.fence_seq_cst()


def read_sources() -> None:
    """Make every copy of this thread read its source. Here, all copies already have; it matters only to `pgas.sim.weak`."""


def copy_strided(dst: int, src: int, first: int, end: int, step: int, width: int, deferred: bool = False) -> None:
    """For i in range(first, end, step), copy `width` bytes at byte offset i * width: one thread's part of a copy.

    width is 1, 2, 4, 8, or 16; step is positive. Elements are single accesses if both addresses are aligned to them; 16 bytes are
    two. deferred: whether it may happen later, up to the fence (a non-blocking put or get); here, it always happens immediately.
    """
    activity.stores += 1
    if end > first:
        offset, stride = first * width, step * width
        atomics.copy(dst + offset, stride, src + offset, stride, (end - first + step - 1) // step, width)


def copy_elements(dst: int, dst_stride: int, src: int, src_stride: int, count: int, width: int) -> None:
    """Copy `count` elements of `width` bytes that lie dst_stride and src_stride bytes apart; strides may be negative."""
    activity.stores += 1
    if count > 0:
        atomics.copy(dst, dst_stride & _M64, src, src_stride & _M64, count, width)


def _narrow(operation: Callable[..., int], nbytes: int) -> Callable[..., int]:
    if nbytes != 4:
        raise ValueError(f"atomics are on 4 or 8 bytes, got {nbytes}")
    return operation
