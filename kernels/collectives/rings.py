"""Large operands through a NIC: a tree or a chain for a broadcast, a ring for a reduction.

Pieces are stored in dest, and a member forwards each piece once it has arrived.
"""

import functools
from typing import Any

from pgas.kernels.collectives import posted
from pgas.kernels.collectives.channel import row_of, wait_far
from pgas.kernels.collectives.operators import Combine
from pgas.kernels.collectives.words import load_item, store_item
from pgas.kernels.compiler import constant, device, u32, u64
from pgas.kernels.ops.team import member, rank_of, size_of, wrapped
from pgas.kernels.paths.p2p import copy
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout

_CHUNK_BYTES = constant(posted.CHUNK_BYTES)
_0, _1, _BELOW_PAIR, _PAIR, _PIECE = constant(0), constant(1), constant(15), constant(16), constant(posted.PIECE_BYTES)


@functools.cache
def broadcast_from_root(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast() in a job with two transports: the root sends to all members."""
    scatter, move = posted.scatter(scope, unit, layout.DONE, posted.whole), copy(unit, scope)
    rank, size, sync, await_far = scope.rank, scope.size, scope.sync, wait_far()

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, root):
        if root == rank_of(c[1]):
            scatter(c, epoch, (dest, source, nbytes))
            if dest != source:
                move(dest, source, nbytes, u64(rank()), u64(size()), False)
        elif rank() == 0:
            await_far(op, row_of(c[0], root) + layout.DONE, epoch)
        sync()

    return broadcast


@functools.cache
def broadcast(scope: Scope, unit: int) -> Any:
    """Strategy.broadcast(): a single chunk along a binomial tree, several along a chain."""
    put, move, rank, size = posted.put(unit), copy(unit, scope), scope.rank, scope.size
    await_far = wait_far()

    @device
    def tree(op, c, epoch, dest, source, nbytes, root):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        mine = wrapped(u32(me + n - root), n)  # the root is number 0
        distance = u32(1)
        while distance < n:
            if mine < distance:
                to = u32(mine + distance)
                if to < n:
                    origin = source if mine == 0 else dest
                    put(dest, origin, nbytes, row_of(base, me) + layout.DONE, epoch, member(entry, wrapped(u32(to + root), n)))
            elif mine < distance + distance:
                await_far(op, row_of(base, wrapped(u32(mine - distance + root), n)) + layout.DONE, epoch)
            distance = u32(distance + distance)

    @device
    def chain(op, c, epoch, dest, source, nbytes, root):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        mine = wrapped(u32(me + n - root), n)
        before, behind = wrapped(u32(me + n - 1), n), wrapped(u32(me + 1), n)
        done, sent = _0, epoch << layout.CHUNK_SHIFT
        while done < nbytes:
            sent += _1
            if mine != 0:
                await_far(op, row_of(base, before) + layout.CHUNK, sent)
            if mine != n - 1:
                origin = (source if mine == 0 else dest) + done
                put(dest + done, origin, min(nbytes - done, _CHUNK_BYTES), row_of(base, me) + layout.CHUNK, sent, member(entry, behind))
            done += _CHUNK_BYTES

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, root):
        if rank() == 0:
            if nbytes <= _CHUNK_BYTES:
                tree(op, c, epoch, dest, source, nbytes, root)
            else:
                chain(op, c, epoch, dest, source, nbytes, root)
        if root == rank_of(c[1]) and dest != source:
            move(dest, source, nbytes, u64(rank()), u64(size()), False)

    return broadcast


@functools.cache
def reduce(scope: Scope, unit: int, combine: Combine) -> Any:
    """Make ``reduce(op, c, epoch, dest, source, nbytes)``: reduce-scatter, then all-gather, in a ring, by pieces (Patarasuk and Yuan 2009).

    The slice that starts at member i + 1 is combined in the order of the ring and ends at member i. Each slice is combined once, so that
    the results of all members are bitwise identical. dest holds partial results: a member adds its source to a piece in its dest and
    forwards it. The final piece arrives at the same address. It depends on the partial one, which has therefore been forwarded by then.
    """
    put, rank, size, sync, await_far = posted.put(unit), scope.rank, scope.size, scope.sync, wait_far()
    load, store = load_item(unit, combine.words), store_item(unit, combine.words)
    first, add, last, item = combine.first, combine.add, combine.last, constant(combine.words * layout.WORD)

    @device
    def add_own(dest, source, nbytes):
        at = u64(rank()) * item
        while at < nbytes:
            w0, w1 = load(dest + at, nbytes - at)
            acc = first(w0, w1)
            w0, w1 = load(source + at, nbytes - at)
            store(dest + at, last(add(acc, w0, w1)), nbytes - at)
            at += u64(size()) * item

    @device
    def reduce(op, c, epoch, dest, source, nbytes):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        before, behind = wrapped(u32(me + n - 1), n), wrapped(u32(me + 1), n)
        slice_ = ((nbytes + _BELOW_PAIR) // _PAIR + u64(n) - _1) // u64(n) * _PAIR
        received = sent = epoch << layout.CHUNK_SHIFT
        # In round k, a member sends slice me - k: first its own, then the one that arrived in the previous round; from round n - 1 on,
        # final ones.
        for k in range(2 * n - 1):
            which = u32(me + 2 * n - u32(k)) % n
            at, end = min(u64(which) * slice_, nbytes), min((u64(which) + _1) * slice_, nbytes)
            while at < end:
                count = min(end - at, _PIECE)
                if k != 0:
                    received += _1
                    if rank() == 0:
                        await_far(op, row_of(base, before) + layout.CHUNK, received)
                    sync()
                    if k < n:
                        add_own(dest + at, source + at, count)
                        sync()
                if k != 2 * n - 2:
                    sent += _1
                    if rank() == 0:
                        origin = source if k == 0 else dest
                        put(dest + at, origin + at, count, row_of(base, me) + layout.CHUNK, sent, member(entry, behind))
                at += count

    return reduce
