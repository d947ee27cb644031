"""What lies in the queues of a NIC at some moment, as hang reports show it (outstanding.py)."""

from dataclasses import dataclass

__all__ = ["QueueMemory", "Ring"]


@dataclass(frozen=True)
class QueueMemory:
    """What lies in the memory of a queue pair."""

    ring: bytes  #: the send queue
    doorbell: int  #: the doorbell record: the low 16 bits of an index
    cqe: bytes  #: the last CQE


@dataclass(frozen=True)
class Ring:
    """The ring of a proxy thread (ibrc/thread.py) at some moment."""

    thread: str  #: what the proxy thread does
    head: int  #: tickets that kernels have reserved
    completed: int  #: requests that are done
    oldest: list[tuple[int, bytes | None]]  #: of those that are not done: ticket and request, None if it is not written yet
