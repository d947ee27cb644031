"""A job whose kernels run in the simulator: the early end of kernels, and weak mode."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pgas.job.health import device_state
from pgas.kernels import window
from pgas.kernels.compiler import cpu
from pgas.sim import engine, forbid

if TYPE_CHECKING:
    from pgas.job.runtime import Job

__all__ = ["forbid", "of"]


@contextlib.contextmanager
def of(job: "Job", weak: int | None, interrupt: Callable[[], None], recorded: Callable[[], None]) -> Iterator[None]:
    """Install the hooks that end kernels of a job early; enter weak mode if weak is given.

    Args:
        job: the job.
        weak: PGAS_SIM_WEAK.
        interrupt: ends waits of the host, and here also kernels, by an exception.
        recorded: called by a thread that has written an error record.
    """

    def failed(error: BaseException) -> None:
        """Called when an exception has ended a kernel: its reserved but unposted WQEs or requests block the queues.

        After Ctrl-C the job is broken, as on a GPU: a program that catches KeyboardInterrupt must not use what the kernel left.
        """
        if not isinstance(error, Exception):
            job.broken, job.given_up = True, job.given_up or type(error).__name__
            device_state.poison(job.memory)
        if job.nic is not None and not device_state.poisoned(job.memory) and job.nic.holds_unposted():
            job.given_up = f"a kernel ended with {type(error).__name__} between reserving a place in a queue and posting it"
            device_state.poison(job.memory)

    cpu.on_failure = recorded
    own = window.slot(job.my_pe)
    seed = None if weak is None else weak ^ own >> window.STRIDE_SHIFT  # another seed on each PE
    cpu.begin(seed, own, own + (window.QUEUE_OFFSET if job.nic is not None else 1 << window.STRIDE_SHIFT))
    engine.add_idle_hook(interrupt)
    engine.add_failure_hook(failed)
    try:
        yield
    finally:
        engine.remove_failure_hook(failed)
        engine.remove_idle_hook(interrupt)
