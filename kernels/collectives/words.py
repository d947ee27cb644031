"""Operands as 8-byte words, which collectives move and combine. The last word of an operand may be incomplete."""

import functools
from typing import Any

from pgas.kernels import layout
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import rank_of
from pgas.kernels.scope import Scope

__all__ = ["combined", "copy_words", "first_of", "load_item", "load_word", "store_item", "store_word"]

_0, _1, _7, _8, _WORD = (constant(c) for c in (0, 1, 7, 8, layout.WORD))


def _whole(read: Any) -> Any:
    @device
    def load(addr, left):
        return read(addr)

    return load


def _whole_store(write: Any) -> Any:
    @device
    def store(addr, word, left):
        write(addr, word)

    return store


@functools.cache
def load_word(unit: int) -> Any:
    """Make ``load(addr, left)``: load the word at addr, of which ``left`` bytes belong to the operand (all if 8 or more); the others are 0.

    unit: common divisor of addr and left (operands.unit()).
    """
    whole, part, _unit = ptx.ld_plain[8], ptx.ld_plain[min(unit, 8)], constant(unit)
    if unit >= 8:
        return _whole(whole)

    @device
    def load(addr, left):
        if left >= _8 and addr & _7 == _0:
            return whole(addr)
        word, i = _0, _0
        end = min(left, _8)
        while i < end:
            word |= part(addr + i) << (_8 * i)
            i += _unit
        return word

    return load


@functools.cache
def store_word(unit: int) -> Any:
    """Make ``store(addr, word, left)``; for the arguments, see load_word()."""
    whole, part, _unit = ptx.st_plain[8], ptx.st_plain[min(unit, 8)], constant(unit)
    if unit >= 8:
        return _whole_store(whole)

    @device
    def store(addr, word, left):
        if left >= _8 and addr & _7 == _0:
            whole(addr, word)
        else:
            i = _0
            end = min(left, _8)
            while i < end:
                part(addr + i, word >> (_8 * i))
                i += _unit

    return store


@functools.cache
def load_item(unit: int, words: int) -> Any:
    """Make ``load(addr, left)``: load the two words of an item (operators.Combine); the second is 0 if it has one word."""
    load_one = load_word(unit)

    @device
    def load(addr, left):
        return load_one(addr, left), load_one(addr + _WORD, left - _WORD) if words == 2 else _0

    return load


@functools.cache
def store_item(unit: int, words: int) -> Any:
    """Make ``store(addr, item, left)`` for the two words of an item."""
    store_one = store_word(unit)

    @device
    def store(addr, item, left):
        store_one(addr, item[0], left)
        if words == 2:
            store_one(addr + _WORD, item[1], left - _WORD)

    return store


@functools.cache
def first_of(scope: Scope) -> Any:
    """Make ``first(k)``: return the first word that this thread sends to its k-th peer.

    In a block, a different warp begins with each peer.
    """
    rank, size = scope.rank, scope.size
    if scope.suffix != "_block":

        @device
        def first(k):
            return u64(rank())

    else:

        @device
        def first(k):
            turn = u32(k) * u32(32)
            while turn >= size():
                turn = u32(turn - size())
            return u64(rank() - turn if rank() >= turn else rank() + size() - turn)

    return first


@functools.cache
def copy_words(scope: Scope, unit: int) -> Any:
    """Make ``copy(dest, source, nbytes)``: copy local memory by the threads of the scope."""
    load, store, rank, size = load_word(unit), store_word(unit), scope.rank, scope.size

    @device
    def copy(dest, source, nbytes):
        i = u64(rank()) * _8
        while i < nbytes:
            store(dest + i, load(source + i, nbytes - i), nbytes - i)
            i += u64(size()) * _8

    return copy


@functools.cache
def combined(scope: Scope, unit: int, combine: Combine, word: Any) -> Any:
    """Make ``combined(op, c, epoch, dest, own, nbytes, members)``: combine the data of members 0 to members - 1, in their order.

    word: word() of the strategy. own: this member's own data.
    """
    words, load, store = combine.words, load_item(unit, combine.words), store_item(unit, combine.words)
    first, add, last, rank, size = combine.first, combine.add, combine.last, scope.rank, scope.size
    each = constant(words)

    @device
    def of(op, c, epoch, q, i, own, nbytes):
        if q == rank_of(c[1]):
            return load(own + i * _8, nbytes - i * _8)
        return word(op, c, epoch, q, i), word(op, c, epoch, q, i + _1) if words == 2 else _0

    @device
    def combined(op, c, epoch, dest, own, nbytes, members):
        i = u64(rank()) * each
        while i * _8 < nbytes:
            w0, w1 = of(op, c, epoch, u32(0), i, own, nbytes)
            acc = first(w0, w1)
            for q in range(1, members):
                w0, w1 = of(op, c, epoch, u32(q), i, own, nbytes)
                acc = add(acc, w0, w1)
            store(dest + i * _8, last(acc), nbytes - i * _8)
            i += u64(size()) * each

    return combined
