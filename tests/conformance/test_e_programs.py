"""Chapter E, programs that only atomic operations make right: a lock, tokens that nobody loses, bits, a queue of messages."""

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import THROUGH_NIC, checklist, equal, everywhere, launch_together, name_of, needs, neighbours

ENTRIES = 3 if pgas.SIMULATOR else 100
WORDS = [np.dtype(name) for name in ("int32", "uint64")]

words = pytest.mark.parametrize("dtype", WORDS, ids=name_of)


@pgas.jit
def enter_by_turns(lock, shared, entries, mine):
    """The lock and what it guards are PE 0's; whoever holds it reads and writes two words that only together are right."""
    for _ in range(entries):
        while pgas.atomic_compare_swap(lock, 0, 0, mine, 0) != 0:
            pass
        first = pgas.g(shared, 0, 0)
        second = pgas.g(shared, 1, 0)
        pgas.p(shared, 0, first + 1, 0)
        pgas.p(shared, 1, second - 1, 0)
        pgas.quiet()
        pgas.atomic_swap(lock, 0, 0, 0)


@needs("atomic_compare_swap", "atomic_swap")
@checklist("E", "compare_swap makes a lock")
@words
def test_a_lock(heap, dtype):
    me, n = pgas.my_pe(), pgas.n_pes()
    lock, shared = heap.zeros(1, dtype), heap.zeros(2, np.int64)
    blocks = 2
    launch_together(enter_by_turns, blocks, 1, lock, shared, ENTRIES, me + 1)
    total = n * blocks * ENTRIES if me == 0 else 0
    equal(shared, np.array([total, -total]))
    equal(lock, np.zeros(1, dtype))


@pgas.jit
def pass_tokens(slots, held, rounds):
    """Every thread begins with a token of its own, swaps it into some slot of some PE again and again, and keeps what it has at the end."""
    me, n, t = pgas.my_pe(), pgas.n_pes(), cuda.grid(1)
    token = me * cuda.gridsize(1) + t + 1
    for r in range(rounds):
        token = pgas.atomic_swap(slots, (t + r) % slots.size, token, (me + t + r) % n)
    held[t] = token


@needs("atomic_swap")
@checklist("E", "swap conserves tokens")
@words
def test_tokens_are_conserved(heap, dtype):
    n = pgas.n_pes()
    threads, rounds = (16, 6) if pgas.SIMULATOR else (64, 50)
    slots, held = heap.zeros(5, dtype), heap.zeros(threads, dtype)
    launch_together(pass_tokens, 1, threads, slots, held, rounds)
    pgas.barrier_all()
    found = np.concatenate(pgas.allgather_object(np.concatenate([slots.copy_to_host(), held.copy_to_host()])))
    everywhere(None if sorted(found[found != 0]) == list(range(1, n * threads + 1)) else f"tokens lost or doubled: {sorted(found)}")


@pgas.jit
def set_bits(words, seen, me, n):
    """Lane t of PE me has the bits with numbers me, me + n, ...: it sets them one by one, and takes every other one away again."""
    t = cuda.threadIdx.x
    for bit in range(me, 32, n):
        old = pgas.atomic_fetch_or(words, t, 1 << bit, 0)
        seen[t] += (old >> bit) & 1
        pgas.atomic_xor(words, 8 + t, 1 << bit, 0)
        if bit % 2 == 1:
            old = pgas.atomic_fetch_and(words, t, ~(1 << bit), 0)
            seen[t] += 1 - ((old >> bit) & 1)


@needs("atomic_fetch_or", "atomic_xor", "atomic_fetch_and")
@checklist("E", "bits, each set by one PE")
@pytest.mark.parametrize("dtype", [np.dtype("uint32"), np.dtype("uint64")], ids=name_of)
def test_bits_that_each_pe_sets(heap, dtype):
    me, n = pgas.my_pe(), pgas.n_pes()
    words, seen = heap.zeros(16, dtype), heap.zeros(8, np.int64)
    launch_together(set_bits, 1, 8, words, seen, me, n)
    equal(seen, np.zeros(8, np.int64), "bits that somebody else has changed")
    expected = np.repeat(np.array([0x5555_5555, 0xFFFF_FFFF], dtype), 8) if me == 0 else np.zeros(16, dtype)
    equal(words, expected)


@pgas.jit
def set_and_fetch(words, found, right, me):
    for i in range(words.size):
        pgas.atomic_set(words, i, 100 * me + i, right)
        found[i] = pgas.atomic_fetch(words, i, right)


@needs("atomic_set", "atomic_fetch")
@checklist("E", "fetch sees set")
@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_a_fetch_sees_the_set_before_it(heap, dtype):
    """Of the same thread, of the same element, at another PE."""
    me, _, right, left = neighbours()
    words, found = heap.zeros(6, dtype), heap.zeros(6, dtype)
    launch_together(set_and_fetch, 1, 1, words, found, right, me)
    equal(found, (100 * me + np.arange(6)).astype(dtype))
    equal(words, (100 * left + np.arange(6)).astype(dtype))


@pgas.jit
def enqueue_and_count(box, tail, ready, rounds, me):
    """Each thread draws a place in PE 0's queue, puts its message there, and says after a fence that one more is there."""
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


@checklist("E", "atomics, fence and puts in order", "callers by different paths on one word")
def test_a_queue_of_messages(heap):
    """PE 0 itself and its peers add to one word; when the count is complete all messages are there."""
    me, n = pgas.my_pe(), pgas.n_pes()
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
def add_to_every_second(values, step, value, pe):
    pgas.atomic_add(values, step * cuda.grid(1), value, pe)


@checklist("E", "neighbouring words are untouched")
@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32"])
def test_half_a_word(heap, dtype):
    """An atomic on 32 bits leaves the other 32 of the aligned word alone, whichever half it is."""
    _, _, right, _ = neighbours()
    for first in (0, 1):
        values = heap.full(2 * 16 + 1, 7, dtype)
        add_to_every_second[1, 16](values[first:], 2, 5, right)
        expected = np.full(33, 7, dtype)
        expected[first : 32 + first : 2] += 5
        equal(values, expected)


@pgas.jit
def add_halves(total, repeats, pe):
    for _ in range(repeats):
        pgas.atomic_add(total, 0, 0.5, pe)


@checklist("E", "floats add up")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_halves_add_up(heap, dtype):
    """Sums that are exact; through a NIC a loop of compare-and-swaps, which must not lose one either."""
    me, n = pgas.my_pe(), pgas.n_pes()
    threads = 4 if THROUGH_NIC and pgas.SIMULATOR else 16
    total = heap.zeros(1, dtype)
    launch_together(add_halves, 1, threads, total, 2, 0)
    equal(total, np.array([n * threads if me == 0 else 0], dtype))
