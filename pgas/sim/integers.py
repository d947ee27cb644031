"""The numbers of kernels: each has the type that Numba's compiler gives it, and operators have Numba's results.

Numba computes integers in 64 bits. The result of two unsigned integers is unsigned, that of others is signed, and results wrap. Elements
and casts may be narrower. A literal is an int64 or a float64. The result of a float32 and an integer is a float64, or a float32 if the
integer is an int8, int16, or uint8.

NumPy's int64, float32 and float64 follow these rules among each other, so they are the kernel's types. NumPy's other integers and booleans
do not (int32 + int32 is an int32, uint64 + int64 a float64, True + True is True), so kernels have the classes of this module instead.
"""

import enum
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.sim.float8 import COPIED, copied, only_copied

_SIGN, _MASK = 1 << 63, (1 << 64) - 1

#: The first int64s, because making one takes longer than looking it up.
int64s: list[np.int64] = list(np.arange(1024))
_KEPT = len(int64s)


def int64(value: int) -> np.int64:
    """Return the int64 with the low 64 bits of an integer."""
    if 0 <= value < _KEPT:
        return int64s[value]
    return np.int64(value if -_SIGN <= value < _SIGN else (value + _SIGN & _MASK) - _SIGN)


class Integer(int):
    """A boolean, or an integer that is not an int64. Operators take any number of a kernel, on either side."""

    __slots__ = ()
    __array_priority__ = 1e6  # So that NumPy's scalars leave the operator to this class.
    bits: int
    signed: bool
    only_copied = False
    small: bool  #: whether it is exact in a float32, so that Numba computes with it in float32
    dtype: np.dtype[Any]
    __hash__ = int.__hash__

    def __new__(cls, value: Any = 0) -> Any:
        """Cast a number: integers wrap, floats lose their fraction."""
        return int.__new__(cls, wrapped(value, cls.dtype))

    def __repr__(self) -> str:
        return int.__repr__(self)

    # Numba negates and inverts a narrow integer before it widens it to 64 bits.

    def __neg__(self) -> Any:
        return _result(wrapped(-int(self), self.dtype), self.signed)

    def __pos__(self) -> Any:
        return _result(int(self), self.signed)

    def __invert__(self) -> Any:
        return _result(wrapped(~int(self), self.dtype), self.signed)

    def __abs__(self) -> Any:
        return type(self)(abs(int(self)))

    def view(self, dtype: Any) -> Any:
        """Return the number with the same bits of a type with as many."""
        wanted = dtype.dtype if issubclass(dtype, Integer) else np.dtype(dtype)
        return element(np.array(int(self), self.dtype).view(wanted)[()])


class boolean(Integer):
    """A boolean, which counts as an int64 in operations."""

    __slots__ = ()
    bits, signed, small, dtype = 8, True, True, np.dtype(np.bool_)

    def __new__(cls, value: Any = False) -> Any:
        return TRUE if value else FALSE

    def __repr__(self) -> str:
        return str(bool(self))

    def __neg__(self) -> Any:
        return int64(-int(self))

    def __invert__(self) -> Any:
        return FALSE if self else TRUE

    def __and__(self, other: Any) -> Any:
        return boolean(self and other) if isinstance(other, _BOOLS) else super().__and__(other)

    def __or__(self, other: Any) -> Any:
        return boolean(self or other) if isinstance(other, _BOOLS) else super().__or__(other)

    def __xor__(self, other: Any) -> Any:
        return boolean(bool(self) != bool(other)) if isinstance(other, _BOOLS) else super().__xor__(other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__


_BOOLS = (boolean, bool, np.bool_)
FALSE, TRUE = int.__new__(boolean, 0), int.__new__(boolean, 1)


def _integer(bits: int, *, signed: bool) -> type[Integer]:
    name = f"{'int' if signed else 'uint'}{bits}"
    facts = {"bits": bits, "signed": signed, "small": name in ("int8", "int16", "uint8"), "dtype": np.dtype(name)}
    return type(name, (Integer,), {"__slots__": (), "__module__": __name__, **facts})


#: The classes that stand for NumPy's integers in kernels.
CLASSES = {
    np.dtype(kind).type: _integer(8 * np.dtype(kind).itemsize, signed=kind.startswith("int"))
    for kind in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
}
_uint64 = CLASSES[np.uint64]

# By exact type of an integer, whether it is signed.
_SIGNED: dict[type, bool] = {cls: cls.signed for cls in CLASSES.values()} | dict.fromkeys((boolean, int, np.int64, bool, np.bool_), True)
_FLOATS = (float, np.floating)


def _is_signed(value: Any) -> bool | None:
    """Whether an integer is signed; None for other values."""
    known = _SIGNED.get(type(value))
    if known is None and isinstance(value, (int, np.integer)):
        return not isinstance(value, np.unsignedinteger)
    return known


def _result(value: int, signed: bool) -> Any:
    return int64(value) if signed else int.__new__(_uint64, value & _MASK)


def _as_float(value: Integer, other: Any, *, power: bool = False) -> Any:
    """Return the float with which Numba computes for an integer, if the other operand is a float or complex number."""
    if isinstance(other, np.float32) and (power or value.small):
        return np.float32(value)
    return np.float64(value)


def _divided(operation: Callable[[Any, Any], Any]) -> Callable[[int, int, bool], Any]:
    """Make an operation whose result in NumPy is right if both operands have the result's type, including division by zero."""

    def divide(a: int, b: int, signed: bool) -> Any:
        if signed:
            return operation(int64(a), int64(b))
        return _result(int(operation(np.uint64(a & _MASK), np.uint64(b & _MASK))), signed=False)

    return divide


def _wrapping(operation: Callable[[int, int], int]) -> Callable[[int, int, bool], Any]:
    return lambda a, b, signed: _result(operation(a, b), signed)


_ARITHMETIC: dict[str, Callable[[int, int, bool], Any]] = {
    "add": _wrapping(operator.add), "sub": _wrapping(operator.sub), "mul": _wrapping(operator.mul), "and_": _wrapping(operator.and_),
    "or_": _wrapping(operator.or_), "xor": _wrapping(operator.xor), "floordiv": _divided(operator.floordiv), "mod": _divided(operator.mod),
    "pow": _divided(operator.pow), "truediv": lambda a, b, signed: np.float64(a) / np.float64(b),
}  # fmt: skip


def _define_arithmetic(name: str, compute: Callable[[int, int, bool], Any]) -> None:
    of_floats = getattr(operator, name)

    def forward(self: Any, other: Any) -> Any:
        signed = _is_signed(other)
        if signed is not None:
            return compute(int(self), int(other), signed or self.signed)
        if isinstance(other, (float, complex, np.inexact)):
            return of_floats(_as_float(self, other), other)
        return NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        signed = _is_signed(other)
        if signed is not None:
            return compute(int(other), int(self), signed or self.signed)
        if isinstance(other, (float, complex, np.inexact)):
            return of_floats(other, _as_float(self, other, power=name == "pow"))
        return NotImplemented

    setattr(Integer, f"__{name.rstrip('_')}__", forward)
    setattr(Integer, f"__r{name.rstrip('_')}__", reflected)


def _shifted(value: int, signed: bool, amount: int, *, left: bool) -> Any:
    """Shift by the low 32 bits of amount. Like on a GPU, 64 and more shift everything out."""
    amount = min(amount & 0xFFFF_FFFF, 64)
    return _result(value << amount if left else value >> amount, signed)


def _define_shift(name: str, *, left: bool) -> None:
    def forward(self: Any, other: Any) -> Any:
        return NotImplemented if _is_signed(other) is None else _shifted(int(self), self.signed, int(other), left=left)

    def reflected(self: Any, other: Any) -> Any:
        signed = _is_signed(other)
        return NotImplemented if signed is None else _shifted(int(other), signed, int(self), left=left)

    setattr(Integer, f"__{name}__", forward)
    setattr(Integer, f"__r{name}__", reflected)


def _define_comparison(name: str) -> None:
    of_integers, of_floats = getattr(int, f"__{name}__"), getattr(operator, name)

    def compare(self: Any, other: Any) -> Any:
        if _is_signed(other) is not None:
            return TRUE if of_integers(self, int(other)) else FALSE
        if isinstance(other, _FLOATS):
            return TRUE if of_floats(_as_float(self, other), other) else FALSE
        return NotImplemented

    setattr(Integer, f"__{name}__", compare)


for _name, _compute in _ARITHMETIC.items():
    _define_arithmetic(_name, _compute)
_define_shift("lshift", left=True)
_define_shift("rshift", left=False)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _define_comparison(_name)


def _divmod(a: Any, b: Any) -> Any:
    if {type(n) for n in (a, b)} & {_uint64} and any(map(_is_signed, (a, b))):
        a, b = np.float64(a), np.float64(b)
    return a // b, a % b


Integer.__divmod__ = _divmod  # type: ignore[method-assign, assignment]
Integer.__rdivmod__ = lambda self, other: _divmod(other, self)  # type: ignore[method-assign, assignment]


# Casts and conversions ----------------------------------------------------------------------------------------------------------


def wrapped(value: Any, dtype: np.dtype[Any]) -> int:
    """Return an integer with the low bits of value that an integer of this dtype has."""
    bits, low = 8 * dtype.itemsize, int(value) & (1 << 8 * dtype.itemsize) - 1
    return low - (1 << bits) if dtype.kind == "i" and low >> bits - 1 else low


def _known(cls: type[Integer]) -> Callable[[Any], Any]:
    return lambda value: int.__new__(cls, value)


#: By type of a NumPy element, the class that stands for it in kernels.
ELEMENTS: dict[type, Any] = CLASSES | COPIED | {np.bool_: boolean}


def element(value: Any) -> Any:
    """Return the kernel's value for an element that was read from an array of NumPy."""
    cls = ELEMENTS.get(type(value))
    if cls is None:
        return value
    return copied(value) if cls.only_copied else int.__new__(cls, value)


def typed(value: Any) -> Any:
    """Return the kernel's value for an argument or a literal, if that is a number of Python or NumPy, or a tuple; others unchanged."""
    kind = type(value)
    if kind is int:
        return int64(value) if -_SIGN <= value < _SIGN else int.__new__(_uint64, value) if value <= _MASK else value
    if kind is float:
        return np.float64(value)
    if kind is bool:
        return boolean(value)
    if kind is tuple:
        return tuple([typed(item) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[typed(item) for item in value])
    if kind in COPIED:
        raise only_copied(value.dtype)  # Because numba-cuda has no arguments and no constants of such types.
    if isinstance(value, int) and not isinstance(value, (enum.Enum, Integer)):
        return int64(int(value))  # int() drops its class, which may have a text of its own, like a team's.
    return element(value)


# Numbers of device code ---------------------------------------------------------------------------------------------------------


class Tagged(int):
    """A Python integer with the type of the element that it was read from, because device code of pgas computes with Python's integers."""

    __slots__ = ()
    of: type[Integer]


#: The tagged classes, by dtype.
tagged: dict[np.dtype[Any], type[Tagged]] = {
    cls.dtype: type(f"tagged_{cls.__name__}", (Tagged,), {"__slots__": (), "of": cls}) for cls in CLASSES.values()
}
#: By type of a kernel's integer, the function that makes a Python integer of it.
PLAIN: dict[type, Callable[[Any], Any]] = dict.fromkeys((*CLASSES.values(), np.int64), int) | {boolean: bool}
PLAIN |= {cls: operator.attrgetter("scalar") for cls in COPIED.values()}
_FROM_DEVICE: dict[type, Callable[[Any], Any]] = dict.fromkeys((bool, np.bool_), boolean) | {int: int64}
_FROM_DEVICE |= {kind: _known(kind.of) for kind in tagged.values()} | dict.fromkeys(COPIED, copied)


def plain(value: Any) -> Any:
    """Return the Python integer or boolean for a kernel's; other values unchanged."""
    make = PLAIN.get(type(value))
    return value if make is None else make(value)


def from_device(value: Any) -> Any:
    """Return the kernel's value for a result of device code."""
    make = _FROM_DEVICE.get(type(value))
    return value if make is None else make(value)
