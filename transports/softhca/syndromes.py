"""The software NIC's own reasons for a refused command or a failed WQE, more detailed than the PRM's status and syndrome.

A ConnectX also has such numbers, but they are not published. Vendor: vendor_err_synd of an error CQE. Command: syndrome of a command's
output.
"""

from pgas.transports.mlx5.fields import Explained, explanation


class Vendor(Explained):
    """vendor_err_synd of an error CQE, by the check that failed."""

    NONE = 0x00, "this WQE was flushed, because an earlier one failed or the QP was moved to ERR"
    INJECTED = 0x01, "an injected fault"
    WQE_INDEX = 0x10, "wqe_idx is not the index of the WQE, so the slot was overwritten or is stale"
    WQE_QPN = 0x11, "qpn is another QP's"
    WQE_DS = 0x12, "ds is 0, ends inside a segment, or exceeds the WQEBBs for which the doorbell was rung"
    WQE_OPCODE = 0x13, "the software NIC does not support the opcode"
    WQE_OPMOD = 0x14, "opmod is not valid for the opcode"
    WQE_FENCE = 0x15, "fm is not a fence mode"
    WQE_INLINE = 0x16, "the opcode takes no inline data, or the inline data is longer than ds"
    OVERRUN = 0x17, "the doorbell is ahead of the executed WQEBBs by more than the depth of the queue"
    CQ_OVERRUN = 0x18, "the CQ is or was full, because its consumer index is a whole CQ behind"
    LENGTH_ATOMIC = 0x20, "the data segment of an atomic does not have the operand's size"
    LENGTH_MESSAGE = 0x21, "the message is longer than 2^log_msg_max"
    LKEY_UNKNOWN = 0x30, "no such lkey"
    LKEY_PD = 0x31, "the lkey belongs to another protection domain"
    LKEY_BOUNDS = 0x32, "the local address is outside the memory region"
    LKEY_ACCESS = 0x33, "the memory region does not allow local writes"
    RKEY_UNKNOWN = 0x40, "no such rkey"
    RKEY_PD = 0x41, "the rkey does not belong to the protection domain of the remote QP"
    RKEY_BOUNDS = 0x42, "the remote address is outside the memory region"
    RKEY_ACCESS = 0x43, "the memory region does not allow the operation"
    MISALIGNED = 0x44, "the remote address of an atomic is not a multiple of its size"
    OP_DISABLED = 0x45, "the remote QP does not allow the operation (rwe, rre, rae)"
    NO_RESPONDER = 0x50, "remote_qpn is not the number of a QP"
    RESPONDER_STATE = 0x51, "the remote QP is not in RTR or RTS"
    RESPONDER_PEER = 0x52, "the remote QP is connected to another QP"
    RESPONDER_PSN = 0x53, "the remote QP expects another PSN"
    NO_RECEIVE_QUEUE = 0x60, "the remote QP has no receive queue"
    NOT_READY = 0x61, "the remote QP had no receive WQE in any of the rnr_retry retries"
    RECEIVE_OVERRUN = 0x62, "the receive counter is ahead of the received WQEs by more than the depth of the queue"
    RECEIVE_LENGTH = 0x63, "the message is longer than the receive WQE"
    RECEIVE_LKEY = 0x64, "the lkey of a segment of the receive WQE does not permit writing there"
    WAIT_CQ = 0x65, "the WAIT does not name a CQ of this PE"


def vendor_text(vendor: int) -> str:
    """Return the description of a vendor syndrome."""
    return explanation(Vendor, vendor) or f"vendor syndrome {vendor:#x}"


class CommandSyndrome(Explained):
    """syndrome of a command's output, by the check that failed."""

    NONE = 0, "nothing is wrong"
    OPCODE = 0x0100, "the software NIC does not execute this command"
    INPUT_LENGTH = 0x0101, "the input is too short for the command"
    OUTPUT_LENGTH = 0x0102, "the output is too short for the command"
    OP_MOD = 0x0103, "op_mod is not valid for the command"
    ENGINE = 0x0104, "the engine makes no progress"
    PD = 0x0200, "no such protection domain of this PE"
    UAR = 0x0201, "no such UAR of this PE"
    UAR_SHARED = 0x0202, "other QPs already use the registers of the UAR"
    UMEM = 0x0203, "no such UMEM of this PE"
    UMEM_INVALID = 0x0204, "*_umem_valid is 0, but the software NIC takes memory only in UMEMs"
    UMEM_BOUNDS = 0x0205, "the range is not inside the UMEM"
    ALIGNMENT = 0x0206, "the address is not aligned"
    CQ = 0x0207, "no such CQ of this PE"
    QP = 0x0208, "no such QP of this PE"
    MKEY = 0x0209, "no such memory key of this PE"
    EQ = 0x020A, "no such event queue"
    NO_QP = 0x0300, "the software NIC has no QP left (log_max_qp)"
    NO_CQ = 0x0301, "the software NIC has no CQ left"
    NO_MKEY = 0x0302, "the software NIC has no memory key left (log_max_mkey)"
    CQ_SIZE = 0x0400, "log_cq_size is above log_max_cq_sz, or below the minimum that a fault sets"
    CQE_SIZE = 0x0401, "cqe_sz must be 0 (CQEs of 64 bytes)"
    CQ_OVERRUN = 0x0402, "oi must be 1 if cc is 1, because no consumer index is reported, and with the cuda engine"
    CQ_BUSY = 0x0403, "a QP completes to the CQ"
    CQ_STATE = 0x0404, "st must be 0, because a CQ is armed by its doorbell record"
    SQ_MISSING = 0x0411, "no_sq must be 0"
    RQ_TYPE = 0x0412, "rq_type must be 0 (a receive queue) or 3 (a receive queue of size zero)"
    RQ_STRIDE = 0x0415, "receive WQEs are longer than max_wqe_sz_rq"
    RQ_ENGINE = 0x0416, "rq_type must be 3, because the cuda engine serves no receive queues"
    QP_STATE = 0x0417, "state must be 0, because a QP begins in RST"
    PM_STATE = 0x0418, "pm_state must be 3 (MIGRATED), because the QP has no alternate path"
    TS_FORMAT = 0x0419, "ts_format is not among those that the capability sq_ts_format offers"
    WQ_SHARED = 0x041A, "the WQ overlaps that of another QP"
    SERVICE_TYPE = 0x0413, "st must be 0 (RC)"
    DBR_MODE = 0x0414, "send_dbr_mode must be 0"
    TRANSITION = 0x0420, "the QP's state does not allow the command"
    REMOTE_QPN = 0x0421, "remote_qpn must not be 0"
    MTU = 0x0422, "mtu is not a value that the PRM defines"
    LOG_MSG_MAX = 0x0423, "log_msg_max is above log_max_msg"
    RD_ATOMIC = 0x0424, "log_rra_max or log_sra_max is above the maximum in the capabilities"
    ATOMIC_MODE = 0x0425, "atomic_mode must be 3 (up to 64 bits) if rae is set"
    PORT = 0x0426, "the software NIC has only port 1"
    ADDRESS_PATH = 0x0427, "primary_address_path does not name a peer, because rlid and rgid_rip are 0"
    OPT_PARAM = 0x0428, "opt_param_mask has bits that the command does not take"
    MKEY_MODE = 0x0430, "access_mode must be 1 (MTT) or 2 (KLM), qpn 0xffffff, length64 0"
    MKEY_LENGTH = 0x0431, "len is 0, or start_addr + len is beyond 2^64"
    MKEY_ACCESS = 0x0432, "rw and a require lw"
    MKEY_BUSY = 0x0433, "an indirect key refers to the key"
    KLM_COUNT = 0x0434, "there are no KLMs, or more than the two translations_octword sizes allow"
    KLM_LENGTH = 0x0435, "len is not the sum of the KLMs' byte_count"
    KLM_BOUNDS = 0x0436, "a KLM is not inside its key's range, or longer than 2 GiB"
    KLM_APART = 0x0437, "the KLMs are not adjacent in memory, which the software NIC requires"
    #: A ConnectX has the same number.
    UMEM_PAGE = 0x357275, "the offset in the UMEM is not a multiple of its page size; register it with pgsz_bitmap 1 << 12"


def command_text(syndrome: int) -> str:
    """Return the description of a command's syndrome, "" if the software NIC does not use it."""
    return explanation(CommandSyndrome, syndrome)
