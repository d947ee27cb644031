"""The last two lines of ``make demo``: the speed of kernels here, and a signaled round trip between two PEs.

    mpirun -n 2 python -m pgas.perftests.demo

1. An empty kernel: threads per second in the simulator, microseconds per launch on a GPU.
2. Ping-pong, one thread on each PE: PE 0 puts 8 bytes and a signal to PE 1, which waits for the signal and puts the same back. The figure
   is the whole round trip, timed on PE 0 over all iterations of one kernel after a warm-up.
"""

import sys
import time
from typing import Any

import numpy as np

import pgas
from pgas.base.output import outlive_reader
from pgas.perftests.harness import timing
from pgas.perftests.harness.jobs import starting

#: Numbers of CTAs, threads, and launches of the empty kernel.
_SIMULATOR_GRID, _GPU_GRID = (16, 256, 3), (128, 256, 200)
#: Numbers of round trips before and inside the timed kernel.
_WARMUP, _SIMULATOR_TRIPS, _GPU_TRIPS = 50, 500, 5000


@pgas.jit
def empty() -> None:
    """Do nothing."""


@pgas.jit
def ping_pong(ball: Any, signal: Any, first: int, trips: int) -> None:
    """Make ``trips`` round trips. The signal counts them, starting at ``first``, so that nothing is reset between kernels."""
    peer = 1 - pgas.my_pe()
    for turn in range(first, first + trips):
        if peer == 1:
            pgas.put_signal(ball, ball, signal, 0, turn, pgas.SIGNAL_SET, peer)
            pgas.signal_wait_until(signal, 0, pgas.GE, turn)
        else:
            pgas.signal_wait_until(signal, 0, pgas.GE, turn)
            pgas.put_signal(ball, ball, signal, 0, turn, pgas.SIGNAL_SET, peer)


def empty_kernel_line() -> str:
    """Measure the empty kernel on this PE."""
    ctas, threads, launches = _SIMULATOR_GRID if pgas.SIMULATOR else _GPU_GRID
    empty[ctas, threads]()
    pgas.synchronize()
    started = time.perf_counter()
    for _ in range(launches):
        empty[ctas, threads]()
    pgas.synchronize()
    seconds = time.perf_counter() - started
    if pgas.SIMULATOR:
        rate = ctas * threads * launches / seconds
        return f"simulator: {rate:,.0f} threads/s (empty kernel, {ctas} CTAs of {threads} threads)"
    return f"GPU: {seconds / launches * 1e6:.1f} us per launch (empty kernel, {ctas} CTAs of {threads} threads)"


def round_trip_line() -> str:
    """Measure the round trip; collective."""
    trips = _SIMULATOR_TRIPS if pgas.SIMULATOR else _GPU_TRIPS
    ball, signal = pgas.zeros(1, np.float64), pgas.zeros(1, np.uint64)
    timing.prepare()
    pgas.launch(ping_pong, 1, 1, (ball, signal, 1, _WARMUP))
    pgas.barrier_all()
    seconds = timing.kernel_seconds(ping_pong, 1, 1, (ball, signal, 1 + _WARMUP, trips))
    pgas.barrier_all()
    pgas.free(signal)
    pgas.free(ball)
    where = "in the simulator" if pgas.SIMULATOR else f"on {pgas.info()['gpu']}"
    return f"round trip: {seconds / trips * 1e6:.2f} us {where} (put_signal, signal_wait_until; PE 0 to PE 1 and back)"


def main() -> int:
    """Print both lines; exit status 2 unless there are two PEs."""
    outlive_reader()
    with pgas.init():
        if pgas.n_pes() != 2:
            if pgas.my_pe() == 0:
                print(f"demo: error: needs exactly 2 PEs: {' '.join(starting(2))} python -m pgas.perftests.demo", file=sys.stderr)
            return 2
        first = empty_kernel_line() if pgas.my_pe() == 0 else ""
        pgas.barrier_all()
        second = round_trip_line()
        if pgas.my_pe() == 0:
            print(first, second, sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
