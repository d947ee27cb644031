"""The proxy thread's compiled loop, without the GIL: take requests in the order of their tickets, post them, and poll for completions.

Doorbells are rung when a batch is full, when the kernels' ring is empty, and when a send queue is full. A request is complete when its last
WQE or a later one of the same queue pair has completed. Queue pairs complete in any order, so the loop polls only two CQs: that of the
oldest outstanding request, and that of a full send queue.

A back end supplies step, ring, and advance: wqes.py writes WQEs, and work_requests.py passes work requests to libibverbs.
"""

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from pgas.base import events
from pgas.base.events import DONE, POSTED, RUNG_BY_PROXY
from pgas.kernels import codes, layout
from pgas.transports.hostloop.compiled import kernel
from pgas.transports.hostloop.memory_ops import LAST_SHORT_TURN, idle, load, load_acquire, store, store_release, worked
from pgas.transports.ibrc import tables as t
from pgas.transports.ibrc import timeline
from pgas.transports.ibrc.timeline import note
from pgas.transports.ibrc.wqes import advance, ring, step


def _make(stamp: int) -> Callable[[int], int]:
    def loop(own: int) -> int:
        """Run until STOP, then return the stamp. Return 0 earlier if a request failed; FAILED then names its queue pair's record."""
        control, mask = load(own + t.CONTROL), load(own + t.SLOT_MASK)
        tail = completed = 0  # requests posted, requests completed
        posted = 0  # bytes posted of the request at tail
        unrung = waiting = 0  # queue pairs whose doorbell is due, and the WQEBBs or work requests they have built
        turns = waits = 0  # turns since the last work, and the argument of idle()
        while load_acquire(own + t.STOP) == 0:
            turns += 1
            request = control + layout.RING + ((tail & mask) << layout.REQUEST_SHIFT)
            room = False
            if load_acquire(request + layout.SEQUENCE) == tail + 1:
                row = load(own + t.ROWS) + ((load(request + layout.WHAT) >> layout.NUMBER_SHIFT) & layout.NUMBER_MASK) * t.ROW
                index = load(row + t.PROD_IDX)
                room = index - load(row + t.CONS_IDX) + t.STEP_MAX <= load(own + t.DEPTH)
                if room:
                    turns = 0
                    store(own + t.PHASE, t.POSTING)
                    if index == load(row + t.RUNG_IDX):
                        store(load(own + t.UNRUNG) + 8 * unrung, row)
                        unrung += 1
                    posted = step(own, request, row, posted)
                    waiting += load(row + t.PROD_IDX) - index
                    if posted == t.POSTED:
                        undone = load(own + t.UNDONE) + (tail & mask) * t.UNDONE_SIZE
                        store(undone, row)
                        store(undone + 8, load(row + t.PROD_IDX))
                        note(own, POSTED, row, tail)
                        posted = 0
                        tail += 1
                    elif posted == t.REFUSED:
                        store_release(control + layout.FAILED_QUEUE, load(row + t.RECORD))
                        return 0
                elif advance(own, row):
                    store_release(control + layout.FAILED_QUEUE, load(row + t.RECORD))
                    return 0
            if unrung and (waiting >= load(own + t.BATCH) or not room):
                store(own + t.PHASE, t.RINGING)
                failed = ring(own, unrung)
                if failed != 0:
                    store_release(control + layout.FAILED_QUEUE, load(failed + t.RECORD))
                    return 0
                for i in range(unrung):
                    rung = load(load(own + t.UNRUNG) + 8 * i)
                    note(own, RUNG_BY_PROXY, rung, load(rung + t.RUNG_IDX))
                unrung = waiting = 0
            store(own + t.PHASE, t.COMPLETING if turns <= 1 else t.WAITING)
            before = completed
            while completed < tail:
                undone = load(own + t.UNDONE) + (completed & mask) * t.UNDONE_SIZE
                row = load(undone)
                if load(row + t.CONS_IDX) < load(undone + 8):
                    if advance(own, row):
                        store_release(control + layout.FAILED_QUEUE, load(row + t.RECORD))
                        return 0
                    if load(row + t.CONS_IDX) < load(undone + 8):
                        break
                note(own, DONE, row, completed)
                completed += 1
            if completed != before:
                turns = 0
                store_release(control + layout.COMPLETED, completed)
            waits = idle(worked(waits) if turns == 0 else waits + (waits < LAST_SHORT_TURN))
        return stamp

    return loop


@functools.cache
def compiled(posting: ModuleType) -> Any:
    """Compile the loop with a back end's step, ring, and advance, or load it from the disk cache.

    Numba's cache key does not cover the globals of the loop, so the stamp, a free variable of the loop, covers their sources.
    """
    modules = (posting, t, layout, codes, events, timeline)
    sources = (*(str(module.__file__) for module in modules), *getattr(posting, "SOURCES", ()))
    names = {**globals(), "step": posting.step, "ring": posting.ring, "advance": posting.advance}

    def make(stamp: int) -> Callable[[int], int]:
        loop = _make(stamp)
        return FunctionType(loop.__code__, names, loop.__name__, loop.__defaults__, loop.__closure__)  # type: ignore[attr-defined]

    return kernel(make, *sources)
