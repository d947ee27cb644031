"""Waiting and ordering: wait_until, fence, quiet, barrier_all, sync_all (OpenSHMEM 1.5, sections 9.10 to 9.12).

On the host, and on CUDA streams: pgas/host_ops.py.
"""

from typing import Any

from pgas.kernels import sync
from pgas.kernels.binding import device_function
from pgas.kernels.scope import BLOCK, THREAD, WARP
from pgas.kernels.sync import Comparison

__all__ = [
    "EQ", "GE", "GT", "LE", "LT", "NE", "barrier_all", "barrier_all_block", "barrier_all_warp", "fence", "quiet", "sync_all",
    "sync_all_block", "sync_all_warp", "wait_until",
]  # fmt: skip

#: Comparisons for wait_until() and signal_wait_until(): element <comparison> value.
EQ, NE, GT, LE, LT, GE = Comparison


@device_function(sync.wait_until)
def wait_until(ivar: Any, idx: Any, cmp: Any, value: Any) -> None:
    """Wait until this PE's ``ivar[idx]`` compares as asked.

    On return what the writer of that value did before its fence(), or the data of its put_signal(), is visible to this thread.

    Args:
        ivar: array on the symmetric heap, of 16-, 32- or 64-bit integers.
        idx: integer, or tuple of as many integers as ivar has dimensions.
        cmp: pgas.EQ, NE, GT, LE, LT or GE: ``ivar[idx] cmp value``.
        value: integer, converted to ivar's dtype.

    Raises:
        TypingError: (TypeError in the simulator) when the kernel is compiled: the operands do not fit.
        DeviceError: later, on the host: PGAS_TIMEOUT seconds have passed; names the element, what was awaited and what was there.
    """


@device_function(sync.fence)
def fence() -> None:
    """Order this thread's puts, p's, signals and atomics to each PE: those before it are visible there before those after it.

    Covers also what happens before the call (by syncthreads, a grid barrier, an acquired flag). Completes nothing: see quiet().
    """


@device_function(sync.quiet)
def quiet() -> None:
    """Complete every operation of this thread, and every one that happens before the call, at every PE.

    Afterwards sources of non-blocking operations may be reused. Concurrent operations of other threads are not covered.
    """


@device_function(sync.barrier_all(THREAD))
def barrier_all() -> None:
    """Wait until all PEs are here, with every operation before it complete.

    In a kernel: called by one thread of every PE at a time; completes what quiet() of that thread does. The kernels must run at the
    same time on all PEs, and no block may wait for one that has not started: use pgas.launch().

    On the host: waits for this PE's kernels, then for all PEs. Collective.

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
def sync_all() -> None:
    """barrier_all() that completes nothing: operations may still be under way afterwards."""


@device_function(sync.sync_all(WARP))
def sync_all_warp() -> None:
    """sync_all() by all threads of one warp of every PE (none may have returned)."""


@device_function(sync.sync_all(BLOCK))
def sync_all_block() -> None:
    """sync_all() by all threads of one block of every PE (none may have returned)."""
