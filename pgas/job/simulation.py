"""A job whose kernels run in the simulator: the early end of kernels, and weak mode."""

import contextlib
from collections.abc import Callable, Iterator

from pgas.job.health import device_state
from pgas.job.health.hang import Reporter
from pgas.job.health.health import Health
from pgas.kernels import window
from pgas.kernels.compiler import cpu
from pgas.sim import engine
from pgas.transports.memory.protocol import Memory
from pgas.transports.nic.protocol import NIC


@contextlib.contextmanager
def of(
    my_pe: int, memory: Memory, nic: NIC | None, health: Health, weak: int | None, hang: Reporter, check: Callable[[], None]
) -> Iterator[None]:
    """Install the hooks that end kernels of a job early; enter weak mode if weak is given.

    Args:
        health: object that ends waits of the host, and here also kernels, by an exception.
        weak: value of PGAS_SIM_WEAK.
        check: function that raises the error of a record.
    """

    def recorded() -> None:
        """Called by a thread that has written an error record."""
        if hang.recorded_in_simulator(engine.go_on_waiting):
            check()

    def failed(error: BaseException) -> None:
        """Called when an exception has ended a kernel, because its reserved but unposted WQEs or requests block the queues.

        After Ctrl-C the job is broken, like on a GPU, because a program that catches KeyboardInterrupt must not use what the kernel left.
        """
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            health.broken = True
            health.give_up(type(error).__name__)
            device_state.poison(memory)
        if nic is not None and not device_state.poisoned(memory) and nic.holds_unposted():
            health.given_up = f"a kernel ended with {type(error).__name__} between reserving a place in a queue and posting it"
            device_state.poison(memory)

    cpu.on_failure = recorded
    own = window.slot(my_pe)
    seed = None if weak is None else weak ^ own >> window.STRIDE_SHIFT  # So that each PE has another seed.
    cpu.begin(seed, own, own + (window.QUEUE_OFFSET if nic is not None else 1 << window.STRIDE_SHIFT))
    engine.add_idle_hook(health.interrupt)
    engine.add_failure_hook(failed)
    try:
        yield
    finally:
        engine.remove_failure_hook(failed)
        engine.remove_idle_hook(health.interrupt)
