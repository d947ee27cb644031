"""Channels of teams: their epoch, the flags of members, and the rules for reusing staging.

A channel has a head (EPOCH, ONE_SIDED, and TURN, written only by this PE), a row of flags for each member, and staging in two halves.
Collective e uses half e & 1. A half has a part for each member. Each member writes its own row and its own parts; only large
reduce-scatters through a NIC divide a half differently (far.py, nodes.py).

*A stale flag or line is never taken for a new one.* Flags in rows are 64-bit epochs, and waits compare with >=. Lines have the low 32 bits
of the epoch. These are never 0 or 1, because staging is initially zero; before they wrap, begin() zeroes staging on all members. If staging
has received data without flags, as in reductions by one thread over p2p (slices.py), the receiver zeroes it before it sends anything more.

*A half is never overwritten before it has been read.* Collective e writes to the same half as e - 2, so a member must know that the
receiver has left e - 2. It knows this if every member waits for every other in e - 1, because the receiver sends its data of e - 1 after it
has left e - 2: all threads of a scope synchronize in finish() of e - 2 before any of them begins e - 1. In one-sided collectives
(broadcast, scans), some members do not wait for some others. At the end of these, each member sends all others an acknowledgment. ONE_SIDED
is the epoch of the last one-sided collective. If that is e - 1, begin() waits for its acknowledgments.
"""

import functools
from typing import Any

from pgas.kernels import state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import entry_of, member, rank_of, size_of
from pgas.kernels.paths import transport
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import Scope
from pgas.kernels.state import fixed, fixed_u32
from pgas.kernels.typed import layout

_NO_SUCH_CHANNEL, _TIMED_OUT = constant(kind_of("no such channel")), constant(state.TIMED_OUT)
_EQ, _GE = constant(Comparison.EQ), constant(Comparison.GE)
_HOST = constant(layout.HOST_CHANNEL % (1 << 64))
_AFTER_HOST, _NUMBER = constant(1 << layout.CALL_SHIFT + layout.CALL_BITS), constant(layout.MAX_HOST_CHANNELS - 1)
_0, _1, _2, _LINE = (constant(c) for c in (0, 1, 2, 16))


@device
def channel_of(op, team, channel):
    """Return ``c``: the address of the channel, its team's entry, and the call to compare (comparison.py), 0 if there is none.

    The host's channels (layout.HOST_CHANNEL) are also valid. If there is no such channel, the address is 0, and the state is poisoned.
    """
    entry = entry_of(op, team)
    base, call = _0, _0
    if entry != _0:
        count, number = u64(fixed_u32(entry + layout.CHANNEL_COUNT)), u64(channel)
        if number >= _HOST and number - _HOST < _AFTER_HOST:
            call = (number - _HOST) >> layout.CALL_SHIFT
            number = count + ((number - _HOST) & _NUMBER)
        elif number >= count:
            state.fail(_NO_SUCH_CHANNEL, u64(op), u64(state.my_pe()), _0, number, count, _0)
            return base, entry, call
        base = fixed(entry + layout.TEAM_CHANNELS) + number * u64(fixed_u32(entry + layout.CHANNEL_BYTES))
    return base, entry, call


@device
def take_turn(op, base):
    """Wait until no other thread of this PE has its turn on a channel; acquires what the last one released.

    The wait needs no deadline, because the collective of the other thread has one. The lanes of a warp must call it one after another, not
    together: after the loop, the lane that has the turn may wait until the other lanes have left the loop (observed in SASS).
    """
    while ptx.atom_cas_gpu_u64(base + layout.TURN, _0, _1) != _0:
        state.relax(op, base + layout.TURN, _EQ, _0)


@device
def end_turn(base):
    """End this thread's turn."""
    ptx.st_release_gpu_u64(base + layout.TURN, _0)


@device
def row_of(base, i):
    """Return the address of the row that member i writes."""
    return base + layout.CHANNEL_HEAD + u64(i) * layout.ROW_SIZE


@device
def half_of(base, entry, epoch):
    """Return the address of a collective's half of staging; member i's part is at offset i * window.STAGING_PART."""
    half = u64(size_of(entry)) * window.STAGING_PART
    return base + u64(fixed_u32(entry + layout.STAGING_OFFSET)) + (half if epoch & _1 else _0)


# Flags --------------------------------------------------------------------------------------------------------------------------


@device
def given_up(op, at, comparison, wanted, found, deadline):
    """Whether a wait for a word of team memory must end (state.given_up)."""
    return state.given_up(_TIMED_OUT, op, at, comparison, wanted, found, deadline)


def _waiting(load: Any) -> Any:
    """Make ``wait(op, at, wanted)``: wait until a flag is ``wanted`` or more."""

    @device
    def wait(op, at, wanted):
        deadline = _0
        polls = u32(0)
        found = load(at)
        while found < wanted:
            polls = u32(polls + u32(1))
            if polls & state.POLLS_MASK == 0:
                if deadline == _0:
                    deadline = ptx.globaltimer() + state.timeout_ns()
                if given_up(op, at, _GE, wanted, found, deadline):
                    break
            state.relax(op, at, _GE, wanted)
            found = load(at)

    return wait


#: Wait that acquires: what the flag's writer released before is then visible to this thread.
wait_flag = _waiting(ptx.ld_acquire_sys_u64)
#: Wait for a flag without data, which does not invalidate L1.
wait_flag_only = _waiting(ptx.ld_relaxed_sys_u64)


@functools.cache
def wait_far() -> Any:
    """Return wait_flag for a flag that a NIC writes."""
    if not window.constants().settles:
        return wait_flag
    settle = transport.settle()

    @device
    def wait(op, at, wanted):
        wait_flag(op, at, wanted)
        settle(op)

    return wait


@device
def flag_threads(size):
    """Return the number of threads of a scope that write and await flags: those of its first warp."""
    return min(size, u32(32))


@functools.cache
def wait_flags(scope: Scope, wait_one: Any = wait_flag) -> Any:
    """Make ``wait(op, base, entry, word, epoch)``: wait until every other member has written epoch to a word of its row.

    Each thread of the first warp waits for some members; a barrier of the scope must follow.
    """
    rank, size = scope.rank, scope.size

    @device
    def wait(op, base, entry, word, epoch):
        n, me, step = size_of(entry), rank_of(entry), flag_threads(size())
        i = rank()
        while i < n and rank() < step:
            if i != me:
                wait_one(op, row_of(base, i) + word, epoch)
            i = u32(i + step)

    return wait


@functools.cache
def write_flags(scope: Scope, write: Any) -> Any:
    """Make ``send(base, entry, word, epoch)``: write epoch to a word of this PE's row at every other member.

    write: ``write(addr, value, pe)``.
    """
    rank, size = scope.rank, scope.size

    @device
    def send(base, entry, word, epoch):
        n, me, step = size_of(entry), rank_of(entry), flag_threads(size())
        at = row_of(base, me) + word
        i = rank()
        while i < n and rank() < step:
            if i != me:
                write(at, epoch, member(entry, i))
            i = u32(i + step)

    return send


@functools.cache
def sync_flags(scope: Scope, write: Any, word: int, fence: Any = ptx.fence_sys) -> Any:
    """Make ``sync_flags(op, c, epoch)``: signal every member and wait for every member; acquires. Called after a barrier of the scope.

    write: see write_flags(). fence: the fence of the signaling threads; ptx.nothing: none.
    """
    send, await_all, rank, _word = write_flags(scope, write), wait_flags(scope), scope.rank, constant(word)

    @device
    def sync_flags(op, c, epoch):
        base, entry, _ = c
        if rank() < u32(32):  # the threads that write flags; the fence comes before the loads of send(), because it waits for earlier loads
            fence()
        send(base, entry, _word, epoch)
        await_all(op, base, entry, _word, epoch)

    return sync_flags


# Epochs -------------------------------------------------------------------------------------------------------------------------


@functools.cache
def begin(scope: Scope, flag: Any) -> Any:
    """Make ``begin(op, base, entry)``: return the epoch of a new collective. All threads of the scope must call it, after a barrier.

    flag: ``flag(addr, value, pe)`` of the strategy.
    """
    await_all, restart, sync = wait_flags(scope, wait_flag_only), _restart(scope, flag), scope.sync

    @device
    def begin(op, base, entry):
        last, one_sided = ptx.ld_pair_plain(base + layout.EPOCH)
        if one_sided == last:
            await_all(op, base, entry, layout.ACKED, last - _1)
            sync()
        epoch = last + _1
        if u32(epoch) < 2:
            epoch = restart(op, base, entry, epoch)
        return epoch

    return begin


def _restart(scope: Scope, flag: Any) -> Any:
    """Make ``restart(op, base, entry, epoch)``: zero staging when the low 32 bits of the epoch wrap, and return an epoch after the wrap.

    This happens between two rounds of flags. All threads fence before the first, so that no member has lines in flight while staging is
    zeroed. They also fence before the second, so that no member sends lines before all staging is zero.
    """
    send, await_all, rank, size, sync = write_flags(scope, flag), wait_flags(scope), scope.rank, scope.size, scope.sync

    @device
    def restart(op, base, entry, epoch):
        word = layout.ARRIVED
        while word <= layout.ACKED:
            ptx.fence_sys()
            sync()
            send(base, entry, word, epoch)
            await_all(op, base, entry, word, epoch)
            sync()
            at = half_of(base, entry, _0) + u64(rank()) * _LINE
            end = half_of(base, entry, _0) + _2 * u64(size_of(entry)) * window.STAGING_PART
            while at < end and word == layout.ARRIVED:
                ptx.st_pair_sys(at, _0, _0)
                at += u64(size()) * _LINE
            sync()
            word += layout.ACKED - layout.ARRIVED
        return epoch + _2 - u64(u32(epoch))

    return restart


@functools.cache
def finish(scope: Scope, flag: Any, *, one_sided: bool = False) -> Any:
    """Make ``finish(base, entry, epoch)``, which ends a collective for all threads of the scope.

    one_sided: some members have not waited for data from some others.
    """
    acknowledge, store, rank, sync = write_flags(scope, flag), ptx.st_plain[8], scope.rank, scope.sync

    if one_sided:

        @device
        def finish(base, entry, epoch):
            sync()
            acknowledge(base, entry, layout.ACKED, epoch)
            if rank() == 0:
                ptx.st_pair_plain(base + layout.EPOCH, epoch, epoch)

    else:

        @device
        def finish(base, entry, epoch):
            sync()
            if rank() == 0:
                store(base + layout.EPOCH, epoch)

    return finish
