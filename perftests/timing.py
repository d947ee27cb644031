"""The time of one kernel: CUDA events round the launch on a GPU, the wall clock in the simulator."""

import gc
import time
from typing import Any

from numba import cuda

import pgas

__all__ = ["kernel_seconds", "prepare"]

#: 400 us of lead-in: the CPU needs some tens of microseconds to queue two events and a kernel with arrays.
_LEAD_IN_STEPS, _LEAD_IN_STEP_NS = 20, 20_000


@cuda.jit
def lead_in(steps: int, step_ns: int) -> None:
    """Keep the stream busy for about steps * step_ns nanoseconds."""
    for _ in range(steps):
        cuda.nanosleep(step_ns)


def prepare() -> None:
    """Compile the lead-in, so that this is in nobody's time."""
    if not pgas.SIMULATOR:
        lead_in[1, 1](0, 0)
        pgas.synchronize()


def kernel_seconds(kernel: Any, ctas: int, threads: int, arguments: tuple[Any, ...], *, at_once: bool = False) -> float:
    """Launch a kernel, wait for it, and return the seconds that it ran.

    at_once: launch it with nothing before it, for a kernel that has to be there when that of another PE, behind a lead-in, begins.

    On a GPU a short kernel is queued first: while it runs, the CPU queues event, kernel and event behind it, so
    that the time between the events is the kernel's and not the CPU's way to the launch (NVSHMEM's tests leave that
    in).

    Raises:
        PgasError: the kernel failed.
    """
    if pgas.SIMULATOR:
        started = time.perf_counter()
        kernel[ctas, threads](*arguments)
        pgas.synchronize()
        return time.perf_counter() - started
    start, stop = cuda.event(timing=True), cuda.event(timing=True)
    collects = gc.isenabled()
    gc.disable()  # a collection between the launches takes longer than the lead-in
    try:
        if not at_once:
            lead_in[1, 1](_LEAD_IN_STEPS, _LEAD_IN_STEP_NS)
        start.record()
        kernel[ctas, threads](*arguments)
        stop.record()
    finally:
        if collects:
            gc.enable()
    pgas.synchronize()
    return float(cuda.event_elapsed_time(start, stop)) / 1e3
