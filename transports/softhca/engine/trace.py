"""The trace: WQEs and CQEs that the engine passes to the server, which prints them."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import load, store, store_release
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
