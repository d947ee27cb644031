"""Between members of whom some reach each other through a NIC only, over the job's path (in a job with two paths: near members by stores).

What goes through staging is sent by put_signal into the receiver's staging, with the epoch SET as its signal; large operands likewise into
dest. A signal that is added would count what a member sends in the next collective; one that is set cannot be mistaken. Threads of the
scope post to one member each. In a job with two paths, all threads store to the near members, as near.py does; flags follow.

Signals from one member to another come in order: they are posted to one queue pair, that of the block.
"""

import functools
from typing import Any

from pgas.kernels import layout, state, window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.collectives import channel, near
from pgas.kernels.ops.collectives.channel import half_of, member, rank_of, row_of, size_of, tellers, wait_flag
from pgas.kernels.ops.collectives.reduction import Combine
from pgas.kernels.ops.collectives.words import combined, load_word, store_word
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy
from pgas.kernels.scope import THREAD, WARP, Scope
from pgas.kernels.window import remote

#: Bytes of a broadcast, and of a reduction in a ring, that are forwarded at once.
CHUNK_BYTES, PIECE_BYTES = 256 << 10, 64 << 10

#: A team of so many members meets in one round, a larger one in log2 of its size (dissemination; Hensgen, Finkel, Manber 1988).
_ONE_ROUND = 32

_CHUNK_BYTES, _CHUNK, _CHUNK_SHIFT = constant(CHUNK_BYTES), constant(layout.CHUNK), constant(layout.CHUNK_SHIFT)
_WORD, _ROW_SIZE, _ARRIVED, _DONE = constant(layout.WORD), constant(layout.ROW_SIZE), constant(layout.ARRIVED), constant(layout.DONE)
_0, _1, _15, _PAIR, _PIECE = constant(0), constant(1), constant(15), constant(16), constant(PIECE_BYTES)


@functools.cache
def begin(scope: Scope) -> Any:
    """Way.begin()."""
    start = channel.begin(scope, transport.current().flag)

    @device
    def begin(op, c):
        return start(op, c[0], c[1])

    return begin


def leave(scope: Scope) -> Any:
    """As finish() where only flags were sent."""
    end = channel.finish(scope, transport.current().flag)

    @device
    def leave(op, c, epoch):
        end(c[0], c[1], epoch)

    return leave


def finish(scope: Scope, *, one_sided: bool = False) -> Any:
    """As channel.finish(); what this member has sent is complete before, so its source may be reused."""
    path, rank, size = transport.current(), scope.rank, scope.size
    end, complete = channel.finish(scope, path.flag, one_sided=one_sided), path.quiet_pe

    @device
    def finish(op, c, epoch):
        n, me = size_of(c[1]), rank_of(c[1])
        i = rank()
        while i < n:
            if i != me:
                complete(member(c[1], i))
            i = u32(i + size())
        end(c[0], c[1], epoch)

    return finish


def meet(scope: Scope, *, completes: bool) -> Any:
    """Way.meet()."""
    quiet, rank, sync, round_ = transport.current().quiet, scope.rank, scope.sync, rounds(scope, transport.current().flag)

    @device
    def meet(op, c, epoch):
        base, entry = c
        if completes:
            if rank() == 0:
                quiet()
            sync()
        round_(op, row_of(base, _0), entry, size_of(entry), rank_of(entry), epoch)

    return meet


@functools.cache
def rounds(scope: Scope, flag: Any, pe_of: Any = member) -> Any:
    """Make ``rounds(op, rows, entry, n, me, epoch)``: meet by the flags ARRIVED of rows; acquires.

    In one round each of the first warp's threads tells some members. In several (dissemination), one thread tells a member and waits for
    another each time. pe_of: ``pe_of(entry, i)`` returns the PE of member i.
    """
    rank, size = scope.rank, scope.size

    @device
    def rounds(op, rows, entry, n, me, epoch):
        at = rows + u64(me) * _ROW_SIZE + _ARRIVED
        once, step = n <= _ONE_ROUND, tellers(size())
        distance = u32(rank() + u32(1))
        while distance < n and rank() < (step if once else u32(1)):
            to = u32(me + distance)
            flag(at, epoch, pe_of(entry, to if to < n else u32(to - n)))
            if once:
                distance = u32(distance + step)
            else:
                origin = u32(me + n - distance)
                wait_flag(op, rows + u64(origin if origin < n else u32(origin - n)) * _ROW_SIZE + _ARRIVED, epoch)
                distance = u32(distance + distance)
        if once:
            distance = u32(rank() + u32(1))
            while distance < n and rank() < step:
                origin = u32(me + n - distance)
                wait_flag(op, rows + u64(origin if origin < n else u32(origin - n)) * _ROW_SIZE + _ARRIVED, epoch)
                distance = u32(distance + step)

    return rounds


# Through staging ----------------------------------------------------------------------------------------------------------------


@functools.cache
def _put(unit: int) -> Any:
    """put_signal_nbi() of a thread that sets the signal."""
    send = transport.current().put_signal("put_signal_nbi", THREAD, unit, nbi=True)

    @device
    def put(to, source, nbytes, word, value, pe):
        send(to, source, nbytes, word, value, False, pe)

    return put


@functools.cache
def _scatter(scope: Scope, unit: int, word: int, piece: Any) -> Any:
    """Make ``scatter(c, epoch, request)``: a piece to every other member, and epoch to a word of this PE's row behind it.

    ``piece(c, q, request)``: as Way.push() says.
    """
    put, rank, size, sync, _word, two = _put(unit), scope.rank, scope.size, scope.sync, constant(word), transport.two_paths()
    move, tell = copy(unit, warp=scope is WARP), near.flag

    @device
    def by_nic(c, epoch, request):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        k = u32(rank() + u32(1))
        while k < n:
            q = u32(me + k)
            if q >= n:
                q = u32(q - n)
            pe = member(entry, q)
            if not two or not state.near(pe):
                to, source, nbytes = piece(c, q, request)
                put(to, source, nbytes, row_of(base, me) + _word, epoch, pe)
            k = u32(k + size())

    if not two:
        return by_nic

    @device
    def by_both(c, epoch, request):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        by_nic(c, epoch, request)
        for q in range(n):
            pe = member(entry, u32(q))
            if q != me and state.near(pe):
                to, source, nbytes = piece(c, u32(q), request)
                move(remote(to, pe), source, nbytes, u64(rank()), u64(size()), False)
        sync()
        q, step = rank(), tellers(size())
        if q < step:
            ptx.fence_sys()
        while q < n and rank() < step:
            pe = member(entry, q)
            if q != me and state.near(pe):
                tell(row_of(base, me) + _word, epoch, pe)
            q = u32(q + step)

    return by_both


@device
def _same(c, q, request):
    """The piece of send_same(): into this PE's part of the receiver's staging. request: epoch, source, bytes."""
    epoch, source, nbytes = request
    return part_of(c, epoch, rank_of(c[1])), source, nbytes


@device
def _each(c, q, request):
    """The piece of send_each(). request: epoch, source, step, bytes."""
    epoch, source, step, nbytes = request
    return part_of(c, epoch, rank_of(c[1])), source + u64(q) * step, nbytes


@functools.cache
def send_same(scope: Scope, unit: int) -> Any:
    """Way.send_same()."""
    scatter = _scatter(scope, unit, layout.ARRIVED, _same)

    @device
    def send(op, c, epoch, source, nbytes):
        scatter(c, epoch, (epoch, source, nbytes))

    return send


@functools.cache
def send_each(scope: Scope, unit: int) -> Any:
    """Way.send_each()."""
    scatter = _scatter(scope, unit, layout.ARRIVED, _each)

    @device
    def send(op, c, epoch, source, step, nbytes):
        scatter(c, epoch, (epoch, source, step, nbytes))

    return send


def send_words(scope: Scope, values: Any) -> Any:
    """The words lie in this PE's own part of its staging, which nobody else writes, until they are sent."""
    put, rank, size = _put(8), scope.rank, scope.size

    @device
    def send(op, c, epoch, request):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        to = part_of(c, epoch, me)
        q = rank()
        while q < n:
            if q != me:
                w0, w1 = values(q, request)
                here = to + u64(q) * _PAIR
                ptx.st_pair_sys(here, w0, w1)
                put(to, here, _PAIR, row_of(base, me) + _ARRIVED, epoch, member(entry, q))
            q = u32(q + size())

    return send


def collect(scope: Scope) -> Any:
    """Way.collect()."""
    await_all, sync = channel.wait_flags(scope), scope.sync

    @device
    def collect(op, c, epoch):
        await_all(op, c[0], c[1], _ARRIVED, epoch)
        sync()

    return collect


def collect_of(scope: Scope) -> Any:
    """Way.collect_of()."""
    rank, sync = scope.rank, scope.sync

    @device
    def collect(op, c, epoch, q):
        if rank() == 0:
            wait_flag(op, row_of(c[0], q) + _ARRIVED, epoch)
        sync()

    return collect


@device
def part_of(c, epoch, q):
    """Return the address of member q's part of staging."""
    return half_of(c[0], c[1], epoch) + u64(q) * window.STAGING_PART


def word() -> Any:
    """Way.word()."""
    load = ptx.ld_plain[8]

    @device
    def word(op, c, epoch, q, i):
        return load(part_of(c, epoch, q) + i * _WORD)

    return word


# Between operands ---------------------------------------------------------------------------------------------------------------


def push(scope: Scope, unit: int, piece: Any) -> Any:
    """Way.push()."""
    scatter, move, rank, size = _scatter(scope, unit, layout.DONE, piece), copy(unit, warp=scope is WARP), scope.rank, scope.size
    await_all = channel.wait_flags(scope)

    @device
    def push(op, c, epoch, request):
        base, entry = c
        scatter(c, epoch, request)
        to, source, nbytes = piece(c, rank_of(entry), request)
        if to != source:
            move(to, source, nbytes, u64(rank()), u64(size()), False)
        await_all(op, base, entry, _DONE, epoch)

    return push


@functools.cache
def spread(scope: Scope, unit: int) -> Any:
    """Way.spread(). In a job with two paths the root sends to all members."""
    if transport.two_paths():
        return _spread_of_root(scope, unit)
    return _spread_by_members(scope, unit)


def _spread_of_root(scope: Scope, unit: int) -> Any:
    scatter, move, rank, size, sync = (
        _scatter(scope, unit, layout.DONE, _whole),
        copy(unit, warp=scope is WARP),
        scope.rank,
        scope.size,
        scope.sync,
    )

    @device
    def spread(op, c, epoch, dest, source, nbytes, root):
        if root == rank_of(c[1]):
            scatter(c, epoch, (dest, source, nbytes))
            if dest != source:
                move(dest, source, nbytes, u64(rank()), u64(size()), False)
        elif rank() == 0:
            wait_flag(op, row_of(c[0], root) + _DONE, epoch)
        sync()

    return spread


@device
def _whole(c, q, request):
    return request


def _spread_by_members(scope: Scope, unit: int) -> Any:
    """Up to a chunk: along a binomial tree, from the root on. More: along a chain, chunk by chunk; a member forwards one when it has it."""
    put, move, rank, size = _put(unit), copy(unit, warp=scope is WARP), scope.rank, scope.size

    @device
    def tree(op, c, epoch, dest, source, nbytes, root):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        mine = u32(me - root if me >= root else me + n - root)  # numbers from the root on
        distance = u32(1)
        while distance < n:
            if mine < distance:
                to = u32(mine + distance)
                if to < n:
                    to = u32(to + root)
                    origin = source if mine == 0 else dest
                    put(dest, origin, nbytes, row_of(base, me) + _DONE, epoch, member(entry, to if to < n else u32(to - n)))
            elif mine < distance + distance:
                origin = u32(mine - distance + root)
                wait_flag(op, row_of(base, origin if origin < n else u32(origin - n)) + _DONE, epoch)
            distance = u32(distance + distance)

    @device
    def chain(op, c, epoch, dest, source, nbytes, root):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        mine = u32(me - root if me >= root else me + n - root)
        before, behind = u32(me + n - 1), u32(me + 1)
        before, behind = before if before < n else u32(before - n), behind if behind < n else u32(behind - n)
        done, sent = _0, epoch << _CHUNK_SHIFT
        while done < nbytes:
            sent += _1
            if mine != 0:
                wait_flag(op, row_of(base, before) + _CHUNK, sent)
            if mine != n - 1:
                origin = (source if mine == 0 else dest) + done
                put(dest + done, origin, min(nbytes - done, _CHUNK_BYTES), row_of(base, me) + _CHUNK, sent, member(entry, behind))
            done += _CHUNK_BYTES

    @device
    def spread(op, c, epoch, dest, source, nbytes, root):
        if rank() == 0:
            if nbytes <= _CHUNK_BYTES:
                tree(op, c, epoch, dest, source, nbytes, root)
            else:
                chain(op, c, epoch, dest, source, nbytes, root)
        if root == rank_of(c[1]) and dest != source:
            move(dest, source, nbytes, u64(rank()), u64(size()), False)

    return spread


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Way.reduce(): in a ring if that pays and dest can take what is under way, else in rounds through staging."""
    in_rounds, two = _reduce_in_rounds(scope, unit, combine), transport.two_paths()
    if two:
        return in_rounds
    in_ring = _reduce_in_ring(scope, unit, combine)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        if dest == source or nbytes <= u64(size_of(c[1])) * window.STAGING_PART:
            epoch = in_rounds(op, c, epoch, dest, source, nbytes)
        else:
            in_ring(op, c, epoch, dest, source, nbytes)
        return epoch

    return reduce


def _reduce_in_ring(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``reduce(op, c, epoch, dest, source, nbytes)``: reduce-scatter, then all-gather, in a ring, by pieces (Patarasuk and Yuan 2009).

    The slice that begins at member i + 1 is combined in the order of the ring and ends at member i. Each slice is combined once, so all
    members have the same bits. dest takes partial results: a member adds its source to a piece in its dest and sends it on. The final
    piece comes to the same place when the partial one has long been delivered, as it depends on it.
    """
    put, rank, size, sync, words = _put(unit), scope.rank, scope.size, scope.sync, combine.words
    load, store, first, add, last = load_word(unit), store_word(unit), combine.first, combine.add, combine.last
    item = constant(words * layout.WORD)

    @device
    def add_own(dest, source, nbytes):
        at = u64(rank()) * item
        while at < nbytes:
            w0, w1 = load(dest + at, nbytes - at), load(dest + at + _WORD, nbytes - at - _WORD) if words == 2 else _0
            acc = first(w0, w1)
            w0, w1 = load(source + at, nbytes - at), load(source + at + _WORD, nbytes - at - _WORD) if words == 2 else _0
            w0, w1 = last(add(acc, w0, w1))
            store(dest + at, w0, nbytes - at)
            if words == 2:
                store(dest + at + _WORD, w1, nbytes - at - _WORD)
            at += u64(size()) * item

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        before, behind = u32(me + n - 1), u32(me + 1)
        before, behind = before if before < n else u32(before - n), behind if behind < n else u32(behind - n)
        slice_ = ((nbytes + _15) // _PAIR + u64(n) - _1) // u64(n) * _PAIR
        received = sent = epoch << _CHUNK_SHIFT
        # In turn k a member sends slice me - k: at first its own, then what has come in the turn before; from turn n - 1 on, final ones.
        for k in range(2 * n - 1):
            which = u32(me + 2 * n - u32(k)) % n
            at, end = min(u64(which) * slice_, nbytes), min((u64(which) + _1) * slice_, nbytes)
            while at < end:
                count = min(end - at, _PIECE)
                if k != 0:
                    received += _1
                    if rank() == 0:
                        wait_flag(op, row_of(base, before) + _CHUNK, received)
                    sync()
                    if k < n:
                        add_own(dest + at, source + at, count)
                        sync()
                if k != 2 * n - 2:
                    sent += _1
                    if rank() == 0:
                        origin = source if k == 0 else dest
                        put(dest + at, origin + at, count, row_of(base, me) + _CHUNK, sent, member(entry, behind))
                at += count

    return reduce


@device
def _slice(c, q, request):
    """The piece of a round: slice q of source, into staging. request: epoch, source, bytes, offset of the round."""
    epoch, source, nbytes, offset = request
    at = min(offset + u64(q) * window.STAGING_PART, nbytes)
    return part_of(c, epoch, rank_of(c[1])), source + at, min(window.STAGING_PART, nbytes - at)


def _reduce_in_rounds(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``reduce(op, c, epoch, dest, source, nbytes)``: in rounds of a part of staging for each member.

    A member gets its slice from everybody, combines it in the order of members, and puts it into every dest. A round needs two flights.
    Results come in order, so only the last are awaited. dest may be source: a slice has left a source before its result can come.
    """
    send, share = _scatter(scope, unit, layout.ARRIVED, _slice), _scatter(scope, unit, layout.DONE, _whole)
    add_up, sync = combined(scope, unit, combine, word()), scope.sync
    gather, await_all, start = collect(scope), channel.wait_flags(scope), begin(scope)
    end = channel.finish(scope, transport.current().flag)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry = c
        n, offset = size_of(entry), _0
        while True:
            send(c, epoch, (epoch, source, nbytes, offset))
            gather(op, c, epoch)
            at = min(offset + u64(rank_of(entry)) * window.STAGING_PART, nbytes)
            count = min(window.STAGING_PART, nbytes - at)
            add_up(op, c, epoch, dest + at, source + at, count, n)
            sync()
            share(c, epoch, (dest + at, dest + at, count))
            offset += u64(n) * window.STAGING_PART
            if offset >= nbytes:
                break
            end(base, entry, epoch)
            sync()
            epoch = start(op, c)
        await_all(op, base, entry, _DONE, epoch)
        return epoch

    return reduce


@functools.cache
def reducescatter(scope: Scope, unit: int, combine: Combine) -> Any:
    """Way.reducescatter()."""
    send, add_up, sync = send_each(scope, unit), combined(scope, unit, combine, word()), scope.sync
    gather, start, end = collect(scope), begin(scope), channel.finish(scope, transport.current().flag)

    @device
    def reducescatter(op, c, epoch, dest, source, nbytes):
        base, entry = c
        offset = _0
        while True:
            count = min(window.STAGING_PART, nbytes - offset)
            send(op, c, epoch, source + offset, nbytes, count)
            gather(op, c, epoch)
            add_up(op, c, epoch, dest + offset, source + u64(rank_of(entry)) * nbytes + offset, count, size_of(entry))
            offset += window.STAGING_PART
            if offset >= nbytes:
                break
            end(base, entry, epoch)
            sync()
            epoch = start(op, c)
        return epoch

    return reducescatter
