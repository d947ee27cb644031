"""Loads, stores, and atomics on raw addresses of this process, lock-free and visible to every process that maps the page.

Addresses are ints, and values are unsigned and in range. Nothing is checked: a bad address ends the process. An access is single and
untorn if the address is aligned to its width.

The functions are Numba dispatchers, which compiled code may call. They have explicit signatures, are compiled for the CPU when they are
first called, and kept on disk. From Python, a call takes about 0.2 us.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import intrinsic
from numba.core.typing import signature

from pgas.native.cpu import compiled_on_use

_U64 = types.uint64
_TYPES = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}


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

# Each is on a line of its own, because Numba names a cache file after the line. Closures, or a loop over widths, would not be found in the
# cache.
load_u8 = compiled_on_use(_u8(_U64), lambda addr: _ld8(addr))
load_u16 = compiled_on_use(_u16(_U64), lambda addr: _ld16(addr))
load_u32 = compiled_on_use(_u32(_U64), lambda addr: _ld32(addr))
load_u64 = compiled_on_use(_U64(_U64), lambda addr: _ld64(addr))
load_acquire_u8 = compiled_on_use(_u8(_U64), lambda addr: _lda8(addr))
load_acquire_u16 = compiled_on_use(_u16(_U64), lambda addr: _lda16(addr))
load_acquire_u32 = compiled_on_use(_u32(_U64), lambda addr: _lda32(addr))
load_acquire_u64 = compiled_on_use(_U64(_U64), lambda addr: _lda64(addr))
store_u8 = compiled_on_use(types.void(_U64, _u8), lambda addr, value: _st8(addr, value))
store_u16 = compiled_on_use(types.void(_U64, _u16), lambda addr, value: _st16(addr, value))
store_u32 = compiled_on_use(types.void(_U64, _u32), lambda addr, value: _st32(addr, value))
store_u64 = compiled_on_use(types.void(_U64, _U64), lambda addr, value: _st64(addr, value))
store_release_u8 = compiled_on_use(types.void(_U64, _u8), lambda addr, value: _str8(addr, value))
store_release_u16 = compiled_on_use(types.void(_U64, _u16), lambda addr, value: _str16(addr, value))
store_release_u32 = compiled_on_use(types.void(_U64, _u32), lambda addr, value: _str32(addr, value))
store_release_u64 = compiled_on_use(types.void(_U64, _U64), lambda addr, value: _str64(addr, value))
atomic_add_u32 = compiled_on_use(_u32(_U64, _u32), lambda addr, value: _add32(addr, value))
atomic_add_u64 = compiled_on_use(_U64(_U64, _U64), lambda addr, value: _add64(addr, value))
atomic_exchange_u32 = compiled_on_use(_u32(_U64, _u32), lambda addr, value: _xchg32(addr, value))
atomic_exchange_u64 = compiled_on_use(_U64(_U64, _U64), lambda addr, value: _xchg64(addr, value))
atomic_and_u32 = compiled_on_use(_u32(_U64, _u32), lambda addr, value: _and32(addr, value))
atomic_and_u64 = compiled_on_use(_U64(_U64, _U64), lambda addr, value: _and64(addr, value))
atomic_or_u32 = compiled_on_use(_u32(_U64, _u32), lambda addr, value: _or32(addr, value))
atomic_or_u64 = compiled_on_use(_U64(_U64, _U64), lambda addr, value: _or64(addr, value))
atomic_xor_u32 = compiled_on_use(_u32(_U64, _u32), lambda addr, value: _xor32(addr, value))
atomic_xor_u64 = compiled_on_use(_U64(_U64, _U64), lambda addr, value: _xor64(addr, value))
atomic_compare_swap_u16 = compiled_on_use(_u16(_U64, _u16, _u16), lambda addr, expected, value: _cas16(addr, expected, value))
atomic_compare_swap_u32 = compiled_on_use(_u32(_U64, _u32, _u32), lambda addr, expected, value: _cas32(addr, expected, value))
atomic_compare_swap_u64 = compiled_on_use(_U64(_U64, _U64, _U64), lambda addr, expected, value: _cas64(addr, expected, value))
atomic_add_f32 = compiled_on_use(_f32(_U64, _f32), lambda addr, value: _fadd32(addr, value))
atomic_add_f64 = compiled_on_use(_f64(_U64, _f64), lambda addr, value: _fadd64(addr, value))
fence_seq_cst = compiled_on_use(types.void(), lambda: _fence())


def _copy_loop(dst: Any, dst_stride: Any, src: Any, src_stride: Any, count: Any, width: Any) -> None:
    # The casts are needed, because Numba makes uint64 + int64 a float64.
    if width > _U64(1) and (dst | src | dst_stride | src_stride) & (min(width, _U64(8)) - _U64(1)) != _U64(0):
        # A misaligned element is not a single access on any machine, so it may be copied byte by byte.
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


copy = compiled_on_use(types.void(_U64, _U64, _U64, _U64, _U64, _U64), _copy_loop)
