"""What kernels do, for a checker of programs: accesses to memory by their own code, and barriers. It costs nothing while nobody watches.

`install(watcher)` puts functions that tell the watcher in place of those by which kernels access arrays, and makes the engine tell it of
launches and barriers. Operations of pgas are told by `pgas.kernels.compiler.simulator.tap`.
"""

import sys
from collections.abc import Callable
from operator import index
from types import FrameType
from typing import Any, Protocol

import numpy as np
from numba.cuda.simulator import api
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from pgas.sim import cuda_module, engine
from pgas.sim.arrays import KernelArray, SharedArray, ndarray_of
from pgas.sim.scheduler import SimThread, ThreadWatcher

#: Kinds of access. SAME: a store of the value that is there.
LOAD, STORE, ATOMIC, SAME = range(4)


class KernelWatcher(ThreadWatcher, Protocol):
    """Receives what the threads of kernels do."""

    def accessed(self, kind: int, place: tuple[int, int], frame: FrameType, *, shared: bool) -> None:
        """The calling thread accesses an element.

        Args:
            kind: LOAD, STORE, ATOMIC, or SAME.
            place: its address and size.
            frame: the kernel's frame.
            shared: whether it is in the block's shared memory.
        """

    def fenced(self, scope: str) -> None:
        """The calling thread executes a fence of CUDA: "block", "gpu", or "sys"."""

    def host_accessed(self, kind: int, array: Any, frame: FrameType) -> None:
        """The host reads or writes all elements of a NumPy array in GPU memory."""

    def stream_awaited(self, stream: Any) -> None:
        """The host has waited for a stream."""

    def event_recorded(self, event: Any, stream: Any) -> None:
        """An event was recorded on a stream."""

    def event_awaited(self, event: Any, stream: Any | None) -> None:
        """A stream, or the host (None), waits for an event."""


def _place(array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...], int] | None:
    """Return the address, strides, shape, and size of an element of an array of a kernel; None for a record."""
    view = ndarray_of(array)
    if not isinstance(view, np.ndarray) or view.dtype.names is not None:
        return None
    found = int(view.__array_interface__["data"][0]), view.strides, view.shape, view.itemsize
    if type(array) is KernelArray:
        array.__dict__["_place"] = found
    return found


def element(array: Any, idx: Any) -> tuple[int, int] | None:
    """Return the address and size of an element, None for other subscripts."""
    found = array.__dict__.get("_place") if type(array) is KernelArray else None
    if found is None and (found := _place(array)) is None:
        return None
    address, strides, shape, nbytes = found
    if type(idx) is not tuple:
        idx = (idx,)
    if len(idx) != len(shape):
        return None
    try:
        for i, stride, n in zip(idx, strides, shape):  # strict=True would take time
            at = index(i)
            address += (at if at >= 0 else at + n) * stride
    except TypeError:  # a slice
        return None
    return address, nbytes


def install(watcher: KernelWatcher) -> None:
    """Tell a watcher, for the rest of this process, what kernels do."""
    engine.set_watcher(watcher)
    _of_elements(KernelArray, watcher, shared=False)
    _of_elements(SharedArray, watcher, shared=True)
    _of_cuda(watcher)
    _of_host_arrays(watcher)
    _of_streams(watcher)


def _of_elements(kind: Any, watcher: KernelWatcher, *, shared: bool) -> None:
    """Tell a watcher which elements of arrays of a class are loaded and stored."""
    get, put, element_of = kind.__getitem__, kind.__setitem__, np.ndarray.__getitem__

    def load(array: Any, idx: Any) -> Any:
        if (at := element(array, idx)) is not None:
            watcher.accessed(LOAD, at, sys._getframe(1), shared=shared)
        return get(array, idx)

    def store(array: Any, idx: Any, value: Any) -> None:
        if (at := element(array, idx)) is None:
            put(array, idx, value)
            return
        view = ndarray_of(array)
        before = element_of(view, idx)
        put(array, idx, value)
        after = element_of(view, idx)
        same = (before == after or before != before) and before.tobytes() == after.tobytes()  # The second: it is not a number.
        watcher.accessed(SAME if same else STORE, at, sys._getframe(1), shared=shared)

    kind.__getitem__, kind.__setitem__ = load, store


def _of_cuda(watcher: KernelWatcher) -> None:
    module, atomics = cuda_module.KERNEL_MODULE, cuda_module.KERNEL_MODULE._atomic
    for name in cuda_module._ATOMICS:
        setattr(atomics, name, _atomic(watcher, getattr(atomics, name), takes_index=name != "compare_and_swap"))
    for name in cuda_module.CACHE_HINTS:
        setattr(module, name, _hinted(watcher, getattr(module, name), LOAD if name.startswith("ld") else STORE))
    for name, scope in (("threadfence_block", "block"), ("threadfence", "gpu"), ("threadfence_system", "sys")):
        setattr(module, name, _fence(watcher, getattr(module, name), scope))


def _atomic(watcher: KernelWatcher, operation: Any, *, takes_index: bool) -> Any:
    def atomic(array: Any, *args: Any) -> Any:
        if (at := element(array, args[0] if takes_index else 0)) is not None:
            watcher.accessed(ATOMIC, at, sys._getframe(1), shared=isinstance(array, SharedArray))
        return operation(array, *args)

    return atomic


def _hinted(watcher: KernelWatcher, operation: Any, kind: int) -> Any:
    def hinted(array: Any, idx: Any, *value: Any) -> Any:
        if (at := element(array, idx)) is not None:
            watcher.accessed(kind, at, sys._getframe(1), shared=isinstance(array, SharedArray))
        return operation(array, idx, *value)

    return hinted


def _fence(watcher: KernelWatcher, operation: Any, scope: str) -> Any:
    def fence() -> None:
        operation()
        watcher.fenced(scope)

    return fence


def _of_host_arrays(watcher: KernelWatcher) -> None:
    _tap_array(FakeCUDAArray, "copy_to_host", watcher, LOAD, lambda array, *_: array)
    _tap_array(FakeCUDAArray, "copy_to_device", watcher, STORE, lambda array, *_: array)
    _tap_array(FakeCUDAArray, "__setitem__", watcher, STORE, lambda array, _, idx, value: _part(array, idx))
    host_elements(FakeCUDAArray, watcher)


def host_elements(kind: type, watcher: KernelWatcher) -> None:
    """Tell a watcher which elements the host reads from arrays of a class with a __getitem__() of its own."""

    def of_element(array: Any, result: Any, idx: Any) -> Any:
        return None if isinstance(result, (FakeCUDAArray, np.ndarray)) else _part(array, idx)

    _tap_array(kind, "__getitem__", watcher, LOAD, of_element)


def _tap_array(kind: type, name: str, watcher: KernelWatcher, access: int, touched: Callable[..., Any]) -> None:
    original = getattr(kind, name)

    def tapped(array: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(array, *args, **kwargs)
        if (part := touched(array._ary, result, *args)) is not None:
            watcher.host_accessed(access, part, sys._getframe(1))
        return result

    setattr(kind, name, tapped)


def _part(array: Any, idx: Any) -> Any:
    """Return a view of the elements with a subscript, also of a single one."""
    return array[(*(idx if type(idx) is tuple else (idx,)), np.newaxis)] if isinstance(array, np.ndarray) else None


def _of_streams(watcher: KernelWatcher) -> None:
    def tap(kind: Any, name: str, tell: Callable[..., None]) -> None:
        original = getattr(kind, name)

        def tapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            tell(self, *args, **kwargs)
            return result

        setattr(kind, name, tapped)

    tap(api.stream, "synchronize", lambda self: watcher.stream_awaited(self))
    tap(api.Event, "record", lambda self, stream=0: watcher.event_recorded(self, stream))
    tap(api.Event, "wait", lambda self, stream=0: watcher.event_awaited(self, stream))
    tap(api.Event, "synchronize", lambda self: watcher.event_awaited(self, None))


def thread() -> SimThread:
    """Return the CUDA thread that is calling."""
    return engine.worker().thread
