"""pgas.transports.mlx5.wqe, and builders of the WQEs that only tests build: the product's kernels store theirs word by word.

As in that module, wqe_idx is the running index of the WQE's first WQEBB; its low 16 bits are sent. All return ds octowords.
"""

from pgas.transports.mlx5.fields import fill
from pgas.transports.mlx5.wqe import *  # noqa: F403 because callers use the names of both modules
from pgas.transports.mlx5.wqe import (
    DATA,
    DS_DUMP,
    DS_NOP,
    DS_READ,
    DS_WAIT,
    INLINE,
    INLINE_HEADER,
    INLINE_MAX,
    INVALID_LKEY,
    OCTOWORD,
    RADDR,
    WAIT,
    WQE_SEND_DATA,
    Opcode,
    Opmod,
    _atomic,
    _ctrl,
    _data,
    ds_inline,
)  # fmt: skip


def nop(wqe_idx: int, qpn: int, *, fm_ce_se: int = 0) -> bytes:
    """Build a NOP, whose CQE completes a longer WQE before it."""
    return _ctrl(Opcode.NOP, wqe_idx, qpn, DS_NOP, fm_ce_se)


def dump(wqe_idx: int, qpn: int, addr: int, lkey: int, nbytes: int = 1, *, fm_ce_se: int = 0) -> bytes:
    """Build a DUMP, which makes the NIC read and discard nbytes at addr, after its earlier writes there."""
    return _ctrl(Opcode.DUMP, wqe_idx, qpn, DS_DUMP, fm_ce_se) + _data(addr, lkey, nbytes)


def wait(wqe_idx: int, qpn: int, cqn: int, max_index: int, *, fm_ce_se: int = 0) -> bytes:
    """Build a WAIT: later WQEs in the queue start only when a CQ has received its CQE number max_index."""
    return _ctrl(Opcode.WAIT, wqe_idx, qpn, DS_WAIT, fm_ce_se) + fill(WAIT, {"max_index": max_index, "qpn_or_cqn": cqn})


def _inline(head: bytes, payload: bytes, ds: int) -> bytes:
    """Return a WQE of ds octowords that begins with head and carries its payload."""
    return (head + fill(INLINE, {"inline_seg": 1, "byte_count": len(payload)}) + payload).ljust(ds * OCTOWORD, b"\0")


def write_inline(wqe_idx: int, qpn: int, raddr: int, rkey: int, payload: bytes, *, fm_ce_se: int = 0) -> bytes:
    """Build an RDMA_WRITE that carries its payload, so that the NIC reads only the WQE."""
    if not 1 <= len(payload) <= INLINE_MAX:
        raise ValueError(f"payload must have 1 to {INLINE_MAX} bytes to be sent inline, not {len(payload)}")
    ds = ds_inline(len(payload))
    return _inline(_ctrl(Opcode.RDMA_WRITE, wqe_idx, qpn, ds, fm_ce_se) + fill(RADDR, {"raddr": raddr, "rkey": rkey}), payload, ds)


def send(wqe_idx: int, qpn: int, addr: int, lkey: int, nbytes: int, *, fm_ce_se: int = 0, imm: int | None = None) -> bytes:
    """Build a SEND of nbytes at addr, SEND_IMM with imm; without a data segment if nbytes is 0."""
    data = _data(addr, lkey, nbytes) if nbytes else b""
    opcode = Opcode.SEND if imm is None else Opcode.SEND_IMM
    return _ctrl(opcode, wqe_idx, qpn, (WQE_SEND_DATA + len(data)) // OCTOWORD, fm_ce_se, imm=imm or 0) + data


def send_inline(wqe_idx: int, qpn: int, payload: bytes, *, fm_ce_se: int = 0, imm: int | None = None) -> bytes:
    """Build a SEND that carries its payload, SEND_IMM with imm."""
    ds = -(-(WQE_SEND_DATA + INLINE_HEADER + len(payload)) // OCTOWORD)
    opcode = Opcode.SEND if imm is None else Opcode.SEND_IMM
    return _inline(_ctrl(opcode, wqe_idx, qpn, ds, fm_ce_se, imm=imm or 0), payload, ds)


def receive(*segments: tuple[int, int, int], stride: int = OCTOWORD) -> bytes:
    """Build a receive WQE of (addr, lkey, nbytes) for an entry of stride bytes; one shorter than its entry ends with INVALID_LKEY.

    Raises:
        ValueError: the entry is too short for the segments.
    """
    data = b"".join(_data(*segment) for segment in segments)
    if len(data) > stride:
        raise ValueError(f"segments: {len(segments)} do not fit in a receive WQE of {stride} bytes")
    return data if len(data) == stride else (data + fill(DATA, {"lkey": INVALID_LKEY})).ljust(stride, b"\0")


def read(wqe_idx: int, qpn: int, raddr: int, rkey: int, addr: int, lkey: int, nbytes: int, *, fm_ce_se: int = 0) -> bytes:
    ctrl = _ctrl(Opcode.RDMA_READ, wqe_idx, qpn, DS_READ, fm_ce_se)
    return ctrl + fill(RADDR, {"raddr": raddr, "rkey": rkey}) + _data(addr, lkey, nbytes)


def _opmod(nbytes: int) -> Opmod:
    if nbytes not in (4, 8):
        raise ValueError(f"nbytes must be 4 or 8, the operand sizes of masked atomics, not {nbytes}")
    return Opmod.MASKED_4 if nbytes == 4 else Opmod.MASKED_8


def compare_swap(
    wqe_idx: int, qpn: int, raddr: int, rkey: int, addr: int, lkey: int, compare: int, swap: int, *, fm_ce_se: int = 0
) -> bytes:
    """Build an ATOMIC_CS: replace the 8 bytes at raddr if they equal compare, and return the old value to addr."""
    return _atomic(Opcode.ATOMIC_CS, Opmod.NONE, wqe_idx, qpn, raddr, rkey, addr, lkey, fm_ce_se, swap_add=swap, compare=compare)


def masked_fetch_add(wqe_idx, qpn, raddr, rkey, addr, lkey, nbytes, add, field_boundary=0, *, fm_ce_se=0) -> bytes:
    """Build an ATOMIC_MASKED_FA on nbytes (4 or 8): no carry leaves a bit that is set in field_boundary."""
    opcode, opmod = Opcode.ATOMIC_MASKED_FA, _opmod(nbytes)
    return _atomic(opcode, opmod, wqe_idx, qpn, raddr, rkey, addr, lkey, fm_ce_se, add=add, field_boundary=field_boundary)


def masked_compare_swap(wqe_idx, qpn, raddr, rkey, addr, lkey, nbytes, compare, swap, compare_mask, swap_mask, *, fm_ce_se=0) -> bytes:
    """Build an ATOMIC_MASKED_CS on nbytes (4 or 8): compare under compare_mask, and replace the bits of swap_mask."""
    operands = {"swap": swap, "compare": compare, "swap_mask": swap_mask, "compare_mask": compare_mask}
    return _atomic(Opcode.ATOMIC_MASKED_CS, _opmod(nbytes), wqe_idx, qpn, raddr, rkey, addr, lkey, fm_ce_se, **operands)
