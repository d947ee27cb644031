"""What the thread that forwards doorbells runs, compiled (doorbells.py)."""

import functools
from collections.abc import Callable
from typing import Any

from numba import types

from pgas.transports.softhca.compiled import kernel
from pgas.transports.softhca.ops_cpu import fence, idle, load, load_acquire, store, store_release

__all__ = ["loop"]

# What the loop works on: whether to stop, how many rows, then rows: addresses of mailbox and register, and the word forwarded last.
_STOP, _COUNT, _ROWS = 0, 8, 16
_MAILBOX, _REGISTER, _LAST, _ROW = 0, 8, 16, 24

#: A turn of idle() beyond which its sleeps would be longer than some 50 us.
_LAST_TURN = 1200


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
def loop() -> Any:
    """Compile the loop, or find it in the disk cache."""
    return kernel(types.int64(types.int64), _make)
