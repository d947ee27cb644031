"""Rate limits that let the software NIC stand in for a slower device: WQEs and bytes per second, over all QPs together.

The limits are two token buckets. Each is one word, the time at which all admitted work will be done at the limit (the virtual scheduling
algorithm of ITU-T I.371). The engine's workers update it by compare-and-swap. Times are in ticks of 2^-LOG_TICK ns, modulo 2^62 ticks (3
days), so that the cost of a byte at 200 Gb/s is a whole number of ticks to within a thousandth.
"""

from pgas.transports.hostloop.compiled import device
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine.ops import clock, compare_swap, idle, load, load_acquire, load_shared

LOG_TICK = 14
_CLOCK_MASK = (1 << 48) - 1

#: Maximum distance of a time ahead, 5 hours; a time further ahead is from before the clock wrapped.
_AHEAD_MAX = 1 << 58

#: Maximum burst after a pause, in nanoseconds that it takes at the limit.
BURST_NS = 8000


def costs(mops: float, gbps: float) -> tuple[int, int]:
    """Return CTL_WQE_COST and CTL_BYTE_COST for limits in million WQEs and 10^9 bits per second; 0: no limit."""
    return _ticks(1000 / mops if mops else 0), _ticks(8 / gbps if gbps else 0)


def _ticks(ns: float) -> int:
    """Return nanoseconds as ticks, at least 1; 0 for 0."""
    return max(1, round(ns * (1 << LOG_TICK))) if ns else 0


@device
def now() -> int:
    """Return the time."""
    return (clock() & _CLOCK_MASK) << LOG_TICK


@device
def ahead(until: int, time: int) -> int:
    """Return the distance of ``until`` ahead of ``time``; 0 if it has passed."""
    distance = until - time
    return distance if 0 < distance < _AHEAD_MAX else 0


@device
def take(bucket: int, cost: int) -> int:
    """Admit some work; return the time when it is done at the limit."""
    while True:
        before, time = load_shared(bucket), now()
        after = time + ahead(before, time) + cost
        if compare_swap(bucket, before, after) == before:
            return after


@device
def wait(hca: int, until: int) -> int:
    """Wait for a time, minus the burst."""
    turns = 0
    while ahead(until, now()) > BURST_NS << LOG_TICK:
        if load_acquire(hca + t.CTL_STOP) != 0:
            break
        turns += 1
        idle(turns)
    return 0


@device
def admit(hca: int, wqes: int, nbytes: int) -> int:
    """Wait until the limits admit a number of WQEs and bytes."""
    per_wqe, per_byte = load(hca + t.CTL_WQE_COST), load(hca + t.CTL_BYTE_COST)
    if per_wqe != 0:
        wait(hca, take(hca + t.CTL_WQES_UNTIL, wqes * per_wqe))
    if per_byte != 0:
        wait(hca, take(hca + t.CTL_BYTES_UNTIL, nbytes * per_byte))
    return 0
