"""Array operands of host calls: their address, shape, and dtype, and the checks on them."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from pgas.base.errors import about
from pgas.job import runtime
from pgas.job.memory.array import SymmetricArray, block_of
from pgas.job.paths.platform import platform
from pgas.kernels import refusals, window

__all__ = ["Description", "Operand", "described", "on_heap"]


@dataclass(frozen=True, eq=False)
class Operand:
    """An array argument. A symmetric array keeps those that were made of it, for further calls."""

    function: str  #: Name of the function called
    name: str  #: Name of the argument
    address: int  #: Address of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, function: str, name: str, array: Any, *, contiguous: bool = True) -> "Operand":
        """Read an array's description.

        Raises:
            TypeError: array is not an array in GPU memory (in the simulator: nor a NumPy array).
            ValueError: array is not contiguous, but must be.
            HeapError: array is a symmetric array that was freed.
        """
        block = block_of(array)
        if block is not None and not block.freed and (kept := array.__dict__.get("_pgas_operands")) is not None:
            operand = kept.get((function, name))
            if operand is not None:
                return operand  # type: ignore[no-any-return]
        try:
            operand = cls._described(function, name, array)
        except Exception:
            with about(f"pgas.{function}: {name}"):  # The array was freed.
                raise
        if contiguous and operand.order is None:
            raise ValueError(f"pgas.{function}: {name} must be contiguous; copy it, or use slices without gaps, unlike a[::2] and a[:, 0]")
        if block is not None:  # Because symmetric arrays are never changed.
            array.__dict__.setdefault("_pgas_operands", {})[function, name] = operand
        return operand

    @classmethod
    def _described(cls, function: str, name: str, array: Any) -> "Operand":
        if (host := platform.host_array(array)) is not None:
            return cls(function, name, host.ctypes.data, tuple(host.shape), tuple(host.strides), host.dtype)
        if block_of(array) is not None:  # Because the interface takes ten times as long.
            address, dtype = array.device_ctypes_pointer.value or 0, array.dtype
            operand = cls(function, name, address, array.shape, array.strides, dtype)
            if array.ndim == 1 and array.size and array.strides[0] == dtype.itemsize:  # Set what is otherwise derived, which takes longer.
                operand.__dict__.update(size=array.size, order="C", extent=(address, address + array.size * dtype.itemsize))
            return operand
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            raise TypeError(f"pgas.{function}: {name} must be an array in the GPU's memory, not {type(array).__name__}")
        known = getattr(array, "dtype", None)  # The interface gives only the size of records.
        dtype = known if isinstance(known, np.dtype) else np.dtype(interface["typestr"])
        shape = tuple(interface["shape"])
        strides = tuple(interface.get("strides") or _strides(shape, dtype.itemsize))
        return cls(function, name, int(interface["data"][0]), shape, strides, dtype)

    @functools.cached_property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @functools.cached_property
    def order(self) -> str | None:
        """C or F, the order of its elements in memory, or None if it is not contiguous."""
        if self.strides == _strides(self.shape, self.dtype.itemsize):
            return "C"
        real = [(n, stride) for n, stride in zip(self.shape, self.strides, strict=True) if n != 1]
        for order, axes in (("C", real), ("F", real[::-1])):
            if not self.size or [s for _, s in axes] == list(_strides(tuple(n for n, _ in axes), self.dtype.itemsize)):
                return order
        return None

    @functools.cached_property
    def extent(self) -> tuple[int, int]:
        """Address of the first byte, and address just past the last byte."""
        if not self.size:
            return self.address, self.address
        reach = [stride * (n - 1) for n, stride in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(r for r in reach if r < 0)
        return low, self.address + sum(r for r in reach if r > 0) + self.dtype.itemsize

    def check_pair(self, source: "Operand") -> None:
        """Check that the bytes of a source can be copied here unchanged.

        Raises:
            TypeError: dtype, number of dimensions, or order differ.
        """
        if source.dtype is self.dtype and len(source.shape) == len(self.shape) == 1:
            return
        if source.dtype != self.dtype:
            self._refuse_pair("other dtype", source.dtype, self.dtype)
        if len(source.shape) != len(self.shape):
            self._refuse_pair("other dimensions", refusals.dimensions(len(source.shape)), refusals.dimensions(len(self.shape)))
        flat = sum(n != 1 for n in self.shape) < 2 or sum(n != 1 for n in source.shape) < 2
        if not flat and source.order != self.order:
            self._refuse_pair("other order", source.order, self.order)

    def _refuse_pair(self, row: str, source: Any, dest: Any) -> NoReturn:
        raise TypeError(refusals.message(row, function=self.function, source=source, dest=dest))

    def check_symmetric(self, job: runtime.Job) -> None:
        """Check that the operand is on this PE's symmetric heap.

        Raises:
            ValueError: it is not.
        """
        if self.size and not on_heap(job, *self.extent):  # An empty array has no address on GPUs.
            raise ValueError(
                f"pgas.{self.function}: {self.name} must be on the symmetric heap; allocate it with pgas.empty or a similar function"
            )

    def check_local(self, nbytes: int, job: runtime.Job, pe: int, *, adds: bool = False) -> None:
        """Check that the transport to PE pe can access a local operand.

        Args:
            nbytes: size of its used part in bytes.
            job: the job.
            pe: the PE at the other end.
            adds: whether a signal that adds follows the copy.

        Raises:
            ValueError: a NIC cannot access it.
        """
        start, end = self.address, self.address + nbytes
        by_nic = job.nic is not None and not job.stores_to(pe, adds=adds)
        if by_nic and nbytes and not on_heap(job, start, end) and not job.local.holds(start, end):
            raise ValueError(
                f"pgas.{self.function}: {self.name} is neither on the symmetric heap nor registered, so the NIC cannot access it; "
                "call pgas.register()"
            )


class Description(tuple[Any, ...]):
    """Address, shape, strides, and dtype of an array of another library, and whatever else decides whether a call accepts it."""


#: Functions that describe the arrays of other libraries, by class; None for other classes.
_describe: dict[type, Callable[[Any], tuple[Any, ...]] | None] = {}


def described(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with descriptions in place of the arrays of PyTorch, CuPy, and Numba; the same tuple if it has none.

    Calls with arrays of equal descriptions do the same. A description takes a tenth of the time of ``__cuda_array_interface__``.
    """
    for value in values:
        if _describing(value) is not None:
            return tuple([_description(value) for value in values])
    return values


def _description(value: Any) -> Any:
    describe = _describing(value)
    try:
        return value if describe is None else Description(describe(value))
    except Exception:  # Not narrower, because each library has its own for an array without an address, such as a sparse tensor.
        return value


def _describing(value: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return the function that describes arrays of a value's class."""
    try:
        return _describe[type(value)]
    except KeyError:
        return _describe.setdefault(type(value), _learned(value))


def _learned(value: Any) -> Callable[[Any], tuple[Any, ...]] | None:
    if not hasattr(type(value), "__cuda_array_interface__") or isinstance(value, SymmetricArray):
        return None
    if hasattr(value, "data_ptr"):  # Some releases of PyTorch reject tensors that require a gradient.
        return lambda t: (t.data_ptr(), t.shape, t.stride(), t.dtype, t.requires_grad, t.is_cuda)
    if hasattr(value, "device_ctypes_pointer"):
        return lambda array: (array.device_ctypes_pointer.value, array.shape, array.strides, array.dtype)
    if hasattr(getattr(value, "data", None), "ptr"):
        return lambda array: (array.data.ptr, array.shape, array.strides, array.dtype)
    return None


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def on_heap(job: runtime.Job, start: int, end: int) -> bool:
    """Whether memory is on this PE's symmetric heap."""
    heap = window.slot(job.my_pe) + window.HEAP_OFFSET
    return heap <= start and end <= heap + job.heap.size
