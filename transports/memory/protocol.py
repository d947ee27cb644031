"""What the heap is made of: segments of memory mapped at fixed addresses of the window, in this process and in its peers."""

from dataclasses import dataclass
from typing import Protocol

from pgas.kernels import window

__all__ = ["Loan", "Memory", "Segment", "slot_segments"]

#: Granularity of VMM allocations on every GPU tried, and of the window's layout.
GRANULARITY = 2 << 20


@dataclass(frozen=True)
class Segment:
    """A piece of every slot, backed by one shareable allocation: bytes [offset, offset + size) of the slot."""

    offset: int
    size: int
    host: bool = False  #: in the host's memory, for CPU and GPU, also where the others are in a GPU's


@dataclass(frozen=True)
class Loan:
    """Memory of one process that another one is to map: pieces of files that follow each other, or what a handle of CUDA IPC names."""

    start: int  #: address of the first byte in the process that lends
    nbytes: int
    pieces: tuple[tuple[int, int], ...] = ()  #: of each piece, its offset in its file and its length
    fds: tuple[int, ...] = ()  #: the files, one a piece
    handle: bytes = b""


def slot_segments(heap_size: int) -> tuple[Segment, ...]:
    """Return the segments of a slot: system area and heap, with the unmapped guard between them."""
    rounded = -(-heap_size // GRANULARITY) * GRANULARITY
    return Segment(0, window.SYSTEM_SIZE), Segment(window.HEAP_OFFSET, rounded)


class Memory(Protocol):
    """One kind of memory: a GPU's (vmm.py), or the host's in the simulator (memfd.py). Addresses are those of the window."""

    def create(self, address: int, segment: Segment) -> int:
        """Allocate a zeroed segment of this PE's slot, map it at address and return a file descriptor that names it.

        Raises:
            HeapError: not enough memory, or the address range is taken.
        """

    def attach(self, address: int, segment: Segment, fd: int) -> None:
        """Map a peer's segment at address; fd is closed by the caller.

        Raises:
            TransportError: the memory cannot be mapped here.
        """

    def discard(self, address: int) -> None:
        """Unmap the segment that create() or attach() mapped at address, if there is one, and give it back; nothing uses it."""

    def create_private(self) -> None:
        """Map the state page, zeroed."""

    def lend(self, address: int, nbytes: int) -> Loan:
        """Make memory of this process, made by anybody, one that the software card's process can map.

        Raises:
            TransportError: it cannot be shared; the text says why.
        """

    def take_back(self, loan: Loan) -> None:
        """End a loan."""

    def borrow(self, loan: Loan) -> int:
        """Map what another process lends, anywhere, and return the address of its first byte. Loan.fds are closed by the caller."""

    def give_back(self, loan: Loan, address: int) -> None:
        """Unmap what borrow() mapped at an address."""

    def enter(self) -> None:
        """Let the calling thread use this memory, if it is not the one that made it."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes of mapped memory, also while kernels run."""

    def write(self, address: int, data: bytes) -> None:
        """Set bytes of mapped memory, also while kernels run."""

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set nbytes to one byte value."""

    def close(self) -> None:
        """Unmap everything and give it back."""
