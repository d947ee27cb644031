"""Loads, stores and atomics on raw addresses of this process, lock-free and visible to every process that maps the page.

Addresses are ints. Values are unsigned ints; larger and negative ones are wrapped to the width. Nothing is checked: a bad address ends
the process. Accesses are single and untorn if the address is aligned to its width.

The functions are compiled by CPU Numba and kept on disk, with explicit signatures; from Python a call costs about 0.4 us. Those named
after their width (`load_u32`, `atomic_add_u64`) are Numba dispatchers, which compiled code may call; their values must be in range.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic
from numba.core.typing import signature

from pgas.sim import activity
from pgas.sim.native import compiled

__all__ = [
    "atomic_add",
    "atomic_add_f32",
    "atomic_add_f64",
    "atomic_and",
    "atomic_compare_swap",
    "atomic_exchange",
    "atomic_or",
    "atomic_xor",
    "copy_elements",
    "copy_strided",
    "fence",
    "load",
    "load_acquire",
    "read_sources",
    "store",
    "store_release",
]

_U64 = types.uint64
_TYPES = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}
_MASKS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: 0xFFFF_FFFF_FFFF_FFFF}
_M32, _M64 = _MASKS[4], _MASKS[8]


def _pointer(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.inttoptr(address, ir.IntType(8 * nbytes).as_pointer())


def _load_intrinsic(nbytes: int, order: str) -> Any:
    @intrinsic
    def load_atomic(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.load_atomic(_pointer(builder, args[0], nbytes), order, nbytes)

        return signature(_TYPES[nbytes], _U64), codegen

    return load_atomic


def _store_intrinsic(nbytes: int, order: str) -> Any:
    @intrinsic
    def store_atomic(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.store_atomic(args[1], _pointer(builder, args[0], nbytes), order, nbytes)
            return context.get_dummy_value()

        return signature(types.void, _U64, _TYPES[nbytes]), codegen

    return store_atomic


def _rmw_intrinsic(op: str, nbytes: int, type_: Any) -> Any:
    @intrinsic
    def atomic_rmw(typingctx: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pointer = builder.inttoptr(args[0], args[1].type.as_pointer())
            return builder.atomic_rmw(op, pointer, args[1], "seq_cst")

        return signature(type_, _U64, type_), codegen

    return atomic_rmw


def _cas_intrinsic(nbytes: int) -> Any:
    @intrinsic
    def compare_exchange(typingctx: Any, address: Any, expected: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            pair = builder.cmpxchg(_pointer(builder, args[0], nbytes), args[1], args[2], "seq_cst", "seq_cst")
            return builder.extract_value(pair, 0)

        return signature(_TYPES[nbytes], _U64, _TYPES[nbytes], _TYPES[nbytes]), codegen

    return compare_exchange


def _fence_intrinsic() -> Any:
    @intrinsic
    def fence_seq_cst(typingctx: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            builder.fence("seq_cst")
            return context.get_dummy_value()

        return signature(types.void), codegen

    return fence_seq_cst


_u8, _u16, _u32, _f32, _f64 = types.uint8, types.uint16, types.uint32, types.float32, types.float64

_ld8, _ld16, _ld32, _ld64 = (_load_intrinsic(n, "monotonic") for n in (1, 2, 4, 8))
_lda8, _lda16, _lda32, _lda64 = (_load_intrinsic(n, "acquire") for n in (1, 2, 4, 8))
_st8, _st16, _st32, _st64 = (_store_intrinsic(n, "monotonic") for n in (1, 2, 4, 8))
_str8, _str16, _str32, _str64 = (_store_intrinsic(n, "release") for n in (1, 2, 4, 8))
_add32, _xchg32, _and32, _or32, _xor32 = (_rmw_intrinsic(op, 4, _u32) for op in ("add", "xchg", "and", "or", "xor"))
_add64, _xchg64, _and64, _or64, _xor64 = (_rmw_intrinsic(op, 8, _U64) for op in ("add", "xchg", "and", "or", "xor"))
_fadd32, _fadd64 = _rmw_intrinsic("fadd", 4, _f32), _rmw_intrinsic("fadd", 8, _f64)
_cas16, _cas32, _cas64 = _cas_intrinsic(2), _cas_intrinsic(4), _cas_intrinsic(8)
_fence = _fence_intrinsic()

# One to a line: Numba names a cache file after the line. No closures and no loop over widths: they would not be found in the cache.
load_u8 = compiled(_u8(_U64), lambda addr: _ld8(addr))
load_u16 = compiled(_u16(_U64), lambda addr: _ld16(addr))
load_u32 = compiled(_u32(_U64), lambda addr: _ld32(addr))
load_u64 = compiled(_U64(_U64), lambda addr: _ld64(addr))
load_acquire_u8 = compiled(_u8(_U64), lambda addr: _lda8(addr))
load_acquire_u16 = compiled(_u16(_U64), lambda addr: _lda16(addr))
load_acquire_u32 = compiled(_u32(_U64), lambda addr: _lda32(addr))
load_acquire_u64 = compiled(_U64(_U64), lambda addr: _lda64(addr))
store_u8 = compiled(types.void(_U64, _u8), lambda addr, value: _st8(addr, value))
store_u16 = compiled(types.void(_U64, _u16), lambda addr, value: _st16(addr, value))
store_u32 = compiled(types.void(_U64, _u32), lambda addr, value: _st32(addr, value))
store_u64 = compiled(types.void(_U64, _U64), lambda addr, value: _st64(addr, value))
store_release_u8 = compiled(types.void(_U64, _u8), lambda addr, value: _str8(addr, value))
store_release_u16 = compiled(types.void(_U64, _u16), lambda addr, value: _str16(addr, value))
store_release_u32 = compiled(types.void(_U64, _u32), lambda addr, value: _str32(addr, value))
store_release_u64 = compiled(types.void(_U64, _U64), lambda addr, value: _str64(addr, value))
atomic_add_u32 = compiled(_u32(_U64, _u32), lambda addr, value: _add32(addr, value))
atomic_add_u64 = compiled(_U64(_U64, _U64), lambda addr, value: _add64(addr, value))
atomic_exchange_u32 = compiled(_u32(_U64, _u32), lambda addr, value: _xchg32(addr, value))
atomic_exchange_u64 = compiled(_U64(_U64, _U64), lambda addr, value: _xchg64(addr, value))
atomic_and_u32 = compiled(_u32(_U64, _u32), lambda addr, value: _and32(addr, value))
atomic_and_u64 = compiled(_U64(_U64, _U64), lambda addr, value: _and64(addr, value))
atomic_or_u32 = compiled(_u32(_U64, _u32), lambda addr, value: _or32(addr, value))
atomic_or_u64 = compiled(_U64(_U64, _U64), lambda addr, value: _or64(addr, value))
atomic_xor_u32 = compiled(_u32(_U64, _u32), lambda addr, value: _xor32(addr, value))
atomic_xor_u64 = compiled(_U64(_U64, _U64), lambda addr, value: _xor64(addr, value))
_atomic_compare_swap_u16 = compiled(_u16(_U64, _u16, _u16), lambda addr, expected, value: _cas16(addr, expected, value))
atomic_compare_swap_u32 = compiled(_u32(_U64, _u32, _u32), lambda addr, expected, value: _cas32(addr, expected, value))
atomic_compare_swap_u64 = compiled(_U64(_U64, _U64, _U64), lambda addr, expected, value: _cas64(addr, expected, value))
_atomic_add_f32 = compiled(_f32(_U64, _f32), lambda addr, value: _fadd32(addr, value))
_atomic_add_f64 = compiled(_f64(_U64, _f64), lambda addr, value: _fadd64(addr, value))
_fence_seq_cst = compiled(types.void(), lambda: _fence())


def _copy_loop(dst: Any, dst_stride: Any, src: Any, src_stride: Any, count: Any, width: Any) -> None:
    # The casts are needed: Numba makes uint64 + int64 a float64.
    if width > _U64(1) and (dst | src | dst_stride | src_stride) & (min(width, _U64(8)) - _U64(1)) != _U64(0):
        # Misaligned: an element is not one access on any machine, so any cut will do.
        for _ in range(count):
            for i in range(width):
                _st8(dst + _U64(i), _ld8(src + _U64(i)))
            dst += dst_stride
            src += src_stride
        return
    for _ in range(count):
        if width == 8:
            _st64(dst, _ld64(src))
        elif width == 4:
            _st32(dst, _ld32(src))
        elif width == 16:
            _st64(dst, _ld64(src))
            _st64(dst + _U64(8), _ld64(src + _U64(8)))
        elif width == 2:
            _st16(dst, _ld16(src))
        else:
            _st8(dst, _ld8(src))
        dst += dst_stride
        src += src_stride


_copy = compiled(types.void(_U64, _U64, _U64, _U64, _U64, _U64), _copy_loop)

_LOAD = {1: load_u8, 2: load_u16, 4: load_u32, 8: load_u64}
_LOAD_ACQUIRE = {1: load_acquire_u8, 2: load_acquire_u16, 4: load_acquire_u32, 8: load_acquire_u64}
_STORE = {1: store_u8, 2: store_u16, 4: store_u32, 8: store_u64}
_STORE_RELEASE = {1: store_release_u8, 2: store_release_u16, 4: store_release_u32, 8: store_release_u64}


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


def atomic_add(addr: int, value: int, nbytes: int) -> int:
    """Add to 4 or 8 bytes, wrapping; return the old value."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_add_u64(addr, int(value) & _M64)
    return _narrow(atomic_add_u32, nbytes)(addr, int(value) & _M32)


def atomic_exchange(addr: int, value: int, nbytes: int) -> int:
    """Store value; return the old one."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_exchange_u64(addr, int(value) & _M64)
    return _narrow(atomic_exchange_u32, nbytes)(addr, int(value) & _M32)


def atomic_and(addr: int, value: int, nbytes: int) -> int:
    """Bitwise and; return the old value."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_and_u64(addr, int(value) & _M64)
    return _narrow(atomic_and_u32, nbytes)(addr, int(value) & _M32)


def atomic_or(addr: int, value: int, nbytes: int) -> int:
    """Bitwise or; return the old value."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_or_u64(addr, int(value) & _M64)
    return _narrow(atomic_or_u32, nbytes)(addr, int(value) & _M32)


def atomic_xor(addr: int, value: int, nbytes: int) -> int:
    """Bitwise exclusive or; return the old value."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_xor_u64(addr, int(value) & _M64)
    return _narrow(atomic_xor_u32, nbytes)(addr, int(value) & _M32)


def atomic_compare_swap(addr: int, expected: int, value: int, nbytes: int) -> int:
    """Store value if expected is there; return what was there, which equals expected if it was stored."""
    activity.stores += 1
    if nbytes == 8:
        return atomic_compare_swap_u64(addr, int(expected) & _M64, int(value) & _M64)
    if nbytes == 2:
        return _atomic_compare_swap_u16(addr, int(expected) & 0xFFFF, int(value) & 0xFFFF)
    return _narrow(atomic_compare_swap_u32, nbytes)(addr, int(expected) & _M32, int(value) & _M32)


def atomic_add_f32(addr: int, value: float) -> float:
    """Add to a float32; return the old value."""
    activity.stores += 1
    return _atomic_add_f32(addr, float(value))


def atomic_add_f64(addr: int, value: float) -> float:
    """Add to a float64; return the old value."""
    activity.stores += 1
    return _atomic_add_f64(addr, float(value))


def fence(scope: str = "sys") -> None:
    """Order this thread's earlier accesses before its later ones. The scope ("block", "gpu", "sys") matters to `pgas.sim.weak` only."""
    _fence_seq_cst()


def read_sources() -> None:
    """Have every copy of this thread read its source; here all have. It matters to `pgas.sim.weak` only."""


def copy_strided(dst: int, src: int, first: int, end: int, step: int, width: int, deferred: bool = False) -> None:
    """For i in range(first, end, step), copy `width` bytes at byte offset i * width: one thread's share of a copy.

    width is 1, 2, 4, 8 or 16, step is positive. Elements are single accesses where both addresses are aligned to them; 16 bytes are
    two. deferred says that all of it may happen later, up to the fence (a non-blocking put or get); here it is always done now.
    """
    activity.stores += 1
    if end > first:
        offset, stride = first * width, step * width
        _copy(dst + offset, stride, src + offset, stride, (end - first + step - 1) // step, width)


def copy_elements(dst: int, dst_stride: int, src: int, src_stride: int, count: int, width: int) -> None:
    """Copy `count` elements of `width` bytes that lie dst_stride and src_stride bytes apart; strides may be negative."""
    activity.stores += 1
    if count > 0:
        _copy(dst, dst_stride & _M64, src, src_stride & _M64, count, width)


def _narrow(operation: Callable[..., int], nbytes: int) -> Callable[..., int]:
    if nbytes != 4:
        raise ValueError(f"atomics are on 4 or 8 bytes, got {nbytes}")
    return operation
