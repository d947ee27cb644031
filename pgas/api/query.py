"""Queries: my_pe, n_pes, ptr, on the host and in kernels (OpenSHMEM 1.5, "Library Setup, Exit, and Query Routines")."""

from typing import Any

from pgas.base.errors import about
from pgas.job import runtime
from pgas.kernels.compiler.binding import Integer, array_function, device_function
from pgas.kernels.ops import query

__all__ = ["my_pe", "n_pes", "ptr"]


@device_function(query.my_pe, host=lambda: runtime.current().my_pe)
def my_pe() -> int:
    """Return the number of this PE, from 0 to n_pes() - 1.

    Example:
        >>> pgas.my_pe() in range(pgas.n_pes())
        True
    """
    raise AssertionError


@device_function(query.n_pes, host=lambda: runtime.current().n_pes)
def n_pes() -> int:
    """Return the number of PEs of the job.

    Example:
        >>> pgas.n_pes()
        2
    """
    raise AssertionError


def _ptr(dest: Any, pe: Any) -> Any:
    job = runtime.current()
    with about("pgas.ptr: dest"):  # a freed array
        return job.peer(dest, pe)


@array_function(query.ptr, _ptr)
def ptr(dest: Any, pe: Integer) -> Any:
    """Return PE ``pe``'s instance of the symmetric array ``dest`` as an array for plain loads and stores.

    Args:
        dest: array or slice on the symmetric heap.
        pe: number of the PE; this PE itself is allowed.

    Returns:
        An array of the same shape and dtype; on the host None if the PE's memory is not mapped here (``python -m pgas info`` prints
        why). It must not be the symmetric operand of another operation.

    Raises:
        TypingError: in a kernel: the job's only transport is through a NIC (TypeError in the simulator).
        DeviceError: after the kernel: the job has two paths, and the PE is reached through a NIC.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> a = pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def store(a, pe):
        ...     pgas.ptr(a, pe)[0] = 4  # a plain store to PE pe, over p2p
        >>> store[1, 1](a, right)
        >>> pgas.barrier_all()
        >>> int(a[0])
        4
    """
