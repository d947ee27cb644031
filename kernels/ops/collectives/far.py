"""Between members of whom some reach each other through a NIC only, over the job's path (in a job with two paths: near members by stores).

What goes through staging is sent by put_signal into the receiver's staging, with the epoch SET as its signal; large operands likewise into
dest. A signal that is added would count what a member sends in the next collective; one that is set cannot be mistaken. Threads of the
scope post to one member each.

Signals of one member come in order: they are posted to one queue pair, that of the block.
"""

import functools
from typing import Any

from pgas.kernels import layout, window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.collectives import channel
from pgas.kernels.ops.collectives.channel import half_of, member, rank_of, row_of, size_of, tellers, wait_flag
from pgas.kernels.ops.collectives.reduction import Combine
from pgas.kernels.ops.collectives.words import combined
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy
from pgas.kernels.scope import THREAD, WARP, Scope

#: Bytes of a broadcast that are forwarded at once.
CHUNK_BYTES = 256 << 10

#: A team of so many members meets in one round, a larger one in log2 of its size (dissemination; Hensgen, Finkel, Manber 1988).
_ONE_ROUND = 32

_CHUNK_BYTES, _CHUNK, _CHUNK_SHIFT = constant(CHUNK_BYTES), constant(layout.CHUNK), constant(layout.CHUNK_SHIFT)
_WORD, _ROW_SIZE, _ARRIVED, _DONE = constant(layout.WORD), constant(layout.ROW_SIZE), constant(layout.ARRIVED), constant(layout.DONE)
_0, _1, _PAIR = constant(0), constant(1), constant(16)


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


def send_same(scope: Scope, unit: int) -> Any:
    """Way.send_same()."""
    send_pieces = send_each(scope, unit)

    @device
    def send(op, c, epoch, source, nbytes):
        send_pieces(op, c, epoch, source, _0, nbytes)

    return send


@functools.cache
def send_each(scope: Scope, unit: int) -> Any:
    """Way.send_each()."""
    put, rank, size = _put(unit), scope.rank, scope.size

    @device
    def send(op, c, epoch, source, step, nbytes):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        to = part_of(c, epoch, me)
        k = u32(rank() + u32(1))
        while k < n:
            q = u32(me + k)
            if q >= n:
                q = u32(q - n)
            put(to, source + u64(q) * step, nbytes, row_of(base, me) + _ARRIVED, epoch, member(entry, q))
            k = u32(k + size())

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
    put, move, rank, size = _put(unit), copy(unit, warp=scope is WARP), scope.rank, scope.size
    await_all = channel.wait_flags(scope)

    @device
    def push(op, c, epoch, request):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        k = u32(rank() + u32(1))
        while k < n:
            q = u32(me + k)
            if q >= n:
                q = u32(q - n)
            to, source, nbytes = piece(c, q, request)
            put(to, source, nbytes, row_of(base, me) + _DONE, epoch, member(entry, q))
            k = u32(k + size())
        to, source, nbytes = piece(c, me, request)
        if to != source:
            move(to, source, nbytes, u64(rank()), u64(size()), False)
        await_all(op, base, entry, _DONE, epoch)

    return push


@functools.cache
def spread(scope: Scope, unit: int) -> Any:
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
    """In rounds of a part of staging for each member: it gets its slice from everybody, combines it, and puts it into every dest.

    A round needs two flights; the next one is sent before the results of this one are awaited. Results come in order: the last are awaited.
    No scratch memory, the order of members, and dest may be source: a slice has left a source before its result can come.
    """
    put, add_up, rank, size, sync = _put(unit), combined(scope, unit, combine, word()), scope.rank, scope.size, scope.sync
    gather, await_all, start, end = (
        collect(scope),
        channel.wait_flags(scope),
        begin(scope),
        channel.finish(scope, transport.current().flag),
    )

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry = c
        n, me = size_of(entry), rank_of(entry)
        part, offset = window.STAGING_PART, _0
        while True:
            k = u32(rank() + u32(1))
            while k < n:
                q = u32(me + k)
                if q >= n:
                    q = u32(q - n)
                at = min(offset + u64(q) * part, nbytes)
                put(part_of(c, epoch, me), source + at, min(part, nbytes - at), row_of(base, me) + _ARRIVED, epoch, member(entry, q))
                k = u32(k + size())
            gather(op, c, epoch)
            at = min(offset + u64(me) * part, nbytes)
            count = min(part, nbytes - at)
            add_up(op, c, epoch, dest + at, source + at, count, n)
            sync()
            k = u32(rank() + u32(1))
            while k < n:
                q = u32(me + k)
                if q >= n:
                    q = u32(q - n)
                put(dest + at, dest + at, count, row_of(base, me) + _DONE, epoch, member(entry, q))
                k = u32(k + size())
            offset += u64(n) * part
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
