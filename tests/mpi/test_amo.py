"""Chapter E as far as it is there, atomic memory operations: atomic_add and atomic_fetch_add under contention, at their limits."""

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, WARP, Watched, equal, name_of, neighbours, payload
from numba import cuda

import pgas

BLOCKS, THREADS = (2, 48) if pgas.SIMULATOR else (4, 128) if THROUGH_NIC else (32, 256)
REPEATS = 2 if pgas.SIMULATOR else 8

INTEGERS = [np.dtype(name) for name in ("int32", "uint32", "int64", "uint64")]
FLOATS = [np.dtype("float32"), np.dtype("float64")]

dtypes = pytest.mark.parametrize("dtype", INTEGERS + FLOATS, ids=name_of)
integers = pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)


@pgas.jit
def add_each(dest, idx, values, pe):
    """One thread adds all values to one element."""
    for i in range(values.size):
        pgas.atomic_add(dest, idx, values[i], pe)


@pgas.jit
def fetch_add_each(dest, idx, values, found, pe):
    for i in range(values.size):
        found[i] = pgas.atomic_fetch_add(dest, idx, values[i], pe)


@pgas.jit
def add_by_all(dest, idx, repeats, pe):
    """Every thread adds 1, repeats times."""
    for _ in range(repeats):
        pgas.atomic_add(dest, idx, 1, pe)


@pgas.jit
def fetch_add_by_all(dest, idx, repeats, found, pe):
    for i in range(repeats):
        found[cuda.grid(1) * repeats + i] = pgas.atomic_fetch_add(dest, idx, 1, pe)


@pgas.jit
def add_to_many(dest, pe):
    """Neighbouring threads add different values to different elements, in turns."""
    t = cuda.grid(1)
    for i in range(dest.size):
        pgas.atomic_add(dest, (t + i) % dest.size, i % 3, pe)


@pgas.jit
def add_in_branches(dest, pe):
    """Odd threads fetch, even ones do not, every fifth does nothing."""
    t = cuda.grid(1)
    if t % 5 != 0:
        if t % 2 == 1:
            pgas.atomic_fetch_add(dest, 0, 3, pe)
        else:
            pgas.atomic_add(dest, 0, 1, pe)


def repeats(dtype):
    """A NIC adds floats by compare-and-swap, which all contenders but one repeat: fewer of them contend."""
    return 1 if THROUGH_NIC and dtype.kind == "f" else REPEATS


def values_of(dtype):
    """Numbers whose sums are exact in any order."""
    return np.array([1, 2, 50, 0, 7], dtype) if dtype.kind == "u" else np.array([1, -2, 50, 0, -7], dtype)


@dtypes
def test_adds_to_the_element_and_to_no_other(heap, dtype):
    _, _, right, _ = neighbours()
    dest = Watched(heap, 9, dtype)
    values = cuda.to_device(values_of(dtype))
    dest.array[4:5].copy_to_device(np.array([1000], dtype))
    pgas.barrier_all()
    add_each[1, 1](dest.array, 4, values, right)
    dest.holds(4, np.array([1000 + values_of(dtype).sum()], dtype))


@dtypes
def test_fetch_returns_what_was_there(heap, dtype):
    _, _, right, _ = neighbours()
    dest, found = heap.full(3, 5, dtype), heap.zeros(5, dtype)
    fetch_add_each[1, 1](dest, 1, cuda.to_device(values_of(dtype)), found, right)
    sums = np.concatenate([[5], 5 + np.cumsum(values_of(dtype))]).astype(dtype)
    equal(found, sums[:-1])
    equal(dest, np.array([5, sums[-1], 5], dtype))


@dtypes
def test_to_itself(heap, dtype):
    dest, found = heap.zeros(1, dtype), heap.zeros(5, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(values_of(dtype)), found, pgas.my_pe())
    equal(dest, np.array([values_of(dtype).sum()], dtype))


@dtypes
@pytest.mark.parametrize("target", [0, -1])
def test_contention_of_all_threads_of_all_pes(heap, dtype, target):
    me, n = pgas.my_pe(), pgas.n_pes()
    target %= n
    dest = Watched(heap, 5, dtype)
    dest.array[2:3].copy_to_device(np.zeros(1, dtype))
    pgas.barrier_all()
    add_by_all[BLOCKS, THREADS](dest.array, 2, repeats(dtype), target)
    dest.holds(2, np.array([n * BLOCKS * THREADS * repeats(dtype) if me == target else 0], dtype))


@dtypes
def test_fetched_values_are_a_permutation(heap, dtype):
    """All PEs add 1 to one word: every value between start and end is fetched once, and by a PE's thread in rising order."""
    n, each = pgas.n_pes(), repeats(dtype)
    dest, found = heap.full(1, 100, dtype), heap.zeros(BLOCKS * THREADS * each, dtype)
    fetch_add_by_all[BLOCKS, THREADS](dest, 0, each, found, n - 1)
    pgas.barrier_all()
    mine = found.copy_to_host()
    everyone = np.concatenate(pgas.allgather_object(mine))
    assert np.array_equal(np.sort(everyone), np.arange(100, 100 + everyone.size).astype(dtype))
    assert (np.diff(mine.reshape(-1, each).astype(np.float64), axis=1) > 0).all()
    equal(dest, np.array([100 + (everyone.size if pgas.my_pe() == n - 1 else 0)], dtype))


@integers
def test_integers_wrap(heap, dtype):
    _, _, right, _ = neighbours()
    limits = np.iinfo(dtype)
    dest, found = heap.full(2, limits.max, dtype), heap.zeros(2, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(np.array([1, 2], dtype)), found, right)
    equal(found, np.array([limits.max, limits.min], dtype))
    equal(dest, np.array([limits.min + 2, limits.max], dtype))


@pgas.jit
def add_minus_one(dest, pe):
    pgas.atomic_add(dest, 0, -1, pe)


@dtypes
def test_minus_one_of_every_dtype(heap, dtype):
    """A signed number wraps into an unsigned element, as in an assignment."""
    _, _, right, _ = neighbours()
    dest = heap.full(2, 5, dtype)
    add_minus_one[1, 1](dest, right)
    add_minus_one[1, 1](dest, right)
    equal(dest, np.array([3, 5], dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_floats_are_rounded_to_the_nearest(heap, dtype):
    _, _, right, _ = neighbours()
    values = np.array([0.1, 1e-3, 1e7, -1e7, 3.3], dtype)
    dest, found = heap.zeros(1, dtype), heap.zeros(values.size, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(values), found, right)
    sums = [dtype.type(0)]
    for value in values:
        sums.append(dtype.type(sums[-1] + value))
    equal(found, np.array(sums[:-1], dtype))


@dtypes
def test_many_elements(heap, dtype):
    """Different threads hit different elements at the same time; every element gets exactly its share."""
    _, _, right, _ = neighbours()
    nelems = 12
    dest = heap.zeros(nelems, dtype)
    add_to_many[2, WARP](dest, right)
    expected = np.zeros(nelems, np.int64)
    for t in range(2 * WARP):
        for i in range(nelems):
            expected[(t + i) % nelems] += i % 3
    equal(dest, expected.astype(dtype))


def test_divergent_threads(heap):
    n = pgas.n_pes()
    dest = heap.zeros(2, np.int64)
    add_in_branches[BLOCKS, THREADS](dest, 0)
    threads = np.arange(BLOCKS * THREADS)
    total = n * int(np.where(threads % 5 == 0, 0, np.where(threads % 2 == 1, 3, 1)).sum())
    equal(dest, np.array([total if pgas.my_pe() == 0 else 0, 0]))


@dtypes
def test_two_dimensions(heap, dtype):
    _, _, right, _ = neighbours()
    dest, found = Watched(heap, (3, 4), dtype), heap.zeros(5, dtype)
    dest.array[2].copy_to_device(np.zeros(4, dtype))
    pgas.barrier_all()
    add_each[1, 1](dest.array, (2, 1), cuda.to_device(values_of(dtype)), right)
    fetch_add_each[1, 1](dest.array, (2, 2), cuda.to_device(values_of(dtype)), found, right)
    total = values_of(dtype).sum()
    dest.holds(8, np.array([0, total, total, 0], dtype))


@pgas.jit
def tickets(slots, counter, value, repeats, pe):
    """Each thread draws tickets and writes its mark where the ticket says: no two may draw the same."""
    for _ in range(repeats):
        ticket = pgas.atomic_fetch_add(counter, 0, 1, pe)
        pgas.p(slots, ticket, value, pe)


def test_tickets(heap):
    me, n = pgas.my_pe(), pgas.n_pes()
    each = BLOCKS * THREADS * REPEATS
    slots, counter = heap.full(n * each, -1, np.int32), heap.zeros(1, np.int64)
    tickets[BLOCKS, THREADS](slots, counter, me, REPEATS, 0)
    pgas.barrier_all()
    found = slots.copy_to_host()
    counts = [int((found == pe).sum()) for pe in range(n)]
    assert counts == ([each] * n if me == 0 else [0] * n)


@pgas.jit
def add_beside_puts(dest, source, repeats, pe):
    """Adds to one 32-bit half of each word while another thread puts the other half."""
    t = cuda.threadIdx.x
    for _ in range(repeats):
        if t < WARP:
            pgas.atomic_add(dest, 2 * t, 1, pe)
        else:
            pgas.p(dest, 2 * (t - WARP) + 1, source[t - WARP], pe)


def test_half_words_beside_each_other(heap):
    _, _, right, left = neighbours()
    dest, source = heap.zeros(2 * WARP, np.int32), heap.array(payload(WARP, np.int32, pgas.my_pe()))
    add_beside_puts[1, 2 * WARP](dest, source, 3, right)
    expected = np.zeros(2 * WARP, np.int32)
    expected[0::2], expected[1::2] = 3, payload(WARP, np.int32, left)
    equal(dest, expected)
