"""A barrier of all CTAs of one running kernel, as NVSHMEM's bandwidth tests have it between iterations."""

from typing import Any

import numpy as np
from numba import cuda

import pgas

__all__ = ["Counter", "grid_barrier"]


@cuda.jit(device=True)
def grid_barrier(counter: Any, target: int) -> None:
    """Wait until all CTAs of the grid have come here; all threads of every CTA call it.

    The counter only grows: the caller says at which value this meeting is complete, so that nothing is ever reset.
    All CTAs have to be resident. The threadfence orders what the CTA did before its arrival; wait_until ends with
    an acquire.

    Args:
        counter: uint64 word on this PE's symmetric heap.
        target: value before the first meeting, plus number of CTAs times meetings, this one included.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counter, 0, 1)
        pgas.wait_until(counter, 0, pgas.GE, target)
    cuda.syncthreads()


class Counter:
    """A word on this PE that only grows: of a grid's barriers, or the flag of a ping-pong; and the value that kernels left in it so far.

    Collective to make and to free, as every array of the heap.
    """

    def __init__(self) -> None:
        self.array = pgas.zeros(1, np.uint64)
        self._value = 0

    def reserve(self, steps: int) -> int:
        """Return the value that the next kernel finds, which adds so many steps."""
        start = self._value
        self._value += steps
        return start

    def find_fault(self) -> str | None:
        """Return what is wrong with the value, now that all kernels have ended."""
        found = int(self.array.copy_to_host()[0])
        return None if found == self._value else f"the counter of barriers or turns holds {found} instead of {self._value}"

    def free(self) -> None:
        """Give the word back to the heap."""
        pgas.free(self.array)
