"""The trace: WQEs and CQEs that the engine passes to the server, which prints them; and their times, as events of a timeline."""

from pgas.base import events
from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import add, clock, load, store, store_release
from pgas.transports.softhca.engine.states import count


@device
def trace(hca: int, qp: int, kind: int, index: int, source: int, nbytes: int) -> int:
    """Put a WQE or CQE into the trace ring. If the ring is full, drop and count it."""
    head = load(hca + t.CTL_TRACE_HEAD)
    if head - load(hca + t.CTL_TRACE_TAIL) >= t.TRACE_RECORDS:
        count(hca + t.CTL_TRACE_LOST, 1)
        return 0
    record = load(hca + t.CTL_TRACE) + (head % t.TRACE_RECORDS) * t.TRACE_BYTES
    store(record + t.TRACE_KIND, kind)
    store(record + t.TRACE_QPN, load(qp + t.QP_QPN))
    store(record + t.TRACE_INDEX, index)
    store(record + t.TRACE_NBYTES, nbytes)
    store(record + t.TRACE_PE, load(qp + t.QP_PE))
    for offset in range(0, nbytes, 8):
        store(record + t.TRACE_DATA + offset, load(source + offset))
    store_release(hca + t.CTL_TRACE_HEAD, head + 1)
    return 0


@device
def note(hca: int, qp: int, code: int, index: int) -> int:
    """Write an event of a QP into the ring of the timeline. index: of the WQE."""
    ticket, now = add(load(hca + t.CTL_EVENTS_COUNT), 1), clock()
    at = load(hca + t.CTL_EVENTS) + (ticket & load(hca + t.CTL_EVENTS_MASK)) * events.EVENT_SIZE
    store(at + events.BEGIN, now)
    store(at + events.END, now)
    store(at + events.WHO, load(qp + t.QP_PE))
    store(at + events.ADDRESS, load(qp + t.QP_QPN))
    store(at + events.SIZE, 0)
    store(at + events.WORD, 0)
    store(at + events.VALUE, index)
    store_release(at + events.WHAT, code | (ticket & 0xFFFF_FFFF) << events.TICKET_SHIFT)
    return 0


@device
def note_fetched(hca: int, qp: int, index: int) -> int:
    """Write the event of a fetched WQE, if there is a timeline. hca, qp: may be copies."""
    if load(hca + t.CTL_TRACE_KINDS) & t.TRACE_EVENTS:
        note(hca, qp, events.FETCHED, index)
    return 0


@device
def seen(hca: int, qp: int, kind: int, index: int, source: int, nbytes: int) -> int:
    """Trace a WQE that was fetched, or a CQE that was written, as requested."""
    kinds = load(hca + t.CTL_TRACE_KINDS)
    if kinds & kind:
        trace(hca, qp, kind, index, source, nbytes)
    if kinds & t.TRACE_EVENTS:
        note(hca, qp, events.FETCHED if kind == t.TRACE_WQE else events.EXECUTED, index)
    return 0
