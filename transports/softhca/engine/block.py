"""The cuda engine: a persistent kernel whose CTAs are the workers. The states of a WQE are in the modules of the cpu engine.

A CTA takes a doorbell, stages the WQEs in shared memory, and checks each in its own thread. Meanwhile the next ones are being fetched, as
that takes a microsecond or more from the memory of another GPU or the host. Then all threads execute the longest run of WRITEs (or READs)
from the first WQE on: a small one by one thread, larger ones by a warp or the whole CTA. The run ends with one CQE, the last requested one,
as the others in a collapsed CQ cannot be seen. One thread executes everything else, as in the cpu engine: atomics, errors, WQEs with many
segments. So each QP keeps its order:

* a WQE of a run that writes the same bytes as an earlier one is executed after a barrier;
* runs are separated by a barrier, so READs see earlier WRITEs;
* a CQE or an atomic comes after a barrier and a fence.sys (completer.place_cqe, ops.compare_swap), which is cumulative.

A pass begins with an acquiring update by the leader and a barrier, and a doorbell is taken with an acquire, so later loads do not see stale
lines of L1. During a visit the CTA works on copies of the QP's row, its CQ's row and the control record in shared memory (tables: every
field has one writer). It writes its counts back before each CQE, at the end, and before and after the work of a single thread.
"""

import functools
import inspect
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels.compiler import address_of, cuda, i64, ptx, types, u32, u64
from pgas.kernels.compiler import device as inlined
from pgas.transports.hostloop.compiled import keep
from pgas.transports.mlx5.wqe import CTRL_QPN_DS, DS_MASK, DS_PER_WQEBB, WQEBB, WQEBB_SHIFT
from pgas.transports.softhca.engine import SOURCES
from pgas.transports.softhca.engine.batch import (
    LATER,
    NO_WQE,
    ONE_BY_ONE,
    OTHER,
    RECORD_WORDS,
    STOPPED,
    TORN,
    WRITES,
    account,
    add,
    begin_pass,
    classify,
    fetch,
    fetched,
    load,
    load_be32,
    octoword,
    one,
    store,
    waiting,
    wants,
)  # fmt: skip
from pgas.transports.softhca.engine.completer import ALWAYS, REQ, place_cqe
from pgas.transports.softhca.engine.lanes import FULL, NEVER, apart, copy_together, reached
from pgas.transports.softhca.engine.late import expire
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.loop import visit
from pgas.transports.softhca.engine.ops import copy, idle
from pgas.transports.softhca.engine.pipeline import process
from pgas.transports.softhca.engine.requester import READ, WRITE
from pgas.transports.softhca.engine.responder import read_segments, write_segments
from pgas.transports.softhca.engine.states import DELAYS_DATA, FETCH
from pgas.transports.softhca.tables import (
    CONTROL,
    CQ,
    CQ_CQES,
    CQ_PRODUCER,
    CTL_BEAT,
    CTL_BYTE_COST,
    CTL_LATE_ROWS,
    CTL_QPS,
    CTL_SERIAL,
    CTL_SWEEPS,
    CTL_WORK,
    CTL_WQE_COST,
    QP,
    QP_CONSUMER,
    QP_CQ,
    QP_MASK,
    QP_ROW,
    QP_SQ,
    QP_STALE_RECORDS,
    QP_WORKER,
    SWEEP_ROW,
    WORK_BYTES,
    WORK_CE,
    WORK_NBYTES,
    WORK_OPCODE,
    WORK_PAIRS,
    WORK_REMOTE,
    WORK_SEGMENTS,
)  # fmt: skip

__all__ = ["SIGNATURE", "kernel"]

#: Most bytes that a thread, a group of lanes, and a warp copy alone.
ALONE_BYTES, GROUP_BYTES, WARP_BYTES = 64, 1024, 16384
LOG_GROUP = 3
GROUP = 1 << LOG_GROUP

#: Most batches of a QP in one visit.
BATCHES_PER_VISIT = 16

#: Words from the leader to the CTA (BASE: position of the batch in stage; AHEAD: index of the next batch, if it is in the other half or
#: being fetched), and shared counts: see the loop.
LIMIT, RUNG, CLASS, BASE, AHEAD, WORDS = range(6)
READY, STOP_AT, LAST, LISTED, SIGNALLED, WQES, WRITTEN, READ_, TALLIES = range(9)

#: The copies: words of the control record, of a QP's row and of its CQ's.
CONTROL_WORDS, QP_WORDS, CQ_WORDS = (len(record.names) for record in (CONTROL, QP, CQ))  # type: ignore[arg-type]

#: Fields of a QP's row that only its worker writes.
OWN = QP_CONSUMER
OWN_WORDS = (QP_STALE_RECORDS - QP_CONSUMER) // 8 + 1

SIGNATURE = (types.int64,)

#: So that two CTAs of 256 threads fit on a multiprocessor.
COMPILED = {} if SIMULATOR else {"max_registers": 128}


@inlined
def total_of(sums: Any, warps: int) -> Any:
    """Return the sum over the warps."""
    total = i64(0)
    for w in range(warps):
        total += sums[w]
    return total


@inlined
def give_back(me: Any, threads: int, qp: Any, cq: Any, pair: Any) -> None:
    """Write the CTA's counts from its copies to the rows of the QP and its CQ."""
    for k in range(me, OWN_WORDS, threads):
        store(qp + OWN + 8 * k, load(pair + OWN + 8 * k))
    if me == 0:
        for field in (CQ_PRODUCER, CQ_CQES):
            store(cq + field, load(load(pair + QP_CQ) + field))


@inlined
def bring(me: Any, threads: int, place: Any, ring: Any, mask: Any, first: Any, count: Any) -> None:
    """Start copying WQEBBs, from index first on, to shared memory."""
    for k in range(me, count * (WQEBB // 16), threads):
        fetch(place + 16 * k, octoword(ring, mask, first, k))


@functools.cache
def kernel(threads: int) -> Any:
    """Return the kernel ``loop(address of the control record)``. threads: of a CTA, a power of two, at least 32."""
    warps = threads // 32
    half = threads * WQEBB // 8
    stage_words, extent_words, entry_words = 2 * half, 2 * warps, 33 * warps
    copy_words, row_words = CONTROL_WORDS + QP_WORDS + CQ_WORDS, min(threads, 128)

    @cuda.jit(**COMPILED)
    def loop(hca):  # type: ignore[no-untyped-def]
        hca = i64(hca)
        words = cuda.shared.array(WORDS, types.int64)
        tally = cuda.shared.array(TALLIES, types.int32)
        sums = cuda.shared.array(warps, types.int64)
        moved = cuda.shared.array(warps, types.int32)
        copies = cuda.shared.array(copy_words, types.int64)
        rows = cuda.shared.array(row_words, types.int32)
        lows = cuda.shared.array(threads, types.int64)
        highs = cuda.shared.array(threads, types.int64)
        extents = cuda.shared.array(extent_words, types.int64)
        kinds = cuda.shared.array(threads, types.int32)
        entries = cuda.shared.array(entry_words, types.int32)
        listed = cuda.shared.array(threads, types.int32)
        stage = cuda.shared.array(stage_words, types.int64, alignment=16)  # a batch and the next one
        beat = cuda.local.array(2, types.int64)
        own = cuda.local.array(RECORD_WORDS, types.int64)
        stage_at, mine, beat_at = i64(address_of(stage)), i64(address_of(own)), i64(address_of(beat))
        control = i64(address_of(copies))
        pair = control + 8 * CONTROL_WORDS  # the visited QP and its CQ
        paired = pair + 8 * QP_WORDS
        me, worker = i64(cuda.threadIdx.x), i64(cuda.blockIdx.x)
        lane, warp = me & 31, me >> 5
        qps = load(hca + CTL_QPS)
        work, sweep = load(hca + CTL_WORK) + worker * WORK_BYTES, load(hca + CTL_SWEEPS) + worker * SWEEP_ROW
        store(beat_at, load(hca + CTL_BEAT))
        store(beat_at + 8, i64(ptx.globaltimer()))
        turns = passes = i64(0)
        if me == 0:
            words[BASE] = 0
        while True:
            if me == 0:
                add(sweep, 1)
            cuda.syncthreads()
            for k in range(me, CONTROL_WORDS, threads):
                copies[k] = load(hca + 8 * k)
            cuda.syncthreads()
            if me == 0:
                words[LIMIT] = begin_pass(control, worker, beat_at, i64(ptx.globaltimer()))
                tally[READY] = 0
                if DELAYS_DATA and worker == 0 and load(control + CTL_LATE_ROWS) != 0:
                    expire(hca)
            cuda.syncthreads()
            limit = words[LIMIT]
            if limit == STOPPED:
                break
            limited = load(control + CTL_WQE_COST) | load(control + CTL_BYTE_COST) != 0
            serial = load(control + CTL_SERIAL) != 0
            passes += 1
            for k in range(me, limit, threads):
                row = (k + passes) % limit  # start with another QP in each pass
                qp = qps + row * QP_ROW
                if (serial or load(qp + QP_WORKER) == worker) and wants(qp) != 0:
                    place = cuda.atomic.add(tally, READY, 1)
                    if place < row_words:
                        rows[place] = row
            cuda.syncthreads()
            ready = min(i64(tally[READY]), row_words)
            for r in range(ready):
                qp = qps + i64(rows[r]) * QP_ROW
                cq = load(qp + QP_CQ)
                stale = True  # the rows are to be copied again
                for _ in range(BATCHES_PER_VISIT):
                    if stale:
                        for k in range(me, QP_WORDS, threads):
                            copies[CONTROL_WORDS + k] = load(qp + 8 * k)
                        for k in range(me, CQ_WORDS, threads):
                            copies[CONTROL_WORDS + QP_WORDS + k] = load(cq + 8 * k)
                        if me == 0:
                            words[AHEAD] = -1
                        cuda.syncthreads()
                        stale = False
                    if me == 0:
                        store(pair + QP_CQ, paired)
                        words[RUNG] = waiting(control, pair, threads)
                        for word in range(LISTED, TALLIES):
                            tally[word] = 0
                        tally[STOP_AT], tally[LAST] = threads, -1
                    cuda.syncthreads()
                    rung = words[RUNG]
                    if rung <= 0:
                        break
                    n = min(rung, threads)
                    first, ring, mask = load(pair + QP_CONSUMER), load(pair + QP_SQ), load(pair + QP_MASK)
                    base = words[BASE]
                    if words[AHEAD] == first:
                        base = half - base
                    else:
                        bring(me, threads, stage_at + 8 * base, ring, mask, first, n)
                    fetched()
                    if rung - n >= threads:
                        bring(me, threads, stage_at + 8 * (half - base), ring, mask, first + n, threads)
                    cuda.syncthreads()
                    if me == 0:
                        words[BASE], words[AHEAD] = base, first + n if rung - n >= threads else -1
                    wqe = stage_at + 8 * base + (me << WQEBB_SHIFT)
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
                                at = i64(entries[33 * w + at]) - 32  # a WQE has at most 16 WQEBBs
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
                        give_back(me, threads, qp, cq, pair)
                        cuda.syncthreads()
                        if me == 0:
                            if together == OTHER:
                                at, staged = i64(0), stage_at + 8 * words[BASE]
                                while at < n and (kinds[at] == NO_WQE or kinds[at] == OTHER):
                                    if kinds[at] == OTHER and one(hca, qp, work, staged + (at << WQEBB_SHIFT), first + at) == 0:
                                        break
                                    at += 1
                            else:
                                process(hca, qp, work, FETCH)
                        cuda.syncthreads()
                        stale = True
                        continue
                    if starts and kind != together:
                        cuda.atomic.min(tally, STOP_AT, me)
                    cuda.syncthreads()
                    stop = min(i64(tally[STOP_AT]), n)
                    done = starts and me < stop
                    nbytes, opcode, signals, moves = i64(0), i64(-1), False, False
                    if done:
                        nbytes, opcode, signals = load(mine + WORK_NBYTES), load(mine + WORK_OPCODE), load(mine + WORK_CE) >= ALWAYS
                        moves = load(mine + WORK_SEGMENTS) != 0
                    low, high = i64(NEVER), i64(NEVER)
                    if moves:
                        low = load(mine + (WORK_REMOTE if together == WRITES else WORK_PAIRS))
                        high = low + nbytes
                    # What will be done: counts by votes, bytes by sums over warps; then the place of each among those that move bytes.
                    total = nbytes
                    for distance in (16, 8, 4, 2, 1):
                        total += cuda.shfl_xor_sync(FULL, total, distance)
                    asked, all_done, moving = (cuda.ballot_sync(FULL, signals), cuda.ballot_sync(FULL, done), cuda.ballot_sync(FULL, moves))
                    written, read = cuda.ballot_sync(FULL, opcode == WRITE), cuda.ballot_sync(FULL, opcode == READ)
                    fine, least, most = apart(u64(lane), u64(low), u64(high))
                    if lane == 0:
                        extents[2 * warp], extents[2 * warp + 1] = i64(least), i64(most)
                        sums[warp], moved[warp] = total, i64(cuda.popc(moving))
                        if all_done != 0:
                            cuda.atomic.add(tally, WQES, cuda.popc(all_done))
                            cuda.atomic.add(tally, WRITTEN, cuda.popc(written))
                            cuda.atomic.add(tally, READ_, cuda.popc(read))
                        if asked != 0:
                            cuda.atomic.add(tally, SIGNALLED, cuda.popc(asked))
                            cuda.atomic.max(tally, LAST, warp * 32 + 31 - i64(cuda.clz(asked)))
                    cuda.syncthreads()
                    place = i64(cuda.popc(moving & ((1 << lane) - 1)))
                    movers = i64(0)
                    for w in range(warps):
                        place += i64(moved[w]) if w < warp else 0
                        movers += i64(moved[w])
                    if moves:
                        lows[place], highs[place] = low, high
                    if lane < warp and i64(least) < extents[2 * lane + 1] and extents[2 * lane] < i64(most):
                        fine = False
                    fine = cuda.syncthreads_and(1 if fine else 0) != 0
                    # Of two that write the same bytes the later one must win: it waits until the earlier one is done. If all ranges of a
                    # warp ascend, and the warps' extents do not touch, all are apart; else each looks for the last that is in its way.
                    behind = place - 1
                    if fine or not moves:
                        behind = i64(-1)
                    while behind >= 0 and (high <= lows[behind] or highs[behind] <= low):
                        behind -= 1
                    if limited:
                        if me == 0:
                            admit(hca, i64(tally[WQES]), total_of(sums, warps))
                        cuda.syncthreads()
                    begun = i64(0)
                    while begun < movers:
                        end = movers
                        if not fine:
                            if me == 0:
                                tally[STOP_AT] = movers
                            cuda.syncthreads()
                            if moves and place >= begun and behind >= begun:
                                cuda.atomic.min(tally, STOP_AT, place)
                            cuda.syncthreads()
                            end = i64(tally[STOP_AT])
                        if moves and begun <= place < end:
                            if nbytes <= ALONE_BYTES or load(mine + WORK_SEGMENTS) != 1:
                                if together == WRITES:
                                    write_segments(control, pair, mine)
                                else:
                                    read_segments(control, pair, mine)
                            else:
                                # Its staged control and address are of no use any more: they tell what is to be copied.
                                remote, local = load(mine + WORK_REMOTE), load(mine + WORK_PAIRS)
                                listed[cuda.atomic.add(tally, LISTED, 1)] = me
                                at = words[BASE] + 8 * me
                                stage[at] = remote if together == WRITES else local
                                stage[at + 1] = local if together == WRITES else remote
                                stage[at + 2] = nbytes
                        cuda.syncthreads()
                        large = i64(tally[LISTED])
                        for k in range(me >> LOG_GROUP, large, threads >> LOG_GROUP):
                            at = words[BASE] + 8 * i64(listed[k])
                            if stage[at + 2] <= GROUP_BYTES:
                                copy_together(me & (GROUP - 1), i64(GROUP), stage[at], stage[at + 1], stage[at + 2])
                        for k in range(warp, large, warps):
                            at = words[BASE] + 8 * i64(listed[k])
                            if GROUP_BYTES < stage[at + 2] <= WARP_BYTES:
                                copy_together(lane, i64(32), stage[at], stage[at + 1], stage[at + 2])
                        for k in range(large):
                            at = words[BASE] + 8 * i64(listed[k])
                            if stage[at + 2] > WARP_BYTES:
                                copy_together(me, i64(threads), stage[at], stage[at + 1], stage[at + 2])
                        begun = end
                        cuda.syncthreads()
                        if me == 0:
                            tally[LISTED] = 0
                    last = i64(tally[LAST])
                    if me == 0:
                        account(
                            pair,
                            i64(tally[WQES]),
                            i64(tally[WRITTEN]),
                            i64(tally[READ_]),
                            total_of(sums, warps),
                            i64(tally[SIGNALLED]),
                            stop,
                        )
                    cuda.syncthreads()
                    if last >= 0:
                        give_back(me, threads, qp, cq, pair)
                        cuda.syncthreads()
                        if me == last:
                            place_cqe(control, pair, first + me, opcode, nbytes, REQ, 0, 0)
                if not stale:
                    give_back(me, threads, qp, cq, pair)
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
        called = (account, begin_pass, classify, copy, expire, idle, octoword, one, process, read_segments, visit, write_segments)
        for function in (*called, waiting, wants, place_cqe, add, admit):
            function.compile((types.int64,) * len(inspect.signature(function.py_func).parameters))
    keep(loop, *SOURCES)
    return loop
