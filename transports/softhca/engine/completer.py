"""The completer, which ends a WQE with or without a CQE, moves a QP to the error state, and flushes its remaining WQEs."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import cqe
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome
from pgas.transports.mlx5.doorbell import CQ_CONSUMER_INDEX_MASK
from pgas.transports.mlx5.wqe import Ce, Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, ops
from pgas.transports.softhca.engine.ops import RECEIVES, add, load, load_be32, store, store_data, store_release, swap32, swap64
from pgas.transports.softhca.engine.states import DONE, ERROR, count, random, state_of
from pgas.transports.softhca.engine.trace import seen
from pgas.transports.softhca.syndromes import Vendor

SRQN_UIDX, BYTE_CNT = cqe.CQE64.byte("srqn_uidx"), cqe.CQE64.byte("byte_cnt")

#: Shifts of the two syndromes in bytes 48 to 55 of an error CQE, read as one little-endian word.
SYNDROMES = cqe.CQE_VENDOR_ERR_SYND & ~7
VENDOR_SHIFT, SYNDROME_SHIFT = 8 * (cqe.CQE_VENDOR_ERR_SYND & 7), 8 * (cqe.CQE_SYNDROME & 7)


@device
def complete(hca: int, qp: int, work: int) -> int:
    """Count an executed WQE and write its CQE if it is signaled (ce 2 or 3); a fault may delay the CQE."""
    index, opcode, nbytes = load(work + t.WORK_INDEX), load(work + t.WORK_OPCODE), load(work + t.WORK_NBYTES)
    count(qp + t.QP_WQES, 1)
    count(qp + t.QP_NBYTES, nbytes)
    if opcode == Opcode.RDMA_WRITE:
        count(qp + t.QP_WRITES, 1)
    elif opcode == Opcode.RDMA_READ:
        count(qp + t.QP_READS, 1)
    elif load(work + t.WORK_WIDTH) != 0:
        count(qp + t.QP_ATOMICS, 1)
    elif opcode == Opcode.RDMA_WRITE_IMM:
        count(qp + t.QP_WRITES, 1)
    store(qp + t.QP_CONSUMER, index + load(work + t.WORK_WQEBBS))
    if load(work + t.WORK_CE) < Ce.ALWAYS:
        return DONE
    if random(hca) < load(hca + t.CTL_CHAOS):
        store(qp + t.QP_HELD, index + 1)
        store(qp + t.QP_HELD_OPCODE, opcode)
        store(qp + t.QP_HELD_NBYTES, nbytes)
        stall(hca, qp)
    else:
        write_cqe(hca, qp, index, opcode, nbytes, CqeOpcode.REQ, 0, 0)
    return DONE


@device
def release_held(hca: int, qp: int) -> int:
    """Write the CQE that a fault delayed."""
    index = load(qp + t.QP_HELD) - 1
    store(qp + t.QP_HELD, 0)
    write_cqe(hca, qp, index, load(qp + t.QP_HELD_OPCODE), load(qp + t.QP_HELD_NBYTES), CqeOpcode.REQ, 0, 0)
    return 1


@device
def stall(hca: int, qp: int) -> int:
    """Skip a QP for some passes, so that its own WQEs keep their order while other QPs overtake."""
    store(qp + t.QP_STALLED_UNTIL, load(load(hca + t.CTL_SWEEPS)) + 1 + (random(hca) * load(hca + t.CTL_HOLD) >> 16))
    return 0


@device
def responder_error(hca: int, qp: int, work: int) -> int:
    """Move the responder's QP to the error state (class C), whether or not it may send, and then the requester's."""
    peer = load(work + t.WORK_RESPONDER)
    if peer != qp:
        store_release(peer + t.QP_BROKEN, 1)
        add(peer + t.QP_ERRORS, 1)
    return ERROR


@device
def error(hca: int, qp: int, work: int) -> int:
    """Move the QP to ERR, keep its first error, and write an error CQE regardless of ce.

    If a command has moved the QP to RST meanwhile, do nothing, so that the WQE is dropped.
    """
    before = state_of(qp)
    if before != t.RTS and before != t.ERR:
        return DONE
    store_release(qp + t.QP_BROKEN, 1)
    index, syndrome, vendor = load(work + t.WORK_INDEX), load(work + t.WORK_SYNDROME), load(work + t.WORK_VENDOR)
    add(qp + t.QP_ERRORS, 1)
    note_error(qp, index, syndrome, vendor, load(work + t.WORK_WQE), max(1, load(work + t.WORK_DS)) * w.OCTOWORD)
    store(qp + t.QP_CONSUMER, index + load(work + t.WORK_WQEBBS))
    write_cqe(hca, qp, index, load(work + t.WORK_OPCODE), 0, CqeOpcode.REQ_ERR, syndrome, vendor)
    return DONE


@device
def note_error(qp: int, index: int, syndrome: int, vendor: int, wqe: int, nbytes: int) -> int:
    """Keep the first error of a QP, with the bytes of its WQE."""
    if load(qp + t.QP_ERROR_SYNDROME) == 0:
        copied = load(qp + t.QP_ERROR_WQE)
        for offset in range(0, nbytes, 8):
            store(copied + offset, load(wqe + offset))
        store(qp + t.QP_ERROR_NBYTES, nbytes)
        store(qp + t.QP_ERROR_INDEX, index)
        store(qp + t.QP_ERROR_VENDOR, vendor)
        store_release(qp + t.QP_ERROR_SYNDROME, syndrome)
    return 0


@device
def flush(hca: int, qp: int, work: int) -> int:
    """End a WQE of a QP in ERR without executing it. Each gets a CQE, signaled or not (IBTA: Work Request Flushed)."""
    index = load(qp + t.QP_CONSUMER)
    slot = load(qp + t.QP_SQ) + ((index & load(qp + t.QP_MASK)) << w.WQEBB_SHIFT)
    wqebbs = ((load_be32(slot + w.CTRL_QPN_DS) & w.DS_MASK) + w.DS_PER_WQEBB - 1) // w.DS_PER_WQEBB
    opcode = load_be32(slot + w.CTRL_OPMOD_IDX_OPCODE) & 0xFF
    count(qp + t.QP_FLUSHED, 1)
    store(qp + t.QP_CONSUMER, index + max(1, min(wqebbs, load(qp + t.QP_PRODUCER) - index)))
    write_cqe(hca, qp, index, opcode, 0, CqeOpcode.REQ_ERR, Syndrome.WR_FLUSH_ERR, 0)
    return DONE


@device
def write_cqe(hca: int, qp: int, index: int, opcode: int, nbytes: int, cqe_opcode: int, syndrome: int, vendor: int) -> int:
    """Count and write a CQE of the send queue."""
    return deliver(hca, qp, load(qp + t.QP_CQ), index, opcode, nbytes, 0, cqe_opcode, syndrome, vendor)


@device
def deliver(hca: int, qp: int, cq: int, index: int, opcode: int, nbytes: int, imm: int, cqe_opcode: int, syndrome: int, vendor: int) -> int:
    """Count a CQE, and write it into its CQ if the CQ has room.

    A full CQ is in error from then on, and so is every QP that needs to write there (IBTA, CQ overrun).
    """
    if RECEIVES and load(cq + t.CQ_DBR) != 0 and full(cq) != 0:
        store_release(qp + t.QP_BROKEN, 1)
        add(qp + t.QP_ERRORS, 1)
        return note_error(qp, index, Syndrome.LOCAL_QP_OP_ERR, Vendor.CQ_OVERRUN, 0, 0)
    count_cqes(qp, cq, 1)
    return put_cqe(hca, qp, cq, index, opcode, nbytes, imm, cqe_opcode, syndrome, vendor)


@device
def full(cq: int) -> int:
    """Whether a CQ has, or had, no room: the consumer index in its doorbell record is a whole CQ behind."""
    read = ops.load_be32_acquire(load(cq + t.CQ_DBR))
    if (load(cq + t.CQ_PRODUCER) - read) & CQ_CONSUMER_INDEX_MASK >= 1 << load(cq + t.CQ_LOG_SIZE):
        store(cq + t.CQ_OVERRUN, 1)
    return load(cq + t.CQ_OVERRUN)


@device
def count_cqes(qp: int, cq: int, number: int) -> int:
    """Count CQEs before they are written; in a collapsed CQ only the last one is."""
    count(cq + t.CQ_PRODUCER, number)
    count(cq + t.CQ_CQES, number)
    return count(qp + t.QP_CQES, number)


@device
def place_cqe(hca: int, qp: int, index: int, opcode: int, nbytes: int, cqe_opcode: int, syndrome: int, vendor: int) -> int:
    """Write a CQE of the send queue that has been counted."""
    return put_cqe(hca, qp, load(qp + t.QP_CQ), index, opcode, nbytes, 0, cqe_opcode, syndrome, vendor)


@device
def put_cqe(hca: int, qp: int, cq: int, index: int, opcode: int, nbytes: int, imm: int, cqe_opcode: int, syndrome: int, vendor: int) -> int:
    """Write a CQE: bytes 0..55, then a fence that also covers the data of all earlier WQEs, then the tail by one store.

    wqe_counter is the index of the WQE's first WQEBB, or of the receive WQE. In a collapsed CQ it is always entry 0, and the owner bit is
    0.
    """
    produced = load(cq + t.CQ_PRODUCER) - 1
    log_size = load(cq + t.CQ_LOG_SIZE)
    dest = load(cq + t.CQ_ADDRESS)
    owner = 0
    if load(cq + t.CQ_COLLAPSED) == 0:
        dest += (produced & ((1 << log_size) - 1)) * cqe.CQE_SIZE
        owner = (produced >> log_size) & 1
    entry = dma.begin_cqe(hca) if dma.by_dma(hca) != 0 else dest
    qpn = load(qp + t.QP_QPN)
    for offset in range(0, SYNDROMES, 8):
        if offset != SRQN_UIDX & ~7 and offset != BYTE_CNT & ~7:
            store(entry + offset, 0)
    store(entry + (SRQN_UIDX & ~7), swap32(load(qp + t.QP_USER_INDEX)) | (swap32(imm) << 32 if RECEIVES else 0))
    store(entry + (BYTE_CNT & ~7), swap32(nbytes) << 32)
    store(entry + SYNDROMES, (vendor << VENDOR_SHIFT) | (syndrome << SYNDROME_SHIFT))
    ops.fence()
    counter = index & w.WQE_IDX_MASK
    tail = (opcode << cqe.TAIL_OPCODE_SHIFT) | (qpn << cqe.TAIL_QPN_SHIFT) | (counter << cqe.TAIL_WQE_COUNTER_SHIFT)
    store_data(entry + cqe.CQE_TAIL, swap64(tail | (cqe_opcode << cqe.OP_OWN_OPCODE_SHIFT) | owner))
    if load(hca + t.CTL_TRACE_KINDS) != 0:
        seen(hca, qp, t.TRACE_CQE, index, entry, cqe.CQE_SIZE)
    return dma.write_cqe(hca, dest, entry) if dma.by_dma(hca) != 0 else 0
