"""Symmetric arrays: device arrays of the compiler, or of the simulator, whose memory is a block of the symmetric heap.

They work with kernels, slices, and readers of ``__cuda_array_interface__`` (CuPy, PyTorch), and reject every use after free.
"""

import ctypes
import functools
import importlib
import math
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar

import numpy as np

from pgas.base.backend import SIMULATOR
from pgas.base.errors import HeapError, PgasError
from pgas.base.parameters import is_integer
from pgas.base.tracebacks import in_pgas
from pgas.job.memory import dlpack
from pgas.job.memory.heap import HeapBlock
from pgas.kernels.compiler import backend, cuda

if TYPE_CHECKING:

    class _DeviceArray:
        """The interface of Numba's device arrays and fake ones, for type checkers, because Numba has no type hints."""

        shape: tuple[int, ...]
        strides: tuple[int, ...]
        dtype: np.dtype
        size: int
        ndim: int
        nbytes: int
        flags: Any
        stream: Any
        gpu_data: Any
        T: "SymmetricArray"

        def __len__(self) -> int: ...
        def __getitem__(self, idx: Any) -> Any: ...
        def __setitem__(self, idx: Any, value: Any) -> None: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
        def copy_to_host(self, ary: Any = None, stream: Any = 0) -> np.ndarray: ...
        def copy_to_device(self, ary: Any, stream: Any = 0) -> None: ...
        def reshape(self, *shape: Any, order: str = "C") -> "SymmetricArray": ...
        def ravel(self, order: str = "C") -> "SymmetricArray": ...
        def view(self, dtype: Any) -> "SymmetricArray": ...
        def squeeze(self, axis: Any = None) -> "SymmetricArray": ...
        def is_c_contiguous(self) -> bool: ...
        def is_f_contiguous(self) -> bool: ...

else:
    _DeviceArray = backend.DeviceArray


def shape_of(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple. Raises ValueError if it is not a shape."""
    axes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    for n in axes:
        if not is_integer(n) or n < 0:
            raise ValueError(f"shape must be non-negative integers, not {shape!r}")
    return tuple(int(n) for n in axes)


def dtype_of(dtype: Any) -> np.dtype:
    """Return the dtype of elements on the heap. Raises TypeError if it is not a dtype, or not allowed on the heap."""
    name = str(dtype).removeprefix("torch.")  # Because PyTorch has NumPy's names.
    if name == "bfloat16" or name.startswith("float8_"):
        importlib.import_module("ml_dtypes")  # It registers those names with NumPy.
    try:
        dtype = np.dtype(dtype if name == str(dtype) else name)
    except TypeError:
        raise TypeError(f"dtype must be a NumPy dtype or the name of one, such as bfloat16, not {dtype}") from None
    if dtype.hasobject or dtype.itemsize == 0 or dtype.kind in "SU":
        raise TypeError(f"arrays of {dtype} cannot be allocated on the symmetric heap; only numeric dtypes and records of them can")
    if math.prod(dtype.shape) != 1:
        raise TypeError(f"dtype {dtype} is a subarray dtype; pass its shape in shape= instead")
    if not backend.has_type(dtype):
        raise TypeError(
            f"arrays of {dtype} cannot be allocated on the symmetric heap, because Numba has no type for such elements (the byte order "
            "must be native; the largest numbers are float64 and complex128)"
        )
    return dtype


def caller() -> str:
    """Return file:line of the innermost call outside pgas."""
    frame, _ = _outside()
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def stacklevel() -> int:
    """Return the stacklevel of the innermost call outside pgas, for a warning by the calling function."""
    return _outside()[1]


def _outside() -> tuple[types.FrameType, int]:
    """Return the innermost frame outside pgas, and its level above the caller's caller, counted from 1."""
    frame, level = sys._getframe(2), 1
    while frame.f_back is not None and in_pgas(frame):
        frame, level = frame.f_back, level + 1
    return frame, level


def _c_strides(shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Return strides in C order. An axis without elements counts as one, because Numba takes an axis with stride 0 for one element."""
    return tuple(dtype.itemsize * math.prod(max(extent, 1) for extent in shape[axis + 1 :]) for axis in range(len(shape)))


def _refuse_freed(block: HeapBlock) -> None:
    if block.freed:
        raise PgasError(block.foreign) if block.foreign else HeapError(f"use after free: {block}")


def check_freeable(array: Any, block: HeapBlock | None, heap: int) -> None:
    """Reject what is not an array that was allocated. block: the array's block; heap: address of this PE's heap.

    Raises:
        ValueError: if array is not on the symmetric heap, or is a view with another shape, dtype, or first element.
        HeapError: if it was freed before.
    """
    if block is None:
        known = hasattr(array, "shape") and hasattr(array, "dtype")
        found = f"an array of {array.dtype} and shape {tuple(array.shape)} elsewhere" if known else type(array).__name__
        raise ValueError(f"pgas.free: array must be on the symmetric heap, not {found}")
    if block.freed:
        raise HeapError(f"pgas.free: already freed: {block}")
    whole = (tuple(array.shape), array.dtype) == (block.shape, block.dtype)
    if not whole or (block.nbytes and int(array.__cuda_array_interface__["data"][0]) != heap + block.offset):
        raise ValueError(f"pgas.free: array is a view of the {block}; free the array that was originally allocated")


class _OnHeap(_DeviceArray):
    """An array on the symmetric heap, or a view of one.

    Has shape, dtype, size, nbytes, strides, slices, copy_to_host(), copy_to_device() and __cuda_array_interface__. Assigning to
    a slice on the host copies to this PE's instance only.

    Example:
        >>> a = pgas.zeros((2, 3), np.int32)
        >>> a[1] = 5  # on this PE only
        >>> a[:, 0].copy_to_host().tolist(), a.reshape(6).shape
        ([0, 5], (6,))
    """

    # The docstring is that of SymmetricArray, whose two classes below, for the simulator and for GPUs, make views differently.

    # Set by host.py, which this module cannot import.
    _free: ClassVar[Callable[[Any], None]]  #: pgas.free
    _check_free: ClassVar[Callable[[Any], None]]  #: raises the errors of pgas.free

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a symmetric array cannot be copied or pickled, because it refers to this PE's memory; use array.copy_to_host() instead"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:  # Because the simulator's arrays would forward it to NumPy's.
        self.__reduce_ex__(None)

    def __repr__(self) -> str:
        block = block_of(self)
        if block is not None and block.freed:
            return f"SymmetricArray({block.foreign or f'freed: {block}'})"
        return f"SymmetricArray({self.copy_to_host()!r})"

    __str__ = __repr__

    def __bool__(self) -> bool:
        if self.size != 1:
            many = "an array with more than one element" if self.size else "an empty array"
            raise ValueError(f"the truth value of {many} is ambiguous; use copy_to_host().any() or .all(), or size")
        return bool(_on_host(self))

    def __enter__(self) -> Self:
        self._check_free()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: types.TracebackType | None) -> None:
        """Free the array if it is not freed yet. After an exception, keep it, because other PEs may not reach this line."""
        block = block_of(self)
        if kind is None and block is not None and not block.freed:
            self._free()


def _check_source(dest: Any, source: Any) -> None:
    """Check the operands of copy_to_device(), because Numba's messages do not say which of the two is wrong.

    Raises:
        TypeError: source is not an array of NumPy or Numba, or has another dtype.
        ValueError: it has another shape, or one of the arrays is not contiguous.
    """
    if not all(hasattr(source, name) for name in ("dtype", "shape", "strides")):
        raise TypeError(f"copy_to_device: the source must be an array of NumPy or Numba, not {type(source).__name__}; see numpy.asarray()")
    for array in (dest, source):
        if isinstance(array, _DeviceArray) and array.size and not (array.is_c_contiguous() or array.is_f_contiguous()):
            raise ValueError(
                f"copy_to_device: an array of shape {tuple(array.shape)} and strides {tuple(array.strides)} is not contiguous; assign "
                "instead: array[:] = values"
            )
    if source.dtype != dest.dtype:
        raise TypeError(f"copy_to_device: the source has dtype {source.dtype}, the array {dest.dtype}; convert it with astype()")
    if [n for n in source.shape if n != 1] != [n for n in dest.shape if n != 1]:
        raise ValueError(f"copy_to_device: the source has shape {tuple(source.shape)}, the array {tuple(dest.shape)}")


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Make an in-place operator: NumPy's on a copy on the host, then copied back. Otherwise, the name would get an array off the heap."""

    def update(array: _OnHeap, other: Any) -> _OnHeap:
        result = operation(_on_host(array), _on_host(other) if isinstance(other, _OnHeap) else other)
        if array.is_c_contiguous() or array.is_f_contiguous():
            array.copy_to_device(result)
        else:
            array[(slice(None),) * array.ndim] = result
        return array

    return update


def _on_host(array: _OnHeap) -> np.ndarray:
    """Return a copy on the host. Numba copies views with gaps only between device arrays."""
    if array.is_c_contiguous() or array.is_f_contiguous():
        return array.copy_to_host()  # type: ignore[no-any-return]
    whole = cuda.device_array(array.shape, array.dtype)
    whole[(slice(None),) * array.ndim] = array
    return whole.copy_to_host()  # type: ignore[no-any-return]


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(_OnHeap, f"__i{_name}__", _in_place(getattr(operator, f"__i{_name}__")))


def _uncopied(array: np.ndarray, call: str, *shape: Any, order: str = "C") -> np.ndarray:
    """Return an array in another shape. Raises TypeError if the elements would have to be copied."""
    try:
        return array.reshape(*shape, order=order, copy=False)  # type: ignore[call-overload, no-any-return]
    except ValueError as error:
        if "copy" not in str(error):
            raise
    raise TypeError(
        f"{call} of an array of shape {tuple(array.shape)} and strides {array.strides} needs a copy, which would not be on the symmetric "
        f"heap; use copy_to_host().{call}"
    )


def _exported(array: Any, device: tuple[int, int], asked: Any, copy: bool | None) -> Any:
    """Return the capsule of __dlpack__. asked: the device that the reader requests."""
    if copy:
        raise BufferError("__dlpack__ does not copy a symmetric array; copy the result of from_dlpack")
    if asked is not None and tuple(asked) != device:
        raise BufferError(f"the array is on DLPack's device {device}, not {tuple(asked)}")
    data = array.__cuda_array_interface__["data"][0]
    return dlpack.capsule(data, tuple(array.shape), tuple(array.strides), array.dtype, device)


if SIMULATOR:

    class SymmetricArray(_OnHeap):  # noqa: D101
        __doc__ = _OnHeap.__doc__

        def __init__(self, ary: Any, stream: Any = 0, block: HeapBlock | None = None) -> None:
            self._host, self._block, self.stream = ary, block, stream

        @property
        def _ary(self) -> Any:
            if self._block is not None:
                _refuse_freed(self._block)
            return self._host

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            interface = self._ary.__array_interface__
            return {
                "shape": tuple(self.shape),
                "typestr": interface["typestr"],
                "data": interface["data"],
                "strides": interface["strides"],
                "version": 3,
            }

        if not TYPE_CHECKING:  # Otherwise, every name would exist for type checkers.

            def __getattr__(self, name: str) -> Any:
                # NumPy's interfaces have no names for the dtypes of ml_dtypes. Without them, np.asarray() calls __array__().
                if name in ("__array_interface__", "__array_struct__") and self._ary.dtype.isbuiltin == 2:
                    raise AttributeError(name)
                return super().__getattr__(name)

        def _view(self, ary: np.ndarray) -> "SymmetricArray":
            return SymmetricArray(ary, self.stream, self._block)

        def __getitem__(self, idx: Any) -> Any:
            """Return an element or a view, or NumPy's copy for an array or list of subscripts, which a GPU's arrays reject."""
            ary = self._ary
            item = ary[idx]
            if not isinstance(item, np.ndarray) or (item.size and not np.may_share_memory(item, ary)):
                return item
            return self._view(item)

        def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
            """Copy from an array of the same shape and dtype, on the host or a GPU."""
            _check_source(self, ary)
            super().copy_to_device(ary, stream)

        def reshape(self, *shape: Any, order: str = "C") -> "SymmetricArray":
            """Return a view with another shape; a TypeError if that needs a copy."""
            return self._view(_uncopied(self._ary, "reshape()", *shape, order=order))

        def view(self, dtype: Any) -> "SymmetricArray":
            """Return a view with another dtype."""
            return self._view(self._ary.view(dtype))

        def ravel(self, order: str = "C") -> "SymmetricArray":
            """Return a flat view; a TypeError if that needs a copy."""
            return self._view(_uncopied(self._ary, "ravel()", -1, order=order))

        def squeeze(self, axis: Any = None) -> "SymmetricArray":
            """Return a view without axes of length 1."""
            return self._view(self._ary.squeeze(axis))

        def transpose(self, *axes: Any) -> "SymmetricArray":
            """Return a view with permuted axes."""
            return self._view(self._ary.transpose(*axes))

        def bind(self, stream: Any = 0) -> "SymmetricArray":
            """Return the same array with another default stream."""
            return SymmetricArray(self._ary, stream, self._block)

        def __dlpack_device__(self) -> tuple[int, int]:
            """Return DLPack's device: the CPU in the simulator, else the GPU of this PE."""
            return dlpack.CPU, 0

        def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
            """Return a DLPack capsule: the reader shares the memory. It must not use it after pgas.free, which does not wait for readers.

            Args:
                stream: ignored.
                max_version: ignored, the capsule is of version 0.
                dl_device, copy: only the array's own device, and no copy.

            Raises:
                HeapError: if the array was freed.
                BufferError: if DLPack has no such elements, or a copy or another device is asked for.
            """
            return _exported(self, self.__dlpack_device__(), dl_device, copy)

    def at(
        address: int, shape: tuple[int, ...], dtype: np.dtype, block: HeapBlock, strides: tuple[int, ...] | None = None
    ) -> "SymmetricArray":
        """Return the array whose first element is at an address of the window; in C order if strides are not given."""
        steps = strides or _c_strides(shape, dtype)
        extents = [stride * (n - 1) for n, stride in zip(shape, steps, strict=True)] if math.prod(shape) else []
        below = -sum(e for e in extents if e < 0)
        nbytes = below + sum(e for e in extents if e > 0) + dtype.itemsize
        memory = (ctypes.c_byte * nbytes).from_address(address - below)
        host: np.ndarray = np.ndarray(shape, dtype, memory, below, strides)  # type: ignore[arg-type]
        return SymmetricArray(host, block=block)

    def block_of(array: Any) -> HeapBlock | None:
        """Return the block that a symmetric array or view lies in, None for other objects."""
        return array._block if isinstance(array, SymmetricArray) else None

else:
    from cuda.core import Device
    from numpy.lib.stride_tricks import as_strided

    from pgas.job.paths.gpu_streams import wait_for_default
    from pgas.kernels.compiler import compiler

    _Method = TypeVar("_Method", bound=Callable[..., Any])

    def _checked(method: _Method) -> _Method:
        """Wrap a method that makes a view, because Numba's own does not detect a freed block, and may return a plain array."""

        @functools.wraps(method)
        def view(self: Any, *args: Any, **kwargs: Any) -> Any:
            if (block := block_of(self)) is not None:
                _refuse_freed(block)
            made = method(self, *args, **kwargs)
            return made if isinstance(made, type(self)) else type(self)(made.shape, made.strides, made.dtype, made.stream, made.gpu_data)

        return view  # type: ignore[return-value]

    #: Maximum number of views that an array keeps.
    _MOST_VIEWS = 64

    def _key(item: Any) -> Any:
        """Return what identifies a subscript of Python integers and slices of them; None for other subscripts."""
        kind = type(item)
        if kind is slice:
            parts = item.start, item.stop, item.step
            return (slice, *parts) if {*map(type, parts)} <= _IN_SLICES else None
        if kind is tuple:
            keys = tuple(map(_key, item))
            return None if None in keys else keys
        return item if kind is int else None

    _IN_SLICES = {int, type(None)}

    #: Types of subscripts of Numba's arrays.
    _SUBSCRIPTS = (int, np.integer, slice)

    def _bits(mine: Any, other: Any) -> tuple[Any, Any]:
        """View arrays as unsigned integers if Python's buffers have no name for their dtype, such as ml_dtypes' bfloat16."""
        if mine.dtype.isbuiltin != 2 or other.dtype != mine.dtype:
            return mine, other
        integer = f"u{mine.dtype.itemsize}"
        return mine.view(integer), other.view(integer)

    class SymmetricArray(_OnHeap):  # type: ignore[no-redef]  # noqa: D101
        __doc__ = _OnHeap.__doc__

        _block: HeapBlock | None = None

        def __getitem__(self, item: Any) -> Any:
            """Return an element or a view. A view that was made before is returned again, so that calls with it are also repeated ones."""
            key = _key(item)
            if key is None:
                return self._viewed(item)
            views = self.__dict__.setdefault("_pgas_views", {})
            if (view := views.get(key)) is not None and view.stream is self.stream:
                if (block := block_of(self)) is not None:
                    _refuse_freed(block)
                return view
            view = self._viewed(item)
            if isinstance(view, SymmetricArray):
                if len(views) >= _MOST_VIEWS:
                    views.clear()
                views[key] = view
            return view

        def _viewed(self, item: Any) -> Any:
            if self.size or not all(isinstance(i, _SUBSCRIPTS) for i in (item if isinstance(item, tuple) else (item,))):
                view = super().__getitem__(item)
                if not isinstance(view, SymmetricArray) or view.size:
                    return view
                shape = view.shape
            else:
                shape = np.empty(self.shape, self.dtype)[item].shape
            return self._with_layout(shape, _c_strides(shape, self.dtype))

        def __setitem__(self, item: Any, value: Any) -> None:
            if self.size:
                super().__setitem__(item, value)
            else:
                np.empty(self._viewed(item).shape)[...] = np.empty(np.shape(value))  # Raises NumPy's error if it does not fit.

        view, squeeze = _checked(_DeviceArray.view), _checked(_DeviceArray.squeeze)

        def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
            """Copy from an array of the same shape and dtype, on the host or a GPU."""
            _check_source(self, ary)
            mine, theirs = _bits(self, ary)
            _DeviceArray.copy_to_device(mine, theirs, stream)

        def copy_to_host(self, ary: Any = None, stream: Any = 0) -> np.ndarray:
            """Return a copy on the host, in ary if it is given; ary has the same shape and dtype."""
            if ary is None:
                return super().copy_to_host(None, stream)
            mine, theirs = _bits(self, ary)
            _DeviceArray.copy_to_host(mine, theirs, stream)
            return ary

        def bind(self, stream: Any = 0) -> "SymmetricArray":
            """Return the same array with another default stream."""
            bound = type(self).__new__(type(self))  # Not Numba's bind(), because it uses copy.copy(), which raises an error here.
            bound.__dict__.update(self.__dict__, stream=stream)
            bound.__dict__.pop("_pgas_views", None)
            return bound

        def _with_layout(self, shape: Any, strides: Any) -> "SymmetricArray":
            if (block := block_of(self)) is not None:
                _refuse_freed(block)
            made = type(self)(shape, strides, self.dtype, self.stream, self.gpu_data)  # type: ignore[call-arg, arg-type]
            made.gpu_data = self.gpu_data  # Numba gives empty arrays a null pointer, but empty symmetric arrays also have addresses.
            return made

        def _like(self) -> np.ndarray:
            """Return an array of NumPy with the same shape and strides. It needs no memory, because it is never read."""
            return as_strided(np.empty(0, self.dtype), self.shape, self.strides)

        def _reshaped(self, call: str, *shape: Any, order: str) -> "SymmetricArray":
            made = _uncopied(self._like(), call, *shape, order=order)
            return self._with_layout(made.shape, made.strides)

        def reshape(self, *shape: Any, order: str = "C") -> "SymmetricArray":
            """Return a view with another shape; a TypeError if that needs a copy. Numba's own permutes elements of arrays in F order."""
            return self._reshaped("reshape()", *shape, order=order)

        def ravel(self, order: str = "C") -> "SymmetricArray":
            """Return a flat view; a TypeError if that needs a copy."""
            return self._reshaped("ravel()", -1, order=order)

        def transpose(self, *axes: Any) -> "SymmetricArray":
            """Return a view with permuted axes. Numba's own method returns a copy, which is not on the heap."""
            made = self._like().transpose(*axes)
            return self._with_layout(made.shape, made.strides)

        def __dlpack_device__(self) -> tuple[int, int]:
            """Return DLPack's device: the CPU in the simulator, else the GPU of this PE."""
            compiler.enter_device()
            return dlpack.CUDA, int(Device().device_id)

        def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
            """Return a DLPack capsule: the reader shares the memory. It must not use it after pgas.free, which does not wait for readers.

            Args:
                stream: the reader's stream, which then waits for the default stream; None or 1: the default stream; -1: no wait.
                max_version: ignored, the capsule is of version 0.
                dl_device, copy: only the array's own device, and no copy.

            Raises:
                HeapError: if the array was freed.
                BufferError: if DLPack has no such elements, or a copy or another device is asked for.
            """
            device = self.__dlpack_device__()  # In a new thread, this makes the GPU current.
            if stream not in (None, -1, 1):
                wait_for_default(stream)
            return _exported(self, device, dl_device, copy)

    def at(
        address: int, shape: tuple[int, ...], dtype: np.dtype, block: HeapBlock, strides: tuple[int, ...] | None = None
    ) -> SymmetricArray:
        """Return the array whose first element is at an address of the window; in C order if strides are not given."""
        strides = strides or _c_strides(shape, dtype)
        pointer = compiler.checked_memory(address, block.nbytes, block, _refuse_freed)
        array = SymmetricArray(shape, strides, dtype, gpu_data=pointer)  # type: ignore[call-arg, arg-type]
        array.gpu_data = pointer  # as in _with_layout()
        array._block = block
        return array

    def block_of(array: Any) -> HeapBlock | None:
        """Return the block that a symmetric array or view lies in, None for other objects."""
        if not isinstance(array, SymmetricArray):
            return None
        return array._block or getattr(array.gpu_data, "block", None)
