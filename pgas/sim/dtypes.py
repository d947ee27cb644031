"""NumPy dtypes and the types that numba-cuda has for them, in the simulator and on GPUs alike."""

from typing import Any

import numpy as np
from numba.core.errors import NumbaError  # of numba-cuda, too
from numba.cuda import types
from numba.cuda.np import numpy_support

__all__ = ["element_size", "has_type", "numpy_dtype"]


def element_size(dtype: Any) -> int:
    """Return the size in bytes of an element of a scalar or record type."""
    return int(numpy_dtype(dtype).itemsize)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a scalar or record type; uint16 for bfloat16, which NumPy has not."""
    return np.dtype(np.uint16 if dtype == types.bfloat16 else numpy_support.as_dtype(dtype))


def has_type(dtype: Any) -> bool:
    """Whether kernels can have elements of this NumPy dtype."""
    try:
        numpy_support.from_dtype(dtype)
    except NumbaError:
        return False
    return True
