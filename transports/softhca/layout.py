"""Where the software card's registers lie, and how much of everything it has.

The UAR pages (the card's BAR) are a memfd of the server, mapped at BAR by the server whole and by a PE page by page: those it allocated.
BAR lies in the private GiB (window.PRIVATE), which the state page begins; the rest of it is free.
"""

from pgas.kernels import window

__all__ = ["BAR", "BAR_SIZE", "UAR_PAGE_SIZE", "page_address"]

#: log2 of the number of objects, as QUERY_HCA_CAP reports them. The low bits of an object's number are its index in its
#: table, the bits above count how often the index was used before, so that the number of a destroyed object names nothing. Memory keys have
#: no such bits: their indices are used again, as a card does.
LOG_MAX_QP = 10
LOG_MAX_CQ = 10
LOG_MAX_MKEY = 14
LOG_MAX_UAR = 11

#: log2 of the largest queues, in WQEBBs (what the 4 bits of qpc.log_sq_size hold) and CQEs, and of the largest message.
LOG_MAX_QP_SZ = 15
LOG_MAX_CQ_SZ = 22
LOG_MAX_MSG = 30

#: Bytes of a receive WQE: 32 data segments.
MAX_WQE_SZ_RQ = 512

#: log2 of the READs and ATOMICs in flight of a QP, as requester and as responder.
LOG_MAX_RA = 4

#: uar_4k: a page has 4 KiB whatever the host's pages are.
UAR_PAGE_SIZE = 4096

#: The smallest page of a UMEM (umem.log_page_size 0).
UMEM_PAGE_SIZE = 4096

#: The address of the port, which is an InfiniBand one.
LID = 1

BAR = window.PRIVATE + (512 << 20)
BAR_SIZE = UAR_PAGE_SIZE << LOG_MAX_UAR


def page_address(page_id: int) -> int:
    """Return the address of a UAR page."""
    return BAR + page_id * UAR_PAGE_SIZE
