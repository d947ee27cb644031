"""Launches of compiled kernels by the driver's functions, without Numba's dispatcher: conversion of a call's arguments to bytes.

In numba-cuda's calling convention, an array is two null pointers, the number of its elements, the size of one, its address, its shape, and
its strides; a tuple is its members. All of these are separate parameters; here, each has a slot of 8 bytes.
"""

import ctypes
import enum
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from pgas.kernels.compiler import numba_cuda

#: Arguments of a call: a code for the type of each, nested like the arguments, and their parameters.
Packed = tuple[tuple[Any, ...], bytes]

#: Function that converts an argument into its code and its parameters.
_Take = Callable[[Any], tuple[Any, bytes]]

_INT64, _signed = numba_cuda.types.int64._code, struct.Struct("<q").pack

#: Scalars and their formats, in slots of 8 bytes.
_FORMATS = {
    bool: "<?7x", float: "<d", np.bool_: "<?7x", np.int8: "<b7x", np.int16: "<h6x", np.int32: "<i4x", np.int64: "<q", np.uint8: "<B7x",
    np.uint16: "<H6x", np.uint32: "<I4x", np.uint64: "<Q", np.float16: "<e6x", np.float32: "<f4x", np.float64: "<d",
}  # fmt: skip

#: Converter for arguments of each class; None if only Numba can convert them.
_takes: dict[type, _Take | None] = {}


class Argument:
    """A flat array in GPU memory as an argument; cheaper than a Numba array.

    Args:
        address: address of its first element.
        size: number of its elements.
        dtype: dtype of an element.
        make: function of these three that makes the same array for Numba.
    """

    __slots__ = ("_given", "_make", "size")

    def __init__(self, address: int, size: int, dtype: np.dtype, make: Callable[[int, int, np.dtype], Any]) -> None:
        self._given, self._make, self.size = (address, size, dtype), make, size

    def array(self) -> Any:
        """Return the array for Numba."""
        return self._make(*self._given)

    def packed(self) -> tuple[int, bytes]:
        """Return the array's code and parameters."""
        address, size, dtype = self._given
        return numba_cuda.code_of_flat_array(dtype), _flat(0, 0, size, dtype.itemsize, address, size, dtype.itemsize)


_flat = struct.Struct("<5Q2q").pack


def _of_array(array: Any) -> tuple[int, bytes]:
    """Convert an array of Numba, and keep the parameters with it, because it never changes. Reading the address of a freed array raises."""
    address = array.device_ctypes_pointer.value or 0
    kept = array.__dict__.get("_pgas_parameters")
    if kept is None:
        words = (0, 0, array.size, array.dtype.itemsize, address, *array.shape, *array.strides)
        kept = numba_cuda.code_of(array), struct.pack(f"<5Q{2 * array.ndim}q", *words)
        array.__dict__["_pgas_parameters"] = kept
    return kept  # type: ignore[no-any-return]


#: Numba's numbers of the types of contiguous tensors, by dtype, number of dimensions, and whether they require a gradient.
_codes_of_tensors: dict[tuple[Any, int, bool], int] = {}


def _of_tensor(tensor: Any) -> tuple[int, bytes]:
    """Convert a contiguous tensor of PyTorch on a GPU, for which Numba takes 30 us. Some releases let it reject those with a gradient."""
    try:
        plain = tensor.is_cuda and tensor.is_contiguous() and tensor.numel()
    except (AttributeError, RuntimeError):  # A sparse tensor, or an object that only resembles one.
        plain = False
    if not plain:
        raise _Unknown
    shape, step = tensor.shape, tensor.element_size()
    key = tensor.dtype, len(shape), tensor.requires_grad
    code = _codes_of_tensors.get(key)
    if code is None:
        try:
            code = numba_cuda.code_of(tensor)
        except Exception:  # Not narrower: Numba has many for elements that it has no type for.
            raise _Unknown from None
        _codes_of_tensors[key] = code
    words, strides = [0, 0, tensor.numel(), step, tensor.data_ptr(), *shape], []
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return code, struct.pack(f"<5Q{2 * len(shape)}q", *words, *reversed(strides))


def _of_tuple(members: tuple[Any, ...]) -> tuple[Any, bytes]:
    taken = packed(members)
    if taken is None:
        raise _Unknown
    return taken


class _Unknown(Exception):  # never raised outside this module
    """A tuple has a member that only Numba can convert."""


def _scalar(value: Any, form: str) -> _Take:
    code, pack = numba_cuda.code_of(value), struct.Struct(form).pack
    return lambda value: (code, pack(value))


def _learned(value: Any) -> _Take | None:
    """Return the converter for arguments of a value's class."""
    kind = type(value)
    if issubclass(kind, numba_cuda.DeviceNDArray):
        return _of_array
    if hasattr(kind, "__cuda_array_interface__") and hasattr(value, "data_ptr"):
        return _of_tensor
    if kind in _FORMATS:
        return _scalar(value, _FORMATS[kind])
    if kind is Argument:
        return Argument.packed
    if kind is tuple:
        return _of_tuple
    if issubclass(kind, enum.IntEnum) or (issubclass(kind, int) and numba_cuda.code_of(value) == _INT64):
        return _scalar(value, "<q")
    return None


def packed(args: Sequence[Any]) -> Packed | None:
    """Return the arguments of a call in the form that cuLaunchKernel takes; None if only Numba can convert the class of one.

    Raises:
        HeapError: an argument has been freed.
    """
    codes, parts = [], []
    for value in args:
        kind = type(value)
        if kind is int:
            if not -(1 << 63) <= value < 1 << 63:  # Numba's dispatcher decides whether such a number is an int64 or a uint64
                return None
            codes.append(_INT64)
            parts.append(_signed(value))
            continue
        try:
            take = _takes[kind]
        except KeyError:
            take = _takes[kind] = _learned(value)
        if take is None:
            return None
        try:
            code, part = take(value)
        except (_Unknown, struct.error):  # such as an integer beyond 64 bits of a class of its own
            return None
        codes.append(code)
        parts.append(part)
    return tuple(codes), b"".join(parts)


def offset(args: Sequence[Any], place: tuple[int, ...]) -> int:
    """Return the offset of an argument in the parameters of packed(). place: its index, after that of the tuple that contains it."""
    before = packed(args[: place[0]])
    return (len(before[1]) if before is not None else 0) + (offset(args[place[0]], place[1:]) if place[1:] else 0)


def unpacked(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments in the form that Numba takes."""
    return tuple(a.array() if type(a) is Argument else unpacked(a) if type(a) is tuple else a for a in args)


class DriverLaunch:
    """A kernel on the GPU with its launch configuration.

    Args:
        kernel: kernel of cuda.core.
        grid, block: three numbers each.
        shared: bytes of dynamic shared memory.
        stream: stream handle.
        nbytes: size of the parameters.
        cooperative: whether all blocks must run concurrently.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int,
        stream: int,
        nbytes: int,
        *,
        cooperative: bool = False,
    ) -> None:
        self._buffer = ctypes.create_string_buffer(max(nbytes, 8))
        first = ctypes.addressof(self._buffer)
        self._slots = (ctypes.c_void_p * max(nbytes // 8, 1))(*range(first, first + nbytes, 8))
        self._bytes = memoryview(self._buffer).cast("B")[:nbytes]
        self._lock = threading.Lock()  # protects the buffer, which the driver has read when the call returns
        function = driver.CUfunction(int(kernel.handle))
        self._launch = driver.cuLaunchCooperativeKernel if cooperative else driver.cuLaunchKernel
        self._arguments = function, *grid, *block, shared, driver.CUstream(stream), ctypes.addressof(self._slots), *[0] * (not cooperative)

    def __call__(self, parameters: bytes) -> bool:
        """Launch, and return whether that succeeded. For example, the driver rejects a launch in a thread without a current GPU."""
        if not self._lock.acquire(blocking=False):  # because another thread, or this one below a signal handler, is using the buffer
            return False
        try:
            self._bytes[:] = parameters
            return self._launch(*self._arguments)[0] == 0  # type: ignore[no-any-return]
        finally:
            self._lock.release()
