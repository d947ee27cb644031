"""The completer of a connection: acknowledgments and responses complete posted WQEs, in order.

IBTA 9.7.4 (acknowledgments), 9.7.5.1.1 (implied ones), 9.7.6.1 (validation of responses), 9.9.2 (errors of the requester). A response is
used only if it belongs to a request that was sent and is not acknowledged. That a later one came although the data of a READ or atomic is
missing means that a response was lost: the requester goes back.
"""

import numpy as np

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.contexts import RNR_RETRY_FOR_EVER, rnr_timer_ns
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.completer import complete, error, release_held
from pgas.transports.softhca.engine.late import place_all_of, write
from pgas.transports.softhca.engine.ops import load, store
from pgas.transports.softhca.engine.receiver import receive_queue
from pgas.transports.softhca.engine.requester import LOCAL_WRITE
from pgas.transports.softhca.engine.responder import put_original
from pgas.transports.softhca.engine.states import count, fail
from pgas.transports.softhca.syndromes import Vendor
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.packets import (
    ACK,
    ATOMIC_ORIGINAL,
    KIND_SHIFT,
    NAK,
    RNR_NAK,
    VALUE_MASK,
    NakCode,
    Rc,
    extend,
    load_be64_words,
    opcode_of,
    psn_of,
    syndrome_of,
)
from pgas.transports.softhca.wire.requester import WINDOW_MAX, backoff, entry_of, go_back, locate, read_end, restore

#: By code, the time that an RNR NAK demands.
_RNR_TIMERS_NS = np.array([rnr_timer_ns(code) for code in range(32)])

#: Number of PSNs before the first that is not acknowledged whose responses may be late ones, which are ignored.
STALE = 1 << 16


@device
def answered(hca: int, qp: int, port: int, work: int, bth: int, data: int, nbytes: int) -> int:
    """Take a packet from the responder: an acknowledgment, or the response to a READ or atomic.

    Args:
        hca, qp, port, work: as elsewhere.
        bth: address of its BTH.
        data, nbytes: address and number of bytes of its data.
    """
    conn = load(qp + t.QP_WIRE)
    unacked, opcode = load(conn + r.REQ_UNACKED), opcode_of(bth)
    psn = extend(psn_of(bth), unacked)
    if psn < unacked or psn >= load(conn + r.REQ_HIGH):
        return count(port + r.PORT_BAD_RESPONSE, 1) if psn < unacked - STALE or psn > load(conn + r.REQ_HIGH) else 0
    if opcode == Rc.ACKNOWLEDGE:
        return acknowledged(hca, qp, port, work, conn, psn, syndrome_of(bth))
    if cover(hca, qp, port, work, conn, psn - 1) == 0 or load(conn + r.REQ_UNACKED) != psn:
        return missed(port, conn)
    entry = entry_of(conn, load(conn + r.REQ_TAIL))
    if opcode == Rc.ATOMIC_ACKNOWLEDGE:
        if load(entry + t.WORK_WIDTH) == 0 or take_original(hca, qp, conn, entry, load_be64_words(bth + ATOMIC_ORIGINAL)) == 0:
            return count(port + r.PORT_BAD_RESPONSE, 1)
    elif load(entry + t.WORK_OPCODE) != Opcode.RDMA_READ or take_data(hca, qp, conn, entry, psn, data, nbytes) == 0:
        return count(port + r.PORT_BAD_RESPONSE, 1)
    if load(entry + t.WORK_OPCODE) != Opcode.RDMA_READ or psn == read_end(entry, psn):
        store(conn + r.REQ_READS, max(0, load(conn + r.REQ_READS) - 1))
    return progress(hca, qp, port, work, conn, psn + 1)


@device
def missed(port: int, conn: int) -> int:
    """Go back because a response was lost, unless this has been done since the last progress."""
    if load(conn + r.REQ_RESENT) == 0:
        go_back(port, conn)
    return 0


@device
def acknowledged(hca: int, qp: int, port: int, work: int, conn: int, psn: int, syndrome: int) -> int:
    """Take an ACK or NAK (IBTA 9.7.5.2)."""
    kind, value = syndrome >> KIND_SHIFT, syndrome & VALUE_MASK
    if kind == ACK:
        return 1 if cover(hca, qp, port, work, conn, psn) != 0 else missed(port, conn)
    if cover(hca, qp, port, work, conn, psn - 1) == 0:
        return missed(port, conn)
    if kind == RNR_NAK:
        return not_ready(hca, qp, port, work, conn, value)
    if kind != NAK or value > NakCode.REMOTE_OPERATIONAL_ERROR:
        return count(port + r.PORT_BAD_RESPONSE, 1)
    if value == NakCode.PSN_SEQUENCE_ERROR:
        return go_back(port, conn)
    syndrome = Syndrome.REMOTE_INVAL_REQ_ERR
    if value == NakCode.REMOTE_ACCESS_ERROR:
        syndrome = Syndrome.REMOTE_ACCESS_ERR
    elif value == NakCode.REMOTE_OPERATIONAL_ERROR:
        syndrome = Syndrome.REMOTE_OP_ERR
    restore(work, entry_of(conn, load(conn + r.REQ_TAIL)))
    fail(work, syndrome, Vendor.REFUSED_REMOTELY)
    return end_in_error(hca, qp, work)


@device
def end_in_error(hca: int, qp: int, work: int) -> int:
    """Move the queue pair to ERR, with the error CQE of the WQE in the work record; later WQEs are flushed by the engine."""
    if load(qp + t.QP_HELD) != 0:
        release_held(hca, qp)
    error(hca, qp, work)
    conn = load(qp + t.QP_WIRE)
    return store(conn + r.REQ_TAIL, load(conn + r.REQ_HEAD))


@device
def not_ready(hca: int, qp: int, port: int, work: int, conn: int, timer: int) -> int:
    """Wait as the RNR NAK demands, or fail after the last retry (IBTA 9.7.5.2.8)."""
    rq, now = receive_queue(hca, qp), load(port + r.PORT_NOW)
    retry, naks = load(rq + t.RQ_RNR_RETRY), load(rq + t.RQ_NAKS)
    if retry != RNR_RETRY_FOR_EVER and naks >= retry:
        store(rq + t.RQ_NAKS, 0)
        restore(work, entry_of(conn, load(conn + r.REQ_TAIL)))
        fail(work, Syndrome.RNR_RETRY_EXC_ERR, Vendor.NOT_READY)
        return end_in_error(hca, qp, work)
    store(rq + t.RQ_NAKS, naks + 1)
    store(conn + r.REQ_PROGRESS_AT, now)
    store(conn + r.REQ_RNR_UNTIL, now + _RNR_TIMERS_NS[timer])
    go_back(port, conn)
    return store(conn + r.REQ_RESEND_AT, now + _RNR_TIMERS_NS[timer] + backoff(conn))


@device
def cover(hca: int, qp: int, port: int, work: int, conn: int, psn: int) -> int:
    """Complete what is acknowledged up to a PSN; return 0 if the data of a READ or atomic before it is missing."""
    while load(conn + r.REQ_UNACKED) <= psn:
        entry = entry_of(conn, load(conn + r.REQ_TAIL))
        if load(entry + t.WORK_OPCODE) >= Opcode.RDMA_READ:
            return 0
        progress(hca, qp, port, work, conn, min(psn, load(entry + r.ENTRY_LAST)) + 1)
    return 1


@device
def progress(hca: int, qp: int, port: int, work: int, conn: int, unacked: int) -> int:
    """Move REQ_UNACKED, and complete the first posted WQE if all its PSNs are acknowledged."""
    now = load(port + r.PORT_NOW)
    measure(conn, now, unacked)
    window = load(conn + r.REQ_WINDOW) + unacked - load(conn + r.REQ_UNACKED)
    store(conn + r.REQ_WINDOW, min(WINDOW_MAX, window))
    store(conn + r.REQ_UNACKED, unacked)
    store(conn + r.REQ_RESENT, 0)
    store(conn + r.REQ_PROGRESS_AT, now)
    store(conn + r.REQ_BACKOFF_NS, backoff(conn))
    store(conn + r.REQ_RESEND_AT, now + load(conn + r.REQ_BACKOFF_NS))
    store(receive_queue(hca, qp) + t.RQ_NAKS, 0)
    if load(conn + r.REQ_SEND) < unacked:
        store(conn + r.REQ_SEND, unacked)
    entry = entry_of(conn, load(conn + r.REQ_TAIL))
    if load(entry + r.ENTRY_LAST) < unacked:
        restore(work, entry)
        count(conn + r.REQ_TAIL, 1)
        if load(entry + t.WORK_OPCODE) >= Opcode.RDMA_READ:
            count(conn + r.REQ_FETCHES, -1)
        if load(conn + r.REQ_CURRENT) < load(conn + r.REQ_TAIL):
            store(conn + r.REQ_CURRENT, load(conn + r.REQ_TAIL))
        if load(qp + t.QP_HELD) != 0:
            release_held(hca, qp)
        complete(hca, qp, work)
    return 1


@device
def measure(conn: int, now: int, unacked: int) -> int:
    """Take the round trip of the packet that is timed (RFC 6298; none while packets are sent again)."""
    if load(conn + r.REQ_TIMED_PSN) == 0 or unacked <= load(conn + r.REQ_TIMED_PSN):
        return 0
    sample, mean = now - load(conn + r.REQ_TIMED_AT), load(conn + r.REQ_ROUND_TRIP_NS)
    if mean == 0:
        store(conn + r.REQ_ROUND_TRIP_NS, max(1, sample))
        store(conn + r.REQ_VARIATION_NS, sample // 2)
    else:
        store(conn + r.REQ_VARIATION_NS, (3 * load(conn + r.REQ_VARIATION_NS) + abs(mean - sample)) // 4)
        store(conn + r.REQ_ROUND_TRIP_NS, max(1, (7 * mean + sample) // 8))
    return store(conn + r.REQ_TIMED_PSN, 0)


@device
def take_data(hca: int, qp: int, conn: int, entry: int, psn: int, data: int, nbytes: int) -> int:
    """Scatter the data of a READ response; return 0 if its length is wrong, or its memory cannot be written anymore."""
    mtu, place = load(conn + r.CONN_MTU), psn - load(entry + r.ENTRY_FIRST)
    if nbytes != min(mtu, load(entry + t.WORK_NBYTES) - place * mtu):
        return 0
    done = 0
    while done < nbytes:
        if locate(hca, qp, conn, entry, place * mtu + done, LOCAL_WRITE) == 0:
            return 0
        number = min(load(conn + r.REQ_ROOM), nbytes - done)
        write_fetched(hca, qp, load(conn + r.REQ_FOUND), data + done, number, 0 if psn == load(entry + r.ENTRY_LAST) else 1)
        done += number
    return 1


@device
def take_original(hca: int, qp: int, conn: int, entry: int, original: int) -> int:
    """Write the original value of an atomic in the order of the capabilities; return 0 if its memory cannot be written anymore."""
    if locate(hca, qp, conn, entry, 0, LOCAL_WRITE) == 0:
        return 0
    width, result = load(entry + t.WORK_WIDTH), entry + r.ENTRY_WQE
    put_original(hca, result, width, original)
    return write_fetched(hca, qp, load(conn + r.REQ_FOUND), result, width, 0)


@device
def write_fetched(hca: int, qp: int, dest: int, source: int, nbytes: int, joins: int) -> int:
    """Write what this PE has fetched to its memory, after all late data but that of this queue pair. joins: see dma.write()."""
    place_all_of(hca, load(qp + t.QP_PE), load(qp + t.QP_QPN))
    write(hca, load(qp + t.QP_PE), load(qp + t.QP_QPN), dest, source, nbytes, joins)
    return 1
