"""Atomic memory operations from kernels (OpenSHMEM 1.5, section 9.8).

On the host, and on CUDA streams: pgas/host_ops.py.
"""

from typing import Any

from pgas.kernels import amo
from pgas.kernels.binding import device_function

__all__ = ["atomic_add", "atomic_fetch_add"]


@device_function(amo.atomic_add(fetch=False))
def atomic_add(dest: Any, idx: Any, value: Any, pe: Any) -> None:
    """Add ``value`` to ``dest[idx]`` on PE ``pe``, atomically with all pgas atomics on it. Complete after quiet() or barrier_all().

    Orders nothing else: use fence() or a signal for that. Integers wrap.

    Args:
        dest: array or slice on the symmetric heap, of 32- or 64-bit integers or floats.
        idx: integer, or tuple of as many integers as dest has dimensions.
        value: converted to dest's dtype.
        pe: number of the target PE; this PE itself is allowed.

    Raises: as put().
    """


@device_function(amo.atomic_add(fetch=True))
def atomic_fetch_add(dest: Any, idx: Any, value: Any, pe: Any) -> Any:
    """atomic_add() that returns what the element held before."""
