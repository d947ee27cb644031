"""Doorbells that a CPU rings for kernels (PGAS_IBGDA_NIC_HANDLER=cpu), where CUDA does not let the GPU store to a card's registers.

Kernels do what they always do: store the doorbell record, release, store one word to what their queue's record names as the UAR register.
Only that this is a word of the host's memory, the queue pair's mailbox, and the doorbell record lies in the host's memory too. A thread
that finds a new word in a mailbox forwards it to the register. It need not write the record: that is there before the word (NVSHMEM's
thread writes it, at the wrong address: facts/mlx5.md 5.4). It may see two words as one, the later, which announces what the earlier one
did, as indices only grow; it cannot mistake a word for an older one, because the index that it holds comes again only after 2^16 WQEBBs,
and a queue of at most 2^15 does not go on before the card was rung.

Here is where they lie; the thread is forwarding.py's, which compiles and is therefore imported only where doorbells are forwarded.
"""

from pgas.transports.memory.protocol import GRANULARITY

__all__ = ["dbr_offset", "mailbox_offset", "segment_bytes"]

#: A queue pair's doorbell record and the CQ's, and its mailbox: a line of 64 bytes each, as different sides write them.
_LINE = 64
_ROOM = 2 * _LINE


def segment_bytes(count: int) -> int:
    """Return the bytes of host memory that the doorbells of so many queue pairs take, whole pages of CUDA's."""
    return -(-count * _ROOM // GRANULARITY) * GRANULARITY


def dbr_offset(number: int) -> int:
    """Return where the doorbell record of a queue pair lies in that memory."""
    return number * _ROOM


def mailbox_offset(number: int) -> int:
    """Return where the mailbox of a queue pair lies in that memory."""
    return number * _ROOM + _LINE
