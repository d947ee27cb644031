"""Waiting and ordering: wait_until, fence, quiet, flush, barrier_all, and sync_all (OpenSHMEM 1.5, "Memory Ordering Routines").

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.codes import Comparison
from pgas.kernels.collectives import barriers
from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import sync
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "barrier_all", "barrier_all_block", "barrier_all_warp", "fence", "flush", "quiet", "quiet_pe",
    "sync_all", "sync_all_block", "sync_all_warp", "wait_until",
]  # fmt: skip

#: Comparisons for waits and tests: element <comparison> value.
EQ, NE, GT, LE, LT, GE = Comparison


@device_function(sync.wait_until)
def wait_until(ivar: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> None:
    """Wait until this PE's ``ivar[idx]`` satisfies the comparison (OpenSHMEM 1.5, "SHMEM_WAIT_UNTIL").

    Completion:
        on return: the condition has held; this thread may read what the writer wrote before its fence(), or the data of its put_signal().
        complete: on return.

    Args:
        ivar: array of 16-, 32-, or 64-bit integers on the symmetric heap.
        idx: index of the element: an integer, or a tuple with one integer per dimension of ivar. Negative values do not count from the end.
        cmp: pgas.EQ, NE, GT, LE, LT, or GE: ``ivar[idx] cmp value``.
        value: integer, converted to ivar's dtype modulo 2^bits; on the host it must be in the dtype's range.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if an argument has the wrong type.
        DeviceError: raised later on the host, if the wait exceeds PGAS_TIMEOUT seconds; the message gives the element, the condition, and
            the last value read.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> data, flag = pgas.zeros(1), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def pass_on(data, flag, pe):
        ...     pgas.p(data, 0, 2.5, pe)
        ...     pgas.fence()  # the flag arrives after the data
        ...     pgas.p(flag, 0, 1, pe)
        ...     pgas.wait_until(flag, 0, pgas.EQ, 1)
        ...     data[0] += 1.0  # the left neighbor's value is here
        >>> pgas.launch(pass_on, 1, 1, (data, flag, right))
        >>> pgas.synchronize()
        >>> float(data[0])
        3.5
    """


@device_function(sync.fence)
def fence(*, stream: Any = None) -> None:
    """Order this thread's puts, p() stores, signals, and atomics to each PE (OpenSHMEM 1.5, "SHMEM_FENCE").

    On each PE, those before the fence become visible before those after it. This also covers other threads' operations that happen before
    the call (through syncthreads, a grid barrier, or an acquired flag). It completes nothing (use quiet() for that), and orders neither
    gets nor operations to different PEs. After an atomic that returned a value, it lets this thread read what the writer of the value wrote
    before its own fence.

    Completion:
        on return: later operations of this thread to a PE become visible there only after its earlier ones.
        complete: nothing.

    Args:
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        DeviceError: raised later on the host, if a NIC transport's operations are not complete within PGAS_TIMEOUT seconds.
        CompletionError: raised later on the host, if a NIC completed an operation in error.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> data, flag = pgas.zeros(1), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def send(data, flag, pe):
        ...     pgas.p(data, 0, 2.5, pe)
        ...     pgas.fence()  # whoever sees the flag also sees the data
        ...     pgas.p(flag, 0, 1, pe)
        >>> send[1, 1](data, flag, right)
        >>> pgas.wait_until(flag, 0, pgas.EQ, 1)
        >>> float(data[0])
        2.5
    """


@device_function(sync.quiet)
def quiet(*, stream: Any = None) -> None:
    """Complete this thread's operations, and other threads' operations that happen before the call, at every PE.

    Afterward the data of puts has arrived, gets have finished, and sources of non-blocking operations may be reused. Concurrent operations
    of other threads are not covered. On the host without ``stream``, the call waits for all kernels of this PE and completes their
    operations. OpenSHMEM 1.5, "SHMEM_QUIET".

    Completion:
        on return: this thread's operations, and those of other threads that happen before the call, are complete.
        complete: on return.

    Args:
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        DeviceError: raised later on the host, if a NIC transport's operations are not complete within PGAS_TIMEOUT seconds.
        CompletionError: raised later on the host, if a NIC completed an operation in error.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     pgas.put_nbi(dest, source, pe)
        ...     pgas.quiet()
        ...     source[0] = 0  # the put has read the old value, and is complete
        >>> send[1, 1](dest, source, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(sync.quiet_pe)
def quiet_pe(pe: Integer, *, stream: Any = None) -> None:
    """Complete this thread's operations to and from PE ``pe``: quiet() for one PE (OpenSHMEM 1.5, "SHMEM_QUIET").

    Other threads' operations to and from that PE are covered if they happen before the call. Operations to other PEs may or may not be
    complete. Over ibgda, only the used queue pairs to that PE are polled. Over p2p, where fences cover all PEs, and over ibrc, whose
    requests complete in one order for all PEs, the call does the same as quiet().

    Completion:
        on return: this thread's operations to and from that PE, and those of other threads that happen before the call, are complete.
        complete: on return.

    Args:
        pe: number of the PE; this PE is allowed.
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if pe is not an integer.
        DeviceError: raised later on the host, if a NIC transport's operations are not complete within PGAS_TIMEOUT seconds; with
            PGAS_DEBUG=check or in the simulator also if pe does not exist.
        TypeError, ValueError: on the host, at the call, if an argument is invalid.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     pgas.put_nbi(dest, source, pe)
        ...     pgas.quiet_pe(pe)  # operations to other PEs may still be outstanding
        >>> send[1, 1](dest, source, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(sync.flush)
def flush(*, stream: Any = None) -> None:
    """Wait until the sources of puts may be reused: those of this thread, and of other threads' puts that happen before the call.

    Needed only after put_nbi() and put_signal_nbi(), because the blocking forms already wait (NVSHMEM 3.7: nvshmemx_flush). It completes
    and orders nothing: the data may still be in flight, and get_nbi() may be incomplete. Use quiet() to complete operations and fence() to
    order them.

    Over p2p the call takes no time, because a store has read its source when it is issued. A NIC reports that it has read a source only
    when the data has arrived, so over ibgda and ibrc the call takes as long as quiet().

    Completion:
        on return: the sources may be reused.
        complete: nothing at other PEs.

    Args:
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        DeviceError: raised later on the host, if a NIC transport's operations are not complete within PGAS_TIMEOUT seconds.
        CompletionError: raised later on the host, if a NIC completed an operation in error.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4, np.int32), pgas.full(4, 7, np.int32)
        >>> @pgas.jit
        ... def send(dest, source, pe):
        ...     pgas.put_nbi(dest, source, pe)
        ...     pgas.flush()
        ...     source[0] = 0  # the put has read the old value
        >>> send[1, 1](dest, source, right)
        >>> pgas.barrier_all()
        >>> dest.copy_to_host().tolist()
        [7, 7, 7, 7]
    """


@device_function(barriers.of_all("barrier_all", THREAD, completes=True))
def barrier_all(*, stream: Any = None) -> None:
    """Wait until all PEs have arrived, and the operations that quiet() covers are complete on each PE.

    In a kernel, only one thread per PE may be in this call at a time (the simulator rejects a second one); it completes what quiet()
    completes in that thread. The kernels must run at the same time on all PEs, and no block may wait for a block that has not started: use
    pgas.launch().

    On the host without ``stream``, the call waits for this PE's kernels and completes their operations, then waits for all PEs without a
    time limit. After PGAS_TIMEOUT seconds it prints which PEs have not arrived. Collective. OpenSHMEM 1.5, "SHMEM_BARRIER_ALL".

    Completion:
        on return: all PEs have arrived, and the operations that quiet() covers are complete on all of them.
        complete: on return.

    Args:
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        DeviceError: on the host, if a kernel of this PE found an error, such as a PE that did not arrive at a barrier within PGAS_TIMEOUT
            seconds.
        BootstrapError: on the host, if another PE made a different collective call.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, out = pgas.zeros(1, np.int32), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def step(dest, out, pe):
        ...     pgas.p(dest, 0, 3, pe)
        ...     pgas.barrier_all()  # the left neighbor's value is in dest
        ...     out[0] = dest[0]
        >>> pgas.launch(step, 1, 1, (dest, out, right))
        >>> pgas.barrier_all()  # on the host: the kernels of all PEs have ended
        >>> int(out[0])
        3
    """


@device_function(barriers.of_all("barrier_all", WARP, completes=True))
def barrier_all_warp() -> None:
    """Like barrier_all(), but called by all threads of one warp on every PE; none may have exited.

    Synchronizes the warp on entry and on return. Completes the operations of all these threads.
    """


@device_function(barriers.of_all("barrier_all", BLOCK, completes=True))
def barrier_all_block() -> None:
    """Like barrier_all(), but called by all threads of one block on every PE; none may have exited.

    Synchronizes the block on entry and on return. Completes the operations of all these threads.
    """


@device_function(barriers.of_all("sync_all", THREAD, completes=False))
def sync_all(*, stream: Any = None) -> None:
    """Wait until all PEs have arrived. Unlike barrier_all(), this completes and orders nothing.

    Other PEs then see what a kernel stored to this PE's own memory before a fence(), and what it put before a quiet(). barrier_all() needs
    neither.

    In a kernel, only one thread per PE may be in this call at a time. The kernels must run at the same time on all PEs, and no block may
    wait for a block that has not started: use pgas.launch(). On the host without ``stream``, the call waits only for the other PEs' calls,
    not for kernels. Collective. OpenSHMEM 1.5, "SHMEM_SYNC_ALL".

    Completion:
        on return: all PEs have arrived; what they stored to their own memory before a fence() before the call is visible.
        complete: nothing.

    Args:
        stream: host only. CUDA stream of Numba, cuda.core, CuPy, or PyTorch on which to perform the call. Default: perform it immediately.

    Raises:
        DeviceError: raised later on the host, if a PE does not arrive within PGAS_TIMEOUT seconds.
        BootstrapError: on the host, if another PE made a different collective call.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, out = pgas.zeros(1, np.int32), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def step(dest, out, pe):
        ...     pgas.p(dest, 0, 3, pe)
        ...     pgas.quiet()  # sync_all itself completes nothing
        ...     pgas.sync_all()
        ...     out[0] = dest[0]
        >>> pgas.launch(step, 1, 1, (dest, out, right))
        >>> pgas.synchronize()
        >>> int(out[0])
        3
    """


@device_function(barriers.of_all("sync_all", WARP, completes=False))
def sync_all_warp() -> None:
    """Like sync_all(), but called by all threads of one warp on every PE; none may have exited.

    Synchronizes the warp on entry and on return.
    """


@device_function(barriers.of_all("sync_all", BLOCK, completes=False))
def sync_all_block() -> None:
    """Like sync_all(), but called by all threads of one block on every PE; none may have exited.

    Synchronizes the block on entry and on return.
    """
