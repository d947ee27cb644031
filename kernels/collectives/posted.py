"""Sending over the job's path: put_signal into the receiver's memory, with SIGNAL_SET of the epoch.

SIGNAL_ADD would also count signals of the next collective. Each thread of the scope posts to one member. In a job with two transports, all
threads store to the near members, like in near.py, and flags follow.
"""

import functools
from typing import Any

from pgas.kernels import state, window
from pgas.kernels.collectives.channel import flag_threads, half_of, row_of
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import member, rank_of, size_of, wrapped
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import THREAD, Scope
from pgas.kernels.window import remote

#: Number of bytes of a broadcast, and of a reduction in a ring, that are forwarded as one piece.
CHUNK_BYTES, PIECE_BYTES = 256 << 10, 64 << 10


@device
def part_of(c, epoch, q):
    """Return the address of member q's part of staging."""
    return half_of(c[0], c[1], epoch) + u64(q) * window.STAGING_PART


@functools.cache
def put(unit: int) -> Any:
    """Make ``put(to, source, nbytes, word, value, pe)``: put_signal_nbi() by one thread, with SIGNAL_SET."""
    send = transport.current().put_signal("put_signal_nbi", THREAD, unit, nbi=True)

    @device
    def put(to, source, nbytes, word, value, pe):
        send(to, source, nbytes, word, value, False, pe)

    return put


@functools.cache
def scatter(scope: Scope, unit: int, word: int, piece: Any) -> Any:
    """Make ``scatter(c, epoch, request)``: send a piece to every other member, and then the epoch to a word of this PE's row.

    ``piece(c, q, request)``: see Strategy.exchange().
    """
    post, rank, size, sync, _word, two = put(unit), scope.rank, scope.size, scope.sync, constant(word), transport.two_paths()
    move, notify = copy(unit, scope), flag

    @device
    def by_nic(c, epoch, request):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        k = u32(rank() + u32(1))
        while k < n:
            q = wrapped(u32(me + k), n)
            pe = member(entry, q)
            if not two or not state.near(pe):
                to, source, nbytes = piece(c, q, request)
                post(to, source, nbytes, row_of(base, me) + _word, epoch, pe)
            k = u32(k + size())

    if not two:
        return by_nic

    @device
    def by_both(c, epoch, request):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        by_nic(c, epoch, request)
        for q in range(n):
            pe = member(entry, u32(q))
            if q != me and state.near(pe):
                to, source, nbytes = piece(c, u32(q), request)
                move(remote(to, pe), source, nbytes, u64(rank()), u64(size()), False)
        sync()
        q, step = rank(), flag_threads(size())
        if q < step:
            ptx.fence_sys()
        while q < n and rank() < step:
            pe = member(entry, q)
            if q != me and state.near(pe):
                notify(row_of(base, me) + _word, epoch, pe)
            q = u32(q + step)

    return by_both


@device
def whole(c, q, request):
    """The piece of scatter() that is the same for all members. request: (address in dest, source, bytes)."""
    return request
