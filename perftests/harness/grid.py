"""A barrier of all CTAs of one running kernel, like the one between iterations of NVSHMEM's bandwidth tests."""

from typing import Any

import numpy as np
from numba import cuda

import pgas


@cuda.jit(device=True)
def grid_barrier(counter: Any, target: int) -> None:
    """Wait until all CTAs of the grid have arrived; all threads of every CTA must call it, and all CTAs must be resident.

    The counter only grows, so that nothing is reset. The threadfence releases what the CTA did before; wait_until ends with an acquire.

    Args:
        counter: uint64 word on this PE's symmetric heap.
        target: value of the counter when all have arrived: its first value plus CTAs times barriers, this one included.
    """
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.threadfence()
        cuda.atomic.add(counter, 0, 1)
        pgas.wait_until(counter, 0, pgas.GE, target)
    cuda.syncthreads()


class Counter:
    """A growing word on this PE, the counter of grid barriers or the flag of a ping-pong, and its expected value.

    The constructor and free() are collective.
    """

    def __init__(self) -> None:
        self.array = pgas.zeros(1, np.uint64)
        self._value = 0

    def reserve(self, steps: int) -> int:
        """Return the value from which the next kernel starts; steps: the amount that it adds."""
        start = self._value
        self._value += steps
        return start

    def find_fault(self) -> str | None:
        """Return what is wrong with the value, None if nothing is. All kernels have ended."""
        found = int(self.array.copy_to_host()[0])
        return None if found == self._value else f"the counter of barriers or iterations is {found} instead of {self._value}"

    def free(self) -> None:
        pgas.free(self.array)
