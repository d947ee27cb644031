"""The numbers by which error records and hang reports name operations."""

__all__ = ["NAMES", "number"]

NAMES = (
    "put", "put_nbi", "get", "p", "g", "put_signal", "signal_op", "signal_wait_until", "atomic_add", "atomic_fetch_add",
    "wait_until", "barrier_all", "sync_all", "ptr", "quiet", "fence",
    "get_nbi",
    "iput",
    "iget",
    "flush",
    "quiet_pe",
)  # fmt: skip


def number(name: str) -> int:
    """Return the number of an operation."""
    return NAMES.index(name)
