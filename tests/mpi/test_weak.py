"""Planted mistakes that x86 hides and a GPU does not: the simulator's weak memory (PGAS_SIM_WEAK=seed) must show each of them.

An argument chooses one of two forms of each program: with the mistake it must go wrong at least once in all launches, without it never.
Each round of a launch uses its own words, so nothing else orders the rounds.
"""

import os

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, WARP, launch_together, needs_peer, neighbours
from conformance.collectives import LL_BYTES
from numba import cuda

import pgas
from pgas.kernels import scope, state
from pgas.kernels.collectives import movement, near
from pgas.kernels.compiler import ptx, u32, u64

if pgas.SIMULATOR:
    from pgas.kernels.compiler import simulator

pytestmark = [
    pytest.mark.skipif(not (pgas.SIMULATOR and os.environ.get("PGAS_SIM_WEAK")), reason="capability missing: PGAS_SIM_WEAK"),
    needs_peer,
]

#: Queue pairs of data and of flags: through a NIC, operations of one queue pair stay in order. Signals and atomics take the first, too.
DATA, FLAG = 2, 1

ROUNDS = 10
#: Launches of correct programs, and most launches until a mistake shows: the software card delays one of ten WQEs.
LAUNCHES, MOST = 4, 100
CHUNK = 40


@cuda.jit(device=True)
def value_of(r, i):
    return 1000 * (r + 1) + i


@cuda.jit(device=True)
def count_wrong(data, r, wrong):
    """Count the wrong elements of a round."""
    for i in range(cuda.threadIdx.x, CHUNK, cuda.blockDim.x):
        if data[r * CHUNK + i] != value_of(r, i):
            cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def flag_without_fence(data, source, sig, wrong, correct, right):
    """One thread sends element by element, then a flag."""
    for r in range(ROUNDS):
        for i in range(CHUNK):
            pgas.p(data, r * CHUNK + i, value_of(r, i), right, DATA)
        if correct:
            pgas.fence()
        pgas.p(sig, r, 1, right, FLAG)
        pgas.wait_until(sig, r, pgas.EQ, 1)
        count_wrong(data, r, wrong)


@pgas.jit
def signal_that_overtakes(data, source, sig, wrong, correct, right):
    """The block sends data, then a signal without a fence."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[r * CHUNK + i] = value_of(r, i)
        pgas.put_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[r * CHUNK : (r + 1) * CHUNK], right, CHUNK, DATA)
        cuda.syncthreads()
        if t == 0:
            if correct:
                pgas.fence()
            pgas.signal_op(sig, r, 1, pgas.SIGNAL_ADD, right)
            pgas.signal_wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def signal_before_data(data, source, sig, wrong, correct, right):
    """The signal is sent before the data."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = value_of(r, i)
        if correct:
            pgas.put_signal_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], sig, r, 1, pgas.SIGNAL_SET, right)
        else:
            if t == 0:
                pgas.signal_op(sig, r, 1, pgas.SIGNAL_SET, right)
                pgas.fence()
            pgas.put_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], right)
        if t == 0:
            pgas.signal_wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def source_reused_too_early(data, source, sig, wrong, correct, right):
    """The source of a non-blocking put is written again without a quiet; the rest is correct."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = value_of(r, i)
        pgas.put_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], right)
        if correct:
            pgas.quiet()
        cuda.syncthreads()
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = -1
        cuda.syncthreads()
        if t == 0:
            pgas.quiet()
            pgas.p(sig, r, 1, right)
            pgas.wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def source_reused_without_flush(data, source, sig, wrong, correct, right):
    """As above, with flush instead of quiet."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = value_of(r, i)
        pgas.put_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], right)
        if correct:
            pgas.flush()
        cuda.syncthreads()
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = -1
        cuda.syncthreads()
        if t == 0:
            pgas.quiet()
            pgas.p(sig, r, 1, right)
            pgas.wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def flush_instead_of_quiet(data, source, sig, wrong, correct, right):
    """After flush the sources are reusable, but the data need not have arrived."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = value_of(r, i)
        pgas.put_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], right)
        cuda.syncthreads()
        if t == 0:
            if correct:
                pgas.quiet_pe(right)
            else:
                pgas.flush()
            pgas.p(sig, r, 1, right)
            pgas.wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def got_data_used_too_early(data, source, sig, wrong, correct, right):
    """The destination of a non-blocking get is read without a quiet."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        if t == 0:
            pgas.barrier_all()
        cuda.syncthreads()
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[i] = value_of(r, i)
        cuda.syncthreads()
        if t == 0:
            pgas.barrier_all()
        cuda.syncthreads()
        pgas.get_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[:CHUNK], right)
        if correct:
            pgas.quiet()
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def fence_without_syncthreads(data, source, sig, wrong, correct, right):
    """Without syncthreads, thread 0's fence covers its own stores, but not those of the other threads."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            pgas.p(data, r * CHUNK + i, value_of(r, i), right)
        if correct:
            cuda.syncthreads()
        if t == 0:
            pgas.fence()
            pgas.p(sig, r, 1, right)
            pgas.wait_until(sig, r, pgas.EQ, 1)
        cuda.syncthreads()
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@pgas.jit
def sync_instead_of_barrier(data, source, sig, wrong, correct, right):
    """sync_all synchronises, but completes nothing."""
    t = cuda.threadIdx.x
    for r in range(ROUNDS):
        for i in range(t, CHUNK, cuda.blockDim.x):
            source[r * CHUNK + i] = value_of(r, i)
        pgas.put_nbi_block(data[r * CHUNK : (r + 1) * CHUNK], source[r * CHUNK : (r + 1) * CHUNK], right, CHUNK, DATA)
        if correct:
            pgas.barrier_all_block()
        else:
            sync_relaxed(sig, r, right)
        count_wrong(data, r, wrong)
        cuda.syncthreads()


@cuda.jit(device=True)
def sync_relaxed(sig, r, right):
    """A hand-made barrier of two neighbours without a quiet."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.atomic_add(sig, r, 1, right)
        pgas.wait_until(sig, r, pgas.GE, 1)
    cuda.syncthreads()


@pgas.jit
def store_buffering(word, met, blind, correct):
    """In each round PEs 0 and 1 store to each other, then read their own word; blind counts the PEs that saw nothing.

    They synchronise by atomics, which order nothing: before, to store at the same time, and after, as the fence of a barrier would help.
    """
    me = pgas.my_pe()
    peer = 1 - me
    if me < 2:
        for r in range(ROUNDS):
            pgas.atomic_add(met, 2 * r, 1, peer)
            pgas.wait_until(met, 2 * r, pgas.EQ, 1)
            pgas.p(word, r, 1, peer)
            if correct:
                pgas.quiet()
            if pgas.g(word, r, me) == 0:
                pgas.atomic_add(blind, r, 1, 0)
            pgas.atomic_add(met, 2 * r + 1, 1, peer)
            pgas.wait_until(met, 2 * r + 1, pgas.EQ, 1)


PROGRAMS = {
    "flag without fence": (flag_without_fence, 1),
    "signal without fence": (signal_that_overtakes, WARP),
    "signal before data": (signal_before_data, WARP),
    "source reused without quiet": (source_reused_too_early, WARP),
    "source reused without flush": (source_reused_without_flush, WARP),
    "flush instead of quiet": (flush_instead_of_quiet, WARP),
    "got data without quiet": (got_data_used_too_early, WARP),
    "fence without syncthreads": (fence_without_syncthreads, WARP),
    "barrier without quiet": (sync_instead_of_barrier, WARP),
}

#: Mistakes that are none through a NIC.
NONE_THROUGH_NIC = {
    "flush instead of quiet": "a NIC has read a source when the data has arrived, so flush is quiet",
    "fence without syncthreads": "fence is quiet, which also waits for WQEs of other threads",
}


def mistakes(heap, kernel, threads, *, correct):
    """Return how many wrong elements all PEs saw in all launches, of which one with wrong elements is the last."""
    _, _, right, _ = neighbours()
    total = 0
    for _ in range(LAUNCHES if correct else MOST):
        data, source = heap.zeros(ROUNDS * CHUNK, np.int64), heap.zeros(ROUNDS * CHUNK, np.int64)
        sig, wrong = heap.zeros(ROUNDS, np.uint64), heap.zeros(1, np.int32)
        launch_together(kernel, 1, threads, data, source, sig, wrong, correct, right)
        pgas.barrier_all()
        total += sum(pgas.allgather_object(int(wrong.copy_to_host()[0])))
        for array in (data, source, sig, wrong):
            heap.free(array)
        if total:
            break
    return total


@pytest.mark.parametrize("program", PROGRAMS)
def test_mistakes_are_found(heap, program):
    if THROUGH_NIC and program in NONE_THROUGH_NIC:
        pytest.skip(NONE_THROUGH_NIC[program])
    kernel, threads = PROGRAMS[program]
    assert mistakes(heap, kernel, threads, correct=False) > 0, f"nothing went wrong with seed {os.environ['PGAS_SIM_WEAK']}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_corrected_programs_never_fail(heap, program):
    kernel, threads = PROGRAMS[program]
    assert mistakes(heap, kernel, threads, correct=True) == 0, f"with seed {os.environ['PGAS_SIM_WEAK']}"


@pytest.mark.parametrize("correct", [False, True])
def test_store_buffering(heap, correct):
    """Without a quiet between store and load, both PEs may miss the other's store; with it, never."""
    both = 0
    for _ in range(LAUNCHES):
        word, met, blind = heap.zeros(ROUNDS, np.int32), heap.zeros(2 * ROUNDS, np.int32), heap.zeros(ROUNDS, np.int32)
        launch_together(store_buffering, 1, 1, word, met, blind, correct)
        pgas.barrier_all()
        both += int((pgas.broadcast_object(blind.copy_to_host()) == 2).sum())
        for array in (word, met, blind):
            heap.free(array)
    assert (both == 0) if correct else (both > 0), f"{both} rounds with seed {os.environ['PGAS_SIM_WEAK']}"


@pgas.jit
def count_by_turns(turn, count, swap, correct):
    """Wait for this PE's turn, by compare-and-swap or fetch on PE 0, increase a count there, and pass the turn on."""
    me, n = pgas.my_pe(), pgas.n_pes()
    for r in range(ROUNDS):
        mine, found = r * n + me, np.int64(-1)
        while found != mine:
            found = pgas.atomic_compare_swap(turn, 0, mine, mine, 0) if swap else pgas.atomic_fetch(turn, 0, 0)
        if correct:
            pgas.fence()
        pgas.p(count, 0, pgas.g(count, 0, 0) + 1, 0)
        pgas.fence()
        pgas.atomic_set(turn, 0, mine + 1, 0)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("correct", [pytest.param(False, marks=pytest.mark.skipif(THROUGH_NIC, reason="a READ reads behind it")), True])
def test_loads_behind_an_atomic_that_returns_a_value(heap, swap, correct):
    """Without a fence behind it, a PE reads the count of before it, and increments are lost; with the fence, none is."""
    lost = 0
    for _ in range(LAUNCHES):
        turn, count = heap.zeros(1, np.int64), heap.zeros(1, np.int64)
        launch_together(count_by_turns, 1, 1, turn, count, swap, correct)
        pgas.barrier_all()
        lost += ROUNDS * pgas.n_pes() - int(pgas.broadcast_object(count.copy_to_host())[0])
        for array in (turn, count):
            heap.free(array)
    assert (lost == 0) if correct else (lost > 0), f"{lost} increments with seed {os.environ['PGAS_SIM_WEAK']}"


def one_flag(op, at, epoch):
    """near.await_line, with the mistake that it looks at one of a line's two flags."""
    low, flag, high, _ = ptx.ld_line(at)
    while flag != u32(epoch):
        state.relax(op, at, 0, epoch)
        low, flag, high, _ = ptx.ld_line(at)
    return u64(low) | u64(high) << u64(32)


def without_fence(scope, word, fence=None, exchange=near._sync_flags):
    """near._sync_flags, with the mistake that nothing orders data before the flags."""
    return exchange(scope, word, ptx.nothing)


@pytest.mark.skipif(THROUGH_NIC, reason="lines and stored flags are of p2p")
@pytest.mark.parametrize("mistake", [one_flag, without_fence])
def test_lines_and_flags_of_collectives_are_delayed(heap, monkeypatch, mistake):
    """Halves of a line come one by one, and flags before data: an alltoall with the mistake planted goes wrong, small or large."""
    monkeypatch.setattr(near, {one_flag: "await_line", without_fence: "_sync_flags"}[mistake], mistake)
    alltoall = simulator.overload(pgas.alltoall_warp, movement.alltoall(scope.WARP), None)  # compiled anew, with the mistake

    @pgas.jit
    def rounds(dest, source, wrong):
        t, each = cuda.threadIdx.x, dest.size // pgas.n_pes()
        for r in range(3):
            for i in range(t, source.size, WARP):
                source[i] = value_of(r, i) << 40  # the upper half is another one in each round
            alltoall(pgas.TEAM_WORLD, dest, source)
            for i in range(t, dest.size, WARP):
                if dest[i] != value_of(r, pgas.my_pe() * each + i % each) << 40:
                    cuda.atomic.add(wrong, 0, 1)
            pgas.team_sync_warp(pgas.TEAM_WORLD)

    found = []
    for size in (CHUNK, LL_BYTES // 8 + 5):
        dest, source, wrong = (heap.zeros(count, np.int64) for count in (size * pgas.n_pes(), size * pgas.n_pes(), 1))
        for _ in range(2):
            launch_together(rounds, 1, WARP, dest, source, wrong)
        found.append(sum(pgas.allgather_object(int(wrong.copy_to_host()[0]))) > 0)
    assert found == [mistake is one_flag, mistake is without_fence], f"with seed {os.environ['PGAS_SIM_WEAK']}"
