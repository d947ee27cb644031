"""The trace: WQEs and CQEs that the engine hands to the server, which prints them."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca.engine.ops import load, store, store_release
from pgas.transports.softhca.engine.states import count
from pgas.transports.softhca.tables import (
    CTL_TRACE,
    CTL_TRACE_HEAD,
    CTL_TRACE_LOST,
    CTL_TRACE_TAIL,
    QP_PE,
    QP_QPN,
    TRACE_BYTES,
    TRACE_DATA,
    TRACE_INDEX,
    TRACE_KIND,
    TRACE_NBYTES,
    TRACE_PE,
    TRACE_QPN,
    TRACE_RECORDS,
)

__all__ = ["trace"]


@device
def trace(hca: int, qp: int, kind: int, index: int, source: int, nbytes: int) -> int:
    """Put a WQE or CQE into the trace ring. If the ring is full, drop and count it."""
    head = load(hca + CTL_TRACE_HEAD)
    if head - load(hca + CTL_TRACE_TAIL) >= TRACE_RECORDS:
        count(hca + CTL_TRACE_LOST, 1)
        return 0
    record = load(hca + CTL_TRACE) + (head % TRACE_RECORDS) * TRACE_BYTES
    store(record + TRACE_KIND, kind)
    store(record + TRACE_QPN, load(qp + QP_QPN))
    store(record + TRACE_INDEX, index)
    store(record + TRACE_NBYTES, nbytes)
    store(record + TRACE_PE, load(qp + QP_PE))
    for offset in range(0, nbytes, 8):
        store(record + TRACE_DATA + offset, load(source + offset))
    store_release(hca + CTL_TRACE_HEAD, head + 1)
    return 0
