"""Doorbells that a CPU rings for kernels (PGAS_IBGDA_NIC_HANDLER=cpu), if CUDA does not let the GPU store to a NIC's registers.

Kernels run the same code: store the doorbell record, release, store one word to the UAR register in their queue's record. Here, that
register is a word of host memory, the queue pair's mailbox, and the doorbell record is also in host memory. A thread polls the mailboxes
and forwards each new word to the real register. It need not write the doorbell record, because the kernel has already done so.

The thread may miss a word that a later one overwrites. The later one also announces its WQEs, because indices only grow. The thread cannot
mistake a new word for the last one forwarded, because its 16-bit index recurs only after 2^16 WQEBBs, and a queue of at most 2^15 WQEBBs
stops before that until the doorbell is rung.

This module defines the memory layout. The thread is in forwarding.py, which compiles and is therefore imported only if it is needed.
"""

from pgas.transports.memory.protocol import whole_pages

#: Number of bytes of a line. The doorbell records of a QP and its CQ share one; the mailbox has another, because the thread polls it.
_LINE = 64
_ROOM = 2 * _LINE


def segment_bytes(count: int) -> int:
    """Return the bytes of host memory for the doorbells of count queue pairs, a multiple of CUDA's granularity."""
    return whole_pages(count * _ROOM)


def dbr_offset(number: int) -> int:
    """Return the offset of a queue pair's doorbell record in that memory."""
    return number * _ROOM


def mailbox_offset(number: int) -> int:
    """Return the offset of a queue pair's mailbox in that memory."""
    return number * _ROOM + _LINE
