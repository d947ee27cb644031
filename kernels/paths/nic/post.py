"""Posting over ibgda: WQEs as lanes write them, and the functions that reserve WQEBBs, write WQEs, and submit them.

WQEs are written as octowords (16 bytes) in wire byte order (transports/mlx5/wqe.py). ``record`` is the address of a queue pair's record,
``index`` that of a WQEBB in its send queue; rkey and lkey are big-endian already.

Active lanes of a warp that use the same queue form a group, which reserves WQEBBs and rings the doorbell once. Functions that post return
the index just past the group's last WQEBB, or NOWHERE if the job is poisoned.
"""

from typing import Any

from pgas.kernels import window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic import atomic_wqe
from pgas.kernels.paths.nic.cells import fetching, old_word, sink
from pgas.kernels.paths.nic.lanes import group
from pgas.kernels.paths.nic.queue import poll, reserve, slot, submit
from pgas.kernels.paths.nic.queue_pair import NOWHERE, lkey_of, rkey_of_heap
from pgas.kernels.state import fixed
from pgas.kernels.typed import layout, wqe
from pgas.kernels.window import remote
from pgas.transports.mlx5.wqe import Ce, Fm, Opcode

_DS_SHIFT, _CE_SHIFT, _HALF = constant(56), constant(8 * (wqe.CTRL_FM_CE_SE % layout.WORD)), constant(32)
_NOP, _WRITE, _MASKED_CS_8 = constant(Opcode.NOP), constant(Opcode.RDMA_WRITE), constant(atomic_wqe.MASKED_CS_8)
_DUMP, _FENCE, _ALWAYS, _FA = constant(Opcode.DUMP), constant(Fm.FENCE), constant(Ce.ALWAYS), constant(Opcode.ATOMIC_FA)
_INLINE, _ROUND_UP, _WQEBB_MASK = constant(wqe.WQE_DATA + wqe.INLINE_HEADER), constant(wqe.OCTOWORD - 1), constant(wqe.WQEBB - 1)
_DS_FLAG, _HALF_WORD = constant(wqe.ds_inline(layout.WORD)), constant(layout.WORD // 2)
_ONES, _ONES_32 = constant((1 << 64) - 1), constant((1 << 32) - 1)
_0, _1, _2, _3, _6, _8 = (constant(c) for c in (0, 1, 2, 3, 6, 8))
_NOWHERE, _WARP = constant(NOWHERE), constant(32)

#: Maximum number of WQEs of a strided copy that a lane posts together. Those of a warp take at most half of a queue.
_AT_ONCE = constant(16)


# Segments -----------------------------------------------------------------------------------------------------------------------


@device
def store_ctrl(at, record, index, opcode, ds, ce):
    """Store a control segment; opcode has opmod in its upper byte."""
    idx_opcode = ptx.swap_u32(u32(opcode | (index & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT))
    ptx.st_octoword(at, u64(idx_opcode) | (fixed(record + layout.QPN) << _HALF) | ds << _DS_SHIFT, ce << _CE_SHIFT)


@device
def store_raddr(at, raddr, rkey):
    """Store a remote address segment."""
    ptx.st_octoword(at, ptx.swap_u64(raddr), u64(rkey))


@device
def store_data(at, addr, lkey, nbytes):
    """Store a data segment."""
    ptx.st_octoword(at, u64(ptx.swap_u32(u32(nbytes))) | lkey << _HALF, ptx.swap_u64(addr))


# WQEs of data -------------------------------------------------------------------------------------------------------------------


@device
def store_copy(record, index, opcode, raddr, rkey, laddr, lkey, nbytes, ce):
    """Write a WRITE or READ of one WQEBB."""
    at = slot(record, index)
    store_ctrl(at, record, index, opcode, wqe.DS_WRITE, ce)
    store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
    store_data(at + wqe.WQE_DATA, laddr, lkey, nbytes)


@device
def store_nop(record, index):
    """Write a NOP with a CQE, which completes the preceding WQE of several WQEBBs."""
    store_ctrl(slot(record, index), record, index, _NOP, wqe.DS_NOP, _ALWAYS)


@device
def store_dump(record, index, addr, lkey):
    """Write a DUMP of a byte, which waits for earlier READs and atomics, so that at its CQE their data is visible (transport.settle)."""
    at = slot(record, index)
    store_ctrl(at, record, index, _DUMP, wqe.DS_DUMP, _ALWAYS | _FENCE)
    store_data(at + wqe.DUMP_DATA, addr, lkey, _1)


# WRITEs with inline data --------------------------------------------------------------------------------------------------------


def inline(size: int) -> Any:
    """Make ``store_inline(record, index, raddr, rkey, low, high, ce)``: a WRITE of an element of ``size`` bytes."""
    ds, header = constant(wqe.ds_inline(size)), constant(int.from_bytes((int(wqe.INLINE_SEG) | size).to_bytes(4, "big"), "little"))

    @device
    def store_inline(record, index, raddr, rkey, low, high, ce):
        at = slot(record, index)
        store_ctrl(at, record, index, _WRITE, ds, ce)
        store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
        if size == 16:
            ptx.st_octoword(at + wqe.WQE_DATA, header | (low << _HALF) & _ONES, low >> _HALF | (high << _HALF) & _ONES)
            ptx.st_octoword(at + wqe.WQE_ATOMIC_DATA, high >> _HALF, _0)
        else:
            ptx.st_octoword(at + wqe.WQE_DATA, header | (low << _HALF) & _ONES, low >> _HALF)

    return store_inline


@device
def ds_inline(nbytes):
    """Return the ds of a WRITE with nbytes inline."""
    return (_INLINE + nbytes + _ROUND_UP) // wqe.OCTOWORD


@device
def wqebbs(ds):
    """Return the WQEBBs of a WQE of ds octowords."""
    return (ds + _3) // wqe.DS_PER_WQEBB


@device
def store_inline_head(record, index, ds, raddr, rkey, nbytes, ce):
    """Write all of a WRITE except its nbytes of inline data, of which each lane writes a part (inline_part)."""
    at = slot(record, index)
    store_ctrl(at, record, index, _WRITE, ds, ce)
    store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
    ptx.st_u32(at + wqe.WQE_DATA, ptx.swap_u32(u32(wqe.INLINE_SEG | nbytes)))


@device
def inline_at(record, index, offset):
    """Return the address of a byte of inline data of the WQE at index; WQEBBs wrap one by one."""
    offset += _INLINE
    return slot(record, index + (offset >> wqe.WQEBB_SHIFT)) + (offset & _WQEBB_MASK)


def inline_part(size: int) -> Any:
    """Make ``store_part(record, index, offset, low, high)``: an element of ``size`` bytes at an offset of a WQE's inline data."""

    @device
    def store_part(record, index, offset, low, high):
        at = inline_at(record, index, offset)
        if size == 1:
            ptx.st_u8(at, u32(low))
        elif size == 2:
            ptx.st_u16(at, u32(low))
        else:
            ptx.st_u32(at, u32(low & _ONES_32))
            if size >= 8:
                offset += _HALF_WORD
                ptx.st_u32(inline_at(record, index, offset), u32(low >> _HALF))
            if size == 16:
                offset += _HALF_WORD
                ptx.st_u32(inline_at(record, index, offset), u32(high & _ONES_32))
                offset += _HALF_WORD
                ptx.st_u32(inline_at(record, index, offset), u32(high >> _HALF))

    return store_part


@device
def store_flag(record, index, raddr, rkey, value):
    """Write a WRITE of a word of 8 bytes."""
    at = slot(record, index)
    store_ctrl(at, record, index, _WRITE, _DS_FLAG, _ALWAYS)
    store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
    ptx.st_octoword(at + wqe.WQE_DATA, u64(ptx.swap_u32(u32(wqe.INLINE_SEG | _8))) | value << _HALF, value >> _HALF)


# WQEs of atomics: words are the two of the atomic segment and, in a wide one, the first of the next segment (atomic_wqe.py) -------------


@device
def store_atomic(record, index, opcode, raddr, rkey, words, laddr, nbytes, ce):
    """Write an atomic of one WQEBB; the old value is written to laddr."""
    at = slot(record, index)
    store_ctrl(at, record, index, opcode, wqe.DS_ATOMIC, ce)
    store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
    ptx.st_octoword(at + wqe.WQE_DATA, words[0], words[1])
    store_data(at + wqe.WQE_ATOMIC_DATA, laddr, fixed(layout.CELL_LKEY), nbytes)


@device
def store_masked_swap(record, index, raddr, rkey, words, laddr):
    """Write a MASKED_CS of 8 bytes: two WQEBBs, without a CQE."""
    at = slot(record, index)
    store_ctrl(at, record, index, _MASKED_CS_8, wqe.DS_MASKED_CS_8, _0)
    store_raddr(at + wqe.WQE_RADDR, raddr, rkey)
    ptx.st_octoword(at + wqe.WQE_DATA, words[0], words[1])
    ptx.st_octoword(at + wqe.WQE_ATOMIC_DATA, words[2], _0)
    store_data(slot(record, index + _1), laddr, fixed(layout.CELL_LKEY), _8)


# Posting data -------------------------------------------------------------------------------------------------------------------


@device
def move(op, record, opcode, raddr, rkey, laddr, nbytes):
    """Post one WRITE or READ per GiB; each lane posts its own. Return the index just past the last."""
    lkey = lkey_of(op, raddr, laddr, nbytes)
    if lkey == _NOWHERE:
        return _NOWHERE
    end = _0
    done = _0
    while done < nbytes and end != _NOWHERE:
        here, mask, rank, count = group(record)
        here, base, idle = reserve(op, record, here, mask, rank, u64(count))
        end = _NOWHERE
        if base != _NOWHERE:
            end = base + u64(count)
            size = min(nbytes - done, wqe.MESSAGE_MAX)
            ce = _ALWAYS if rank == count - 1 else _0
            store_copy(record, base + u64(rank), opcode, raddr + done, rkey, laddr + done, lkey, size, ce)
        submit(op, record, here, rank, u64(count), (base, idle))
        done += wqe.MESSAGE_MAX
    return end


@device
def dump(op, record, raddr, laddr):
    """Post a DUMP after READs whose data is written at laddr, one per group of lanes. Return the index just past it."""
    lkey = lkey_of(op, raddr, laddr, _1)
    if lkey == _NOWHERE:
        return _NOWHERE
    here, mask, rank, _ = group(record)
    here, base, idle = reserve(op, record, here, mask, rank, _1)
    if base != _NOWHERE and rank == 0:
        store_dump(record, base, laddr, lkey)
    submit(op, record, here, rank, _1, (base, idle))
    return base if base == _NOWHERE else base + _1


@device
def move_apart(op, record, opcode, rkey, remote_side, local_side, sizes):
    """Post n WRITEs or READs; each lane posts its own. Return the index just past the last.

    In each round a group reserves and rings once, for as many WQEs per lane as the lane with the fewest still has to post.

    remote_side, local_side: the address of the first, and the distance between two. sizes: n, bytes of each, bytes of the last.
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
        here, base, idle = reserve(op, record, here, mask, rank, behind)
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
        submit(op, record, here, rank, behind, (base, idle))
    return end


@device
def signalled(op, record, to, source, nbytes, word, value, add, pe):
    """Post a WRITE and then its signal; data of several WRITEs is posted before. Return the index just past the last."""
    rkey = rkey_of_heap(pe)
    if nbytes > wqe.MESSAGE_MAX:
        if move(op, record, _WRITE, remote(to, pe), rkey, source, nbytes) == _NOWHERE:
            return _NOWHERE
        nbytes = _0
    data, lkey = _0, _0
    if nbytes != _0:
        data, lkey = _1, lkey_of(op, remote(to, pe), source, nbytes)
        if lkey == _NOWHERE:
            return _NOWHERE
    n = data + (_1 if add else _3)
    # Lanes that signal concurrently take at most half of a queue, 4 WQEBBs each. Because records are 256 bytes apart, the low bits of the
    # key are free for the number of a lane's WQEBBs and its part of the warp.
    part = u64(ptx.lane()) // min(_WARP, window.DEPTH >> _3)
    here, mask, rank, count = group(record + n + (part << _3))
    total = n * u64(count)
    here, base, idle = reserve(op, record, here, mask, rank, total)
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
    submit(op, record, here, rank, total, (base, idle))
    return end


# Posting atomics ----------------------------------------------------------------------------------------------------------------
#
# form: opcode, 1 if the WQE has two WQEBBs and otherwise 0, bytes of the operand. words: see store_atomic.


@device
def room(count, wide):
    """Return the number of WQEBBs for one atomic of each of count lanes; wide ones have two, and a NOP follows the last."""
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
    """Post an atomic without a result; the old value goes to the sink."""
    here, mask, rank, count = group(record)
    n = room(count, form[1])
    here, base, idle = reserve(op, record, here, mask, rank, n)
    if base != _NOWHERE:
        store_mine(record, base, rank, count, form, raddr, rkey, words, sink())
    submit(op, record, here, rank, n, (base, idle))


@device
def _fetch(op, here, at, old, request):
    record, members, form, raddr, rkey, words = request
    mask, rank, count = members
    n = room(count, form[1])
    if window.SETTLES:
        n += _1
    here, base, idle = reserve(op, record, here, mask, rank, n)
    if base != _NOWHERE:
        store_mine(record, base, rank, count, form, raddr, rkey, words, at)
        if window.SETTLES:
            if rank == 0:
                store_dump(record, base + n - _1, at, fixed(layout.CELL_LKEY))
    submit(op, record, here, rank, n, (base, idle))
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
