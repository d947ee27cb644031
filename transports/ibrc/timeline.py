"""The proxy thread's events for a timeline (PGAS_TRACE): requests posted and completed, doorbells (pgas/base/events.py)."""

from pgas.base import events
from pgas.kernels import layout
from pgas.native.cpu import on_host
from pgas.transports.hostloop.memory_ops import clock, load, store, store_release
from pgas.transports.ibrc import tables as t

_WHO = events.NOBODY
_TICKET_MASK = (1 << 32) - 1


@on_host
def note(own: int, code: int, row: int, value: int) -> int:
    """Write an event of the queue pair in a row, if there is a timeline."""
    ring = load(own + t.TRACE)
    if ring == 0:
        return 0
    ticket, now = load(own + t.TRACE_TICKET), clock()
    store(own + t.TRACE_TICKET, ticket + 1)
    at = ring + (ticket & load(own + t.TRACE_MASK)) * events.EVENT_SIZE
    store(at + events.BEGIN, now)
    store(at + events.END, now)
    store(at + events.WHO, _WHO)
    store(at + events.ADDRESS, load(row + t.PROD_IDX))
    store(at + events.SIZE, 0)
    store(at + events.WORD, (load(row + t.RECORD) - layout.RECORDS) // layout.RECORD_SIZE)
    store(at + events.VALUE, value)
    store_release(at + events.WHAT, code | (ticket & _TICKET_MASK) << events.TICKET_SHIFT)
    return 0
