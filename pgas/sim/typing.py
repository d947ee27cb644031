"""Types of values in the simulator, with numba-cuda's names, so that typing functions get the same types as on a GPU."""

import enum
from types import ModuleType
from typing import Any

import numba.cuda
import numpy as np
from numba.cuda import types
from numba.cuda.np import numpy_support

from pgas.sim.arrays import is_array, ndarray_of
from pgas.sim.float8 import Element
from pgas.sim.integers import Integer

__all__ = ["cuda", "type_of", "types"]

cuda = numba.cuda

_SCALARS = ((bool, types.boolean), (int, types.int64), (float, types.float64), (complex, types.complex128))


def type_of(value: Any) -> Any:
    """Return the type of an operand."""
    if value is None:
        return types.none
    if isinstance(value, tuple):
        return types.Tuple([type_of(v) for v in value])
    if is_array(value):
        array = ndarray_of(value)
        layout = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A"
        return types.Array(numpy_support.from_dtype(array.dtype), array.ndim, layout, aligned=array.flags.aligned)
    if isinstance(value, enum.IntEnum) and type(value).__module__.startswith("pgas."):  # Those of a program are integers.
        return types.IntEnumMember(type(value), types.int64)
    if isinstance(value, (np.generic, Integer, Element)):
        return numpy_support.from_dtype(value.dtype)
    if isinstance(value, str):  # In a kernel, every string is a constant.
        return types.StringLiteral(value)
    if isinstance(value, ModuleType):
        return types.Module(value)
    return next((type_ for python, type_ in _SCALARS if isinstance(value, python)), types.pyobject)
