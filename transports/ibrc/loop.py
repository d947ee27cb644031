"""What the proxy thread runs, compiled and without the GIL: take requests in the order of their tickets, post them, look at completions.

Doorbells are rung when the kernels' ring is empty or a batch waits. A request is done when what it posted last has completed, or something
later of its queue pair. Requests of different queue pairs may end in any order, so only the CQ of the oldest request that is not done is
looked at, and the CQ of a send queue that is full.

The loop is one; what step, ring and advance do is a back end's: WQEs that the thread writes itself (wqes.py), or work requests that it
hands to libibverbs (work_requests.py).
"""

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from pgas.kernels.paths import proxy
from pgas.transports.hostloop.compiled import kernel
from pgas.transports.hostloop.memory_ops import LAST_SHORT_TURN, idle, load, load_acquire, store, store_release
from pgas.transports.ibrc import tables
from pgas.transports.ibrc.tables import (
    BATCH,
    COMPLETING,
    CONS_IDX,
    CONTROL,
    DEPTH,
    PHASE,
    POSTED,
    POSTING,
    PROD_IDX,
    RECORD,
    REFUSED,
    RINGING,
    ROW,
    ROWS,
    RUNG_IDX,
    SLOT_MASK,
    STEP_MAX,
    STOP,
    UNDONE,
    UNDONE_SIZE,
    UNRUNG,
    WAITING,
)
from pgas.transports.ibrc.wqes import advance, ring, step

__all__ = ["compiled"]


def _make(stamp: int) -> Callable[[int], int]:
    def loop(own: int) -> int:
        """Run until STOP; return 0 before that if what was posted has failed, with the queue pair's record in FAILED."""
        control, mask = load(own + CONTROL), load(own + SLOT_MASK)
        tail = completed = 0  # requests posted, and done
        posted = 0  # bytes of the request at tail
        unrung = waiting = 0  # queue pairs to be rung, and how much waits for it
        turns = 0
        while load_acquire(own + STOP) == 0:
            turns += 1
            request = control + proxy.RING + ((tail & mask) << proxy.REQUEST_SHIFT)
            room = False
            if load_acquire(request + proxy.SEQUENCE) == tail + 1:
                row = load(own + ROWS) + ((load(request + proxy.WHAT) >> proxy.NUMBER_SHIFT) & proxy.NUMBER_MASK) * ROW
                index = load(row + PROD_IDX)
                room = index - load(row + CONS_IDX) + STEP_MAX <= load(own + DEPTH)
                if room:
                    turns = 0
                    store(own + PHASE, POSTING)
                    if index == load(row + RUNG_IDX):
                        store(load(own + UNRUNG) + 8 * unrung, row)
                        unrung += 1
                    posted = step(own, request, row, posted)
                    waiting += load(row + PROD_IDX) - index
                    if posted == POSTED:
                        undone = load(own + UNDONE) + (tail & mask) * UNDONE_SIZE
                        store(undone, row)
                        store(undone + 8, load(row + PROD_IDX))
                        posted = 0
                        tail += 1
                    elif posted == REFUSED:
                        store_release(control + proxy.FAILED, load(row + RECORD))
                        return 0
                elif advance(own, row):
                    store_release(control + proxy.FAILED, load(row + RECORD))
                    return 0
            if unrung and (waiting >= load(own + BATCH) or not room):
                store(own + PHASE, RINGING)
                failed = ring(own, unrung)
                if failed != 0:
                    store_release(control + proxy.FAILED, load(failed + RECORD))
                    return 0
                unrung = waiting = 0
            store(own + PHASE, COMPLETING if turns <= 1 else WAITING)
            before = completed
            while completed < tail:
                undone = load(own + UNDONE) + (completed & mask) * UNDONE_SIZE
                row = load(undone)
                if load(row + CONS_IDX) < load(undone + 8):
                    if advance(own, row):
                        store_release(control + proxy.FAILED, load(row + RECORD))
                        return 0
                    if load(row + CONS_IDX) < load(undone + 8):
                        break
                completed += 1
            if completed != before:
                turns = 0
                store_release(control + proxy.COMPLETED, completed)
            idle(min(turns, LAST_SHORT_TURN))
        return stamp

    return loop


@functools.cache
def compiled(posting: ModuleType) -> Any:
    """Compile the loop with the step, ring and advance of a back end, or find it in the disk cache.

    Numba's key of the cache has no part for the names that the loop finds in its module, so all their sources are in its free variable.
    """
    sources = (str(posting.__file__), str(tables.__file__), str(proxy.__file__), *getattr(posting, "SOURCES", ()))
    names = {**globals(), "step": posting.step, "ring": posting.ring, "advance": posting.advance}

    def make(stamp: int) -> Callable[[int], int]:
        loop = _make(stamp)
        return FunctionType(loop.__code__, names, loop.__name__, loop.__defaults__, loop.__closure__)  # type: ignore[attr-defined]

    return kernel(make, *sources)
