"""Waiting and ordering: wait_until, fence, quiet, flush, barrier_all, sync_all (OpenSHMEM 1.5, "Memory Ordering Routines").

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

#: Comparisons for wait_until() and signal_wait_until(): element <comparison> value.
EQ, NE, GT, LE, LT, GE = Comparison


@device_function(sync.wait_until)
def wait_until(ivar: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> None:
    """Wait until this PE's ``ivar[idx]`` satisfies the comparison.

    Completion:
        on return: the condition has held; this thread sees the writer's operations before its fence(), or the data of its
            put_signal().
        complete: on return.

    Args:
        ivar: array on the symmetric heap, of 16-, 32- or 64-bit integers.
        idx: integer, or tuple of as many integers as ivar has dimensions.
        cmp: pgas.EQ, NE, GT, LE, LT or GE: ``ivar[idx] cmp value``.
        value: integer, converted to ivar's dtype as by p().
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: PGAS_TIMEOUT seconds have passed; names the element, the condition and the value found.

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
    """Order this thread's puts, p's, signals and atomics to each PE: those before the fence are visible there before those after it.

    Also covers other threads' operations that happen before the call (by syncthreads, a grid barrier, an acquired flag). Completes nothing:
    see quiet(). Behind an atomic that returned a value, it lets this thread read what the writer of the value wrote before its own fence.

    Completion:
        on return: later operations of this thread to a PE are visible there only after its earlier ones.
        complete: nothing.

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

    Afterwards sources of non-blocking operations may be reused. Concurrent operations of other threads are not covered.

    Completion:
        on return: this thread's operations, and those of other threads that happen before the call, are complete.
        complete: on return.

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
    """quiet() for the operations to and from PE ``pe`` only (OpenSHMEM 1.5, "SHMEM_QUIET", for one PE).

    Operations to other PEs may be complete or not. Over ibgda it polls only the used queue pairs to that PE. Over p2p, whose fences cover
    all PEs, and over ibrc, whose requests complete in one order for all PEs, it is quiet().

    Completion:
        on return: as quiet(), for the operations to and from that PE.
        complete: on return.

    Args:
        pe: number of the PE; this PE itself is allowed.
        stream: on the host only: the CUDA stream to call it on, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: pe is no integer.
        DeviceError: later, on the host, under PGAS_DEBUG=check and in the simulator: pe does not exist; or a NIC transport's operations
            are not complete after PGAS_TIMEOUT seconds.

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
    """Wait until the sources of puts may be reused: of this thread's puts, and of others' that happen before the call.

    Needed after put_nbi() and put_signal_nbi(); the blocking forms wait themselves (NVSHMEM 3.7's nvshmemx_flush). Completes and orders
    nothing: the data may still be under way, and get_nbi() may be incomplete. See quiet() and fence().

    Over p2p it takes no time, as a store has read its source when it is issued. A NIC reports that it has read a source only when the data
    has arrived, so over ibgda and ibrc it takes as long as quiet().

    Completion:
        on return: the sources may be reused.
        complete: nothing at other PEs.

    Raises:
        DeviceError: later, on the host: a NIC transport's operations are not complete after PGAS_TIMEOUT seconds.

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
    """Wait until all PEs have arrived, and the operations that quiet() covers are complete on each.

    In a kernel: one thread of every PE calls it at a time (the simulator refuses a second one); completes as quiet() in that thread. The
    kernels must run at the same time on all PEs, and no block may wait for one that has not started: use pgas.launch().

    On the host: waits for this PE's kernels, then for all PEs, without limit; after PGAS_TIMEOUT seconds it prints which PEs have not
    arrived. Collective.

    Completion:
        on return: all PEs have arrived, and the operations that quiet() covers are complete on all of them.
        complete: on return.

    Raises:
        DeviceError: on the host: a kernel of this PE found an error, for example a PE that did not arrive at a barrier within PGAS_TIMEOUT.
        BootstrapError: on the host: another PE makes another collective call.

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
    """barrier_all() by all threads of one warp of every PE (none may have exited); completes the operations of all of them."""


@device_function(barriers.of_all("barrier_all", BLOCK, completes=True))
def barrier_all_block() -> None:
    """barrier_all() by all threads of one block of every PE (none may have exited); completes the operations of all of them."""


@device_function(barriers.of_all("sync_all", THREAD, completes=False))
def sync_all(*, stream: Any = None) -> None:
    """Wait until all PEs have arrived; unlike barrier_all(), this completes and orders nothing.

    Data that others are to see afterwards needs a fence() before the call, or barrier_all() instead.

    Completion:
        on return: all PEs have arrived; what they stored before a fence() before the call is visible.
        complete: nothing.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, out = pgas.zeros(1, np.int32), pgas.zeros(1, np.int32)
        >>> @pgas.jit
        ... def step(dest, out, pe):
        ...     pgas.p(dest, 0, 3, pe)
        ...     pgas.fence()  # sync_all itself orders nothing
        ...     pgas.sync_all()
        ...     out[0] = dest[0]
        >>> pgas.launch(step, 1, 1, (dest, out, right))
        >>> pgas.synchronize()
        >>> int(out[0])
        3
    """


@device_function(barriers.of_all("sync_all", WARP, completes=False))
def sync_all_warp() -> None:
    """sync_all() by all threads of one warp of every PE (none may have exited)."""


@device_function(barriers.of_all("sync_all", BLOCK, completes=False))
def sync_all_block() -> None:
    """sync_all() by all threads of one block of every PE (none may have exited)."""
