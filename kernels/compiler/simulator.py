"""The simulator as the compiler: kernels are Python, primitives are their CPU twins. interface.py documents its functions."""

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pgas.base import parameters
from pgas.kernels.compiler import cpu as cpu  # a member of the interface, as are those below that have two names
from pgas.kernels.compiler.interface import Key
from pgas.native.cpu import on_host
from pgas.native.dtypes import element_size as element_size
from pgas.native.dtypes import has_type as has_type
from pgas.native.dtypes import is_float8 as is_float8
from pgas.native.dtypes import numpy_dtype as numpy_dtype
from pgas.sim import engine
from pgas.sim.arrays import DeviceArray as DeviceArray
from pgas.sim.arrays import KernelArray, array_at, is_array, ndarray_of
from pgas.sim.integers import PLAIN, from_device
from pgas.sim.typing import cuda as cuda
from pgas.sim.typing import type_of
from pgas.sim.typing import types as types

engine.install()

KernelTypeError: type[Exception] = TypeError
i64: Any = int
constant: Any = int


def u32(value: Any) -> int:
    return int(value) & 0xFFFF_FFFF


def u64(value: Any) -> int:
    return int(value) & 0xFFFF_FFFF_FFFF_FFFF


def device(function: Callable[..., Any], cpu: Callable[..., Any] | None = None) -> Any:
    return cpu or function


def primitive(name: str, sig: str, text: str, cpu: Callable[..., Any] | None, *, convergent: bool = False, pure: bool = False) -> Any:
    return cpu


def integer_device(function: Callable[..., Any]) -> Any:
    return on_host(function)


def entry(sync: Any, suffix: str, name: str) -> Any:
    meet = engine.whole_warp if suffix == "_warp" else engine.whole_block
    return lambda: meet(name, _differing)


def _differing(mine: engine.Arguments, theirs: engine.Arguments) -> tuple[str, str, str] | None:
    """Return the name of an argument that differs between two threads, and both values as text, or None if all are the same."""
    (names, own), (_, others) = mine, theirs
    if all(map(operator.is_, own, others)):
        return None
    for name, a, b in zip(names, own, others, strict=False):
        if a is not b and not _same(a, b):
            return name, _shown(a), _shown(b)
    return None


def _same(a: Any, b: Any) -> bool:
    """Whether two values are the same number, or arrays of the same elements."""
    if not is_array(a) or not is_array(b):
        return not is_array(a) and not is_array(b) and bool(a == b)
    x, y = _facts(a), _facts(b)
    return x.address == y.address and x.shape == y.shape and x.strides == y.strides and bool(x.dtype == y.dtype)


def _shown(value: Any) -> str:
    if is_array(value):
        found = _facts(value)
        return f"the {found.dtype} array of shape {found.shape} at {found.address:#x}"
    return repr(value)


def bulk_copies() -> bool:
    return True


def element_primitive(name: str, arguments: str, text: Callable[[Any], str], cpu: Callable[..., Any]) -> Any:
    return lambda addr, array, *values: cpu(addr, _facts(array).dtype, *values)


class _Facts:
    """Properties of an array that device code reads, cached because NumPy takes microseconds for each."""

    __slots__ = ("address", "dtype", "kind", "shape", "strides")

    def __init__(self, view: Any) -> None:
        flags = view.flags
        self.address = int(view.__array_interface__["data"][0])
        self.dtype, self.shape, self.strides = view.dtype, view.shape, view.strides
        self.kind = (view.dtype, view.ndim, flags.c_contiguous, flags.f_contiguous, flags.aligned)


def _facts(array: Any) -> _Facts:
    if type(array) is KernelArray:
        known = array.__dict__.get("_facts")  # valid, because a kernel's view of an array never changes
        if known is None:
            known = array.__dict__["_facts"] = _Facts(array._ary)
        return known
    return _Facts(ndarray_of(array))


def element_words(array: Any, value: Any) -> tuple[int, int]:
    return cpu.element_words(_facts(array).dtype, value)


def element_of_word(array: Any, word: int) -> Any:
    return cpu.element_of_word(_facts(array).dtype, word)


def address_of(array: Any) -> int:
    return _facts(array).address


def address_of_element(array: Any, idx: Any) -> int:
    found = _facts(array)
    if type(idx) is not tuple:
        return found.address + int(idx) * found.strides[0]
    return found.address + sum(int(i) * stride for i, stride in zip(idx, found.strides, strict=True))


def outlier(array: Any, idx: Any) -> tuple[int, int, int]:
    for axis, (index, length) in enumerate(zip(idx if type(idx) is tuple else (idx,), _facts(array).shape, strict=True)):
        if not 0 <= index < length:
            return u64(index), length, axis
    return 0, 1, 0


def caster(dtype: Any) -> Any:
    if isinstance(dtype, types.Float):
        return numpy_dtype(dtype).type
    half, span = 1 << (dtype.bitwidth - 1), 1 << dtype.bitwidth
    return lambda value: (int(value) + half) % span - half if dtype.signed else int(value) % span


def bits_of(value: Any) -> int:
    if isinstance(value, (float, np.floating)):
        return int.from_bytes(np.asarray(value).tobytes(), "little")
    return u64(value)


# ------------------------------------------------------------------------------------------------------------- public names


#: Function of a public function's name, the names of its parameters, its arguments, and its body: it calls the body. A checker of
#: programs sets it (pgas/check/).
tap: Callable[[str, tuple[str, ...], list[Any], Callable[..., Any]], Any] | None = None


def overload(stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    # Call typing once per combination of types, so that operands are rejected with the same message as on a GPU.
    taken = parameters.in_kernels(stub)
    given = {name: p.default for name, p in taken.parameters.items()}
    names, defaults = tuple(given), tuple(given.values())
    required = sum(d is inspect.Parameter.empty for d in defaults)
    bodies: dict[tuple[Any, ...], Callable[..., Any]] = {}
    is_shared = stub.__name__.endswith(("_warp", "_block"))

    @functools.wraps(stub)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = engine.current()
        if thread is None:
            return on_host(*args, **kwargs)
        if kwargs or not required <= len(args) <= len(defaults):
            args = tuple({**given, **parameters.bound(stub.__name__, taken, args, kwargs)}.values())
        else:
            args += defaults[len(args) :]
        key = tuple([_kind(a) for a in args])
        body = bodies.get(key)
        if body is None:
            body = bodies[key] = typing(*[type_of(a) for a in args])
        values = [PLAIN[type(a)](a) if type(a) in PLAIN else a for a in args]
        if is_shared:
            thread.arguments = names, values
        return from_device(body(*values) if tap is None else tap(stub.__name__, names, values, body))

    return call


def _kind(value: Any) -> Any:
    """Return a hashable that is equal for values of the same type. The type of a string has its value, because strings are constants."""
    if type(value) is str:
        return value
    if type(value) is KernelArray or is_array(value):
        return _facts(value).kind
    return (type(value), *map(_kind, value)) if type(value) is tuple else type(value)


def array_overload(stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    def typed(*types_: Any) -> Any:
        body = typing(*types_)
        return lambda dest, pe: array_at(dest, body(dest, pe))

    return overload(stub, typed, on_host)


def host_only(function: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return refuse() if engine.current() is not None else function(*args, **kwargs)

    return call


# ------------------------------------------------------------------------------------------------------------------ kernels


def jit(function: Callable[..., Any], **options: Any) -> Any:
    return cuda.jit(**options)(function)


def function_of(kernel: Any) -> Any:
    return getattr(kernel, "fn", None)


def keep_bodies(key: Key) -> None:
    """Do nothing, because there is no machine code."""


def keep(kernel: Any, key: Key) -> None:
    """Do nothing, because there is no machine code."""


def compiling(thread: int) -> str:
    return ""


def deferred_frees() -> AbstractContextManager[Any]:
    return contextlib.nullcontext()
