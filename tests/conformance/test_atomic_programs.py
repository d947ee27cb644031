"""Programs that combine atomics with fences and puts."""

import numpy as np
import pytest

from conformance import library as pgas
from conformance.checks import checklist, equal, launch_together, needs


@pgas.jit
def set_and_fetch(words, found, right, me):
    for i in range(words.size):
        pgas.atomic_set(words, i, 100 * me + i, right)
        found[i] = pgas.atomic_fetch(words, i, right)


@needs("atomic_set", "atomic_fetch")
@checklist("Atomics", "fetch sees set")
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_a_fetch_sees_the_set_before_it(heap, me, right, left, dtype):
    """By the same thread, on the same element of another PE."""
    words, found = heap.zeros(6, dtype), heap.zeros(6, dtype)
    launch_together(set_and_fetch, 1, 1, words, found, right, me)
    equal(found, (100 * me + np.arange(6)).astype(dtype))
    equal(words, (100 * left + np.arange(6)).astype(dtype))


@pgas.jit
def enqueue_and_count(box, tail, ready, rounds, me):
    """Each thread draws a place in PE 0's queue, puts its message there, calls fence, and increments the counter of messages."""
    for r in range(rounds):
        place = pgas.atomic_fetch_add(tail, 0, 1, 0)
        pgas.p(box, place, 1000 * (me + 1) + r, 0)
        pgas.fence()
        pgas.atomic_add(ready, 0, 1, 0)


@pgas.jit
def wait_and_sum(box, ready, total, out):
    pgas.wait_until(ready, 0, pgas.GE, total)
    for i in range(total):
        out[0] += box[i]


@checklist("Atomics", "atomics, fence and puts in order", "callers by different paths on one word")
def test_a_queue_of_messages(heap, me, n):
    """PE 0 and its peers add to one word; when the count is complete, all messages have arrived."""
    rounds, threads = (3, 4) if pgas.SIMULATOR else (20, 64)
    total = n * rounds * threads
    box, out = heap.zeros(total, np.int64), heap.zeros(1, np.int64)
    tail, ready = heap.zeros(1, np.int64), heap.zeros(1, np.int64)
    launch_together(enqueue_and_count, 1, threads, box, tail, ready, rounds, me)
    if me == 0:
        wait_and_sum[1, 1](box, ready, total, out)
    expected = threads * sum(1000 * (pe + 1) + r for pe in range(n) for r in range(rounds))
    equal(out, np.array([expected if me == 0 else 0]))


@pgas.jit
def insert_and_find(keys, values, wrong, rounds, me, n):
    """Insert keys into a table on all PEs, value before key, and look up those of the next PE, with a fence behind the fetch."""
    for i in range(rounds):
        key = 1 + me + i * n
        pe, place = key % n, 7 * key % keys.size
        while pgas.atomic_compare_swap(keys, place, 0, -1, pe) != 0:
            place = (place + 1) % keys.size
        pgas.p(values, place, key * key, pe)
        pgas.fence()
        pgas.atomic_set(keys, place, key, pe)
    for i in range(rounds):
        key = 1 + (me + 1) % n + i * n
        pe, place = key % n, 7 * key % keys.size
        there = np.int64(0)
        while there != key:
            there = pgas.atomic_fetch(keys, place, pe)
            if there > 0 and there != key:
                place = (place + 1) % keys.size
        pgas.fence()
        if pgas.g(values, place, pe) != key * key:
            wrong[0] += 1


@needs("atomic_set", "atomic_fetch")
@checklist("Atomics", "reads behind an atomic and a fence")
def test_a_hash_table(heap, me, n):
    rounds = 15 if pgas.SIMULATOR else 200
    keys, values, wrong = heap.zeros(4 * rounds, np.int64), heap.zeros(4 * rounds, np.int64), heap.zeros(1, np.int64)
    launch_together(insert_and_find, 1, 1, keys, values, wrong, rounds, me, n)
    equal(wrong, np.zeros(1, np.int64))
