"""The states of a WQE as numbers, and functions shared by all states.

A state is a function in requester.py, responder.py, completer.py, receiver.py, or late.py. Its arguments are the addresses of the control
record, the QP's row, and the work record (tables.WORK_*); it returns the next state. pipeline.py has the table of states.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import load, load_published, store

(
    # requester
    FETCH,
    CHECK_CONTROL,
    CHECK_FAULT,
    CHECK_SEGMENTS,
    CHECK_LKEY,
    CHECK_LENGTH,
    # responder, the peer's QP
    CHECK_CONNECTION,
    CHECK_OP_VALID,
    CHECK_RKEY,
    CHECK_ALIGNMENT,
    CHECK_RECEIVE,
    EXECUTE_WRITE,
    EXECUTE_READ,
    EXECUTE_ATOMIC,
    EXECUTE_RECEIVE,
    # neither: reads this PE's memory
    EXECUTE_DUMP,
    # completer
    COMPLETE,
    NOT_READY,
    RESPONDER_ERROR,
    ERROR,
    FLUSH,
    # final states
    DONE,
    WAITING,  # for a receive WQE of the peer; the WQE is retried
    ALONE,  # the WQE has more data segments than fit into this work record (cuda engine), but not more than the worker's own
) = range(24)


@device
def fail(work: int, syndrome: int, vendor: int) -> int:
    """Fail a WQE with an error of the requester."""
    store(work + t.WORK_SYNDROME, syndrome)
    store(work + t.WORK_VENDOR, vendor)
    return ERROR


@device
def refuse(work: int, syndrome: int, vendor: int) -> int:
    """Fail a WQE with an error of class C: the responder's QP also enters the error state (rxe_resp.c, do_class_ac_error)."""
    store(work + t.WORK_SYNDROME, syndrome)
    store(work + t.WORK_VENDOR, vendor)
    return RESPONDER_ERROR


@device
def state_of(qp: int) -> int:
    """Return a QP's state."""
    state = load_published(qp + t.QP_STATE)
    if state in (t.RTS, t.RTR) and load_published(qp + t.QP_BROKEN) != 0:
        return t.ERR
    return state


@device
def count(address: int, value: int) -> int:
    """Add to a counter of the engine."""
    return store(address, load(address) + value)


@device
def random(hca: int) -> int:
    """Return 16 random bits (Knuth's MMIX generator, whose upper bits are good)."""
    state = load(hca + t.CTL_RANDOM) * 6364136223846793005 + 1442695040888963407
    store(hca + t.CTL_RANDOM, state)
    return (state >> 33) & 0xFFFF
