"""The symmetric heap grows: where an array does not fit, every PE adds memory behind the end of its heap, all PEs or none.

What is added is a segment of its own, mapped where the heap ends, so that offsets go on and an array may lie across the seam. Peers map it
as they mapped the heap (p2p), or the NIC makes one memory region of all the heap. Nothing that was there moves or is unmapped: arrays,
views, compiled kernels and those that run go on. Kernels that run do not learn of what was added. It stays the heap's until the job ends.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pgas.base.agreement import everywhere
from pgas.base.backend import SIMULATOR
from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.job import device_state
from pgas.job.collective import enough_files
from pgas.job.heap import Allocator
from pgas.kernels import window
from pgas.transports import p2p
from pgas.transports.memory.protocol import GRANULARITY, Memory, Segment, slot_segments
from pgas.transports.nic import NIC

if SIMULATOR:
    from pgas.kernels.compiler import cpu

__all__ = ["Bounds", "Growth"]


@dataclass(frozen=True)
class Bounds:
    """By how much a heap grows, and how far."""

    chunk: int  #: bytes by a multiple of which it grows
    limit: int  #: bytes that it has at most

    @classmethod
    def of(cls, requested: Mapping[str, Any]) -> "Bounds":
        """Return what a job's variables ask for, in whole pages of GPU memory.

        Raises:
            ValueError: the heap would begin with more than it may have.
        """
        size, most = requested["PGAS_SYMMETRIC_SIZE"], requested["PGAS_MAX_MEMORY_PER_GPU"]
        if most is not None and size > most:
            raise ValueError(f"PGAS_MAX_MEMORY_PER_GPU={most}: less than PGAS_SYMMETRIC_SIZE={size}, which the heap begins with")
        room = window.QUEUE_OFFSET - window.HEAP_OFFSET  # of a slot
        limit = room if most is None else min(most, room) // GRANULARITY * GRANULARITY
        return cls(-(-requested["PGAS_CUMEM_GRANULARITY"] // GRANULARITY) * GRANULARITY, max(limit, slot_segments(size)[-1].size))

    def step(self, size: int, lacking: int) -> int:
        """Return by how many bytes a heap of a size grows that lacks some; 0 if it may not grow so far."""
        left = self.limit - size
        return 0 if lacking > left else min(-(-lacking // self.chunk) * self.chunk, left)


class Growth:
    """What makes the heap of a job grow.

    Args:
        bounds: how far.
        heap: this PE's.
        memory: where it is mapped.
        nic: what reaches it for other PEs; None: they map it.
        me: this PE.
        exchange: of small values among the PEs.
    """

    def __init__(
        self, bounds: Bounds, heap: Allocator, memory: Memory, nic: NIC | None, me: int, exchange: Callable[[Any], list[Any]]
    ) -> None:
        self._bounds, self._heap, self._memory, self._nic, self._me, self._exchange = bounds, heap, memory, nic, me, exchange

    def make_room(self, lacking: int) -> None:
        """Have so many bytes more behind the end of the heap, or do nothing if its limit forbids it. Collective.

        Raises:
            HeapError: some PE has no memory, or some peer or NIC does not reach it; on every PE, with the heap as before.
        """
        nbytes = self._bounds.step(self._heap.size, lacking)
        if not nbytes:
            return
        chunk = Segment(window.HEAP_OFFSET + self._heap.size, nbytes)
        try:
            with enough_files():
                self._map(chunk)
        except (BootstrapError, HeapError, TransportError) as error:
            raise HeapError(
                f"the symmetric heap of {self._heap.size} bytes cannot grow by {nbytes}: {error} (it need not if PGAS_SYMMETRIC_SIZE is "
                "larger; PGAS_CUMEM_GRANULARITY says by how much it grows)"
            ) from error
        self._heap.extend(nbytes)
        device_state.set_heap_size(self._memory, self._heap.size)
        if SIMULATOR:
            cpu.read_again()

    def _map(self, chunk: Segment) -> None:
        """Map a chunk wherever the heap is; after an error nowhere."""
        own = window.slot(self._me) + chunk.offset
        with contextlib.ExitStack() as undo:
            fd = everywhere(self._exchange, lambda: self._create(own, chunk, undo), HeapError)[self._me]
            if self._nic is None:
                p2p.attach_peers(self._memory, self._me, (chunk,), [fd], self._exchange, undo)
            else:
                self._nic.extend_heap(chunk, fd)
            undo.pop_all()

    def _create(self, address: int, chunk: Segment, undo: contextlib.ExitStack) -> int:
        fd = self._memory.create(address, chunk)
        undo.callback(self._memory.discard, address)
        return fd
