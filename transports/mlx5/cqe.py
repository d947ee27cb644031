"""Completion queue entries of 64 bytes, and the extension of their 16-bit wqe_counter to a 64-bit index.

The CQs of this runtime are collapsed: every CQE overwrites entry 0, and the consumer does not report its index (``cqc.cc``, ``cqc.oi``).
The entry is filled with EMPTY before the first CQE, so that its opcode reads INVALID. In other CQs, the CQEs fill a ring, an owner bit
distinguishes the rounds (valid), and the consumer stores its index into the CQ's doorbell record.

The NIC stores bytes 0..55 of a CQE first, then the tail, bytes 56..63, as one 64-bit store. A poller loads the tail with one load, so that
wqe_counter and op_own belong to the same CQE.
"""

from dataclasses import dataclass
from enum import IntEnum

from pgas.transports.mlx5 import fields
from pgas.transports.mlx5.fields import Buffer, Explained, Field, Table, explanation, fill
from pgas.transports.mlx5.wqe import WQE_IDX_MASK, Opcode


class CqeOpcode(IntEnum):
    """``MLX5_CQE_*``, bits 7:4 of op_own."""

    REQ = 0
    RESP_WR_IMM = 1
    RESP_SEND = 2
    RESP_SEND_IMM = 3
    RESP_SEND_INV = 4
    RESIZE_CQ = 5
    NO_PACKET = 6
    SIG_ERR = 12
    REQ_ERR = 13
    RESP_ERR = 14
    INVALID = 15


class Syndrome(Explained):
    """``MLX5_CQE_SYNDROME_*``: why a WQE failed."""

    LOCAL_LENGTH_ERR = 0x01, "local length error"
    LOCAL_QP_OP_ERR = 0x02, "local QP operation error"
    LOCAL_PROT_ERR = 0x04, "local protection error"
    WR_FLUSH_ERR = 0x05, "work request flushed"
    MW_BIND_ERR = 0x06, "memory window bind error"
    BAD_RESP_ERR = 0x10, "bad response"
    LOCAL_ACCESS_ERR = 0x11, "local access error"
    REMOTE_INVAL_REQ_ERR = 0x12, "remote invalid request"
    REMOTE_ACCESS_ERR = 0x13, "remote access error"
    REMOTE_OP_ERR = 0x14, "remote operation error"
    TRANSPORT_RETRY_EXC_ERR = 0x15, "transport retry counter exceeded"
    RNR_RETRY_EXC_ERR = 0x16, "RNR retry counter exceeded"
    REMOTE_ABORTED_ERR = 0x22, "remote aborted"


def syndrome_words(syndrome: int) -> str:
    """Return the meaning of a syndrome, and its number in hex."""
    return f"{explanation(Syndrome, syndrome) or 'unknown syndrome'} ({syndrome:#04x})"


# --- layout ----------------------------------------------------------------------------------------------------------------------

# The last 8 bytes are the same in both: sop_drop_qpn of mlx5_cqe64 is s_wqe_opcode_qpn of mlx5_err_cqe.
_TAIL = (
    Field("s_wqe_opcode", 448, 8, Opcode),  # the opcode of the WQE
    Field("qpn", 456, 24),
    Field("wqe_counter", 480, 16),  # the low 16 bits of the index of the WQE's first WQEBB
    Field("signature", 496, 8),
    Field("opcode", 504, 4, CqeOpcode),  # op_own is opcode, format, se, owner
    Field("format", 508, 2),
    Field("se", 510, 1),
    Field("owner", 511, 1),
)
CQE64 = Table(
    "cqe64",  # mlx5_cqe64
    64,
    Field("wqe_id", 16, 16),
    Field("ml_path", 136, 8),
    Field("slid", 176, 16),
    Field("flags_rqpn", 192, 32),
    Field("hds_ip_ext", 224, 8),
    Field("l4_hdr_type_etc", 232, 8),
    Field("vlan_info", 240, 16),
    Field("srqn_uidx", 256, 32),  # qpc.user_index, because cqe_version is 1
    Field("imm_inval_pkey", 288, 32),
    Field("app", 320, 8),
    Field("app_op", 328, 8),
    Field("app_info", 336, 16),
    Field("byte_cnt", 352, 32),
    Field("timestamp", 384, 64),
    *_TAIL,
)
ERR_CQE = Table(
    "err_cqe",  # mlx5_err_cqe; hw_err_synd and hw_synd_type are NVSHMEM's names of two of its reserved bytes
    64,
    Field("srqn", 256, 32),
    Field("hw_err_synd", 416, 8),
    Field("hw_synd_type", 424, 8),
    Field("vendor_err_synd", 432, 8),
    Field("syndrome", 440, 8, Syndrome),
    *_TAIL,
)

CQE_SIZE = CQE64.size
CQE_TAIL = CQE64.byte("s_wqe_opcode")  # the last 8 bytes, stored by one store
CQE_WQE_COUNTER = CQE64.byte("wqe_counter")
CQE_OP_OWN = CQE64.byte("opcode")
CQE_VENDOR_ERR_SYND = ERR_CQE.byte("vendor_err_synd")
CQE_SYNDROME = ERR_CQE.byte("syndrome")

#: Layout of the tail as a big-endian 64-bit word: s_wqe_opcode << 56 | qpn << 32 | wqe_counter << 16 | signature << 8 | op_own.
TAIL_OPCODE_SHIFT, TAIL_QPN_SHIFT, TAIL_WQE_COUNTER_SHIFT = 56, 32, 16

OP_OWN_OPCODE_SHIFT = 4
OP_OWN_OWNER_MASK = 1  # MLX5_CQE_OWNER_MASK

#: Initial byte of a CQ's memory: opcode INVALID, and the wqe_counter for "index -1 is complete".
EMPTY = 0xFF


def valid(op_own_byte: int, consumer_idx: int, cq_size: int) -> bool:
    """Whether an entry of a CQ that is not collapsed is the NIC's newest at consumer_idx."""
    owner = 1 if consumer_idx & cq_size else 0
    return op_own_byte & OP_OWN_OWNER_MASK == owner and op_own_byte >> OP_OWN_OPCODE_SHIFT != CqeOpcode.INVALID


# --- build and decode ------------------------------------------------------------------------------------------------------------


def completed(qpn: int, s_wqe_opcode: int, wqe_idx: int, byte_cnt: int = 0, user_index: int = 0, owner: int = 0) -> bytes:
    """Build the CQE of a signaled WQE; wqe_idx is the index of its first WQEBB."""
    tail = {"s_wqe_opcode": s_wqe_opcode, "qpn": qpn, "wqe_counter": wqe_idx & WQE_IDX_MASK, "opcode": CqeOpcode.REQ, "owner": owner}
    return fill(CQE64, dict(srqn_uidx=user_index, byte_cnt=byte_cnt, **tail))


def received(qpn: int, opcode: int, receive_idx: int, byte_cnt: int, imm: int = 0, user_index: int = 0, owner: int = 0) -> bytes:
    """Build the CQE of a receive WQE: opcode is RESP_*, receive_idx counts receive WQEs."""
    tail = {"qpn": qpn, "wqe_counter": receive_idx & WQE_IDX_MASK, "opcode": opcode, "owner": owner}
    return fill(CQE64, dict(srqn_uidx=user_index, imm_inval_pkey=imm, byte_cnt=byte_cnt, **tail))


def error(
    qpn: int,
    s_wqe_opcode: int,
    wqe_idx: int,
    syndrome: int,
    vendor_err_synd: int = 0,
    user_index: int = 0,
    opcode: int = CqeOpcode.REQ_ERR,
    owner: int = 0,
) -> bytes:
    """Build the CQE of a WQE that failed or was flushed."""
    tail = {"s_wqe_opcode": s_wqe_opcode, "qpn": qpn, "wqe_counter": wqe_idx & WQE_IDX_MASK, "opcode": opcode, "owner": owner}
    return fill(ERR_CQE, dict(srqn=user_index, syndrome=syndrome, vendor_err_synd=vendor_err_synd, **tail))


@dataclass(frozen=True)
class Cqe:
    """A decoded CQE. In an error CQE (is_error), byte_cnt and imm are 0; in any other, the syndromes are 0."""

    opcode: int
    owner: int
    qpn: int
    s_wqe_opcode: int
    wqe_counter: int
    user_index: int = 0
    byte_cnt: int = 0
    syndrome: int = 0
    vendor_err_synd: int = 0
    hw_err_synd: int = 0
    hw_synd_type: int = 0
    imm: int = 0

    @property
    def is_error(self) -> bool:
        return self.opcode in (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR)

    def __str__(self) -> str:
        head = f"{fields.named(CqeOpcode, self.opcode)} wqe_counter {self.wqe_counter:#06x} qpn {self.qpn:#08x}"
        if self.opcode in (CqeOpcode.REQ, CqeOpcode.REQ_ERR):
            head += f" of {fields.named(Opcode, self.s_wqe_opcode)}"
        if self.is_error:
            return f"{head}: {syndrome_words(self.syndrome)}, vendor_err_synd {self.vendor_err_synd:#04x}"
        imm = f", imm {self.imm:#x}" if self.opcode in (CqeOpcode.RESP_WR_IMM, CqeOpcode.RESP_SEND_IMM) else ""
        return f"{head}, byte_cnt {self.byte_cnt}{imm}"


def decode(data: Buffer, offset: int = 0) -> Cqe:
    """Decode the CQE at offset in data. Its opcode determines whether it has the layout of an error CQE.

    Raises:
        ValueError: there are fewer than 64 bytes.
    """
    values = fields.decode(CQE64, data, offset)
    tail = {name: values[name] for name in ("opcode", "owner", "qpn", "s_wqe_opcode", "wqe_counter")}
    if values["opcode"] not in (CqeOpcode.REQ_ERR, CqeOpcode.RESP_ERR):
        return Cqe(**tail, user_index=values["srqn_uidx"], byte_cnt=values["byte_cnt"], imm=values["imm_inval_pkey"])
    values = fields.decode(ERR_CQE, data, offset)
    synd = {name: values[name] for name in ("syndrome", "vendor_err_synd", "hw_err_synd", "hw_synd_type")}
    return Cqe(**tail, user_index=values["srqn"], **synd)


# --- 16 bits to 64 ---------------------------------------------------------------------------------------------------------------


def extend(cons_idx: int, wqe_counter: int, depth: int) -> int:
    """Return the index after the last completed WQEBB: cons_idx, moved forward to wqe_counter + 1.

    Exact under these rules:

    * depth is at most 2^15, and every reservation keeps ``resv_head - cons_idx <= depth``. Therefore, at most one posted index has the low
      16 bits of wqe_counter + 1.
    * cons_idx only grows. It is loaded before the CQE, with acquire semantics, and again after it; if it has moved, the caller tries again.
      A cons_idx that is 2^16 WQEBBs old (1 ms at 60 M WQE/s) would give a wrong index.
    * The tail is loaded with one load. An entry with opcode INVALID completes nothing, regardless of its wqe_counter.
    * A signaled WQE has one WQEBB, because wqe_counter is the index of the first. A longer WQE is followed by a NOP that requests the CQE.

    A distance beyond depth means a CQE older than cons_idx; cons_idx is returned. Unsigned 64-bit arithmetic gives the same result.
    """
    distance = (wqe_counter + 1 - cons_idx) & WQE_IDX_MASK
    return cons_idx + distance if distance <= depth else cons_idx
