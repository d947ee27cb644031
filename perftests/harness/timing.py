"""The time of one kernel, between CUDA events on a GPU, or by the wall clock in the simulator."""

import gc
import time
from typing import Any

from numba import cuda

import pgas

#: Duration of the lead-in, 400 µs, because the CPU needs some tens of microseconds to queue two events and a kernel with arrays.
_LEAD_IN_STEPS, _LEAD_IN_STEP_NS = 20, 20_000


@cuda.jit
def lead_in(steps: int, step_ns: int) -> None:
    """Keep the stream busy for about steps * step_ns nanoseconds."""
    for _ in range(steps):
        cuda.nanosleep(step_ns)


def prepare() -> None:
    """Compile the lead-in, so that no timed launch compiles it."""
    if not pgas.SIMULATOR:
        lead_in[1, 1](0, 0)
        pgas.synchronize()


def kernel_seconds(
    kernel: Any, ctas: int, threads: int, arguments: tuple[Any, ...], *, at_once: bool = False, together: bool = False
) -> float:
    """Launch a kernel, wait for it, and return the seconds that it ran.

    Args:
        at_once: whether to launch it without a lead-in, for a kernel that must be running when another PE's begins after its lead-in.
        together: whether all PEs synchronize on the stream before the clock starts, so that their kernels begin at the same time;
            collective.

    On a GPU the lead-in is queued first. While it runs, the CPU queues event, kernel, and event, so that the time between the events does
    not include the CPU's launch overhead, unlike NVSHMEM's.

    Raises:
        PgasError: if the kernel failed.
    """
    if pgas.SIMULATOR:
        if together:
            pgas.sync_all(stream=0)
        started = time.perf_counter()
        kernel[ctas, threads](*arguments)
        pgas.synchronize()
        return time.perf_counter() - started
    start, stop = cuda.event(timing=True), cuda.event(timing=True)
    collects = gc.isenabled()
    gc.disable()  # Because a collection between the launches would take longer than the lead-in.
    try:
        if not at_once:
            lead_in[1, 1](_LEAD_IN_STEPS, _LEAD_IN_STEP_NS)
        if together:
            pgas.sync_all(stream=0)
        start.record()
        kernel[ctas, threads](*arguments)
        stop.record()
    finally:
        if collects:
            gc.enable()
    pgas.synchronize()
    return float(cuda.event_elapsed_time(start, stop)) / 1e3
