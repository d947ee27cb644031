"""Source and guarded destination of one row on one PE, filled before the row and compared after it (payload.py)."""

from typing import Any

import pgas
from pgas.perftests.harness import payload
from pgas.perftests.harness.payload import WrongByte
from pgas.perftests.harness.workload import Workload


class Transfer:
    """A row's source on one PE and its destination, between guards, on the other. The constructor and free() are collective."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        guard = payload.GUARD_BYTES // work.dtype.itemsize
        self._source = pgas.empty(work.span, work.dtype)
        try:
            self._guarded = pgas.empty(guard + work.span + guard, work.dtype)
        except pgas.HeapError:
            pgas.free(self._source)
            raise
        self._dest = self._guarded[guard : guard + work.span]

    def arguments(self, *, rehearsal: bool) -> tuple[Any, ...]:
        """Return the first arguments of the kernel; rehearsal: whether it is for the warm-up."""
        return self._dest, self._source

    def fill(self, seed: int, peer: int) -> None:
        """Write this PE's payload into the source, and bytes that differ from the peer's payload into the destination."""
        self._source.copy_to_device(payload.source_image(self._work, self._elements(seed, pgas.my_pe())))
        self._guarded.copy_to_device(self._image(self._elements(seed, peer), 0))

    def find_fault(self, seed: int, peer: int, sent: int, received: int) -> WrongByte | str | None:
        """Return what is wrong after the row, None if nothing is.

        Args:
            seed, peer: arguments of fill().
            sent: number of iterations in which this PE performed the operation.
            received: number of iterations in which it received the peer's payload.
        """
        expected = self._image(self._elements(seed, peer), received)
        return payload.find_fault(self._work, self._guarded.copy_to_host(), expected)

    def free(self) -> None:
        pgas.free(self._guarded)
        pgas.free(self._source)

    def _elements(self, seed: int, pe: int) -> Any:
        return payload.random_elements(self._work, seed, pe)

    def _image(self, elements: Any, iters: int) -> Any:
        """Return the whole destination after the elements have arrived iters times."""
        return payload.dest_image(self._work, elements, arrived=iters > 0)
