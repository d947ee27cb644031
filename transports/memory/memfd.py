"""The simulator's memory: memfds mapped at the window's own addresses, so that addresses mean the same as on a GPU.

Memfds have no name in a file system. Files in /dev/shm would be limited to 64 MiB in containers, and a killed job would leave them behind.
"""

import contextlib
import ctypes
import os

from pgas.base.config import size_text
from pgas.base.errors import HeapError, TransportError
from pgas.kernels import layout, window
from pgas.transports.memory import pages
from pgas.transports.memory.protocol import Loan, Segment

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_PROT_READ, _PROT_WRITE = 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_ANONYMOUS, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0x1, 0x2, 0x20, 0x4000, 0x10_0000
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_at(address: int, nbytes: int, fd: int, offset: int = 0) -> str | None:
    """Map a file, or private memory if fd is -1, at exactly this address; return the reason if that is refused."""
    sharing = _MAP_SHARED if fd >= 0 else _MAP_PRIVATE | _MAP_ANONYMOUS
    flags = sharing | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
    mapped = _libc.mmap(address, nbytes, _PROT_READ | _PROT_WRITE, flags, fd, offset)
    if mapped == address:
        return None
    if mapped == _MAP_FAILED:
        return os.strerror(ctypes.get_errno())
    unmap(mapped, nbytes)  # kernels before 4.17 use the address only as a hint
    return "the address range is taken"


def unmap(address: int, nbytes: int) -> None:
    """Unmap a range of memory."""
    _libc.munmap(address, nbytes)


class HostMemory:
    """Implements Memory on host memory."""

    on_gpu = False

    def __init__(self) -> None:
        self.host_words, self._words = 0, ctypes.create_string_buffer(0)
        self._pages = pages.SharedPages()
        self._mappings: dict[int, int] = {}  # bytes, by address
        self._fds: dict[int, int] = {}  # descriptors of own segments, by address

    def create(self, address: int, segment: Segment) -> int:
        """Allocate a segment as a memfd and map it. The memfd is sparse: pages are allocated on first use."""
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        created = sum(self._mappings[other] for other in self._fds)
        if created + segment.size > available:
            raise HeapError(
                f"cannot allocate {size_text(segment.size)} of symmetric heap: this machine has {size_text(available)}, of which this PE "
                f"holds {size_text(created)} (PGAS_SYMMETRIC_SIZE)"
            )
        try:
            with contextlib.ExitStack() as undo:
                fd = os.memfd_create("pgas-heap")
                undo.callback(os.close, fd)
                os.ftruncate(fd, segment.size)
                if refusal := self._map(address, segment.size, fd):
                    raise HeapError(f"cannot map {size_text(segment.size)} at {address:#x}: {refusal}")
                undo.pop_all()
        except OSError as error:
            raise HeapError(f"cannot allocate {size_text(segment.size)} of symmetric heap: {error.strerror}") from error
        self._fds[address] = fd
        return fd

    def attach(self, address: int, segment: Segment, fd: int) -> None:
        if error := self._map(address, segment.size, fd):
            raise TransportError(f"cannot map a peer's memory at {address:#x}: {error}")

    def discard(self, address: int) -> None:
        if address in self._mappings:
            unmap(address, self._mappings.pop(address))
        if address in self._fds:
            os.close(self._fds.pop(address))

    def create_private(self, nbytes: int = window.STATE_SIZE) -> None:
        if error := self._map(window.STATE, nbytes, -1):
            raise HeapError(f"cannot map the state page at {window.STATE:#x}: {error}")
        self._words = ctypes.create_string_buffer(layout.HOST_WORDS_SIZE)
        self.host_words = ctypes.addressof(self._words)

    def map_file(self, address: int, nbytes: int, fd: int) -> None:
        if error := self._map(address, nbytes, fd):
            raise TransportError(f"cannot map a file at {address:#x}: {error}")

    def _map(self, address: int, nbytes: int, fd: int) -> str | None:
        refusal = map_at(address, nbytes, fd)
        if refusal is None:
            self._mappings[address] = nbytes
        return refusal

    def lend(self, address: int, nbytes: int) -> Loan:
        """Replace the memory's pages with pages that other processes can map (pages.py)."""
        return self._pages.lend(address, nbytes)

    def take_back(self, loan: Loan) -> None:
        self._pages.take_back(loan)

    borrow = staticmethod(pages.borrow)
    give_back = staticmethod(pages.give_back)

    def enter(self) -> None:
        """Do nothing, because host memory needs no context."""

    def read(self, address: int, nbytes: int) -> bytes:
        return ctypes.string_at(address, nbytes)

    def write(self, address: int, data: bytes) -> None:
        ctypes.memmove(address, data, len(data))

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        ctypes.memset(address, byte, nbytes)

    def close(self) -> None:
        self._pages.close()
        self.host_words = 0
        for address in list(self._mappings):
            self.discard(address)
