"""The cuda engine: a persistent kernel whose CTAs are the workers. The states of a WQE are in the modules of the cpu engine.

A CTA polls its QPs, one thread per QP. It takes a doorbell, stages the WQEs in shared memory, and checks each in its own thread. Meanwhile
the next ones are being fetched, because that takes a microsecond or more from the memory of another GPU or the host. Then it executes runs
of WQEs of one class (batch.py, runs.py). All threads execute WRITEs and READs; each atomic is executed by its own thread, one after
another; one thread executes everything else, like the cpu engine: errors, and WQEs with a fence or many segments.

A poll bypasses L1, except for QP_WORKER (find). A visit to a QP begins with an acquiring access to its register and a barrier, so that
later loads do not read stale lines of L1. During a visit, the CTA works on copies of the QP's row, its CQ's row, and the control record in
shared memory (tables: every field has one writer). It writes its counts back before each CQE, at the end, and before and after the work of
a single thread.
"""

from typing import Any

from pgas.kernels.compiler import address_of, cuda, i64, ptx, types, u32, u64
from pgas.kernels.compiler import device as inlined
from pgas.transports.hostloop.compiled import keep
from pgas.transports.mlx5 import wqe as w
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.cuda import batch, runs
from pgas.transports.softhca.cuda.batch import RECORD_WORDS, load, load_be32, load_shared, store
from pgas.transports.softhca.cuda.lanes import FULL, reached
from pgas.transports.softhca.cuda.runs import TALLIES, THREADS, WARPS, WORDS, Cta
from pgas.transports.softhca.engine import SOURCES, states
from pgas.transports.softhca.engine.completer import place_cqe
from pgas.transports.softhca.engine.late import expire
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.loop import visit as visit_alone
from pgas.transports.softhca.engine.ops import COMPILED, DELAYS_DATA, RECEIVES, compile_now, copy_few, idle
from pgas.transports.softhca.engine.pipeline import process
from pgas.transports.softhca.engine.requester import collect, credit, recorded, take_doorbell
from pgas.transports.softhca.engine.responder import read_segments, update, write_segments
from pgas.transports.softhca.engine.trace import note_fetched

__all__ = ["COMPILED", "SIGNATURE", "THREADS", "loop"]

#: Maximum number of batches of a QP per visit.
BATCHES_PER_VISIT = 16

#: Numbers of words in the copies of the control record, of a QP's row, and of its CQ's.
CONTROL_WORDS, QP_WORDS, CQ_WORDS = (len(record.names) for record in (t.CONTROL, t.QP, t.CQ))  # type: ignore[arg-type]
COPY_WORDS = CONTROL_WORDS + QP_WORDS + CQ_WORDS

#: Number of passes without work of which one begins with an acquire.
REFRESH = 64

#: Words of two batches of WQEs, of what each warp found of them, and of the QPs that one pass finds.
STAGE_WORDS, ENTRY_WORDS, FOUND_WORDS = 2 * THREADS * w.WQEBB // 8, 33 * WARPS, runs.FOUND * min(THREADS, 128)

SIGNATURE = (types.int64,)


@inlined
def begin(cta: Any, hca: Any, sweep: Any, beat: Any, ordered: Any) -> Any:
    """Begin a pass; return the number of QP rows to visit, or STOPPED.

    ordered: whether the sweep releases the stores of the previous pass, and later loads do not find stale data in L1.

    The sweep's update and the loads of the control record are in flight together. The rows of QPs are read after both (tables).
    """
    passed = i64(0)
    if cta.me == 0:
        passed = batch.add(sweep, 1) if ordered else batch.add_relaxed(sweep, 1)
    for k in range(cta.me, CONTROL_WORDS, THREADS):
        store(cta.control + 8 * k, load_shared(hca + 8 * k))
    if cta.me == 0:
        cta.words[runs.PASSED] = passed  # waits for the update, so that the rows are read after it
    cuda.syncthreads()
    if cta.me == 0:
        cta.words[runs.LIMIT] = batch.begin_pass(cta.control, i64(cuda.blockIdx.x), beat, i64(ptx.globaltimer()))
        cta.tally[runs.READY] = 0
        if DELAYS_DATA and cuda.blockIdx.x == 0 and load(cta.control + t.CTL_LATE_ROWS) != 0:
            expire(hca)
    cuda.syncthreads()
    return cta.words[runs.LIMIT]


@inlined
def find(cta: Any, qps: Any, limit: Any, first: Any) -> Any:
    """Find QPs with work among ``limit`` rows, starting at row first; return the number of those in ``found``."""
    worker = i64(-1) if load(cta.control + t.CTL_SERIAL) != 0 else i64(cuda.blockIdx.x)
    for k in range(cta.me, limit, THREADS):
        row = k + first
        if row >= limit:
            row -= limit
        qp = qps + row * t.QP_ROW
        if worker >= 0 and load(qp + t.QP_WORKER) != worker:  # from L1, because all CTAs poll all rows; wants() bypasses L1
            continue
        state, cq = load_shared(qp + t.QP_STATE), load_shared(qp + t.QP_CQ)
        register, on_host = load_shared(qp + t.QP_REGISTER), load_shared(qp + t.QP_ON_HOST)
        if batch.wants(qp, state, worker) != 0:
            at = runs.FOUND * i64(cuda.atomic.add(cta.tally, runs.READY, 1))
            if at < len(cta.found):
                cta.found[at + runs.QP_AT], cta.found[at + runs.CQ_AT] = qp, cq
                cta.found[at + runs.REGISTER_AT], cta.found[at + runs.ON_HOST] = register, on_host
    cuda.syncthreads()
    return min(i64(cta.tally[runs.READY]), len(cta.found) // runs.FOUND)


@inlined
def copy_rows(cta: Any, qp: Any, cq: Any) -> None:
    """Copy the rows of a QP and its CQ; staged WQEs are discarded. A barrier must follow."""
    for k in range(cta.me, QP_WORDS, THREADS):
        store(cta.pair + 8 * k, load_shared(qp + 8 * k))
    for k in range(cta.me, CQ_WORDS, THREADS):
        store(cta.pair + 8 * (QP_WORDS + k), load_shared(cq + 8 * k))
    if cta.me == 0:
        cta.words[runs.AHEAD] = -1


@inlined
def bring(cta: Any, place: Any, first: Any, count: Any) -> None:
    """Start copying WQEBBs of the visited QP, starting at index first, to shared memory."""
    ring, mask = load(cta.pair + t.QP_SQ), load(cta.pair + t.QP_MASK)
    for k in range(cta.me, count * (w.WQEBB // 16), THREADS):
        batch.fetch(place + 16 * k, batch.octoword(ring, mask, first, k))


@inlined
def stage(cta: Any, word: Any) -> Any:
    """Stage the pending WQEBBs up to the doorbell ``word``, at most a batch, and begin to fetch the next batch.

    Meanwhile the doorbell record is read; then words[RUNG] has the number of pending ones. Return the number of staged ones.
    """
    half, first, most = THREADS * w.WQEBB // 8, load(cta.pair + t.QP_CONSUMER), batch.expected(cta.pair, word)
    n, base = min(most, THREADS), cta.words[runs.BASE]
    if cta.me == THREADS - 1 and word != 0:
        cta.words[runs.RECORD] = recorded(cta.pair)
    if cta.words[runs.AHEAD] == first:
        base = half - base
    else:
        bring(cta, cta.stage_at + 8 * base, first, n)
    batch.fetched()
    if most - n >= THREADS:
        bring(cta, cta.stage_at + 8 * (half - base), first + n, THREADS)
    cuda.syncthreads()
    if cta.me == 0:
        cta.words[runs.BASE], cta.words[runs.AHEAD] = base, first + n if most - n >= THREADS else -1
        store(cta.pair + t.QP_CQ, cta.pair + 8 * QP_WORDS)
        credit(cta.pair, word, cta.words[runs.RECORD])
        cta.words[runs.RUNG] = batch.waiting(cta.control, cta.pair)
    cuda.syncthreads()
    return n


@inlined
def beginning(cta: Any, wqe: Any, n: Any, entries: Any) -> Any:
    """Return whether a WQE begins in the thread's WQEBB, and its number of WQEBBs."""
    blocks = i64(1)
    if cta.me < n:
        ds = load_be32(wqe + w.CTRL_QPN_DS) & w.DS_MASK
        blocks = max(i64(1), (ds + w.DS_PER_WQEBB - 1) // w.DS_PER_WQEBB)
    begins = cta.me < n
    if cuda.syncthreads_and(1 if blocks == 1 else 0) == 0:
        # The WQEBBs that begin a WQE are those reached from the first one. Each warp starts where the previous warp's last WQE ends.
        mask_of, after = reached(u64(cta.lane), u64(blocks))
        entries[33 * cta.warp + cta.lane] = i64(after)
        cuda.syncthreads()
        if cta.me == 0:
            at = i64(0)
            for k in range(WARPS):
                entries[33 * k + 32] = at
                at = i64(entries[33 * k + at]) - 32  # a WQE has at most 16 WQEBBs
        cuda.syncthreads()
        from_entry = i64(ptx.shfl_u64(FULL, mask_of, u32(entries[33 * cta.warp + 32])))
        begins = begins and (from_entry >> cta.lane) & 1 != 0
    return begins, blocks


@inlined
def class_of(cta: Any, begins: Any, blocks: Any, wqe: Any, first: Any, n: Any, rung: Any) -> Any:
    """Check the thread's WQE, and return the class of its WQEBB."""
    kind = i64(batch.NO_WQE)
    if begins:
        kind = i64(batch.LATER)
        if cta.me + blocks <= n:
            kind = batch.classify(cta.control, cta.pair, cta.mine, wqe, first + cta.me)
        elif n == rung:
            kind = i64(batch.TORN)
    return kind


@inlined
def alone(cta: Any, hca: Any, qp: Any, work: Any, first: Any, at: Any, n: Any) -> None:
    """Execute a WQE, number ``at`` of the batch, by one thread, and those like it that follow."""
    if cta.me == 0:
        staged = cta.stage_at + 8 * cta.words[runs.BASE]
        if cta.kinds[at] != batch.OTHER:
            process(hca, qp, work, states.FETCH)
        while at < n and (cta.kinds[at] == batch.NO_WQE or cta.kinds[at] == batch.OTHER):
            if cta.kinds[at] == batch.OTHER and batch.one(hca, qp, work, staged + (at << w.WQEBB_SHIFT), first + at) == 0:
                break
            at += 1
        cta.words[runs.DIRTY] = 1
    cuda.syncthreads()


@inlined
def visit(cta: Any, hca: Any, visited: Any, work: Any, entries: Any) -> None:
    """Execute the pending WQEs of a QP, in batches."""
    stale = True  # whether the rows must be copied
    runs.clear(cta)
    for _ in range(BATCHES_PER_VISIT):
        if cta.me == THREADS - 1:  # because this thread copies nothing on a GPU
            take = not RECEIVES and (stale or batch.pending(cta.pair) < THREADS)
            cta.words[runs.WORD] = collect(cta.found[visited + runs.REGISTER_AT], cta.found[visited + runs.ON_HOST]) if take else 0
        if stale:
            copy_rows(cta, cta.found[visited + runs.QP_AT], cta.found[visited + runs.CQ_AT])
        cuda.syncthreads()
        if RECEIVES:  # then a QP may have several registers, or share one
            if cta.me == 0:
                take_doorbell(hca, cta.pair)
            cuda.syncthreads()
        stale, n = False, stage(cta, cta.words[runs.WORD])
        rung, first = cta.words[runs.RUNG], load(cta.pair + t.QP_CONSUMER)
        if rung <= 0:
            break
        n = min(n, rung)
        wqe = cta.stage_at + 8 * cta.words[runs.BASE] + (cta.me << w.WQEBB_SHIFT)
        begins, blocks = beginning(cta, wqe, n, entries)
        kind = class_of(cta, begins, blocks, wqe, first, n, rung)
        cta.kinds[cta.me] = kind
        cuda.syncthreads()
        at = i64(0)
        while at < n and cta.kinds[at] < batch.OTHER:
            at = runs.execute(cta, hca, visited, first, at, n, kind, blocks)
        if at < n and cta.kinds[at] != batch.LATER:
            runs.give_back(cta, visited)
            cuda.syncthreads()
            alone(cta, hca, cta.found[visited + runs.QP_AT], work, first, at, n)
            stale = True
    if not stale:
        runs.give_back(cta, visited)
        cuda.syncthreads()
        if cta.words[runs.RUNG] == batch.ONE_BY_ONE and cta.me == 0:
            visit_alone(hca, cta.found[visited + runs.QP_AT], work)
            cta.words[runs.DIRTY] = 1
        cuda.syncthreads()


@cuda.jit(**COMPILED)
def loop(hca: Any) -> None:
    """Execute WQEs until the software NIC stops. hca: address of the control record."""
    hca = i64(hca)
    # The sizes of arrays are global names, because Numba does not accept a module's attribute there.
    words = cuda.shared.array(WORDS, types.int64)
    tally = cuda.shared.array(TALLIES, types.int32)
    copies = cuda.shared.array(COPY_WORDS, types.int64)
    found = cuda.shared.array(FOUND_WORDS, types.int64)
    kinds = cuda.shared.array(THREADS, types.int32)
    entries = cuda.shared.array(ENTRY_WORDS, types.int32)
    staged = cuda.shared.array(STAGE_WORDS, types.int64, alignment=16)  # a batch and the next one
    beat = cuda.local.array(2, types.int64)
    own = cuda.local.array(RECORD_WORDS, types.int64)
    me, beat_at, control = i64(cuda.threadIdx.x), i64(address_of(beat)), i64(address_of(copies))
    pair, stage_at, mine = control + 8 * CONTROL_WORDS, i64(address_of(staged)), i64(address_of(own))
    cta = Cta(me, me & 31, me >> 5, words, found, tally, kinds, staged, stage_at, control, pair, mine)
    qps, worker = load(hca + t.CTL_QPS), i64(cuda.blockIdx.x)
    work, sweep = load(hca + t.CTL_WORK) + worker * t.WORK_BYTES, load(hca + t.CTL_SWEEPS) + worker * t.SWEEP_ROW
    store(beat_at, load(hca + t.CTL_BEAT))
    store(beat_at + 8, i64(ptx.globaltimer()))
    if me == 0:
        words[runs.BASE] = words[runs.DIRTY] = words[runs.RECORD] = 0
    turns = first = ready = i64(0)
    while True:
        limit = begin(cta, hca, sweep, beat_at, ready != 0 or turns % REFRESH == 0)
        if limit == batch.STOPPED:
            break
        first = first + 1 if first + 1 < limit else i64(0)  # another QP is the first in each pass
        ready = find(cta, qps, limit, first)
        for r in range(ready):
            visit(cta, hca, runs.FOUND * r, work, entries)
        turns = i64(0) if ready != 0 else turns + 1
        if me == 0 and ready == 0:
            idle(turns)
            cuda.nanosleep(20)  # lets another thread run in the simulator


compile_now(
    (
        batch.account, batch.add, batch.add_relaxed, batch.begin_pass, batch.classify, batch.expected, batch.fence, batch.octoword,
        batch.one, batch.pending, batch.waiting, batch.wants, admit, copy_few, credit, expire, idle, note_fetched, place_cqe, process,
        read_segments, take_doorbell, update, visit_alone, write_segments,
    )
)  # fmt: skip
keep(loop, *SOURCES, __file__.rpartition("/")[0])
