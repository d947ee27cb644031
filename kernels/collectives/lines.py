"""Lines of data between members that map each other's memory, through staging (LL-16 of NCCL).

A 16-byte store has 8 bytes of data and the epoch twice; the receiver polls the line in its own memory. This takes one flight, without a
fence or a barrier. Lines need not be ordered, because each has its own flag.
"""

import functools
from typing import Any

from pgas.kernels import layout, state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.collectives.channel import given_up, half_of
from pgas.kernels.collectives.words import first_of, in_batches, load_four, load_sixteen, load_word
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import after, member, rank_of, size_of
from pgas.kernels.scope import THREAD, Scope
from pgas.kernels.window import remote

_LINE = constant(16)
_EQ = constant(Comparison.EQ)
_0, _1, _2, _3, _4, _8, _12, _15, _16, _32 = (constant(c) for c in (0, 1, 2, 3, 4, 8, 12, 15, 16, 32))


#: Maximum number of bytes that a thread sends to a member as lines. Each word takes two loads and two stores, so that one thread moves more
#: bytes in less time between operands, flags included.
_BY_A_THREAD = constant(128)


def staged(scope: Scope) -> Any:
    """Strategy.staged()."""
    return min(window.LL_BYTES, _BY_A_THREAD) if scope is THREAD else window.LL_BYTES


@device
def line_at(c, epoch, q):
    """Return the address of the first line of member q in this PE's staging."""
    return half_of(c[0], c[1], epoch) + u64(q) * window.STAGING_PART


@functools.cache
def send_same(scope: Scope, unit: int) -> Any:
    """Strategy.send_same()."""
    load, four, batches, rank, size = load_word(unit), load_four(unit), in_batches(scope), scope.rank, scope.size
    sixteen, wide = load_sixteen(unit), batches and unit >= layout.WORD

    @device
    def send(op, c, epoch, source, nbytes):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        to = line_at(c, epoch, me)
        i, step = u64(rank()), u64(size())
        while wide and (i + _15 * step) * layout.WORD + layout.WORD <= nbytes:
            words = sixteen(source + i * layout.WORD, step * layout.WORD, nbytes - i * layout.WORD)
            q = me
            for _ in range(n - 1):
                q = after(q, n)
                _store_more_lines(remote(to, member(entry, q)) + i * _LINE, step * _LINE, words, u32(epoch))
            i += _16 * step
        while batches and (i + _3 * step) * layout.WORD + layout.WORD <= nbytes:
            words = four(source + i * layout.WORD, step * layout.WORD, nbytes - i * layout.WORD)
            q = me
            for _ in range(n - 1):
                q = after(q, n)
                _store_lines(remote(to, member(entry, q)) + i * _LINE, step * _LINE, words, u32(epoch))
            i += _4 * step
        while i * layout.WORD < nbytes:
            word = load(source + i * layout.WORD, nbytes - i * layout.WORD)
            q = me
            for _ in range(n - 1):
                q = after(q, n)
                ptx.st_line(remote(to, member(entry, q)) + i * _LINE, word, u32(epoch))
            i += step

    return send


@functools.cache
def send_each(scope: Scope, unit: int) -> Any:
    """Strategy.send_each()."""
    load, four, batches, first, size = load_word(unit), load_four(unit), in_batches(scope), first_of(scope), scope.size
    sixteen, wide = load_sixteen(unit), batches and unit >= layout.WORD

    @device
    def send(op, c, epoch, source, step, nbytes):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        to = line_at(c, epoch, me)
        q = me
        for k in range(1, n):
            q = after(q, n)
            there, here = remote(to, member(entry, q)), source + u64(q) * step
            i, stride = first(k), u64(size())
            while wide and (i + _15 * stride) * layout.WORD + layout.WORD <= nbytes:
                words = sixteen(here + i * layout.WORD, stride * layout.WORD, nbytes - i * layout.WORD)
                _store_more_lines(there + i * _LINE, stride * _LINE, words, u32(epoch))
                i += _16 * stride
            while batches and (i + _3 * stride) * layout.WORD + layout.WORD <= nbytes:
                words = four(here + i * layout.WORD, stride * layout.WORD, nbytes - i * layout.WORD)
                _store_lines(there + i * _LINE, stride * _LINE, words, u32(epoch))
                i += _4 * stride
            while i * layout.WORD < nbytes:
                ptx.st_line(there + i * _LINE, load(here + i * layout.WORD, nbytes - i * layout.WORD), u32(epoch))
                i += stride

    return send


@device
def _store_lines(to, step, words, epoch):
    """Store four words as lines at to, to + step, ..."""
    ptx.st_line(to, words[0], epoch)
    ptx.st_line(to + step, words[1], epoch)
    ptx.st_line(to + _2 * step, words[2], epoch)
    ptx.st_line(to + _3 * step, words[3], epoch)


@device
def _store_more_lines(to, step, words, epoch):
    """Store sixteen words, in tuples of four, as lines at to, to + step, ..."""
    _store_lines(to, step, words[0], epoch)
    _store_lines(to + _4 * step, step, words[1], epoch)
    _store_lines(to + _8 * step, step, words[2], epoch)
    _store_lines(to + _12 * step, step, words[3], epoch)


@functools.cache
def gather(scope: Scope) -> Any:
    """Strategy.gather()."""

    @device
    def gather(op, c, epoch):
        pass

    return gather


@functools.cache
def release(scope: Scope) -> Any:
    """Strategy.release(): wait until all threads have loaded what they send."""
    sync = scope.sync

    @device
    def release(c):
        sync()

    return release


@functools.cache
def gather_from(scope: Scope) -> Any:
    """Strategy.gather_from()."""

    @device
    def gather(op, c, epoch, q):
        pass

    return gather


def send_words(scope: Scope, values: Any) -> Any:
    """Strategy.send_words()."""
    rank, size = scope.rank, scope.size

    @device
    def send(op, c, epoch, request):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        to = line_at(c, epoch, me)
        q = rank()
        while q < n:
            if q != me:
                w0, w1 = values(q, request)
                there = remote(to, member(entry, q))
                ptx.st_line(there, w0, u32(epoch))
                ptx.st_line(there + _LINE, w1, u32(epoch))
            q = u32(q + size())

    return send


@device
def await_line(op, at, epoch):
    """Wait for the line of an epoch and return its word."""
    flag = u32(epoch)
    low, one, high, other = ptx.ld_line(at)
    deadline = _0
    polls = u32(0)
    while one != flag or other != flag:
        polls = u32(polls + u32(1))
        if polls & state.POLLS_MASK == 0:
            if deadline == _0:
                deadline = ptx.globaltimer() + state.timeout_ns()
            if given_up(op, at, _EQ, epoch, u64(one), deadline):
                break
        state.relax(op, at, _EQ, epoch)
        low, one, high, other = ptx.ld_line(at)
    return u64(low) | u64(high) << _32


@device
def _four_lines(at, step, epoch):
    """Load four lines. Return whether all are of the epoch, and their words."""
    flag = u32(epoch)
    a0, a, a1, a_ = ptx.ld_line(at)
    b0, b, b1, b_ = ptx.ld_line(at + step)
    c0, c, c1, c_ = ptx.ld_line(at + _2 * step)
    d0, d, d1, d_ = ptx.ld_line(at + _3 * step)
    old = (a ^ flag) | (a_ ^ flag) | (b ^ flag) | (b_ ^ flag) | (c ^ flag) | (c_ ^ flag) | (d ^ flag) | (d_ ^ flag)
    words = u64(a0) | u64(a1) << _32, u64(b0) | u64(b1) << _32, u64(c0) | u64(c1) << _32, u64(d0) | u64(d1) << _32
    return u32(old) == u32(0), words


@functools.cache
def four() -> Any:
    """Strategy.four(): all lines are in flight at a time."""

    @device
    def four(op, c, epoch, q, i, step):
        at, s = line_at(c, epoch, q) + i * _LINE, step * _LINE
        there, words = _four_lines(at, s, epoch)
        end = at + _4 * s
        while not there and at < end:
            await_line(op, at, epoch)
            at += s
            there, words = _four_lines(end - _4 * s, s, epoch)
        return words

    return four


#: Number of polls of several members' lines after which they are awaited one by one, with a deadline.
_POLLS = 32


def _of_members(load: Any, old: Any, words: Any, count: int) -> Any:
    """Make ``of(op, c, epoch, q, n, i, step)``: Strategy.fours() of ``count`` lines of each member.

    ``load(at, step)`` loads a member's lines, ``old(lines, flag)`` returns 0 if they have the flag, and ``words(lines)`` returns their
    words. All lines are in flight at a time, and polled together; otherwise, each member would take a latency.

    Members that do not count are loaded as well, because branches between the loads would take longer: this member's lines, which nobody
    writes, and a line of another member again instead of those from n on.
    """
    number = constant(count)

    @device
    def of(op, c, epoch, q, n, i, step):
        me, left, flag = u32(rank_of(c[1]) - q), u32(n - q), u32(epoch)
        first = line_at(c, epoch, q) + i * _LINE
        polls = u32(0)
        while True:
            s = ptx.same(step) * _LINE
            second = ptx.same(first) + (window.STAGING_PART if left > 1 else _0)
            third = second + (window.STAGING_PART if left > 2 else _0)
            fourth = third + (window.STAGING_PART if left > 3 else _0)
            w, x, y, z = load(first, s), load(second, s), load(third, s), load(fourth, s)
            late = u32(0) if me == 0 else old(w, flag)
            late |= u32(0) if me == 1 or left < 2 else old(x, flag)
            late |= u32(0) if me == 2 or left < 3 else old(y, flag)
            late |= u32(0) if me == 3 or left < 4 else old(z, flag)
            if u32(late) == u32(0) or polls == _POLLS:
                break
            polls = u32(polls + u32(1))
            state.relax(op, first, _EQ, epoch)
            if polls == _POLLS:
                k = u32(0)
                while k < min(left, u32(4)):
                    at = first + u64(k) * window.STAGING_PART
                    end = at + number * s
                    while k != me and at < end:
                        await_line(op, at, epoch)
                        at += s
                    k = u32(k + u32(1))
        return words(w), words(x), words(y), words(z)

    return of


@functools.cache
def fours() -> Any:
    """Strategy.fours()."""

    @device
    def load(at, step):
        a, b = ptx.ld_line(at), ptx.ld_line(at + step)
        return a, b, ptx.ld_line(at + _2 * step), ptx.ld_line(at + _3 * step)

    @device
    def old(lines, flag):
        a, b, c, d = lines
        return (a[1] ^ flag) | (a[3] ^ flag) | (b[1] ^ flag) | (b[3] ^ flag) | (c[1] ^ flag) | (c[3] ^ flag) | (d[1] ^ flag) | (d[3] ^ flag)

    @device
    def words(lines):
        a, b, c, d = lines
        return u64(a[0]) | u64(a[2]) << _32, u64(b[0]) | u64(b[2]) << _32, u64(c[0]) | u64(c[2]) << _32, u64(d[0]) | u64(d[2]) << _32

    return _of_members(load, old, words, 4)


@functools.cache
def ones() -> Any:
    """Like fours(), for one line of each member; step is not used."""

    @device
    def load(at, step):
        return ptx.ld_line(at)

    @device
    def old(line, flag):
        return (line[1] ^ flag) | (line[3] ^ flag)

    @device
    def words(line):
        return u64(line[0]) | u64(line[2]) << _32

    return _of_members(load, old, words, 1)


@functools.cache
def word() -> Any:
    """Strategy.word()."""

    @device
    def word(op, c, epoch, q, i):
        return await_line(op, line_at(c, epoch, q) + i * _LINE, epoch)

    return word
