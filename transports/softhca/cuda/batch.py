"""Steps of single threads in the cuda engine: begin passes and visits, check or execute a WQE, and account for a batch."""

from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.cuda.usual_wqes import UNUSUAL, check_usual
from pgas.transports.softhca.engine import ops, states
from pgas.transports.softhca.engine.completer import count_cqes
from pgas.transports.softhca.engine.ops import fetch, fetched, for_kernel, load_u8
from pgas.transports.softhca.engine.pipeline import check, process
from pgas.transports.softhca.engine.requester import ahead_by, begin, rung
from pgas.transports.softhca.engine.states import count, state_of
from pgas.transports.softhca.engine.trace import note_fetched

__all__ = [
    "account", "add", "add_relaxed", "begin_pass", "classify", "expected", "fence", "fetch", "fetched", "load", "load_be32",
    "load_shared", "octoword", "one", "pending", "store", "waiting", "wants",
]  # fmt: skip

#: Maximum number of data segments of a WQE in a thread's own work record.
SEGMENTS = 4
RECORD_WORDS = t.WORK_PAIRS // 8 + 2 * SEGMENTS

#: Classes of WQEBBs in a batch. WRITES, READS, ATOMICS: the CTA executes these WQEs. OTHER: one thread does: errors and fences. TORN: one
#: thread takes the WQE from the ring, because it has more segments than a thread's record, or WQEBBs without a doorbell. NO_WQE: the middle
#: of a WQE. LATER: a WQE that continues after the batch.
WRITES, READS, ATOMICS, OTHER, TORN, NO_WQE, LATER = range(1, 8)

#: States after check() that execute or end a WQE without an error.
EXECUTED = (states.EXECUTE_WRITE, states.EXECUTE_READ, states.EXECUTE_ATOMIC, states.EXECUTE_DUMP, states.COMPLETE)

#: Special results of begin_pass() and waiting(): the card must end; the pending WQEs are for one thread.
STOPPED, ONE_BY_ONE = -1, -2


load, load_be32, load_shared = map(for_kernel, (ops.load, ops.load_be32, ops.load_shared))
store, add, add_relaxed, fence = map(for_kernel, (ops.store, ops.add, ops.add_relaxed, ops.fence))


@device
def begin_pass(hca: int, worker: int, beat: int, now: int) -> int:
    """Begin a pass; return the number of QP rows to visit, or STOPPED if the software NIC or the server has ended.

    hca: a copy of the control record; beat: address of the last seen beat and its time.
    """
    if load(hca + t.CTL_STOP) != 0:
        return STOPPED
    if load(hca + t.CTL_BEAT) != load(beat):
        store(beat, load(hca + t.CTL_BEAT))
        store(beat + 8, now)
    if now - load(beat + 8) > t.BEAT_NS:
        return STOPPED
    if load(hca + t.CTL_PAUSED) != 0 or (load(hca + t.CTL_SERIAL) != 0 and worker != 0):
        return 0
    return load(hca + t.CTL_QP_LIMIT)


@device
def wants(qp: int, state: int, worker: int) -> int:
    """Whether a QP may have work for a worker (-1: for any). The loads of its fields are in flight together; that of the register follows.

    state: its QP_STATE, loaded first, because the firmware publishes it last.
    """
    broken, served_by = load_shared(qp + t.QP_BROKEN), load_shared(qp + t.QP_WORKER)
    consumer, producer, held = load_shared(qp + t.QP_CONSUMER), load_shared(qp + t.QP_PRODUCER), load_shared(qp + t.QP_HELD)
    if worker >= 0 and served_by != worker:
        return 0
    if state != t.RTS and state != t.ERR and (state != t.RTR or broken == 0):
        return 0
    if consumer != producer or held != 0:
        return 1
    return 1 if rung(qp) != 0 else 0


@device
def pending(qp: int) -> int:
    """Return the number of pending WQEBBs."""
    return load(qp + t.QP_PRODUCER) - load(qp + t.QP_CONSUMER)


@device
def expected(qp: int, word: int) -> int:
    """Return the number of WQEBBs that will be pending when a doorbell has been credited; its record may have more."""
    return pending(qp) + ahead_by(qp, word)


@device
def waiting(hca: int, qp: int) -> int:
    """Return the number of pending WQEBBs for the CTA, or ONE_BY_ONE. hca, qp: the copies."""
    if load(hca + t.CTL_SERIAL) != 0 or load(load(qp + t.QP_CQ) + t.CQ_COLLAPSED) == 0 or load(qp + t.QP_HELD) != 0:
        return ONE_BY_ONE
    state = state_of(qp)
    if state == t.ERR or pending(qp) > load(qp + t.QP_MASK) + 1:
        return ONE_BY_ONE
    return pending(qp) if state == t.RTS else 0


@device
def classify(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Check a staged WQE; return its class."""
    if load_be32(wqe + w.CTRL_QPN_DS) & w.DS_MASK == 0:
        return TORN  # like requester.fetch
    store(work + t.WORK_WQE, wqe)
    state = check_usual(hca, qp, work, wqe, index)
    if state == UNUSUAL:
        store(work + t.WORK_CAPACITY, SEGMENTS)
        begin(work, index)
        state = check(hca, qp, work, states.CHECK_CONTROL)
        if load_u8(wqe + w.CTRL_FM_CE_SE) & w.FM_MASK != 0 and state in EXECUTED:
            return OTHER  # a fence: one thread executes it after the earlier ones
    if state == states.EXECUTE_WRITE:
        return WRITES
    if state == states.EXECUTE_READ:
        return READS if load(work + t.WORK_SEGMENTS) == 1 else TORN
    if state == states.EXECUTE_ATOMIC:
        return ATOMICS
    if state in (states.COMPLETE, states.EXECUTE_DUMP):
        store(work + t.WORK_SEGMENTS, 0)  # nothing is copied, because a DUMP has data segments but no remote address
        return WRITES
    return TORN if state == states.ALONE else OTHER


@device
def one(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Execute a staged WQE by one thread; return whether to continue. It is checked again, because earlier WQEs may change the result."""
    if state_of(qp) != t.RTS:
        return 0
    note_fetched(hca, qp, index)
    copied = load(work + t.WORK_WQE)
    store(work + t.WORK_WQE, wqe)
    store(work + t.WORK_WQEBBS, max(1, begin(work, index)))
    process(hca, qp, work, check(hca, qp, work, states.CHECK_CONTROL))
    store(work + t.WORK_WQE, copied)
    return 1


@device
def octoword(ring: int, mask: int, first: int, number: int) -> int:
    """Return the address of an octoword of the WQEBBs from index first on."""
    return ring + (((first + (number >> 2)) & mask) << w.WQEBB_SHIFT) + ((number & 3) << 4)


@device
def account(qp: int, wqes: int, writes: int, reads: int, atomics: int, nbytes: int, signalled: int, wqebbs: int) -> int:
    """Count the executed WQEs of the CTA and all of their CQEs; qp: the copy."""
    count(qp + t.QP_WQES, wqes)
    count(qp + t.QP_WRITES, writes)
    count(qp + t.QP_READS, reads)
    count(qp + t.QP_ATOMICS, atomics)
    count(qp + t.QP_NBYTES, nbytes)
    count_cqes(qp, load(qp + t.QP_CQ), signalled)
    return store(qp + t.QP_CONSUMER, load(qp + t.QP_CONSUMER) + wqebbs)
