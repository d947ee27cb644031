"""Bandwidth and message rate of g: the threads of a grid fetch a message element by element, like NVSHMEM's shmem_g_bw.

    mpirun -n 2 shmem_g_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M

This is like shmem_p_bw, with g instead of p: PE 0 fetches from PE 1. ``-d`` chooses the element type; regardless of the type, a row moves
as many bytes as its size. NVSHMEM's test with its default type moves four times as many, and reads beyond its allocation.
"""

import sys
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests import shmem_p_bw
from pgas.perftests.harness import pair
from pgas.perftests.harness.grid import grid_barrier
from pgas.perftests.harness.options import Defaults
from pgas.perftests.harness.workload import Workload, rounds_of_warps


@pgas.jit
def g_bw(dest: Any, source: Any, stride: np.uint64, counter: Any, start: int, iters: int, pe: int) -> None:
    """Fetch with g, two elements at a time; indices are uint64 as in shmem_p_bw."""
    end = np.uint64(dest.size)
    first = np.uint64(cuda.grid(1)) * stride
    hop = np.uint64(cuda.gridsize(1)) * stride
    for i in range(iters):
        idx = first
        while idx + hop < end:
            one, two = pgas.g(source, idx, pe), pgas.g(source, idx + hop, pe)
            dest[idx] = one
            dest[idx + hop] = two
            idx += hop + hop
        if idx < end:
            dest[idx] = pgas.g(source, idx, pe)
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)


def wqes(work: Workload, coalesces: bool) -> tuple[int, int]:
    """Return the minimum and maximum number of WQEs: a READ per g, or one for the converged lanes that fetch neighbors.

    The hardware determines which lanes are converged; the number of WQEs is minimal if all are, each time.
    """
    fewest = sum(rounds for rounds, lanes in rounds_of_warps(work) if lanes) if work.coalesced else work.messages
    return fewest, work.messages


TEST = pair.PerfTest(
    name="shmem_g_bw",
    description="Bandwidth and message rate of single elements fetched with g from inside a kernel, every byte checked.",
    kernels={"thread": g_bw},
    workload=shmem_p_bw.TEST.workload,
    wqes=wqes,
    extra=shmem_p_bw.TEST.extra,
    pattern=pair.Pattern.PULL,
    defaults=Defaults("int"),
    simulator_defaults=shmem_p_bw.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
