"""Signals from kernels: uint64 words that tell a PE that its data has arrived (OpenSHMEM 1.5, "Signaling Operations").

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import signal, sync, wait
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "SIGNAL_ADD", "SIGNAL_SET", "put_signal", "put_signal_block", "put_signal_nbi", "put_signal_nbi_block", "put_signal_nbi_warp",
    "put_signal_warp", "signal_fetch", "signal_op", "signal_wait_until",
]  # fmt: skip

#: The signal replaces the word.
SIGNAL_SET = SignalOp.SET
#: The signal is added to the word, atomically.
SIGNAL_ADD = SignalOp.ADD


@device_function(signal.put_signal(THREAD, nbi=False))
def put_signal(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """Copy all of ``source`` to ``dest`` on PE ``pe``, then update ``sig[idx]`` there. The signal is never visible before the data.

    A thread that observes the new value in signal_wait_until() or wait_until() may read the data. To order other operations of this thread,
    call fence(). OpenSHMEM 1.5, "SHMEM_PUT_SIGNAL".

    Completion:
        on return: source may be reused.
        complete: the data once a wait observes the signal; the data and the signal after quiet(), quiet_pe(), or barrier_all().

    Args:
        dest: contiguous array or slice on the symmetric heap; any alignment.
        source: contiguous array with the same dtype and number of dimensions as dest, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        sig: array of uint64 on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of sig. Negative values do not count from the end.
        value: integer, converted to uint64 modulo 2^64; on the host it must be in the range of uint64.
        op: pgas.SIGNAL_SET or pgas.SIGNAL_ADD.
        pe: number of the target PE; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access source; with PGAS_DEBUG=check or in the
            simulator also if pe or ``sig[idx]`` does not exist, dest or sig is not on the heap, dest is shorter than source, or op is
            invalid.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source, sig = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def exchange(dest, source, sig, pe):
        ...     pgas.put_signal(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)
        ...     pgas.signal_wait_until(sig, 0, pgas.EQ, 1)  # the left neighbor's data is in dest
        >>> pgas.launch(exchange, 1, 1, (dest, source, sig, right))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(signal.put_signal(WARP, nbi=False))
def put_signal_warp(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """Like put_signal(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry and on return. The signal is updated once.
    """


@device_function(signal.put_signal(BLOCK, nbi=False))
def put_signal_block(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """Like put_signal(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry and on return. The signal is updated once.
    """


@device_function(signal.put_signal(THREAD, nbi=True))
def put_signal_nbi(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """Start copying ``source`` to ``dest`` on PE ``pe``, and updating ``sig[idx]`` there after the data: a non-blocking put_signal().

    ``source`` may be reused only after quiet(), quiet_pe(), or barrier_all(), or after flush(). A thread that observes the new value in
    signal_wait_until() or wait_until() may read the data. OpenSHMEM 1.5, "SHMEM_PUT_SIGNAL_NBI".

    Completion:
        on return: the operation has started.
        complete: the data once a wait observes the signal; the data and the signal after quiet(), quiet_pe(), or barrier_all(); source may
            be reused then, or after flush().

    Args:
        dest: contiguous array or slice on the symmetric heap; any alignment.
        source: contiguous array with the same dtype and number of dimensions as dest, in any memory: symmetric heap, other global, shared,
            or local; through a NIC, only on the heap or registered.
        sig: array of uint64 on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of sig. Negative values do not count from the end.
        value: integer, converted to uint64 modulo 2^64; on the host it must be in the range of uint64.
        op: pgas.SIGNAL_SET or pgas.SIGNAL_ADD.
        pe: number of the target PE; this PE is allowed, but then dest and source must not overlap, unless they are the
            same elements.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if the dtypes or numbers of dimensions differ or an argument has
            the wrong type.
        DeviceError: raised later on the host, if an array is not contiguous, or a NIC cannot access source; with PGAS_DEBUG=check or in the
            simulator also if pe or ``sig[idx]`` does not exist, dest or sig is not on the heap, dest is shorter than source, or op is
            invalid.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source, sig = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def exchange(dest, source, sig, pe):
        ...     pgas.put_signal_nbi(dest, source, sig, 0, 1, pgas.SIGNAL_SET, pe)
        ...     pgas.signal_wait_until(sig, 0, pgas.EQ, 1)  # the left neighbor's data is in dest
        ...     pgas.quiet()  # now source may be overwritten
        >>> pgas.launch(exchange, 1, 1, (dest, source, sig, right))
        >>> pgas.synchronize()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(signal.put_signal(WARP, nbi=True))
def put_signal_nbi_warp(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """Like put_signal_nbi(), but called by all threads of a warp together with the same arguments; none may have exited.

    Synchronizes the warp on entry, but not on return. The signal is updated once.
    """


@device_function(signal.put_signal(BLOCK, nbi=True))
def put_signal_nbi_block(dest: Any, source: Any, sig: Any, idx: Index, value: Any, op: int, pe: Integer) -> None:
    """Like put_signal_nbi(), but called by all threads of a block together with the same arguments; none may have exited.

    Synchronizes the block on entry, but not on return. The signal is updated once.
    """


@device_function(signal.signal_op)
def signal_op(sig: Any, idx: Index, value: Any, op: int, pe: Integer, *, stream: Any = None) -> None:
    """Set ``sig[idx]`` on PE ``pe`` to ``value``, or add ``value`` to it, depending on ``op``.

    Does not order earlier operations; call fence() first to do so. NVSHMEM: nvshmemx_signal_op.

    Completion:
        on return: value has been read.
        complete: after quiet(), quiet_pe(), or barrier_all().

    Args:
        sig: array of uint64 on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of sig. Negative values do not count from the end.
        value: integer, converted to uint64 modulo 2^64; on the host it must be in the range of uint64.
        op: pgas.SIGNAL_SET or pgas.SIGNAL_ADD.
        pe: number of the target PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if pe or the element does not exist, sig is
            not on the heap, or op is invalid.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> sig = pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def tell(sig, pe):
        ...     pgas.signal_op(sig, 0, 5, pgas.SIGNAL_ADD, pe)
        >>> tell[1, 2](sig, right)
        >>> pgas.barrier_all()
        >>> int(sig[0])
        10
    """


@device_function(sync.signal_wait_until)
def signal_wait_until(sig: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> Any:
    """Wait until this PE's ``sig[idx]`` satisfies the comparison, and return the value that did.

    OpenSHMEM 1.5, "SHMEM_SIGNAL_WAIT_UNTIL".

    Completion:
        on return: the condition has held; this thread may read what the writer wrote before its fence(), or the data of its put_signal().
        complete: on return.

    Args:
        sig: array of uint64 on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of sig. Negative values do not count from the end.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``sig[idx] cmp value``.
        value: integer, converted to uint64 modulo 2^64; on the host it must be in the range of uint64.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds; the message gives the element, the condition, and
            the last value read.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> sig, seen = pgas.zeros(1, np.uint64), pgas.zeros(1, np.uint64)
        >>> @pgas.jit
        ... def meet(sig, seen, pe):
        ...     pgas.signal_op(sig, 0, 3, pgas.SIGNAL_SET, pe)
        ...     seen[0] = pgas.signal_wait_until(sig, 0, pgas.GE, 1)
        >>> pgas.launch(meet, 1, 1, (sig, seen, right))
        >>> pgas.synchronize()
        >>> int(seen[0])
        3
    """


@device_function(wait.signal_fetch)
def signal_fetch(sig: Any, idx: Index, *, stream: Any = None) -> Any:
    """Return this PE's ``sig[idx]`` (uint64), read atomically. The data of the put_signal() that wrote the value is visible.

    OpenSHMEM 1.5, "SHMEM_SIGNAL_FETCH".

    Completion:
        on return: the value has been read.
        complete: on return.

    Args:
        sig: array of uint64 on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of sig. Negative values do not count from the end.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, only with PGAS_DEBUG=check or in the simulator, if the element does not exist or sig is not
            on the heap.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> sig = pgas.zeros(1, np.uint64)
        >>> pgas.signal_op(sig, 0, 4, pgas.SIGNAL_SET, pgas.my_pe())
        >>> pgas.quiet()
        >>> int(pgas.signal_fetch(sig, 0))
        4
    """
