"""Numbers that a call on the host is given: whether an element can hold them, and whether an op or a cmp exists."""

from enum import IntEnum
from typing import Any

import numpy as np

from pgas.kernels import refusals

__all__ = ["check_code", "check_value"]


def check_value(function: str, name: str, value: Any, dtype: np.dtype, *, integral: bool = False) -> None:
    """Refuse a value that an element of a dtype cannot hold. One that it can is converted as in a kernel: floats to integers toward zero.

    integral: only integers are values.

    Raises:
        TypeError: it is no number, or complex where the element is not; or no integer where only those are values.
        ValueError: the element is an integer, and the value is beyond its range.
    """
    if integral and (not isinstance(value, (int, np.integer)) or isinstance(value, bool)):
        raise TypeError(refusals.words("no integer", function=function, name=name, found=_shown(value)))
    if not isinstance(value, (int, float, complex, np.number, np.bool, dtype.type)) or (np.iscomplexobj(value) and dtype.kind in "biuf"):
        raise TypeError(refusals.words("other value", function=function, name=name, value=type(value).__name__, dtype=dtype))
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        number: Any = value.item() if isinstance(value, np.generic) else value
        if not low - 1 < number < high + 1:  # as nan is not
            raise ValueError(f"pgas.{function}: {name} must be {low} to {high}, which an element of type {dtype} can hold, not {value}")


def check_code(function: str, name: str, code: Any, codes: type[IntEnum]) -> int:
    """Refuse an op or a cmp that does not exist, and return it as an integer.

    Raises:
        ValueError: it does not.
    """
    if not isinstance(code, (int, np.integer)) or isinstance(code, bool) or code not in list(codes):
        raise ValueError(
            refusals.words("no such code", who=f"pgas.{function}", name=name, allowed=refusals.choices(codes), wanted=_shown(code))
        )
    return int(code)


def _shown(value: Any) -> str:
    """Return a number, else what it is: of an array nobody wants to see the elements."""
    return f"{value}" if isinstance(value, (int, float, np.number)) else type(value).__name__
