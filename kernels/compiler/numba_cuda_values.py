"""Values that numba-cuda does not support by itself: float8 elements, a program's IntEnum and IntFlag, integers with their own str().

IntEnum and IntFlag are integers, as in the simulator. Numba's own types of their members cannot be an index, or an operand of an atomic.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.cudadecl import registry as declarations
from numba.cuda.cudaimpl import registry as implementations
from numba.cuda.extending import models, register_model
from numba.cuda.target import CUDATargetContext
from numba.cuda.typing import enumdecl
from numba.cuda.typing.typeof import typeof_impl

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


def _is_integer(kind: type) -> bool:
    """Whether members of an enumeration are integers: those of a program, but not pgas's constants, whose kinds are checked."""
    return issubclass(kind, int) and not kind.__module__.startswith("pgas.")


def _typeof_member(value: Any, context: Any) -> Any:
    return types.int64 if _is_integer(type(value)) else typeof_impl(type(value), context).member_type


for _kind in (enum.Enum, enum.IntEnum, enum.IntFlag):
    typeof_impl.register(_kind)(_typeof_member)


def _resolve_member(_: Any, enumeration: Any, name: str) -> Any:
    if name in enumeration.instance_class.__members__:
        return types.int64 if _is_integer(enumeration.instance_class) else enumeration.member_type
    return None


def _resolve_item(_: Any, args: Any, kws: Any) -> Any:
    enumeration, name = args
    if isinstance(enumeration, types.EnumClass) and (member := _resolve_member(None, enumeration, name)) is not None:
        return enumdecl.signature(member, *args)
    return None


enumdecl.EnumClassAttribute.generic_resolve = _resolve_member
enumdecl.EnumClassStaticGetItem.generic = _resolve_item


@declarations.register_attr
class _IntegerValue(enumdecl.AttributeTemplate):  # type: ignore[misc, no-any-unimported]
    """``E.A.value`` of an enumeration whose members are integers."""

    key = types.Integer

    def resolve_value(self, integer: Any) -> Any:
        return integer


@implementations.lower_getattr(types.Integer, "value")
def _value(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return value
