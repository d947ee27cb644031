"""What numba.cuda has for the host and numba-cuda's simulator lacks, or has with other parameters: functions, and attributes of the device.

Work is executed immediately, so that events only keep the time. ``install()`` adds all of it to numba.cuda.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numba.cuda
import numpy as np
from numba.cuda.simulator import api
from numba.cuda.simulator.cudadrv import devicearray, devices
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

from pgas.base import model
from pgas.sim.arrays import ndarray_of

__all__ = ["FUNCTIONS", "install"]

#: The status of a callback: CUDA_SUCCESS.
_SUCCESS = 0


def _begin(self: Any, timing: bool = True) -> None:
    self.timing, self.at = timing, None


def _record(self: Any, stream: Any = 0) -> None:
    self.at = time.perf_counter()


def event_elapsed_time(evtstart: Any, evtend: Any) -> float:
    """Return the milliseconds between two events: the interpreter's time, not that of hardware."""
    if not (evtstart.timing and evtend.timing and evtstart.at is not None and evtend.at is not None):
        raise RuntimeError("event_elapsed_time: both events must be made with timing=True and recorded")
    return float(1e3 * (evtend.at - evtstart.at))


def _add_callback(self: Any, callback: Callable[[Any, int, Any], None], arg: Any = None) -> None:
    callback(self, _SUCCESS, arg)


async def _async_done(self: Any) -> Any:
    await asyncio.sleep(0)
    return self


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0) -> Any:
    """Return an array in GPU memory."""
    return FakeCUDAArray(np.ndarray(shape, dtype, strides=strides, order=order), stream=stream)


def mapped_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0, portable: bool = False, wc: bool = False
) -> Any:
    """Return an array of the host that kernels can access."""
    return device_array(shape, dtype, strides, order, stream)


def mapped_array_like(ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False) -> Any:
    """Return such an array with the shape, dtype, and order of another."""
    return devicearray.device_array_like(ary, stream)


def managed_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0, attach_global: bool = True
) -> Any:
    """Return an array in managed memory."""
    return devicearray.managed_array(shape, dtype, strides, order)


@contextlib.contextmanager
def pinned(*arylist: Any) -> Iterator[None]:
    """Do nothing: memory need not be pinned."""
    yield


@contextlib.contextmanager
def mapped(*arylist: Any, **kws: Any) -> Iterator[Any]:
    """Return arrays of the host as arrays that kernels can access: one, or a list."""
    found = [FakeCUDAArray(ary) for ary in arylist]
    yield found[0] if len(found) == 1 else found


def is_cuda_array(obj: Any) -> bool:
    """Whether an object is an array in GPU memory."""
    return isinstance(obj, FakeCUDAArray) or hasattr(obj, "__cuda_array_interface__")


class _Holder:
    """Memory of another object, which it keeps alive, for numpy.asarray()."""

    def __init__(self, owner: Any, interface: Any) -> None:
        self._owner = owner
        self.__array_interface__ = {key: interface[key] for key in ("shape", "typestr", "data", "strides") if key in interface} | {
            "version": 3
        }


def as_cuda_array(obj: Any, sync: bool = True) -> Any:
    """Return the memory of an object with ``__cuda_array_interface__`` as an array of Numba, without a copy."""
    if isinstance(obj, FakeCUDAArray):
        return FakeCUDAArray(ndarray_of(obj))
    if (interface := getattr(obj, "__cuda_array_interface__", None)) is None:
        raise TypeError("*obj* doesn't implement the cuda array interface.")  # This is numba-cuda's message.
    return FakeCUDAArray(np.asarray(_Holder(obj, interface)))


def select_device(device_id: int) -> Any:
    """Make the GPU current; there is one."""
    return devices.select_device(device_id)


def profile_start() -> None:
    """Do nothing."""


def profile_stop() -> None:
    """Do nothing."""


@contextlib.contextmanager
def profiling() -> Iterator[None]:
    """Do nothing."""
    yield


FUNCTIONS = (
    event_elapsed_time, device_array, mapped_array, mapped_array_like, managed_array, pinned, mapped, is_cuda_array, as_cuda_array,
    select_device, profile_start, profile_stop, profiling,
)  # fmt: skip


class _Handle(int):
    """The handle of a stream; some releases of numba-cuda give it as an int, others with the attribute value."""

    value = 0


def _attribute(self: Any, name: str) -> Any:
    """Return an attribute of the device. Others than those of the model are unknown."""
    try:
        return model.ATTRIBUTES[name]
    except KeyError:
        raise AttributeError(f"the simulator's device has no attribute {name!r}; it has {', '.join(model.ATTRIBUTES)}") from None


def _memory(self: Any) -> Any:
    page = os.sysconf("SC_PAGE_SIZE")
    return devices._MemoryInfo(os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page)


def _install_device() -> None:
    """Let the device have the attributes of an H100, and the context those of the device."""
    device, context = devices.FakeCUDADevice, devices.FakeCUDAContext
    device.id, device.name, device.compute_capability = 0, f"{model.NAME} (simulator)", model.COMPUTE_CAPABILITY
    device.__getattr__ = _attribute
    context.compute_capability, context.get_memory_info = model.COMPUTE_CAPABILITY, _memory
    context.__getattr__ = lambda self, name: getattr(self.device, name)


def install() -> None:
    """Add the functions to numba.cuda, and what streams, events, and the device lack to their classes."""
    _install_device()
    event, stream = api.Event, api.stream
    event.__init__, event.record, event.query, event.elapsed_time = _begin, _record, lambda self: True, event_elapsed_time
    stream.add_callback, stream.async_done, stream.handle = _add_callback, _async_done, _Handle()
    modules: tuple[ModuleType, ...] = (numba.cuda, numba.cuda.simulator, api)
    for module in modules:
        for function in FUNCTIONS:
            setattr(module, function.__name__, function)
