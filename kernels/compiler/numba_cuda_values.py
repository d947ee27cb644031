"""Values that numba-cuda does not know by itself: integers with a text of their own, such as teams, as constants."""

import functools
from collections.abc import Callable
from typing import Any

from numba.cuda import types
from numba.cuda.target import CUDATargetContext

__all__: list[str] = []


def _of_plain_integers(constant: Callable[..., Any]) -> Callable[..., Any]:
    """Make integers of constants first: llvmlite writes str() of them into code, which for a team is a text for people."""

    @functools.wraps(constant)
    def of_plain_integers(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        return constant(context, builder, kind, int(value) if isinstance(kind, types.Integer) else value)

    return of_plain_integers


CUDATargetContext.get_constant_generic = _of_plain_integers(CUDATargetContext.get_constant_generic)
