"""The strategy if not all members map each other's memory: over the job's path; with two transports, by stores to near members.

Small messages are sent into the receiver's staging (posted.py), large operands into dest (rings.py). Signals from one member to another
arrive in order, because they are posted to a single queue pair, that of the block. In jobs with two transports, nodes.py handles large
operands of regular teams.

*When a half of staging is free, no data of another member is on its way to it.* A member completes what it has sent before finish() ends a
collective. What ends with channel.finish() instead is a round whose data all receivers have awaited before their next round. If a member
knows that all others have left collective e - 2 (channel.py), all data for e - 2 has therefore arrived everywhere, and the parts of a half
may be divided differently.
"""

import functools
from typing import Any

from pgas.kernels import window
from pgas.kernels.collectives import channel, near, nodes, posted, rings
from pgas.kernels.collectives.channel import flag_threads, half_of, row_of, wait_far
from pgas.kernels.collectives.comparison import declaring, verifying
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import combined, load_four
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import member, per_machine, rank_of, size_of, wrapped
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout

#: Maximum team size for synchronizing in one round. Larger teams need log2(n) rounds (dissemination; Hensgen, Finkel, Manber 1988).
_ONE_ROUND = 32

_0, _1, _PAIR, _64 = constant(0), constant(1), constant(16), constant(64)


@functools.cache
def begin(scope: Scope) -> Any:
    """Strategy.begin()."""
    start, declare = channel.begin(scope, transport.current().flag), declaring(scope, transport.current().flag)

    @device
    def begin(op, c):
        epoch = start(op, c[0], c[1])
        declare(c, epoch)
        return epoch

    return begin


def leave(scope: Scope) -> Any:
    """Strategy.leave(): nothing to complete, because only flags were sent."""
    end, verify = channel.finish(scope, transport.current().flag), verifying(scope, waits=True)

    @device
    def leave(op, c, epoch):
        verify(op, c)
        end(c[0], c[1], epoch)

    return leave


def finish(scope: Scope, *, one_sided: bool = False) -> Any:
    """Strategy.finish(): first complete what this member has sent, so that its source may be reused."""
    end, complete, sync = channel.finish(scope, transport.current().flag, one_sided=one_sided), _complete(scope), scope.sync
    verify = verifying(scope, waits=not one_sided)

    @device
    def finish(op, c, epoch):
        sync()  # any thread may have posted to any member
        complete(c)
        verify(op, c)
        end(c[0], c[1], epoch)

    return finish


@functools.cache
def _complete(scope: Scope) -> Any:
    """Make ``complete(c)``: complete what all threads have sent, each thread for some members; called between two barriers of the scope."""
    rank, size, quiet = scope.rank, scope.size, transport.current().quiet_pe

    @device
    def complete(c):
        n, me = size_of(c[1]), rank_of(c[1])
        i = rank()
        while i < n:
            if i != me:
                quiet(member(c[1], i))
            i = u32(i + size())

    return complete


def barrier(scope: Scope, *, completes: bool) -> Any:
    """Strategy.barrier()."""
    quiet, rank, sync, round_ = transport.current().quiet, scope.rank, scope.sync, rounds(scope, transport.current().flag)

    @device
    def barrier(op, c, epoch):
        base, entry, _ = c
        if completes:
            if rank() == 0:
                quiet()
            sync()
        round_(op, row_of(base, _0), entry, size_of(entry), rank_of(entry), epoch)

    return barrier


@functools.cache
def rounds(scope: Scope, flag: Any, pe_of: Any = member) -> Any:
    """Make ``rounds(op, rows, entry, n, me, epoch)``: synchronize members by the flags ARRIVED of rows; acquires.

    In a single round, each thread of the first warp signals some members. In each of several rounds (dissemination), one thread signals a
    member and waits for another. pe_of: ``pe_of(entry, i)`` returns the PE of member i.
    """
    rank, size, await_far = scope.rank, scope.size, wait_far()

    @device
    def rounds(op, rows, entry, n, me, epoch):
        at = rows + u64(me) * layout.ROW_SIZE + layout.ARRIVED
        once, step = n <= _ONE_ROUND, flag_threads(size())
        distance = u32(rank() + u32(1))
        while distance < n and rank() < (step if once else u32(1)):
            flag(at, epoch, pe_of(entry, wrapped(u32(me + distance), n)))
            if once:
                distance = u32(distance + step)
            else:
                await_far(op, rows + u64(wrapped(u32(me + n - distance), n)) * layout.ROW_SIZE + layout.ARRIVED, epoch)
                ptx.fence_sys()  # the next flag passes on what this one has made visible
                distance = u32(distance + distance)
        if once:
            distance = u32(rank() + u32(1))
            while distance < n and rank() < step:
                await_far(op, rows + u64(wrapped(u32(me + n - distance), n)) * layout.ROW_SIZE + layout.ARRIVED, epoch)
                distance = u32(distance + step)

    return rounds


# Through staging ----------------------------------------------------------------------------------------------------------------


@device
def _same(c, q, request):
    """The piece of send_same(): into this PE's part of the receiver's staging. request: epoch, source, bytes."""
    epoch, source, nbytes = request
    return posted.part_of(c, epoch, rank_of(c[1])), source, nbytes


@device
def _each(c, q, request):
    """The piece of send_each(). request: epoch, source, step, bytes."""
    epoch, source, step, nbytes = request
    return posted.part_of(c, epoch, rank_of(c[1])), source + u64(q) * step, nbytes


@functools.cache
def send_same(scope: Scope, unit: int) -> Any:
    """Strategy.send_same()."""
    scatter = posted.scatter(scope, unit, layout.SENT, _same)

    @device
    def send(op, c, epoch, source, nbytes):
        scatter(c, epoch, (epoch, source, nbytes))

    return send


@functools.cache
def send_each(scope: Scope, unit: int) -> Any:
    """Strategy.send_each()."""
    scatter = posted.scatter(scope, unit, layout.SENT, _each)

    @device
    def send(op, c, epoch, source, step, nbytes):
        scatter(c, epoch, (epoch, source, step, nbytes))

    return send


def send_words(scope: Scope, values: Any) -> Any:
    """Strategy.send_words(). The words are sent from this PE's own part of its staging, which no other member writes."""
    put, rank, size = posted.put(8), scope.rank, scope.size

    @device
    def send(op, c, epoch, request):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        to = posted.part_of(c, epoch, me)
        q = rank()
        while q < n:
            if q != me:
                w0, w1 = values(q, request)
                here = to + u64(q) * _PAIR
                ptx.st_pair_sys(here, w0, w1)
                put(to, here, _PAIR, row_of(base, me) + layout.SENT, epoch, member(entry, q))
            q = u32(q + size())

    return send


@functools.cache
def gather(scope: Scope) -> Any:
    """Strategy.gather()."""
    await_all, sync = channel.wait_flags(scope, wait_far()), scope.sync

    @device
    def gather(op, c, epoch):
        await_all(op, c[0], c[1], layout.SENT, epoch)
        sync()

    return gather


@functools.cache
def release(scope: Scope) -> Any:
    """Strategy.release()."""
    complete, sync = _complete(scope), scope.sync

    @device
    def release(c):
        complete(c)
        sync()

    return release


@functools.cache
def gather_from(scope: Scope) -> Any:
    """Strategy.gather_from()."""
    rank, sync, await_far = scope.rank, scope.sync, wait_far()

    @device
    def gather(op, c, epoch, q):
        if rank() == 0:
            await_far(op, row_of(c[0], q) + layout.SENT, epoch)
        sync()

    return gather


@functools.cache
def word() -> Any:
    """Strategy.word()."""
    load = ptx.ld_plain[8]

    @device
    def word(op, c, epoch, q, i):
        return load(posted.part_of(c, epoch, q) + i * layout.WORD)

    return word


def staged(scope: Scope) -> Any:
    """Strategy.staged()."""
    return window.LL_BYTES


@functools.cache
def four() -> Any:
    """Strategy.four()."""
    load = load_four(8)

    @device
    def four(op, c, epoch, q, i, step):
        return load(posted.part_of(c, epoch, q) + i * layout.WORD, step * layout.WORD, _64)

    return four


def fours() -> Any:
    """Strategy.fours(): four() is enough, because the data is there, so that no load waits for another."""
    return None


# Between operands ---------------------------------------------------------------------------------------------------------------


def exchange(scope: Scope, unit: int, piece: Any) -> Any:
    """Strategy.exchange()."""
    scatter, move, rank, size = posted.scatter(scope, unit, layout.DONE, piece), copy(unit, scope), scope.rank, scope.size
    await_all = channel.wait_flags(scope, wait_far())

    @device
    def exchange(op, c, epoch, request):
        base, entry, _ = c
        scatter(c, epoch, request)
        to, source, nbytes = piece(c, rank_of(entry), request)
        if to != source:
            move(to, source, nbytes, u64(rank()), u64(size()), False)
        await_all(op, base, entry, layout.DONE, epoch)

    return exchange


@functools.cache
def fcollect(scope: Scope, unit: int) -> Any:
    """Strategy.fcollect()."""
    to_all = exchange(scope, unit, near.own_place)
    if not transport.two_paths():
        return to_all
    by_machines = nodes.fcollect(scope, unit)

    @device
    def fcollect(op, c, epoch, request):
        if per_machine(c[1]) != 0:
            by_machines(op, c, epoch, request)
        else:
            to_all(op, c, epoch, request)

    return fcollect


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast()."""
    if not transport.two_paths():
        in_ring = rings.broadcast(scope, unit)

        @device
        def forwarded(op, c, epoch, dest, source, nbytes, whole, root):
            in_ring(op, c, epoch, dest, source, nbytes, root)

        return forwarded
    by_machines, of_root = nodes.broadcast(scope, unit), rings.broadcast_from_root(scope, unit)

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, whole, root):
        if per_machine(c[1]) != 0:
            by_machines(op, c, epoch, dest, source, nbytes, root)
        else:
            of_root(op, c, epoch, dest, source, nbytes, root)

    return broadcast


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Strategy.reduce(): in a ring of at least two members if that is faster and dest can hold partial results; otherwise in rounds."""
    in_rounds, two = _reduce_in_rounds(scope, unit, combine), transport.two_paths()
    if combine.rounds:  # in a ring, dest holds partial sums
        return in_rounds
    in_ring = nodes.reduce(scope, unit, combine) if two else rings.reduce(scope, unit, combine)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        n = size_of(c[1])
        few = n == 1 or nbytes <= u64(n) * window.STAGING_PART
        if dest == source or few or (two and per_machine(c[1]) == 0):
            epoch = in_rounds(op, c, epoch, dest, source, nbytes)
        else:
            in_ring(op, c, epoch, dest, source, nbytes)
        return epoch

    return reduce


@device
def _slice(c, q, request):
    """The piece of a round: slice q of source, into staging. request: epoch, source, bytes, offset of the round."""
    epoch, source, nbytes, offset = request
    at = min(offset + u64(q) * window.STAGING_PART, nbytes)
    return posted.part_of(c, epoch, rank_of(c[1])), source + at, min(window.STAGING_PART, nbytes - at)


def _reduce_in_rounds(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``reduce(op, c, epoch, dest, source, nbytes)``: in rounds, with one part of staging per member.

    A member receives its slice from all members, combines the parts in member order, and puts the result into every dest, in two flights
    per round. Results arrive in order, so that only the last ones are awaited. dest may be source, because a slice has left its source
    before its result can arrive.
    """
    send, send_whole = posted.scatter(scope, unit, layout.SENT, _slice), posted.scatter(scope, unit, layout.DONE, posted.whole)
    add_up, sync = combined(scope, unit, combine, word(), four()), scope.sync
    received, await_all = gather(scope), channel.wait_flags(scope, wait_far())
    start, end = channel.begin(scope, transport.current().flag), channel.finish(scope, transport.current().flag)

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry, _ = c
        n, offset = size_of(entry), _0
        while True:
            send(c, epoch, (epoch, source, nbytes, offset))
            received(op, c, epoch)
            at = min(offset + u64(rank_of(entry)) * window.STAGING_PART, nbytes)
            count = min(window.STAGING_PART, nbytes - at)
            add_up(op, c, epoch, dest + at, source + at, count, n)
            sync()
            send_whole(c, epoch, (dest + at, dest + at, count))
            offset += u64(n) * window.STAGING_PART
            if offset >= nbytes:
                break
            end(base, entry, epoch)
            sync()
            epoch = start(op, base, entry)
        await_all(op, base, entry, layout.DONE, epoch)
        return epoch

    return reduce


@functools.cache
def reducescatter(scope: Scope, unit: int, combine: Combine) -> Any:
    """Strategy.reducescatter()."""
    of_all = _reducescatter_of_all(scope, unit, combine)
    if not transport.two_paths() or combine.rounds:
        return of_all
    by_machines = nodes.reducescatter(scope, unit, combine)

    @device
    def reducescatter(op, c, epoch, dest, source, step, nbytes):
        if per_machine(c[1]) != 0:
            return by_machines(op, c, epoch, dest, source, step, nbytes)
        return of_all(op, c, epoch, dest, source, step, nbytes)

    return reducescatter


@device
def _slot(slots, q, to):
    """Return the address of member q's slot of member ``to``. slots: address of the half of staging, bytes of a slot."""
    return slots[0] + u64(u32(q) if q < to else u32(q - u32(1))) * slots[1]


@device
def _to_slot(c, q, request):
    """The piece of a reduce-scatter's round: into this PE's slot of the receiver. request: slots, source, step, bytes."""
    slots, source, step, nbytes = request
    return _slot(slots, rank_of(c[1]), q), source + u64(q) * step, nbytes


def _reducescatter_of_all(scope: Scope, unit: int, combine: Combine) -> Any:
    """A reduce-scatter in rounds through staging: every member sends to every other. A half has a slot for each of the n - 1 senders.

    Slots are not the parts of members, so that a half must be free of all members' earlier data before any member writes it (see above).
    """
    load, load_all = ptx.ld_plain[8], load_four(8)

    @device
    def word(op, c, slots, q, i):
        return load(_slot(slots, q, rank_of(c[1])) + i * layout.WORD)

    @device
    def four(op, c, slots, q, i, step):
        return load_all(_slot(slots, q, rank_of(c[1])) + i * layout.WORD, step * layout.WORD, _64)

    send, add_up, sync = posted.scatter(scope, unit, layout.SENT, _to_slot), combined(scope, unit, combine, word, four), scope.sync
    received, start = gather(scope), channel.begin(scope, transport.current().flag)
    end = channel.finish(scope, transport.current().flag)

    @device
    def reducescatter(op, c, epoch, dest, source, step, nbytes):
        base, entry, _ = c
        n, offset = size_of(entry), _0
        slot = window.STAGING_PART * u64(n) // max(u64(n) - _1, _1) // _PAIR * _PAIR
        while True:
            count, slots = min(slot, nbytes - offset), (half_of(base, entry, epoch), slot)
            send(c, epoch, (slots, source + offset, step, count))
            received(op, c, epoch)
            add_up(op, c, slots, dest + offset, source + u64(rank_of(entry)) * step + offset, count, n)
            offset += slot
            if offset >= nbytes:
                break
            end(base, entry, epoch)
            sync()
            epoch = start(op, base, entry)
        return epoch

    return reducescatter
