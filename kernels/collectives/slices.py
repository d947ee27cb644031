"""Reductions and broadcasts of large messages between members that map each other's memory: each member handles a slice of them."""

import functools
from typing import Any

from pgas.kernels import window
from pgas.kernels.collectives import channel, lines
from pgas.kernels.collectives.lines import line_at
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import load_item, load_word, store_item, store_word
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import after, member, rank_of, size_of, wrapped
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import BLOCK, THREAD, Scope
from pgas.kernels.typed import layout
from pgas.kernels.window import remote

_LINE, _BELOW_LINE = constant(16), constant(15)
_0, _1, _2, _3, _4, _8 = (constant(c) for c in (0, 1, 2, 3, 4, 8))


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
def _combine_both(combine: Combine) -> Any:
    """Make ``run(entry, source, dest, at, end, step)``: combine pairs of two members at byte offsets at, at + step, ..., below end.

    A thread has four pairs of the peer in flight.
    """
    first, add, last = _of_pairs(combine)

    @device
    def store(at, of_zero, of_one):
        pair = last(add(first(of_zero[0], of_zero[1]), of_one[0], of_one[1]))
        ptx.st_pair_plain(at, pair[0], pair[1])

    @device
    def run(entry, source, dest, at, end, step):
        zero, one = remote(source, member(entry, u32(0))), remote(source, member(entry, u32(1)))
        while at + _3 * step < end:
            a, b = ptx.ld_relaxed_sys_pair(zero + at), ptx.ld_relaxed_sys_pair(zero + at + step)
            c, d = ptx.ld_relaxed_sys_pair(zero + at + _2 * step), ptx.ld_relaxed_sys_pair(zero + at + _3 * step)
            w, x = ptx.ld_relaxed_sys_pair(one + at), ptx.ld_relaxed_sys_pair(one + at + step)
            y, z = ptx.ld_relaxed_sys_pair(one + at + _2 * step), ptx.ld_relaxed_sys_pair(one + at + _3 * step)
            store(dest + at, a, w)
            store(dest + at + step, b, x)
            store(dest + at + _2 * step, c, y)
            store(dest + at + _3 * step, d, z)
            at += _4 * step
        while at < end:
            store(dest + at, ptx.ld_relaxed_sys_pair(zero + at), ptx.ld_relaxed_sys_pair(one + at))
            at += step

    return run


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
        channel.sync_flags(scope, flag, layout.ARRIVED),
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


def _receiving(scope: Scope, unit: int, offset: Any) -> Any:
    """Make ``receive(op, c, epoch, dest, part, nbytes, root)``: store the slices that the other members have sent as lines.

    ``offset(q, n, part, root)`` returns the byte at which member q's slice begins; what is from nbytes on is not stored.
    """
    ones, store, rank, size = lines.ones(), store_word(unit), scope.rank, scope.size

    @device
    def keep(dest, at, word, nbytes):
        if at < nbytes:
            store(dest + at, word, nbytes - at)

    @device
    def receive(op, c, epoch, dest, part, nbytes, root):
        n, me, i = size_of(c[1]), rank_of(c[1]), u64(rank())
        while i * _8 < part:
            q = u32(0)
            while q < n:
                w = ones(op, c, epoch, q, n, i, _1)
                of_me, left = u32(me - q), u32(n - q)
                if of_me != 0:
                    keep(dest, offset(q, n, part, root) + i * _8, w[0], nbytes)
                if left > 1 and of_me != 1:
                    keep(dest, offset(u32(q + u32(1)), n, part, root) + i * _8, w[1], nbytes)
                if left > 2 and of_me != 2:
                    keep(dest, offset(u32(q + u32(2)), n, part, root) + i * _8, w[2], nbytes)
                if left > 3 and of_me != 3:
                    keep(dest, offset(u32(q + u32(3)), n, part, root) + i * _8, w[3], nbytes)
                q = u32(q + u32(4))
            i += u64(size())

    return receive


@device
def _of_all(q, n, part, root):
    return u64(q) * part


@device
def _of_others(q, n, part, root):
    """Every member except the root has a slice; the root's begins where the message has ended."""
    return u64(wrapped(u32(q + n - root - u32(1)), n)) * part


def _sending(scope: Scope, unit: int, offset: Any) -> Any:
    """Make ``send(c, epoch, source, part, nbytes, root)``: send every other member its slice as lines; words from nbytes on as zeros.

    offset: see _receiving().
    """
    load, rank, size = load_word(unit), scope.rank, scope.size

    @device
    def word_of(source, at, nbytes):
        return load(source + at, nbytes - at) if at < nbytes else _0

    @device
    def send(c, epoch, source, part, nbytes, root):
        n, i = size_of(c[1]), u64(rank())
        to = line_at(c, epoch, rank_of(c[1]))
        while i * _8 < part:
            q, k = rank_of(c[1]), u32(1)
            while k < n:  # The words of four members are loaded before any is sent.
                q0 = after(q, n)
                q1 = after(q0, n)
                q2 = after(q1, n)
                q = after(q2, n)
                w = word_of(source, offset(q0, n, part, root) + i * _8, nbytes)
                x = word_of(source, offset(q1, n, part, root) + i * _8, nbytes)
                y = word_of(source, offset(q2, n, part, root) + i * _8, nbytes)
                z = word_of(source, offset(q, n, part, root) + i * _8, nbytes)
                ptx.st_line(remote(to, member(c[1], q0)) + i * _LINE, w, u32(epoch))
                if u32(n - k) > 1:
                    ptx.st_line(remote(to, member(c[1], q1)) + i * _LINE, x, u32(epoch))
                if u32(n - k) > 2:
                    ptx.st_line(remote(to, member(c[1], q2)) + i * _LINE, y, u32(epoch))
                if u32(n - k) > 3:
                    ptx.st_line(remote(to, member(c[1], q)) + i * _LINE, z, u32(epoch))
                k = u32(k + u32(4))
            i += u64(size())

    return send


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Make ``broadcast(op, c, epoch, dest, source, part, nbytes, root)``: a broadcast in n - 1 slices of ``part`` bytes, as lines.

    The root sends each member a slice, which the member sends to the others, so that each byte leaves the root once. A part of staging has
    lines of one member only: those of the root the slice of the receiver, those of another member that member's slice.
    """
    send, receive, store = _sending(scope, unit, _of_others), _receiving(scope, unit, _of_others), store_word(unit)
    rank, size = scope.rank, scope.size

    @device
    def forward(op, c, epoch, dest, at, nbytes, i, root):
        w = lines.await_line(op, line_at(c, epoch, root) + i * _LINE, epoch)
        if at < nbytes:
            store(dest + at, w, nbytes - at)
        to, q = line_at(c, epoch, rank_of(c[1])) + i * _LINE, rank_of(c[1])
        for _ in range(size_of(c[1]) - 1):
            q = after(q, size_of(c[1]))
            if q != root:
                ptx.st_line(remote(to, member(c[1], q)), w, u32(epoch))

    @device
    def broadcast(op, c, epoch, dest, source, part, nbytes, root):
        if root == rank_of(c[1]):
            send(c, epoch, source, part, nbytes, root)
            return
        i, own = u64(rank()), _of_others(rank_of(c[1]), size_of(c[1]), part, root)
        while i * _8 < part:
            forward(op, c, epoch, dest, own + i * _8, nbytes, i, root)
            i += u64(size())
        receive(op, c, epoch, dest, part, nbytes, root)

    return broadcast


@functools.cache
def _through_lines(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``through(op, c, epoch, dest, source, part, nbytes)``: reduce in slices of ``part`` bytes, a multiple of 16, as lines.

    Each member sends its data of a slice to the slice's owner, which sends the results to all members, as lines of the next epoch. This
    takes one flight more than if every member sent everything to all others, but moves n / 2 times fewer bytes. What a slice has beyond
    nbytes is sent as zeros, and its results are not stored.

    *A line of the next epoch does not come too early*: its sender has received lines of this epoch from all members, so that they have left
    the previous collective, which used the same half of staging. Nor does a line of the epoch after that: its sender has received the
    results of all members, from threads that had read the lines of the same words. dest may be source, because a thread sends the words of
    source before it stores the results of the same words.
    """
    words, ones, send = combine.words, lines.ones(), _sending(scope, unit, _of_all)
    first, add, last, rank, size = combine.first, combine.add, combine.last, scope.rank, scope.size
    load, store, receive, each = load_item(unit, words), store_item(unit, words), _receiving(scope, unit, _of_all), constant(words)

    @device
    def combined(op, c, epoch, i, own):
        n, me, q = size_of(c[1]), rank_of(c[1]), u32(0)
        acc = first(_0, _0)
        while q < n:
            w = ones(op, c, epoch, q, n, i, _1)
            v = ones(op, c, epoch, q, n, i + _1, _1) if words == 2 else (_0, _0, _0, _0)
            of_me, left = u32(me - q), u32(n - q)
            w0, w1 = own if of_me == 0 else (w[0], v[0])
            acc = first(w0, w1) if q == 0 else add(acc, w0, w1)
            if left > 1:
                w0, w1 = own if of_me == 1 else (w[1], v[1])
                acc = add(acc, w0, w1)
            if left > 2:
                w0, w1 = own if of_me == 2 else (w[2], v[2])
                acc = add(acc, w0, w1)
            if left > 3:
                w0, w1 = own if of_me == 3 else (w[3], v[3])
                acc = add(acc, w0, w1)
            q = u32(q + u32(4))
        return last(acc)

    @device
    def announce(c, epoch, i, item):
        n, q = size_of(c[1]), rank_of(c[1])
        to = line_at(c, epoch, q) + i * _LINE
        for _ in range(n - 1):
            q = after(q, n)
            there = remote(to, member(c[1], q))
            ptx.st_line(there, item[0], u32(epoch))
            if words == 2:
                ptx.st_line(there + _LINE, item[1], u32(epoch))

    @device
    def through(op, c, epoch, dest, source, part, nbytes):
        send(c, epoch, source, part, nbytes, u32(0))
        i, own = u64(rank()) * each, u64(rank_of(c[1])) * part
        while i * _8 < part:
            at, item = own + i * _8, (_0, _0)
            if at < nbytes:
                item = load(source + at, nbytes - at)
            item = combined(op, c, epoch, i, item)
            if at < nbytes:
                store(dest + at, item, nbytes - at)
            announce(c, epoch + _1, i, item)
            i += u64(size()) * each
        receive(op, c, epoch + _1, dest, part, nbytes, u32(0))

    return through


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Strategy.reduce(): a member combines its slice of all sources, and stores it into every dest.

    dest may be source, because no other member reads this slice of it after its owner has combined it. If dest is not source, a block of
    each of two members combines both sources as a whole, if they are aligned to 16 bytes: then nothing is stored over the link, where loads
    and stores slow each other down.
    """
    arrive, done = channel.sync_flags(scope, flag, layout.ARRIVED), channel.sync_flags(scope, flag, layout.DONE)
    rank, size, sync = scope.rank, scope.size, scope.sync
    pairs, items, item = _reduce_run(scope, combine), _reduce_items(unit, combine), constant(combine.words * layout.WORD)
    alone, through, pushes = scope is THREAD, _through_staging(scope, unit, combine), scope is BLOCK
    in_lines, both = _through_lines(scope, unit, combine), _combine_both(combine)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        entry = c[1]
        n, me = u64(size_of(entry)), u64(rank_of(entry))
        part = ((nbytes + _BELOW_LINE) // _LINE + n - _1) // n * _LINE
        if pushes and n > _2 and part <= window.LL_BYTES and u32(epoch + _1) != u32(0):
            in_lines(op, c, epoch, dest, source, part, nbytes)
            return epoch + _1
        aligned = (source | dest) & _BELOW_LINE == _0
        if alone and part <= window.STAGING_PART and aligned and nbytes & _BELOW_LINE == _0:
            through(op, c, epoch, dest, source, part, nbytes, True)
            done(op, c, epoch)
            return epoch
        arrive(op, c, epoch)
        sync()
        at, end = min(me * part, nbytes), min((me + _1) * part, nbytes)
        if pushes and n == _2 and aligned and nbytes & _BELOW_LINE == _0 and dest != source:
            both(entry, source, dest, u64(rank()) * _LINE, nbytes, u64(size()) * _LINE)
            at = end
        elif aligned:
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
    arrive, done, rank, size, sync = (
        channel.sync_flags(scope, flag, layout.ARRIVED),
        channel.sync_flags(scope, flag, layout.DONE),
        scope.rank,
        scope.size,
        scope.sync,
    )
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
