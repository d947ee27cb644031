"""Queries on the host and in kernels: my_pe, n_pes, and ptr (OpenSHMEM 1.5, "Library Setup, Exit, and Query Routines")."""

from typing import Any

from pgas.base.errors import about
from pgas.job import runtime
from pgas.kernels.compiler.binding import Integer, array_function, device_function
from pgas.kernels.ops import query

__all__ = ["my_pe", "n_pes", "ptr"]


@device_function(query.my_pe, host=lambda: runtime.current().my_pe)
def my_pe() -> int:
    """Return the number of this PE, from 0 to n_pes() - 1, in a kernel or on the host (OpenSHMEM 1.5, "SHMEM_MY_PE").

    Example:
        >>> pgas.my_pe() in range(pgas.n_pes())
        True
    """
    raise AssertionError


@device_function(query.n_pes, host=lambda: runtime.current().n_pes)
def n_pes() -> int:
    """Return the number of PEs in the job, in a kernel or on the host (OpenSHMEM 1.5, "SHMEM_N_PES").

    Example:
        >>> pgas.n_pes()
        2
    """
    raise AssertionError


def _ptr(dest: Any, pe: Any) -> Any:
    job = runtime.current()
    with about("pgas.ptr: dest"):  # The array may have been freed.
        return job.peer(dest, pe)


@array_function(query.ptr, _ptr)
def ptr(dest: Any, pe: Integer) -> Any:
    """Return an array that gives plain load/store access to PE ``pe``'s instance of the symmetric array ``dest``.

    OpenSHMEM 1.5, "SHMEM_PTR".

    Args:
        dest: array or slice on the symmetric heap.
        pe: number of the PE; this PE is allowed.

    Returns:
        An array with the same shape and dtype. On the host, None if the PE's memory is not mapped here (``python -m pgas info`` prints
        why). It must not be the symmetric operand of another operation.

    Raises:
        TypingError: in a kernel, at compile time (TypeError in the simulator), if the job's only transport is a NIC transport.
        DeviceError: raised later on the host, if the job has two transports and the PE is reached through a NIC.
        HeapError: on the host, if dest was freed.
        ValueError: on the host, if dest is not on the symmetric heap or pe does not exist.

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
