"""Doorbells: the doorbell record in memory, and the word stored to the UAR.

To submit WQEs to the NIC, store them, release, store the send word of the doorbell record (DBR), release, and store one 64-bit word to the
QP's register in its UAR page. The word has the layout of the first 8 bytes of a control segment, in memory order.
"""

from enum import IntEnum

from pgas.transports.mlx5.fields import Buffer, Field, Table, decode, fill
from pgas.transports.mlx5.wqe import WQE_IDX_MASK, Opcode, Opmod

# --- doorbell record -------------------------------------------------------------------------------------------------------------

#: Offsets of the words in a QP's DBR (MLX5_RCV_DBR, MLX5_SND_DBR).
RCV_DBR = 0
SND_DBR = 1
DBR = Table("dbr", 8, Field("receive_counter", 0, 32), Field("send_counter", 32, 32))
DBR_SIZE = DBR.size
DBR_SND_OFFSET = 4 * SND_DBR

#: Offset of the consumer index in a CQ's DBR. The NIC ignores it while the CQ ignores overrun (cqc.oi).
CQ_DBR = Table("cq_dbr", 8, Field("consumer_index", 8, 24), Field("arm", 32, 32))


CQ_CONSUMER_INDEX_MASK = (1 << CQ_DBR["consumer_index"].width) - 1


def dbr(prod_idx: int) -> bytes:
    """Return the send word of a DBR (4 bytes, at DBR_SND_OFFSET): the low 16 bits of the index of the next empty WQEBB."""
    return (prod_idx & WQE_IDX_MASK).to_bytes(4, "big")


# --- UAR -------------------------------------------------------------------------------------------------------------------------

UAR_WORD = Table(
    "uar_word",
    8,
    Field("opmod", 0, 8, Opmod),  # may have any value: NVSHMEM's CPU path writes bits 23:16 of prod_idx here
    Field("wqe_idx", 8, 16),
    Field("opcode", 24, 8, Opcode),
    Field("qpn", 32, 24),
    Field("ds", 58, 6),
)

UAR_PAGE_SIZE = 4096
UAR_BF_OFFSET = 0x800  # offset of the first register (MLX5_BF_OFFSET)
UAR_BF_REGISTERS = 2
UAR_LOG_BF_REG_SIZE = 9  # the usual value; QUERY_HCA_CAP reports it as log_bf_reg_size
UAR_BF_BUFFER_SIZE = 1 << UAR_LOG_BF_REG_SIZE - 1  # a BF register is two buffers, which are written alternately


class UarType(IntEnum):
    """``MLX5DV_UAR_ALLOC_TYPE_*``. All UARs of type NC of a verbs context are the same one, but every QP needs its own register."""

    BF = 0
    NC = 1
    NC_DEDICATED = 1 << 31  # newer than Debian 12's headers


def next_empty(prod_idx: int, qpn: int) -> bytes:
    """Build the UAR word like NVSHMEM, DeepEP, and DOCA: the index of the next empty WQEBB, without ds, opcode, or opmod."""
    return fill(UAR_WORD, {"wqe_idx": prod_idx & WQE_IDX_MASK, "qpn": qpn})


def wqe_start(wqe: Buffer) -> bytes:
    """Build the UAR word like rdma-core and MORI: the first 8 bytes of the last WQE; its wqe_idx is that WQE's first WQEBB."""
    word = bytes(wqe[: UAR_WORD.size])
    if decode(UAR_WORD, word)["ds"] == 0:
        raise ValueError("uar_word.ds must not be 0, because no WQE is that short")
    return word
