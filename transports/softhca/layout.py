"""The addresses of the software NIC's registers, and its limits.

The UAR pages (the software NIC's BAR) are a memfd of the server. The server maps it whole at BAR; a PE maps the pages that it has
allocated. BAR is in the private GiB of a process (window.PRIVATE), whose first page is the state page and whose rest is free.
"""

from pgas.kernels import window

#: log2 of the number of objects, as QUERY_HCA_CAP reports them. The low bits of an object's number are its index in its table; the upper
#: bits count the uses of the index, so that the number of a destroyed object is invalid. Memory keys have no such bits, because their
#: indices are reused, as on a ConnectX.
LOG_MAX_QP = 12
LOG_MAX_CQ = 12
LOG_MAX_MKEY = 14
LOG_MAX_UAR = 13

#: log2 of the maximum queue size in WQEBBs (which the 4 bits of qpc.log_sq_size can hold) and in CQEs, and of the maximum message size.
LOG_MAX_QP_SZ = 15
LOG_MAX_CQ_SZ = 22
LOG_MAX_MSG = 30

#: Number of bytes of a receive WQE: 32 data segments.
MAX_WQE_SZ_RQ = 512

#: log2 of the maximum number of outstanding READs and atomics of a QP, as requester and as responder.
LOG_MAX_RA = 4

#: Number of bytes of a UAR page (uar_4k), regardless of the host's page size.
UAR_PAGE_SIZE = 4096

#: Minimum page size of a UMEM (umem.log_page_size 0).
UMEM_PAGE_SIZE = 4096

#: LID of a port without a wire, which is an InfiniBand port. Of a port with one, it is the UDP port, because Ethernet has no LIDs.
LID = 1

#: Beginning of the MAC address of a port with a wire, which is locally administered. The UDP port follows.
MAC_PREFIX = bytes.fromhex("02000000")

BAR = window.PRIVATE + (512 << 20)
BAR_SIZE = UAR_PAGE_SIZE << LOG_MAX_UAR


def page_address(page_id: int) -> int:
    """Return the address of a UAR page."""
    return BAR + page_id * UAR_PAGE_SIZE
