"""Concurrency: more blocks than fit at once, concurrent kernels, host threads."""

import contextlib
import threading

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import Watched, checklist, equal, everywhere, needs_peer, payload

MANY = 150 if pgas.SIMULATOR else 20_000


@pgas.jit
def put_chunk_of_block(dest, source, counter, chunk, pe):
    b = cuda.blockIdx.x
    pgas.put_block(dest[b * chunk : (b + 1) * chunk], source[b * chunk : (b + 1) * chunk], pe)
    if cuda.threadIdx.x == 0:
        pgas.atomic_add(counter, 0, 1, pe)


@checklist("Concurrency", "more CTAs than fit at once")
def test_more_blocks_than_a_gpu_runs_at_once(heap, me, right, left):
    """Blocks that wait for no other may run one after the other; all their puts arrive."""
    chunk = 9
    dest, source = Watched(heap, MANY * chunk + 3, np.int16), heap.array(payload(MANY * chunk, np.int16, me))
    counter = heap.zeros(1, np.int64)
    put_chunk_of_block[MANY, 40](dest.array, source, counter, chunk, right)
    dest.holds(0, payload(MANY * chunk, np.int16, left))
    equal(counter, np.array([MANY]))


@pgas.jit
def every_lane_elsewhere(dest, source, counter, right, left):
    """Lanes of one warp execute different operations, in loops of different length."""
    i = cuda.grid(1)
    for r in range(i % 5):
        if i % 4 == 0:
            pgas.p(dest, i, source[i] + r, right)
            pgas.fence()
        elif i % 4 == 1:
            pgas.put(dest[i : i + 1], source[i : i + 1], right)
            pgas.fence()
        elif i % 4 == 2:
            pgas.atomic_add(counter, i % 7, r + 1, right)
        else:
            pgas.quiet()
            dest[i] = pgas.g(source, i, left)
    if i % 3 == 0:
        pgas.fence()


@checklist("Concurrency", "diverged warps")
def test_diverged_warps(heap, me, right, left):
    threads = 2 * 48
    dest, source = heap.full(threads, -1, np.int64), heap.array(np.arange(threads) + 1000 * me)
    counter = heap.zeros(7, np.int64)
    every_lane_elsewhere[2, 48](dest, source, counter, right, left)
    i = np.arange(threads)
    theirs = i + 1000 * left
    expected = np.select([i % 5 == 0, i % 4 == 0, i % 4 == 1, i % 4 == 3], [-1, theirs + i % 5 - 1, theirs, theirs], -1)
    equal(dest, expected)
    sums = np.zeros(7, np.int64)
    for j in i[i % 4 == 2]:
        sums[j % 7] += sum(range(1, j % 5 + 1))
    equal(counter, sums)


@pgas.jit
def wait_for_the_other(sig, seen):
    seen[0] = pgas.signal_wait_until(sig, 0, pgas.GE, 7)


@pgas.jit
def signal_from_here(sig, pe):
    pgas.signal_op(sig, 0, 7, pgas.SIGNAL_SET, pe)


@pytest.mark.gpu
@checklist("Concurrency", "two kernels in flight")
def test_a_kernel_waits_for_another_of_its_own_pe(heap, me):
    """On two streams of one GPU. Both kernels are loaded before, as loading may wait for running kernels."""
    sig, seen = heap.zeros(1, np.uint64), heap.zeros(1, np.uint64)
    signal_from_here[1, 1](sig, me)
    wait_for_the_other[1, 1](sig, seen)
    pgas.synchronize()
    sig.copy_to_device(np.zeros(1, np.uint64))
    seen.copy_to_device(np.zeros(1, np.uint64))
    first, second = cuda.stream(), cuda.stream()
    wait_for_the_other[1, 1, first](sig, seen)
    signal_from_here[1, 1, second](sig, me)
    pgas.synchronize(first)
    equal(seen, np.array([7], np.uint64))


@needs_peer
@checklist("Concurrency", "a kernel that waits for another PE's")
def test_kernels_of_two_pes_that_were_launched_apart(heap, right):
    """One block on each PE, launched independently; each waits for the other's signal."""
    sig, seen = heap.zeros(1, np.uint64), heap.zeros(1, np.uint64)
    signal_from_here[1, 1](sig, right)
    wait_for_the_other[1, 1](sig, seen)
    equal(seen, np.array([7], np.uint64))


@pgas.jit
def put_and_quiet(dest, source, pe):
    pgas.put_nbi_block(dest, source, pe)
    pgas.quiet()


@checklist("Concurrency", "several host threads")
def test_host_threads_launch_at_the_same_time(heap, me, right, left):
    """Each thread has its own stream and arrays; one makes the collective calls. The simulator refuses a second concurrent kernel."""
    count, launches = 3, 4
    dests = [Watched(heap, 120, np.int32) for _ in range(count)]
    sources = [heap.array(payload(100, np.int32, 10 * me + i)) for i in range(count)]
    failures, turn = [], threading.Lock() if pgas.SIMULATOR else contextlib.nullcontext()

    def work(i, stream):
        try:
            for _ in range(launches):
                with turn:
                    put_and_quiet[1, 32, stream](dests[i].array[9:109], sources[i], right)
                    pgas.synchronize(stream)
        except Exception as error:
            failures.append(f"thread {i}: {error!r}")

    threads = [threading.Thread(target=work, args=(i, cuda.stream())) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everywhere("; ".join(failures))
    for i, dest in enumerate(dests):
        dest.holds(9, payload(100, np.int32, 10 * left + i))


@checklist("Concurrency", "several host threads")
def test_a_new_thread_makes_a_bound_launch(heap, me, right, left):
    """A new thread has no current GPU. A bound launch bypasses the compiler's launch, which would choose one. The thread copies, too.

    The thread that bound the launch has ended; Python gives its number to the new one.
    """
    dest, source = heap.zeros(100, np.int32), heap.array(payload(100, np.int32, me))
    bound, failures, seen = [], [], []

    def bind():
        bound.append(put_and_quiet[1, 32].bind(dest, source, right))

    def work():
        try:
            bound[0]()
            pgas.synchronize()
            seen.append(source.copy_to_host())
        except Exception as error:
            failures.append(repr(error))

    for target in (bind, work):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    everywhere("; ".join(failures))
    equal(seen[0], payload(100, np.int32, me))
    pgas.barrier_all()
    equal(dest, payload(100, np.int32, left))
