"""Turns of the host's threads: one of them runs a kernel, the others wait in the order of their calls.

A thread that waits ends with an error if the kernel that runs only waits, for PGAS_TIMEOUT and a grace period: what the kernel waits for
may be the call of the waiting thread.
"""

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from pgas.base import config
from pgas.base.errors import DeadlockError
from pgas.base.waits import say

__all__ = ["Turns"]

#: Seconds between two looks at the kernel that runs.
_POLL_S = 0.02

#: Seconds beyond PGAS_TIMEOUT. A wait in the kernel that has a deadline ends first, with a report that says more.
_GRACE_S = 5.0


class _Turn:
    """A call that has the turn, or waits for it."""

    def __init__(self, what: str) -> None:
        self.what, self.thread = what, threading.current_thread().name
        self.came = threading.Event()


class Turns:
    """The queue of calls; the first one has the turn.

    Args:
        idle_s: returns for how many seconds all threads of the running kernel have only waited.
        report: describes the running kernel's threads.
    """

    def __init__(self, idle_s: Callable[[], float], report: Callable[[], str]) -> None:
        self._idle_s, self._report = idle_s, report
        self._queue: deque[_Turn] = deque()
        os.register_at_fork(after_in_child=self._queue.clear)  # the threads that waited are the parent's

    def waiting(self) -> list[str]:
        """Describe the calls that wait for the turn."""
        return [f"thread {turn.thread} waited for its turn: {turn.what}" for turn in tuple(self._queue)[1:]]

    @contextlib.contextmanager
    def take(self, what: str, interrupt: Callable[[], None]) -> Iterator[None]:
        """Wait for the turn; the end of the block gives it to the next call.

        Args:
            what: the call, for messages.
            interrupt: called now and then; ends the wait by an exception.

        Raises:
            DeadlockError: if the kernel that runs has only waited for PGAS_TIMEOUT and a grace period.
        """
        turn = _Turn(what)
        try:
            self._queue.append(turn)
            if self._queue[0] is not turn:
                self._wait(turn, interrupt)
            yield
        finally:
            with contextlib.suppress(ValueError, IndexError):  # in a forked child the queue is empty
                self._queue.remove(turn)
                self._queue[0].came.set()

    def _wait(self, turn: _Turn, interrupt: Callable[[], None]) -> None:
        limit = float(config.read("PGAS_TIMEOUT")) + _GRACE_S
        start, silent = time.monotonic(), True
        while self._queue[0] is not turn:
            turn.came.wait(_POLL_S)
            interrupt()
            first = self._queue[0]
            if (idle := self._idle_s()) > limit:
                raise DeadlockError(
                    f"{turn.what}: thread {turn.thread} waits for its turn, and thread {first.thread} runs {first.what}, which has only "
                    f"waited for {idle:.1f} s; host threads run kernels one after another in the simulator: {self._report()}"
                )
            if silent and time.monotonic() - start > limit and first is not turn:
                silent = False
                say(f"{turn.what}: thread {turn.thread} has waited {limit:g} s for its turn, and thread {first.thread} runs {first.what}")
