"""Bandwidth of puts: every CTA puts its share of the message in each iteration, as NVSHMEM's shmem_put_bw.

    mpirun -n 2 shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1K -e 64M

One kernel loops over the iterations: put_nbi of the share, then a barrier of the grid; quiet once at the end (so a
row is no measure of put completion). ``-s block`` (default): each CTA puts its share with one call; ``-s warp`` and
``-s thread``: each warp or thread puts a share of its own. PE 0 sends to PE 1, with ``--bidir`` both send and the
bandwidths are summed. How rows are filled, timed and checked: harness.py. Unlike NVSHMEM's, remainders are sent and
a message of fewer elements than CTAs uses fewer CTAs.
"""

import sys
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
from numba import cuda

from pgas.perftests import harness
from pgas.perftests.grid import grid_barrier
from pgas.perftests.options import Defaults, Options
from pgas.perftests.workload import WARP, Workload, put_workload
from pgas.perftests.workload import share as plain_share
from pgas.transports.mlx5.wqe import MESSAGE_MAX

share = cuda.jit(device=True)(plain_share)


@pgas.jit
def put_bw_block(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
    """Put with one call per CTA."""
    first, last = share(cuda.blockIdx.x, cuda.gridDim.x, dest.size)
    to, what = dest[first:last], source[first:last]
    for i in range(iters):
        pgas.put_nbi_block(to, what, pe)
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
    if cuda.grid(1) == 0:
        pgas.quiet()


@pgas.jit
def put_bw_warp(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
    """Put with one call per warp."""
    first, last = share(cuda.grid(1) // WARP, cuda.gridsize(1) // WARP, dest.size)
    to, what = dest[first:last], source[first:last]
    for i in range(iters):
        pgas.put_nbi_warp(to, what, pe)
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
    if cuda.grid(1) == 0:
        pgas.quiet()


@pgas.jit
def put_bw_thread(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
    """Put with one call per thread."""
    first, last = share(cuda.grid(1), cuda.gridsize(1), dest.size)
    to, what = dest[first:last], source[first:last]
    for i in range(iters):
        pgas.put_nbi(to, what, pe)
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
    if cuda.grid(1) == 0:
        pgas.quiet()


def _workload(size: int, options: Options) -> Workload:
    return put_workload(size, options.datatype, options.scope, options.ctas, options.threads_per_cta)


def _wqes(work: Workload, transport: str) -> tuple[int, int]:
    """A WRITE for each GiB of each put; shares differ by one element at most."""
    smallest, larger = divmod(work.nelems, work.messages)
    small, large = (-(-nelems * work.dtype.itemsize // MESSAGE_MAX) for nelems in (smallest, smallest + 1))
    count = larger * large + (work.messages - larger) * small
    return count, count


TEST = harness.PerfTest(
    name="shmem_put_bw",
    description="Bandwidth and message rate of puts from inside a kernel, every byte checked.",
    kernels={"block": put_bw_block, "warp": put_bw_warp, "thread": put_bw_thread},
    workload=_workload,
    wqes=_wqes,
    extra=lambda work: (),
    defaults=Defaults("double"),
    simulator_defaults=Defaults("double", max_size=1 << 20, iters=5, warmup_iters=1, ctas=4, threads_per_cta=32),
)


def main() -> int:
    """Run the test from the command line."""
    return harness.run(TEST)


if __name__ == "__main__":
    sys.exit(main())
