"""Waiting and ordering: wait_until, fence, quiet, flush, barrier_all, sync_all (OpenSHMEM 1.5, sections 9.10 to 9.12).

On the host, and on CUDA streams: pgas/api/host_ops.py.
"""

from typing import Any

from pgas.kernels.compiler.binding import Index, Integer, device_function
from pgas.kernels.ops import sync
from pgas.kernels.ops.sync import Comparison
from pgas.kernels.scope import BLOCK, THREAD, WARP

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "barrier_all", "barrier_all_block", "barrier_all_warp", "fence", "flush", "quiet", "quiet_pe",
    "sync_all", "sync_all_block", "sync_all_warp", "wait_until",
]  # fmt: skip

#: Comparisons for wait_until() and signal_wait_until(): element <comparison> value.
EQ, NE, GT, LE, LT, GE = Comparison


@device_function(sync.wait_until)
def wait_until(ivar: Any, idx: Index, cmp: int, value: Any, *, stream: Any = None) -> None:
    """Wait until this PE's ``ivar[idx]`` compares as asked.

    Completion:
        on return: the condition has held; what the writer of that value did before its fence(), or the data of its put_signal(), may be
            read by this thread.
        complete: on return.

    Args:
        ivar: array on the symmetric heap, of 16-, 32- or 64-bit integers.
        idx: integer, or tuple of as many integers as ivar has dimensions.
        cmp: pgas.EQ, NE, GT, LE, LT or GE: ``ivar[idx] cmp value``.
        value: integer, converted to ivar's dtype as by p().
        stream: on the host only: the CUDA stream in whose order it is done, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: PGAS_TIMEOUT seconds have passed; names the element, what was awaited and what was there.
    """


@device_function(sync.fence)
def fence(*, stream: Any = None) -> None:
    """Order this thread's puts, p's, signals and atomics to each PE: those before it are visible there before those after it.

    Covers also what happens before the call (by syncthreads, a grid barrier, an acquired flag). Completes nothing: see quiet().

    Completion:
        on return: what this thread sends to a PE from now on is visible there only after what it sent there before.
        complete: nothing.
    """


@device_function(sync.quiet)
def quiet(*, stream: Any = None) -> None:
    """Complete every operation of this thread, and every one that happens before the call, at every PE.

    Afterwards sources of non-blocking operations may be reused. Concurrent operations of other threads are not covered.

    Completion:
        on return: every operation of this thread, and every one that happens before the call, is complete.
        complete: on return.
    """


@device_function(sync.quiet_pe)
def quiet_pe(pe: Integer, *, stream: Any = None) -> None:
    """Complete what quiet() would complete, of the operations to and from PE ``pe`` (OpenSHMEM 1.5, section 9.11.2, for one PE).

    Others may be complete or not. Over ibgda it polls only the queue pairs to that PE that kernels have used; over p2p, whose fences know
    no PEs, and over ibrc, whose requests to all PEs complete in one order, it is quiet().

    Completion:
        on return: the same, of the operations to that PE.
        complete: on return.

    Args:
        pe: number of the PE; this PE itself is allowed.
        stream: on the host only: the CUDA stream in whose order it is done, of Numba, cuda.core, CuPy or PyTorch; None: at once.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: pe is no integer.
        DeviceError: later, on the host, under PGAS_DEBUG=check and in the simulator: pe does not exist; or a NIC transport's operations
            are not complete after PGAS_TIMEOUT seconds.
    """


@device_function(sync.flush)
def flush(*, stream: Any = None) -> None:
    """Wait until sources of puts may be reused: this thread's, and those of puts that happen before the call. Completes nothing else.

    After put_nbi() and put_signal_nbi(), whose other forms wait themselves (NVSHMEM 3.8's nvshmemx_flush). Data may still be under way
    afterwards, get_nbi() need not have ended, and nothing is ordered: see quiet() and fence().

    Over p2p it takes no time, as a store has read its source when it is issued. A NIC says that it has read a source only when the data
    has arrived, so over ibgda and ibrc it waits as long as quiet() does.

    Completion:
        on return: sources of these operations may be reused.
        complete: nothing at other PEs.

    Raises:
        DeviceError: later, on the host: a NIC transport's operations are not complete after PGAS_TIMEOUT seconds.
    """


@device_function(sync.barrier_all(THREAD))
def barrier_all(*, stream: Any = None) -> None:
    """Wait until all PEs are here, with every operation before it complete.

    In a kernel: called by one thread of every PE at a time (the simulator refuses a second one); completes what quiet() of that thread
    does. The kernels must run at the same time on all PEs, and no block may wait for one that has not started: use pgas.launch().

    On the host: waits for this PE's kernels, then for all PEs, as long as it takes; after PGAS_TIMEOUT seconds it says who has not come.
    Collective.

    Completion:
        on return: all PEs have come here, and what quiet() covers is complete on all of them.
        complete: on return.

    Raises:
        DeviceError: on the host: a kernel of this PE found an error; or in a kernel, a PE did not arrive for PGAS_TIMEOUT seconds.
        BootstrapError: on the host: another PE makes another collective call.
    """


@device_function(sync.barrier_all(WARP))
def barrier_all_warp() -> None:
    """barrier_all() by all threads of one warp of every PE (none may have returned); completes the operations of all of them."""


@device_function(sync.barrier_all(BLOCK))
def barrier_all_block() -> None:
    """barrier_all() by all threads of one block of every PE (none may have returned); completes the operations of all of them."""


@device_function(sync.sync_all(THREAD))
def sync_all(*, stream: Any = None) -> None:
    """barrier_all() that completes nothing: operations may still be under way afterwards.

    Completion:
        on return: all PEs have come here.
        complete: nothing.
    """


@device_function(sync.sync_all(WARP))
def sync_all_warp() -> None:
    """sync_all() by all threads of one warp of every PE (none may have returned)."""


@device_function(sync.sync_all(BLOCK))
def sync_all_block() -> None:
    """sync_all() by all threads of one block of every PE (none may have returned)."""
