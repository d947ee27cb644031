"""The only module that knows which compiler runs device code: numba-cuda, or plain Python in the simulator.

numba-cuda is in maintenance mode (its README, 2026-06); everything that a successor must be taught is here and in ptx.py.

* ``primitive(...)``: one PTX instruction sequence and its CPU twin;
* ``device``: marks an internal device function.

binding.py binds the public names.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from pgas.base.backend import SIMULATOR

if SIMULATOR:
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

    from pgas.kernels.compiler import cpu
    from pgas.sim.arrays import KernelArray

    KernelTypeError: type[Exception] = TypeError
else:
    from llvmlite import ir
    from numba import cuda
    from numba.cuda import cgutils
    from numba.cuda.core.errors import NumbaTypeError
    from numba.cuda.dispatcher import CUDACacheImpl
    from numba.cuda.extending import intrinsic
    from numba.cuda.typing import signature

    KernelTypeError = NumbaTypeError

__all__ = ["KernelTypeError", "constant", "device", "i64", "primitive", "u32", "u64"]

if SIMULATOR:

    def u32(value: Any) -> int:
        """Return value modulo 2^32."""
        return int(value) & 0xFFFF_FFFF

    def u64(value: Any) -> int:
        """Return value modulo 2^64."""
        return int(value) & 0xFFFF_FFFF_FFFF_FFFF

    i64: Any = int
    constant: Any = int
else:
    u32, u64, i64 = types.uint32, types.uint64, types.int64
    #: A 64-bit constant of device code: a typed global costs the compiler less than a conversion of a literal at every use.
    constant = np.uint64


def device(function: Callable[..., Any]) -> Any:
    """Mark an internal device function: inlined into its caller on a GPU, called as it stands in the simulator."""
    return function if SIMULATOR else cuda.jit(device=True, forceinline=True)(function)


# ---------------------------------------------------------------------------------------------------------------- primitives


def primitive(name: str, sig: str, text: str, cpu: Callable[..., Any] | None, *, convergent: bool = False, pure: bool = False) -> Any:
    """Make a function of device code from PTX inline assembly, and from ``cpu`` in the simulator.

    Args:
        name: the function's name, for error messages.
        sig: e.g. ``"u64(u64)"``, ``"void(u64, u32)"``, ``"(u64, u64)(u64)"`` for two results; i32, u16, f32, f64 likewise.
        text: PTX with LLVM's operand numbers: results first, then arguments.
        cpu: the same on Python integers.
        convergent: the lanes of a warp execute it together (shfl, match, bar); LLVM may not move it into a branch.
        pure: neither touches memory nor depends on time: may be merged and hoisted. Everything else is volatile and clobbers memory,
            or LLVM hoists the load of a spin loop.
    """
    if SIMULATOR:
        return cpu
    results, arguments = _parse(sig)
    llvm_results = [_TYPES[r][1] for r in results]
    if not results:
        numba_result, llvm_result = types.void, ir.VoidType()
    elif len(results) == 1:
        numba_result, llvm_result = _TYPES[results[0]][0], llvm_results[0]
    else:
        numba_result, llvm_result = types.UniTuple(_TYPES[results[0]][0], len(results)), ir.LiteralStructType(llvm_results)
    constraints = ["=" + _TYPES[r][2] for r in results] + [_TYPES[a][2] for a in arguments] + ([] if pure else ["~{memory}"])
    function_type = ir.FunctionType(llvm_result, [_TYPES[a][1] for a in arguments])

    def codegen(context, builder, signature_, args):  # type: ignore[no-untyped-def]
        mark(context)
        asm = ir.InlineAsm(function_type, text, ",".join(constraints), side_effect=not pure)
        # Without readnone LLVM keeps a pure instruction where it stands, also inside a loop.
        attributes = (*(("convergent",) if convergent else ()), *(("readnone", "nounwind") if pure else ()))
        value = builder.call(asm, args, attrs=attributes)
        if not results:
            return context.get_dummy_value()
        if len(results) == 1:
            return value
        return cgutils.pack_array(builder, [builder.extract_value(value, i) for i in range(len(results))])

    numba_signature = signature(numba_result, *[_TYPES[a][0] for a in arguments])
    return _intrinsic(name, len(arguments), lambda *_: (numba_signature, codegen))


if not SIMULATOR:
    _TYPES = {  # name: (Numba type, LLVM type, inline assembly constraint)
        "u16": (types.uint16, ir.IntType(16), "h"),
        "u32": (types.uint32, ir.IntType(32), "r"),
        "i32": (types.int32, ir.IntType(32), "r"),
        "u64": (types.uint64, ir.IntType(64), "l"),
        "i64": (types.int64, ir.IntType(64), "l"),
        "f32": (types.float32, ir.FloatType(), "f"),
        "f64": (types.float64, ir.DoubleType(), "d"),
    }


def _parse(sig: str) -> tuple[list[str], list[str]]:
    head, _, tail = sig.rpartition("(")
    results = [r.strip() for r in head.strip("() ").split(",") if r.strip() not in ("", "void")]
    return results, [a.strip() for a in tail.rstrip(")").split(",") if a.strip()]


def _intrinsic(name: str, arity: int, typing: Callable[..., Any]) -> Any:
    """Register an intrinsic of the given arity: Numba takes the parameter names from the function it is given."""
    names = ", ".join("abcdefghijklmnop"[:arity])
    scope: dict[str, Any] = {"typing": typing}
    exec(f"def {name}(typingctx{', ' if names else ''}{names}): return typing({names})", scope)
    return intrinsic(scope[name])


# ------------------------------------------------------------------------------------------ typed access to elements of arrays


def element_primitive(name: str, arguments: str, text: Callable[[Any], str], cpu: Callable[..., Any]) -> Any:
    """Make a primitive whose operand width follows an array's dtype.

    The device function takes ``(addr, array, *values)``: the array gives the dtype only. Values are converted to it as an
    assignment ``array[i] = value`` would.

    Args:
        name: for error messages.
        arguments: ``"load"`` (returns an element), ``"store"`` (takes one), ``"update"`` (takes one, returns one) or ``"compare"``
            (takes two, returns one).
        text: from the Numba type of the elements to PTX; ``$`` operands in LLVM's order.
        cpu: the same, given ``(addr, dtype, *values)``.
    """
    if SIMULATOR:

        def on_cpu(addr: int, array: Any, *values: Any) -> Any:
            return cpu(addr, facts(array).dtype, *values)

        return on_cpu
    loads, taken = arguments != "store", {"load": 0, "store": 1, "update": 1, "compare": 2}[arguments]

    def typing(addr, array, *values):  # type: ignore[no-untyped-def]
        dtype = array.dtype
        nbytes = element_size(dtype)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            mark(context)
            words = _registers(nbytes)
            operands: list[Any] = []
            constraints: list[str] = []
            for given, type_ in zip(args[2:], sig.args[2:], strict=True):
                value = context.cast(builder, given, type_, dtype)
                operands += _to_registers(context, builder, dtype, value, nbytes)
                constraints += [letter for _, letter in words]
            result = ir.VoidType()
            if loads:
                result = words[0][0] if len(words) == 1 else ir.LiteralStructType([w for w, _ in words])
            letters = ["=" + letter for _, letter in words] if loads else []
            function_type = ir.FunctionType(result, [ir.IntType(64), *(o.type for o in operands)])
            asm = ir.InlineAsm(function_type, text(dtype), ",".join([*letters, "l", *constraints, "~{memory}"]), side_effect=True)
            out = builder.call(asm, [args[0], *operands])
            return _from_registers(context, builder, dtype, out, nbytes) if loads else context.get_dummy_value()

        return signature(dtype if loads else types.void, types.uint64, array, *values), codegen

    return _intrinsic(name, 2 + taken, typing)


def element_size(dtype: Any) -> int:
    """Return the size in bytes of an element of the Numba type (the context's own layout rules; bool is one byte)."""
    return int(np.dtype(numpy_dtype(dtype)).itemsize)


def numpy_dtype(dtype: Any) -> Any:
    """Return the NumPy dtype of a Numba scalar or record type; uint16 for bfloat16, which NumPy has not."""
    from numba.cuda.np import numpy_support as support

    return np.dtype(np.uint16) if dtype == types.bfloat16 else support.as_dtype(dtype)


if not SIMULATOR:

    def _registers(nbytes: int) -> list[tuple[Any, str]]:
        """LLVM type and constraint letter of the registers that hold an element; PTX has none of 8 bits."""
        return {
            1: [(ir.IntType(32), "r")],
            2: [(ir.IntType(16), "h")],
            4: [(ir.IntType(32), "r")],
            8: [(ir.IntType(64), "l")],
            16: [(ir.IntType(64), "l")] * 2,
        }[nbytes]

    def _to_registers(context, builder, dtype, value, nbytes):  # type: ignore[no-untyped-def]
        data = context.data_model_manager[dtype].as_data(builder, value)
        slot = cgutils.alloca_once_value(builder, data)
        integer = ir.IntType(64) if nbytes == 16 else ir.IntType(8 * nbytes)
        pointer = builder.bitcast(slot, integer.as_pointer())
        words = [builder.load(builder.gep(pointer, [ir.Constant(ir.IntType(32), i)])) for i in range(2 if nbytes == 16 else 1)]
        return [builder.zext(w, ir.IntType(32)) if nbytes == 1 else w for w in words]

    def _from_registers(context, builder, dtype, out, nbytes):  # type: ignore[no-untyped-def]
        model = context.data_model_manager[dtype]
        slot = cgutils.alloca_once(builder, model.get_data_type())
        integer = ir.IntType(64) if nbytes == 16 else ir.IntType(8 * nbytes)
        pointer = builder.bitcast(slot, integer.as_pointer())
        words = [builder.extract_value(out, i) for i in range(2)] if nbytes == 16 else [out]
        for i, word in enumerate(words):
            word = builder.trunc(word, integer) if nbytes == 1 else word
            builder.store(word, builder.gep(pointer, [ir.Constant(ir.IntType(32), i)]))
        return model.from_data(builder, builder.load(slot))

    @intrinsic
    def element_words(typingctx, array, value):  # type: ignore[no-untyped-def]
        """Return a value's bytes as an element of the array: two u64, the second 0 unless it has 16."""
        nbytes = element_size(array.dtype)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            converted = context.cast(builder, args[1], sig.args[1], array.dtype)
            words = [builder.zext(w, ir.IntType(64)) if w.type.width < 64 else w
                     for w in _to_registers(context, builder, array.dtype, converted, nbytes)]  # fmt: skip
            return cgutils.pack_array(builder, [*words, ir.Constant(ir.IntType(64), 0)][:2])

        return signature(types.UniTuple(types.uint64, 2), array, value), codegen

    @intrinsic
    def element_of_word(typingctx, array, word):  # type: ignore[no-untyped-def]
        """Return the element of 4 or 8 bytes whose bits are the low ones of word."""
        width = 8 * element_size(array.dtype)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            bits = builder.trunc(args[1], ir.IntType(width)) if width < 64 else args[1]
            return _from_registers(context, builder, array.dtype, bits, width // 8)

        return signature(array.dtype, array, types.uint64), codegen

    @intrinsic
    def address_of(typingctx, array):  # type: ignore[no-untyped-def]
        """Return the generic address of an array's first element (equal to its global address for global memory)."""

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            mark(context)
            return builder.ptrtoint(context.make_array(sig.args[0])(context, builder, value=args[0]).data, ir.IntType(64))

        return signature(types.uint64, array), codegen

    @intrinsic
    def address_of_element(typingctx, array, idx):  # type: ignore[no-untyped-def]
        """Return the address of array[idx]; idx is an integer or a tuple of them, never counted from the end."""
        axes = idx.count if isinstance(idx, types.BaseTuple) else 1

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            mark(context)
            view = context.make_array(sig.args[0])(context, builder, value=args[0])
            index_types = list(idx) if isinstance(idx, types.BaseTuple) else [idx]
            indices = cgutils.unpack_tuple(builder, args[1], axes) if isinstance(idx, types.BaseTuple) else [args[1]]
            address = builder.ptrtoint(view.data, ir.IntType(64))
            strides = cgutils.unpack_tuple(builder, view.strides, axes)
            for axis, (index, index_type) in enumerate(zip(indices, index_types, strict=True)):
                wide = context.cast(builder, index, index_type, types.int64 if index_type.signed else types.uint64)
                contiguous = array.layout == "C" and axis == axes - 1
                step = ir.Constant(ir.IntType(64), element_size(array.dtype)) if contiguous else strides[axis]
                address = builder.add(address, builder.mul(wide, step))
            return address

        return signature(types.uint64, array, idx), codegen

    @intrinsic
    def outlier(typingctx, array, idx):  # type: ignore[no-untyped-def]
        """Return the first subscript beyond its axis, the axis's length and number, as u64; (0, 1, 0) if array has the element idx."""
        axes = idx.count if isinstance(idx, types.BaseTuple) else 1

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            view = context.make_array(sig.args[0])(context, builder, value=args[0])
            index_types = list(idx) if isinstance(idx, types.BaseTuple) else [idx]
            indices = cgutils.unpack_tuple(builder, args[1], axes) if isinstance(idx, types.BaseTuple) else [args[1]]
            shape = cgutils.unpack_tuple(builder, view.shape, axes)
            found = [ir.Constant(ir.IntType(64), value) for value in (0, 1, 0)]
            for axis in reversed(range(axes)):
                wide = context.cast(builder, indices[axis], index_types[axis], types.int64 if index_types[axis].signed else types.uint64)
                beyond = builder.icmp_unsigned(">=", wide, shape[axis])
                this = wide, shape[axis], ir.Constant(ir.IntType(64), axis)
                found = [builder.select(beyond, new, old) for new, old in zip(this, found, strict=True)]
            return cgutils.pack_array(builder, found)

        return signature(types.UniTuple(types.uint64, 3), array, idx), codegen

    def caster(dtype: Any) -> Any:
        """Return what converts a value to dtype in device code."""
        return dtype

    @intrinsic
    def bits_of(typingctx, value):  # type: ignore[no-untyped-def]
        """Return an integer sign-extended, or the bits of a float, as u64: for error records."""

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            if isinstance(value, types.Float):
                return builder.zext(builder.bitcast(args[0], ir.IntType(value.bitwidth)), ir.IntType(64))
            return context.cast(builder, args[0], value, types.uint64)

        return signature(types.uint64, value), codegen

    def _uses_pgas(module: Any) -> None:
        """Mark of a code library: stays in its list of set-up functions, which Numba passes on from callee to caller."""

    def mark(context: Any) -> None:
        """Remember that the code being generated depends on pgas's per-process constants."""
        functions = context.active_code_library._setup_functions
        if _uses_pgas not in functions:
            functions.append(_uses_pgas)

    def uses_pgas(kernel: Any) -> bool:
        """Return whether a compiled kernel contains pgas device code."""
        return _uses_pgas in kernel._codelibrary._setup_functions

    def _refuse_foreign_cache(reduce: Callable[..., Any]) -> Callable[..., Any]:
        """Numba's cache key omits what pgas specialises on (BASE, STRIDE, transport): a stale hit would corrupt memory silently."""

        @functools.wraps(reduce)
        def checked(self: Any, kernel: Any) -> Any:
            if type(self) is CUDACacheImpl and uses_pgas(kernel):
                raise TypeError(
                    f"kernel {kernel.entry_name!r} calls pgas functions and cannot be kept in Numba's cache: "
                    "use @pgas.jit (it has a cache of its own) instead of @cuda.jit(cache=True)"
                )
            return reduce(self, kernel)

        return checked

    CUDACacheImpl.reduce = _refuse_foreign_cache(CUDACacheImpl.reduce)

else:

    def host_array(array: Any) -> Any:
        """Return the ndarray behind any of the simulator's array objects."""
        if isinstance(array, FakeWithinKernelCUDAArray):
            array = array._item
        return array._ary if isinstance(array, FakeCUDAArray) else array

    class _Facts:
        """What device code asks of an array, gathered once: NumPy takes microseconds to tell."""

        __slots__ = ("address", "dtype", "kind", "shape", "strides")

        def __init__(self, view: Any) -> None:
            flags = view.flags
            self.address = int(view.__array_interface__["data"][0])
            self.dtype, self.shape, self.strides = view.dtype, view.shape, view.strides
            self.kind = (view.dtype, view.ndim, flags.c_contiguous, flags.f_contiguous, flags.aligned)

    def facts(array: Any) -> _Facts:
        """Return what device code asks of an array."""
        if type(array) is KernelArray:
            known = array.__dict__.get("_facts")  # a kernel's view of an array never changes
            if known is None:
                known = array.__dict__["_facts"] = _Facts(array._ary)
            return known
        return _Facts(host_array(array))

    def element_words(array: Any, value: Any) -> tuple[int, int]:
        """Return a value's bytes as an element of the array: two words, the second 0 unless it has 16."""
        return cpu.element_words(facts(array).dtype, value)

    def element_of_word(array: Any, word: int) -> Any:
        """Return the element of 4 or 8 bytes whose bits are the low ones of word."""
        return cpu.element_of_word(facts(array).dtype, word)

    def address_of(array: Any) -> int:
        """Return the address of an array's first element."""
        return facts(array).address

    def address_of_element(array: Any, idx: Any) -> int:
        """Return the address of array[idx]; idx is an integer or a tuple of them, never counted from the end."""
        found = facts(array)
        if type(idx) is not tuple:
            return found.address + int(idx) * found.strides[0]
        return found.address + sum(int(i) * stride for i, stride in zip(idx, found.strides, strict=True))

    def outlier(array: Any, idx: Any) -> tuple[int, int, int]:
        """Return the first subscript beyond its axis, the axis's length and number, as u64; (0, 1, 0) if array has the element idx."""
        for axis, (index, length) in enumerate(zip(idx if type(idx) is tuple else (idx,), facts(array).shape, strict=True)):
            if not 0 <= index < length:
                return u64(index), length, axis
        return 0, 1, 0

    def caster(dtype: Any) -> Any:
        """Return what converts a value to dtype in device code."""
        if isinstance(dtype, types.Float):
            return numpy_dtype(dtype).type
        half, span = 1 << (dtype.bitwidth - 1), 1 << dtype.bitwidth
        return lambda value: (int(value) + half) % span - half if dtype.signed else int(value) % span

    def bits_of(value: Any) -> int:
        """Return an integer modulo 2^64, or the bits of a float: for error records."""
        if isinstance(value, (float, np.floating)):
            return int.from_bytes(np.asarray(value).tobytes(), "little")
        return u64(value)
