"""Kernels of the put and get tests, in which each thread, warp, or CTA moves its part of a message with one call."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness.grid import grid_barrier
from pgas.perftests.harness.options import Options
from pgas.perftests.harness.workload import WARP, Workload, latency_workload, put_workload
from pgas.perftests.harness.workload import share as plain_share
from pgas.transports.mlx5.wqe import MESSAGE_MAX

share = cuda.jit(device=True)(plain_share)


@cuda.jit(device=True)
def _block() -> tuple[int, int]:
    return cuda.blockIdx.x, cuda.gridDim.x


@cuda.jit(device=True)
def _warp() -> tuple[int, int]:
    return cuda.grid(1) // WARP, cuda.gridsize(1) // WARP


@cuda.jit(device=True)
def _thread() -> tuple[int, int]:
    return cuda.grid(1), cuda.gridsize(1)


#: By scope, the number of the caller and the number of callers.
_WORKERS = {"block": _block, "warp": _warp, "thread": _thread}

#: Maximum number of registers per thread: with 1,024 threads in a CTA (-t), each has 64.
_LIMITS = {"warp": 64, "block": 64}


@cuda.jit(device=True)
def _sync_thread() -> None:
    """Do nothing."""


@cuda.jit(device=True)
def _sync_warp() -> None:
    cuda.syncwarp()


@cuda.jit(device=True)
def _sync_block() -> None:
    cuda.syncthreads()


#: By scope, the barrier of its threads.
scope_syncs = {"thread": _sync_thread, "warp": _sync_warp, "block": _sync_block}


def bandwidth_kernels(calls: Mapping[str, Any]) -> dict[str, Any]:
    """Make a kernel for each scope: in each iteration, every caller moves its part, then comes a barrier of the grid; quiet at the end."""
    return {scope: _bandwidth_kernel(call, _WORKERS[scope], _LIMITS.get(scope)) for scope, call in calls.items()}


def _bandwidth_kernel(call: Any, worker: Any, max_registers: int | None) -> Any:
    @pgas.jit(max_registers=max_registers)
    def bandwidth(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
        number, workers = worker()
        first, last = share(number, workers, dest.size)
        to, what = dest[first:last], source[first:last]
        for i in range(iters):
            call(to, what, pe)
            grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
        if cuda.grid(1) == 0:
            pgas.quiet()

    return bandwidth


def latency_kernels(calls: Mapping[str, Any], *, nbi: bool) -> dict[str, Any]:
    """Make a kernel of one CTA for each scope: in each iteration one call, then quiet by the first thread.

    nbi: whether the calls are non-blocking. These may return before the other threads have done their part, so a barrier comes before
    quiet.
    """
    return {scope: _latency_kernel(call, scope_syncs[scope if nbi else "thread"]) for scope, call in calls.items()}


def _latency_kernel(call: Any, sync: Any) -> Any:
    @pgas.jit
    def latency(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
        for _ in range(iters):
            call(dest, source, pe)
            sync()
            if cuda.threadIdx.x == 0:
                pgas.quiet()

    return latency


#: Bytes of shared memory that each CTA lends with --smem; its callers have equal parts.
LENT_BYTES = 44 << 10

#: By scope, the number of callers in a CTA.
_CALLERS = {
    "block": cuda.jit(device=True)(lambda: 1),
    "warp": cuda.jit(device=True)(lambda: cuda.blockDim.x // WARP),
    "thread": cuda.jit(device=True)(lambda: cuda.blockDim.x),
}
_GIVES = {"block": pgas.give_smem_block, "warp": pgas.give_smem_warp, "thread": pgas.give_smem}


def lent_bandwidth_kernels(calls: Mapping[str, Any]) -> dict[str, Any]:
    """Make the kernels of bandwidth_kernels() with blocking calls, to which each CTA lends shared memory."""
    return {scope: _lent_kernel(call, scope, alone=False) for scope, call in calls.items()}


def lent_latency_kernels(calls: Mapping[str, Any]) -> dict[str, Any]:
    """Make the kernels of latency_kernels() with blocking calls, to which the CTA lends shared memory."""
    return {scope: _lent_kernel(call, scope, alone=True) for scope, call in calls.items()}


def _lent_kernel(call: Any, scope: str, *, alone: bool) -> Any:
    worker, callers, give = _WORKERS[scope], _CALLERS[scope], _GIVES[scope]

    @pgas.jit
    def lent(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
        memory = cuda.shared.array(LENT_BYTES, np.uint8)
        number, workers = worker()
        part = LENT_BYTES // callers()
        at = number % callers() * part
        smem = memory[at : at + part]
        give(smem)
        first, last = share(number, workers, dest.size)
        to, what = dest[first:last], source[first:last]
        for i in range(iters):
            call(to, what, pe, smem=smem)
            if alone:
                if cuda.threadIdx.x == 0:
                    pgas.quiet()
            else:
                grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
        if not alone:
            if cuda.grid(1) == 0:
                pgas.quiet()

    return lent


def bandwidth_workload(size: int, options: Options) -> Workload:
    """Return the workload of a size in a bandwidth test."""
    return put_workload(size, options.datatype, options.scope, options.ctas, options.threads_per_cta)


def message_workload(size: int, options: Options) -> Workload:
    """Return the workload of a size in a latency test: one message."""
    return latency_workload(size, options.datatype, options.scope, options.threads_per_cta)


def wqes(work: Workload, coalesces: bool) -> tuple[int, int]:
    """Return the minimum and maximum number of WQEs: a WRITE or READ per GiB of each call. Parts differ by at most one element."""
    smallest, larger = divmod(work.nelems, work.messages)
    small, large = (-(-nelems * work.dtype.itemsize // MESSAGE_MAX) for nelems in (smallest, smallest + 1))
    count = larger * large + (work.messages - larger) * small
    return count, count
