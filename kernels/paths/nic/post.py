"""Posting over ibgda: write the WQEs of the active lanes, hand them over, ring.

Lanes of a warp that come here together with one queue reserve and ring once. ``record`` is the address of a queue pair's record; an index
returned is that behind the last WQEBB of the caller's group, NOWHERE if the job is poisoned.
"""

from pgas.kernels import window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic.cells import fetching, old_word, sink
from pgas.kernels.paths.nic.lanes import group
from pgas.kernels.paths.nic.queue import poll, reserve, submit
from pgas.kernels.paths.nic.queue_pair import NOWHERE, lkey_of, rkey_of_heap
from pgas.kernels.paths.nic.wqes import store_atomic, store_copy, store_masked_swap, store_nop
from pgas.kernels.window import remote
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.wqe import Ce, Opcode

_NOWHERE, _ALWAYS, _MESSAGE_MAX = constant(NOWHERE), constant(Ce.ALWAYS), constant(wqe.MESSAGE_MAX)
_WRITE, _FA = constant(Opcode.RDMA_WRITE), constant(Opcode.ATOMIC_FA)
_0, _1, _2, _3, _6, _8 = (constant(c) for c in (0, 1, 2, 3, 6, 8))
_ONES, _WARP = constant((1 << 64) - 1), constant(32)

#: WQEs of a strided copy that a lane posts at once, at most. Those of a warp take no more than half of a queue.
_AT_ONCE = constant(16)


# Data ---------------------------------------------------------------------------------------------------------------------------


@device
def move(op, record, opcode, raddr, rkey, laddr, nbytes):
    """Post a WRITE or READ for each GiB; each lane posts its own. Return the index behind the last."""
    lkey = lkey_of(op, raddr, laddr, nbytes)
    if lkey == _NOWHERE:
        return _NOWHERE
    end = _0
    done = _0
    while done < nbytes and end != _NOWHERE:
        here, mask, rank, count = group(record)
        here, base = reserve(op, record, here, mask, rank, u64(count))
        end = _NOWHERE
        if base != _NOWHERE:
            end = base + u64(count)
            size = min(nbytes - done, _MESSAGE_MAX)
            ce = _ALWAYS if rank == count - 1 else _0
            store_copy(record, base + u64(rank), opcode, raddr + done, rkey, laddr + done, lkey, size, ce)
        submit(op, record, here, rank, base, u64(count))
        done += _MESSAGE_MAX
    return end


@device
def move_apart(op, record, opcode, rkey, remote_side, local_side, sizes):
    """Post n WRITEs or READs; each lane posts its own. Return the index behind the last.

    A group reserves and rings once for as many as each of its lanes has left; lanes with more go on without the others.

    remote_side, local_side: the address of the first, and the step from one to the next. sizes: n, bytes of each, bytes of the last.
    """
    raddr, raddr_step = remote_side
    laddr, laddr_step = local_side
    n, nbytes, last = sizes
    lkey = lkey_of(op, raddr, laddr, (n - _1) * laddr_step + last) if n != _0 else _0
    if lkey == _NOWHERE:
        return _NOWHERE
    end = _0
    while n != _0 and end != _NOWHERE:
        here, mask, rank, count = group(record)
        each = u64(ptx.least(here, u32(min(n, min(_AT_ONCE, window.DEPTH >> _6)))))
        behind = each * u64(count)
        here, base = reserve(op, record, here, mask, rank, behind)
        end = _NOWHERE
        if base != _NOWHERE:
            end = base + behind
            index = base + u64(rank)
            while index < end:
                n -= _1
                size, ce = nbytes if n != _0 else last, _ALWAYS if index + _1 == end else _0
                store_copy(record, index, opcode, raddr, rkey, laddr, lkey, size, ce)
                raddr += raddr_step
                laddr += laddr_step
                index += u64(count)
        submit(op, record, here, rank, base, behind)
    return end


@device
def signalled(op, record, to, source, nbytes, word, value, add, pe):
    """Post a WRITE and the signal behind it; data of several WRITEs is posted before. Return the index behind the last."""
    rkey = rkey_of_heap(pe)
    if nbytes > _MESSAGE_MAX:
        if move(op, record, _WRITE, remote(to, pe), rkey, source, nbytes) == _NOWHERE:
            return _NOWHERE
        nbytes = _0
    data, lkey = _0, _0
    if nbytes != _0:
        data, lkey = _1, lkey_of(op, remote(to, pe), source, nbytes)
        if lkey == _NOWHERE:
            return _NOWHERE
    n = data + (_1 if add else _3)
    # Lanes that signal at once take half of a queue at most, 4 WQEBBs each. Records are 256 bytes apart: the low bits of the key are
    # free for the number of a lane's WQEBBs and its part of the warp.
    part = u64(ptx.lane()) // min(_WARP, window.DEPTH >> _3)
    here, mask, rank, count = group(record + n + (part << _3))
    total = n * u64(count)
    here, base = reserve(op, record, here, mask, rank, total)
    end = _NOWHERE
    if base != _NOWHERE:
        end = base + total
        index = base + n * u64(rank)
        if data != _0:
            store_copy(record, index, _WRITE, remote(to, pe), rkey, source, lkey, nbytes, _0)
        if add:
            store_atomic(record, index + data, _FA, remote(word, pe), rkey, (ptx.swap_u64(value), _0), sink(), _8, _ALWAYS)
        else:
            store_masked_swap(record, index + data, remote(word, pe), rkey, (ptx.swap_u64(value), _0, _ONES), sink())
            store_nop(record, index + data + _2)
    submit(op, record, here, rank, base, total)
    return end


# Atomics ------------------------------------------------------------------------------------------------------------------------
#
# form: opcode, 1 if the WQE has two WQEBBs and else 0, bytes of the operand. words: see wqes.py.


@device
def room(count, wide):
    """Return the WQEBBs of an atomic of each of count lanes; wide ones have two, and a NOP behind the last."""
    return u64(count) if wide == _0 else _2 * u64(count) + _1


@device
def store_mine(record, base, rank, count, form, raddr, rkey, words, laddr):
    """Write the caller's atomic into its group's WQEBBs, which begin at base."""
    opcode, wide, nbytes = form
    if wide == _0:
        ce = _ALWAYS if rank == count - 1 else _0
        store_atomic(record, base + u64(rank), opcode, raddr, rkey, words, laddr, nbytes, ce)
    else:
        index = base + _2 * u64(rank)
        store_masked_swap(record, index, raddr, rkey, words, laddr)
        if rank == count - 1:
            store_nop(record, index + _2)


@device
def post_atomic(op, record, form, raddr, rkey, words):
    """Post an atomic whose old value nobody wants."""
    here, mask, rank, count = group(record)
    n = room(count, form[1])
    here, base = reserve(op, record, here, mask, rank, n)
    if base != _NOWHERE:
        store_mine(record, base, rank, count, form, raddr, rkey, words, sink())
    submit(op, record, here, rank, base, n)


@device
def _fetch(op, here, at, old, request):
    record, members, form, raddr, rkey, words = request
    mask, rank, count = members
    n = room(count, form[1])
    here, base = reserve(op, record, here, mask, rank, n)
    if base != _NOWHERE:
        store_mine(record, base, rank, count, form, raddr, rkey, words, at)
    submit(op, record, here, rank, base, n)
    if base != _NOWHERE:
        poll(op, record, base + n)
        old = old_word(at, form[2])
    return old


_fetched = fetching(_fetch)


@device
def fetch_atomic(op, record, form, raddr, rkey, words):
    """Perform an atomic and return the old value."""
    here, mask, rank, count = group(record)
    return _fetched(op, here, _8, _0, (record, (mask, rank, count), form, raddr, rkey, words))
