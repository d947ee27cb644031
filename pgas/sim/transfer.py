"""Pickles kernels of the simulator for another process, whose numba-cuda compiles them for GPUs.

Numba decides between simulator and GPU once per process, so a process of the simulator sends a kernel as bytes. cloudpickle writes the
code of functions and the globals that they use; the reducers here replace the simulator's objects by the GPU's (native/transferred.py).
"""

import importlib
import io
import pickle
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from numba.cuda import cloudpickle
from numba.cuda.simulator.kernel import FakeCUDAKernel

from pgas.native import transferred
from pgas.sim.arrays import is_array, ndarray_of
from pgas.sim.cuda_module import KERNEL_MODULE
from pgas.sim.typing import type_of


def types_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of arguments."""
    return tuple(type_of(a) for a in args)


def dumps(kernel: Any, types: tuple[Any, ...]) -> bytes:
    """Pickle the function of a simulator's kernel, and types, for a process that compiles for GPUs."""
    out = io.BytesIO()
    _Pickler(out).dump((kernel.fn, types))
    return out.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc, no-any-unimported]
    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if isinstance(obj, FakeCUDAKernel):
            return transferred.device_function, (obj.fn,)
        if obj is KERNEL_MODULE:
            return importlib.import_module, ("numba.cuda",)
        if (name := _name_in_cuda(obj)) is not None:
            return transferred.attribute, ("numba.cuda", name)
        if isinstance(obj, int) and kind.__module__ == "pgas.api.team":  # In kernels, a team is its number.
            return int, (int(obj),)
        if is_array(obj) and not isinstance(obj, np.ndarray):
            array = ndarray_of(obj)
            return transferred.TransferredArray, (array.shape, array.strides, array.dtype.str, array.ctypes.data)
        given = super().reducer_override(obj)
        by_name = isinstance(obj, (type, FunctionType, BuiltinFunctionType))
        if given is NotImplemented and not by_name and kind not in self.dispatch_table:
            try:
                obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            except TypeError:  # It cannot be pickled, like a lock or a file.
                return transferred.instance, (kind.__module__, kind.__qualname__)
        return given


def _name_in_cuda(obj: Any) -> str | None:
    """Return the name that an object of the simulator has in numba.cuda, such as syncthreads; None for others."""
    if getattr(obj, "__self__", None) is KERNEL_MODULE:
        return str(obj.__name__)
    return next((name for name, value in vars(KERNEL_MODULE).items() if value is obj), None)
