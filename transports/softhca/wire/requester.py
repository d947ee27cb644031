"""The requester of a connection: WQEs become requests with PSNs, which are sent within a window and again if packets are lost.

IBTA 9.7.2 (requester), 9.7.3 (PSNs, go-back-N), 9.7.6.1.3 (the transport timer), 9.7.5.2.8 (RNR NAK). Three things go beyond it, and no
responder can tell:

* the timer that starts a retransmission follows the measured round trip (RFC 6298), so that a lost packet costs milliseconds. The time
  qpc.ack_timeout and the retries qpc.retry_count decide when a requester gives up: after (retry_count + 1) * ack_timeout without progress;
* the number of packets in flight is halved after a loss and grows again with each acknowledgment, because receivers have little room;
* a long READ is sent as several READ requests, because responders answer a request as a whole.

A WQE is posted after the engine's own checks of it (pipeline.py). Other WQEs (NOP, DUMP, WAIT, and those that fail these checks) wait for
all earlier ones and then take the engine's usual way. Keys are looked up again for each packet, because a key may be destroyed meanwhile.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.wqe import Fm, Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, states
from pgas.transports.softhca.engine.late import place_touched
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.ops import copy, load, load_acquire, load_be32, load_be64, load_u8, store, store_u32
from pgas.transports.softhca.engine.pipeline import finish, prepare
from pgas.transports.softhca.engine.requester import blocked, local_address
from pgas.transports.softhca.engine.states import count, fail, state_of
from pgas.transports.softhca.syndromes import Vendor
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.frames import complete_frame, frame
from pgas.transports.softhca.wire.packets import (
    ATOMIC_END,
    ATOMIC_OPERANDS,
    FIRST,
    IMM_BYTES,
    MASKED_END,
    MASKED_OPERANDS,
    MASKED_OPERANDS_BYTES,
    MASKED_WIDTH,
    OPERANDS_BYTES,
    RETH_END,
    Rc,
    packets_of,
    put_reth,
    store_be32,
)

#: Number of PSNs of a READ request.
READ_PSNS = 16

#: Limits of the window in PSNs. The least one leaves room for a READ request.
WINDOW_MIN, WINDOW_MAX = READ_PSNS, 128

#: An acknowledgment is requested at least once in this number of PSNs.
ACK_PSNS = 16

#: Limits of the time until a retransmission.
RESEND_MIN_NS, RESEND_MAX_NS = 4_000_000, 1_000_000_000

#: Maximum number of packets of a queue pair per visit, and of WQEs that it posts.
PACKETS_PER_VISIT, WQES_PER_VISIT = 64, 64


# ---------------------------------------------------------------------------------------------------------------- posting WQEs


@device
def entry_of(conn: int, sequence: int) -> int:
    """Return the address of a posted WQE."""
    return load(conn + r.CONN_ENTRIES) + (sequence & (r.ENTRIES - 1)) * r.ENTRY_ROW


@device
def restore(work: int, entry: int) -> int:
    """Set the work record to a posted WQE, for the engine's completer."""
    for offset in range(0, r.ENTRY_WORK, 8):
        store(work + offset, load(entry + offset))
    for offset in range(0, load(entry + t.WORK_DS) * w.OCTOWORD, 8):
        store(load(work + t.WORK_WQE) + offset, load(entry + r.ENTRY_WQE + offset))
    return 0


@device
def post_wqes(hca: int, qp: int, work: int) -> int:
    """Post WQEs for which the doorbell was rung; return whether there were any."""
    conn, posted = load(qp + t.QP_WIRE), 0
    while posted < WQES_PER_VISIT and post(hca, qp, work, conn) != 0:
        posted += 1
    return 1 if posted != 0 else 0


@device
def post(hca: int, qp: int, work: int, conn: int) -> int:
    """Post the next WQE, or end it if it is not sent; return 0 if there is none, or it has to wait."""
    waiting = load(conn + r.REQ_HEAD) - load(conn + r.REQ_TAIL)
    cursor, done = load(conn + r.REQ_CURSOR), load(qp + t.QP_CONSUMER)
    if cursor == load(qp + t.QP_PRODUCER) or load(qp + t.QP_HELD) != 0 or load_acquire(hca + t.CTL_PAUSED) != 0:
        return 0
    if state_of(qp) != t.RTS or waiting == r.ENTRIES or (waiting != 0 and load(hca + t.CTL_SERIAL) != 0):
        return 0
    store(qp + t.QP_CONSUMER, cursor)  # the engine's checks are those of the next WQE
    if blocked(hca, qp) != 0:
        store(qp + t.QP_CONSUMER, done)
        return 0
    state = prepare(hca, qp, work, states.FETCH)
    if state != states.CHECK_CONNECTION:
        if waiting != 0:
            store(qp + t.QP_CONSUMER, done)
            return 0
        finish(hca, qp, work, state)
        store(conn + r.REQ_CURSOR, load(qp + t.QP_CONSUMER))
        return 1
    store(qp + t.QP_CONSUMER, done)
    fetches = load(work + t.WORK_OPCODE) >= Opcode.RDMA_READ
    if load(conn + r.REQ_FETCHES) != 0 and load_u8(load(work + t.WORK_WQE) + w.CTRL_FM_CE_SE) & w.FM_MASK >= Fm.FENCE:
        return 0  # a fence waits for READs and atomics
    if load(hca + t.CTL_WQE_COST) | load(hca + t.CTL_BYTE_COST) != 0:
        admit(hca, 1, load(work + t.WORK_NBYTES))
    enter(work, conn)
    store(conn + r.REQ_CURSOR, cursor + load(work + t.WORK_WQEBBS))
    if fetches:
        count(conn + r.REQ_FETCHES, 1)
    return 1


@device
def enter(work: int, conn: int) -> int:
    """Put a WQE into the ring and give it its PSNs: one for each packet of its request, or of the response to a READ."""
    entry = entry_of(conn, load(conn + r.REQ_HEAD))
    for offset in range(0, r.ENTRY_WORK, 8):
        store(entry + offset, load(work + offset))
    for offset in range(0, load(work + t.WORK_DS) * w.OCTOWORD, 8):
        store(entry + r.ENTRY_WQE + offset, load(load(work + t.WORK_WQE) + offset))
    first, mtu = load(conn + r.REQ_NEXT), load(conn + r.CONN_MTU)
    packets = packets_of(load(work + t.WORK_NBYTES), mtu)
    store(entry + r.ENTRY_FIRST, first)
    store(entry + r.ENTRY_LAST, first + packets - 1)
    store(conn + r.REQ_NEXT, first + packets)
    return count(conn + r.REQ_HEAD, 1)


# ------------------------------------------------------------------------------------------------------------- local memory


@device
def locate(hca: int, qp: int, conn: int, entry: int, offset: int, needs: int) -> int:
    """Find a byte of a WQE's data: set REQ_FOUND to its address and REQ_ROOM to the bytes from there to the end of its segment.

    Return 0 if its key does not permit the access (anymore).
    """
    wqe, at, begin = entry + r.ENTRY_WQE, load(entry + t.WORK_DATA), 0
    end = load(entry + t.WORK_DS) * w.OCTOWORD
    while at < end:
        byte_count = load_be32(wqe + at)
        inline = byte_count & w.INLINE_SEG
        nbytes = byte_count & ~w.INLINE_SEG if inline else byte_count if byte_count else 1 << 31
        within = offset - begin
        if within < nbytes:
            store(conn + r.REQ_FOUND, wqe + at + w.INLINE_HEADER + within)
            store(conn + r.REQ_ROOM, nbytes - within)
            if inline:
                return 1
            found = local_address(hca, qp, load_be32(wqe + at + 4), load_be64(wqe + at + 8), nbytes, needs)
            store(conn + r.REQ_FOUND, found + within)
            return 1 if found != 0 else 0
        begin += nbytes
        at += (w.INLINE_HEADER + nbytes + w.OCTOWORD - 1) // w.OCTOWORD * w.OCTOWORD if inline else w.OCTOWORD
    return 0


@device
def gather(hca: int, qp: int, conn: int, entry: int, offset: int, dest: int, nbytes: int, ahead: int) -> int:
    """Copy data of a WQE into a packet; return 0 if it cannot be read. ahead: number of bytes that this and the next packets need."""
    done = 0
    while done < nbytes:
        if locate(hca, qp, conn, entry, offset + done, t.LOCAL_READ) == 0:
            return 0
        number, found = min(load(conn + r.REQ_ROOM), nbytes - done), load(conn + r.REQ_FOUND)
        place_touched(hca, found, number)
        if entry <= found < entry + r.ENTRY_ROW:  # inline data
            copy(dest + done, found, number)
        else:
            dma.read(hca, dest + done, found, number, min(load(conn + r.REQ_ROOM), ahead - done))
        done += number
    return 1


# ------------------------------------------------------------------------------------------------------------------- packets


@device
def request_opcode(opcode: int, starts: bool, ends: bool) -> int:
    """Return the packet's opcode for a SEND or WRITE."""
    base = Rc.SEND_FIRST if opcode in (Opcode.SEND, Opcode.SEND_IMM) else Rc.RDMA_WRITE_FIRST
    imm = 1 if opcode in (Opcode.SEND_IMM, Opcode.RDMA_WRITE_IMM) else 0
    if ends:
        return base + (Rc.SEND_ONLY if starts else Rc.SEND_LAST) + imm
    return base + (Rc.SEND_FIRST if starts else Rc.SEND_MIDDLE)


@device
def send_message(hca: int, qp: int, port: int, conn: int, entry: int, bth: int, psn: int, ackreq: int) -> int:
    """Send one packet of a SEND or WRITE; return the number of its PSNs, 0 if its data cannot be read."""
    opcode, mtu, place = load(entry + t.WORK_OPCODE), load(conn + r.CONN_MTU), psn - load(entry + r.ENTRY_FIRST)
    starts, ends = place == 0, psn == load(entry + r.ENTRY_LAST)
    nbytes = min(mtu, load(entry + t.WORK_NBYTES) - place * mtu)
    ahead = max(nbytes, (load(conn + r.REQ_UNACKED) + load(conn + r.REQ_WINDOW) - psn) * mtu)
    end = FIRST
    if starts and opcode in (Opcode.RDMA_WRITE, Opcode.RDMA_WRITE_IMM):
        put_reth(bth, load(entry + t.WORK_RADDR), load(entry + t.WORK_RKEY), load(entry + t.WORK_NBYTES))
        end = RETH_END
    if ends and opcode in (Opcode.SEND_IMM, Opcode.RDMA_WRITE_IMM):
        store_be32(bth + end, load_be32(entry + r.ENTRY_WQE + w.CTRL_IMM))
        end += IMM_BYTES
    if gather(hca, qp, conn, entry, place * mtu, bth + end, nbytes, ahead) == 0:
        return 0
    complete_frame(port, qp, bth, request_opcode(opcode, starts, ends), end, nbytes, ackreq, psn)
    return 1


@device
def send_read(qp: int, port: int, conn: int, entry: int, bth: int, psn: int) -> int:
    """Send a READ request for the data from a PSN on; return the number of PSNs of its response."""
    mtu, place = load(conn + r.CONN_MTU), psn - load(entry + r.ENTRY_FIRST)
    psns = read_end(entry, psn) - psn + 1
    nbytes = min(psns * mtu, load(entry + t.WORK_NBYTES) - place * mtu)
    put_reth(bth, load(entry + t.WORK_RADDR) + place * mtu, load(entry + t.WORK_RKEY), nbytes)
    complete_frame(port, qp, bth, Rc.RDMA_READ_REQUEST, RETH_END, 0, 1, psn)
    return psns


@device
def read_end(entry: int, psn: int) -> int:
    """Return the last PSN of the READ request that has a PSN."""
    place = psn - load(entry + r.ENTRY_FIRST)
    return min(load(entry + r.ENTRY_LAST), psn + READ_PSNS - 1 - place % READ_PSNS)


@device
def send_atomic(qp: int, port: int, entry: int, bth: int, psn: int) -> int:
    """Send an atomic; return the number of its PSNs."""
    operands, opcode = entry + r.ENTRY_WQE + load(entry + t.WORK_OPERANDS), load(entry + t.WORK_OPCODE)
    put_reth(bth, load(entry + t.WORK_RADDR), load(entry + t.WORK_RKEY), 0)
    if opcode in (Opcode.ATOMIC_CS, Opcode.ATOMIC_FA):
        copy(bth + ATOMIC_OPERANDS, operands, OPERANDS_BYTES)
        complete_frame(port, qp, bth, Rc.COMPARE_SWAP if opcode == Opcode.ATOMIC_CS else Rc.FETCH_ADD, ATOMIC_END, 0, 1, psn)
    else:
        store_be32(bth + MASKED_WIDTH, load(entry + t.WORK_WIDTH))
        for offset in range(0, MASKED_OPERANDS_BYTES, 4):
            store_u32(bth + MASKED_OPERANDS + offset, 0)
        masks = opcode == Opcode.ATOMIC_MASKED_CS and load(entry + t.WORK_WIDTH) == 8
        copy(bth + MASKED_OPERANDS, operands, MASKED_OPERANDS_BYTES if masks else OPERANDS_BYTES)
        masked = Rc.MASKED_COMPARE_SWAP if opcode == Opcode.ATOMIC_MASKED_CS else Rc.MASKED_FETCH_ADD
        complete_frame(port, qp, bth, masked, MASKED_END, 0, 1, psn)
    return 1


@device
def begin_reads(hca: int, qp: int, conn: int) -> int:
    """Start reading the data of the packets that transmit() will send, in their order, as far as there is room."""
    dma.forget(hca)
    psn, current, fetches = load(conn + r.REQ_SEND), load(conn + r.REQ_CURRENT), load(conn + r.REQ_READS)
    end = min(load(conn + r.REQ_NEXT), load(conn + r.REQ_UNACKED) + load(conn + r.REQ_WINDOW), psn + PACKETS_PER_VISIT)
    while psn < end:
        entry = entry_of(conn, current)
        if load(entry + r.ENTRY_LAST) >= psn:
            first, mtu = load(entry + r.ENTRY_FIRST), load(conn + r.CONN_MTU)
            offset, needed = (psn - first) * mtu, min((end - first) * mtu, load(entry + t.WORK_NBYTES))
            if load(entry + t.WORK_OPCODE) >= Opcode.RDMA_READ:
                fetches, offset = fetches + 1, needed
                if fetches > load(conn + r.CONN_READS_MAX):
                    return 0
            while offset < needed:
                if locate(hca, qp, conn, entry, offset, t.LOCAL_READ) == 0:
                    return 0
                nbytes, found = min(load(conn + r.REQ_ROOM), needed - offset), load(conn + r.REQ_FOUND)
                if not entry <= found < entry + r.ENTRY_ROW and dma.expect(hca, found, nbytes) == 0:
                    return 0
                offset += nbytes
            psn = load(entry + r.ENTRY_LAST) + 1
        current += 1
    return 1


# -------------------------------------------------------------------------------------------------------------------- sending


@device
def transmit(hca: int, qp: int, port: int) -> int:
    """Send packets as far as the window permits; return whether any were sent."""
    conn, sent = load(qp + t.QP_WIRE), 0
    if load(conn + r.REQ_RNR_UNTIL) > load(port + r.PORT_NOW) or load(conn + r.REQ_STUCK) != 0:
        return 0
    if dma.by_dma(hca) != 0:
        begin_reads(hca, qp, conn)
        dma.await_expected(hca)
    while sent < PACKETS_PER_VISIT and load(conn + r.REQ_SEND) < load(conn + r.REQ_NEXT):
        if send_next(hca, qp, port, conn) == 0:
            break
        sent += 1
    return 1 if sent != 0 else 0


@device
def send_next(hca: int, qp: int, port: int, conn: int) -> int:
    """Send the packet of REQ_SEND; return 0 if it has to wait."""
    psn, unacked = load(conn + r.REQ_SEND), load(conn + r.REQ_UNACKED)
    entry = entry_of(conn, load(conn + r.REQ_CURRENT))
    while load(entry + r.ENTRY_LAST) < psn:
        count(conn + r.REQ_CURRENT, 1)
        entry = entry_of(conn, load(conn + r.REQ_CURRENT))
    opcode, fetches = load(entry + t.WORK_OPCODE), load(entry + t.WORK_OPCODE) >= Opcode.RDMA_READ
    needed = read_end(entry, psn) - psn + 1 if opcode == Opcode.RDMA_READ else 1
    if psn + needed - unacked > load(conn + r.REQ_WINDOW):
        return 0
    if fetches and load(conn + r.REQ_READS) >= load(conn + r.CONN_READS_MAX):
        return 0
    bth = frame(port)
    if bth == 0:
        return 0
    full = psn + 1 - unacked >= load(conn + r.REQ_WINDOW)
    ends = psn == load(entry + r.ENTRY_LAST)
    ackreq = 1 if full or (ends and psn + 1 == load(conn + r.REQ_NEXT)) or psn % ACK_PSNS == 0 or load(conn + r.REQ_RESENT) != 0 else 0
    if opcode == Opcode.RDMA_READ:
        psns = send_read(qp, port, conn, entry, bth, psn)
    elif fetches:
        psns = send_atomic(qp, port, entry, bth, psn)
    else:
        psns = send_message(hca, qp, port, conn, entry, bth, psn, ackreq)
    if psns == 0:
        store(conn + r.REQ_STUCK, 1)
        return 0
    if fetches:
        count(conn + r.REQ_READS, 1)
        ackreq = 1
    return note_sent(port, conn, psn, psns, ackreq)


@device
def note_sent(port: int, conn: int, psn: int, psns: int, ackreq: int) -> int:
    """Move REQ_SEND and, if the packet is new, REQ_HIGH; start the timers."""
    now, high = load(port + r.PORT_NOW), load(conn + r.REQ_HIGH)
    store(conn + r.REQ_SEND, psn + psns)
    if psn == load(conn + r.REQ_UNACKED):
        store(conn + r.REQ_RESEND_AT, now + load(conn + r.REQ_BACKOFF_NS))
        if psn == high:
            store(conn + r.REQ_PROGRESS_AT, now)
    if psn + psns > high:
        store(conn + r.REQ_HIGH, psn + psns)
        if ackreq != 0 and load(conn + r.REQ_TIMED_PSN) == 0:
            store(conn + r.REQ_TIMED_PSN, psn)
            store(conn + r.REQ_TIMED_AT, now)
    return 1


@device
def go_back(port: int, conn: int) -> int:
    """Begin to send again from the first PSN that is not acknowledged (go-back-N)."""
    count(port + r.PORT_RETRANSMISSIONS, 1)
    store(conn + r.REQ_SEND, load(conn + r.REQ_UNACKED))
    store(conn + r.REQ_CURRENT, load(conn + r.REQ_TAIL))
    store(conn + r.REQ_READS, 0)
    store(conn + r.REQ_TIMED_PSN, 0)
    store(conn + r.REQ_STUCK, 0)
    store(conn + r.REQ_RESENT, 1)
    return store(conn + r.REQ_WINDOW, max(WINDOW_MIN, load(conn + r.REQ_WINDOW) // 2))


@device
def backoff(conn: int) -> int:
    """Return the time until the first retransmission, from the measured round trips."""
    if load(conn + r.REQ_ROUND_TRIP_NS) == 0:
        return r.RESEND_FIRST_NS
    return min(RESEND_MAX_NS, max(RESEND_MIN_NS, load(conn + r.REQ_ROUND_TRIP_NS) + 4 * load(conn + r.REQ_VARIATION_NS)))


@device
def watch(work: int, qp: int, port: int) -> int:
    """Look at the timers; return ERROR, with the WQE in the work record, if the peer has not answered for too long."""
    conn, now = load(qp + t.QP_WIRE), load(port + r.PORT_NOW)
    if load(conn + r.REQ_UNACKED) == load(conn + r.REQ_SEND) and load(conn + r.REQ_STUCK) != 0:
        restore(work, entry_of(conn, load(conn + r.REQ_CURRENT)))
        return fail(work, Syndrome.LOCAL_PROT_ERR, Vendor.LKEY_UNKNOWN)
    if load(conn + r.REQ_UNACKED) == load(conn + r.REQ_HIGH):
        return states.DONE
    limit = load(conn + r.CONN_TIMEOUT_NS) * (load(conn + r.CONN_RETRIES) + 1)
    if limit != 0 and now - load(conn + r.REQ_PROGRESS_AT) > limit:
        restore(work, entry_of(conn, load(conn + r.REQ_TAIL)))
        return fail(work, Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.NO_ANSWER)
    if load(conn + r.REQ_UNACKED) != load(conn + r.REQ_SEND) and now >= load(conn + r.REQ_RESEND_AT):
        count(port + r.PORT_TIMEOUTS, 1)
        store(conn + r.REQ_BACKOFF_NS, min(RESEND_MAX_NS, 2 * load(conn + r.REQ_BACKOFF_NS)))
        store(conn + r.REQ_RESEND_AT, now + load(conn + r.REQ_BACKOFF_NS))
        go_back(port, conn)
    return states.DONE
