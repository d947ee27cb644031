"""Mapping a UAR page, which is one page of the server's memfd, at the same address in every process."""

import os

from pgas.base.errors import TransportError
from pgas.transports.memory import memfd
from pgas.transports.softhca import layout


def map_page(fd: int, page_id: int) -> int:
    """Map a page and return its address. Raises TransportError if the address is taken, or the kernel's page size is larger than a UAR."""
    address = layout.page_address(page_id)
    if os.sysconf("SC_PAGE_SIZE") > layout.UAR_PAGE_SIZE:
        raise TransportError(f"UAR pages of {layout.UAR_PAGE_SIZE} bytes cannot be mapped singly, because this kernel's pages are larger")
    if refusal := memfd.map_at(address, layout.UAR_PAGE_SIZE, fd, page_id * layout.UAR_PAGE_SIZE):
        raise TransportError(f"cannot map UAR {page_id} at {address:#x}: {refusal}")
    return address


def unmap_page(page_id: int) -> None:
    """Unmap a page."""
    memfd.unmap(layout.page_address(page_id), layout.UAR_PAGE_SIZE)
