"""The operations of reductions, as functions of words (words.py).

Elements are accumulated in 64-bit integers, float32, or float64; float16 and bfloat16 in float32, rounded once at the end. Elements of the
padding are also computed, but not stored.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pgas.kernels.codes import Reduction
from pgas.kernels.compiler import constant, device, element_size, i64, numpy_dtype, ptx, types, u32, u64
from pgas.kernels.refusals import refuse


@dataclass(frozen=True)
class Combine:
    """Functions of an *item* of ``words`` words, one or two.

    ``first(w0, w1)`` returns an accumulator, ``add(acc, w0, w1)`` adds another member's item to one, ``last(acc)`` returns the item's
    words. ``rounds``: whether last() rounds, so that it may be used only for the final result, not for partial sums. ``numbers``: of a
    word, which an accumulator holds in as many registers of 64 bits.
    """

    words: int
    first: Any
    add: Any
    last: Any
    rounds: bool = False
    numbers: int = 1


def lacking(op: Reduction, kind: str) -> str:
    """Return "" if an operation takes elements of this kind (of a NumPy dtype; f also for bfloat16), otherwise the kinds that it takes."""
    if op in (Reduction.AND, Reduction.OR, Reduction.XOR):
        return "" if kind in "biu" else "integers"
    kinds, words = ("iufc", "integers, floats, or complex numbers") if op is Reduction.SUM else ("iuf", "integers or floats")
    return "" if kind in kinds else words


def has_locations(dtype: np.dtype[Any]) -> bool:
    """Whether maxloc and minloc take elements of this NumPy dtype."""
    return dtype.kind in "iuf" and dtype.itemsize in (4, 8)


def reduction(function: str, op: Reduction, dtype: Any) -> Combine:
    """Return the functions of an operation on an element type. Raises KernelTypeError if the operation is not defined for the type."""
    if allowed := lacking(op, "f" if dtype == types.bfloat16 else numpy_dtype(dtype).kind):
        refuse("reduction", function=function, op=op.name, dtype=dtype, allowed=allowed)
    parts = dtype.underlying_float if isinstance(dtype, types.Complex) else dtype
    return _of_words(parts, op)


@functools.cache
def _of_words(dtype: Any, op: Reduction) -> Combine:
    read, write = _conversion(dtype)
    combine = _OPERATIONS[op]

    @device
    def first(word):
        return read(word)

    @device
    def add(acc, word):
        return combine(acc, read(word))

    @device
    def last(acc):
        return write(acc)

    bits = 8 * element_size(dtype)
    while bits < 64:
        first, add, last = _halves(first, add, last, bits)
        bits *= 2
    rounds = element_size(dtype) == 2 and not isinstance(dtype, types.Integer) and op in (Reduction.SUM, Reduction.PROD)
    return Combine(1, *_one_word(first, add, last), rounds=rounds, numbers=8 // element_size(dtype))


def _one_word(one: Any, more: Any, end: Any) -> tuple[Any, Any, Any]:
    @device
    def first(w0, w1):
        return one(w0)

    @device
    def add(acc, w0, w1):
        return more(acc, w0)

    @device
    def last(acc):
        return end(acc), _0

    return first, add, last


def _halves(one: Any, more: Any, end: Any, bits: int) -> tuple[Any, Any, Any]:
    """Return functions on twice as many bits, which apply the given ones to each half."""
    _bits, mask = constant(bits), constant((1 << bits) - 1)

    @device
    def first(word):
        return one(word & mask), one(word >> _bits)

    @device
    def add(acc, word):
        return more(acc[0], word & mask), more(acc[1], word >> _bits)

    @device
    def last(acc):
        return end(acc[0]) | end(acc[1]) << _bits

    return first, add, last


_0 = constant(0)


def identity(op: Reduction, dtype: Any) -> int:
    """Return a word of elements x with ``x op y == y``."""
    parts = dtype.underlying_float if isinstance(dtype, types.Complex) else dtype
    nbytes = element_size(parts)
    ones = 1 if isinstance(parts, types.Boolean) else (1 << 8 * nbytes) - 1
    if op in (Reduction.SUM, Reduction.OR, Reduction.XOR):
        bits = 0
    elif op is Reduction.AND:
        bits = ones
    elif op is Reduction.PROD:
        bits = _ONE.get(str(parts), 1)
    elif str(parts) in _INFINITY:
        bits = _INFINITY[str(parts)] | (0 if op is Reduction.MIN else 1 << 8 * nbytes - 1)
    else:
        signed = getattr(parts, "signed", False)
        most, least = (ones >> 1, (ones >> 1) + 1) if signed else (ones, 0)
        bits = most if op is Reduction.MIN else least
    return sum(bits << at for at in range(0, 64, 8 * nbytes))


#: Bits of 1 and of infinity.
_ONE = {"float64": 0x3FF0 << 48, "float32": 0x3F80 << 16, "float16": 0x3C00, str(types.bfloat16): 0x3F80}
_INFINITY = {"float64": 0x7FF0 << 48, "float32": 0x7F80 << 16, "float16": 0x7C00, str(types.bfloat16): 0x7F80}


def _conversion(dtype: Any) -> tuple[Any, Any]:
    """Return ``read(word)``, the number in the low bits of a word, and ``write(number)``, those bits."""
    if isinstance(dtype, types.Float) or dtype == types.bfloat16:
        return _FLOATS[str(dtype)]
    return _signed(element_size(dtype)) if getattr(dtype, "signed", False) else _unsigned(element_size(dtype))


def _signed(nbytes: int) -> tuple[Any, Any]:
    mask, sign = constant((1 << 8 * nbytes) - 1), constant(1 << 8 * nbytes - 1)

    @device
    def read(word):
        return i64((word ^ sign) - sign)

    @device
    def write(number):
        return u64(number) & mask

    return read, write


def _unsigned(nbytes: int) -> tuple[Any, Any]:
    mask = constant((1 << 8 * nbytes) - 1)

    @device
    def read(word):
        return word

    @device
    def write(number):
        return u64(number) & mask

    return read, write


@device
def _read_f64(word):
    return ptx.f64_of_bits(word)


@device
def _write_f64(number):
    return ptx.bits_of_f64(number)


@device
def _read_f32(word):
    return ptx.f32_of_bits(u32(word))


@device
def _write_f32(number):
    return u64(ptx.bits_of_f32(number))


@device
def _read_f16(word):
    return ptx.f32_of_f16(u32(word))


@device
def _write_f16(number):
    return u64(ptx.f16_of_f32(number))


_16 = constant(16)


@device
def _read_bf16(word):
    return ptx.f32_of_bits(u32(word << _16))


@device
def _write_bf16(number):
    return u64(ptx.bf16_of_f32(number))


_FLOATS = {
    "float64": (_read_f64, _write_f64),
    "float32": (_read_f32, _write_f32),
    "float16": (_read_f16, _write_f16),
    str(types.bfloat16): (_read_bf16, _write_bf16),
}


@device
def _sum(a, b):
    return a + b


@device
def _prod(a, b):
    return a * b


@device
def _min(a, b):
    return b if b < a or b != b else a  # a NaN from any member is the result, in any order


@device
def _max(a, b):
    return b if b > a or b != b else a


@device
def _and(a, b):
    return a & b


@device
def _or(a, b):
    return a | b


@device
def _xor(a, b):
    return a ^ b


_OPERATIONS = {
    Reduction.SUM: _sum, Reduction.PROD: _prod, Reduction.MIN: _min, Reduction.MAX: _max,
    Reduction.AND: _and, Reduction.OR: _or, Reduction.XOR: _xor,
}  # fmt: skip


# Pairs of a value and its location --------------------------------------------------------------------------------------------------


@functools.cache
def location(dtype: Any, *, least: bool) -> Combine:
    """Return the functions of minloc (least) or maxloc on pairs (value, location); NaN takes precedence, then the smallest location."""
    read, write = _conversion(dtype)
    better = _less if least else _greater

    @device
    def chosen(acc, other):
        nan, before = other[0] != other[0], acc[0] != acc[0]
        wins = better(other[0], acc[0]) or (nan and not before)
        equal = other[0] == acc[0] or (nan and before)
        return other if wins or (equal and other[1] < acc[1]) else acc

    if element_size(dtype) == 8:

        @device
        def pair(w0, w1):
            return read(w0), read(w1)

        @device
        def last(acc):
            return write(acc[0]), write(acc[1])

        words = 2
    else:

        @device
        def pair(w0, w1):
            return read(w0 & _LOW), read(w0 >> _32)

        @device
        def last(acc):
            return write(acc[0]) | write(acc[1]) << _32, _0

        words = 1

    @device
    def add(acc, w0, w1):
        return chosen(acc, pair(w0, w1))

    return Combine(words, pair, add, last)


_LOW, _32 = constant((1 << 32) - 1), constant(32)


@device
def _less(a, b):
    return a < b


@device
def _greater(a, b):
    return a > b
