"""Large operands between members on several nodes, in jobs with two transports: they cross a NIC once per node.

A *regular* team has k members on each of its m nodes, numbered consecutively: member i is number i % k on node i // k. Members with the
same number exchange pieces between nodes by put_signal, members on the same node by loads and stores. A member's NIC therefore carries 1 /
k of what far.py, which serves all other teams, would send. Small messages are sent to every member directly, because one flight through a
NIC takes less time than such a flight and two by stores. In alltoall, all messages are sent directly, because all members get different
data.

*Flags.* A member writes its row on other nodes through the NIC, on its own node by stores. Before the stores, the scope synchronizes and
the writing threads fence, so that the reader observes what the NIC has delivered and what other threads of the scope have stored (PTX ISA,
causality order).

*No half of staging is written too early.* Except in a broadcast, the result depends on every member. A member that has the result therefore
knows that every member has begun this collective (channel.py). A broadcast ends with acknowledgments.
"""

import functools
from typing import Any

from pgas.kernels import window
from pgas.kernels.collectives import channel, posted
from pgas.kernels.collectives.channel import flag_threads, half_of, row_of, wait_far, wait_flag
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import load_item, store_item
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import member, per_machine, rank_of, size_of
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout
from pgas.kernels.window import remote

_CHUNK_BYTES, _PIECE = constant(posted.CHUNK_BYTES), constant(posted.PIECE_BYTES)
_0, _1, _2, _BELOW_PAIR, _PAIR = constant(0), constant(1), constant(2), constant(15), constant(16)


@device
def first_of(entry):
    """Return the first member on this node."""
    return u32(rank_of(entry) - rank_of(entry) % per_machine(entry))


@device
def behind(entry, machines):
    """Return the member with this member's number on the node that is ``machines`` positions further in the ring."""
    return u32((rank_of(entry) + u32(machines) * per_machine(entry)) % size_of(entry))


@functools.cache
def _notify(scope: Scope) -> Any:
    """Make ``notify(c, word, value)``: write a word of this member's row on the others of its node, after a barrier of the scope."""
    rank, size = scope.rank, scope.size

    @device
    def notify(c, word, value):
        base, entry, _ = c
        k, first, me, step = per_machine(entry), first_of(entry), rank_of(entry), flag_threads(size())
        i = rank()
        if i < step:
            ptx.fence_sys()
        while i < k and rank() < step:
            if u32(first + i) != me:
                flag(row_of(base, me) + word, value, member(entry, u32(first + i)))
            i = u32(i + step)

    return notify


@functools.cache
def _await(scope: Scope) -> Any:
    """Make ``await_near(op, c, word, value)``: wait for that word from the others on this node, for all threads of the scope."""
    rank, size, sync = scope.rank, scope.size, scope.sync

    @device
    def await_near(op, c, word, value):
        base, entry, _ = c
        k, first, me, step = per_machine(entry), first_of(entry), rank_of(entry), flag_threads(size())
        i = rank()
        while i < k and rank() < step:
            if u32(first + i) != me:
                wait_flag(op, row_of(base, u32(first + i)) + word, value)
            i = u32(i + step)
        sync()

    return await_near


@functools.cache
def _store_near(scope: Scope, unit: int) -> Any:
    """Make ``store(entry, to, source, nbytes)``: copy to the same address on the others of this node."""
    move, rank, size = copy(unit, scope), scope.rank, scope.size

    @device
    def store(entry, to, source, nbytes):
        k, first, me = per_machine(entry), first_of(entry), rank_of(entry)
        for i in range(k):
            q = u32(first + u32(i))
            if q != me:
                move(remote(to, member(entry, q)), source, nbytes, u64(rank()), u64(size()), False)

    return store


# Broadcast and fcollect ---------------------------------------------------------------------------------------------------------


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast(): members with the root's number forward chunks along a chain of nodes; others load from them."""
    put, pull, move = posted.put(unit), copy(unit, scope, get=True), copy(unit, scope)
    notify, await_near, rank, size, sync = _notify(scope), _await(scope), scope.rank, scope.size, scope.sync
    await_far = wait_far()

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, root):
        base, entry, _ = c
        k, n, me = per_machine(entry), size_of(entry), rank_of(entry)
        leader = u32(first_of(entry) + root % k)
        hop, last = u32((me // k + n // k - root // k) % (n // k)), u32(n // k - u32(1))
        origin = source if leader == root else dest
        sent, done = epoch << layout.CHUNK_SHIFT, _0
        while done < nbytes:
            sent += _1
            count = min(nbytes - done, _CHUNK_BYTES)
            if me == leader:
                if rank() == 0:
                    if hop != 0:
                        await_far(op, row_of(base, behind(entry, last)) + layout.CHUNK, sent)
                    if hop != last:
                        put(dest + done, origin + done, count, row_of(base, me) + layout.CHUNK, sent, member(entry, behind(entry, u32(1))))
                sync()
                notify(c, layout.CHUNK, sent)
            else:
                if rank() == 0:
                    wait_flag(op, row_of(base, leader) + layout.CHUNK, sent)
                sync()
                pull(dest + done, remote(origin + done, member(entry, leader)), count, u64(rank()), u64(size()), False)
            done += count
        if me != leader:
            sync()
            if rank() == 0:
                flag(row_of(base, me) + layout.DONE, epoch, member(entry, leader))
        else:
            if me == root and dest != source:
                move(dest, source, nbytes, u64(rank()), u64(size()), False)
            await_near(op, c, layout.DONE, epoch)  # then no member on this node loads from this one anymore

    return broadcast


@functools.cache
def fcollect(scope: Scope, unit: int) -> Any:
    """Strategy.fcollect(): send to the members with this number on other nodes; store their data and this member's on this node."""
    put, store, move = posted.put(unit), _store_near(scope, unit), copy(unit, scope)
    notify, await_near, rank, size, sync = _notify(scope), _await(scope), scope.rank, scope.size, scope.sync
    await_far = wait_far()

    @device
    def fcollect(op, c, epoch, request):
        base, entry, _ = c
        dest, source, nbytes, step = request
        me, m = rank_of(entry), size_of(entry) // per_machine(entry)
        own = dest + u64(me) * step
        i = u32(rank() + u32(1))
        while i < m:
            put(own, source, nbytes, row_of(base, me) + layout.DONE, epoch, member(entry, behind(entry, i)))
            i = u32(i + size())
        if own != source:
            move(own, source, nbytes, u64(rank()), u64(size()), False)
        store(entry, own, source, nbytes)
        for d in range(1, m):
            q = behind(entry, u32(m - u32(d)))
            if rank() == 0:
                await_far(op, row_of(base, q) + layout.DONE, epoch)
            sync()
            store(entry, dest + u64(q) * step, dest + u64(q) * step, nbytes)
        sync()
        notify(c, layout.DONE, epoch)
        await_near(op, c, layout.DONE, epoch)

    return fcollect


# Reductions -----------------------------------------------------------------------------------------------------------------------


@functools.cache
def _add_near(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``add(entry, to, begun, source, nbytes)``: combine the sources of all members on this node, in their order, into ``to``.

    begun: ``to`` already has the partial result of earlier members.
    """
    load, store, rank, size = load_item(unit, combine.words), store_item(unit, combine.words), scope.rank, scope.size
    first, more, last, item = combine.first, combine.add, combine.last, constant(combine.words * layout.WORD)

    @device
    def add(entry, to, begun, source, nbytes):
        k, head = per_machine(entry), first_of(entry)
        at = u64(rank()) * item
        while at < nbytes:
            w0, w1 = load(to + at if begun else remote(source, member(entry, head)) + at, nbytes - at)
            acc = first(w0, w1)
            for i in range(0 if begun else 1, k):
                w0, w1 = load(remote(source, member(entry, u32(head + u32(i)))) + at, nbytes - at)
                acc = more(acc, w0, w1)
            store(to + at, last(acc), nbytes - at)
            at += u64(size()) * item

    return add


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``reduce(op, c, epoch, dest, source, nbytes)``; dest is not source.

    Members with number l combine slice l in a ring of nodes (rings.reduce()); each adds the sources of all members on its node to a piece.
    A member that gets a final piece stores it on all members of its node.
    """
    put, add, store = posted.put(unit), _add_near(scope, unit, combine), _store_near(scope, unit)
    notify, await_near, rank, sync, await_far = _notify(scope), _await(scope), scope.rank, scope.sync, wait_far()

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry, _ = c
        k, me = per_machine(entry), rank_of(entry)
        m, machine = size_of(entry) // k, me // k
        before, to = behind(entry, u32(m - u32(1))), member(entry, behind(entry, u32(1)))
        notify(c, layout.ARRIVED, epoch)
        await_near(op, c, layout.ARRIVED, epoch)
        part = ((nbytes + _BELOW_PAIR) // _PAIR + u64(k) - _1) // u64(k) * _PAIR
        low, high = min(u64(me % k) * part, nbytes), min((u64(me % k) + _1) * part, nbytes)
        slice_ = ((high - low + _BELOW_PAIR) // _PAIR + u64(m) - _1) // u64(m) * _PAIR
        received = sent = epoch << layout.CHUNK_SHIFT
        for turn in range(2 * m - 1):
            which = u64(u32(machine + 2 * m - u32(turn)) % m)
            at, end = min(low + which * slice_, high), min(low + (which + _1) * slice_, high)
            while at < end:
                count = min(end - at, _PIECE)
                if turn != 0:
                    received += _1
                    if rank() == 0:
                        await_far(op, row_of(base, before) + layout.CHUNK, received)
                    sync()
                if turn < m:
                    add(entry, dest + at, turn != 0, source + at, count)
                    sync()
                if turn != 2 * m - 2:
                    sent += _1
                    if rank() == 0:
                        put(dest + at, dest + at, count, row_of(base, me) + layout.CHUNK, sent, to)
                if turn >= m - 1:
                    store(entry, dest + at, dest + at, count)
                at += count
        sync()
        notify(c, layout.DONE, epoch)
        await_near(op, c, layout.DONE, epoch)

    return reduce


@functools.cache
def _add_machines(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``add(entry, slots, slot, dest, nbytes)``: combine the results of all nodes, in their order, into dest, which has this node's.

    slots: address of the first partner's slot (see reducescatter()). slot: bytes of a slot.
    """
    words, rank, size = combine.words, scope.rank, scope.size
    load, load_part, store = load_item(unit, words), load_item(8, words), store_item(unit, words)
    first, more, last, item = combine.first, combine.add, combine.last, constant(words * layout.WORD)

    @device
    def item_of(machine, x, m, own, slots, slot, left):
        if x == machine:
            return load(own, left)
        return load_part(slots + u64(u32(x - machine - u32(1) if x > machine else x + m - machine - u32(1))) * slot, left)

    @device
    def add(entry, slots, slot, dest, nbytes):
        k, me = per_machine(entry), rank_of(entry)
        m, machine = u32(size_of(entry) // k), u32(me // k)
        at = u64(rank()) * item
        while at < nbytes:
            w0, w1 = item_of(machine, u32(0), m, dest + at, slots + at, slot, nbytes - at)
            acc = first(w0, w1)
            for x in range(1, m):
                w0, w1 = item_of(machine, u32(x), m, dest + at, slots + at, slot, nbytes - at)
                acc = more(acc, w0, w1)
            store(dest + at, last(acc), nbytes - at)
            at += u64(size()) * item

    return add


@functools.cache
def reducescatter(scope: Scope, unit: int, combine: Combine) -> Any:
    """Strategy.reducescatter(): a member combines its node's sources for the members with its number, and sends them the results.

    It does so in rounds. Each half of staging has a slot for each *partner*, a member with this number on another node: no other member
    sends to this one. A slot of the round's half receives the partner's results. In the first and last rounds, what this member sends to
    the partner is in the second half of the same slot. In all others, it is in the partner's slot of the other half of staging, so that a
    whole slot can be received.

    *No slot is written too early.* A partner that has sent round r has received this member's rounds before r.

    - By the partner, in round r: the slot had the partner's round r - 2, which this member had combined before it sent round r - 1, or this
      member's round r - 1, which the partner has received. Of round 0 it had both, but quiet_pe() was called after round 0 and before this
      member sent round 1.
    - By this member, with what it sends in round r, in the other half: the slot had the partner's round r - 1, which this member has
      combined. In the same half: it had what this member sent in round r - 1, for which quiet_pe() was called. quiet_pe() is called
      wherever the place changes.
    - Round 0 uses only its own half, because data of the previous collective may still arrive in the other one. A partner's round 0
      depends on all members of its node. A member that has received it from all partners therefore knows that all members have begun this
      collective, and that their earlier data has arrived (far.py).
    - The last round does not use the other half, because a member of another node may begin the next collective, and write that half,
      before a third node has received what this member has sent. Then all members have begun the last round, and so have received all
      earlier ones.
    """
    put, add, add_machines = posted.put(unit), _add_near(scope, unit, combine), _add_machines(scope, unit, combine)
    notify, await_near, rank, size, sync, await_far = _notify(scope), _await(scope), scope.rank, scope.size, scope.sync, wait_far()
    start, end = channel.begin(scope, transport.current().flag), channel.finish(scope, transport.current().flag)
    complete = transport.current().quiet_pe

    @device
    def reducescatter(op, c, epoch, dest, source, step, nbytes):
        base, entry, _ = c
        me, m = rank_of(entry), u32(size_of(entry) // per_machine(entry))
        part = window.STAGING_PART * u64(size_of(entry)) // (u64(m) - _1) // _2 // _PAIR * _PAIR
        slot = part + part
        notify(c, layout.ARRIVED, epoch)
        await_near(op, c, layout.ARRIVED, epoch)
        left, count, across = nbytes, min(part, nbytes), False
        while True:
            here, offset = half_of(base, entry, epoch), nbytes - left
            mine = half_of(base, entry, epoch + _1) if across else here + part
            for d in range(1, m):
                q = behind(entry, u32(d))
                add(entry, mine + u64(d - 1) * slot, False, source + u64(q) * step + offset, count)
            sync()
            i = u32(rank() + u32(1))
            while i < m:
                to, origin = here + u64(m - i - u32(1)) * slot, mine + u64(i - u32(1)) * slot
                put(to, origin, count, row_of(base, me) + layout.SENT, epoch, member(entry, behind(entry, i)))
                i = u32(i + size())
            add(entry, dest + offset, False, source + u64(me) * step + offset, count)
            left -= count
            moves = left != _0 and across != (left > part)
            i = u32(rank() + u32(1))
            while i < m:
                await_far(op, row_of(base, behind(entry, i)) + layout.SENT, epoch)
                if moves:
                    complete(member(entry, behind(entry, i)))
                i = u32(i + size())
            sync()
            add_machines(entry, here, slot, dest + offset, count)
            if left == _0:
                break
            end(base, entry, epoch)
            sync()
            epoch = start(op, base, entry)
            across = left > part
            count = min(slot, (left - part + _BELOW_PAIR) // _PAIR * _PAIR) if across else left
        sync()
        notify(c, layout.DONE, epoch)
        await_near(op, c, layout.DONE, epoch)
        return epoch

    return reducescatter
