"""A barrier of all CTAs of one running kernel, as NVSHMEM's bandwidth tests have it between iterations."""

from typing import Any

import numpy as np
from numba import cuda

import pgas

__all__ = ["GridCounter", "grid_barrier"]


@cuda.jit(device=True)
def grid_barrier(counter: Any, target: int) -> None:
    """Wait until all CTAs of the grid have come here; all threads of every CTA call it.

    The counter only grows: the caller says at which value this meeting is complete, so that nothing is ever reset.
    All CTAs have to be resident. The threadfence orders what the CTA did before its arrival; wait_until ends with
    an acquire.

    Args:
        counter: int64 word on this PE's symmetric heap.
        target: value before the first meeting, plus number of CTAs times meetings, this one included.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counter, 0, 1)
        pgas.wait_until(counter, 0, pgas.GE, target)
    cuda.syncthreads()


class GridCounter:
    """The counter of a PE's grid barriers and the value that the kernels launched so far leave in it.

    Collective to make and to free, as every array of the heap.
    """

    def __init__(self) -> None:
        self.array = pgas.zeros(1, np.int64)
        self._value = 0

    def reserve(self, ctas: int, meetings: int) -> int:
        """Return the value that the next kernel, of so many CTAs and meetings, finds."""
        start = self._value
        self._value += ctas * meetings
        return start

    def free(self) -> None:
        """Give the word back to the heap."""
        pgas.free(self.array)
