"""Atomic memory operations: each compared with NumPy, additions at their limits, and all under contention."""

import functools

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import THROUGH_NIC, WARP, Watched, checklist, equal, name_of, payload

BLOCKS, THREADS = (2, 48) if pgas.SIMULATOR else (4, 128) if THROUGH_NIC else (32, 256)
REPEATS = 2 if pgas.SIMULATOR else 8

INTEGERS = [np.dtype(name) for name in ("int32", "uint32", "int64", "uint64")]
FLOATS = [np.dtype("float32"), np.dtype("float64")]
#: Atomics of a NIC have 32 and 64 bits.
NARROW = [] if THROUGH_NIC else [np.dtype("int16"), np.dtype("uint16")]
HALVES = [] if THROUGH_NIC else [np.dtype("float16")]
needs_16_bits = pytest.mark.skipif(THROUGH_NIC, reason="refused: atomics on 16 bits through a NIC")

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
    """Every thread adds 1 ``repeats`` times."""
    for _ in range(repeats):
        pgas.atomic_add(dest, idx, 1, pe)


@pgas.jit
def fetch_add_by_all(dest, idx, repeats, found, pe):
    for i in range(repeats):
        found[cuda.grid(1) * repeats + i] = pgas.atomic_fetch_add(dest, idx, 1, pe)


@pgas.jit
def add_to_many(dest, pe):
    """Neighboring threads add different values to different elements."""
    t = cuda.grid(1)
    for i in range(dest.size):
        pgas.atomic_add(dest, (t + i) % dest.size, i % 3, pe)


@pgas.jit
def add_in_branches(dest, pe):
    """Odd threads fetch, even ones do not, and every fifth does nothing."""
    t = cuda.grid(1)
    if t % 5 != 0:
        if t % 2 == 1:
            pgas.atomic_fetch_add(dest, 0, 3, pe)
        else:
            pgas.atomic_add(dest, 0, 1, pe)


def contention(dtype):
    """Return blocks, threads and additions of each. Few for floats over a NIC, whose compare-and-swap all contenders but one repeat."""
    return (2, 8 if pgas.SIMULATOR else 32, 2) if THROUGH_NIC and dtype.kind == "f" else (BLOCKS, THREADS, REPEATS)


def values_of(dtype):
    """Return numbers whose sums are exact in any order."""
    return np.array([1, 2, 50, 0, 7], dtype) if dtype.kind == "u" else np.array([1, -2, 50, 0, -7], dtype)


@checklist("Atomics", "every operation and type")
@dtypes
def test_adds_to_the_element_and_to_no_other(heap, right, dtype):
    dest = Watched(heap, 9, dtype)
    values = cuda.to_device(values_of(dtype))
    dest.array[4:5].copy_to_device(np.array([1000], dtype))
    pgas.barrier_all()
    add_each[1, 1](dest.array, 4, values, right)
    dest.holds(4, np.array([1000 + values_of(dtype).sum()], dtype))


@checklist("Atomics", "every operation and type")
@dtypes
def test_fetch_returns_the_old_value(heap, right, dtype):
    dest, found = heap.full(3, 5, dtype), heap.zeros(5, dtype)
    fetch_add_each[1, 1](dest, 1, cuda.to_device(values_of(dtype)), found, right)
    sums = np.concatenate([[5], 5 + np.cumsum(values_of(dtype))]).astype(dtype)
    equal(found, sums[:-1])
    equal(dest, np.array([5, sums[-1], 5], dtype))


@checklist("Atomics", "every operation and type")
@dtypes
def test_to_itself(heap, dtype):
    dest, found = heap.zeros(1, dtype), heap.zeros(5, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(values_of(dtype)), found, pgas.my_pe())
    equal(dest, np.array([values_of(dtype).sum()], dtype))


@checklist("Atomics", "contention counts exactly", "floats add up", "callers by different paths on one word")
@dtypes
@pytest.mark.parametrize("target", [0, -1])
def test_contention_of_all_threads_of_all_pes(heap, me, n, dtype, target):
    target %= n
    dest = Watched(heap, 5, dtype)
    dest.array[2:3].copy_to_device(np.zeros(1, dtype))
    pgas.barrier_all()
    blocks, threads, each = contention(dtype)
    add_by_all[blocks, threads](dest.array, 2, each, target)
    dest.holds(2, np.array([n * blocks * threads * each if me == target else 0], dtype))


@checklist("Atomics", "fetch_add is a permutation")
@dtypes
def test_fetched_values_are_a_permutation(heap, dtype):
    """All PEs add 1 to one word: every value is fetched once, and each thread fetches rising values."""
    n, (blocks, threads, each) = pgas.n_pes(), contention(dtype)
    dest, found = heap.full(1, 100, dtype), heap.zeros(blocks * threads * each, dtype)
    fetch_add_by_all[blocks, threads](dest, 0, each, found, n - 1)
    pgas.barrier_all()
    mine = found.copy_to_host()
    everyone = np.concatenate(pgas.allgather_object(mine))
    assert np.array_equal(np.sort(everyone), np.arange(100, 100 + everyone.size).astype(dtype))
    assert (np.diff(mine.reshape(-1, each).astype(np.float64), axis=1) > 0).all()
    equal(dest, np.array([100 + (everyone.size if pgas.my_pe() == n - 1 else 0)], dtype))


@checklist("Atomics", "every operation and type")
@integers
def test_integers_wrap(heap, right, dtype):
    limits = np.iinfo(dtype)
    dest, found = heap.full(2, limits.max, dtype), heap.zeros(2, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(np.array([1, 2], dtype)), found, right)
    equal(found, np.array([limits.max, limits.min], dtype))
    equal(dest, np.array([limits.min + 2, limits.max], dtype))


@pgas.jit
def add_minus_one(dest, pe):
    pgas.atomic_add(dest, 0, -1, pe)


@checklist("Atomics", "every operation and type")
@dtypes
def test_minus_one_of_every_dtype(heap, right, dtype):
    """A signed number wraps in an unsigned element, as in an assignment."""
    dest = heap.full(2, 5, dtype)
    add_minus_one[1, 1](dest, right)
    add_minus_one[1, 1](dest, right)
    equal(dest, np.array([3, 5], dtype))


@checklist("Atomics", "floats add up")
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_floats_are_rounded_to_the_nearest(heap, right, dtype):
    values = np.array([0.1, 1e-3, 1e7, -1e7, 3.3], dtype)
    dest, found = heap.zeros(1, dtype), heap.zeros(values.size, dtype)
    fetch_add_each[1, 1](dest, 0, cuda.to_device(values), found, right)
    sums = [dtype.type(0)]
    for value in values:
        sums.append(dtype.type(sums[-1] + value))
    equal(found, np.array(sums[:-1], dtype))


@checklist("Atomics", "every operation and type")
@dtypes
def test_many_elements(heap, right, dtype):
    """Threads add to different elements at the same time; every element gets exactly its share."""
    nelems = 12
    dest = heap.zeros(nelems, dtype)
    add_to_many[2, WARP](dest, right)
    expected = np.zeros(nelems, np.int64)
    for t in range(2 * WARP):
        for i in range(nelems):
            expected[(t + i) % nelems] += i % 3
    equal(dest, expected.astype(dtype))


@checklist("Atomics", "contention counts exactly")
@checklist("Concurrency", "diverged warps")
def test_divergent_threads(heap, n):
    dest = heap.zeros(2, np.int64)
    add_in_branches[BLOCKS, THREADS](dest, 0)
    threads = np.arange(BLOCKS * THREADS)
    total = n * int(np.where(threads % 5 == 0, 0, np.where(threads % 2 == 1, 3, 1)).sum())
    equal(dest, np.array([total if pgas.my_pe() == 0 else 0, 0]))


@checklist("Atomics", "every operation and type")
@dtypes
def test_two_dimensions(heap, right, dtype):
    dest, found = Watched(heap, (3, 4), dtype), heap.zeros(5, dtype)
    dest.array[2].copy_to_device(np.zeros(4, dtype))
    pgas.barrier_all()
    add_each[1, 1](dest.array, (2, 1), cuda.to_device(values_of(dtype)), right)
    fetch_add_each[1, 1](dest.array, (2, 2), cuda.to_device(values_of(dtype)), found, right)
    total = values_of(dtype).sum()
    dest.holds(8, np.array([0, total, total, 0], dtype))


@pgas.jit
def tickets(slots, counter, value, repeats, pe):
    """Each thread draws tickets and writes its mark at the ticket's place; no two threads may draw the same ticket."""
    for _ in range(repeats):
        ticket = pgas.atomic_fetch_add(counter, 0, 1, pe)
        pgas.p(slots, ticket, value, pe)


@checklist("Atomics", "fetch_add is a permutation")
def test_tickets(heap, me, n):
    each = BLOCKS * THREADS * REPEATS
    slots, counter = heap.full(n * each, -1, np.int32), heap.zeros(1, np.int64)
    tickets[BLOCKS, THREADS](slots, counter, me, REPEATS, 0)
    pgas.barrier_all()
    found = slots.copy_to_host()
    counts = [int((found == pe).sum()) for pe in range(n)]
    assert counts == ([each] * n if me == 0 else [0] * n)


@pgas.jit
def add_beside_puts(dest, source, repeats, pe):
    """Add to one 32-bit half of each word while another thread puts the other half."""
    t = cuda.threadIdx.x
    for _ in range(repeats):
        if t < WARP:
            pgas.atomic_add(dest, 2 * t, 1, pe)
        else:
            pgas.p(dest, 2 * (t - WARP) + 1, source[t - WARP], pe)
            pgas.fence()


@checklist("Atomics", "neighboring words are untouched")
def test_half_words_beside_each_other(heap, right, left):
    dest, source = heap.zeros(2 * WARP, np.int32), heap.array(payload(WARP, np.int32, pgas.my_pe()))
    add_beside_puts[1, 2 * WARP](dest, source, 3, right)
    expected = np.zeros(2 * WARP, np.int32)
    expected[0::2], expected[1::2] = 3, payload(WARP, np.int32, left)
    equal(dest, expected)


# ------------------------------------------------------------------------------------------------ every operation against NumPy


@pgas.jit
def inc_each(dest, values, conds, found, pe):
    for _ in range(values.size):
        pgas.atomic_inc(dest, 3, pe)


@pgas.jit
def fetch_inc_each(dest, values, conds, found, pe):
    for i in range(values.size):
        found[i] = pgas.atomic_fetch_inc(dest, 3, pe)


@pgas.jit
def fetch_and_add_each(dest, values, conds, found, pe):
    """Call atomic_fetch between atomic_adds."""
    for i in range(values.size):
        found[i] = pgas.atomic_fetch(dest, 3, pe)
        pgas.atomic_add(dest, 3, values[i], pe)


@pgas.jit
def compare_swap_each(dest, values, conds, found, pe):
    for i in range(values.size):
        found[i] = pgas.atomic_compare_swap(dest, 3, conds[i], values[i], pe)


@pgas.jit
def and_each(dest, values, conds, found, pe):
    for i in range(values.size):
        pgas.atomic_and(dest, 3, values[i], pe)
        pgas.atomic_or(dest, 3, conds[i], pe)


@pgas.jit
def or_each(dest, values, conds, found, pe):
    for i in range(values.size):
        pgas.atomic_or(dest, 3, values[i], pe)
        pgas.atomic_and(dest, 3, conds[i], pe)


@pgas.jit
def xor_each(dest, values, conds, found, pe):
    for i in range(values.size):
        pgas.atomic_xor(dest, 3, values[i], pe)


#: Kernels of operations that have no value, or whose test calls others, too.
KERNELS = {
    "inc": inc_each, "fetch_inc": fetch_inc_each, "fetch": fetch_and_add_each, "compare_swap": compare_swap_each,
    "and": and_each, "or": or_each, "xor": xor_each,
}  # fmt: skip


@functools.cache
def with_values(name):
    """Return a kernel that performs an operation with each value; if it fetches nothing, atomic_fetch comes behind it."""
    call = getattr(pgas, f"atomic_{name}")

    @pgas.jit
    def fetching(dest, values, conds, found, pe):
        for i in range(values.size):
            found[i] = call(dest, 3, values[i], pe)

    @pgas.jit
    def then_fetched(dest, values, conds, found, pe):
        for i in range(values.size):
            call(dest, 3, values[i], pe)
            found[i] = pgas.atomic_fetch(dest, 3, pe)

    return fetching if OPERATIONS[name][1] else then_fetched


#: By name: a function (old, value, cond) of the new element; whether the old one is fetched, None if nothing is.
OPERATIONS = {
    "inc": (lambda old, value, cond: old + old.dtype.type(1), None),
    "fetch_inc": (lambda old, value, cond: old + old.dtype.type(1), True),
    "fetch": (lambda old, value, cond: old + value, True),
    "set": (lambda old, value, cond: value, False),
    "swap": (lambda old, value, cond: value, True),
    "compare_swap": (lambda old, value, cond: value if old == cond else old, True),
    "and": (lambda old, value, cond: old & value | cond, None),
    "fetch_and": (lambda old, value, cond: old & value, True),
    "or": (lambda old, value, cond: (old | value) & cond, None),
    "fetch_or": (lambda old, value, cond: old | value, True),
    "xor": (lambda old, value, cond: old ^ value, None),
    "fetch_xor": (lambda old, value, cond: old ^ value, True),
    "min": (lambda old, value, cond: min(old, value), False),
    "fetch_min": (lambda old, value, cond: min(old, value), True),
    "max": (lambda old, value, cond: max(old, value), False),
    "fetch_max": (lambda old, value, cond: max(old, value), True),
}
CASES = [
    (name, dtype) for name in OPERATIONS for dtype in INTEGERS + NARROW + (FLOATS + HALVES if name in ("fetch", "set", "swap") else [])
]


def steps_of(name, dtype):
    """Return the initial element, values and conds, with all bits in use; for compare_swap some conds hold."""
    rng = np.random.default_rng([len(name), dtype.num])
    start, *rest = payload(13, dtype, 17) if dtype.kind != "f" else rng.integers(-1000, 1000, 13).astype(dtype)
    values, conds = np.array(rest[:6], dtype), np.array(rest[6:], dtype)
    if name == "compare_swap":
        conds[[0, 1, 4]] = start, values[0], values[1]
    return np.array(start, dtype), values, conds


@checklist("Atomics", "every operation and type")
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda v: v if isinstance(v, str) else v.name)
def test_operation(heap, right, name, dtype):
    """By one thread after another, on one element; its neighbors stay unchanged."""
    kernel, (step, old) = KERNELS.get(name) or with_values(name), OPERATIONS[name]
    element, values, conds = steps_of(name, dtype)
    dest, found = Watched(heap, 7, dtype), heap.zeros(values.size, dtype)
    dest.array[3:4].copy_to_device(element.reshape(1))
    pgas.barrier_all()
    kernel[1, 1](dest.array, heap.array(values), heap.array(conds), found, right)
    history = [element]
    with np.errstate(over="ignore"):
        for value, cond in zip(values, conds, strict=True):
            history.append(np.asarray(step(history[-1], value, cond), dtype))
    assert name != "compare_swap" or len({int(h) for h in history}) == 4, "some comparisons hold, some do not"
    dest.holds(3, history[-1].reshape(1))
    fetched = history[:-1] if old else history[1:] if old is False else np.zeros(values.size)
    equal(found, np.array(fetched, dtype), "fetched")


@pgas.jit
def add_halves(dest, values, found, pe):
    for i in range(values.size):
        pgas.atomic_add(dest, 1, values[i], pe)
        found[i] = pgas.atomic_fetch_add(dest, 1, values[i], pe)


@needs_16_bits
@checklist("Atomics", "every operation and type", "floats add up")
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_rounded_after_every_addition(heap, right, name):
    """The sums need more bits than an element has; the elements beside it stay as they are."""
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="capability missing: ml_dtypes, without which NumPy has no bfloat16")
    values, dest = heap.array(np.array([1.0, 0.001, 300.0, 0.7, -20.25]), name), heap.full(3, 5, name)
    found = heap.zeros(5, name)
    add_halves[1, 1](dest, values, found, right)
    old, fetched = dest.dtype.type(5), []
    for value in values.copy_to_host():
        fetched.append(dest.dtype.type(old + value))
        old = dest.dtype.type(fetched[-1] + value)
    equal(found, np.array(fetched, dest.dtype))
    equal(dest, np.array([5, old, 5], dest.dtype))


# ------------------------------------------------------------------------------------------------------------------- contention


@pgas.jit
def many_on_neighbors(dest, repeats, pe):
    """Threads of all PEs update the elements of a word, each element in another way."""
    t = cuda.grid(1)
    for i in range(repeats):
        pgas.atomic_add(dest, 0, 1, pe)
        pgas.atomic_max(dest, 1, t * repeats + i, pe)
        pgas.atomic_min(dest, 2, -t * repeats - i, pe)
        pgas.atomic_inc(dest, 3, pe)


@checklist("Atomics", "contention counts exactly", "neighboring words are untouched")
@pytest.mark.parametrize("dtype", [np.dtype("int32"), np.dtype("int64"), *NARROW[:1]], ids=name_of)
def test_contention_for_least_and_greatest(heap, me, n, dtype):
    """Also of elements of 16 bits, four of which share 8 bytes."""
    blocks, threads, each = 2, 24, 2
    dest = heap.zeros(6, dtype)
    many_on_neighbors[blocks, threads](dest, each, n - 1)
    total = blocks * threads * each
    equal(dest, np.array([n * total, total - 1, 1 - total, n * total, 0, 0] if me == n - 1 else [0] * 6, dtype))


@pgas.jit
def own_bits(words, bits, others, half, last, pe):
    """Each thread owns some bits of the word; it sets, flips and clears them, and leaves the lower half of them set."""
    t = cuda.grid(1)
    for _ in range(3):
        pgas.atomic_or(words, 1, bits[t], pe)
        pgas.atomic_xor(words, 1, bits[t], pe)
        last[t] += 0 if pgas.atomic_fetch_or(words, 1, bits[t], pe) & bits[t] == 0 else 1
        pgas.atomic_and(words, 1, others[t], pe)
        last[t] += 0 if pgas.atomic_fetch_xor(words, 1, bits[t], pe) & bits[t] == 0 else 1
        last[t] += 0 if pgas.atomic_fetch_and(words, 1, half[t], pe) & bits[t] == bits[t] else 1


@checklist("Atomics", "bits, each set by one PE")
@integers
def test_everybody_has_bits_of_a_word(heap, me, n, dtype):
    """Bitwise operations of a thread change neither the bits of others nor a neighboring element."""
    threads, unsigned = 8, np.dtype(f"u{dtype.itemsize}")
    width = 8 * dtype.itemsize // (n * threads)
    if width < 1:
        pytest.skip("capability missing: a bit for each thread")
    words, last = heap.full(3, -1, dtype) if dtype.kind == "i" else heap.full(3, np.iinfo(dtype).max, dtype), heap.zeros(threads, np.int32)
    if me == 0:
        words[1:2].copy_to_device(np.zeros(1, dtype))
    pgas.barrier_all()
    bits = np.array([((1 << width) - 1) << width * (me * threads + t) for t in range(threads)], unsigned)
    kept = np.array([((1 << width // 2) - 1) << width * (me * threads + t) for t in range(threads)], unsigned)
    arrays = [heap.array(mask.view(dtype)) for mask in (bits, ~bits, ~bits | kept)]
    own_bits[2, threads // 2](words, *arrays, last, 0)
    equal(last, np.zeros(threads, np.int32), "bits that their owner found changed")
    everyone = np.bitwise_or.reduce(np.concatenate(pgas.allgather_object(kept)))
    ones = np.iinfo(unsigned).max
    equal(words, np.array([ones, everyone if me == 0 else ones, ones], unsigned).view(dtype))


@pgas.jit
def pass_tokens(words, tokens, repeats, pe):
    t = cuda.grid(1)
    token = tokens[t]
    for i in range(repeats):
        token = pgas.atomic_swap(words, 1 + (t + i) % 2, token, pe)
    tokens[t] = token


@checklist("Atomics", "swap conserves tokens")
@dtypes
def test_swap_loses_no_token(heap, me, n, dtype):
    """Every thread repeatedly swaps its token with that in a word; at the end each token exists exactly once."""
    threads = BLOCKS * THREADS
    words, tokens = heap.zeros(4, dtype), heap.array((np.arange(threads) + me * threads + 1).astype(dtype))
    if me == n - 1:
        words[1:3].copy_to_device(np.array([n * threads + 1, n * threads + 2], dtype))
    pgas.barrier_all()
    pass_tokens[BLOCKS, THREADS](words, tokens, REPEATS, n - 1)
    pgas.barrier_all()
    held = pgas.allgather_object((tokens.copy_to_host(), words.copy_to_host()))
    found = np.concatenate([*(mine for mine, _ in held), held[n - 1][1][1:3]])
    assert sorted(found) == list(range(1, n * threads + 3))
    assert (words.copy_to_host()[[0, 3]] == 0).all()


@pgas.jit
def count_under_lock(lock, counter, repeats, owner, wrong, pe):
    """One thread of each block takes the lock, reads and writes the counter with g and p, and releases the lock."""
    if cuda.threadIdx.x == 0:
        mine = owner + cuda.blockIdx.x
        for _ in range(repeats):
            while pgas.atomic_compare_swap(lock, 0, 0, mine, pe) != 0:
                pass
            pgas.fence()  # the atomics of the lock order nothing
            pgas.p(counter, 0, pgas.g(counter, 0, pe) + 1, pe)
            pgas.fence()
            if pgas.atomic_swap(lock, 0, 0, pe) != mine:
                wrong[0] += 1


@checklist("Atomics", "compare_swap makes a lock")
@integers
def test_a_lock(heap, me, n, dtype):
    lock, counter, wrong = heap.zeros(2, dtype), heap.zeros(1, np.int64), heap.zeros(1, np.int32)
    count_under_lock[2, 4](lock, counter, 10, 1 + 2 * me, wrong, 0)
    equal(wrong, np.zeros(1, np.int32), "locks lost by their owner")
    equal(counter, np.array([20 * n if me == 0 else 0]))
    equal(lock, np.zeros(2, dtype))


@pgas.jit
def different_halves(dest, repeats, pe):
    """Operations on the 32-bit halves of one aligned word: even threads on the lower, odd ones on the upper half."""
    t = cuda.grid(1)
    for i in range(repeats):
        if t % 2 == 0:
            pgas.atomic_inc(dest, 0, pe)
            pgas.atomic_fetch_add(dest, 0, 2, pe)
        else:
            pgas.atomic_xor(dest, 1, 1 << (t + i) % 31, pe)
            pgas.atomic_fetch_xor(dest, 1, 1 << (t + i) % 31, pe)
            pgas.atomic_compare_swap(dest, 1, 1 << 31, 7, pe)


@checklist("Atomics", "neighboring words are untouched")
def test_a_32_bit_atomic_leaves_its_neighbor_alone(heap, me, n):
    dest = heap.zeros(4, np.uint32)
    different_halves[BLOCKS, THREADS](dest, REPEATS, 0)
    equal(dest, np.array([3 * n * BLOCKS * THREADS // 2 * REPEATS if me == 0 else 0, 0, 0, 0], np.uint32))
