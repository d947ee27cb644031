"""Locks of a job (OpenSHMEM 1.5, "Distributed Locking Routines").

A lock is an element of type int64 or uint64 on the symmetric heap that is 0 on all PEs before its first use, such as the element of
``pgas.zeros(1, np.int64)``. The same element on all PEs is one lock. At most one thread of the job holds it. Threads that wait in
set_lock() get it in the order in which they asked for it. Programs must not read or write the element while the lock is in use.

The value of the lock is on one PE, which follows from the offset of the element, so that the locks of a large array are spread over PEs.

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, device_function
from pgas.kernels.ops import lock

__all__ = ["clear_lock", "set_lock", "test_lock"]


@device_function(lock.set_lock)
def set_lock(lock: Any, idx: Index, *, stream: Any = None) -> None:
    """Wait until no other thread of the job holds the lock ``lock[idx]``, and set it.

    A thread that calls it again before clear_lock() waits for itself. The threads of a warp may compete for a lock. Kernels on several PEs
    that do so must run at the same time: use pgas.launch().

    Completion:
        on return: this thread holds the lock, and sees the operations that earlier holders made before their clear_lock().
        complete: on return.

    Args:
        lock: array of int64 or uint64 on the symmetric heap.
        idx: integer, or tuple of as many integers as lock has dimensions.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled, if the operands do not fit.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds; the message names the lock, its PE and the number
            of threads before this one.

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

    Note the values, which are those of OpenSHMEM: 0 means that the caller now holds the lock.

    Completion:
        on return: if the result is 0, this thread holds the lock, and sees the operations that earlier holders made before their
            clear_lock().
        complete: on return.

    Args:
        lock: array of int64 or uint64 on the symmetric heap.
        idx: integer, or tuple of as many integers as lock has dimensions.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled, if the operands do not fit.

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
    """Complete the operations of this thread as quiet() does, and clear the lock ``lock[idx]``, which this thread must hold.

    The next holder then sees these operations. On the host without ``stream``, the operations of all kernels of this PE are completed.

    Completion:
        on return: the operations that quiet() covers are complete; the lock is being cleared.
        complete: the clearing after quiet(), quiet_pe() or barrier_all(); the next holder need not wait for that.

    Args:
        lock: array of int64 or uint64 on the symmetric heap.
        idx: integer, or tuple of as many integers as lock has dimensions.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch. Default: call it immediately.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled, if the operands do not fit.
        DeviceError: raised later on the host, under PGAS_DEBUG=check and in the simulator, if the lock is not set.

    Example:
        >>> lock, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
        >>> pgas.set_lock(lock, 0)  # on the host
        >>> pgas.p(counter, 0, pgas.g(counter, 0, 0) + 1, 0)
        >>> pgas.clear_lock(lock, 0)  # the next holder sees the new count
        >>> pgas.barrier_all()
        >>> int(pgas.g(counter, 0, 0)) == pgas.n_pes()
        True
    """
