"""Doorbells that a CPU rings for kernels (PGAS_IBGDA_NIC_HANDLER=cpu), where CUDA does not let the GPU store to a card's registers.

Kernels run the same code: store the doorbell record, release, store one word to the UAR register that their queue's record names. Here
that register is a word of host memory, the queue pair's mailbox, and the doorbell record is in host memory too. A thread polls the
mailboxes and forwards each new word to the real register. The kernel has written the doorbell record before, so the thread need not.

The thread may miss a word that a later one overwrites. The later one announces its WQEs too, as indices only grow. The thread cannot
mistake a new word for the one forwarded last: its 16-bit index recurs only after 2^16 WQEBBs, and a queue of at most 2^15 stops before
that until the card is rung.

This module is the memory layout. The thread is in forwarding.py, which compiles and is therefore imported only where it is needed.
"""

from pgas.transports.memory.protocol import GRANULARITY

__all__ = ["dbr_offset", "mailbox_offset", "segment_bytes"]

#: The doorbell records of a QP and its CQ share a line of 64 bytes; the mailbox has another, as the thread polls it.
_LINE = 64
_ROOM = 2 * _LINE


def segment_bytes(count: int) -> int:
    """Return the bytes of host memory for the doorbells of count queue pairs, a multiple of CUDA's granularity."""
    return -(-count * _ROOM // GRANULARITY) * GRANULARITY


def dbr_offset(number: int) -> int:
    """Return the offset of a queue pair's doorbell record in that memory."""
    return number * _ROOM


def mailbox_offset(number: int) -> int:
    """Return the offset of a queue pair's mailbox in that memory."""
    return number * _ROOM + _LINE
