"""The engine: one loop over the QPs that takes doorbells, executes WQEs, and writes CQEs; compiled, in a thread without the GIL."""

from collections.abc import Callable
from typing import Any

from pgas.transports.hostloop.compiled import device, kernel
from pgas.transports.hostloop.memory_ops import worked
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import SOURCES, states
from pgas.transports.softhca.engine.completer import release_held, stall
from pgas.transports.softhca.engine.late import expire
from pgas.transports.softhca.engine.ops import RECEIVES, add, idle, load, load_acquire, store, store_release
from pgas.transports.softhca.engine.pipeline import process
from pgas.transports.softhca.engine.receiver import flush_receives, waits
from pgas.transports.softhca.engine.requester import blocked, take_doorbell
from pgas.transports.softhca.engine.states import random, state_of

#: Maximum number of WQEs of a QP per visit.
WQES_PER_VISIT = 64


@device
def count_down(hca: int) -> int:
    """Pause the software NIC after the WQE that a fault names, until it is resumed."""
    left = load(hca + t.CTL_HALT_COUNT)
    if left != 0:
        store(hca + t.CTL_HALT_COUNT, left - 1)
        if left == 1:
            store_release(hca + t.CTL_PAUSED, 1)
    return 0


@device
def visit(hca: int, qp: int, work: int) -> int:
    """Visit a QP; return whether it had work."""
    state = state_of(qp)
    if state != t.RTS and state != t.ERR:
        return 0
    busy = take_doorbell(hca, qp)
    if RECEIVES and state == t.ERR:
        busy |= flush_receives(hca, qp)
    if load(qp + t.QP_CONSUMER) == load(qp + t.QP_PRODUCER) and load(qp + t.QP_HELD) == 0:
        return busy
    if RECEIVES and (waits(hca, qp, state) != 0 or (state == t.RTS and load(qp + t.QP_HELD) == 0 and blocked(hca, qp) != 0)):
        return busy
    if load(qp + t.QP_STALLED_UNTIL) > load(load(hca + t.CTL_SWEEPS)):
        return 1
    if load(qp + t.QP_HELD) != 0:
        release_held(hca, qp)
    for _ in range(WQES_PER_VISIT):
        if load(qp + t.QP_CONSUMER) == load(qp + t.QP_PRODUCER) or load(qp + t.QP_HELD) != 0 or load_acquire(hca + t.CTL_PAUSED) != 0:
            break
        state = state_of(qp)
        if state != t.RTS and state != t.ERR:
            break
        if RECEIVES and state == t.RTS and blocked(hca, qp) != 0:
            break
        if state == t.RTS and random(hca) < load(hca + t.CTL_CHAOS):
            stall(hca, qp)
            break
        if process(hca, qp, work, states.FETCH if state == t.RTS else states.FLUSH) == states.WAITING:
            break
        if state == t.RTS:
            count_down(hca)
    return 1


@device
def begin_pass(hca: int) -> int:
    """Increment the sweep, on which the firmware's grace periods rely (tables); return whether there was late data."""
    add(load(hca + t.CTL_SWEEPS), 1)
    return expire(hca) if load(hca + t.CTL_LATE_ROWS) != 0 else 0


def _make(stamp: int) -> Callable[[int], int]:
    def loop(hca: int) -> int:
        """Run until CTL_STOP."""
        idle_turns = 0
        while load_acquire(hca + t.CTL_STOP) == 0:
            busy = begin_pass(hca)
            if load_acquire(hca + t.CTL_PAUSED) == 0:
                qps, work = load(hca + t.CTL_QPS), load(hca + t.CTL_WORK)
                for row in range(load_acquire(hca + t.CTL_QP_LIMIT)):
                    busy |= visit(hca, qps + row * t.QP_ROW, work)
            idle_turns = idle(worked(idle_turns) if busy else idle_turns + 1)
        return stamp

    return loop


#: Function run(address of the control record), which returns when CTL_STOP is set. The cuda engine is a kernel instead (block.py).
run: Any = kernel(_make, *SOURCES) if RECEIVES else None
