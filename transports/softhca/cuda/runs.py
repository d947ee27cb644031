"""Runs of the cuda engine: consecutive WQEs of one class, which a CTA executes with only one CQE, the last requested one.

Each QP keeps its order, because

* a WQE of a run that writes the same bytes as an earlier one is executed after a barrier;
* runs are separated by a barrier, so that READs observe earlier WRITEs;
* a CQE comes after a barrier and a fence.sys (completer.put_cqe), which is cumulative. So does an atomic, unless it is the first of its run
  and nothing was executed since the last CQE (DIRTY). Then the fence of that CQE has ended before the barrier, which suffices on a GPU,
  although PTX's memory model requires a fence of the atomic's own thread.

Each small WRITE is copied by one thread, larger ones by a group of lanes, a warp, or the CTA. If a run has one WQE, all threads of the CTA
copy it, from 9 bytes on, so that all loads are in flight together.
"""

from typing import Any, NamedTuple

from pgas.kernels.compiler import cuda, i64, types, u64
from pgas.kernels.compiler import device as inlined
from pgas.transports.mlx5.cqe import CqeOpcode
from pgas.transports.mlx5.wqe import Ce, Opcode
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.cuda.batch import ATOMICS, NO_WQE, WRITES, account, fence, load, store
from pgas.transports.softhca.cuda.lanes import FULL, NEVER, apart, copy_together
from pgas.transports.softhca.engine.completer import place_cqe
from pgas.transports.softhca.engine.limits import admit
from pgas.transports.softhca.engine.ops import THREADS
from pgas.transports.softhca.engine.responder import read_segments, update, write_segments
from pgas.transports.softhca.engine.trace import note_fetched

__all__ = [
    "AHEAD", "BASE", "CQ_AT", "DIRTY", "FOUND", "LIMIT", "ON_HOST", "PASSED", "QP_AT", "READY", "RECORD", "REGISTER_AT", "RUNG", "TALLIES",
    "THREADS", "WARPS", "WORD", "WORDS", "Cta", "clear", "execute", "give_back",
]  # fmt: skip

WARPS = THREADS // 32

#: Words of the lowest and the highest address of each warp's WQEs.
EXTENT_WORDS = 2 * WARPS

#: Maximum number of bytes that a thread, a group of lanes, and a warp copy alone. SINGLE_BYTES: maximum for a thread if the run has one
#: WQE.
ALONE_BYTES, GROUP_BYTES, WARP_BYTES, SINGLE_BYTES = 64, 1024, 16384, 8
LOG_GROUP = 3
GROUP = 1 << LOG_GROUP

#: Words from one thread to the CTA. LIMIT: number of QP rows to poll; PASSED: the sweep; WORD, RECORD: a doorbell, and its record; RUNG:
#: pending WQEBBs, or ONE_BY_ONE; BASE: position of the batch in stage; AHEAD: index of the next batch, if it is in the other half or being
#: fetched; SINGLE: whether a run has one WQE; DIRTY: whether WQEs were executed since the last CQE.
LIMIT, WORD, RECORD, RUNG, BASE, AHEAD, PASSED, SINGLE, DIRTY, WORDS = range(10)

#: Shared counts. READY: QPs with work; STOP_AT: end of the run, or of the part of it whose ranges are apart; LAST: its last WQE that
#: requests a CQE; LISTED: copies that several threads make; the others are of WQEs.
READY, STOP_AT, LAST, LISTED, SIGNALLED, WQES, WRITTEN, READ_, TALLIES = range(9)

#: Words about a QP in Cta.found: addresses of its row, its CQ's row, and its register, and whether a CPU rings it.
QP_AT, CQ_AT, REGISTER_AT, ON_HOST, FOUND = range(5)

#: Fields of a QP's row that only its worker writes.
OWN = t.QP_CONSUMER
OWN_WORDS = (t.QP_STALE_RECORDS - t.QP_CONSUMER) // 8 + 1


class Cta(NamedTuple):
    """A thread, and the data that its CTA shares: arrays in shared memory, and addresses."""

    me: Any  #: number of the thread
    lane: Any
    warp: Any
    words: Any  #: LIMIT ...
    found: Any  #: QPs with work, FOUND words each
    tally: Any  #: READY ...
    kinds: Any  #: class of each staged WQEBB
    stage: Any
    stage_at: Any  #: address of stage
    control: Any  #: the copies of the control record, and of the visited QP and CQ
    pair: Any
    mine: Any  #: the thread's own work record


@inlined
def clear(cta: Any) -> None:
    """Clear the counts of a run. A barrier must follow."""
    if cta.me == 0:
        for word in range(LISTED, TALLIES):
            cta.tally[word] = 0
        cta.tally[STOP_AT], cta.tally[LAST] = THREADS, -1


@inlined
def give_back(cta: Any, visited: Any) -> None:
    """Write the CTA's counts from its copies to the rows of the QP and its CQ. visited: position of the QP in ``found``."""
    qp, cq = cta.found[visited + QP_AT], cta.found[visited + CQ_AT]
    for k in range(cta.me, OWN_WORDS, THREADS):
        store(qp + OWN + 8 * k, load(cta.pair + OWN + 8 * k))
    if cta.me == 0:
        for field in (t.CQ_PRODUCER, t.CQ_CQES):
            store(cq + field, load(load(cta.pair + t.QP_CQ) + field))


@inlined
def limited(cta: Any) -> Any:
    """Whether the software NIC has rate limits."""
    return load(cta.control + t.CTL_WQE_COST) | load(cta.control + t.CTL_BYTE_COST) != 0


@inlined
def in_turn(cta: Any, done: Any, at: Any, stop: Any) -> None:
    """Execute atomics, each by its thread, one after another, so that they are observed in order."""
    for w in range(at >> 5, (stop + 31) >> 5):
        if cta.warp == w:
            for k in range(max(at - 32 * w, 0), min(stop - 32 * w, 32)):
                if done and cta.lane == k:
                    if cta.me != at or cta.words[DIRTY] != 0:
                        fence()
                    update(cta.control, cta.pair, cta.mine)
                cuda.syncwarp()
        cuda.syncthreads()


@inlined
def list_copy(cta: Any, listed: Any) -> None:
    """Append the WQE to the listed copies. Destination, source and size overwrite its staged control segment and address, now unused."""
    remote, local = load(cta.mine + t.WORK_REMOTE), load(cta.mine + t.WORK_PAIRS)
    writes = load(cta.mine + t.WORK_OPCODE) == Opcode.RDMA_WRITE
    listed[cuda.atomic.add(cta.tally, LISTED, 1)] = cta.me
    at = cta.words[BASE] + 8 * cta.me
    cta.stage[at] = remote if writes else local
    cta.stage[at + 1] = local if writes else remote
    cta.stage[at + 2] = load(cta.mine + t.WORK_NBYTES)


@inlined
def copy_listed(cta: Any, listed: Any) -> None:
    """Make the listed copies: by groups of lanes, by warps, and the largest by all threads. If only one is listed, all threads make it."""
    n = i64(cta.tally[LISTED])
    if n > 1:
        for k in range(cta.me >> LOG_GROUP, n, THREADS >> LOG_GROUP):
            at = cta.words[BASE] + 8 * i64(listed[k])
            if cta.stage[at + 2] <= GROUP_BYTES:
                copy_together(cta.me & (GROUP - 1), i64(GROUP), cta.stage[at], cta.stage[at + 1], cta.stage[at + 2])
        for k in range(cta.warp, n, WARPS):
            at = cta.words[BASE] + 8 * i64(listed[k])
            if GROUP_BYTES < cta.stage[at + 2] <= WARP_BYTES:
                copy_together(cta.lane, i64(32), cta.stage[at], cta.stage[at + 1], cta.stage[at + 2])
    for k in range(n):
        at = cta.words[BASE] + 8 * i64(listed[k])
        if n == 1 or cta.stage[at + 2] > WARP_BYTES:
            copy_together(cta.me, i64(THREADS), cta.stage[at], cta.stage[at + 1], cta.stage[at + 2])


@inlined
def plan(cta: Any, done: Any, opcode: Any, nbytes: Any, low: Any, high: Any) -> Any:
    """Add up the counts of the run, and number its WQEs that move bytes. [low, high): destination of the WQE, or NEVER.

    Return (bytes of the run, number of such WQEs, number of the thread's WQE, number of the last earlier WQE that overlaps it or -1,
    whether all destinations are known to be disjoint).
    """
    sums = cuda.shared.array(WARPS, types.int64)
    moved = cuda.shared.array(WARPS, types.int32)
    extents = cuda.shared.array(EXTENT_WORDS, types.int64)
    lows = cuda.shared.array(THREADS, types.int64)
    highs = cuda.shared.array(THREADS, types.int64)
    signals, moves = done and load(cta.mine + t.WORK_CE) >= Ce.ALWAYS, low != NEVER
    total = nbytes
    for distance in (16, 8, 4, 2, 1):
        total += cuda.shfl_xor_sync(FULL, total, distance)
    asked, all_done, moving = cuda.ballot_sync(FULL, signals), cuda.ballot_sync(FULL, done), cuda.ballot_sync(FULL, moves)
    written, read = cuda.ballot_sync(FULL, opcode == Opcode.RDMA_WRITE), cuda.ballot_sync(FULL, opcode == Opcode.RDMA_READ)
    fine, least, most = apart(u64(cta.lane), u64(low), u64(high))
    if cta.lane == 0:
        extents[2 * cta.warp], extents[2 * cta.warp + 1] = i64(least), i64(most)
        sums[cta.warp], moved[cta.warp] = total, i64(cuda.popc(moving))
        if all_done != 0:
            cuda.atomic.add(cta.tally, WQES, cuda.popc(all_done))
            cuda.atomic.add(cta.tally, WRITTEN, cuda.popc(written))
            cuda.atomic.add(cta.tally, READ_, cuda.popc(read))
        if asked != 0:
            cuda.atomic.add(cta.tally, SIGNALLED, cuda.popc(asked))
            cuda.atomic.max(cta.tally, LAST, cta.warp * 32 + 31 - i64(cuda.clz(asked)))
    cuda.syncthreads()
    place, movers, total = i64(cuda.popc(moving & ((1 << cta.lane) - 1))), i64(0), i64(0)
    for w in range(WARPS):
        place += i64(moved[w]) if w < cta.warp else 0
        movers += i64(moved[w])
        total += sums[w]
    if moves:
        lows[place], highs[place] = low, high
    if cta.lane < cta.warp and i64(least) < extents[2 * cta.lane + 1] and extents[2 * cta.lane] < i64(most):
        fine = False
    fine = cuda.syncthreads_and(1 if fine else 0) != 0
    # Ranges that ascend in each warp, in disjoint extents of warps, do not overlap. Otherwise each thread searches for overlaps.
    behind = place - 1
    if fine or not moves:
        behind = i64(-1)
    while behind >= 0 and (high <= lows[behind] or highs[behind] <= low):
        behind -= 1
    return total, movers, place, behind, fine


@inlined
def start(cta: Any, nbytes: Any, alone: Any, listed: Any) -> None:
    """Move the bytes of the thread's WQE; if they are more than ``alone``, list them to be copied by several threads."""
    if nbytes > alone and load(cta.mine + t.WORK_SEGMENTS) == 1:
        list_copy(cta, listed)
    elif load(cta.mine + t.WORK_OPCODE) == Opcode.RDMA_WRITE:
        write_segments(cta.control, cta.pair, cta.mine)
    else:
        read_segments(cta.control, cta.pair, cta.mine)


@inlined
def move(cta: Any, moves: Any, nbytes: Any, movers: Any, place: Any, behind: Any, fine: Any, listed: Any) -> None:
    """Move the bytes of all WQEs of the run. Of two that write the same bytes, the later one waits until the earlier one is complete."""
    begun = i64(0)
    while begun < movers:
        end = movers
        if not fine:
            if cta.me == 0:
                cta.tally[STOP_AT] = movers
            cuda.syncthreads()
            if moves and place >= begun and behind >= begun:
                cuda.atomic.min(cta.tally, STOP_AT, place)
            cuda.syncthreads()
            end = i64(cta.tally[STOP_AT])
        if moves and begun <= place < end:
            start(cta, nbytes, ALONE_BYTES, listed)
        cuda.syncthreads()
        copy_listed(cta, listed)
        begun = end
        cuda.syncthreads()
        if cta.me == 0:
            cta.tally[LISTED] = 0


@inlined
def several(cta: Any, hca: Any, together: Any, at: Any, stop: Any, done: Any, low: Any, listed: Any) -> None:
    """Execute a run. low: beginning of the bytes that the thread's WQE writes, or NEVER."""
    nbytes, opcode = i64(0), i64(-1)
    if done:
        nbytes, opcode = load(cta.mine + t.WORK_NBYTES), load(cta.mine + t.WORK_OPCODE)
    total, movers, place, behind, fine = plan(cta, done, opcode, nbytes, low, low + nbytes)
    if limited(cta):
        if cta.me == 0:
            admit(hca, i64(cta.tally[WQES]), total)
        cuda.syncthreads()
    if cta.me == THREADS - 1:  # because this thread seldom has a WQE of its own
        tally = cta.tally
        atomics = i64(tally[WQES]) if together == ATOMICS else i64(0)
        account(cta.pair, i64(tally[WQES]), i64(tally[WRITTEN]), i64(tally[READ_]), atomics, total, i64(tally[SIGNALLED]), stop - at)
    if together == ATOMICS:
        in_turn(cta, done, at, stop)
    else:
        move(cta, low != NEVER, nbytes, movers, place, behind, fine, listed)


@inlined
def single(cta: Any, hca: Any, together: Any, at: Any, stop: Any, moves: Any, listed: Any) -> None:
    """Execute a run of one WQE, which needs no plan."""
    if cta.me == at:
        nbytes, opcode = load(cta.mine + t.WORK_NBYTES), load(cta.mine + t.WORK_OPCODE)
        asks, write, read = load(cta.mine + t.WORK_CE) >= Ce.ALWAYS, opcode == Opcode.RDMA_WRITE, opcode == Opcode.RDMA_READ
        if limited(cta):
            admit(hca, 1, nbytes)
        if asks:
            cta.tally[LAST] = at
        atomic = together == ATOMICS
        account(cta.pair, 1, 1 if write else 0, 1 if read else 0, 1 if atomic else 0, nbytes, 1 if asks else 0, stop - at)
        if atomic:
            if cta.words[DIRTY] != 0:
                fence()
            update(cta.control, cta.pair, cta.mine)
        elif moves:
            start(cta, nbytes, SINGLE_BYTES, listed)
    cuda.syncthreads()
    copy_listed(cta, listed)


@inlined
def execute(cta: Any, hca: Any, visited: Any, first: Any, at: Any, n: Any, kind: Any, blocks: Any) -> Any:
    """Execute the WQEs of the batch from number ``at`` on, as far as they are of one class; return the number of the next WQE.

    visited: position of the QP in ``found``; first: index of the batch; n: its WQEBBs; kind, blocks: class and WQEBBs of the thread's own
    WQE.
    """
    listed = cuda.shared.array(THREADS, types.int32)
    together = i64(cta.kinds[at])
    if cta.me == at:
        end = at + blocks
        cta.words[SINGLE] = 1 if end >= n or cta.kinds[end] != together else 0
    if cta.me >= at and kind != together and kind != NO_WQE:
        cuda.atomic.min(cta.tally, STOP_AT, cta.me)
    cuda.syncthreads()
    stop = min(i64(cta.tally[STOP_AT]), n)
    done = kind == together and at <= cta.me < stop
    if done:
        note_fetched(cta.control, cta.pair, first + cta.me)
    low = i64(NEVER)
    if done and together != ATOMICS and load(cta.mine + t.WORK_SEGMENTS) != 0:
        low = load(cta.mine + (t.WORK_REMOTE if together == WRITES else t.WORK_PAIRS))
    if cta.words[SINGLE] != 0:
        single(cta, hca, together, at, stop, low != NEVER, listed)
    else:
        several(cta, hca, together, at, stop, done, low, listed)
    cuda.syncthreads()
    last = i64(cta.tally[LAST])
    if last >= 0:
        give_back(cta, visited)
    cuda.syncthreads()
    clear(cta)
    if cta.me == 0:
        cta.words[DIRTY] = 1 if last < 0 else 0
    if cta.me == last:
        opcode, nbytes = load(cta.mine + t.WORK_OPCODE), load(cta.mine + t.WORK_NBYTES)
        place_cqe(cta.control, cta.pair, first + cta.me, opcode, nbytes, CqeOpcode.REQ, 0, 0)
    cuda.syncthreads()
    return stop
