"""The strategy if all members map each other's memory.

Small messages are sent as LL-16 lines (NCCL's protocol): a 16-byte store has 8 bytes of data and the epoch twice; the receiver polls the
line in its own memory. This takes one flight, without a fence or a barrier. Larger messages are stored into dest or loaded from source,
with flags before and after. Reductions by one thread first send them into staging, in parts.

Lines need not be ordered, because each has its own flag. Data stored into dest is ordered before DONE: the threads of the scope
synchronize, then the threads that write flags fence at system scope, which covers the others' stores (PTX ISA, causality order).
"""

import functools
from typing import Any

from pgas.kernels import state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.collectives import channel
from pgas.kernels.collectives.channel import given_up, half_of, row_of, wait_flag
from pgas.kernels.collectives.comparison import declaring, verifying
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import first_of, in_batches, load_four, load_item, load_sixteen, load_word, store_item
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import after, member, rank_of, size_of, wrapped
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import BLOCK, THREAD, Scope
from pgas.kernels.typed import layout
from pgas.kernels.window import remote

_LINE, _WARP = constant(16), constant(32)
_EQ = constant(Comparison.EQ)
#: Minimum number of bytes of a broadcast of which each member loads a slice; below it, the additional flight takes longer than it saves.
_RELAYED = constant(1 << 20)
_0, _1, _2, _3, _4, _8, _12, _15, _16, _32 = (constant(c) for c in (0, 1, 2, 3, 4, 8, 12, 15, 16, 32))
_BELOW_LINE = _15


@functools.cache
def begin(scope: Scope) -> Any:
    """Strategy.begin()."""
    start, declare = channel.begin(scope, flag), declaring(scope, flag)

    @device
    def begin(op, c):
        declare(c)
        return start(op, c[0], c[1])

    return begin


def finish(scope: Scope, *, one_sided: bool = False) -> Any:
    """Strategy.finish()."""
    end, verify = channel.finish(scope, flag, one_sided=one_sided), verifying(scope, waits=not one_sided)

    @device
    def finish(op, c, epoch):
        verify(op, c)
        end(c[0], c[1], epoch)

    return finish


leave = finish


@functools.cache
def _sync_flags(scope: Scope, word: int, fence: Any = ptx.fence_sys) -> Any:
    """Make ``sync_flags(op, c, epoch)``: signal every member and wait for every member; acquires. Called after a barrier of the scope.

    fence: the fence of the signaling threads; ptx.nothing: none.
    """
    send, await_all, rank, _word = channel.write_flags(scope, flag), channel.wait_flags(scope), scope.rank, constant(word)

    @device
    def sync_flags(op, c, epoch):
        base, entry, _ = c
        if rank() < u32(32):  # the threads that write flags; the fence comes before the loads of send(), because it waits for earlier loads
            fence()
        send(base, entry, _word, epoch)
        await_all(op, base, entry, _word, epoch)

    return sync_flags


def barrier(scope: Scope, *, completes: bool) -> Any:
    """Strategy.barrier(). In a job with two transports, a barrier also completes what members have put to PEs on other nodes."""
    sync_flags = _sync_flags(scope, layout.ARRIVED, ptx.fence_sc_sys if completes else ptx.nothing)
    if not (completes and transport.two_paths()):
        return sync_flags
    quiet, rank, sync = transport.current().quiet, scope.rank, scope.sync

    @device
    def barrier(op, c, epoch):
        if rank() == 0:
            quiet()
        sync()
        sync_flags(op, c, epoch)

    return barrier


# Lines --------------------------------------------------------------------------------------------------------------------------


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


@device
def _lines(at, step):
    """Load four lines, as 16 half words."""
    a, b = ptx.ld_line(at), ptx.ld_line(at + step)
    return a, b, ptx.ld_line(at + _2 * step), ptx.ld_line(at + _3 * step)


@device
def _old(lines, flag):
    """Return 0 if four lines have the flag."""
    a, b, c, d = lines
    return (a[1] ^ flag) | (a[3] ^ flag) | (b[1] ^ flag) | (b[3] ^ flag) | (c[1] ^ flag) | (c[3] ^ flag) | (d[1] ^ flag) | (d[3] ^ flag)


@device
def _words(lines):
    """Return the words of four lines."""
    a, b, c, d = lines
    return u64(a[0]) | u64(a[2]) << _32, u64(b[0]) | u64(b[2]) << _32, u64(c[0]) | u64(c[2]) << _32, u64(d[0]) | u64(d[2]) << _32


#: Number of polls of several members' lines after which they are awaited one by one, with a deadline.
_POLLS = 32


@functools.cache
def fours() -> Any:
    """Strategy.fours(): all lines are in flight at a time, and polled together; otherwise, each member would take a latency.

    Members that do not count are loaded as well, because branches between the loads would take longer: this member's lines, which nobody
    writes, and a line of another member again instead of those from n on.
    """

    @device
    def fours(op, c, epoch, q, n, i, step):
        me, left, flag = u32(rank_of(c[1]) - q), u32(n - q), u32(epoch)
        first = line_at(c, epoch, q) + i * _LINE
        polls = u32(0)
        while True:
            s = ptx.same(step) * _LINE
            second = ptx.same(first) + (window.STAGING_PART if left > 1 else _0)
            third = second + (window.STAGING_PART if left > 2 else _0)
            fourth = third + (window.STAGING_PART if left > 3 else _0)
            w, x, y, z = _lines(first, s), _lines(second, s), _lines(third, s), _lines(fourth, s)
            old = u32(0) if me == 0 else _old(w, flag)
            old |= u32(0) if me == 1 or left < 2 else _old(x, flag)
            old |= u32(0) if me == 2 or left < 3 else _old(y, flag)
            old |= u32(0) if me == 3 or left < 4 else _old(z, flag)
            if u32(old) == u32(0) or polls == _POLLS:
                break
            polls = u32(polls + u32(1))
            state.relax(op, first, _EQ, epoch)
            if polls == _POLLS:
                k = u32(0)
                while k < min(left, u32(4)):
                    at = first + u64(k) * window.STAGING_PART
                    end = at + _4 * s
                    while k != me and at < end:
                        await_line(op, at, epoch)
                        at += s
                    k = u32(k + u32(1))
        return _words(w), _words(x), _words(y), _words(z)

    return fours


@functools.cache
def word() -> Any:
    """Strategy.word()."""

    @device
    def word(op, c, epoch, q, i):
        return await_line(op, line_at(c, epoch, q) + i * _LINE, epoch)

    return word


# Between operands ---------------------------------------------------------------------------------------------------------------


def exchange(scope: Scope, unit: int, piece: Any) -> Any:
    """Strategy.exchange()."""
    move, done, rank, size, sync = copy(unit, scope), _sync_flags(scope, layout.DONE), scope.rank, scope.size, scope.sync

    @device
    def exchange(op, c, epoch, request):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        q = u32((me + ptx.block_rank()) % n)  # while some blocks copy this PE's own piece, others use the links
        for _ in range(n):
            q = after(q, n)
            to, source, nbytes = piece(c, q, request)
            to = remote(to, member(entry, q))
            if to != source:
                move(to, source, nbytes, u64(rank()), u64(size()), False)
        sync()
        done(op, c, epoch)

    return exchange


@device
def own_place(c, q, request):
    """The piece of exchange() in an fcollect. request: see call.body_of()."""
    dest, source, nbytes, step = request
    return dest + u64(rank_of(c[1])) * step, source, nbytes


@functools.cache
def fcollect(scope: Scope, unit: int) -> Any:
    """Strategy.fcollect()."""
    return exchange(scope, unit, own_place)


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast(): members load from the root's source concurrently, because the root's SM would limit stores to all of them.

    If each member loaded all of a large message, the root's links would limit the rate. Therefore, each of the n - 1 others loads one slice
    and stores it into the dests of all of them, so that each byte leaves the root once.
    """
    pull, rank, size, sync = copy(unit, scope, get=True), scope.rank, scope.size, scope.sync
    announce, await_all, done = channel.write_flags(scope, flag), channel.wait_flags(scope), _sync_flags(scope, layout.DONE)

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, whole, root):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        shared = n > 2 and whole >= _RELAYED and (source | dest) & _BELOW_LINE == _0
        if root == me:
            if rank() < u32(32):
                ptx.fence_sys()
            announce(base, entry, layout.ARRIVED, epoch)
            if dest != source:
                pull(dest, source, nbytes, u64(rank()), u64(size()), False)
            if shared:
                sync()
                done(op, c, epoch)
            else:
                await_all(op, base, entry, layout.DONE, epoch)  # the source may be reused
        else:
            if rank() == 0:
                wait_flag(op, row_of(base, root) + layout.ARRIVED, epoch)
            sync()
            origin, taken = remote(source, member(entry, root)), _0
            if shared:
                taken = nbytes - (nbytes & _BELOW_LINE)
                part = (taken // _LINE + u64(n) - _2) // u64(n - 1) * _LINE
                first = min(u64(wrapped(u32(me + n - root - 1), n)) * part, taken)
                _relay(entry, root, origin, dest, first + u64(rank()) * _LINE, min(first + part, taken), u64(size()) * _LINE)
            pull(dest + taken, origin + taken, nbytes - taken, u64(rank()), u64(size()), False)
            sync()
            if shared:
                done(op, c, epoch)
            elif rank() == 0:
                flag(row_of(base, rank_of(entry)) + layout.DONE, epoch, member(entry, root))

    return broadcast


@device
def _relay(entry, root, origin, dest, at, end, step):
    """Copy pairs of words from origin to dest on all members except the root, at byte offsets at, at + step, ..., below end."""
    while at + _2 * step + step < end:
        a = ptx.ld_relaxed_sys_pair(origin + at)
        b = ptx.ld_relaxed_sys_pair(origin + at + step)
        c = ptx.ld_relaxed_sys_pair(origin + at + _2 * step)
        d = ptx.ld_relaxed_sys_pair(origin + at + _2 * step + step)
        q = rank_of(entry)
        for _ in range(size_of(entry)):
            if q != root:
                to = remote(dest + at, member(entry, q))
                ptx.st_pair_sys(to, a[0], a[1])
                ptx.st_pair_sys(to + step, b[0], b[1])
                ptx.st_pair_sys(to + _2 * step, c[0], c[1])
                ptx.st_pair_sys(to + _2 * step + step, d[0], d[1])
            q = after(q, size_of(entry))
        at += _2 * step + _2 * step
    while at < end:
        a = ptx.ld_relaxed_sys_pair(origin + at)
        q = rank_of(entry)
        for _ in range(size_of(entry)):
            if q != root:
                ptx.st_pair_sys(remote(dest + at, member(entry, q)), a[0], a[1])
            q = after(q, size_of(entry))
        at += step


def _of_pairs(combine: Combine) -> tuple[Any, Any, Any]:
    """Return ``first(w0, w1)``, ``add(acc, w0, w1)``, and ``last(acc)`` for two words, which are one item or two."""
    words, first, add, last = combine.words, combine.first, combine.add, combine.last

    if words == 2:
        begin, more, end = first, add, last
    else:

        @device
        def begin(w0, w1):
            return first(w0, _0), first(w1, _0)

        @device
        def more(acc, w0, w1):
            return add(acc[0], w0, _0), add(acc[1], w1, _0)

        @device
        def end(acc):
            return last(acc[0])[0], last(acc[1])[0]

    return begin, more, end


@device
def _on_members(origin, q, at):
    """A place of _of_members(): the source of member q. origin: team's entry, source."""
    return remote(origin[1] + at, member(origin[0], q))


@device
def _in_staging(origin, q, at):
    """A place of _of_members(): member q's part of staging, or this PE's source. origin: team's entry, source, first part of staging."""
    entry, source, staging = origin
    return (source if q == rank_of(entry) else staging + u64(q) * window.STAGING_PART) + at


def _of_members(load: Any, none: Any, begin: Any, more: Any, place: Any) -> Any:
    """Make ``total(origin, at, step)``: combine the data of all members, in their order.

    ``place(origin, q, at)`` returns an address in member q's data, ``load(at, step)`` loads the words there, ``none()`` returns words
    without a load, and ``begin(words)`` and ``more(acc, words)`` combine them. The words of up to four members are in flight at a time,
    because a load from a peer takes a microsecond. Words that are not loaded must come from ``none()``: a copy of loaded ones would wait
    for them before the next load.
    """

    @device
    def total(origin, at, step):
        n = size_of(origin[0])
        w = load(place(origin, u32(0), at), step)
        x, y, z = none(), none(), none()
        if n > 1:
            x = load(place(origin, u32(1), at), step)
        if n > 2:
            y = load(place(origin, u32(2), at), step)
        if n > 3:
            z = load(place(origin, u32(3), at), step)
        acc = begin(w)
        if n > 1:
            acc = more(acc, x)
        if n > 2:
            acc = more(acc, y)
        if n > 3:
            acc = more(acc, z)
        q = u32(4)
        while q < n:
            w = load(place(origin, q, at), step)
            if u32(q + u32(1)) < n:
                x = load(place(origin, u32(q + u32(1)), at), step)
            if u32(q + u32(2)) < n:
                y = load(place(origin, u32(q + u32(2)), at), step)
            if u32(q + u32(3)) < n:
                z = load(place(origin, u32(q + u32(3)), at), step)
            acc = more(acc, w)
            if u32(q + u32(1)) < n:
                acc = more(acc, x)
            if u32(q + u32(2)) < n:
                acc = more(acc, y)
            if u32(q + u32(3)) < n:
                acc = more(acc, z)
            q = u32(q + u32(4))
        return acc

    return total


@functools.cache
def _reduce_run(scope: Scope, combine: Combine, place: Any = _on_members) -> Any:
    """Make ``run(origin, dest, at, end, step, everywhere)``: combine pairs at byte offsets at, at + step, ..., below end.

    origin, place: see _of_members().

    A thread has two pairs of each of four members in flight; in a warp or alone, four, because fewer threads share the latency.
    """
    first, add, last = _of_pairs(combine)

    @device
    def load_one(at, step):
        return ptx.ld_relaxed_sys_pair(at)

    @device
    def begin_one(words):
        return first(words[0], words[1])

    @device
    def more_of_one(acc, words):
        return add(acc, words[0], words[1])

    @device
    def none_of_one():
        return _0, _0

    @device
    def load_two(at, step):
        a0, a1 = ptx.ld_relaxed_sys_pair(at)
        b0, b1 = ptx.ld_relaxed_sys_pair(at + step)
        return a0, a1, b0, b1

    @device
    def none_of_two():
        return _0, _0, _0, _0

    @device
    def begin_two(words):
        return first(words[0], words[1]), first(words[2], words[3])

    @device
    def more_of_two(acc, words):
        return add(acc[0], words[0], words[1]), add(acc[1], words[2], words[3])

    @device
    def load_four(at, step):
        return load_two(at, step), load_two(at + _2 * step, step)

    @device
    def none_of_four():
        return none_of_two(), none_of_two()

    @device
    def begin_four(words):
        return begin_two(words[0]), begin_two(words[1])

    @device
    def more_of_four(acc, words):
        return more_of_two(acc[0], words[0]), more_of_two(acc[1], words[1])

    one = _of_members(load_one, none_of_one, begin_one, more_of_one, place)
    two = _of_members(load_two, none_of_two, begin_two, more_of_two, place)
    four, fours = _of_members(load_four, none_of_four, begin_four, more_of_four, place), scope is not BLOCK

    @device
    def run(origin, dest, at, end, step, everywhere):
        entry = origin[0]
        while fours and at + _3 * step < end:
            acc = four(origin, at, step)
            a, b = last(acc[0][0]), last(acc[0][1])
            _store_pairs(entry, dest + at, step, (a, b, last(acc[1][0]), last(acc[1][1])), everywhere)
            at += _4 * step
        while at + step < end:
            acc = two(origin, at, step)
            _store_pair(entry, dest + at, last(acc[0]), everywhere)
            _store_pair(entry, dest + at + step, last(acc[1]), everywhere)
            at += _2 * step
        if at < end:
            _store_pair(entry, dest + at, last(one(origin, at, step)), everywhere)

    return run


@device
def _store_pairs(entry, at, step, pairs, everywhere):
    """Store four pairs at at, at + step, ... on this PE or on every member. Each member's number is loaded once for all."""
    if everywhere:
        q = rank_of(entry)
        for _ in range(size_of(entry)):
            q = after(q, size_of(entry))
            to = remote(at, member(entry, q))
            ptx.st_pair_sys(to, pairs[0][0], pairs[0][1])
            ptx.st_pair_sys(to + step, pairs[1][0], pairs[1][1])
            ptx.st_pair_sys(to + _2 * step, pairs[2][0], pairs[2][1])
            ptx.st_pair_sys(to + _3 * step, pairs[3][0], pairs[3][1])
    else:
        ptx.st_pair_plain(at, pairs[0][0], pairs[0][1])
        ptx.st_pair_plain(at + step, pairs[1][0], pairs[1][1])
        ptx.st_pair_plain(at + _2 * step, pairs[2][0], pairs[2][1])
        ptx.st_pair_plain(at + _3 * step, pairs[3][0], pairs[3][1])


@device
def _store_pair(entry, at, pair, everywhere):
    """Store two words on this PE or on every member."""
    if everywhere:
        q = rank_of(entry)
        for _ in range(size_of(entry)):
            q = after(q, size_of(entry))
            ptx.st_pair_sys(remote(at, member(entry, q)), pair[0], pair[1])
    else:
        ptx.st_pair_plain(at, pair[0], pair[1])


@functools.cache
def _reduce_items(unit: int, combine: Combine) -> Any:
    """Make ``run(entry, source, dest, at, end, step, nbytes, everywhere)``: combine item by item, for operands not aligned to 16 bytes."""
    load, store = load_item(unit, combine.words), store_item(unit, combine.words)
    first, add, last = combine.first, combine.add, combine.last

    @device
    def run(entry, source, dest, at, end, step, nbytes, everywhere):
        while at < end:
            w0, w1 = load(remote(source, member(entry, u32(0))) + at, nbytes - at)
            acc = first(w0, w1)
            for q in range(1, size_of(entry)):
                w0, w1 = load(remote(source, member(entry, u32(q))) + at, nbytes - at)
                acc = add(acc, w0, w1)
            item, q = last(acc), u32(0)
            for _ in range(size_of(entry) if everywhere else 1):
                store(remote(dest, member(entry, q)) + at if everywhere else dest + at, item, nbytes - at)
                q = u32(q + u32(1))
            at += step

    return run


@functools.cache
def _through_staging(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``through(op, c, epoch, dest, source, part, nbytes, everywhere)``: combine parts of ``part`` bytes, all multiples of 16.

    Each member sends every other member its part of source and combines what it has received. A thread has at most 16 loads in flight,
    and its own memory answers sooner than a peer's. The data has no flags, so what is received is overwritten with
    zeros, which no later collective takes for a line; the caller must fence before it sends anything.
    """
    move, arrive, run, rank, size, sync = (
        copy(unit, scope),
        _sync_flags(scope, layout.ARRIVED),
        _reduce_run(scope, combine, _in_staging),
        scope.rank,
        scope.size,
        scope.sync,
    )

    @device
    def through(op, c, epoch, dest, source, part, nbytes, everywhere):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        q, first, step = me, u64(rank()) * _LINE, u64(size()) * _LINE
        for _ in range(n - 1):
            q = after(q, n)
            at = min(u64(q) * part, nbytes)
            move(remote(line_at(c, epoch, me), member(entry, q)), source + at, min(part, nbytes - at), u64(rank()), u64(size()), False)
        sync()
        arrive(op, c, epoch)
        sync()
        at = min(u64(me) * part, nbytes)
        count = min(part, nbytes - at)
        run((entry, source + at, line_at(c, epoch, u32(0))), dest + at if everywhere else dest, first, count, step, everywhere)
        q = me
        for _ in range(n - 1):
            q = after(q, n)
            i = first
            while i < count:
                ptx.st_pair_plain(line_at(c, epoch, q) + i, _0, _0)
                i += step

    return through


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Reduce in two steps: a member combines its slice of all sources and stores it into every dest.

    dest may be source, because no other member reads this slice of it.
    """
    arrive, done, rank, size, sync = _sync_flags(scope, layout.ARRIVED), _sync_flags(scope, layout.DONE), scope.rank, scope.size, scope.sync
    pairs, items, item = _reduce_run(scope, combine), _reduce_items(unit, combine), constant(combine.words * layout.WORD)
    alone, through = scope is THREAD, _through_staging(scope, unit, combine)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        entry = c[1]
        n, me = u64(size_of(entry)), u64(rank_of(entry))
        part = ((nbytes + _BELOW_LINE) // _LINE + n - _1) // n * _LINE
        if alone and part <= window.STAGING_PART and (source | dest | nbytes) & _BELOW_LINE == _0:
            through(op, c, epoch, dest, source, part, nbytes, True)
            done(op, c, epoch)
            return epoch
        arrive(op, c, epoch)
        sync()
        at, end = min(me * part, nbytes), min((me + _1) * part, nbytes)
        if (source | dest) & _BELOW_LINE == _0:
            whole = end if end & _BELOW_LINE == _0 else end - (end & _BELOW_LINE)
            pairs((entry, source), dest, at + u64(rank()) * _LINE, whole, u64(size()) * _LINE, True)
            at = max(at, whole)
        items(entry, source, dest, at + u64(rank()) * item, end, u64(size()) * item, nbytes, True)
        sync()
        done(op, c, epoch)
        return epoch

    return reduce


@functools.cache
def reducescatter(scope: Scope, unit: int, combine: Combine) -> Any:
    """Strategy.reducescatter()."""
    arrive, done, rank, size, sync = _sync_flags(scope, layout.ARRIVED), _sync_flags(scope, layout.DONE), scope.rank, scope.size, scope.sync
    pairs, items, item = _reduce_run(scope, combine), _reduce_items(unit, combine), constant(combine.words * layout.WORD)
    alone, through = scope is THREAD, _through_staging(scope, unit, combine)

    @device
    def reducescatter(op, c, epoch, dest, source, step, nbytes):
        entry = c[1]
        if alone and nbytes <= window.STAGING_PART and (source | dest | nbytes) & _BELOW_LINE == _0:  # step is nbytes
            through(op, c, epoch, dest, source, nbytes, u64(size_of(entry)) * nbytes, False)
            ptx.fence_sys()  # the zeros are there before what the next collective sends
            return epoch
        own = source + u64(rank_of(entry)) * step
        arrive(op, c, epoch)
        sync()
        at = _0
        if (own | dest) & _BELOW_LINE == _0:
            at = nbytes - (nbytes & _BELOW_LINE)
            pairs((entry, own), dest, u64(rank()) * _LINE, at, u64(size()) * _LINE, False)
        items(entry, own, dest, at + u64(rank()) * item, nbytes, u64(size()) * item, nbytes, False)
        sync()
        done(op, c, epoch)  # then sources may be reused
        return epoch

    return reducescatter
