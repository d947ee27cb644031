"""Notice that a process of the job died, a PE or the software card: those that wait for it must end, and say who it was."""

import contextlib
import os
import select
import threading
from collections.abc import Callable, Sequence

__all__ = ["Watch"]


class Watch:
    """A thread that sleeps until one of some processes ends.

    Args:
        pids: (who, pid) of processes on this node.
        lost: called once, in the thread, with the one that ended first.
    """

    def __init__(self, pids: Sequence[tuple[str, int]], lost: Callable[[str, int], None]) -> None:
        self._pidfds: dict[int, tuple[str, int]] = {}
        with contextlib.ExitStack() as undo:
            for who, pid in pids:
                fd = os.pidfd_open(pid)
                undo.callback(os.close, fd)
                self._pidfds[fd] = who, pid
            self._wakeup, self._stop = os.pipe()
            undo.pop_all()
        self._lost = lost
        self._thread = threading.Thread(target=self._run, name="pgas-liveness", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller = select.poll()
        for fd in (self._wakeup, *self._pidfds):
            poller.register(fd, select.POLLIN)
        ended = {fd for fd, _ in poller.poll()}
        if self._wakeup not in ended:
            self._lost(*self._pidfds[min(ended)])

    def stop(self) -> None:
        """End the thread; no loss is reported any more. Further calls do nothing."""
        if self._stop < 0:
            return
        os.write(self._stop, b"\0")  # closing it says nothing while a child that was forked has it open
        if self._thread is not threading.current_thread():
            self._thread.join()
        for fd in (self._stop, self._wakeup, *self._pidfds):
            os.close(fd)
        self._stop = -1
