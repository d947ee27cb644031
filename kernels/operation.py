"""The numbers by which error records and hang reports name operations."""

__all__ = ["NAMES", "number"]

NAMES = (
    "put", "put_nbi", "get", "p", "g", "put_signal", "signal_op", "signal_wait_until", "atomic_add", "atomic_fetch_add",
    "wait_until", "barrier_all", "sync_all", "ptr", "quiet", "fence",
    "atomic_fetch", "atomic_set", "atomic_swap", "atomic_compare_swap", "atomic_inc", "atomic_fetch_inc", "atomic_and", "atomic_fetch_and",
    "atomic_or", "atomic_fetch_or", "atomic_xor", "atomic_fetch_xor",
    "get_nbi",
    "iput",
    "iget",
    "flush",
    "quiet_pe",
    "signal_fetch", "test",
    "wait_until_all", "wait_until_all_vector", "wait_until_any", "wait_until_any_vector", "wait_until_some", "wait_until_some_vector",
    "test_all", "test_all_vector", "test_any", "test_any_vector", "test_some", "test_some_vector",
)  # fmt: skip


def number(name: str) -> int:
    """Return the number of an operation."""
    return NAMES.index(name)
