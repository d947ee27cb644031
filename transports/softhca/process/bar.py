"""Mapping a UAR page, which is one page of the server's memfd, at the same address in every process."""

import ctypes
import os

from pgas.base.errors import TransportError
from pgas.transports.softhca import layout

__all__ = ["map_page", "unmap_page"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_PROT_READ_WRITE, _MAP_SHARED, _MAP_FIXED_NOREPLACE = 0x3, 0x1, 0x10_0000


def map_page(fd: int, page_id: int) -> int:
    """Map a page and return its address.

    Raises:
        TransportError: the address is taken, or the kernel's page size is larger than a UAR.
    """
    address = layout.page_address(page_id)
    if os.sysconf("SC_PAGE_SIZE") > layout.UAR_PAGE_SIZE:
        raise TransportError(f"UAR pages of {layout.UAR_PAGE_SIZE} bytes cannot be mapped singly: this kernel's are larger")
    flags = _MAP_SHARED | _MAP_FIXED_NOREPLACE
    mapped = _libc.mmap(address, layout.UAR_PAGE_SIZE, _PROT_READ_WRITE, flags, fd, page_id * layout.UAR_PAGE_SIZE)
    if mapped != address:
        raise TransportError(f"cannot map UAR {page_id} at {address:#x}: {os.strerror(ctypes.get_errno())}")
    return address


def unmap_page(page_id: int) -> None:
    """Unmap a page."""
    _libc.munmap(layout.page_address(page_id), layout.UAR_PAGE_SIZE)
