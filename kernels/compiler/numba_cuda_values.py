"""Values that numba-cuda does not support by itself: elements of float8 types, and integers with their own str() as constants."""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import models, register_model
from numba.cuda.target import CUDATargetContext

from pgas.native.dtypes import Float8


@register_model(Float8)
class _Float8Model(models.PrimitiveModel):  # type: ignore[misc, no-any-unimported]
    """Eight bits in registers and in memory."""

    def __init__(self, manager: Any, float8: Any) -> None:
        super().__init__(manager, float8, ir.IntType(8))


def _of_plain_integers(constant: Callable[..., Any]) -> Callable[..., Any]:
    """Convert constants to integers first, because llvmlite writes their str() into code, which for a team is a text for people."""

    @functools.wraps(constant)
    def of_plain_integers(context: Any, builder: Any, kind: Any, value: Any) -> Any:
        return constant(context, builder, kind, int(value) if isinstance(kind, types.Integer) else value)

    return of_plain_integers


CUDATargetContext.get_constant_generic = _of_plain_integers(CUDATargetContext.get_constant_generic)
