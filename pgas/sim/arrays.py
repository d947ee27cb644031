"""Arrays inside kernels. Their reads are counted, so that a loop that only reads lets the other threads run."""

import ctypes
from typing import Any

import numpy as np
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

from pgas.native.dtypes import FLOAT8
from pgas.sim import activity, engine
from pgas.sim.float8 import assigned, copied
from pgas.sim.integers import ELEMENTS, element, wrapped

#: The host's class for arrays in GPU memory.
DeviceArray = FakeCUDAArray

# A thread is preempted after this many element reads, so that `while flag[0] == 0: pass` ends. 64 reads take 10 us; a switch takes about
# 1 us.
_READS_PER_TURN = 64
#: Number of reads that an atomic counts as, so that a spin on compare-and-swap soon yields.
ATOMIC_READS = 16
_reads_left = _READS_PER_TURN


def count_read(weight: int = 1) -> None:
    """Account for an element read. After _READS_PER_TURN reads, let the other threads run."""
    global _reads_left
    _reads_left -= weight
    if _reads_left <= 0:
        _reads_left = _READS_PER_TURN
        engine.preempt()


def begin_turn() -> None:
    """Reset the count of reads, because the calling thread yields now."""
    global _reads_left
    _reads_left = _READS_PER_TURN


class KernelArray(FakeWithinKernelCUDAArray):  # type: ignore[misc]  # numba is untyped
    """An array argument inside a kernel. Records have attribute access, as Numba gives it; slices are by reference."""

    def __init__(self, item: Any) -> None:
        # The base class turns attribute stores into item stores.
        self.__dict__["_item"] = item
        self.__dict__["_ary"] = item._ary

    def __getattr__(self, name: str) -> Any:
        return _wrapped(super().__getattr__(name))

    def __getitem__(self, idx: Any) -> Any:
        value = self._ary[idx]
        if isinstance(value, np.ndarray):
            item = self._item[idx]  # Not from the data, because the wrapped class may have more state.
            return KernelArray(item) if isinstance(item, FakeCUDAArray) else item
        if isinstance(value, np.void):
            return KernelArray(FakeCUDAArray(value))  # A reference, because stores to its fields must go to the array.
        count_read()
        cls = ELEMENTS.get(type(value))  # This is element() without a call, which would take time.
        if cls is None:
            return value
        return copied(value) if cls.only_copied else int.__new__(cls, value)

    def __setitem__(self, idx: Any, value: Any) -> None:
        activity.stores += 1
        if isinstance(value, (FakeWithinKernelCUDAArray, FakeCUDAArray)):
            value = assigned(self._ary, ndarray_of(value))
        store(self._ary, idx, value)

    @property
    def shape(self) -> Any:
        """The shape. Like on a GPU, it has no negative indices."""
        return self._item.shape

    @property
    def size(self) -> int:
        return int(self._ary.size)

    @property
    def ndim(self) -> int:
        return int(self._ary.ndim)

    @property
    def dtype(self) -> Any:
        return self._ary.dtype

    def __repr__(self) -> str:
        return f"KernelArray({self._ary!r})"


class LocalArray(np.ndarray[Any, Any]):
    """Local memory or a constant: an ndarray whose elements are a kernel's numbers."""

    def __getitem__(self, idx: Any) -> Any:
        return element(super().__getitem__(idx))

    def __setitem__(self, idx: Any, value: Any) -> None:
        store(self.view(np.ndarray), idx, value)


class SharedArray(LocalArray):
    """Shared memory. Its element reads count like those of `KernelArray`."""

    def __getitem__(self, idx: Any) -> Any:
        value = super().__getitem__(idx)
        if not isinstance(value, np.ndarray):
            count_read()
        return value


def store(array: np.ndarray[Any, Any], idx: Any, value: Any) -> None:
    """Assign ``array[idx] = value``; integers wrap."""
    if array.dtype in FLOAT8:
        value = assigned(array, value)
    try:
        array[idx] = value
    except OverflowError:
        if not isinstance(value, (int, np.integer)):
            raise
        array[idx] = wrapped(int(value), array.dtype)


def ndarray_of(array: Any) -> Any:
    """Return the NumPy array (or record) behind an array of a kernel or of the host; other objects are returned unchanged."""
    if isinstance(array, FakeWithinKernelCUDAArray):
        array = array._item
    return array._ary if isinstance(array, FakeCUDAArray) else array


def is_array(value: Any) -> bool:
    """Whether a value is an array of kernels or of the host."""
    return isinstance(value, (FakeWithinKernelCUDAArray, FakeCUDAArray, np.ndarray))


class NullArray(KernelArray):
    """An array at address 0. Access to its elements would end the process."""

    def __getitem__(self, idx: Any) -> Any:
        raise IndexError("the array is at address 0, because the memory of its PE is not mapped here")

    def __setitem__(self, idx: Any, value: Any) -> None:
        self[idx]


def array_at(array: Any, addr: int) -> Any:
    """Return an array like ``array`` whose first element is at addr."""
    view = ndarray_of(array)
    memory = (ctypes.c_byte * max(view.nbytes, 1)).from_address(addr)
    like: np.ndarray[Any, Any] = np.ndarray(view.shape, view.dtype, memory, 0, view.strides)
    return (KernelArray if addr else NullArray)(FakeCUDAArray(like))


def _wrapped(value: Any) -> Any:
    if isinstance(value, FakeCUDAArray):
        return KernelArray(value)
    if type(value) is FakeWithinKernelCUDAArray:
        return KernelArray(value._item)
    return element(value)
