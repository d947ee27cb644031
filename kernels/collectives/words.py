"""Operands as 8-byte words, which collectives move and combine. The last word of an operand may be incomplete."""

import functools
from typing import Any

from pgas.kernels import layout
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import rank_of
from pgas.kernels.scope import Scope

_0, _1, _2, _3, _4, _7, _8, _12, _WORD = (constant(c) for c in (0, 1, 2, 3, 4, 7, 8, 12, layout.WORD))


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


def in_batches(scope: Scope) -> bool:
    """Whether each thread of a scope moves four words at a time; a block has enough threads, which would take more registers."""
    return scope.suffix != "_block"


@functools.cache
def load_four(unit: int) -> Any:
    """Make ``load(addr, step, left)``: load the words at addr, addr + step, ..., of which ``left`` or more bytes belong to the operand.

    All are in flight at a time.
    """
    load_one = load_word(unit)

    @device
    def load(addr, step, left):
        a, b = load_one(addr, left), load_one(addr + step, left)
        return a, b, load_one(addr + _2 * step, left), load_one(addr + _3 * step, left)

    return load


@functools.cache
def load_sixteen(unit: int) -> Any:
    """Make ``load(addr, step, left)``: load_four() of four times as many words, as four tuples."""
    load_more = load_four(unit)

    @device
    def load(addr, step, left):
        a, b = load_more(addr, step, left), load_more(addr + _4 * step, step, left)
        return a, b, load_more(addr + _8 * step, step, left), load_more(addr + _12 * step, step, left)

    return load


@functools.cache
def store_four(unit: int) -> Any:
    """Make ``store(addr, step, words, left)``: store four words; for the arguments, see load_four()."""
    store_one = store_word(unit)

    @device
    def store(addr, step, words, left):
        store_one(addr, words[0], left)
        store_one(addr + step, words[1], left)
        store_one(addr + _2 * step, words[2], left)
        store_one(addr + _3 * step, words[3], left)

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


#: Maximum number of numbers of a word of which a thread adds up four words with four members' words in registers; more would spill.
_NUMBERS = 2


@functools.cache
def combined(scope: Scope, unit: int, combine: Combine, word: Any, four: Any, fours: Any = None) -> Any:
    """Make ``combined(op, c, epoch, dest, own, nbytes, members)``: combine the data of members 0 to members - 1, in their order.

    word, four, fours: those functions of the strategy, or similar ones to which epoch is passed; without fours, which takes 50 registers,
    members' words are in flight member by member. own: this member's own data.
    """
    words, load, store = combine.words, load_item(unit, combine.words), store_item(unit, combine.words)
    first, add, last, rank, size = combine.first, combine.add, combine.last, scope.rank, scope.size
    each, load_all, store_all, batches = constant(words), load_four(unit), store_four(unit), words == 1 and in_batches(scope)

    @device
    def of(op, c, epoch, q, i, own, nbytes):
        if q == rank_of(c[1]):
            return load(own + i * _8, nbytes - i * _8)
        return word(op, c, epoch, q, i), word(op, c, epoch, q, i + _1) if words == 2 else _0

    @device
    def begin(w):
        return first(w[0], _0), first(w[1], _0), first(w[2], _0), first(w[3], _0)

    @device
    def more(x, w):
        return add(x[0], w[0], _0), add(x[1], w[1], _0), add(x[2], w[2], _0), add(x[3], w[3], _0)

    @device
    def more_if(there, x, w):
        return more(x, w) if there else x

    @device
    def of_each(op, c, epoch, members, i, step, own):
        q, me = u32(0), rank_of(c[1])
        x = begin((_0, _0, _0, _0))
        while q < members:
            w = load_all(own + i * _8, step * _8, _8) if q == me else four(op, c, epoch, q, i, step)
            x = begin(w) if q == 0 else more(x, w)
            q = u32(q + u32(1))
        return x

    @device
    def of_four(op, c, epoch, members, i, step, own):
        q, me = u32(0), rank_of(c[1])
        mine = load_all(own + i * _8, step * _8, _8)
        x = begin((_0, _0, _0, _0))  # not of mine, which would wait for it
        while q < members:
            w = fours(op, c, epoch, q, members, i, step)
            of_me = u32(me - q)
            w0 = mine if of_me == 0 else w[0]
            x = begin(w0) if q == 0 else more(x, w0)
            x = more_if(u32(q + u32(1)) < members, x, mine if of_me == 1 else w[1])
            x = more_if(u32(q + u32(2)) < members, x, mine if of_me == 2 else w[2])
            x = more_if(u32(q + u32(3)) < members, x, mine if of_me == 3 else w[3])
            q = u32(q + u32(4))
        return x

    total = of_four if fours is not None and combine.numbers <= _NUMBERS else of_each

    @device
    def batched(op, c, epoch, dest, own, nbytes, members, i, step):
        while (i + _3 * step) * _WORD + _WORD <= nbytes:
            x = total(op, c, epoch, members, i, step, own)
            sums = last(x[0])[0], last(x[1])[0], last(x[2])[0], last(x[3])[0]
            store_all(dest + i * _8, step * _8, sums, _8)
            i += _4 * step
        return i

    @device
    def combined(op, c, epoch, dest, own, nbytes, members):
        i, step = u64(rank()) * each, u64(size()) * each
        if batches:
            i = batched(op, c, epoch, dest, own, nbytes, members, i, step)
        while i * _8 < nbytes:
            w0, w1 = of(op, c, epoch, u32(0), i, own, nbytes)
            acc = first(w0, w1)
            for q in range(1, members):
                w0, w1 = of(op, c, epoch, u32(q), i, own, nbytes)
                acc = add(acc, w0, w1)
            store(dest + i * _8, last(acc), nbytes - i * _8)
            i += step

    return combined
