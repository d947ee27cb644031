"""The strategy if all members map each other's memory.

Small messages are sent as lines (lines.py). Larger broadcasts and reductions are divided into slices (slices.py), which move as lines or
between operands. All others are stored into dest or loaded from source, with flags before and after.

Data stored into dest is ordered before DONE: the threads of the scope synchronize, then the threads that write flags fence at system scope,
which covers the others' stores (PTX ISA, causality order).
"""

import functools
from typing import Any

from pgas.kernels import window
from pgas.kernels.collectives import channel, lines, slices
from pgas.kernels.collectives.channel import row_of, wait_flag
from pgas.kernels.collectives.comparison import declaring, verifying
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops.team import after, member, rank_of, size_of, wrapped
from pgas.kernels.paths import transport
from pgas.kernels.paths.p2p import copy, flag
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout
from pgas.kernels.window import remote

_LINE, _BELOW_LINE = constant(16), constant(15)
#: Minimum number of bytes of a broadcast of which each member loads a slice; below it, the additional flight takes longer than it saves.
_RELAYED = constant(1 << 20)
_0, _2 = constant(0), constant(2)

# Strategy's functions that move data through staging, and its reductions.
staged, release, gather, gather_from = lines.staged, lines.release, lines.gather, lines.gather_from
send_same, send_each, send_words = lines.send_same, lines.send_each, lines.send_words
word, four, fours = lines.word, lines.four, lines.fours
reduce, reducescatter = slices.reduce, slices.reducescatter


@functools.cache
def begin(scope: Scope) -> Any:
    """Strategy.begin()."""
    start, declare = channel.begin(scope, flag), declaring(scope, flag)

    @device
    def begin(op, c):
        epoch = start(op, c[0], c[1])
        declare(c, epoch)
        return epoch

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


def barrier(scope: Scope, *, completes: bool) -> Any:
    """Strategy.barrier(). In a job with two transports, a barrier also completes what members have put to PEs on other nodes."""
    sync_flags = channel.sync_flags(scope, flag, layout.ARRIVED, ptx.fence_sc_sys if completes else ptx.nothing)
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


def exchange(scope: Scope, unit: int, piece: Any) -> Any:
    """Strategy.exchange()."""
    move, done, rank, size, sync = copy(unit, scope), channel.sync_flags(scope, flag, layout.DONE), scope.rank, scope.size, scope.sync

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
    pull, in_lines, rank, size, sync = copy(unit, scope, get=True), slices.broadcast(scope, unit), scope.rank, scope.size, scope.sync
    announce, await_all, done = channel.write_flags(scope, flag), channel.wait_flags(scope), channel.sync_flags(scope, flag, layout.DONE)

    @device
    def broadcast(op, c, epoch, dest, source, nbytes, whole, root):
        base, entry, _ = c
        n, me = size_of(entry), rank_of(entry)
        part = ((nbytes + _BELOW_LINE) // _LINE + u64(n) - _2) // u64(max(n, u32(2)) - u32(1)) * _LINE
        if n > 2 and part <= window.LL_BYTES:
            in_lines(op, c, epoch, dest, source, part, nbytes, root)
            if root == me and dest != source:
                pull(dest, source, nbytes, u64(rank()), u64(size()), False)
            return
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
