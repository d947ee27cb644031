"""Planted mistakes that x86 hides and a GPU does not: the simulator's weak memory (PGAS_SIM_WEAK=seed) must show each of them.

LITMUS is the table of programs. Each has two forms: with the mistake, a forbidden outcome must be seen in at least one launch; without it,
never. Each round of a launch uses its own words, so nothing else orders the rounds.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, WARP, N, launch_together, needs_peer, neighbors
from conformance.collectives import LL_BYTES
from numba import cuda

import pgas
from pgas.kernels import layout, scope, state
from pgas.kernels.collectives import channel, lines, movement, near, reductions, slices
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
#: Launches of correct programs, and most launches until a mistake shows: the software card delays one of ten WQEs. Over ibrc, store
#: buffering shows in about one of ten launches.
LAUNCHES, MOST = 4, 100
CHUNK = 40


@cuda.jit(device=True)
def value_of(r, i):
    return 1000 * (r + 1) + i


class Words(NamedTuple):
    """What a round of the programs that are made of steps works on: a chunk of dest, source, and a flag."""

    dest: Any
    source: Any
    sig: Any
    wrong: Any
    r: int
    right: int


def fill(w, value=value_of):
    for i in range(cuda.threadIdx.x, CHUNK, cuda.blockDim.x):
        w.source[i] = value(w.r, i)


def p_each(w, qp=None):
    for i in range(cuda.threadIdx.x, CHUNK, cuda.blockDim.x):
        pgas.p(w.dest, i, value_of(w.r, i), w.right, *([] if qp is None else [qp]))


def count_wrong(w):
    for i in range(cuda.threadIdx.x, CHUNK, cuda.blockDim.x):
        if w.dest[i] != value_of(w.r, i):
            cuda.atomic.add(w.wrong, 0, 1)


#: The steps of programs, by the words of LITMUS. All take part in a step; "0:" before a word: only thread 0 does.
STEPS = {
    "fill": fill,
    "spoil": lambda w: fill(w, lambda r, i: -1),
    "p": p_each,
    "p_data": lambda w: p_each(w, DATA),
    "p_flag": lambda w: pgas.p(w.sig, w.r, 1, w.right, FLAG),
    "p_sig": lambda w: pgas.p(w.sig, w.r, 1, w.right),
    "put": lambda w: pgas.put_block(w.dest, w.source, w.right),
    "put_nbi": lambda w: pgas.put_nbi_block(w.dest, w.source, w.right),
    "put_nbi_data": lambda w: pgas.put_nbi_block(w.dest, w.source, w.right, CHUNK, DATA),
    "put_signal": lambda w: pgas.put_signal_block(w.dest, w.source, w.sig, w.r, 1, pgas.SIGNAL_SET, w.right),
    "get_nbi": lambda w: pgas.get_nbi_block(w.dest, w.source, w.right),
    "signal_set": lambda w: pgas.signal_op(w.sig, w.r, 1, pgas.SIGNAL_SET, w.right),
    "signal_add": lambda w: pgas.signal_op(w.sig, w.r, 1, pgas.SIGNAL_ADD, w.right),
    "atomic_add": lambda w: pgas.atomic_add(w.sig, w.r, 1, w.right),
    "signal_wait": lambda w: pgas.signal_wait_until(w.sig, w.r, pgas.EQ, 1),
    "wait": lambda w: pgas.wait_until(w.sig, w.r, pgas.EQ, 1),
    "wait_ge": lambda w: pgas.wait_until(w.sig, w.r, pgas.GE, 1),
    "fence": lambda w: pgas.fence(),
    "quiet": lambda w: pgas.quiet(),
    "quiet_pe": lambda w: pgas.quiet_pe(w.right),
    "flush": lambda w: pgas.flush(),
    "barrier_all": lambda w: pgas.barrier_all(),
    "barrier_all_block": lambda w: pgas.barrier_all_block(),
    "sync": lambda w: cuda.syncthreads(),
}


def made_of(words, anew=False):
    """Return a kernel that performs these steps in each round, then counts wrong data.

    Only the correct form has steps behind "+", only the one with the mistake has steps behind "-". All rounds use one chunk of source; if
    anew is true, each has its own.
    """
    steps = [(word.lstrip("+-").removeprefix("0:"), word.lstrip("+-").startswith("0:"), word[0]) for word in words.split()]

    @pgas.jit
    def rounds(data, source, sig, wrong, correct, right):
        left_out = "-" if correct else "+"
        for r in range(ROUNDS):
            here = slice(r * CHUNK, (r + 1) * CHUNK)
            w = Words(data[here], source[here] if anew else source[:CHUNK], sig, wrong, r, right)
            for step, alone, form in steps:
                if form != left_out and not (alone and cuda.threadIdx.x):
                    STEPS[step](w)
            cuda.syncthreads()
            count_wrong(w)
            cuda.syncthreads()

    return rounds


@pgas.jit
def store_buffering(word, met, blind, correct, right):
    """In each round PEs 0 and 1 store to each other, then read their own word; blind counts the PEs that saw nothing.

    They synchronize by atomics, which order nothing: before, to store at the same time, and after, as the fence of a barrier would help.
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


def by_turns(seen):
    """Return a kernel that waits for this PE's turn on PE 0, increases a count there, and passes the turn on."""

    @pgas.jit
    def count_by_turns(turn, count, correct, right):
        me, n = pgas.my_pe(), pgas.n_pes()
        for r in range(ROUNDS):
            mine = r * n + me
            while seen(turn, mine) != mine:
                pass
            if correct:
                pgas.fence()
            pgas.p(count, 0, pgas.g(count, 0, 0) + 1, 0)
            pgas.fence()
            pgas.atomic_set(turn, 0, mine + 1, 0)

    return count_by_turns


@dataclass(frozen=True)
class Litmus:
    """A program: kernel, threads, its arrays, the number of forbidden outcomes that this PE finds in them, why a NIC shows none."""

    kernel: Any
    threads: int = WARP
    arrays: tuple = ((ROUNDS * CHUNK, np.int64), (ROUNDS * CHUNK, np.int64), (ROUNDS, np.uint64), (1, np.int32))
    forbidden: Callable[..., int] = lambda data, source, sig, wrong: wrong[0]
    none_through_nic: str | None = None


ONE_FLAG = ((1, np.int64), (1, np.int64))


def lost(turn, count):
    return (ROUNDS * pgas.n_pes() - count[0]) if pgas.my_pe() == 0 else 0


A_READ = "a READ reads behind it"

LITMUS = {
    "flag without fence": Litmus(made_of("p_data +fence p_flag wait"), 1),
    "signal without fence": Litmus(made_of("fill put_nbi_data sync +0:fence 0:signal_add 0:signal_wait", anew=True)),
    "signal before data": Litmus(made_of("fill +put_signal -0:signal_set -0:fence -put 0:signal_wait")),
    "source reused without quiet": Litmus(made_of("fill put_nbi +quiet sync spoil sync 0:quiet 0:p_sig 0:wait")),
    "source reused without flush": Litmus(made_of("fill put_nbi +flush sync spoil sync 0:quiet 0:p_sig 0:wait")),
    "flush instead of quiet": Litmus(
        made_of("fill put_nbi sync +0:quiet_pe -0:flush 0:p_sig 0:wait"),
        none_through_nic="a NIC has read a source when the data has arrived, so flush is quiet",
    ),
    "got data without quiet": Litmus(made_of("0:barrier_all sync fill sync 0:barrier_all sync get_nbi +quiet")),
    # The fence covers the stores of its own thread only.
    "fence without syncthreads": Litmus(
        made_of("p +sync 0:fence 0:p_sig 0:wait"), none_through_nic="fence is quiet, which also waits for WQEs of other threads"
    ),
    # Neighbors synchronize by an atomic, which completes nothing.
    "barrier without quiet": Litmus(made_of("fill put_nbi_data +barrier_all_block -sync -0:atomic_add -0:wait_ge", anew=True)),
    "store buffering": Litmus(
        store_buffering, 1, ((ROUNDS, np.int32), (2 * ROUNDS, np.int32), (ROUNDS, np.int32)), lambda word, met, blind: (blind == 2).sum()
    ),
    "load behind a fetch": Litmus(by_turns(lambda turn, mine: pgas.atomic_fetch(turn, 0, 0)), 1, ONE_FLAG, lost, A_READ),
    "load behind a compare-and-swap": Litmus(
        by_turns(lambda turn, mine: pgas.atomic_compare_swap(turn, 0, mine, mine, 0)), 1, ONE_FLAG, lost, A_READ
    ),
}


@pytest.mark.parametrize("correct", [False, True], ids=["mistake", "correct"])
@pytest.mark.parametrize("name", LITMUS)
def test_litmus(heap, name, correct):
    program = LITMUS[name]
    if THROUGH_NIC and program.none_through_nic and not correct:
        pytest.skip(program.none_through_nic)
    found = launches = 0
    while not found and launches < (LAUNCHES if correct else MOST):
        arrays = [heap.zeros(size, dtype) for size, dtype in program.arrays]
        launch_together(program.kernel, 1, program.threads, *arrays, correct, neighbors()[2])
        pgas.barrier_all()
        found = sum(pgas.allgather_object(int(program.forbidden(*(array.copy_to_host() for array in arrays)))))
        for array in arrays:
            heap.free(array)
        launches += 1
    assert (found == 0) if correct else (found > 0), f"{found} in {launches} launches with seed {os.environ['PGAS_SIM_WEAK']}"


def one_flag(op, at, epoch):
    """lines.await_line, with the mistake that it looks at one of a line's two flags."""
    low, flag, high, _ = ptx.ld_line(at)
    while flag != u32(epoch):
        state.relax(op, at, 0, epoch)
        low, flag, high, _ = ptx.ld_line(at)
    return u64(low) | u64(high) << u64(32)


def without_fence(scope, write, word, fence=None, exchange=channel.sync_flags):
    """channel.sync_flags, with the mistake that nothing orders data before the flags."""
    return exchange(scope, write, word, ptx.nothing)


def without_wait(scope, write, word, fence=ptx.fence_sys, exchange=channel.sync_flags):
    """channel.sync_flags, with the mistake that a member does not wait until the others' data is there."""
    if word != layout.DONE:
        return exchange(scope, write, word, fence)
    send, rank = channel.write_flags(scope, write), scope.rank

    def sync_flags(op, c, epoch):
        if rank() < 32:
            fence()
        send(c[0], c[1], word, epoch)

    return sync_flags


@pytest.mark.skipif(THROUGH_NIC, reason="lines and stored flags are of p2p")
@pytest.mark.parametrize("mistake", [one_flag, without_fence, without_wait])
def test_lines_and_flags_of_collectives_are_delayed(heap, monkeypatch, mistake):
    """Halves of a line come one by one, and flags before data: an alltoall with the mistake planted goes wrong, small or large."""
    monkeypatch.setattr(*(lines, "await_line") if mistake is one_flag else (channel, "sync_flags"), mistake)
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
    assert found == [mistake is one_flag, mistake is not one_flag], f"with seed {os.environ['PGAS_SIM_WEAK']}"


def ones_by_one_flag():
    """lines.ones(), with the mistake that it looks at one of a line's two flags."""
    return lines._of_members(
        lambda at, step: ptx.ld_line(at), lambda line, flag: line[1] ^ flag, lambda line: u64(line[0]) | u64(line[2]) << u64(32), 1
    )


@pytest.mark.skipif(THROUGH_NIC or N < 3, reason="slices as lines are of p2p and three members")
@pytest.mark.parametrize("correct", [True, False])
def test_slices_as_lines_are_delayed(heap, monkeypatch, correct):
    """A broadcast and a reduction of slices are right, and go wrong if they take a half of a line for all of it."""
    if not correct:
        monkeypatch.setattr(lines, "ones", ones_by_one_flag)
    for made in (near.broadcast, slices.broadcast, slices.reduce, slices._through_lines):
        made.cache_clear()
    broadcast = simulator.overload(pgas.broadcast_block, movement.broadcast(scope.BLOCK), None)
    reduce = simulator.overload(pgas.reduce_block, reductions.reduce(scope.BLOCK), None)

    @pgas.jit
    def rounds(dest, source, wrong):
        t, n, me = cuda.threadIdx.x, pgas.n_pes(), pgas.my_pe()
        for r in range(3):
            for i in range(t, source.size, WARP):
                source[i] = (r * 7 + i + me) << 40
            broadcast(pgas.TEAM_WORLD, dest, source, r % n)
            for i in range(t, dest.size, WARP):
                if dest[i] != (r * 7 + i + r % n) << 40:
                    cuda.atomic.add(wrong, 0, 1)
            reduce(pgas.TEAM_WORLD, dest, source, pgas.SUM)
            for i in range(t, dest.size, WARP):
                if dest[i] != (n * (r * 7 + i) + n * (n - 1) // 2) << 40:
                    cuda.atomic.add(wrong, 1, 1)

    dest, source, wrong = heap.zeros(LL_BYTES // 8 + 5, np.int64), heap.zeros(LL_BYTES // 8 + 5, np.int64), heap.zeros(2, np.int64)
    launch_together(rounds, 1, WARP, dest, source, wrong)
    found = np.sum(pgas.allgather_object(wrong.copy_to_host()), axis=0)
    for made in (near.broadcast, slices.broadcast, slices.reduce, slices._through_lines):
        made.cache_clear()
    assert (found == 0).all() if correct else (found > 0).all(), f"{found} with seed {os.environ['PGAS_SIM_WEAK']}"
