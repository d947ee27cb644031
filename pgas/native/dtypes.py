"""NumPy dtypes and the types that numba-cuda has for them, both in the simulator and on GPUs."""

from typing import Any

import numpy as np
from numba.core.errors import NumbaError  # Also the base class of numba-cuda's errors.
from numba.cuda import types
from numba.cuda.np import numpy_support

#: Message about every use of a float8 element in a kernel except a copy.
ONLY_COPIED = (
    "kernels can copy elements of type {} to arrays of the same type, but not compute with them or convert them; "
    "array.view(np.uint8) has their bits"
)


class Float8(types.Type):  # type: ignore[misc, no-any-unimported]
    """A float8 type of ml_dtypes, named like its dtype. It is not a Number, so that the compiler has no operator and no cast for it."""

    bitwidth = 8  # Numba reads it for arrays in records, before it rejects them like those of other elements that it lacks.


#: Types of float8 elements, by dtype. numba-cuda imports ml_dtypes for bfloat16; its ml_dtypes is None if that is not installed.
FLOAT8: dict[np.dtype[Any], Float8] = {
    np.dtype(getattr(numpy_support.ml_dtypes, name)): Float8(name) for name in dir(numpy_support.ml_dtypes) if name.startswith("float8_")
}
numpy_support.FROM_DTYPE.update(FLOAT8)


def is_float8(dtype: Any) -> bool:
    """Whether elements of this type, of NumPy or the compiler, are float8."""
    return isinstance(dtype, Float8) or dtype in FLOAT8


def element_size(dtype: Any) -> int:
    """Return the size in bytes of an element of a scalar or record type."""
    return int(numpy_dtype(dtype).itemsize)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a scalar or record type; uint16 for bfloat16, which NumPy lacks."""
    if isinstance(dtype, Float8):
        return np.dtype(dtype.name)  # Because ml_dtypes registers its names with NumPy.
    return np.dtype(np.uint16 if dtype == types.bfloat16 else numpy_support.as_dtype(dtype))


def has_type(dtype: Any) -> bool:
    """Whether kernels can have elements of this NumPy dtype."""
    try:
        numpy_support.from_dtype(dtype)
    except NumbaError:
        return False
    return True
