"""The binary interface of libibverbs: offsets and values of ``infiniband/verbs.h`` on 64-bit machines (stable since IBVERBS_1.1).

Compiled code fills ``struct ibv_send_wr`` and calls the functions in ``struct ibv_context_ops``, like the inline ``ibv_post_send`` and
``ibv_poll_cq``. tests/nic/test_verbs_abi.py compares every number with the header.
"""

from enum import IntEnum, IntFlag

from pgas.transports.mlx5.cqe import Syndrome

# struct ibv_context: its ops, a struct ibv_context_ops of pointers to functions.
CONTEXT_POLL_CQ, CONTEXT_POST_SEND = 96, 208

# struct ibv_qp.
QP_CONTEXT, QP_SEND_CQ, QP_RECV_CQ, QP_NUM, QP_TYPE = 0, 24, 32, 52, 60
QP_END = 64  #: just past the last of these

# struct ibv_send_wr; wr.rdma and wr.atomic begin alike.
WR_ID, WR_NEXT, WR_SG_LIST, WR_NUM_SGE, WR_OPCODE, WR_SEND_FLAGS = 0, 8, 16, 24, 28, 32
WR_REMOTE_ADDR, WR_RDMA_RKEY = 40, 48
WR_COMPARE_ADD, WR_SWAP, WR_ATOMIC_RKEY = 48, 56, 64
SEND_WR_SIZE = 128

# struct ibv_sge.
SGE_ADDR, SGE_LENGTH, SGE_LKEY = 0, 8, 12
SGE_SIZE = 16

# struct ibv_wc.
WC_WR_ID, WC_STATUS, WC_VENDOR_ERR = 0, 8, 16
WC_SIZE = 48


class WrOpcode(IntEnum):
    """``IBV_WR_*``: the operation of a work request."""

    RDMA_WRITE = 0
    RDMA_READ = 4
    ATOMIC_CMP_AND_SWP = 5
    ATOMIC_FETCH_AND_ADD = 6


class SendFlags(IntFlag):
    """``IBV_SEND_*``."""

    SIGNALED = 1 << 1
    INLINE = 1 << 3


class WcStatus(IntEnum):
    """``IBV_WC_*``: the status with which a work request ended."""

    SUCCESS = 0
    LOC_LEN_ERR = 1
    LOC_QP_OP_ERR = 2
    LOC_EEC_OP_ERR = 3
    LOC_PROT_ERR = 4
    WR_FLUSH_ERR = 5
    MW_BIND_ERR = 6
    BAD_RESP_ERR = 7
    LOC_ACCESS_ERR = 8
    REM_INV_REQ_ERR = 9
    REM_ACCESS_ERR = 10
    REM_OP_ERR = 11
    RETRY_EXC_ERR = 12
    RNR_RETRY_EXC_ERR = 13
    LOC_RDD_VIOL_ERR = 14
    REM_INV_RD_REQ_ERR = 15
    REM_ABORT_ERR = 16
    INV_EECN_ERR = 17
    INV_EEC_STATE_ERR = 18
    FATAL_ERR = 19
    RESP_TIMEOUT_ERR = 20
    GENERAL_ERR = 21


#: Corresponding syndrome of an mlx5 NIC, for CompletionError; statuses without one are missing.
SYNDROMES = {
    WcStatus.LOC_LEN_ERR: Syndrome.LOCAL_LENGTH_ERR,
    WcStatus.LOC_QP_OP_ERR: Syndrome.LOCAL_QP_OP_ERR,
    WcStatus.LOC_PROT_ERR: Syndrome.LOCAL_PROT_ERR,
    WcStatus.WR_FLUSH_ERR: Syndrome.WR_FLUSH_ERR,
    WcStatus.MW_BIND_ERR: Syndrome.MW_BIND_ERR,
    WcStatus.BAD_RESP_ERR: Syndrome.BAD_RESP_ERR,
    WcStatus.LOC_ACCESS_ERR: Syndrome.LOCAL_ACCESS_ERR,
    WcStatus.REM_INV_REQ_ERR: Syndrome.REMOTE_INVAL_REQ_ERR,
    WcStatus.REM_ACCESS_ERR: Syndrome.REMOTE_ACCESS_ERR,
    WcStatus.REM_OP_ERR: Syndrome.REMOTE_OP_ERR,
    WcStatus.RETRY_EXC_ERR: Syndrome.TRANSPORT_RETRY_EXC_ERR,
    WcStatus.RNR_RETRY_EXC_ERR: Syndrome.RNR_RETRY_EXC_ERR,
    WcStatus.REM_ABORT_ERR: Syndrome.REMOTE_ABORTED_ERR,
}


class QpAttrMask(IntFlag):
    """``IBV_QP_*``: the attributes that ibv_modify_qp reads."""

    STATE = 1 << 0
    ACCESS_FLAGS = 1 << 3
    PKEY_INDEX = 1 << 4
    PORT = 1 << 5
    AV = 1 << 7
    PATH_MTU = 1 << 8
    TIMEOUT = 1 << 9
    RETRY_CNT = 1 << 10
    RNR_RETRY = 1 << 11
    RQ_PSN = 1 << 12
    MAX_QP_RD_ATOMIC = 1 << 13
    MIN_RNR_TIMER = 1 << 15
    SQ_PSN = 1 << 16
    MAX_DEST_RD_ATOMIC = 1 << 17
    DEST_QPN = 1 << 20


#: IBV_QPT_RC, IBV_ATOMIC_NONE, IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET.
QPT_RC = 2
ATOMIC_NONE = 0
PORT_ACTIVE = 4
LINK_LAYER_ETHERNET = 2
