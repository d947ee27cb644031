"""Notice that a PE of this node died: its waiting peers must end, and say who it was."""

import os
import select
import threading
from collections.abc import Callable, Sequence

__all__ = ["Watch"]


class Watch:
    """A thread that sleeps until a peer's process ends.

    Args:
        pids: (pe, pid) of the peers on this node.
        lost: called once, in the thread, with the PE that ended first.
    """

    def __init__(self, pids: Sequence[tuple[int, int]], lost: Callable[[int, int], None]) -> None:
        self._wakeup, self._stop = os.pipe()
        self._pidfds = {os.pidfd_open(pid): (pe, pid) for pe, pid in pids}
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
        os.close(self._stop)
        self._stop = -1
        if self._thread is not threading.current_thread():
            self._thread.join()
        for fd in (self._wakeup, *self._pidfds):
            os.close(fd)
