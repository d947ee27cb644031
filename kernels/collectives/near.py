"""The strategy if all members map each other's memory.

Small messages are sent as LL-16 lines (NCCL's protocol): a 16-byte store has 8 bytes of data and twice the epoch; the receiver polls the
line in its own memory. This takes one flight, without a fence or a barrier. Larger messages are stored into dest or loaded from source,
with flags before and after.

Lines need not be ordered, because each has its own flag. Data stored into dest is ordered before DONE: the threads of the scope
synchronize, then the threads that write flags fence at system scope, which covers the others' stores (PTX ISA, causality order).
"""

import functools
from typing import Any

from pgas.kernels import layout, state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.collectives import channel
from pgas.kernels.collectives.channel import POLLS_MASK, given_up, half_of, row_of, wait_flag
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import first_of, load_item, load_word, store_item
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import after, member, rank_of, size_of
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import WARP, Scope
from pgas.kernels.window import remote

_LINE, _WORD, _WARP = constant(16), constant(layout.WORD), constant(32)
_ARRIVED, _DONE = constant(layout.ARRIVED), constant(layout.DONE)
_EQ = constant(Comparison.EQ)
_0, _1, _2, _7, _BELOW_LINE, _32 = (constant(c) for c in (0, 1, 2, 7, 15, 32))


@functools.cache
def begin(scope: Scope) -> Any:
    """Strategy.begin()."""
    start = channel.begin(scope, flag)

    @device
    def begin(op, c):
        return start(op, c[0], c[1])

    return begin


def finish(scope: Scope, *, one_sided: bool = False) -> Any:
    """Strategy.finish()."""
    end = channel.finish(scope, flag, one_sided=one_sided)

    @device
    def finish(op, c, epoch):
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
        base, entry = c
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


@device
def line_at(c, epoch, q):
    """Return the address of the first line of member q in this PE's staging."""
    return half_of(c[0], c[1], epoch) + u64(q) * window.STAGING_PART


@functools.cache
def send_same(scope: Scope, unit: int) -> Any:
    """Strategy.send_same()."""
    load, rank, size = load_word(unit), scope.rank, scope.size

    @device
    def send(op, c, epoch, source, nbytes):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        to = line_at(c, epoch, me)
        i = u64(rank())
        while i * _WORD < nbytes:
            word = load(source + i * _WORD, nbytes - i * _WORD)
            q = me
            for _ in range(n - 1):
                q = after(q, n)
                ptx.st_line(remote(to, member(entry, q)) + i * _LINE, word, u32(epoch))
            i += u64(size())

    return send


@functools.cache
def send_each(scope: Scope, unit: int) -> Any:
    """Strategy.send_each()."""
    load, first, size = load_word(unit), first_of(scope), scope.size

    @device
    def send(op, c, epoch, source, step, nbytes):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        to = line_at(c, epoch, me)
        q = me
        for k in range(1, n):
            q = after(q, n)
            there, here = remote(to, member(entry, q)), source + u64(q) * step
            i = first(k)
            while i * _WORD < nbytes:
                ptx.st_line(there + i * _LINE, load(here + i * _WORD, nbytes - i * _WORD), u32(epoch))
                i += u64(size())

    return send


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
        if polls & POLLS_MASK == 0:
            if deadline == _0:
                deadline = ptx.globaltimer() + state.timeout_ns()
            if given_up(op, at, _EQ, epoch, u64(one), deadline):
                break
        state.relax(op, at, _EQ, epoch)
        low, one, high, other = ptx.ld_line(at)
    return u64(low) | u64(high) << _32


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
    move, done, rank, size, sync = copy(unit, warp=scope is WARP), _sync_flags(scope, layout.DONE), scope.rank, scope.size, scope.sync

    @device
    def exchange(op, c, epoch, request):
        entry = c[1]
        n, me = size_of(entry), rank_of(entry)
        q = me
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
    """The piece of exchange() in an fcollect. request: dest, source, bytes of each member."""
    dest, source, nbytes = request
    return dest + u64(rank_of(c[1])) * nbytes, source, nbytes


@functools.cache
def fcollect(scope: Scope, unit: int) -> Any:
    """Strategy.fcollect()."""
    to_all = exchange(scope, unit, own_place)

    @device
    def fcollect(op, c, epoch, dest, source, nbytes):
        to_all(op, c, epoch, (dest, source, nbytes))

    return fcollect


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast(): members load from the root's source concurrently, because the root's SM would limit stores to all of them."""
    pull, rank, size, sync = copy(unit, get=True, warp=scope is WARP), scope.rank, scope.size, scope.sync
    announce, await_all = channel.write_flags(scope, flag), channel.wait_flags(scope)

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, root):
        base, entry = c
        if root == rank_of(entry):
            if rank() < u32(32):
                ptx.fence_sys()
            announce(base, entry, _ARRIVED, epoch)
            if dest != source:
                pull(dest, source, nbytes, u64(rank()), u64(size()), False)
            await_all(op, base, entry, _DONE, epoch)  # the source may be reused
        else:
            if rank() == 0:
                wait_flag(op, row_of(base, root) + _ARRIVED, epoch)
            sync()
            pull(dest, remote(source, member(entry, root)), nbytes, u64(rank()), u64(size()), False)
            sync()
            if rank() == 0:
                flag(row_of(base, rank_of(entry)) + _DONE, epoch, member(entry, root))

    return broadcast


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


@functools.cache
def _reduce_run(combine: Combine) -> Any:
    """Make ``run(entry, source, dest, at, end, step, everywhere)``: combine pairs at byte offsets at, at + step, ..., below end.

    Four pairs are combined at a time: one member's pairs are loaded while those of the previous member are added.
    """
    begin, more, end_of = _of_pairs(combine)

    @device
    def load(origin, step):
        a0, a1 = ptx.ld_relaxed_sys_pair(origin)
        b0, b1 = ptx.ld_relaxed_sys_pair(origin + step)
        c0, c1 = ptx.ld_relaxed_sys_pair(origin + _2 * step)
        d0, d1 = ptx.ld_relaxed_sys_pair(origin + _2 * step + step)
        return a0, a1, b0, b1, c0, c1, d0, d1

    @device
    def four(entry, source, step):
        n = size_of(entry)
        found = load(remote(source, member(entry, u32(0))), step)
        acc = begin(found[0], found[1]), begin(found[2], found[3]), begin(found[4], found[5]), begin(found[6], found[7])
        if n > 1:
            found = load(remote(source, member(entry, u32(1))), step)
        for q in range(2, n + 1):
            ready = found
            if q < n:
                found = load(remote(source, member(entry, u32(q))), step)
            acc = (
                more(acc[0], ready[0], ready[1]), more(acc[1], ready[2], ready[3]),
                more(acc[2], ready[4], ready[5]), more(acc[3], ready[6], ready[7]),
            )  # fmt: skip
        return end_of(acc[0]), end_of(acc[1]), end_of(acc[2]), end_of(acc[3])

    @device
    def one(entry, source):
        w0, w1 = ptx.ld_relaxed_sys_pair(remote(source, member(entry, u32(0))))
        acc = begin(w0, w1)
        for q in range(1, size_of(entry)):
            w0, w1 = ptx.ld_relaxed_sys_pair(remote(source, member(entry, u32(q))))
            acc = more(acc, w0, w1)
        return end_of(acc)

    @device
    def run(entry, source, dest, at, end, step, everywhere):
        while at + _2 * step + step < end:
            pairs = four(entry, source + at, step)
            store_pair(entry, dest + at, pairs[0], everywhere)
            store_pair(entry, dest + at + step, pairs[1], everywhere)
            store_pair(entry, dest + at + _2 * step, pairs[2], everywhere)
            store_pair(entry, dest + at + _2 * step + step, pairs[3], everywhere)
            at += _2 * step + _2 * step
        while at < end:
            store_pair(entry, dest + at, one(entry, source + at), everywhere)
            at += step

    return run


@device
def store_pair(entry, at, pair, everywhere):
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
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Reduce in two steps: a member combines its slice of all sources and stores it into every dest.

    dest may be source, because no other member reads this slice of it.
    """
    arrive, done, rank, size, sync = _sync_flags(scope, layout.ARRIVED), _sync_flags(scope, layout.DONE), scope.rank, scope.size, scope.sync
    pairs, items, item = _reduce_run(combine), _reduce_items(unit, combine), constant(combine.words * layout.WORD)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        entry = c[1]
        n, me = u64(size_of(entry)), u64(rank_of(entry))
        arrive(op, c, epoch)
        sync()
        part = ((nbytes + _BELOW_LINE) // _LINE + n - _1) // n * _LINE
        at, end = min(me * part, nbytes), min((me + _1) * part, nbytes)
        if (source | dest) & _BELOW_LINE == _0:
            whole = end if end & _BELOW_LINE == _0 else end - (end & _BELOW_LINE)
            pairs(entry, source, dest, at + u64(rank()) * _LINE, whole, u64(size()) * _LINE, True)
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
    pairs, items, item = _reduce_run(combine), _reduce_items(unit, combine), constant(combine.words * layout.WORD)

    @device
    def reducescatter(op, c, epoch, dest, source, nbytes):
        entry = c[1]
        own = source + u64(rank_of(entry)) * nbytes
        arrive(op, c, epoch)
        sync()
        at = _0
        if (own | dest) & _BELOW_LINE == _0:
            at = nbytes - (nbytes & _BELOW_LINE)
            pairs(entry, own, dest, u64(rank()) * _LINE, at, u64(size()) * _LINE, False)
        items(entry, own, dest, at + u64(rank()) * item, nbytes, u64(size()) * item, nbytes, False)
        sync()
        done(op, c, epoch)  # then sources may be reused
        return epoch

    return reducescatter
