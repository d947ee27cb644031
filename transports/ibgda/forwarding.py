"""The thread that forwards doorbells, and the compiled loop that it runs (doorbells.py)."""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pgas.transports.hostloop.compiled import kernel
from pgas.transports.hostloop.memory_ops import LAST_SHORT_TURN, fence, idle, load, load_acquire, store, store_release
from pgas.transports.hostloop.slack import sleep_precisely

# The loop's memory has the stop flag, the number of rows, and the rows. A row has the addresses of mailbox and register and the last word
# forwarded.
_STOP, _COUNT, _ROWS = 0, 8, 16
_MAILBOX, _REGISTER, _LAST, _ROW = 0, 8, 16, 24


def _make(stamp: int) -> Callable[[int], int]:
    def loop(own: int) -> int:
        """Forward until STOP."""
        end = own + _ROWS + load(own + _COUNT) * _ROW
        turns = 0
        while load_acquire(own + _STOP) == 0:
            turns += 1
            row = own + _ROWS
            while row < end:
                word = load_acquire(load(row + _MAILBOX))
                if word != load(row + _LAST):
                    store(row + _LAST, word)
                    store_release(load(row + _REGISTER), word)
                    fence()  # flushes the store if the register is mapped write-combining
                    turns = 0
                row += _ROW
            idle(min(turns, LAST_SHORT_TURN))
        return stamp

    return loop


@functools.cache
def _loop() -> Any:
    """Compile the loop, or load it from the disk cache."""
    return kernel(_make)


class Forwarder:
    """The thread that forwards doorbells.

    Args:
        pairs: addresses of mailbox and register of each queue pair. Mailboxes are initially zero, which is not a valid doorbell.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        words = [0, len(pairs)]
        for mailbox, register in pairs:
            words += [mailbox, register, 0]
        self._own = np.array(words, np.int64)
        loop = _loop()  # compile before a kernel waits for the thread
        self._thread = threading.Thread(target=self._run, args=(loop,), name="pgas doorbells", daemon=True)
        self._thread.start()

    def _run(self, loop: Callable[[int], int]) -> None:
        sleep_precisely()
        loop(self._own.ctypes.data)

    def stop(self) -> None:
        """End the thread. Further calls do nothing."""
        self._own[_STOP // 8] = 1
        self._thread.join()
