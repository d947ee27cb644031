"""The alignment of clocks, with exchanges between clocks that differ by a known time."""

import numpy as np

from pgas.trace.clocks import GpuClock, align, bounds


def exchanges(rng, start, offset, count=8):
    """Return the times at which two PEs entered and left exchanges, each in its own clock; the second is ahead by offset."""
    here, there, now = [], [], start
    for _ in range(count):
        entered = now + rng.integers(0, 5000, 2)
        left = entered.max() + rng.integers(500, 5000, 2)
        here.append((int(entered[0]), int(left[0])))
        there.append((int(entered[1]) + offset, int(left[1]) + offset))
        now = int(left.max())
    return here, there


def test_bounds_contain_the_offset():
    for seed in range(50):
        here, there = exchanges(np.random.default_rng(seed), 10**15, 123_456_789)
        low, high = bounds(here, there)
        assert low <= 123_456_789 <= high


def test_clocks_of_two_machines_are_aligned_within_the_error_that_is_stated():
    rng = np.random.default_rng(1)
    begins, ends = exchanges(rng, 10**15, 4 * 10**9), exchanges(rng, 10**15 + 10**10, 4 * 10**9 + 3000)  # with a drift of 3 us in 10 s
    found = align([("a", [begins[0], ends[0]], []), ("b", [begins[1], ends[1]], [])])
    times = np.array([10**15 + 4 * 10**9 + 20_000, 10**15 + 10**10 + 4 * 10**9 + 3000], np.uint64)
    aligned = found.aligned(1, times, on_gpu=False)
    assert np.abs(aligned - [10**15 + 20_000, 10**15 + 10**10]).max() <= found.error(1) < 6000
    assert found.error(0) == 0


def test_clocks_of_one_machine_are_the_same():
    found = align([("a", [[(1, 2)]], []), ("a", [[(1000, 2000)]], [])])
    assert found.aligned(1, np.array([5], np.uint64), on_gpu=False).tolist() == [5]
    assert found.error(1) == 0


def test_times_of_a_gpu_keep_their_nanoseconds():
    """A GPU's timer counts ns since 1970, which floats cannot hold."""
    now = 1_795_000_000_123_456_789
    clocks = [GpuClock(at=10**12, offset=10**12 - now, error=900), GpuClock(at=2 * 10**12, offset=10**12 - now + 1000, error=700)]
    found = align([("a", [], clocks)])
    times = np.array([now + 1, now + 5 * 10**11 + 1, now + 3 * 10**12], np.uint64)
    assert found.aligned(0, times, on_gpu=True).tolist() == [10**12 + 1, 15 * 10**11 + 501, 4 * 10**12 + 1000]
    assert found.error(0) == 900
