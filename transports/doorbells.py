"""Doorbells that a CPU rings for kernels (PGAS_IBGDA_NIC_HANDLER=cpu), where CUDA does not let the GPU store to a card's registers.

Kernels do what they always do: store the doorbell record, release, store one word to what their queue's record names as the UAR register.
Only that this is a word of the host's memory, the queue pair's mailbox, and the doorbell record lies in the host's memory too. A thread
that finds a new word in a mailbox forwards it to the register. It need not write the record: that is there before the word (NVSHMEM's
thread writes it, at the wrong address: facts/mlx5.md 5.4). It may see two words as one, the later, which announces what the earlier one
did, as indices only grow; it cannot mistake a word for an older one, because the index that it holds comes again only after 2^16 WQEBBs,
and a queue of at most 2^15 does not go on before the card was rung.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba import types

from pgas.transports.memory import GRANULARITY
from pgas.transports.softhca.compiled import kernel
from pgas.transports.softhca.ops_cpu import fence, idle, load, load_acquire, store, store_release

__all__ = ["Forwarder", "dbr_offset", "mailbox_offset", "segment_bytes"]

#: A queue pair's doorbell record and the CQ's, and its mailbox: a line of 64 bytes each, as different sides write them.
_LINE = 64
_ROOM = 2 * _LINE

# What the loop works on: whether to stop, how many rows, then rows: addresses of mailbox and register, and the word forwarded last.
_STOP, _COUNT, _ROWS = 0, 8, 16
_MAILBOX, _REGISTER, _LAST, _ROW = 0, 8, 16, 24

_PR_SET_TIMERSLACK = 29

#: A turn of idle() beyond which its sleeps would be longer than some 50 us.
_LAST_TURN = 1200


def segment_bytes(count: int) -> int:
    """Return the bytes of host memory that the doorbells of so many queue pairs take, whole pages of CUDA's."""
    return -(-count * _ROOM // GRANULARITY) * GRANULARITY


def dbr_offset(number: int) -> int:
    """Return where the doorbell record of a queue pair lies in that memory."""
    return number * _ROOM


def mailbox_offset(number: int) -> int:
    """Return where the mailbox of a queue pair lies in that memory."""
    return number * _ROOM + _LINE


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
                    fence()  # a register may be mapped write-combining: out with it
                    turns = 0
                row += _ROW
            idle(min(turns, _LAST_TURN))
        return stamp

    return loop


@functools.cache
def _loop() -> Any:
    """Compile the loop, or find it in the disk cache."""
    return kernel(types.int64(types.int64), _make)


class Forwarder:
    """The thread that forwards doorbells.

    Args:
        pairs: addresses of mailbox and register of each queue pair. Mailboxes are zero, which no doorbell is.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]]) -> None:
        words = [0, len(pairs)]
        for mailbox, register in pairs:
            words += [mailbox, register, 0]
        self._own = np.array(words, np.int64)
        loop = _loop()  # compiled before anything waits for it
        self._thread = threading.Thread(target=self._run, args=(loop,), name="pgas doorbells", daemon=True)
        self._thread.start()

    def _run(self, loop: Callable[[int], int]) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # of this thread: 50 us would double its sleeps
        loop(self._own.ctypes.data)

    def stop(self) -> None:
        """End the thread. Further calls do nothing."""
        self._own[_STOP // 8] = 1
        self._thread.join()
