"""Locks of a job (OpenSHMEM 1.5, "Distributed Locking Routines").

A lock is an element of type int64 or uint64 on the symmetric heap that is 0 on all PEs before its first use, such as the element of
``pgas.zeros(1, np.int64)``. The same element on all PEs is one lock. At most one thread of the job holds it. Threads that wait in
set_lock() get it in the order in which they requested it. Programs must not read or write the element while the lock is in use.

One PE has the value of the lock. The offset of the element determines which PE that is, so that the locks of a large array are distributed
over the PEs.

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, device_function
from pgas.kernels.ops import lock

__all__ = ["clear_lock", "set_lock", "test_lock"]


@device_function(lock.set_lock)
def set_lock(lock: Any, idx: Index, *, stream: Any = None) -> None:
    """Wait until no other thread of the job holds the lock ``lock[idx]``, and set it (OpenSHMEM 1.5, "SHMEM_LOCK").

    A thread that calls it again before clear_lock() waits for itself. The threads of a warp may compete for a lock. Kernels on several PEs
    that compete for one must run at the same time: use pgas.launch().

    Completion:
        on return: this thread holds the lock, and may read what earlier holders wrote before their clear_lock().
        complete: on return.

    Args:
        lock: array of int64 or uint64 on the symmetric heap, with elements that are 0 on all PEs before their first use.
        idx: index of the element: an integer, or a tuple with one integer per dimension of lock. Negative values do not count from the end.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds; the message names the lock, its PE, and the number
            of threads ahead of this one.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> lock, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def count(lock, counter):
        ...     pgas.set_lock(lock, 0)
        ...     pgas.p(counter, 0, pgas.g(counter, 0, 0) + 1, 0)  # no other thread changes it
        ...     pgas.clear_lock(lock, 0)
        >>> pgas.launch(count, 1, 2, (lock, counter))
        >>> pgas.barrier_all()
        >>> int(pgas.g(counter, 0, 0)) == 2 * pgas.n_pes()
        True
    """


@device_function(lock.test_lock)
def test_lock(lock: Any, idx: Index, *, stream: Any = None) -> Any:
    """Set the lock ``lock[idx]`` and return 0 if no thread of the job holds it; return 1 if one does. Never waits for the lock.

    These values are those of OpenSHMEM: 0 means that the caller now holds the lock. OpenSHMEM 1.5, "SHMEM_LOCK".

    Completion:
        on return: if the result is 0, this thread holds the lock, and may read what earlier holders wrote before their clear_lock().
        complete: on return.

    Args:
        lock: array of int64 or uint64 on the symmetric heap, with elements that are 0 on all PEs before their first use.
        idx: index of the element: an integer, or a tuple with one integer per dimension of lock. Negative values do not count from the end.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if the element does not exist or lock is not
            on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> lock, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def count(lock, counter):
        ...     while pgas.test_lock(lock, 0) != 0:
        ...         pass  # do something else, and try again
        ...     pgas.p(counter, 0, pgas.g(counter, 0, 0) + 1, 0)
        ...     pgas.clear_lock(lock, 0)
        >>> pgas.launch(count, 1, 2, (lock, counter))
        >>> pgas.barrier_all()
        >>> int(pgas.g(counter, 0, 0)) == 2 * pgas.n_pes()
        True
    """


@device_function(lock.clear_lock)
def clear_lock(lock: Any, idx: Index, *, stream: Any = None) -> None:
    """Complete the operations of this thread like quiet(), and clear the lock ``lock[idx]``, which this thread must hold.

    The next holder may then read what these operations wrote. On the host without ``stream``, the operations of all kernels of this PE are
    completed. A call by a thread that does not hold the lock clears the lock of the thread that does, and is not detected, because a lock
    counts its threads but does not record which one holds it: two threads may then hold it at the same time. OpenSHMEM 1.5, "SHMEM_LOCK".

    Completion:
        on return: the operations that quiet() covers are complete; the lock is being cleared.
        complete: the clearing after quiet(), quiet_pe(), or barrier_all(); the next holder need not wait for that.

    Args:
        lock: array of int64 or uint64 on the symmetric heap, with elements that are 0 on all PEs before their first use.
        idx: index of the element: an integer, or a tuple with one integer per dimension of lock. Negative values do not count from the end.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if no thread holds the lock.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> lock, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
        >>> pgas.set_lock(lock, 0)  # on the host
        >>> pgas.p(counter, 0, pgas.g(counter, 0, 0) + 1, 0)
        >>> pgas.clear_lock(lock, 0)  # the next holder sees the new count
        >>> pgas.barrier_all()
        >>> int(pgas.g(counter, 0, 0)) == pgas.n_pes()
        True
    """
