"""The software NIC's own reasons for a refused command or a failed WQE, more detailed than the PRM's status and syndrome.

A ConnectX also has such numbers, but they are not published. Vendor: vendor_err_synd of an error CQE. Command: syndrome of a command's
output.
"""

from enum import IntEnum

__all__ = ["CommandSyndrome", "Vendor", "command_text", "vendor_text"]


class Vendor(IntEnum):
    """vendor_err_synd of an error CQE, by the check that failed."""

    NONE = 0x00  # flushed: this WQE is not the cause
    INJECTED = 0x01  # an injected fault
    WQE_INDEX = 0x10  # ctrl.wqe_idx is not the WQE's index: an overwritten or stale slot
    WQE_QPN = 0x11  # ctrl.qpn is another QP's
    WQE_DS = 0x12  # ds is 0, ends inside a segment, or exceeds the rung WQEBBs
    WQE_OPCODE = 0x13  # not an opcode that the software NIC supports
    WQE_OPMOD = 0x14  # opmod is not valid for the opcode
    WQE_FENCE = 0x15  # fm is not a fence mode
    WQE_INLINE = 0x16  # inline data with an opcode that takes none, or longer than ds
    OVERRUN = 0x17  # the doorbell is more than the queue's depth ahead of what has been executed
    CQ_OVERRUN = 0x18  # the CQ is full, or was: its consumer index is a whole CQ behind
    LENGTH_ATOMIC = 0x20  # the data segment of an atomic does not have the operand's size
    LENGTH_MESSAGE = 0x21  # longer than 2^qpc.log_msg_max
    LKEY_UNKNOWN = 0x30
    LKEY_PD = 0x31  # of another protection domain
    LKEY_BOUNDS = 0x32
    LKEY_ACCESS = 0x33  # READ or ATOMIC into memory without LOCAL_WRITE
    RKEY_UNKNOWN = 0x40
    RKEY_PD = 0x41
    RKEY_BOUNDS = 0x42
    RKEY_ACCESS = 0x43
    MISALIGNED = 0x44  # the address of an atomic is not a multiple of its size
    OP_DISABLED = 0x45  # the remote QP does not allow the operation (qpc.rwe, rre, rae)
    NO_RESPONDER = 0x50  # remote_qpn is not the number of a QP
    RESPONDER_STATE = 0x51  # the remote QP is not in RTR or RTS
    RESPONDER_PEER = 0x52  # the remote QP is connected to another one
    RESPONDER_PSN = 0x53  # the remote QP expects another packet sequence number
    NO_RECEIVE_QUEUE = 0x60  # SEND or immediate data to a QP without a receive queue
    NOT_READY = 0x61  # the remote QP had no receive WQE in qpc.rnr_retry retries
    RECEIVE_OVERRUN = 0x62  # the receive counter is more than the queue's depth ahead of what has been received
    RECEIVE_LENGTH = 0x63  # the message is longer than the receive WQE's segments
    RECEIVE_LKEY = 0x64  # a segment of the receive WQE fails a check of its lkey
    WAIT_CQ = 0x65  # a WAIT does not name a CQ of its PE


_VENDOR = {
    Vendor.NONE: "nothing is wrong with this WQE, an earlier one failed or the QP was moved to ERR",
    Vendor.INJECTED: "an injected fault",
    Vendor.WQE_INDEX: "wqe_idx is not the index at which the WQE lies",
    Vendor.WQE_QPN: "qpn is another QP's",
    Vendor.WQE_DS: "ds is 0, ends inside a segment, or goes beyond what was rung for",
    Vendor.WQE_OPCODE: "not an opcode of the software NIC",
    Vendor.WQE_OPMOD: "opmod does not go with the opcode",
    Vendor.WQE_FENCE: "fm is no fence mode",
    Vendor.WQE_INLINE: "inline data with an opcode that takes none, or longer than ds",
    Vendor.OVERRUN: "the doorbell is further ahead than the queue is deep",
    Vendor.CQ_OVERRUN: "the CQ is full",
    Vendor.LENGTH_ATOMIC: "the data segment of an atomic does not have the operand's size",
    Vendor.LENGTH_MESSAGE: "the message is longer than 2^log_msg_max",
    Vendor.LKEY_UNKNOWN: "no such lkey",
    Vendor.LKEY_PD: "the lkey is of another protection domain",
    Vendor.LKEY_BOUNDS: "the local address is outside the memory region",
    Vendor.LKEY_ACCESS: "the memory region does not allow local writes",
    Vendor.RKEY_UNKNOWN: "no such rkey",
    Vendor.RKEY_PD: "the rkey is of another protection domain than the remote QP",
    Vendor.RKEY_BOUNDS: "the remote address is outside the memory region",
    Vendor.RKEY_ACCESS: "the memory region does not allow the operation",
    Vendor.MISALIGNED: "the remote address of an atomic is not aligned",
    Vendor.OP_DISABLED: "the remote QP does not allow the operation",
    Vendor.NO_RESPONDER: "remote_qpn names no QP",
    Vendor.RESPONDER_STATE: "the remote QP is not in RTR or RTS",
    Vendor.RESPONDER_PEER: "the remote QP is connected to another QP",
    Vendor.RESPONDER_PSN: "the remote QP expects another PSN",
    Vendor.NO_RECEIVE_QUEUE: "the remote QP has no receive queue",
    Vendor.NOT_READY: "the remote QP had no receive WQE, as often as rnr_retry allows",
    Vendor.RECEIVE_OVERRUN: "the receive counter is further ahead than the receive queue is deep",
    Vendor.RECEIVE_LENGTH: "the message is longer than the receive WQE",
    Vendor.RECEIVE_LKEY: "the receive WQE names memory that it may not write",
    Vendor.WAIT_CQ: "the WAIT names no CQ of this PE",
}


def vendor_text(vendor: int) -> str:
    """Return the description of a vendor syndrome."""
    return _VENDOR[Vendor(vendor)] if vendor in Vendor.__members__.values() else f"vendor syndrome {vendor:#x}"


class CommandSyndrome(IntEnum):
    """syndrome of a command's output, by the check that failed (descriptions: _COMMAND)."""

    NONE = 0
    OPCODE = 0x0100
    INPUT_LENGTH = 0x0101
    OUTPUT_LENGTH = 0x0102
    OP_MOD = 0x0103
    ENGINE = 0x0104
    PD = 0x0200
    UAR = 0x0201
    UAR_SHARED = 0x0202
    UMEM = 0x0203
    UMEM_INVALID = 0x0204
    UMEM_BOUNDS = 0x0205
    ALIGNMENT = 0x0206
    CQ = 0x0207
    QP = 0x0208
    MKEY = 0x0209
    EQ = 0x020A
    NO_QP = 0x0300
    NO_CQ = 0x0301
    NO_MKEY = 0x0302
    CQ_SIZE = 0x0400
    CQE_SIZE = 0x0401
    CQ_OVERRUN = 0x0402
    CQ_BUSY = 0x0403
    CQ_STATE = 0x0404
    SQ_MISSING = 0x0411
    RQ_TYPE = 0x0412
    RQ_STRIDE = 0x0415
    RQ_ENGINE = 0x0416
    QP_STATE = 0x0417
    PM_STATE = 0x0418
    TS_FORMAT = 0x0419
    WQ_SHARED = 0x041A
    SERVICE_TYPE = 0x0413
    DBR_MODE = 0x0414
    TRANSITION = 0x0420
    REMOTE_QPN = 0x0421
    MTU = 0x0422
    LOG_MSG_MAX = 0x0423
    RD_ATOMIC = 0x0424
    ATOMIC_MODE = 0x0425
    PORT = 0x0426
    ADDRESS_PATH = 0x0427
    OPT_PARAM = 0x0428
    MKEY_MODE = 0x0430
    MKEY_LENGTH = 0x0431
    MKEY_ACCESS = 0x0432
    MKEY_BUSY = 0x0433
    KLM_COUNT = 0x0434
    KLM_LENGTH = 0x0435
    KLM_BOUNDS = 0x0436
    KLM_APART = 0x0437
    UMEM_PAGE = 0x357275  # a ConnectX's own number


_COMMAND = {
    CommandSyndrome.NONE: "nothing is wrong",
    CommandSyndrome.OPCODE: "the software NIC does not execute this command",
    CommandSyndrome.INPUT_LENGTH: "the input is too short for the command",
    CommandSyndrome.OUTPUT_LENGTH: "the output is too short for the command",
    CommandSyndrome.OP_MOD: "op_mod does not go with the command",
    CommandSyndrome.ENGINE: "the engine stands still",
    CommandSyndrome.PD: "no such protection domain of this PE",
    CommandSyndrome.UAR: "no such UAR of this PE",
    CommandSyndrome.UAR_SHARED: "the UAR's registers serve other QPs already",
    CommandSyndrome.UMEM: "no such UMEM of this PE",
    CommandSyndrome.UMEM_INVALID: "*_umem_valid is 0, and the software NIC takes memory only in UMEMs",
    CommandSyndrome.UMEM_BOUNDS: "the range is not inside the UMEM",
    CommandSyndrome.ALIGNMENT: "the address is not aligned",
    CommandSyndrome.CQ: "no such CQ of this PE",
    CommandSyndrome.QP: "no such QP of this PE",
    CommandSyndrome.MKEY: "no such memory key of this PE",
    CommandSyndrome.EQ: "no such event queue",
    CommandSyndrome.NO_QP: "the software NIC has no QP left (log_max_qp)",
    CommandSyndrome.NO_CQ: "the software NIC has no CQ left",
    CommandSyndrome.NO_MKEY: "the software NIC has no memory key left (log_max_mkey)",
    CommandSyndrome.CQ_SIZE: "log_cq_size is above log_max_cq_sz, or below what a fault allows",
    CommandSyndrome.CQE_SIZE: "cqe_sz must be 0, CQEs of 64 bytes",
    CommandSyndrome.CQ_OVERRUN: "oi must be 1 where cc is, as nobody reports a consumer index, and with the cuda engine",
    CommandSyndrome.CQ_BUSY: "a QP completes to the CQ",
    CommandSyndrome.CQ_STATE: "st must be 0: a CQ is armed by its doorbell record",
    CommandSyndrome.SQ_MISSING: "no_sq must be 0",
    CommandSyndrome.RQ_TYPE: "rq_type must be 0, a receive queue, or 3, a receive queue of no size",
    CommandSyndrome.RQ_STRIDE: "receive WQEs are longer than max_wqe_sz_rq",
    CommandSyndrome.RQ_ENGINE: "the cuda engine serves no receive queues: rq_type must be 3",
    CommandSyndrome.SERVICE_TYPE: "st must be 0, RC",
    CommandSyndrome.QP_STATE: "state must be 0: a QP begins in RST",
    CommandSyndrome.PM_STATE: "pm_state must be 3, MIGRATED: the QP has no alternate path",
    CommandSyndrome.TS_FORMAT: "ts_format is none of those that sq_ts_format of the capabilities offers",
    CommandSyndrome.WQ_SHARED: "the WQ overlaps that of another QP",
    CommandSyndrome.DBR_MODE: "send_dbr_mode must be 0",
    CommandSyndrome.TRANSITION: "the QP's state does not allow the command",
    CommandSyndrome.REMOTE_QPN: "remote_qpn must not be 0",
    CommandSyndrome.MTU: "mtu is no value of the PRM's",
    CommandSyndrome.LOG_MSG_MAX: "log_msg_max is above log_max_msg",
    CommandSyndrome.RD_ATOMIC: "log_rra_max or log_sra_max is above the caps",
    CommandSyndrome.ATOMIC_MODE: "atomic_mode must be 3, up to 64 bits, where rae is set",
    CommandSyndrome.PORT: "the software NIC has only port 1",
    CommandSyndrome.ADDRESS_PATH: "primary_address_path names no peer: rlid and rgid_rip are 0",
    CommandSyndrome.OPT_PARAM: "opt_param_mask has bits that the command does not take",
    CommandSyndrome.MKEY_MODE: "access_mode must be 1 (MTT) or 2 (KLM), qpn 0xffffff, length64 0",
    CommandSyndrome.MKEY_LENGTH: "len is 0, or start_addr + len is beyond 2^64",
    CommandSyndrome.MKEY_ACCESS: "rw and a need lw",
    CommandSyndrome.MKEY_BUSY: "an indirect key refers to the key",
    CommandSyndrome.KLM_COUNT: "there are no KLMs, or more than the two translations_octword sizes say",
    CommandSyndrome.KLM_LENGTH: "len is not the sum of the KLMs' byte_count",
    CommandSyndrome.KLM_BOUNDS: "a KLM is not inside its key's range, or longer than 2 GiB",
    CommandSyndrome.KLM_APART: "the KLMs are not adjacent in memory, which the software NIC requires",
    CommandSyndrome.UMEM_PAGE: "the offset in the UMEM is no multiple of its page size: register it with pgsz_bitmap 1 << 12",
}


def command_text(syndrome: int) -> str:
    """Return the description of a command's syndrome, "" if the software NIC does not use it."""
    return _COMMAND[CommandSyndrome(syndrome)] if syndrome in CommandSyndrome.__members__.values() else ""
