"""Growth of the symmetric heap: if an array does not fit, all PEs append memory to their heaps, or none does.

The added memory is a segment of its own, mapped at the end of the heap, so an array may cross the boundary. Peers map it as they mapped the
heap (p2p), or the NIC registers the whole heap as one memory region. Nothing moves or is unmapped: arrays, views, compiled and running
kernels stay valid. Running kernels cannot use the added memory. The heap keeps it until the job ends.
"""

import contextlib
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any

from pgas.base.agreement import everywhere
from pgas.base.config import size_text
from pgas.base.errors import BootstrapError, HeapError, TransportError
from pgas.job.bootstrap.calls import enough_files
from pgas.job.health import device_state
from pgas.job.memory.heap import Allocator
from pgas.job.paths.platform import platform
from pgas.kernels import window
from pgas.transports import p2p
from pgas.transports.memory.protocol import GRANULARITY, Memory, Segment, whole_pages
from pgas.transports.nic.protocol import NIC


@dataclass(frozen=True)
class Bounds:
    """The bounds of a heap's growth."""

    chunk: int  #: number of bytes of which the growth is a multiple
    limit: int  #: maximum size of the heap in bytes

    @classmethod
    def of(cls, requested: Mapping[str, Any]) -> "Bounds":
        """Return the bounds of a job's variables, in whole pages of GPU memory. Raises ValueError if the initial heap exceeds the limit."""
        size, most = requested["PGAS_SYMMETRIC_SIZE"], requested["PGAS_MAX_MEMORY_PER_GPU"]
        if most is not None and size > most:
            raise ValueError(
                f"PGAS_MAX_MEMORY_PER_GPU={size_text(most)}: must not be less than PGAS_SYMMETRIC_SIZE={size_text(size)}, the initial heap "
                "size"
            )
        room = window.QUEUE_OFFSET - window.HEAP_OFFSET  # In a slot.
        limit = room if most is None else min(most, room) // GRANULARITY * GRANULARITY
        return cls(-(-requested["PGAS_CUMEM_GRANULARITY"] // GRANULARITY) * GRANULARITY, max(limit, whole_pages(size)))

    def step(self, size: int, lacking: int) -> int:
        """Return the bytes to add to a heap of size bytes that lacks some; 0 if the limit forbids it."""
        left = self.limit - size
        return 0 if lacking > left else min(-(-lacking // self.chunk) * self.chunk, left)


class Growth:
    """Grows the heap of a job. near_pes: the PEs that map this PE's heap; empty if none does."""

    def __init__(
        self,
        bounds: Bounds,
        heap: Allocator,
        memory: Memory,
        nic: NIC | None,
        near_pes: Container[int],
        me: int,
        exchange: Callable[[Any], list[Any]],
    ) -> None:
        self._bounds, self._heap, self._memory, self._nic, self._near_pes, self._me = bounds, heap, memory, nic, near_pes, me
        self._exchange = exchange

    def make_room(self, lacking: int) -> None:
        """Add at least so many bytes to the heap, or do nothing if its limit forbids it. Collective.

        Raises:
            HeapError: on every PE, if some PE has no memory, or some peer or NIC cannot reach it. The heap is as before.
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
                f"the symmetric heap of {size_text(self._heap.size)} cannot grow by {size_text(nbytes)}: {error} (with a larger "
                "PGAS_SYMMETRIC_SIZE it need not grow; PGAS_CUMEM_GRANULARITY sets by how much it grows)"
            ) from error
        self._heap.extend(nbytes)
        device_state.set_heap_size(self._memory, self._heap.size)
        platform.read_again()

    def _map(self, chunk: Segment) -> None:
        """Map a chunk in every process that maps the heap or, after an error, in none."""
        own = window.slot(self._me) + chunk.offset
        with contextlib.ExitStack() as undo:
            fd = everywhere(self._exchange, lambda: self._create(own, chunk, undo), HeapError)[self._me]
            if window.constants().maps_peers:
                p2p.attach_peers(self._memory, self._me, (chunk,), [fd], self._exchange, undo, self._near_pes)
            if self._nic is not None:
                self._nic.extend_heap(chunk, fd)
            undo.pop_all()

    def _create(self, address: int, chunk: Segment, undo: contextlib.ExitStack) -> int:
        fd = self._memory.create(address, chunk)
        undo.callback(self._memory.discard, address)
        return fd
