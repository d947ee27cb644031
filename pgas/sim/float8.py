"""Elements of float8 types in kernels. Like with Numba's compiler, kernels can copy them, but have neither operators nor casts for them."""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from pgas.native.dtypes import FLOAT8, ONLY_COPIED


def only_copied(dtype: Any) -> TypeError:
    """Return the error of a kernel that does more with elements of a float8 type than copy them."""
    return TypeError(ONLY_COPIED.format(dtype))


def _refusing(dtype: np.dtype[Any]) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise only_copied(dtype)

    return refuse


class Element:
    """An element that a kernel has read; there is one class for each dtype."""

    __slots__ = ("scalar",)
    scalar: Any  #: the element as a scalar of ml_dtypes
    only_copied = True
    __array_ufunc__ = None  # So that NumPy's numbers leave operators to this class.
    dtype: np.dtype[Any]

    def __new__(cls, value: Any = None) -> Any:
        """Reject a cast."""
        raise only_copied(cls.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}({self.scalar})"


_METHODS = """
    add sub mul truediv floordiv mod divmod pow lshift rshift and or xor radd rsub rmul rtruediv rfloordiv rmod rdivmod rpow rlshift rrshift
    rand ror rxor neg pos abs invert eq ne lt le gt ge bool int float complex index round trunc floor ceil array str format hash
    """.split()  # noqa: SIM905


def _class(dtype: np.dtype[Any]) -> type[Element]:
    refuse = _refusing(dtype)
    methods = {f"__{name}__": refuse for name in _METHODS}
    return type(dtype.name, (Element,), {"__slots__": (), "__module__": __name__, "dtype": dtype, **methods})


#: Classes of elements in kernels, by the type of the elements in ml_dtypes.
COPIED: dict[type, type[Element]] = {dtype.type: _class(dtype) for dtype in FLOAT8}


def copied(value: Any) -> Element:
    """Return the kernel's value for an element of ml_dtypes."""
    element = object.__new__(COPIED[type(value)])
    element.scalar = value
    return element


def assigned(array: np.ndarray[Any, Any], value: Any) -> Any:
    """Return what NumPy assigns when a kernel assigns a value or an array to elements of an array.

    Raises:
        TypeError: if one of them is float8, and the other is not of the same type.
    """
    theirs = value.dtype if isinstance(value, (np.ndarray, Element)) else None
    mine = array.dtype
    if theirs != mine and (mine in FLOAT8 or theirs in FLOAT8):
        raise only_copied(mine if mine in FLOAT8 else theirs)
    return value.scalar if isinstance(value, Element) else value
