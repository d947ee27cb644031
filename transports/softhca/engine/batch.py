"""What single threads of the cuda engine's CTAs do: begin passes and visits, check a WQE of a batch, perform one, account for a batch."""

from pgas.base.backend import SIMULATOR
from pgas.kernels.compiler import primitive
from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.wqe import CTRL_FM_CE_SE, CTRL_QPN_DS, DS_MASK, WQEBB_SHIFT
from pgas.transports.softhca.engine import ops
from pgas.transports.softhca.engine.completer import count_cqes
from pgas.transports.softhca.engine.ops import for_kernel, load_u8
from pgas.transports.softhca.engine.pipeline import check, process
from pgas.transports.softhca.engine.requester import FM_MASK, begin, rung, take_doorbell
from pgas.transports.softhca.engine.states import ALONE, CHECK_CONTROL, COMPLETE, EXECUTE_DUMP, EXECUTE_READ, EXECUTE_WRITE, count, state_of
from pgas.transports.softhca.tables import (
    CQ_COLLAPSED,
    CTL_BEAT,
    CTL_PAUSED,
    CTL_QP_LIMIT,
    CTL_SERIAL,
    CTL_STOP,
    ERR,
    QP_CONSUMER,
    QP_CQ,
    QP_HELD,
    QP_MASK,
    QP_NBYTES,
    QP_PRODUCER,
    QP_READS,
    QP_WQES,
    QP_WRITES,
    RTS,
    WORK_CAPACITY,
    WORK_PAIRS,
    WORK_SEGMENTS,
    WORK_WQE,
    WORK_WQEBBS,
)

__all__ = [
    "account", "begin_pass", "classify", "fetch", "fetched", "load", "load_be32", "octoword", "one", "store", "waiting",
    "wants",
]  # fmt: skip

#: Data segments of a WQE that a thread's own work record has room for.
SEGMENTS = 4
RECORD_WORDS = WORK_PAIRS // 8 + 2 * SEGMENTS

#: Without a beat of the server for so many ns the kernel ends.
BEAT_NS = 20_000_000_000

#: What is at a WQEBB of a batch: a WQE that many threads can perform with others of its kind, or one thread with others; one with many
#: segments or too few WQEBBs, for which there is only the way of the cpu engine; the middle of a WQE; one that goes on behind the batch.
WRITES, READS, OTHER, TORN, NO_WQE, LATER = 1, 2, 3, 4, 5, 6

#: What begin_pass and waiting return besides numbers: the card is to end; what waits on this QP is for one thread.
STOPPED, ONE_BY_ONE = -1, -2


load, load_be32, store, add = map(for_kernel, (ops.load, ops.load_be32, ops.store, ops.add))

if SIMULATOR:

    def fetch(place: int, address: int) -> None:
        """Begin to copy 16 bytes into shared memory."""
        store(place, load(address))
        store(place + 8, load(address + 8))

    def fetched() -> None:
        """Wait until this thread's copies are there; a barrier shows them to the others."""

else:
    # Past L1, and a weak access: the doorbell was acquired, and what is behind it stays as it is until it completes.
    _COPY = "{ .reg .u64 t; cvta.to.shared.u64 t, $0; cp.async.cg.shared.global [t], [$1], 16; }"
    fetch = primitive("fetch", "void(i64, i64)", _COPY, None)
    fetched = primitive("fetched", "void()", "cp.async.wait_all;", None)


@device
def begin_pass(hca: int, worker: int, beat: int, now: int) -> int:
    """Begin a pass; return how many QP rows there are to look at, STOPPED at the end of the card, or of the server.

    hca: a copy of the control record; beat: address of the last beat seen, and of its time.
    """
    if load(hca + CTL_STOP) != 0:
        return STOPPED
    if load(hca + CTL_BEAT) != load(beat):
        store(beat, load(hca + CTL_BEAT))
        store(beat + 8, now)
    if now - load(beat + 8) > BEAT_NS:
        return STOPPED
    if load(hca + CTL_PAUSED) != 0 or (load(hca + CTL_SERIAL) != 0 and worker != 0):
        return 0
    return load(hca + CTL_QP_LIMIT)


@device
def wants(qp: int) -> int:
    """Whether a QP may have something to do."""
    state = state_of(qp)
    if state != RTS and state != ERR:
        return 0
    if load(qp + QP_CONSUMER) != load(qp + QP_PRODUCER) or load(qp + QP_HELD) != 0:
        return 1
    return 1 if rung(qp) != 0 else 0


@device
def waiting(hca: int, qp: int, batch: int) -> int:
    """Return how many WQEBBs the CTA has to do together, or ONE_BY_ONE; takes the doorbell if fewer than a batch are known.

    hca, qp: the copies.
    """
    if load(hca + CTL_SERIAL) != 0 or load(load(qp + QP_CQ) + CQ_COLLAPSED) == 0 or load(qp + QP_HELD) != 0:
        return ONE_BY_ONE
    known = load(qp + QP_PRODUCER) - load(qp + QP_CONSUMER)
    if known < batch:
        take_doorbell(qp)
        known = load(qp + QP_PRODUCER) - load(qp + QP_CONSUMER)
    state = state_of(qp)
    if state == ERR or known > load(qp + QP_MASK) + 1:
        return ONE_BY_ONE
    return known if state == RTS else 0


@device
def classify(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Check a staged WQE; return whether it can be performed with others of its class."""
    if load_be32(wqe + CTRL_QPN_DS) & DS_MASK == 0:
        return TORN  # what fetch refuses
    store(work + WORK_WQE, wqe)
    store(work + WORK_CAPACITY, SEGMENTS)
    begin(work, index)
    state = check(hca, qp, work, CHECK_CONTROL)
    if load_u8(wqe + CTRL_FM_CE_SE) & FM_MASK != 0 and state in (EXECUTE_WRITE, EXECUTE_READ, EXECUTE_DUMP, COMPLETE):
        return OTHER  # a fence: after those before it, as one thread does them
    if state == EXECUTE_WRITE:
        return WRITES
    if state == EXECUTE_READ:
        return READS if load(work + WORK_SEGMENTS) == 1 else TORN
    if state in (COMPLETE, EXECUTE_DUMP):
        store(work + WORK_SEGMENTS, 0)  # nothing moves: a DUMP has data, but no remote address
        return WRITES
    return TORN if state == ALONE else OTHER


@device
def one(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Perform a staged WQE by one thread, from the checks on, as an earlier one may have changed what they say; return whether to go on."""
    if state_of(qp) != RTS:
        return 0
    copied = load(work + WORK_WQE)
    store(work + WORK_WQE, wqe)
    store(work + WORK_WQEBBS, max(1, begin(work, index)))
    process(hca, qp, work, check(hca, qp, work, CHECK_CONTROL))
    store(work + WORK_WQE, copied)
    return 1


@device
def octoword(ring: int, mask: int, first: int, number: int) -> int:
    """Return the address of an octoword of the WQEBBs from index first on."""
    return ring + (((first + (number >> 2)) & mask) << WQEBB_SHIFT) + ((number & 3) << 4)


@device
def account(qp: int, wqes: int, writes: int, reads: int, nbytes: int, signalled: int, wqebbs: int) -> int:
    """Count what the CTA has done, and all CQEs that were asked for; qp: the copy."""
    count(qp + QP_WQES, wqes)
    count(qp + QP_WRITES, writes)
    count(qp + QP_READS, reads)
    count(qp + QP_NBYTES, nbytes)
    count_cqes(qp, load(qp + QP_CQ), signalled)
    return store(qp + QP_CONSUMER, load(qp + QP_CONSUMER) + wqebbs)
