"""The engine: one loop over the QPs that takes doorbells, executes WQEs and writes CQEs; compiled, in a thread without the GIL."""

from collections.abc import Callable
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.transports.hostloop.compiled import device, kernel
from pgas.transports.softhca.engine import SOURCES
from pgas.transports.softhca.engine.completer import complete, error, flush, release_held, responder_error, stall, trace
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.ops import add, idle, load, load_acquire, store, store_release
from pgas.transports.softhca.engine.pipeline import (
    CHECK_CONNECTION,
    CHECK_CONTROL,
    CHECK_FAULT,
    CHECK_LENGTH,
    CHECK_LKEY,
    CHECK_OP_VALID,
    CHECK_RECEIVE,
    CHECK_RKEY,
    CHECK_SEGMENTS,
    COMPLETE,
    DONE,
    ERROR,
    EXECUTE_ATOMIC,
    EXECUTE_READ,
    EXECUTE_RECEIVE,
    EXECUTE_WRITE,
    FETCH,
    FLUSH,
    NOT_READY,
    RECEIVES,
    RESPONDER_ERROR,
    random,
    state_of,
)
from pgas.transports.softhca.engine.receiver import NAKED, check_receive, execute_receive, flush_receives, not_ready, still_not_ready
from pgas.transports.softhca.engine.requester import (
    check_control,
    check_fault,
    check_length,
    check_lkey,
    check_segments,
    fetch,
    take_doorbell,
)
from pgas.transports.softhca.engine.responder import (
    check_alignment,
    check_connection,
    check_op_valid,
    check_rkey,
    execute_atomic,
    execute_read,
    execute_write,
)
from pgas.transports.softhca.tables import (
    CTL_BYTE_COST,
    CTL_CHAOS,
    CTL_HALT_COUNT,
    CTL_PAUSED,
    CTL_QP_LIMIT,
    CTL_QPS,
    CTL_STOP,
    CTL_SWEEPS,
    CTL_TRACE_KINDS,
    CTL_WORK,
    CTL_WQE_COST,
    ERR,
    QP_CONSUMER,
    QP_HELD,
    QP_PRODUCER,
    QP_ROW,
    QP_STALLED_UNTIL,
    RTS,
    TRACE_WQE,
    WORK_DS,
    WORK_INDEX,
    WORK_NBYTES,
    WORK_WQE,
)

__all__ = ["run"]

#: WQEs that a QP may have executed before the next one gets its turn.
WQES_PER_VISIT = 64


@device
def check(hca: int, qp: int, work: int, state: int) -> int:
    """Take a WQE through the checks; return what is to be done with it."""
    while CHECK_CONTROL <= state <= CHECK_RECEIVE:
        if state == CHECK_CONTROL:
            state = check_control(hca, qp, work)
        elif state == CHECK_FAULT:
            state = check_fault(hca, qp, work)
        elif state == CHECK_SEGMENTS:
            state = check_segments(hca, qp, work)
        elif state == CHECK_LKEY:
            state = check_lkey(hca, qp, work)
        elif state == CHECK_LENGTH:
            state = check_length(hca, qp, work)
        elif state == CHECK_CONNECTION:
            state = check_connection(hca, qp, work)
        elif state == CHECK_OP_VALID:
            state = check_op_valid(hca, qp, work)
        elif state == CHECK_RKEY:
            state = check_rkey(hca, qp, work)
        elif RECEIVES and state == CHECK_RECEIVE:
            state = check_receive(hca, qp, work)
        else:
            state = check_alignment(hca, qp, work)
    return state


@device
def process(hca: int, qp: int, work: int, state: int) -> int:
    """Take one WQE through its states; return whether it waits for a receiver that is not ready."""
    waits = 0
    if state == FETCH:
        state = fetch(hca, qp, work)
        if load(hca + CTL_TRACE_KINDS) & TRACE_WQE:
            trace(hca, qp, TRACE_WQE, load(work + WORK_INDEX), load(work + WORK_WQE), max(1, load(work + WORK_DS)) * 16)
        state = check(hca, qp, work, state)
    if EXECUTE_WRITE <= state <= COMPLETE and load(hca + CTL_WQE_COST) | load(hca + CTL_BYTE_COST) != 0:
        admit(hca, 1, load(work + WORK_NBYTES))
    while state != DONE:
        if state == EXECUTE_WRITE:
            state = execute_write(hca, qp, work)
        elif state == EXECUTE_READ:
            state = execute_read(hca, qp, work)
        elif state == EXECUTE_ATOMIC:
            state = execute_atomic(hca, qp, work)
        elif state == COMPLETE:
            state = complete(hca, qp, work)
        elif RECEIVES and state == EXECUTE_RECEIVE:
            state = execute_receive(hca, qp, work)
        elif RECEIVES and state == NOT_READY:
            state = not_ready(hca, qp, work)
            waits = 1 if state == DONE else 0
        elif state == RESPONDER_ERROR:
            state = responder_error(hca, qp, work)
        elif state == ERROR:
            state = error(hca, qp, work)
        else:
            state = flush(hca, qp, work)
    return waits


@device
def count_down(hca: int) -> int:
    """Halt behind the WQE that a fault names: the card stands still as if it had been paused, until it is told to go on."""
    left = load(hca + CTL_HALT_COUNT)
    if left != 0:
        store(hca + CTL_HALT_COUNT, left - 1)
        if left == 1:
            store_release(hca + CTL_PAUSED, 1)
    return 0


@device
def visit(hca: int, qp: int, work: int) -> int:
    """Give a QP its turn; return whether it had something to do."""
    state = state_of(qp)
    if state != RTS and state != ERR:
        return 0
    busy = take_doorbell(qp)
    if RECEIVES and state == ERR:
        busy |= flush_receives(hca, qp)
    if load(qp + QP_CONSUMER) == load(qp + QP_PRODUCER) and load(qp + QP_HELD) == 0:
        return busy
    if load(qp + QP_STALLED_UNTIL) > load(load(hca + CTL_SWEEPS)):
        if not RECEIVES or load(qp + QP_STALLED_UNTIL) != NAKED:
            return 1
        if state == RTS and still_not_ready(hca, qp) != 0:
            return busy
        store(qp + QP_STALLED_UNTIL, 0)
    if load(qp + QP_HELD) != 0:
        release_held(hca, qp)
    for _ in range(WQES_PER_VISIT):
        if load(qp + QP_CONSUMER) == load(qp + QP_PRODUCER) or load(qp + QP_HELD) != 0:
            break
        if load_acquire(hca + CTL_PAUSED) != 0:
            break
        state = state_of(qp)
        if state == RTS:
            if random(hca) < load(hca + CTL_CHAOS):
                stall(hca, qp)
                break
            if process(hca, qp, work, FETCH) != 0:
                break
            count_down(hca)
        elif state == ERR:
            process(hca, qp, work, FLUSH)
        else:
            break
    return 1


def _make(stamp: int) -> Callable[[int], int]:
    def loop(hca: int) -> int:
        """Run until CTL_STOP; a pass begins with its sweep, on which the firmware's grace periods rest (tables)."""
        idle_turns = 0
        while load_acquire(hca + CTL_STOP) == 0:
            add(load(hca + CTL_SWEEPS), 1)
            busy = 0
            if load_acquire(hca + CTL_PAUSED) == 0:
                qps, work = load(hca + CTL_QPS), load(hca + CTL_WORK)
                for row in range(load_acquire(hca + CTL_QP_LIMIT)):
                    busy |= visit(hca, qps + row * QP_ROW, work)
            idle_turns = 0 if busy else idle_turns + 1
            idle(idle_turns)
        return stamp

    return loop


#: run(address of the control record): returns when it is told to stop. On a GPU it is a kernel that runs (block.py).
run: Any = kernel(_make, *SOURCES) if SIMULATOR else None
