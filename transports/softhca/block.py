"""The cuda engine: a kernel that never ends, whose CTAs are the workers; what happens to a WQE is in the modules of the cpu engine.

A CTA takes a doorbell, stages the WQEs behind it in shared memory, and checks each in a thread of its own. The longest run of WRITEs (or
of READs) from the first one on is performed by all threads, small ones by their own, larger ones by a warp or the whole CTA; one CQE ends
it, the last that was asked for: of a collapsed CQ nobody can see the others. What is neither, an atomic, an error, a WQE with many
segments, is one thread's, as in the cpu engine. So within a QP everything keeps its order:

* a run ends before a WQE that writes what an earlier one of it does;
* a run follows the one before it after a barrier, its READs therefore find what earlier WRITEs wrote;
* a CQE and an atomic come after a barrier and a fence.sys (completer.write_cqe, ops.compare_swap), which is cumulative.

A pass begins with an acquiring load by the leader and a barrier: what a thread then loads is not older, whatever its L1 held.
"""

import contextlib
import functools
import inspect
from typing import Any

from numba import cuda
from numba.cuda import types

from pgas.backend import SIMULATOR
from pgas.kernels import ptx
from pgas.kernels.compiler import address_of, i64, primitive, u64
from pgas.kernels.compiler import device as inlined
from pgas.transports.mlx5.wqe import CTRL_QPN_DS, DS_MASK, DS_PER_WQEBB, WQEBB, WQEBB_SHIFT
from pgas.transports.softhca import ops
from pgas.transports.softhca.compiled import device, source_stamp
from pgas.transports.softhca.completer import ALWAYS, REQ, write_cqe
from pgas.transports.softhca.engine import check, process, visit
from pgas.transports.softhca.ops import add, copy, idle, load_acquire
from pgas.transports.softhca.pipeline import ALONE, CHECK_CONTROL, COMPLETE, EXECUTE_READ, EXECUTE_WRITE, FETCH, count, state_of
from pgas.transports.softhca.requester import READ, WRITE, begin, take_doorbell
from pgas.transports.softhca.responder import execute_read, execute_write
from pgas.transports.softhca.tables import (
    CQ_COLLAPSED,
    CQ_CQES,
    CQ_PRODUCER,
    CTL_BEAT,
    CTL_PAUSED,
    CTL_QP_LIMIT,
    CTL_QPS,
    CTL_SERIAL,
    CTL_STOP,
    CTL_SWEEPS,
    CTL_WORK,
    CTL_WORKERS,
    ERR,
    QP_CONSUMER,
    QP_CQ,
    QP_CQES,
    QP_HELD,
    QP_MASK,
    QP_NBYTES,
    QP_PRODUCER,
    QP_READS,
    QP_REGISTER,
    QP_ROW,
    QP_SQ,
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
)

if not SIMULATOR:
    from numba.cuda.dispatcher import CUDACache, CUDACacheImpl

__all__ = ["SIGNATURE", "kernel"]

#: Data segments of a WQE that a thread's own work record has room for.
SEGMENTS = 4
RECORD_WORDS = WORK_PAIRS // 8 + 2 * SEGMENTS

#: A thread copies up to so many bytes alone, a warp up to so many.
ALONE_BYTES, WARP_BYTES = 64, 16384

#: Without a beat of the server for so many ns the kernel ends.
BEAT_NS = 20_000_000_000

#: Batches of a QP before the next one gets its turn.
BATCHES_PER_VISIT = 4

#: Words that the leader tells the CTA: see the loop.
LIMIT, READY, RUNG, CLASS, STOP_AT, LISTED, LAST, SIGNALLED, WQES, WRITTEN, READ_, BYTES, WORDS = range(13)

FULL = 0xFFFF_FFFF

SIGNATURE = (types.int64,)

#: What is at a WQEBB of a batch: a WQE that many threads can perform with others of its kind, or one thread with others; one with many
#: segments or too few WQEBBs, for which there is only the way of the cpu engine; the middle of a WQE; one that goes on behind the batch.
WRITES, READS, OTHER, TORN, NO_WQE, LATER = 1, 2, 3, 4, 5, 6

STOPPED = -1

#: An address behind all others.
NEVER = 1 << 62


if SIMULATOR:

    def _called(primitive_: Any) -> Any:
        """An intrinsic as the kernel, which is Python here, can call it."""
        return device(lambda address: primitive_(address))

    def _called_with_value(primitive_: Any) -> Any:
        return device(lambda address, value: primitive_(address, value))

    load, load_any, load_be32 = _called(ops.load), _called(ops.load_any), _called(ops.load_be32)
    store, store_data = _called_with_value(ops.store), _called_with_value(ops.store_data)

    def load_pair(address: int) -> tuple[int, int]:
        """Load 16 bytes."""
        return load(address), load(address + 8)

else:
    load, load_any, load_be32, store, store_data = ops.load, ops.load_any, ops.load_be32, ops.store, ops.store_data
    load_pair = primitive("load_pair", "(i64, i64)(i64)", "ld.relaxed.sys.v2.u64 {$0, $1}, [$2];", None)


@device
def begin_pass(hca: int, worker: int) -> int:
    """Begin a pass; return how many QP rows there are to look at, STOPPED at the end of the card."""
    add(load(hca + CTL_SWEEPS) + worker * SWEEP_ROW, 1)
    if load_acquire(hca + CTL_STOP) != 0:
        return STOPPED
    if load_acquire(hca + CTL_PAUSED) != 0:
        return 0
    if load(hca + CTL_SERIAL) != 0 and worker != 0:
        return 0
    return load_acquire(hca + CTL_QP_LIMIT)


@device
def alive(hca: int, beat: int, now: int) -> int:
    """Whether the server has shown that it lives; beat: address of the last beat seen, and of its time."""
    found = load_acquire(hca + CTL_BEAT)
    if found != load(beat):
        store(beat, found)
        store(beat + 8, now)
    return 1 if now - load(beat + 8) < BEAT_NS else 0


@device
def wants(qp: int) -> int:
    """Whether a QP may have something to do."""
    state = state_of(qp)
    if state != RTS and state != ERR:
        return 0
    if load(qp + QP_CONSUMER) != load(qp + QP_PRODUCER) or load(qp + QP_HELD) != 0:
        return 1
    return 1 if load_acquire(load(qp + QP_REGISTER)) != 0 else 0


@device
def begin_visit(hca: int, qp: int, work: int) -> int:
    """Take the doorbell, flush a QP in ERR; return how many WQEBBs the CTA has to do together."""
    take_doorbell(qp)
    if load(hca + CTL_SERIAL) != 0 or load(load(qp + QP_CQ) + CQ_COLLAPSED) == 0:
        visit(hca, qp, work)
        return 0
    state = state_of(qp)
    rung = load(qp + QP_PRODUCER) - load(qp + QP_CONSUMER)
    if state == ERR or rung > load(qp + QP_MASK) + 1:
        visit(hca, qp, work)
        return 0
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
    """Count what the CTA has done, and the CQEs that nobody can have seen."""
    count(qp + QP_WQES, wqes)
    count(qp + QP_WRITES, writes)
    count(qp + QP_READS, reads)
    count(qp + QP_NBYTES, nbytes)
    if signalled > 1:
        cq = load(qp + QP_CQ)
        count(cq + CQ_PRODUCER, signalled - 1)
        count(cq + CQ_CQES, signalled - 1)
        count(qp + QP_CQES, signalled - 1)
    store(qp + QP_CONSUMER, load(qp + QP_CONSUMER) + wqebbs)
    return 0


@inlined
def together(rank, size, dest, source, nbytes):  # type: ignore[no-untyped-def]
    """Copy by `size` threads, of which the caller is number `rank`; every aligned word of 8 bytes of dest is stored whole."""
    if (dest | source) & 15 == 0:
        body = nbytes >> 4 << 4
        _copy_16(u64(dest), u64(source), u64(rank), u64(nbytes >> 4), u64(size), False)
        head = i64(0)
    else:
        head = min(-dest & 7, nbytes)
        body = (nbytes - head) >> 3 << 3
        if rank == 0:
            copy(dest, source, head)
        at = head + rank * 8
        while at < head + body:
            store_data(dest + at, load_any(source + at))
            at += size * 8
    if rank == 0:
        copy(dest + head + body, source + head + body, nbytes - head - body)


_copy_16 = ptx.get_run[16]  # whose loads, as those of WQEs, go past L1


if not SIMULATOR:

    class _CacheImpl(CUDACacheImpl):  # type: ignore[misc, no-any-unimported]
        """Stores kernels that use pgas's primitives, which Numba's own is made to refuse (kernels/compiler.py)."""

    class _Cache(CUDACache):  # type: ignore[misc, no-any-unimported]
        """Numba's disk cache, with all sources of the engine in its key: none of the job's constants is in the code."""

        _impl_class = _CacheImpl

        def _index_key(self, sig: Any, codegen: Any) -> Any:
            return (*super()._index_key(sig, codegen), source_stamp())


@functools.cache
def kernel(threads: int) -> Any:
    """Return the kernel ``loop(address of the control record)`` for CTAs of so many threads: a power of two, 32 at least."""
    rounds, warps = threads.bit_length() - 1, threads // 32
    stage_words, list_words, next_words, extent_words = threads * WQEBB // 8, 3 * threads, threads, 2 * warps

    @cuda.jit
    def loop(hca):  # type: ignore[no-untyped-def]
        hca = i64(hca)
        words = cuda.shared.array(WORDS, types.int64)
        rows = cuda.shared.array(next_words, types.int64)
        lows = cuda.shared.array(next_words, types.int64)
        highs = cuda.shared.array(next_words, types.int64)
        extents = cuda.shared.array(extent_words, types.int64)
        kinds = cuda.shared.array(next_words, types.int32)
        follows = cuda.shared.array(next_words, types.int32)
        reached = cuda.shared.array(next_words, types.int32)
        listed = cuda.shared.array(list_words, types.int64)
        stage = cuda.shared.array(stage_words, types.int64)
        beat = cuda.local.array(2, types.int64)
        own = cuda.local.array(RECORD_WORDS, types.int64)
        stage_at, mine, beat_at = i64(address_of(stage)), i64(address_of(own)), i64(address_of(beat))
        me, worker = i64(cuda.threadIdx.x), i64(cuda.blockIdx.x)
        lane, warp = me & 31, me >> 5
        qps, workers = load(hca + CTL_QPS), load(hca + CTL_WORKERS)
        work = load(hca + CTL_WORK) + worker * WORK_BYTES
        store(beat_at, load(hca + CTL_BEAT))
        store(beat_at + 8, i64(ptx.globaltimer()))
        turns = i64(0)
        while True:
            if me == 0:
                words[LIMIT] = begin_pass(hca, worker)
                words[READY] = 0
                if alive(hca, beat_at, i64(ptx.globaltimer())) == 0:
                    words[LIMIT] = STOPPED
            cuda.syncthreads()
            limit = words[LIMIT]
            if limit == STOPPED:
                break
            step = i64(1) if load(hca + CTL_SERIAL) != 0 else workers
            row = worker + me * step
            while row < limit:
                if wants(qps + row * QP_ROW) != 0:
                    place = cuda.atomic.add(words, READY, 1)
                    if place < threads:
                        rows[place] = row
                row += step * threads
            cuda.syncthreads()
            ready = min(words[READY], threads)
            for r in range(ready):
                qp = qps + rows[r] * QP_ROW
                for _ in range(BATCHES_PER_VISIT):
                    if me == 0:
                        words[RUNG] = begin_visit(hca, qp, work)
                        words[STOP_AT] = threads
                        words[LAST] = -1
                        for word in range(LISTED, WORDS):
                            if word != LAST:
                                words[word] = 0
                    cuda.syncthreads()
                    rung = words[RUNG]
                    cuda.syncthreads()
                    if rung == 0:
                        break
                    n = min(rung, threads)
                    first, ring, mask = load(qp + QP_CONSUMER), load(qp + QP_SQ), load(qp + QP_MASK)
                    # Octowords me, me + threads, ... of the batch: four loads in flight.
                    pairs = n * (WQEBB // 16)
                    a = b = c = d = (i64(0), i64(0))
                    if me < pairs:
                        a = load_pair(octoword(ring, mask, first, me))
                    if me + threads < pairs:
                        b = load_pair(octoword(ring, mask, first, me + threads))
                    if me + 2 * threads < pairs:
                        c = load_pair(octoword(ring, mask, first, me + 2 * threads))
                    if me + 3 * threads < pairs:
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
                        # Which WQEBBs begin a WQE: those reached from the first one. Each round doubles the steps that are known.
                        follows[me] = min(me + blocks, n)
                        reached[me] = 1 if me == 0 else 0
                        cuda.syncthreads()
                        for _ in range(rounds):
                            after = i64(follows[me])
                            beyond = i64(follows[after]) if after < n else n
                            hit = reached[me] != 0
                            cuda.syncthreads()
                            if hit and after < n:
                                reached[after] = 1
                            follows[me] = beyond
                            cuda.syncthreads()
                        starts = me < n and reached[me] != 0
                    kind = i64(NO_WQE)
                    if starts:
                        kind = i64(LATER)
                        if me + blocks <= n:
                            kind = classify(hca, qp, mine, wqe, first + me)
                        elif n == rung:
                            kind = i64(TORN)
                    kinds[me] = kind
                    if me == 0:
                        words[CLASS] = kind
                    cuda.syncthreads()
                    together_kind = words[CLASS]
                    if together_kind >= OTHER:
                        if me == 0:
                            if together_kind == OTHER:
                                at = i64(0)
                                while at < n and (kinds[at] == NO_WQE or kinds[at] == OTHER):
                                    if kinds[at] == OTHER and one(hca, qp, work, stage_at + (at << WQEBB_SHIFT), first + at) == 0:
                                        break
                                    at += 1
                            else:
                                process(hca, qp, work, FETCH)
                        cuda.syncthreads()
                        continue
                    if starts and kind != together_kind:
                        cuda.atomic.min(words, STOP_AT, me)
                    # Of two that write the same bytes the later one must win: the run ends before it. Warps compare neighbours and then
                    # each other's extent; if that does not show that all are apart, each thread looks at all before its own.
                    low, high = i64(NEVER), i64(NEVER)
                    if starts and kind == together_kind and load(mine + WORK_SEGMENTS) != 0:
                        low = load(mine + (WORK_REMOTE if kind == WRITES else WORK_PAIRS))
                        high = low + load(mine + WORK_NBYTES)
                    lows[me], highs[me] = low, high
                    cuda.syncthreads()
                    least, most, apart, before = i64(NEVER), i64(0), True, i64(0)
                    if lane == 0:
                        for k in range(me, me + 32):
                            if lows[k] != NEVER:
                                apart = apart and lows[k] >= before
                                before = highs[k]
                                least, most = min(least, lows[k]), max(most, highs[k])
                        extents[2 * warp], extents[2 * warp + 1] = least, most
                    cuda.syncthreads()
                    if lane == 0:
                        for k in range(warp):
                            apart = apart and (least >= extents[2 * k + 1] or extents[2 * k] >= most)
                    if cuda.syncthreads_and(1 if apart else 0) == 0 and low != NEVER:
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
                        if nbytes <= ALONE_BYTES or load(mine + WORK_SEGMENTS) != 1:
                            if together_kind == WRITES:
                                execute_write(hca, qp, mine)
                            else:
                                execute_read(hca, qp, mine)
                        else:
                            remote, local = load(mine + WORK_REMOTE), load(mine + WORK_PAIRS)
                            entry = 3 * cuda.atomic.add(words, LISTED, 1)
                            listed[entry] = remote if together_kind == WRITES else local
                            listed[entry + 1] = local if together_kind == WRITES else remote
                            listed[entry + 2] = nbytes
                    cuda.syncthreads()
                    large = words[LISTED]
                    entry = warp
                    while entry < large:
                        if listed[3 * entry + 2] <= WARP_BYTES:
                            together(lane, i64(32), listed[3 * entry], listed[3 * entry + 1], listed[3 * entry + 2])
                        entry += warps
                    for k in range(large):
                        if listed[3 * k + 2] > WARP_BYTES:
                            together(me, i64(threads), listed[3 * k], listed[3 * k + 1], listed[3 * k + 2])
                    # What was done: counts by votes, bytes by a sum over the warp.
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
                    cuda.syncthreads()
                    last = words[LAST]
                    if me == max(last, i64(0)):
                        account(qp, words[WQES], words[WRITTEN], words[READ_], words[BYTES], words[SIGNALLED], stop)
                        if last >= 0:
                            write_cqe(hca, qp, first + me, opcode, nbytes, REQ, 0, 0)
                    cuda.syncthreads()
            turns = i64(0) if ready != 0 else turns + 1
            if me == 0 and ready == 0:
                idle(turns)
                cuda.nanosleep(20)  # in the simulator: the other CTAs' turn

    if SIMULATOR:
        # Now, and not when the first WQE comes, for which somebody waits.
        called = (account, alive, begin_pass, begin_visit, classify, copy, execute_read, execute_write, idle, octoword, one, process)
        for function in (*called, wants, write_cqe):
            function.compile((types.int64,) * len(inspect.signature(function.py_func).parameters))
    else:
        with contextlib.suppress(RuntimeError):  # nowhere to write: compiled in every process, ten seconds
            loop._cache = _Cache(loop.py_func)
    return loop
