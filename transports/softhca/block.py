"""The cuda engine: a kernel that never ends, whose CTAs are the workers; what happens to a WQE is in the modules of the cpu engine.

A CTA takes a doorbell, stages the WQEs behind it in shared memory, and checks each in a thread of its own. The longest run of WRITEs (or
of READs) from the first one on is performed by all threads, small ones by their own, larger ones by a warp or the whole CTA; one CQE ends
it, the last that was asked for: of a collapsed CQ nobody can see the others. What is neither, an atomic, an error, a WQE with many
segments, is one thread's, as in the cpu engine. So within a QP everything keeps its order:

* a run ends before a WQE that writes what an earlier one of it does;
* a run follows the one before it after a barrier, its READs therefore find what earlier WRITEs wrote;
* a CQE and an atomic come after a barrier and a fence.sys (completer.place_cqe, ops.compare_swap), which is cumulative.

A pass begins with an acquiring update by the leader and a barrier, a visit with the acquire of the doorbell: what a thread then loads is
not older, whatever its L1 held. While a QP is visited the CTA works on copies of its row, its CQ's and the control record in shared memory
(tables: every field has one writer); what it counted goes back before each CQE and at the end, and around what one thread does alone.
"""

import functools
import inspect
from typing import Any

from numba import cuda
from numba.cuda import types

from pgas.backend import SIMULATOR
from pgas.kernels import ptx
from pgas.kernels.compiler import address_of, i64, primitive, u32, u64
from pgas.transports.mlx5.wqe import CTRL_QPN_DS, DS_MASK, DS_PER_WQEBB, WQEBB, WQEBB_SHIFT
from pgas.transports.softhca import ops
from pgas.transports.softhca.compiled import device, keep
from pgas.transports.softhca.completer import ALWAYS, REQ, count_cqes, place_cqe
from pgas.transports.softhca.engine import check, process, visit
from pgas.transports.softhca.lanes import NEVER, apart, copy_together, reached
from pgas.transports.softhca.limits import admit
from pgas.transports.softhca.ops import copy, for_kernel, idle
from pgas.transports.softhca.pipeline import ALONE, CHECK_CONTROL, COMPLETE, EXECUTE_READ, EXECUTE_WRITE, FETCH, count, state_of
from pgas.transports.softhca.requester import READ, WRITE, begin, take_doorbell
from pgas.transports.softhca.responder import execute_read, execute_write
from pgas.transports.softhca.tables import (
    CONTROL,
    CQ,
    CQ_COLLAPSED,
    CQ_CQES,
    CQ_PRODUCER,
    CTL_BEAT,
    CTL_BYTE_COST,
    CTL_PAUSED,
    CTL_QP_LIMIT,
    CTL_QPS,
    CTL_SERIAL,
    CTL_STOP,
    CTL_SWEEPS,
    CTL_WORK,
    CTL_WORKERS,
    CTL_WQE_COST,
    ERR,
    QP,
    QP_CONSUMER,
    QP_CQ,
    QP_HELD,
    QP_MASK,
    QP_NBYTES,
    QP_PRODUCER,
    QP_READS,
    QP_REGISTER,
    QP_ROW,
    QP_SQ,
    QP_STALE_RECORDS,
    QP_WQES,
    QP_WRITES,
    RTS,
    SWEEP_ROW,
    WORK_BYTES,
    WORK_CAPACITY,
    WORK_CE,
    WORK_NBYTES,
    WORK_OPCODE,
    WORK_PAIRS,
    WORK_REMOTE,
    WORK_SEGMENTS,
    WORK_WQE,
    WORK_WQEBBS,
)  # fmt: skip

__all__ = ["SIGNATURE", "kernel"]

#: Data segments of a WQE that a thread's own work record has room for.
SEGMENTS = 4
RECORD_WORDS = WORK_PAIRS // 8 + 2 * SEGMENTS

#: A thread copies up to so many bytes alone, a warp up to so many.
ALONE_BYTES, WARP_BYTES = 64, 16384

#: Without a beat of the server for so many ns the kernel ends.
BEAT_NS = 20_000_000_000

#: Batches of a QP before the next one gets its turn.
BATCHES_PER_VISIT = 16

#: Words that the leader tells the CTA: see the loop.
LIMIT, READY, RUNG, CLASS, STOP_AT, LISTED, LAST, SIGNALLED, WQES, WRITTEN, READ_, BYTES, WORDS = range(13)

#: The copies: words of the control record, of a QP's row and of its CQ's.
CONTROL_WORDS, QP_WORDS, CQ_WORDS = (len(record.names) for record in (CONTROL, QP, CQ))  # type: ignore[arg-type]

#: Fields of a QP's row that the worker which serves it writes, and nobody else.
OWN = QP_CONSUMER
OWN_WORDS = (QP_STALE_RECORDS - QP_CONSUMER) // 8 + 1

FULL = u32(0xFFFF_FFFF)

SIGNATURE = (types.int64,)

#: What is at a WQEBB of a batch: a WQE that many threads can perform with others of its kind, or one thread with others; one with many
#: segments or too few WQEBBs, for which there is only the way of the cpu engine; the middle of a WQE; one that goes on behind the batch.
WRITES, READS, OTHER, TORN, NO_WQE, LATER = 1, 2, 3, 4, 5, 6

#: What begin_pass and waiting return besides numbers: the card is to end; what waits on this QP is for one thread.
STOPPED, ONE_BY_ONE = -1, -2


load, load_be32, load_shared, store, add = map(for_kernel, (ops.load, ops.load_be32, ops.load_shared, ops.store, ops.add))

if SIMULATOR:

    def load_pair(address: int) -> tuple[int, int]:
        """Load 16 bytes."""
        return load(address), load(address + 8)

else:
    load_pair = primitive("load_pair", "(i64, i64)(i64)", "ld.relaxed.sys.v2.u64 {$0, $1}, [$2];", None)


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
    return 1 if load_shared(load(qp + QP_REGISTER)) != 0 else 0


@device
def waiting(hca: int, qp: int, batch: int) -> int:
    """Return how many WQEBBs the CTA has to do together, or ONE_BY_ONE; takes the doorbell if fewer than a batch are known.

    hca, qp: the copies.
    """
    if load(hca + CTL_SERIAL) != 0 or load(load(qp + QP_CQ) + CQ_COLLAPSED) == 0 or load(qp + QP_HELD) != 0:
        return ONE_BY_ONE
    rung = load(qp + QP_PRODUCER) - load(qp + QP_CONSUMER)
    if rung < batch:
        take_doorbell(qp)
        rung = load(qp + QP_PRODUCER) - load(qp + QP_CONSUMER)
    state = state_of(qp)
    if state == ERR or rung > load(qp + QP_MASK) + 1:
        return ONE_BY_ONE
    return rung if state == RTS else 0


@device
def classify(hca: int, qp: int, work: int, wqe: int, index: int) -> int:
    """Check a staged WQE; return whether it can be performed with others of its class."""
    store(work + WORK_WQE, wqe)
    store(work + WORK_CAPACITY, SEGMENTS)
    begin(work, index)
    state = check(hca, qp, work, CHECK_CONTROL)
    if state == EXECUTE_WRITE:
        return WRITES
    if state == EXECUTE_READ:
        return READS if load(work + WORK_SEGMENTS) == 1 else TORN
    if state == COMPLETE:
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
    count_cqes(qp, signalled)
    return store(qp + QP_CONSUMER, load(qp + QP_CONSUMER) + wqebbs)


@functools.cache
def kernel(threads: int) -> Any:
    """Return the kernel ``loop(address of the control record)`` for CTAs of so many threads: a power of two, 32 at least."""
    warps = threads // 32
    stage_words, extent_words, entry_words = threads * WQEBB // 8, 2 * warps, 33 * warps
    copy_words, row_words = CONTROL_WORDS + QP_WORDS + CQ_WORDS, min(threads, 128)

    @cuda.jit
    def loop(hca):  # type: ignore[no-untyped-def]
        hca = i64(hca)
        words = cuda.shared.array(WORDS, types.int64)
        copies = cuda.shared.array(copy_words, types.int64)
        rows = cuda.shared.array(row_words, types.int32)
        lows = cuda.shared.array(threads, types.int64)
        highs = cuda.shared.array(threads, types.int64)
        extents = cuda.shared.array(extent_words, types.int64)
        kinds = cuda.shared.array(threads, types.int32)
        entries = cuda.shared.array(entry_words, types.int32)
        listed = cuda.shared.array(threads, types.int32)
        stage = cuda.shared.array(stage_words, types.int64)
        beat = cuda.local.array(2, types.int64)
        own = cuda.local.array(RECORD_WORDS, types.int64)
        stage_at, mine, beat_at = i64(address_of(stage)), i64(address_of(own)), i64(address_of(beat))
        control = i64(address_of(copies))
        pair = control + 8 * CONTROL_WORDS  # the QP in hand, and its CQ
        paired = pair + 8 * QP_WORDS
        me, worker = i64(cuda.threadIdx.x), i64(cuda.blockIdx.x)
        lane, warp = me & 31, me >> 5
        qps, workers = load(hca + CTL_QPS), load(hca + CTL_WORKERS)
        work, sweep = load(hca + CTL_WORK) + worker * WORK_BYTES, load(hca + CTL_SWEEPS) + worker * SWEEP_ROW
        store(beat_at, load(hca + CTL_BEAT))
        store(beat_at + 8, i64(ptx.globaltimer()))
        turns = i64(0)
        while True:
            if me == 0:
                add(sweep, 1)
            cuda.syncthreads()
            for k in range(me, CONTROL_WORDS, threads):
                copies[k] = load(hca + 8 * k)
            cuda.syncthreads()
            if me == 0:
                words[LIMIT] = begin_pass(control, worker, beat_at, i64(ptx.globaltimer()))
                words[READY] = 0
            cuda.syncthreads()
            limit = words[LIMIT]
            if limit == STOPPED:
                break
            limited = load(control + CTL_WQE_COST) | load(control + CTL_BYTE_COST) != 0
            step = i64(1) if load(control + CTL_SERIAL) != 0 else workers
            row = worker + me * step
            while row < limit:
                if wants(qps + row * QP_ROW) != 0:
                    place = cuda.atomic.add(words, READY, 1)
                    if place < row_words:
                        rows[place] = row
                row += step * threads
            cuda.syncthreads()
            ready = min(words[READY], row_words)
            for r in range(ready):
                qp = qps + i64(rows[r]) * QP_ROW
                cq = load(qp + QP_CQ)
                stale = True  # the copies are to be made
                for _ in range(BATCHES_PER_VISIT):
                    if stale:
                        for k in range(me, QP_WORDS, threads):
                            copies[CONTROL_WORDS + k] = load(qp + 8 * k)
                        for k in range(me, CQ_WORDS, threads):
                            copies[CONTROL_WORDS + QP_WORDS + k] = load(cq + 8 * k)
                        cuda.syncthreads()
                        stale = False
                    if me == 0:
                        store(pair + QP_CQ, paired)
                        words[RUNG] = waiting(control, pair, threads)
                        words[STOP_AT] = threads
                        for word in range(LISTED, WORDS):
                            words[word] = 0
                        words[LAST] = -1
                    cuda.syncthreads()
                    rung = words[RUNG]
                    if rung <= 0:
                        break
                    n = min(rung, threads)
                    first, ring, mask = load(pair + QP_CONSUMER), load(pair + QP_SQ), load(pair + QP_MASK)
                    # Octowords me, me + threads, ... of the batch: four loads in flight.
                    octowords = n * (WQEBB // 16)
                    a = b = c = d = (i64(0), i64(0))
                    if me < octowords:
                        a = load_pair(octoword(ring, mask, first, me))
                    if me + threads < octowords:
                        b = load_pair(octoword(ring, mask, first, me + threads))
                    if me + 2 * threads < octowords:
                        c = load_pair(octoword(ring, mask, first, me + 2 * threads))
                    if me + 3 * threads < octowords:
                        d = load_pair(octoword(ring, mask, first, me + 3 * threads))
                    stage[2 * me], stage[2 * me + 1] = a
                    stage[2 * (me + threads)], stage[2 * (me + threads) + 1] = b
                    stage[2 * (me + 2 * threads)], stage[2 * (me + 2 * threads) + 1] = c
                    stage[2 * (me + 3 * threads)], stage[2 * (me + 3 * threads) + 1] = d
                    cuda.syncthreads()
                    wqe = stage_at + (me << WQEBB_SHIFT)
                    blocks = i64(1)
                    if me < n:
                        ds = load_be32(wqe + CTRL_QPN_DS) & DS_MASK
                        blocks = max(i64(1), (ds + DS_PER_WQEBB - 1) // DS_PER_WQEBB)
                    starts = me < n
                    if cuda.syncthreads_and(1 if blocks == 1 else 0) == 0:
                        # Which WQEBBs begin a WQE: those reached from the first one, in each warp from where the one before it leads to.
                        mask_of, after = reached(u64(lane), u64(blocks))
                        entries[33 * warp + lane] = i64(after)
                        cuda.syncthreads()
                        if me == 0:
                            at = i64(0)
                            for w in range(warps):
                                entries[33 * w + 32] = at
                                at = i64(entries[33 * w + at]) - 32  # a WQE has 16 WQEBBs at most
                        cuda.syncthreads()
                        entry = i64(entries[33 * warp + 32])
                        from_entry = i64(ptx.shfl_u64(FULL, mask_of, u32(entry)))
                        starts = starts and (from_entry >> lane) & 1 != 0
                    kind = i64(NO_WQE)
                    if starts:
                        kind = i64(LATER)
                        if me + blocks <= n:
                            kind = classify(control, pair, mine, wqe, first + me)
                        elif n == rung:
                            kind = i64(TORN)
                    kinds[me] = kind
                    if me == 0:
                        words[CLASS] = kind
                    cuda.syncthreads()
                    together = words[CLASS]
                    if together >= OTHER:
                        for k in range(me, OWN_WORDS, threads):
                            store(qp + OWN + 8 * k, load(pair + OWN + 8 * k))
                        cuda.syncthreads()
                        if me == 0:
                            if together == OTHER:
                                at = i64(0)
                                while at < n and (kinds[at] == NO_WQE or kinds[at] == OTHER):
                                    if kinds[at] == OTHER and one(hca, qp, work, stage_at + (at << WQEBB_SHIFT), first + at) == 0:
                                        break
                                    at += 1
                            else:
                                process(hca, qp, work, FETCH)
                        cuda.syncthreads()
                        stale = True
                        continue
                    if starts and kind != together:
                        cuda.atomic.min(words, STOP_AT, me)
                    # Of two that write the same bytes the later one must win: the run ends before it. If all ranges of a warp ascend, and
                    # the warps' extents do not touch, all are apart; else each thread looks at all before its own.
                    low, high = i64(NEVER), i64(NEVER)
                    if starts and kind == together and load(mine + WORK_SEGMENTS) != 0:
                        low = load(mine + (WORK_REMOTE if kind == WRITES else WORK_PAIRS))
                        high = low + load(mine + WORK_NBYTES)
                    lows[me], highs[me] = low, high
                    fine, least, most = apart(u64(lane), u64(low), u64(high))
                    if lane == 0:
                        extents[2 * warp], extents[2 * warp + 1] = i64(least), i64(most)
                    cuda.syncthreads()
                    if lane < warp and i64(least) < extents[2 * lane + 1] and extents[2 * lane] < i64(most):
                        fine = False
                    if cuda.syncthreads_and(1 if fine else 0) == 0 and low != NEVER:
                        for k in range(me):
                            if low < highs[k] and lows[k] < high and lows[k] != NEVER:
                                cuda.atomic.min(words, STOP_AT, me)
                                break
                    cuda.syncthreads()
                    stop = min(words[STOP_AT], n)
                    done = starts and me < stop
                    nbytes, opcode, signals = i64(0), i64(-1), False
                    if done:
                        nbytes, opcode, signals = load(mine + WORK_NBYTES), load(mine + WORK_OPCODE), load(mine + WORK_CE) >= ALWAYS
                    # What will be done: counts by votes, bytes by a sum over the warp.
                    total = nbytes
                    for distance in (16, 8, 4, 2, 1):
                        total += cuda.shfl_xor_sync(FULL, total, distance)
                    asked = cuda.ballot_sync(FULL, signals)
                    all_done = cuda.ballot_sync(FULL, done)
                    written, read = cuda.ballot_sync(FULL, opcode == WRITE), cuda.ballot_sync(FULL, opcode == READ)
                    if lane == 0 and all_done != 0:
                        cuda.atomic.add(words, WQES, i64(cuda.popc(all_done)))
                        cuda.atomic.add(words, WRITTEN, i64(cuda.popc(written)))
                        cuda.atomic.add(words, READ_, i64(cuda.popc(read)))
                        cuda.atomic.add(words, BYTES, total)
                        if asked != 0:
                            cuda.atomic.add(words, SIGNALLED, i64(cuda.popc(asked)))
                            cuda.atomic.max(words, LAST, warp * 32 + 31 - i64(cuda.clz(asked)))
                    if limited:
                        cuda.syncthreads()
                        if me == 0:
                            admit(hca, words[WQES], words[BYTES])
                        cuda.syncthreads()
                    if done:
                        if nbytes <= ALONE_BYTES or load(mine + WORK_SEGMENTS) != 1:
                            if together == WRITES:
                                execute_write(control, pair, mine)
                            else:
                                execute_read(control, pair, mine)
                        else:
                            # Its staged control and address are of no use any more: they tell what is to be copied.
                            remote, local = load(mine + WORK_REMOTE), load(mine + WORK_PAIRS)
                            listed[cuda.atomic.add(words, LISTED, 1)] = me
                            stage[8 * me] = remote if together == WRITES else local
                            stage[8 * me + 1] = local if together == WRITES else remote
                            stage[8 * me + 2] = nbytes
                    cuda.syncthreads()
                    large = words[LISTED]
                    entry = warp
                    while entry < large:
                        at = 8 * i64(listed[entry])
                        if stage[at + 2] <= WARP_BYTES:
                            copy_together(lane, i64(32), stage[at], stage[at + 1], stage[at + 2])
                        entry += warps
                    for k in range(large):
                        at = 8 * i64(listed[k])
                        if stage[at + 2] > WARP_BYTES:
                            copy_together(me, i64(threads), stage[at], stage[at + 1], stage[at + 2])
                    if me == 0:
                        account(pair, words[WQES], words[WRITTEN], words[READ_], words[BYTES], words[SIGNALLED], stop)
                    last = words[LAST]
                    cuda.syncthreads()
                    if last >= 0:
                        for k in range(me, OWN_WORDS, threads):
                            store(qp + OWN + 8 * k, load(pair + OWN + 8 * k))
                        if me == 0:
                            store(cq + CQ_CQES, load(paired + CQ_CQES))
                        cuda.syncthreads()
                        if me == last:
                            place_cqe(control, pair, first + me, opcode, nbytes, REQ, 0, 0)
                if not stale:
                    for k in range(me, OWN_WORDS, threads):
                        store(qp + OWN + 8 * k, load(pair + OWN + 8 * k))
                    if me == 0:
                        store(cq + CQ_PRODUCER, load(paired + CQ_PRODUCER))
                        store(cq + CQ_CQES, load(paired + CQ_CQES))
                    cuda.syncthreads()
                    if words[RUNG] == ONE_BY_ONE and me == 0:
                        visit(hca, qp, work)
                    cuda.syncthreads()
            turns = i64(0) if ready != 0 else turns + 1
            if me == 0 and ready == 0:
                idle(turns)
                cuda.nanosleep(20)  # in the simulator: the other CTAs' turn

    if SIMULATOR:
        # Now, and not when the first WQE comes, for which somebody waits.
        called = (account, begin_pass, classify, copy, execute_read, execute_write, idle, octoword, one, process, visit)
        for function in (*called, waiting, wants, place_cqe, add, admit):
            function.compile((types.int64,) * len(inspect.signature(function.py_func).parameters))
    keep(loop)
    return loop
