"""Turns of the host's threads: one of them runs a kernel, and the others wait in the order of their calls.

A waiting thread ends with an error if the running kernel itself only waits for PGAS_TIMEOUT and a grace period, because the kernel may be
waiting for the call of that thread.
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

#: Seconds between two checks of the running kernel.
_POLL_S = 0.02

#: Seconds beyond PGAS_TIMEOUT, so that a wait in the kernel that has a deadline ends first, with a more detailed report.
_GRACE_S = 5.0


class _Turn:
    """A call that has the turn, or waits for it."""

    def __init__(self, what: str) -> None:
        self.what, self.thread = what, threading.current_thread().name
        self.came = threading.Event()


class Turns:
    """The queue of calls; the first one has the turn.

    Args:
        idle_s: function that returns for how many seconds all threads of the running kernel have only waited.
        report: function that describes the running kernel's threads.
    """

    def __init__(self, idle_s: Callable[[], float], report: Callable[[], str]) -> None:
        self._idle_s, self._report = idle_s, report
        self._queue: deque[_Turn] = deque()
        os.register_at_fork(after_in_child=self._queue.clear)  # Because the waiting threads are the parent's.

    def waiting(self) -> list[str]:
        """Describe the calls that wait for the turn."""
        return [f"thread {turn.thread} waited for its turn: {turn.what}" for turn in tuple(self._queue)[1:]]

    @contextlib.contextmanager
    def take(self, what: str, interrupt: Callable[[], None]) -> Iterator[None]:
        """Wait for the turn; the end of the block gives it to the next call.

        Args:
            what: the call, for messages.
            interrupt: function called during the wait; it may end the wait by an exception.

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
            with contextlib.suppress(ValueError, IndexError):  # In a forked child, the queue is empty.
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
