"""Work queue elements: opcodes, segments, sizes, and builders (``mlx5dv.h``).

A WQE is a sequence of adjacent segments: ctrl, then raddr, then an atomic segment, then data or inline. It occupies whole WQEBBs (64 bytes)
of the send queue, a ring of 2^n WQEBBs, and wraps between WQEBBs. Its size on the wire, ``ds``, counts octowords (16 bytes), including the
control segment. Every field of more than a byte is big-endian.

A receive WQE consists of data segments only. It occupies one entry of the receive queue, a ring of 2^n entries of 2^m octowords.

These are the WQEs of an RC QP; DC is not supported. Decoding is in send_queue.py.
"""

from enum import IntEnum

from pgas.transports.mlx5.fields import Field, Table, fill


class Opcode(IntEnum):
    """``MLX5_OPCODE_*``; WAIT and DUMP are not in mlx5dv.h but in DOCA's headers; NVSHMEM's also have DUMP."""

    NOP = 0x00
    SEND_INVAL = 0x01
    RDMA_WRITE = 0x08
    RDMA_WRITE_IMM = 0x09
    SEND = 0x0A
    SEND_IMM = 0x0B
    TSO = 0x0E
    WAIT = 0x0F
    RDMA_READ = 0x10
    ATOMIC_CS = 0x11
    ATOMIC_FA = 0x12
    ATOMIC_MASKED_CS = 0x14
    ATOMIC_MASKED_FA = 0x15
    FMR = 0x19
    LOCAL_INVAL = 0x1B
    CONFIG_CMD = 0x1F
    SET_PSV = 0x20
    DUMP = 0x23
    UMR = 0x25
    TAG_MATCHING = 0x28
    FLOW_TBL_ACCESS = 0x2C
    MMO = 0x2F


class Opmod(IntEnum):
    """The opcode modifier: the width of a masked atomic's operands; 0 with every other opcode, including plain CS and FA."""

    NONE = 0x00
    MASKED_4 = 0x08
    MASKED_8 = 0x09


class Fm(IntEnum):
    """Fence mode, bits 7:5 of fm_ce_se, in place. rdma-core's MLX5_WQE_CTRL_FENCE is not FENCE: see the last member."""

    NONE = 0 << 5
    INITIATOR_SMALL_FENCE = 1 << 5
    FENCE = 2 << 5  # waits for earlier READs and atomics of the QP; the FENCE of NVSHMEM and DOCA
    STRONG_ORDERING = 3 << 5
    FENCE_AND_INITIATOR_SMALL_FENCE = 4 << 5  # MLX5_WQE_CTRL_FENCE of mlx5dv.h, IBV_SEND_FENCE


class Ce(IntEnum):
    """When to write a CQE, bits 3:2 of fm_ce_se, in place."""

    ON_ERROR = 0 << 2
    ON_FIRST_ERROR = 1 << 2
    ALWAYS = 2 << 2  # MLX5_WQE_CTRL_CQ_UPDATE
    ALWAYS_AND_EQE = 3 << 2


FM_MASK = 7 << 5
CE_MASK = 3 << 2

# --- geometry and limits ---------------------------------------------------------------------------------------------------------

WQEBB_SHIFT = 6  # MLX5_SEND_WQE_SHIFT
WQEBB = 1 << WQEBB_SHIFT  # MLX5_SEND_WQE_BB
OCTOWORD = 16
DS_PER_WQEBB = WQEBB // OCTOWORD

#: Mask of the low 16 bits of a running WQEBB index, which WQEs, doorbells, and CQEs have. It does not depend on the ring's size.
WQE_IDX_MASK = 0xFFFF

#: Minimum and maximum number of WQEBBs in a send queue. Above 2^15, the distance between two 16-bit indices would be ambiguous.
DEPTH_MIN = 128
DEPTH_MAX = 32768

#: Maximum number of bytes of one WQE: log_max_msg = 30; NVSHMEM and NCCL also use 1 GiB per WQE.
MESSAGE_MAX = 1 << 30

# --- segments --------------------------------------------------------------------------------------------------------------------

CTRL = Table(
    "ctrl",  # mlx5_wqe_ctrl_seg
    16,
    Field("opmod", 0, 8, Opmod),
    Field("wqe_idx", 8, 16),
    Field("opcode", 24, 8, Opcode),
    Field("qpn", 32, 24),
    Field("ds", 58, 6),
    Field("signature", 64, 8),  # 0 unless qpc.wq_signature
    Field("dci_stream_channel_id", 72, 16),
    Field("fm_ce_se", 88, 8),
    Field("imm", 96, 32),  # immediate, invalidate key, or UMR key
)
RADDR = Table("raddr", 16, Field("raddr", 0, 64), Field("rkey", 64, 32))  # mlx5_wqe_raddr_seg
DATA = Table("data", 16, Field("byte_count", 0, 32), Field("lkey", 32, 32), Field("addr", 64, 64))  # mlx5_wqe_data_seg
INLINE = Table("inline", 4, Field("inline_seg", 0, 1), Field("byte_count", 1, 31))  # mlx5_wqe_inl_data_seg; the bytes follow
WAIT = Table("wait", 16, Field("max_index", 64, 32), Field("qpn_or_cqn", 96, 32))  # in DOCA's headers only
ATOMIC = Table("atomic", 16, Field("swap_add", 0, 64), Field("compare", 64, 64))  # mlx5_wqe_atomic_seg; FA does not use compare

# Extended atomics are not in rdma-core's headers but in NVSHMEM's. FA: no carry leaves a bit that is set in field_boundary. CS: compares
# under compare_mask and replaces under swap_mask. The old value of 4 bytes is returned big-endian, that of 8 bytes in host order; memory
# itself holds integers in host order.
MASKED_FA_4 = Table("masked_fa_4", 16, Field("add", 0, 32), Field("field_boundary", 32, 32))
MASKED_FA_8 = Table("masked_fa_8", 16, Field("add", 0, 64), Field("field_boundary", 64, 64))
MASKED_CS_4 = Table(
    "masked_cs_4", 16, Field("swap", 0, 32), Field("compare", 32, 32), Field("swap_mask", 64, 32), Field("compare_mask", 96, 32)
)
MASKED_CS_8 = Table(
    "masked_cs_8", 32, Field("swap", 0, 64), Field("compare", 64, 64), Field("swap_mask", 128, 64), Field("compare_mask", 192, 64)
)

#: Bit 31 of byte_count (MLX5_INLINE_SEG), which is set in an inline segment and clear in a data segment.
INLINE_SEG = 1 << 31
INLINE_HEADER = INLINE.size

#: Atomic segment of an opcode and opmod, and the bytes of its operand.
ATOMICS = {
    (Opcode.ATOMIC_CS, Opmod.NONE): (ATOMIC, 8),
    (Opcode.ATOMIC_FA, Opmod.NONE): (ATOMIC, 8),
    (Opcode.ATOMIC_MASKED_CS, Opmod.MASKED_4): (MASKED_CS_4, 4),
    (Opcode.ATOMIC_MASKED_CS, Opmod.MASKED_8): (MASKED_CS_8, 8),
    (Opcode.ATOMIC_MASKED_FA, Opmod.MASKED_4): (MASKED_FA_4, 4),
    (Opcode.ATOMIC_MASKED_FA, Opmod.MASKED_8): (MASKED_FA_8, 8),
}

# Byte offsets in a segment, and those of a segment in an RC WQE, for code that stores words.
CTRL_OPMOD_IDX_OPCODE = CTRL.byte("opmod")  # be32: opmod << 24 | wqe_idx << 8 | opcode
CTRL_QPN_DS = CTRL.byte("qpn")  # be32: qpn << 8 | ds
CTRL_FM_CE_SE = CTRL.byte("fm_ce_se")
CTRL_IMM = CTRL.byte("imm")
OPMOD_SHIFT, WQE_IDX_SHIFT, QPN_SHIFT, DS_MASK = 24, 8, 8, 0x3F

WQE_RADDR = CTRL.size
WQE_DATA = WQE_RADDR + RADDR.size  # WRITE and READ: data; WRITE inline: inline; atomics: the atomic segment
WQE_ATOMIC_DATA = WQE_DATA + ATOMIC.size
WQE_MASKED_CS_8_DATA = WQE_DATA + MASKED_CS_8.size  # the first segment of the second WQEBB
DUMP_DATA = CTRL.size
WQE_SEND_DATA = CTRL.size  # SEND: data or inline
WQE_WAIT = CTRL.size

# --- ds and WQEBBs ---------------------------------------------------------------------------------------------------------------

DS_MAX = (1 << CTRL["ds"].width) - 1  # 6 bits; NVSHMEM's comment has 64 for RC, but its largest WQE has 19
DS_NOP = CTRL.size // OCTOWORD  # NVSHMEM's stand-alone NOP has 2 with a stale second octoword, which must not be parsed
DS_DUMP = (DUMP_DATA + DATA.size) // OCTOWORD
DS_WAIT = (WQE_WAIT + WAIT.size) // OCTOWORD
DS_WRITE = DS_READ = (WQE_DATA + DATA.size) // OCTOWORD
DS_ATOMIC = (WQE_ATOMIC_DATA + DATA.size) // OCTOWORD  # all but the next
DS_MASKED_CS_8 = (WQE_MASKED_CS_8_DATA + DATA.size) // OCTOWORD

#: Value of lkey in the data segment that ends a receive WQE shorter than its entry; no memory key has it (MLX5_INVALID_LKEY).
INVALID_LKEY = 0x100

#: Maximum number of bytes of an inline WRITE of one WQEBB, and of any. A NIC may allow less (QUERY_HCA_CAP's max_wqe_sz_sq).
INLINE_MAX_1_WQEBB = WQEBB - WQE_DATA - INLINE_HEADER
INLINE_MAX = DS_MAX * OCTOWORD - WQE_DATA - INLINE_HEADER


def ds_inline(nbytes: int) -> int:
    """Return the ds of a WRITE of nbytes inline."""
    return (WQE_DATA + INLINE_HEADER + nbytes + OCTOWORD - 1) // OCTOWORD


def wqebbs(ds: int) -> int:
    """Return the number of WQEBBs that a WQE of ds octowords occupies."""
    return (ds + DS_PER_WQEBB - 1) // DS_PER_WQEBB


# --- builders --------------------------------------------------------------------------------------------------------------------
# wqe_idx: the running index of the WQE's first WQEBB; its low 16 bits are sent. All return ds octowords.


def _ctrl(opcode: int, wqe_idx: int, qpn: int, ds: int, fm_ce_se: int, opmod: int = 0, imm: int = 0) -> bytes:
    idx = wqe_idx & WQE_IDX_MASK
    return fill(CTRL, {"opmod": opmod, "wqe_idx": idx, "opcode": opcode, "qpn": qpn, "ds": ds, "fm_ce_se": fm_ce_se, "imm": imm})


def _data(addr: int, lkey: int, nbytes: int) -> bytes:
    if not 1 <= nbytes <= MESSAGE_MAX:
        raise ValueError(f"nbytes must be 1 to {MESSAGE_MAX}, not {nbytes}")
    return fill(DATA, {"byte_count": nbytes, "lkey": lkey, "addr": addr})


def write(
    wqe_idx: int, qpn: int, raddr: int, rkey: int, addr: int, lkey: int, nbytes: int, *, fm_ce_se: int = 0, imm: int | None = None
) -> bytes:
    """Build an RDMA_WRITE of nbytes at addr to raddr; RDMA_WRITE_IMM with imm."""
    opcode = Opcode.RDMA_WRITE if imm is None else Opcode.RDMA_WRITE_IMM
    ctrl = _ctrl(opcode, wqe_idx, qpn, DS_WRITE, fm_ce_se, imm=imm or 0)
    return ctrl + fill(RADDR, {"raddr": raddr, "rkey": rkey}) + _data(addr, lkey, nbytes)


def _atomic(
    opcode: Opcode, opmod: Opmod, wqe_idx: int, qpn: int, raddr: int, rkey: int, addr: int, lkey: int, fm_ce_se: int, **operands: int
) -> bytes:
    table, nbytes = ATOMICS[opcode, opmod]
    ds = (WQE_DATA + table.size + DATA.size) // OCTOWORD
    ctrl = _ctrl(opcode, wqe_idx, qpn, ds, fm_ce_se, opmod)
    return ctrl + fill(RADDR, {"raddr": raddr, "rkey": rkey}) + fill(table, operands) + _data(addr, lkey, nbytes)


def fetch_add(wqe_idx: int, qpn: int, raddr: int, rkey: int, addr: int, lkey: int, add: int, *, fm_ce_se: int = 0) -> bytes:
    """Build an ATOMIC_FA: add to the 8 bytes at raddr, and return the old value to addr."""
    return _atomic(Opcode.ATOMIC_FA, Opmod.NONE, wqe_idx, qpn, raddr, rkey, addr, lkey, fm_ce_se, swap_add=add)
