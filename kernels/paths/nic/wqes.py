"""WQEs as lanes write them, as octowords (16 bytes) in the byte order of the wire (transports/mlx5/wqe.py, facts/mlx5.md 1.2).

``record`` is the address of a queue pair's record, ``index`` that of a WQEBB in its send queue; rkey and lkey are big-endian already.
"""

from typing import Any

from pgas.kernels import layout
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic import atomic_wqe
from pgas.kernels.paths.nic.queue import slot
from pgas.kernels.paths.nic.queue_pair import fixed
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.wqe import Ce, Opcode

_QPN, _CELL_LKEY = constant(layout.QPN), constant(layout.CELL_LKEY)
_IDX_MASK, _IDX_SHIFT = constant(wqe.WQE_IDX_MASK), constant(wqe.WQE_IDX_SHIFT)
_DS_SHIFT, _CE_SHIFT, _HALF = constant(56), constant(8 * (wqe.CTRL_FM_CE_SE % layout.WORD)), constant(32)
_RADDR, _DATA, _ATOMIC_DATA = constant(wqe.WQE_RADDR), constant(wqe.WQE_DATA), constant(wqe.WQE_ATOMIC_DATA)
_DS_NOP, _DS_WRITE, _DS_ATOMIC, _DS_MASKED_CS_8 = (constant(c) for c in (wqe.DS_NOP, wqe.DS_WRITE, wqe.DS_ATOMIC, wqe.DS_MASKED_CS_8))
_NOP, _WRITE, _MASKED_CS_8 = constant(Opcode.NOP), constant(Opcode.RDMA_WRITE), constant(atomic_wqe.MASKED_CS_8)
_ALWAYS, _INLINE_SEG = constant(Ce.ALWAYS), constant(wqe.INLINE_SEG)
_INLINE, _OCTOWORD, _ROUND_UP = constant(wqe.WQE_DATA + wqe.INLINE_HEADER), constant(wqe.OCTOWORD), constant(wqe.OCTOWORD - 1)
_DS_PER_WQEBB = constant(wqe.DS_PER_WQEBB)
_WQEBB_MASK, _WQEBB_SHIFT = constant(wqe.WQEBB - 1), constant(wqe.WQEBB_SHIFT)
_DS_FLAG, _WORD, _HALF_WORD = constant(wqe.ds_inline(layout.WORD)), constant(layout.WORD), constant(layout.WORD // 2)
_ONES, _ONES_32 = constant((1 << 64) - 1), constant((1 << 32) - 1)
_0, _1, _3, _8 = (constant(c) for c in (0, 1, 3, 8))


# Segments -----------------------------------------------------------------------------------------------------------------------


@device
def store_ctrl(at, record, index, opcode, ds, ce):
    """Store a control segment; opcode has opmod in its upper byte."""
    idx_opcode = ptx.swap_u32(u32(opcode | (index & _IDX_MASK) << _IDX_SHIFT))
    ptx.st_octoword(at, u64(idx_opcode) | (fixed(record + _QPN) << _HALF) | ds << _DS_SHIFT, ce << _CE_SHIFT)


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
    store_ctrl(at, record, index, opcode, _DS_WRITE, ce)
    store_raddr(at + _RADDR, raddr, rkey)
    store_data(at + _DATA, laddr, lkey, nbytes)


@device
def store_nop(record, index):
    """Write a NOP with a CQE, which completes a WQE of several WQEBBs before it."""
    store_ctrl(slot(record, index), record, index, _NOP, _DS_NOP, _ALWAYS)


# WRITEs with inline data --------------------------------------------------------------------------------------------------------


def inline(size: int) -> Any:
    """Make ``store_inline(record, index, raddr, rkey, low, high, ce)``: a WRITE of an element of ``size`` bytes."""
    ds, header = constant(wqe.ds_inline(size)), constant(int.from_bytes((wqe.INLINE_SEG | size).to_bytes(4, "big"), "little"))

    @device
    def store_inline(record, index, raddr, rkey, low, high, ce):
        at = slot(record, index)
        store_ctrl(at, record, index, _WRITE, ds, ce)
        store_raddr(at + _RADDR, raddr, rkey)
        if size == 16:
            ptx.st_octoword(at + _DATA, header | (low << _HALF) & _ONES, low >> _HALF | (high << _HALF) & _ONES)
            ptx.st_octoword(at + _ATOMIC_DATA, high >> _HALF, _0)
        else:
            ptx.st_octoword(at + _DATA, header | (low << _HALF) & _ONES, low >> _HALF)

    return store_inline


@device
def ds_inline(nbytes):
    """Return the ds of a WRITE with nbytes inline."""
    return (_INLINE + nbytes + _ROUND_UP) // _OCTOWORD


@device
def wqebbs(ds):
    """Return the WQEBBs of a WQE of ds octowords."""
    return (ds + _3) // _DS_PER_WQEBB


@device
def store_inline_head(record, index, ds, raddr, rkey, nbytes, ce):
    """Write all of a WRITE but its nbytes of inline data, of which each lane writes a part (inline_part)."""
    at = slot(record, index)
    store_ctrl(at, record, index, _WRITE, ds, ce)
    store_raddr(at + _RADDR, raddr, rkey)
    ptx.st_u32(at + _DATA, ptx.swap_u32(u32(_INLINE_SEG | nbytes)))


@device
def inline_at(record, index, offset):
    """Return the address of a byte of inline data of the WQE at index; WQEBBs wrap one by one."""
    offset += _INLINE
    return slot(record, index + (offset >> _WQEBB_SHIFT)) + (offset & _WQEBB_MASK)


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
    store_raddr(at + _RADDR, raddr, rkey)
    ptx.st_octoword(at + _DATA, u64(ptx.swap_u32(u32(_INLINE_SEG | _8))) | value << _HALF, value >> _HALF)


# Atomics: words are the two of the atomic segment and, of a wide one, the first of the segment behind it (atomic_wqe.py) ------------------


@device
def store_atomic(record, index, opcode, raddr, rkey, words, laddr, nbytes, ce):
    """Write an atomic of one WQEBB; the old value lands at laddr."""
    at = slot(record, index)
    store_ctrl(at, record, index, opcode, _DS_ATOMIC, ce)
    store_raddr(at + _RADDR, raddr, rkey)
    ptx.st_octoword(at + _DATA, words[0], words[1])
    store_data(at + _ATOMIC_DATA, laddr, fixed(_CELL_LKEY), nbytes)


@device
def store_masked_swap(record, index, raddr, rkey, words, laddr):
    """Write a MASKED_CS of 8 bytes: two WQEBBs, without a CQE."""
    at = slot(record, index)
    store_ctrl(at, record, index, _MASKED_CS_8, _DS_MASKED_CS_8, _0)
    store_raddr(at + _RADDR, raddr, rkey)
    ptx.st_octoword(at + _DATA, words[0], words[1])
    ptx.st_octoword(at + _ATOMIC_DATA, words[2], _0)
    store_data(slot(record, index + _1), laddr, fixed(_CELL_LKEY), _8)
