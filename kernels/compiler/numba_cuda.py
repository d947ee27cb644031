"""numba-cuda as the compiler. Only this module and numba_cuda_*.py use its private parts. interface.py documents its functions.

numba-cuda is in maintenance mode (its README, 2026-06), so that a back end for its successor will be another module in this directory.
"""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import ir
from numba import cuda as cuda  # these two are members of the interface, unchanged
from numba.cuda import cgutils
from numba.cuda import dispatcher as dispatchers
from numba.cuda import extending as numba_extending
from numba.cuda import types as types
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core.errors import NumbaTypeError
from numba.cuda.cudadrv import devices
from numba.cuda.cudadrv.devicearray import DeviceNDArray as DeviceNDArray
from numba.cuda.cudadrv.driver import MemoryPointer, binding, driver
from numba.cuda.cudadrv.dummyarray import Array as Description
from numba.cuda.extending import intrinsic
from numba.cuda.memory_management.nrt import NRT_LIBRARY
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.typing import signature
from numba.cuda.typing.typeof import Purpose, typeof

from pgas.base import disk_cache
from pgas.kernels.compiler import numba_cuda_bodies
from pgas.kernels.compiler import numba_cuda_values as numba_cuda_values  # registers them with numba-cuda
from pgas.kernels.compiler.interface import Key
from pgas.kernels.compiler.told import compiling as compiling  # a member of the interface, as are those below that have two names
from pgas.kernels.compiler.told import fitted, telling
from pgas.native import dtypes

KernelTypeError: type[Exception] = NumbaTypeError


class DeviceArray(DeviceNDArray):  # type: ignore[misc, no-any-unimported]
    """Numba's array, except that every launch reads its address. Numba keeps the first launch's, so a freed block would go unnoticed."""

    @property
    def _strided_memory_view_shim(self) -> Any:
        _ = self.device_ctypes_pointer
        if (kept := self.__dict__.get("_shim")) is None:
            kept = self.__dict__["_shim"] = DeviceNDArray._strided_memory_view_shim.func(self)
        return kept

    @functools.cached_property
    def _dummy(self) -> Any:
        """Numba's description, which __init__ sets. Views from __getitem__() get it only when needed, because it costs more than a view."""
        return Description.from_desc(0, self.shape, self.strides, self.dtype.itemsize)

    def __getitem__(self, item: Any) -> Any:
        """Return an element or a view. Consecutive rows, the usual view, take a fifth of the time that Numba takes."""
        if type(item) is not slice or not self.shape or min(self.strides) <= 0:
            return super().__getitem__(item)
        start, stop, step = item.indices(self.shape[0])
        if step != 1 or stop <= start or not self.size:
            return super().__getitem__(item)
        rows, shape = type(self).__new__(type(self)), (stop - start, *self.shape[1:])
        nbytes = sum((n - 1) * stride for n, stride in zip(shape, self.strides, strict=True)) + self.dtype.itemsize
        rows.__dict__.update(
            shape=shape, strides=self.strides, dtype=self.dtype, ndim=self.ndim, size=math.prod(shape), alloc_size=nbytes,
            stream=self.stream, gpu_data=self.gpu_data.view(start * self.strides[0], start * self.strides[0] + nbytes),
        )  # fmt: skip
        if (kept := self.__dict__.get("_numba_type_")) is not None and kept.layout == "C":
            rows.__dict__["_numba_type_"] = kept
        return rows


packages: tuple[str, ...] = ("numba",)
element_size, has_type, is_float8, numpy_dtype = dtypes.element_size, dtypes.has_type, dtypes.is_float8, dtypes.numpy_dtype
u32, u64, i64 = types.uint32, types.uint64, types.int64
#: Typed globals, which cost the compiler less than converting a literal at every use.
constant: Any = np.uint64
cpu: Any = None


@functools.cache
def versions() -> tuple[str, ...]:
    return numba.__version__, llvmlite.__version__, version("numba-cuda")


def device(function: Callable[..., Any], cpu: Callable[..., Any] | None = None) -> Any:
    return cuda.jit(device=True, forceinline=True)(function)


def integer_device(function: Callable[..., Any]) -> Any:
    dispatcher = cuda.jit(device=True)(function)
    resolve = dispatcher.get_call_template
    # Numba would compile it anew for every constant (Literal[int]).
    dispatcher.get_call_template = lambda args, kws: resolve(tuple(types.int64 for _ in args), kws)
    return dispatcher


def entry(sync: Any, suffix: str, name: str) -> Any:
    return sync


# ---------------------------------------------------------------------------------------------------------------- primitives

_TYPES = {  # name: (Numba type, LLVM type, inline assembly constraint)
    "u16": (types.uint16, ir.IntType(16), "h"),
    "u32": (types.uint32, ir.IntType(32), "r"),
    "i32": (types.int32, ir.IntType(32), "r"),
    "u64": (types.uint64, ir.IntType(64), "l"),
    "i64": (types.int64, ir.IntType(64), "l"),
    "f32": (types.float32, ir.FloatType(), "f"),
    "f64": (types.float64, ir.DoubleType(), "d"),
}


def primitive(name: str, sig: str, text: str, cpu: Callable[..., Any] | None, *, convergent: bool = False, pure: bool = False) -> Any:
    head, _, tail = sig.rpartition("(")
    results = [r.strip() for r in head.strip("() ").split(",") if r.strip() not in ("", "void")]
    arguments = [a.strip() for a in tail.rstrip(")").split(",") if a.strip()]
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
        # Without readnone, LLVM leaves a pure instruction in place, even inside a loop.
        attributes = (*(("convergent",) if convergent else ()), *(("readnone", "nounwind") if pure else ()))
        value = builder.call(asm, args, attrs=attributes)
        if not results:
            return context.get_dummy_value()
        if len(results) == 1:
            return value
        return cgutils.pack_array(builder, [builder.extract_value(value, i) for i in range(len(results))])

    numba_signature = signature(numba_result, *[_TYPES[a][0] for a in arguments])
    return _intrinsic(name, len(arguments), lambda *_: (numba_signature, codegen))


def _intrinsic(name: str, arity: int, typing: Callable[..., Any]) -> Any:
    """Register an intrinsic of the given arity, because Numba takes the parameter names from the function that it gets."""
    names = ", ".join("abcdefghijklmnop"[:arity])
    scope: dict[str, Any] = {"typing": typing}
    exec(f"def {name}(typingctx{', ' if names else ''}{names}): return typing({names})", scope)
    return intrinsic(scope[name])


# ------------------------------------------------------------------------------------------ typed access to elements of arrays


def bulk_copies() -> bool:
    return bool(dispatchers.get_current_device().compute_capability >= (9, 0))


def element_primitive(name: str, arguments: str, text: Callable[[Any], str], cpu: Callable[..., Any]) -> Any:
    loads, taken = arguments != "store", {"load": 0, "store": 1, "update": 1, "compare": 2}[arguments]

    def typing(addr, array, *values):  # type: ignore[no-untyped-def]
        dtype = array.dtype
        nbytes = element_size(dtype)

        def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
            mark(context)
            words = _REGISTERS[nbytes]
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


#: LLVM type and constraint letter of the registers that hold an element, by its size in bytes. PTX has no 8-bit registers.
_REGISTERS = {n: [(ir.IntType(bits), letter)] for n, bits, letter in ((1, 32, "r"), (2, 16, "h"), (4, 32, "r"), (8, 64, "l"))}
_REGISTERS[16] = _REGISTERS[8] * 2


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
    nbytes = element_size(array.dtype)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        converted = context.cast(builder, args[1], sig.args[1], array.dtype)
        words = [builder.zext(w, ir.IntType(64)) if w.type.width < 64 else w
                 for w in _to_registers(context, builder, array.dtype, converted, nbytes)]  # fmt: skip
        return cgutils.pack_array(builder, [*words, ir.Constant(ir.IntType(64), 0)][:2])

    return signature(types.UniTuple(types.uint64, 2), array, value), codegen


@intrinsic
def element_of_word(typingctx, array, word):  # type: ignore[no-untyped-def]
    width = 8 * element_size(array.dtype)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        bits = builder.trunc(args[1], ir.IntType(width)) if width < 64 else args[1]
        return _from_registers(context, builder, array.dtype, bits, width // 8)

    return signature(array.dtype, array, types.uint64), codegen


@intrinsic
def address_of(typingctx, array):  # type: ignore[no-untyped-def]
    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        mark(context)
        return builder.ptrtoint(context.make_array(sig.args[0])(context, builder, value=args[0]).data, ir.IntType(64))

    return signature(types.uint64, array), codegen


def _subscripts(context, builder, idx, value):  # type: ignore[no-untyped-def]
    """Return the subscripts in an index of type ``idx`` as 64-bit integers."""
    kinds = list(idx) if isinstance(idx, types.BaseTuple) else [idx]
    given = cgutils.unpack_tuple(builder, value, len(kinds)) if isinstance(idx, types.BaseTuple) else [value]
    wide = (types.int64 if kind.signed else types.uint64 for kind in kinds)
    return [context.cast(builder, *each) for each in zip(given, kinds, wide, strict=True)]


@intrinsic
def address_of_element(typingctx, array, idx):  # type: ignore[no-untyped-def]
    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        mark(context)
        view = context.make_array(sig.args[0])(context, builder, value=args[0])
        address = builder.ptrtoint(view.data, ir.IntType(64))
        strides = cgutils.unpack_tuple(builder, view.strides, array.ndim)
        for axis, wide in enumerate(_subscripts(context, builder, idx, args[1])):
            contiguous = array.layout == "C" and axis == array.ndim - 1
            step = ir.Constant(ir.IntType(64), element_size(array.dtype)) if contiguous else strides[axis]
            address = builder.add(address, builder.mul(wide, step))
        return address

    return signature(types.uint64, array, idx), codegen


@intrinsic
def outlier(typingctx, array, idx):  # type: ignore[no-untyped-def]
    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        view = context.make_array(sig.args[0])(context, builder, value=args[0])
        shape = cgutils.unpack_tuple(builder, view.shape, array.ndim)
        found = [ir.Constant(ir.IntType(64), value) for value in (0, 1, 0)]
        for axis, wide in reversed(list(enumerate(_subscripts(context, builder, idx, args[1])))):
            beyond = builder.icmp_unsigned(">=", wide, shape[axis])
            this = wide, shape[axis], ir.Constant(ir.IntType(64), axis)
            found = [builder.select(beyond, new, old) for new, old in zip(this, found, strict=True)]
        return cgutils.pack_array(builder, found)

    return signature(types.UniTuple(types.uint64, 3), array, idx), codegen


def caster(dtype: Any) -> Any:
    return dtype


@intrinsic
def bits_of(typingctx, value):  # type: ignore[no-untyped-def]
    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        if isinstance(value, types.Float):
            return builder.zext(builder.bitcast(args[0], ir.IntType(value.bitwidth)), ir.IntType(64))
        return context.cast(builder, args[0], value, types.uint64)

    return signature(types.uint64, value), codegen


# ------------------------------------------------------------------------------------------------------------- public names


def overload(stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    named = numba_cuda_bodies.named(fitted(stub, typing, KernelTypeError), f"{stub.__module__}.{stub.__name__}")
    # strict=False because typing functions have annotations and bodies do not, and Numba also compares those.
    numba_extending.overload(on_host, target="cuda", jit_options={"forceinline": True}, strict=False)(named)
    return on_host


def array_overload(stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    # Lower this by hand, because Numba's compiled functions may not return arrays other than their arguments.
    @numba_extending.type_callable(on_host)
    def _(context):  # type: ignore[no-untyped-def]
        def typer(dest, pe):  # type: ignore[no-untyped-def]
            typing(dest, pe)
            return dest

        return fitted(stub, typer, KernelTypeError)

    @numba_extending.lower_builtin(on_host, types.Array, types.Integer)
    def _(context, builder, sig, args):  # type: ignore[no-untyped-def]
        address = context.compile_internal(builder, typing(*sig.args), signature(types.uint64, *sig.args), args)
        view = context.make_array(sig.return_type)(context, builder, value=args[0])
        view.data = builder.inttoptr(address, view.data.type)
        return view._getvalue()

    return on_host


def host_only(function: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    numba_extending.overload(function, target="cuda")(refuse)
    return function


# ------------------------------------------------------------------------------------------------------------------ kernels


_loading = threading.Lock()


def _once(load: Callable[..., Any]) -> Callable[..., Any]:
    """Let one thread at a time load kernels, because Numba has one entry per module and fails if several threads load one concurrently."""

    @functools.wraps(load)
    def loaded(self: Any) -> Any:
        if self._cufunc_cache:  # a process uses one GPU; a launch of a loaded kernel must not wait until another is loaded
            return load(self)
        with _loading:
            return load(self)

    return loaded


CUDACodeLibrary.get_cufunc = _once(CUDACodeLibrary.get_cufunc)


class CompiledKernel:
    """A kernel of numba-cuda; implements interface.Compiled."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    @property
    def cubin(self) -> bytes:
        # Compile for the current GPU; with cc=, Numba would compile it again.
        return bytes(self._kernel._codelibrary.get_cubin().code)

    @property
    def kernel(self) -> Any:
        return self._kernel._codelibrary.get_cufunc().kernel

    @property
    def cooperative(self) -> bool:
        return bool(self._kernel.cooperative)

    @property
    def plain(self) -> bool:
        """Whether a launch needs nothing from Numba: no check for exceptions afterwards, no extension."""
        return not (self._kernel.debug or self._kernel.extensions)

    def flatten(self, args: Sequence[Any], stream: Any) -> list[Any]:
        copies, flat = list[Any](), list[Any]()
        for type_, value in zip(self._kernel.argument_types, args, strict=True):
            self._kernel._prepare_args(type_, value, stream, copies, flat)
        if copies:
            raise TypeError("a host array cannot be bound, because it would be copied only once; use a device array")
        return flat


def jit(function: Callable[..., Any], **options: Any) -> Any:
    return telling(cuda.jit(function, **options))  # Not cuda.jit(**options)(function), which loses fastmath, extensions, and lto.


def function_of(kernel: Any) -> Any:
    return getattr(kernel, "py_func", None)


def options_of(kernel: Any) -> dict[str, Any]:
    return getattr(kernel, "targetoptions", {})


def compiled(kernel: Any, argument_types: tuple[Any, ...]) -> CompiledKernel:
    return CompiledKernel(kernel.overloads.get(argument_types) or kernel.compile(argument_types))


def types_of(kernel: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(kernel.typeof_pyval(a) for a in args)


#: Types by their numbers. They are kept, because Numba gives a type another number if it makes the type anew.
_numbered: dict[int, Any] = {}


def code_of(value: Any) -> int:
    """Return Numba's number of the type of an argument."""
    return _number(typeof(value, Purpose.argument))


@functools.cache
def code_of_flat_array(dtype: np.dtype) -> int:
    """Return Numba's number of the type of contiguous arrays of one dimension."""
    return _number(types.Array(from_dtype(dtype), 1, "C"))


def _number(type_: Any) -> int:
    _numbered[type_._code] = type_
    return int(type_._code)


def ptx(function: Callable[..., Any], argument_types: tuple[Any, ...], compute_capability: tuple[int, int]) -> str:
    asked = dispatchers.get_current_device
    # Replace this function, because compile_device() calls it to query the driver and ignores cc=.
    dispatchers.get_current_device = lambda: SimpleNamespace(compute_capability=compute_capability)
    try:
        options = {name: value for name, value in options_of(function).items() if name in ("fastmath", "launch_bounds")}
        return str(cuda.compile_ptx(function_of(function) or function, types.void(*argument_types), cc=compute_capability, **options)[0])
    finally:
        dispatchers.get_current_device = asked


# ---------------------------------------------------------------------------------------------------------------- the disk cache


def _uses_pgas(module: Any) -> None:
    """Mark a code library: this stays in its list of setup functions, which Numba passes on from callee to caller."""


def mark(context: Any) -> None:
    """Remember that the code being generated depends on pgas's per-process constants."""
    functions = context.active_code_library._setup_functions
    if _uses_pgas not in functions:
        functions.append(_uses_pgas)


def _refuse_foreign_cache(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Extend Numba's cache key by what pgas specializes on (BASE, STRIDE, transport), because a stale hit would corrupt memory silently."""

    @functools.wraps(reduce)
    def checked(self: Any, kernel: Any) -> Any:
        if type(self) is dispatchers.CUDACacheImpl and _uses_pgas in kernel._codelibrary._setup_functions:
            raise TypeError(
                f"kernel {kernel.entry_name!r} calls pgas functions and cannot be kept in Numba's cache: "
                "use @pgas.jit (it has a cache of its own) instead of @cuda.jit(cache=True)"
            )
        return reduce(self, kernel)

    return checked


dispatchers.CUDACacheImpl.reduce = _refuse_foreign_cache(dispatchers.CUDACacheImpl.reduce)


class _CacheImpl(dispatchers.CUDACacheImpl):  # type: ignore[misc, no-any-unimported]
    """Lets the cache also store kernels that use pgas."""

    _locator_classes = disk_cache.places(dispatchers.CUDACacheImpl)

    def check_cachable(self, kernel: Any) -> bool:
        """Whether numba-cuda can pickle a kernel: not if it links files (for reshape, float16, or link=) other than NRT."""
        return kernel._codelibrary._linking_files <= {NRT_LIBRARY}


class _Cache(disk_cache.OnDisk, dispatchers.CUDACache):  # type: ignore[misc, no-any-unimported]
    """Numba's cache with pgas's key, files, and directory."""

    _impl_class = _CacheImpl

    def __init__(self, function: Any, key: Key) -> None:
        super().__init__(function, key)
        # Keys cover free variables. Numba would hash their pickles, in which intrinsics and some enumerations have a process-specific id.
        self._py_func = SimpleNamespace(__code__=function.__code__, __closure__=None)


def keep_bodies(key: Key) -> None:
    numba_cuda_bodies.keep(lambda: (*key(), *versions()), _uses_pgas)


def keep(kernel: Any, key: Key) -> None:
    disk_cache.keep(kernel, lambda: _Cache(kernel.py_func, lambda: (*versions(), *key())))


# ------------------------------------------------------------------------------------------------------- contexts and memory


_selected = 0
_find_context = devices._Runtime._get_or_create_context_uncached


def _context(runtime: Any, ordinal: int | None) -> Any:
    """Give threads without a current GPU the selected one, because on Numba's GPU 0 the process's streams and kernels are invalid."""
    with driver.get_active_context() as active:
        return _find_context(runtime, ordinal) if active else runtime.get_or_create_context(_selected)


devices._Runtime._get_or_create_context_uncached = _context


def select_device(ordinal: int) -> None:
    global _selected
    _selected = ordinal
    cuda.select_device(ordinal)


def enter_device() -> None:
    devices.get_context()


def deferred_frees() -> AbstractContextManager[Any]:
    return cuda.defer_cleanup()  # type: ignore[no-any-return]


class _CheckedPointer(MemoryPointer):  # type: ignore[misc, no-any-unimported]
    """Device memory whose every read of the address, also by a launch, calls check(block)."""

    def __init__(self, address: int, size: int, block: Any, check: Callable[[Any], None]) -> None:
        self.block, self._check = block, check
        super().__init__(devices.get_context(), binding.CUdeviceptr(address), size, owner=block)

    @property
    def device_pointer(self) -> Any:
        self._check(self.block)
        return self._pointer

    @device_pointer.setter
    def device_pointer(self, pointer: Any) -> None:
        self._pointer = pointer

    def view(self, start: int, stop: int | None = None) -> "_CheckedPointer":
        size = (self.size if stop is None else stop) - start
        part, pointer = _CheckedPointer.__new__(_CheckedPointer), binding.CUdeviceptr(int(self.device_pointer) + start)
        # Set the attributes that __init__() sets, because __init__() also queries the driver for the current context, which takes longest.
        part.__dict__.update(self.__dict__, _pointer=pointer, handle=pointer, size=size, _cuda_memsize_=size)
        return part


def checked_memory(address: int, nbytes: int, block: Any, check: Callable[[Any], None]) -> Any:
    return _CheckedPointer(address, nbytes, block, check)
