"""Locks (OpenSHMEM 1.5, "Distributed Locking Routines"), in kernels, on the host and on streams."""

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import checklist, equal, launch_together, needs

pytestmark = needs("set_lock", "test_lock", "clear_lock")

BLOCKS, THREADS = (2, 3) if pgas.SIMULATOR else (4, 40)
REPEATS = 2 if pgas.SIMULATOR else 10
TOTAL = BLOCKS * THREADS * REPEATS


@pgas.jit
def add_under_lock(lock, idx, counter, repeats, pe):
    """Add 1 with a load and a store that only the lock keeps together."""
    for _ in range(repeats):
        pgas.set_lock(lock, idx)
        pgas.p(counter, 0, pgas.g(counter, 0, pe) + 1, pe)
        pgas.clear_lock(lock, idx)


@checklist("Atomics", "locks exclude each other's holders")
@pytest.mark.parametrize(("dtype", "idx"), [("int64", 0), ("uint64", (1, 1))])
def test_threads_of_all_pes_compete_for_a_lock(heap, me, n, dtype, idx):
    """For locks whose words are on different PEs."""
    lock, counter = heap.zeros((2, 2) if isinstance(idx, tuple) else 1, dtype), heap.zeros(1, np.int64)
    launch_together(add_under_lock, BLOCKS, THREADS, lock, idx, counter, REPEATS, n - 1)
    equal(counter, np.array([n * TOTAL if me == n - 1 else 0]))


@pgas.jit
def move_under_lock(lock, data, local, wrong, rounds):
    """A block adds 1 to all elements on all PEs, by gets and puts."""
    t = cuda.threadIdx.x
    for _ in range(rounds):
        if t == 0:
            pgas.set_lock(lock, 0)
        cuda.syncthreads()
        for pe in range(pgas.n_pes()):
            pgas.get_block(local, data, pe)
            if local[t] != local[(t + 1) % local.size]:
                wrong[0] = 1
            cuda.syncthreads()
            local[t] += 1
            pgas.put_block(data, local, pe)
        if t == 0:
            pgas.clear_lock(lock, 0)
        cuda.syncthreads()


@checklist("Atomics", "a lock hands over what its holder wrote")
def test_a_holder_sees_what_the_one_before_wrote(heap):
    """Whole arrays, on its own PE and on others."""
    n, threads, rounds = pgas.n_pes(), 40, 2 if pgas.SIMULATOR else 50
    lock, data, local = heap.zeros(1, np.int64), heap.zeros(threads, np.int64), heap.zeros(threads, np.int64)
    wrong = heap.zeros(1, np.int32)
    launch_together(move_under_lock, 1, threads, lock, data, local, wrong, rounds)
    equal(wrong, np.zeros(1, np.int32))
    equal(data, np.full(threads, n * rounds))


@pgas.jit
def try_locks(lock, counter, taken, repeats, pe):
    t = cuda.grid(1)
    done = 0
    while done < repeats:
        if pgas.test_lock(lock, 0) == 0:
            pgas.p(counter, 0, pgas.g(counter, 0, pe) + 1, pe)
            pgas.clear_lock(lock, 0)
            done += 1
    taken[t] = done


@checklist("Atomics", "locks exclude each other's holders")
def test_locks_that_are_tried(heap):
    me, n, threads = pgas.my_pe(), pgas.n_pes(), 3
    lock, counter, taken = heap.zeros(1, np.int64), heap.zeros(1, np.int64), heap.zeros(threads, np.int64)
    launch_together(try_locks, 1, threads, lock, counter, taken, REPEATS, 0)
    equal(counter, np.array([n * threads * REPEATS if me == 0 else 0]))
    equal(taken, np.full(threads, REPEATS))


@checklist("Atomics", "locks exclude each other's holders")
@pytest.mark.parametrize("on_stream", [False, True], ids=["at once", "on a stream"])
def test_locks_on_the_host(heap, me, n, on_stream):
    lock, counter = heap.zeros(1, np.int64), heap.zeros(1, np.int64)
    given = {"stream": cuda.stream()} if on_stream else {}
    for _ in range(3):
        pgas.set_lock(lock, 0, **given)
        pgas.p(counter, 0, pgas.g(counter, 0, 0, **given) + 1, 0, **given)
        pgas.clear_lock(lock, 0, **given)
    pgas.barrier_all()
    if me == 0:
        assert pgas.test_lock(lock, 0, **given) == 0
    pgas.barrier_all()
    held = pgas.allgather_object(None if me == 0 else pgas.test_lock(lock, 0, **given))
    assert held == [None] + [1] * (n - 1)
    if me == 0:
        assert pgas.test_lock(lock, 0) == 1, "its holder, too"
        pgas.clear_lock(lock, 0, **given)
    equal(counter, np.array([3 * n if me == 0 else 0]))


@checklist("Atomics", "locks exclude each other's holders")
def test_counts_of_a_lock_wrap(heap, me, n):
    """A lock that was cleared 2^32 - 1 times."""
    lock, counter = heap.full(1, (1 << 64) - (1 << 32), np.uint64), heap.zeros(1, np.int64)
    launch_together(add_under_lock, 1, THREADS, lock, 0, counter, 1, 0)
    equal(counter, np.array([n * THREADS if me == 0 else 0]))
    assert pgas.allgather_object(pgas.test_lock(lock, 0)).count(0) == 1
