"""The responder of a connection: requests are executed once, in the order of their PSNs, and answered.

IBTA 9.7.1 (expected PSN), 9.6.1.1.3 (duplicates and missing packets), 9.7.4.1 (order of opcodes and lengths), 9.4.5 (atomics), 9.9.3
(errors). The checks of access are the engine's (engine/responder.py); they are made again for each packet of a message, because a key may
be destroyed meanwhile.

* A request with the expected PSN is executed. Acknowledgments that are due are sent once for all packets that came together.
* A request with an earlier PSN is a duplicate. Of a SEND or WRITE, it is only acknowledged. Of a READ, the data is sent again, of an
  atomic the original value, which was kept.
* After a missing packet, one NAK is sent, and everything is dropped until the expected PSN comes.
* An error of class C moves the queue pair to ERR. Its NAK is repeated for every later request, because it may be lost.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, states
from pgas.transports.softhca.engine.completer import deliver
from pgas.transports.softhca.engine.late import place_all_of, write
from pgas.transports.softhca.engine.ops import add, copy, load, load_be32, load_be64, store, store_release
from pgas.transports.softhca.engine.receiver import check_receive, receive_queue, reject
from pgas.transports.softhca.engine.requester import LOCAL_WRITE, local_address
from pgas.transports.softhca.engine.responder import check_alignment, check_op_valid, check_rkey, exchange
from pgas.transports.softhca.engine.states import count, refuse
from pgas.transports.softhca.syndromes import Vendor
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.frames import acknowledge, complete_frame, frame
from pgas.transports.softhca.wire.packets import (
    ACK,
    AETH_END,
    ATOMIC_ACK_END,
    ATOMIC_OPERANDS,
    FIRST,
    IMM_BYTES,
    KIND_SHIFT,
    MASKED_OPERANDS,
    MASKED_OPERANDS_BYTES,
    MASKED_WIDTH,
    NAK,
    OPERANDS_BYTES,
    RETH_LEN,
    RETH_RKEY,
    RETH_VA,
    RNR_NAK,
    UNLIMITED,
    NakCode,
    Rc,
    ackreq_of,
    extend,
    load_be64_words,
    opcode_of,
    packets_of,
    psn_of,
    put_aeth,
    store_be64,
)

#: Maximum distance of a PSN from the expected one.
WINDOW = 1 << 16

#: Kinds of messages, values of RESP_MESSAGE; RESP_RECEIVING is a SEND.
SENDING, WRITING, FETCHING = 1, 2, 3

ACKNOWLEDGED = ACK << KIND_SHIFT | UNLIMITED


@device
def requested(hca: int, qp: int, port: int, work: int, bth: int, data: int, nbytes: int) -> int:
    """Take a request. Arguments as of completer.answered()."""
    conn = load(qp + t.QP_WIRE)
    psn = extend(psn_of(bth), load(conn + r.RESP_EXPECTED))
    ahead = psn - load(conn + r.RESP_EXPECTED)
    if ahead > WINDOW or ahead < -WINDOW:
        return count(port + r.PORT_BAD_PSN, 1)
    if load(conn + r.RESP_FATAL) != 0:
        return acknowledge(port, qp, load(conn + r.RESP_FATAL), load(conn + r.RESP_EXPECTED))
    if ahead > 0:
        if load(conn + r.RESP_NAKED) == 0:
            count(port + r.PORT_SEQUENCE_NAKS, 1)
            answer_nak(port, qp, conn, NAK << KIND_SHIFT | NakCode.PSN_SEQUENCE_ERROR)
        return 0
    store(work + t.WORK_RESPONDER, qp)
    if ahead < 0:
        count(port + r.PORT_DUPLICATES, 1)
        return repeat(hca, qp, port, work, conn, bth, psn)
    store(conn + r.RESP_NAKED, 0)
    state = execute(hca, qp, port, work, conn, bth, data, nbytes)
    if state == states.NOT_READY:
        count(port + r.PORT_RNR_NAKS, 1)
        return answer_nak(port, qp, conn, RNR_NAK << KIND_SHIFT | load(conn + r.CONN_RNR_TIMER))
    if state == states.RESPONDER_ERROR:
        return end_in_error(qp, port, work, conn)
    if ackreq_of(bth) != 0 and kind_of(opcode_of(bth)) != FETCHING:
        acknowledge_later(port, conn, qp)
    return 0


@device
def kind_of(opcode: int) -> int:
    """Return the kind of message to which a request's opcode belongs."""
    if opcode in (Rc.RDMA_READ_REQUEST, Rc.COMPARE_SWAP, Rc.FETCH_ADD, Rc.MASKED_COMPARE_SWAP, Rc.MASKED_FETCH_ADD):
        return FETCHING
    return SENDING if opcode < Rc.RDMA_WRITE_FIRST or opcode > Rc.FETCH_ADD else WRITING


@device
def acknowledge_later(port: int, conn: int, qp: int) -> int:
    """Let an ACK be sent after the packets that came together."""
    number = load(port + r.PORT_DUE_COUNT)
    if load(conn + r.RESP_ACK) == 0 and number < r.OUT_FRAMES:
        store(conn + r.RESP_ACK, 1)
        store(load(port + r.PORT_DUE) + 8 * number, qp)
        store(port + r.PORT_DUE_COUNT, number + 1)
    return 0


@device
def acknowledge_due(port: int) -> int:
    """Send the ACKs that are due: of the last request before the expected PSN."""
    number = load(port + r.PORT_DUE_COUNT)
    for i in range(number):
        qp = load(load(port + r.PORT_DUE) + 8 * i)
        conn = load(qp + t.QP_WIRE)
        if conn != 0 and load(conn + r.RESP_ACK) != 0:
            store(conn + r.RESP_ACK, 0)
            acknowledge(port, qp, ACKNOWLEDGED, load(conn + r.RESP_EXPECTED) - 1)
    store(port + r.PORT_DUE_COUNT, 0)
    return number


@device
def answer_nak(port: int, qp: int, conn: int, syndrome: int) -> int:
    """Send a NAK for the expected PSN, which also acknowledges everything before it."""
    store(conn + r.RESP_NAKED, 1)
    store(conn + r.RESP_ACK, 0)
    return acknowledge(port, qp, syndrome, load(conn + r.RESP_EXPECTED))


@device
def end_in_error(qp: int, port: int, work: int, conn: int) -> int:
    """Move the queue pair to ERR because of an error of class C, and send its NAK (IBTA 9.9.3.1.3)."""
    code = NakCode.INVALID_REQUEST
    if load(work + t.WORK_SYNDROME) == Syndrome.REMOTE_ACCESS_ERR:
        code = NakCode.REMOTE_ACCESS_ERROR
    elif load(work + t.WORK_SYNDROME) == Syndrome.REMOTE_OP_ERR:
        code = NakCode.REMOTE_OPERATIONAL_ERROR
    store_release(qp + t.QP_BROKEN, 1)
    add(qp + t.QP_ERRORS, 1)
    count(port + r.PORT_ERROR_NAKS, 1)
    store(conn + r.RESP_FATAL, NAK << KIND_SHIFT | code)
    return answer_nak(port, qp, conn, NAK << KIND_SHIFT | code)


@device
def invalid(work: int) -> int:
    """Refuse a request as invalid."""
    return refuse(work, Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.OP_DISABLED)


# ----------------------------------------------------------------------------------------------------------------- execution


@device
def execute(hca: int, qp: int, port: int, work: int, conn: int, bth: int, data: int, nbytes: int) -> int:
    """Execute the request with the expected PSN; return COMPLETE, NOT_READY, or RESPONDER_ERROR.

    The opcode must continue the message that has begun, and only the last packet may be shorter than the MTU (IBTA 9.7.4.1.2).
    """
    opcode, message, mtu = opcode_of(bth), load(conn + r.RESP_MESSAGE), load(conn + r.CONN_MTU)
    if kind_of(opcode) == FETCHING:
        if message != 0 or nbytes != 0:
            return invalid(work)
        if opcode == Rc.RDMA_READ_REQUEST:
            return execute_read(hca, qp, port, work, conn, bth)
        return execute_atomic(hca, qp, port, work, conn, bth)
    place = opcode - Rc.RDMA_WRITE_FIRST if kind_of(opcode) == WRITING else opcode
    if place > Rc.SEND_ONLY_WITH_IMMEDIATE:
        return invalid(work)  # a SEND with invalidate
    starts = place == Rc.SEND_FIRST or place >= Rc.SEND_ONLY
    ends = place >= Rc.SEND_LAST
    if message != (0 if starts else kind_of(opcode)):
        return invalid(work)
    if nbytes > mtu or (not ends and nbytes != mtu) or (ends and not starts and nbytes == 0):
        return invalid(work)
    if starts:
        store(conn + r.RESP_DONE, 0)
        if kind_of(opcode) == WRITING:
            store(conn + r.RESP_VA, load_be64_words(bth + RETH_VA))
            store(conn + r.RESP_RKEY, load_be32(bth + RETH_RKEY))
            store(conn + r.RESP_LENGTH, load_be32(bth + RETH_LEN))
    imm = load_be32(data - IMM_BYTES)
    has_imm = ends and place & 1 != 0
    if kind_of(opcode) == WRITING:
        state = execute_write(hca, qp, work, conn, starts, ends, has_imm, data, nbytes)
    else:
        state = execute_send(hca, qp, work, conn, data, nbytes)
    if state != states.COMPLETE:
        return state
    count(conn + r.RESP_DONE, nbytes)
    if ends and (has_imm or kind_of(opcode) == SENDING):
        cqe_opcode = CqeOpcode.RESP_WR_IMM if kind_of(opcode) == WRITING else CqeOpcode.RESP_SEND_IMM if has_imm else CqeOpcode.RESP_SEND
        receive(hca, qp, load(conn + r.RESP_DONE), imm if has_imm else 0, cqe_opcode)
    store(conn + r.RESP_MESSAGE, 0 if ends else kind_of(opcode))
    count(conn + r.RESP_EXPECTED, 1)
    if ends:
        count(conn + r.RESP_MSN, 1)
    return states.COMPLETE


@device
def access(hca: int, qp: int, work: int, opcode: int, va: int, rkey: int, nbytes: int) -> int:
    """Check an access to this PE's memory; return the state that the engine's checks return, with WORK_REMOTE."""
    store(work + t.WORK_OPCODE, opcode)
    store(work + t.WORK_RADDR, va)
    store(work + t.WORK_RKEY, rkey)
    store(work + t.WORK_NBYTES, nbytes)
    state = check_op_valid(hca, qp, work)
    return check_rkey(hca, qp, work) if state == states.CHECK_RKEY else state


@device
def execute_write(hca: int, qp: int, work: int, conn: int, starts: bool, ends: bool, has_imm: bool, data: int, nbytes: int) -> int:
    """Write the data of one packet. The first one is checked for the whole message."""
    done, length = load(conn + r.RESP_DONE), load(conn + r.RESP_LENGTH)
    if length > 1 << load(conn + r.CONN_LOG_MSG_MAX) or done + nbytes > length or (ends and done + nbytes != length):
        return invalid(work)
    state = access(hca, qp, work, Opcode.RDMA_WRITE, load(conn + r.RESP_VA) + done, load(conn + r.RESP_RKEY), length if starts else nbytes)
    if state == states.RESPONDER_ERROR:
        return state
    if has_imm:
        ready = check_receive(hca, qp, work)
        if ready != states.EXECUTE_RECEIVE:
            return ready
    if nbytes != 0:
        write(hca, load(qp + t.QP_PE), 0, load(work + t.WORK_REMOTE), data, nbytes, 0 if ends else 1)
    return states.COMPLETE


@device
def execute_send(hca: int, qp: int, work: int, conn: int, data: int, nbytes: int) -> int:
    """Write the data of one packet into the receive WQE, which is consumed with the last packet."""
    ready = check_receive(hca, qp, work)
    if ready != states.EXECUTE_RECEIVE:
        return ready
    rq = receive_queue(hca, qp)
    index = load(rq + t.RQ_CONSUMER)
    wrong = fill_receive(hca, qp, rq, load(conn + r.RESP_DONE), data, nbytes)
    if wrong != 0:
        store(rq + t.RQ_CONSUMER, index + 1)
        return reject(hca, qp, work, index, wrong)
    return states.COMPLETE


@device
def fill_receive(hca: int, qp: int, rq: int, offset: int, data: int, nbytes: int) -> int:
    """Copy data to an offset in the segments of the next receive WQE; return 0 or a vendor syndrome, like receiver.find_room()."""
    wqe = load(rq + t.RQ_ADDRESS) + (load(rq + t.RQ_CONSUMER) & load(rq + t.RQ_MASK)) * load(rq + t.RQ_STRIDE)
    end, begin, done = wqe + load(rq + t.RQ_STRIDE), 0, 0
    while done < nbytes:
        if wqe == end or load_be32(wqe + 4) == w.INVALID_LKEY:
            return Vendor.RECEIVE_LENGTH
        byte_count = load_be32(wqe)
        room = byte_count if byte_count else 1 << 31
        within = offset + done - begin
        if within < room:
            number = min(room - within, nbytes - done)
            found = local_address(hca, qp, load_be32(wqe + 4), load_be64(wqe + 8) + within, number, LOCAL_WRITE)
            if found == 0:
                return Vendor.RECEIVE_LKEY
            write(hca, load(qp + t.QP_PE), 0, found, data + done, number, 0)
            done += number
        begin += room
        wqe += w.OCTOWORD
    return 0


@device
def receive(hca: int, qp: int, nbytes: int, imm: int, cqe_opcode: int) -> int:
    """Complete the next receive WQE."""
    rq = receive_queue(hca, qp)
    index = load(rq + t.RQ_CONSUMER)
    store(rq + t.RQ_CONSUMER, index + 1)
    count(rq + t.RQ_RECEIVES, 1)
    return deliver(hca, qp, load(rq + t.RQ_CQ), index, 0, nbytes, imm, cqe_opcode, 0, 0)


# ----------------------------------------------------------------------------------------------------------- READs and atomics


@device
def execute_read(hca: int, qp: int, port: int, work: int, conn: int, bth: int) -> int:
    """Execute a READ request: it has as many PSNs as its response has packets."""
    psn, nbytes, mtu = load(conn + r.RESP_EXPECTED), load_be32(bth + RETH_LEN), load(conn + r.CONN_MTU)
    if nbytes > 1 << load(conn + r.CONN_LOG_MSG_MAX):
        return invalid(work)
    state = access(hca, qp, work, Opcode.RDMA_READ, load_be64_words(bth + RETH_VA), load_be32(bth + RETH_RKEY), nbytes)
    if state == states.RESPONDER_ERROR:
        return state
    count(conn + r.RESP_EXPECTED, packets_of(nbytes, mtu))
    count(conn + r.RESP_MSN, 1)
    store(conn + r.RESP_ACK, 0)  # the response acknowledges earlier requests
    respond(hca, qp, port, conn, load(work + t.WORK_REMOTE), nbytes, psn)
    return states.COMPLETE


@device
def respond(hca: int, qp: int, port: int, conn: int, source: int, nbytes: int, psn: int) -> int:
    """Send the packets of a READ response."""
    mtu, done = load(conn + r.CONN_MTU), 0
    packets = packets_of(nbytes, mtu)
    place_all_of(hca, load(qp + t.QP_PE), 0)
    dma.forget(hca)
    for i in range(packets):
        bth = frame(port)
        if bth == 0:
            break  # the requester asks again
        number = min(mtu, nbytes - done)
        end, opcode = AETH_END, Rc.RDMA_READ_RESPONSE_ONLY
        if packets != 1:
            opcode = Rc.RDMA_READ_RESPONSE_MIDDLE
            if i == 0:
                opcode = Rc.RDMA_READ_RESPONSE_FIRST
            elif i == packets - 1:
                opcode = Rc.RDMA_READ_RESPONSE_LAST
        if opcode == Rc.RDMA_READ_RESPONSE_MIDDLE:
            end = FIRST
        else:
            put_aeth(bth, ACKNOWLEDGED, load(conn + r.RESP_MSN))
        dma.read(hca, bth + end, source + done, number, nbytes - done)
        complete_frame(port, qp, bth, opcode, end, number, 0, psn + i)
        done += number
    return 0


@device
def execute_atomic(hca: int, qp: int, port: int, work: int, conn: int, bth: int) -> int:
    """Execute an atomic once, and keep the original value for duplicates."""
    opcode, operands = opcode_of(bth), load(work + t.WORK_WQE)
    width, kind = 8, Opcode.ATOMIC_FA if opcode == Rc.FETCH_ADD else Opcode.ATOMIC_CS
    if opcode in (Rc.MASKED_COMPARE_SWAP, Rc.MASKED_FETCH_ADD):
        width, kind = load_be32(bth + MASKED_WIDTH), Opcode.ATOMIC_MASKED_FA if opcode == Rc.MASKED_FETCH_ADD else Opcode.ATOMIC_MASKED_CS
        copy(operands, bth + MASKED_OPERANDS, MASKED_OPERANDS_BYTES)
        if width != 4 and width != 8:
            return invalid(work)
    else:
        copy(operands, bth + ATOMIC_OPERANDS, OPERANDS_BYTES)
    store(work + t.WORK_WIDTH, width)
    state = access(hca, qp, work, kind, load_be64_words(bth + RETH_VA), load_be32(bth + RETH_RKEY), width)
    if state == states.CHECK_ALIGNMENT:
        state = check_alignment(hca, qp, work)
    if state != states.EXECUTE_ATOMIC:
        return state
    original, psn = exchange(hca, load(work + t.WORK_REMOTE), kind, width, operands), load(conn + r.RESP_EXPECTED)
    slot = conn + r.CONN_REPLAYS + (load(conn + r.RESP_REPLAYS) & (r.REPLAYS - 1)) * r.REPLAY_BYTES
    store(slot, psn)
    store(slot + 8, original)
    count(conn + r.RESP_REPLAYS, 1)
    count(conn + r.RESP_EXPECTED, 1)
    count(conn + r.RESP_MSN, 1)
    store(conn + r.RESP_ACK, 0)
    respond_atomic(port, qp, conn, psn, original)
    return states.COMPLETE


@device
def respond_atomic(port: int, qp: int, conn: int, psn: int, original: int) -> int:
    """Send the original value of an atomic."""
    bth = frame(port)
    if bth == 0:
        return 0
    put_aeth(bth, ACKNOWLEDGED, load(conn + r.RESP_MSN))
    store_be64(bth + AETH_END, original)
    return complete_frame(port, qp, bth, Rc.ATOMIC_ACKNOWLEDGE, ATOMIC_ACK_END, 0, 0, psn)


# ---------------------------------------------------------------------------------------------------------------- duplicates


@device
def repeat(hca: int, qp: int, port: int, work: int, conn: int, bth: int, psn: int) -> int:
    """Answer a duplicate without executing it (IBTA 9.6.1.1.3). READs are executed again, if the key still permits it."""
    opcode = opcode_of(bth)
    if kind_of(opcode) != FETCHING:
        return acknowledge_later(port, conn, qp)
    if opcode != Rc.RDMA_READ_REQUEST:
        for i in range(r.REPLAYS):
            slot = conn + r.CONN_REPLAYS + i * r.REPLAY_BYTES
            if load(slot) == psn:
                return respond_atomic(port, qp, conn, psn, load(slot + 8))
        return 0
    nbytes, mtu = load_be32(bth + RETH_LEN), load(conn + r.CONN_MTU)
    if psn + packets_of(nbytes, mtu) > load(conn + r.RESP_EXPECTED):
        return 0
    state = access(hca, qp, work, Opcode.RDMA_READ, load_be64_words(bth + RETH_VA), load_be32(bth + RETH_RKEY), nbytes)
    if state != states.RESPONDER_ERROR:
        respond(hca, qp, port, conn, load(work + t.WORK_REMOTE), nbytes, psn)
    return 0
