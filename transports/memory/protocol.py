"""Segments of memory, mapped at fixed addresses of the window in this process and its peers, and the protocol for mapping them."""

from dataclasses import dataclass
from typing import Protocol

from pgas.kernels import window

#: Granularity of VMM allocations on every GPU tested, and of the window's layout.
GRANULARITY = 2 << 20


@dataclass(frozen=True)
class Segment:
    """Bytes [offset, offset + size) of every slot, backed by one shareable allocation."""

    offset: int
    size: int
    host: bool = False  #: always in host memory, mapped for CPU and GPU


@dataclass(frozen=True)
class Loan:
    """Memory of one process that another one may map: consecutive pieces of files, or an allocation with a CUDA IPC handle."""

    start: int  #: address of the first byte in the lending process
    nbytes: int
    pieces: tuple[tuple[int, int], ...] = ()  #: offset and length of each piece in its file
    fds: tuple[int, ...] = ()  #: the file of each piece
    handle: bytes = b""  #: handle of CUDA IPC


def whole_pages(nbytes: int) -> int:
    """Return a size rounded up to whole pages of a GPU (GRANULARITY)."""
    return -(-nbytes // GRANULARITY) * GRANULARITY


def heap_segment(team_memory: int, heap_size: int) -> Segment:
    """Return the segment of a slot with team memory followed by the heap. Both are whole pages."""
    return Segment(window.HEAP_OFFSET - team_memory, team_memory + heap_size)


class Memory(Protocol):
    """One kind of memory: GPU memory (vmm.py), or host memory in the simulator (memfd.py). Addresses are those of the window."""

    on_gpu: bool  #: whether it is GPU memory
    host_words: int  #: from create_private() to close(), address of host memory (layout.HOST_WORDS_SIZE) that kernels can access; else 0

    def create(self, address: int, segment: Segment) -> int:
        """Allocate a zeroed segment of this PE's slot, map it at address, and return its file descriptor.

        Raises:
            HeapError: there is not enough memory, or the address range is taken.
        """

    def attach(self, address: int, segment: Segment, fd: int) -> None:
        """Map a peer's segment at address; fd is closed by the caller. Raises TransportError if the memory cannot be mapped here."""

    def discard(self, address: int) -> None:
        """Unmap and release the segment that create() or attach() mapped at address, if there is one. It must not be in use."""

    def create_private(self, nbytes: int = window.STATE_SIZE) -> None:
        """Map the state page, zeroed, and what follows it up to nbytes, and allocate host_words."""

    def map_file(self, address: int, nbytes: int, fd: int) -> None:
        """Map a file at address, below the window, for the host and for kernels.

        Raises:
            TransportError: if kernels cannot write to it; the text has the reason.
        """

    def lend(self, address: int, nbytes: int) -> Loan:
        """Let the software NIC's process map memory of this process, regardless of its allocator.

        Raises:
            TransportError: the memory cannot be shared; the text has the reason.
        """

    def take_back(self, loan: Loan) -> None:
        """End a loan."""

    def borrow(self, loan: Loan) -> int:
        """Map another process's loan at any address and return that of its first byte. The caller closes Loan.fds."""

    def give_back(self, loan: Loan, address: int) -> None:
        """Undo borrow(). address: its result."""

    def enter(self) -> None:
        """Let a thread other than the creator's use this memory."""

    def read(self, address: int, nbytes: int) -> bytes:
        """Return bytes of mapped memory; kernels may run meanwhile."""

    def write(self, address: int, data: bytes) -> None:
        """Set bytes of mapped memory; kernels may run meanwhile."""

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set nbytes bytes to one value."""

    def close(self) -> None:
        """Unmap and release everything."""
