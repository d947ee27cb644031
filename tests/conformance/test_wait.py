"""Waits for several elements, and tests without waiting (OpenSHMEM 1.5, "Point-To-Point Synchronization Routines")."""

import operator

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import checklist, equal, everywhere, launch_together, name_of, payload

DTYPES = [np.dtype(name) for name in ("int16", "uint16", "int32", "uint32", "int64", "uint64")]
COMPARISONS = ["EQ", "NE", "GT", "LE", "LT", "GE"]
NELEMS = 11

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)


# ------------------------------------------------------------------------------------------------------------ without waiting


@pgas.jit
def look(ivar, values, out):
    """Test every comparison of every element with every value."""
    for i in range(ivar.size):
        for j in range(values.size):
            for cmp in range(6):
                out[i, j, cmp] = 1 if pgas.test(ivar, i, cmp, values[j]) else 0


@checklist("Wait and test", "six comparisons of every type")
@dtypes
def test_every_comparison_of_every_dtype(heap, dtype):
    """Also at the limits of the dtype: comparisons are signed or unsigned like it."""
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.min + 1, 5, limits.max - 1, limits.max], dtype)
    ivar, out = heap.array(values), heap.full((5, 5, 6), -1, np.int32)
    look[1, 1](ivar, heap.array(values), out)
    compare = [getattr(operator, name.lower()) for name in COMPARISONS]
    assert [int(getattr(pgas, name)) for name in COMPARISONS] == list(range(6))
    equal(out, np.array([[[c(a, b) for c in compare] for b in values] for a in values], np.int32))


@pgas.jit
def look_at_all(ivars, status, cmp, value, values, indices, out):
    """Record the answers of test_all, _any and _some; then with a value for each; then without status; then for the first elements only."""
    out[0] = pgas.test_all(ivars, status, cmp, value)
    out[1] = pgas.test_any(ivars, status, cmp, value)
    out[2] = pgas.test_some(ivars, indices[0], status, cmp, value)
    out[3] = pgas.test_all_vector(ivars, status, cmp, values)
    out[4] = pgas.test_any_vector(ivars, status, cmp, values)
    out[5] = pgas.test_some_vector(ivars, indices[1], status, cmp, values)
    out[6] = pgas.test_all(ivars, None, cmp, value)
    out[7] = pgas.test_any(ivars, None, cmp, value)
    out[8] = pgas.test_some(ivars, indices[2], None, cmp, value)
    out[9] = pgas.test_all(ivars, status, cmp, value, 4)
    out[10] = pgas.test_any(ivars, status, cmp, value, 4)
    out[11] = pgas.test_some_vector(ivars, indices[3], None, cmp, values, 4)


def wrong_answers(wait_set, answers, indices):
    """Return the wrong answers of test_all, _any and _some; wait_set: (index, whether its condition holds)."""
    holding = [i for i, holds in wait_set if holds]
    all_, any_, some = (int(a) for a in answers)
    if all_ != (len(holding) == len(wait_set)):
        return f"all: {all_} of {wait_set}"
    if any_ not in (holding or [-1]):
        return f"any: {any_} of {wait_set}"
    if [some, *indices[:some]] != [len(holding), *holding] or (indices[some:] != -7).any():
        return f"some: {some}, {indices} of {wait_set}"
    return None


@checklist("Wait and test", "all, any and some with masks", "vector forms")
@dtypes
def test_tests_of_several_elements(heap, dtype):
    rng = np.random.default_rng([pgas.my_pe(), dtype.num])
    faults = []
    ivars, values, status = heap.zeros(NELEMS, dtype), heap.zeros(NELEMS, dtype), heap.zeros(NELEMS, np.int32)
    indices, out = heap.zeros((4, NELEMS), np.int64), heap.zeros(12, np.int64)
    for cmp in (*range(6), pgas.EQ, pgas.NE):
        here, each = rng.integers(3, size=(2, NELEMS)).astype(dtype)
        masked = rng.integers(-1, 2, NELEMS).astype(np.int32) if cmp != 3 else np.ones(NELEMS, np.int32)
        for array, data in ((ivars, here), (values, each), (status, masked), (indices, np.full((4, NELEMS), -7))):
            array.copy_to_device(data)
        look_at_all[1, 1](ivars, status, cmp, 1, values, indices, out)
        pgas.synchronize()
        compare = getattr(operator, COMPARISONS[cmp].lower())
        same, own = compare(here, dtype.type(1)), compare(here, each)
        included = [i for i in range(NELEMS) if masked[i] == 0]
        found, lists = out.copy_to_host(), indices.copy_to_host()
        cases = [
            ([(i, same[i]) for i in included], found[:3], lists[0]),
            ([(i, own[i]) for i in included], found[3:6], lists[1]),
            ([(i, same[i]) for i in range(NELEMS)], found[6:9], lists[2]),
        ]
        faults += [fault for case in cases if (fault := wrong_answers(*case))]
        first = [i for i in included if i < 4]
        if found[9] != all(same[i] for i in first) or found[10] not in ([i for i in first if same[i]] or [-1]):
            faults.append(f"of 4: {found[9:11]}")
        if list(lists[3][: found[11]]) != [i for i in range(4) if own[i]]:
            faults.append(f"of 4: {lists[3]}")
    everywhere("; ".join(faults))


@pgas.jit
def wait_for_nothing(ivars, status, indices, out):
    out[0] = pgas.wait_until_any(ivars, status, pgas.EQ, 1)
    out[1] = pgas.wait_until_some(ivars, indices, status, pgas.EQ, 1)
    out[2] = pgas.wait_until_any(ivars, None, pgas.EQ, 1, 0)
    out[3] = pgas.wait_until_some(ivars, indices, None, pgas.EQ, 1, 0)
    pgas.wait_until_all(ivars, status, pgas.EQ, 1)
    pgas.wait_until_all_vector(ivars, None, pgas.EQ, ivars, 0)
    out[4] = pgas.wait_until_any_vector(ivars[:0], None, pgas.EQ, ivars)
    out[5] = pgas.wait_until_some_vector(ivars, indices, status, pgas.NE, ivars)


@checklist("Wait and test", "no elements", "all, any and some with masks")
def test_an_empty_wait_set_is_not_waited_for(heap):
    ivars, status, indices = heap.zeros(5, np.int32), heap.full(5, 2, np.int32), heap.zeros(5, np.int32)
    out = heap.full(6, 99, np.int64)
    wait_for_nothing[1, 1](ivars, status, indices, out)
    equal(out, np.array([-1, 0, -1, 0, -1, 0]))


@pgas.jit
def choose(ivars, rounds, chosen):
    for _ in range(rounds):
        chosen[pgas.wait_until_any(ivars, None, pgas.GE, 0)] += 1
        chosen[pgas.test_any(ivars, None, pgas.GE, 0)] += 1


@checklist("Wait and test", "any is fair")
def test_any_neglects_none(heap):
    """OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL_ANY": if several elements satisfy the condition, repeated calls return each of them eventually."""
    ivars, chosen = heap.zeros(7, np.int64), heap.zeros(7, np.int64)
    choose[1, 1](ivars, 100, chosen)
    pgas.synchronize()
    counts = chosen.copy_to_host()
    everywhere(None if counts.sum() == 200 and (counts > 0).all() else str(counts))


@pgas.jit
def fetch_signals(sig, out):
    out[0] = pgas.signal_fetch(sig, 1)
    out[1] = pgas.signal_fetch(sig, 0)


@checklist("Signals", "signal_fetch")
def test_signal_fetch(heap):
    sig, out = heap.array(np.array([2**64 - 3, 17], np.uint64)), heap.zeros(2, np.uint64)
    fetch_signals[1, 1](sig, out)
    equal(out, np.array([17, 2**64 - 3], np.uint64))


# ------------------------------------------------------------------------------------------------------------------ for others


@cuda.jit(device=True)
def send(data, source, flags, order, right):
    """Send data and a flag for each element, in some order."""
    pgas.sync_all()
    for k in range(order.size):
        i = order[k]
        pgas.p(data, i, source[i], right)
        pgas.fence()
        pgas.p(flags, i, i + 1, right)
    pgas.quiet()


@pgas.jit
def send_and_collect_any(data, source, flags, status, order, wrong, right):
    """Send to the right; collect the elements from the left one by one."""
    if cuda.threadIdx.x == 0:
        send(data, source, flags, order, right)
    elif cuda.threadIdx.x == 32:
        i = pgas.wait_until_any(flags, status, pgas.NE, 0)
        while i >= 0:
            if flags[i] != i + 1 or status[i] != 0 or data[i] == 0:
                wrong[0] += 1
            wrong[1] += 1
            status[i] = 1
            i = pgas.wait_until_any(flags, status, pgas.NE, 0)


@pgas.jit
def send_and_collect_some(data, source, flags, status, order, wrong, right):
    indices = cuda.local.array(32, np.int32)
    if cuda.threadIdx.x == 0:
        send(data, source, flags, order, right)
    elif cuda.threadIdx.x == 32:
        count = pgas.wait_until_some(flags, indices, status, pgas.GT, 0)
        while count > 0:
            for k in range(count):
                i = indices[k]
                if flags[i] != i + 1 or status[i] != 0 or data[i] == 0:
                    wrong[0] += 1
                wrong[1] += 1
                status[i] = 1
            count = pgas.wait_until_some(flags, indices, status, pgas.GT, 0)


@pgas.jit
def send_and_wait_for_all(data, source, flags, wanted, order, wrong, right):
    """Wait with the vector form for the values that the left neighbor sends, then with the plain form."""
    if cuda.threadIdx.x == 0:
        send(data, source, flags, order, right)
    elif cuda.threadIdx.x == 32:
        pgas.wait_until_all_vector(flags, None, pgas.EQ, wanted)
        for i in range(data.size):
            wrong[0] += 1 if data[i] == 0 else 0
        pgas.wait_until_all(flags, None, pgas.GT, 0)
        wrong[1] += data.size


@checklist("Wait and test", "all, any and some with masks", "vector forms")
@checklist("Order", "waits acquire what a NIC wrote")
@pytest.mark.parametrize("dtype", [np.int16, np.uint32, np.int64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("kernel", [send_and_collect_any, send_and_collect_some, send_and_wait_for_all], ids=["any", "some", "all"])
def test_data_is_there_when_its_flag_is_seen(heap, me, right, left, kernel, dtype):
    """A thread of one warp sends, one of another has to wait: for one element after the other, several, or all."""
    nelems = 20
    data, flags, wrong = heap.zeros(nelems, np.int64), heap.zeros(nelems, dtype), heap.zeros(2, np.int32)
    source = heap.array(payload(nelems, np.int64, me) | 1)
    wanted = np.arange(1, nelems + 1) if kernel is send_and_wait_for_all else np.zeros(nelems)
    status = heap.array(wanted.astype(dtype if kernel is send_and_wait_for_all else np.int32))
    order = heap.array(np.random.default_rng(me).permutation(nelems))
    launch_together(kernel, 1, 64, data, source, flags, status, order, wrong, right)
    equal(wrong, np.array([0, nelems], np.int32))
    equal(data, payload(nelems, np.int64, left) | 1)


#: Limit of the kernel's polling loop, about a minute on a GPU.
LOOKS = 50_000_000


@pgas.jit
def count_signals(dest, source, sig, seen, right):
    """put_signal to the right; the receiver polls with signal_fetch and test only."""
    if cuda.threadIdx.x == 0:
        pgas.put_signal(dest, source, sig, 0, 7, pgas.SIGNAL_SET, right)
    elif cuda.threadIdx.x == 32:
        for _ in range(LOOKS):
            if pgas.signal_fetch(sig, 0) != 0:
                break
        seen[0] = dest[dest.size - 1]
        for _ in range(LOOKS):
            if pgas.test(sig, 0, pgas.EQ, 7):
                break
        seen[1] = dest[0]


@checklist("Order", "waits acquire what a NIC wrote")
def test_polling_sees_the_data(heap, me, right, left):
    dest, seen, sig = heap.zeros(100, np.int64), heap.zeros(2, np.int64), heap.zeros(1, np.uint64)
    source = heap.array(np.arange(1, 101) + 1000 * me)
    launch_together(count_signals, 1, 64, dest, source, sig, seen, right)
    equal(seen, np.array([100, 1]) + 1000 * left)
