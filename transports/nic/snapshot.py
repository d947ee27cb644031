"""Snapshots of a NIC's queues, for hang reports (outstanding.py)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QueueMemory:
    """The memory of a queue pair."""

    ring: bytes  #: the send queue
    doorbell: int  #: the doorbell record: the low 16 bits of an index
    cqe: bytes  #: the last CQE


@dataclass(frozen=True)
class Ring:
    """The ring of a proxy thread (ibrc/thread.py)."""

    thread: str  #: text that describes the state of the proxy thread
    head: int  #: reserved tickets
    completed: int  #: completed requests
    oldest: list[tuple[int, bytes | None]]  #: oldest outstanding requests: ticket, and request or None if it is not written yet
