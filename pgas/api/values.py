"""Checks of numbers in host calls: whether an element can hold a value, and whether an op or a cmp exists."""

import functools
from enum import IntEnum
from typing import Any

import numpy as np

from pgas.base.parameters import is_integer
from pgas.kernels import refusals
from pgas.kernels.codes import CONSTANTS

__all__ = ["bounds", "check_code", "check_value"]


def check_value(function: str, name: str, value: Any, dtype: np.dtype, *, integral: bool = False) -> None:
    """Check that an element of a dtype can hold a value. Kernels convert other values, floats to integers toward zero.

    integral: whether only integers are allowed.

    Raises:
        TypeError: value is not a number but, for example, pgas.SIGNAL_ADD; is complex for a real element; or is not an integer although
            only integers are allowed.
        ValueError: value is out of the range of an integer dtype.
    """
    if type(value) is int and dtype.kind in "iu":
        low, high = bounds(dtype)
        if low <= value <= high:
            return
    if type(value) in CONSTANTS:  # For example, op and value are exchanged.
        raise TypeError(f"pgas.{function}: {name} must be a number, not {_shown(value)}")
    if integral and not is_integer(value):
        raise TypeError(refusals.message("no integer", function=function, name=name, found=_shown(value)))
    if not isinstance(value, (int, float, complex, np.number, np.bool, dtype.type)) or (np.iscomplexobj(value) and dtype.kind != "c"):
        raise TypeError(refusals.message("other value", function=function, name=name, value=f"of type {type(value).__name__}", dtype=dtype))
    if dtype.kind in "iu":
        low, high = bounds(dtype)
        number: Any = value.item() if isinstance(value, np.generic) else value
        if not low - 1 < number < high + 1:  # False for NaN.
            raise ValueError(f"pgas.{function}: {name} must be from {low} to {high}, the range of {dtype}, not {value}")


def check_code(function: str, name: str, code: Any, codes: type[IntEnum]) -> int:
    """Check that an op or cmp exists, and return it as an integer.

    Raises:
        ValueError: it does not exist.
    """
    other = type(code) in CONSTANTS and type(code) is not codes  # For example, pgas.SUM has the number of pgas.SIGNAL_SET.
    if other or not is_integer(code) or int(code) not in _numbers(codes):
        raise ValueError(
            refusals.message("no such code", who=f"pgas.{function}", name=name, allowed=refusals.choices(codes), wanted=_shown(code))
        )
    return int(code)


@functools.cache
def bounds(dtype: np.dtype) -> tuple[int, int]:
    """Return the minimum and the maximum value of an integer dtype."""
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


@functools.cache
def _numbers(codes: type[IntEnum]) -> frozenset[int]:
    return frozenset(int(code) for code in codes)


def _shown(value: Any) -> str:
    """Return a number as text, and the type's name for other values."""
    if type(value) in CONSTANTS:
        return CONSTANTS[type(value)]
    return f"{value}" if isinstance(value, (int, float, np.number)) else type(value).__name__
