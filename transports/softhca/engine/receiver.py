"""The receiving side, in which SEND and WRITE with immediate data use the peer's receive queue and complete in its CQ.

A receive WQE is consumed only if the message is written into it, or fails because of it. If there is none, the requester gets "receiver not
ready" (RNR NAK), waits, and retries, up to qpc.rnr_retry times. It retries as soon as there is a receive WQE, which the software NIC can
check, instead of waiting for the timer.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.contexts import RNR_RETRY_FOR_EVER
from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import states
from pgas.transports.softhca.engine.completer import deliver, note_error
from pgas.transports.softhca.engine.late import place_all_of
from pgas.transports.softhca.engine.ops import clock, copy, load, load_be32, load_be32_acquire, load_be64, store, store_release
from pgas.transports.softhca.engine.requester import LOCAL_WRITE, local_address
from pgas.transports.softhca.engine.responder import execute_write
from pgas.transports.softhca.engine.states import count, fail, refuse, state_of
from pgas.transports.softhca.syndromes import Vendor

#: Value of QP_STALLED_UNTIL for a QP that waits for a receive WQE of its peer: a sweep number that is never reached.
NAKED = 1 << 62

#: Maximum number of receive WQEs flushed per visit.
FLUSHED_PER_VISIT = 64


@device
def receive_queue(hca: int, qp: int) -> int:
    """Return the address of the record of a QP's receive queue."""
    return load(hca + t.CTL_RQS) + (load(qp + t.QP_QPN) & t.QP_ROWS_MASK) * t.RQ_ROW


@device
def posted(rq: int) -> int:
    """Return the number of posted receive WQEs, from the doorbell record; they have no other doorbell."""
    return (load_be32_acquire(load(rq + t.RQ_DBR)) - load(rq + t.RQ_CONSUMER)) & w.WQE_IDX_MASK


@device
def check_receive(hca: int, qp: int, work: int) -> int:
    """Check that the peer has a receive WQE (rxe_resp.c check_resource: RNR NAK).

    A QP without a receive queue refuses: "the operation is not supported by this receive queue" (IBTA, Remote Invalid Request Error).
    """
    rq = receive_queue(hca, load(work + t.WORK_RESPONDER))
    if load(rq + t.RQ_ADDRESS) == 0:
        return refuse(work, Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.NO_RECEIVE_QUEUE)
    waiting = posted(rq)
    if waiting == 0:
        return states.NOT_READY
    if waiting > load(rq + t.RQ_MASK) + 1:
        return refuse(work, Syndrome.REMOTE_OP_ERR, Vendor.RECEIVE_OVERRUN)
    return states.EXECUTE_RECEIVE


@device
def not_ready(hca: int, qp: int, work: int) -> int:
    """Wait for the peer's min_rnr_nak, or fail after the last retry."""
    rq = receive_queue(hca, qp)
    retry, naks = load(rq + t.RQ_RNR_RETRY), load(rq + t.RQ_NAKS)
    if retry != RNR_RETRY_FOR_EVER and naks == retry:
        store(rq + t.RQ_NAKS, 0)
        return fail(work, Syndrome.RNR_RETRY_EXC_ERR, Vendor.NOT_READY)
    store(rq + t.RQ_NAKS, naks + 1)
    store(rq + t.RQ_NAKED_UNTIL, clock() + load(receive_queue(hca, load(work + t.WORK_RESPONDER)) + t.RQ_RNR_NS))
    store(qp + t.QP_STALLED_UNTIL, NAKED)
    return states.WAITING


@device
def waits(hca: int, qp: int, state: int) -> int:
    """Whether to skip a QP because its peer has no receive WQE yet, and it is not yet time for the next attempt."""
    if load(qp + t.QP_STALLED_UNTIL) != NAKED:
        return 0
    number = load(qp + t.QP_REMOTE_QPN)
    peer = load(hca + t.CTL_QPS) + (number & t.QP_ROWS_MASK) * t.QP_ROW
    answers = state_of(peer)
    if state == t.RTS and load(peer + t.QP_QPN) == number and answers in (t.RTR, t.RTS) and posted(receive_queue(hca, peer)) == 0:
        rq = receive_queue(hca, qp)
        if load(rq + t.RQ_RNR_RETRY) == RNR_RETRY_FOR_EVER or clock() < load(rq + t.RQ_NAKED_UNTIL):
            return 1
    return store(qp + t.QP_STALLED_UNTIL, 0)


@device
def execute_receive(hca: int, qp: int, work: int) -> int:
    """Write the message to the receive WQE's memory, or to a WRITE's address, and complete the receive WQE before the sent one."""
    peer, opcode, nbytes = load(work + t.WORK_RESPONDER), load(work + t.WORK_OPCODE), load(work + t.WORK_NBYTES)
    rq = receive_queue(hca, peer)
    index = load(rq + t.RQ_CONSUMER)
    store(receive_queue(hca, qp) + t.RQ_NAKS, 0)
    store(rq + t.RQ_CONSUMER, index + 1)
    cqe_opcode = CqeOpcode.RESP_WR_IMM
    if opcode == Opcode.RDMA_WRITE_IMM:
        if nbytes != 0:
            execute_write(hca, qp, work)
    else:
        cqe_opcode = CqeOpcode.RESP_SEND if opcode == Opcode.SEND else CqeOpcode.RESP_SEND_IMM
        wqe = load(rq + t.RQ_ADDRESS) + (index & load(rq + t.RQ_MASK)) * load(rq + t.RQ_STRIDE)
        wrong = find_room(hca, peer, work, wqe, wqe + load(rq + t.RQ_STRIDE))
        if wrong != 0:
            return reject(hca, qp, work, index, wrong)
        place_all_of(hca, load(peer + t.QP_PE), 0)
        scatter(work)
    count(rq + t.RQ_RECEIVES, 1)
    imm = 0 if opcode == Opcode.SEND else load_be32(load(work + t.WORK_WQE) + w.CTRL_IMM)
    deliver(hca, peer, load(rq + t.RQ_CQ), index, 0, nbytes, imm, cqe_opcode, 0, 0)
    return states.COMPLETE


@device
def find_room(hca: int, peer: int, work: int, wqe: int, end: int) -> int:
    """Find the addresses of those segments of a receive WQE that the message needs; return 0 or a vendor syndrome.

    Each lkey must exist, belong to the receiver's PD, contain the range, and allow writing (rxe_resp.c send_data_in; rxe_mr.c copy_data).
    All are checked before any byte is written.
    """
    left, pair = load(work + t.WORK_NBYTES), work + t.WORK_SCATTER
    while left > 0:
        if wqe == end or load_be32(wqe + 4) == w.INVALID_LKEY:
            return Vendor.RECEIVE_LENGTH
        byte_count = load_be32(wqe)
        nbytes = min(left, byte_count if byte_count else 1 << 31)
        found = local_address(hca, peer, load_be32(wqe + 4), load_be64(wqe + 8), nbytes, LOCAL_WRITE)
        if found == 0:
            return Vendor.RECEIVE_LKEY
        store(pair, found)
        store(pair + 8, nbytes)
        left -= nbytes
        pair += t.SEGMENT_BYTES
        wqe += w.OCTOWORD
    return 0


@device
def reject(hca: int, qp: int, work: int, index: int, vendor: int) -> int:
    """End a receive WQE with its own error and the sent WQE with the receiver's answer; both QPs enter ERR.

    A receive WQE that is too short: NAK invalid request; one with wrong memory: NAK remote operational error (IBTA, responder errors).
    """
    peer = load(work + t.WORK_RESPONDER)
    syndrome = Syndrome.LOCAL_LENGTH_ERR if vendor == Vendor.RECEIVE_LENGTH else Syndrome.LOCAL_PROT_ERR
    store_release(peer + t.QP_BROKEN, 1)
    note_error(peer, index, syndrome, vendor, 0, 0)
    deliver(hca, peer, load(receive_queue(hca, peer) + t.RQ_CQ), index, 0, 0, 0, CqeOpcode.RESP_ERR, syndrome, vendor)
    return refuse(work, Syndrome.REMOTE_INVAL_REQ_ERR if vendor == Vendor.RECEIVE_LENGTH else Syndrome.REMOTE_OP_ERR, vendor)


@device
def scatter(work: int) -> int:
    """Copy the data of the WQE's segments into those of the receive WQE."""
    pair, room, dest = work + t.WORK_SCATTER, 0, 0
    for i in range(load(work + t.WORK_SEGMENTS)):
        source, left = load(work + t.WORK_PAIRS + i * t.SEGMENT_BYTES), load(work + t.WORK_PAIRS + i * t.SEGMENT_BYTES + 8)
        while left > 0:
            if room == 0:
                dest, room = load(pair), load(pair + 8)
                pair += t.SEGMENT_BYTES
            nbytes = min(left, room)
            copy(dest, source, nbytes)
            dest += nbytes
            source += nbytes
            room -= nbytes
            left -= nbytes
    return 0


@device
def flush_receives(hca: int, qp: int) -> int:
    """Flush receive WQEs of a QP in ERR; return whether there were any."""
    rq = receive_queue(hca, qp)
    if load(rq + t.RQ_ADDRESS) == 0:
        return 0
    number = min(posted(rq), FLUSHED_PER_VISIT)
    for _ in range(number):
        index = load(rq + t.RQ_CONSUMER)
        store(rq + t.RQ_CONSUMER, index + 1)
        count(rq + t.RQ_FLUSHED, 1)
        deliver(hca, qp, load(rq + t.RQ_CQ), index, 0, 0, 0, CqeOpcode.RESP_ERR, Syndrome.WR_FLUSH_ERR, 0)
    return 1 if number else 0
