"""Bandwidth of plain stores to the peer's memory through pgas.ptr, like NVSHMEM's shmem_st_bw: p2p only.

    mpirun -n 2 shmem_st_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M

The difference to shmem_p_bw is the cost of p. This test cannot run over a NIC, which does not map peers' memory.
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


@pgas.jit
def st_bw(dest: Any, source: Any, stride: np.uint64, counter: Any, start: int, iters: int, pe: int) -> None:
    """Store two elements at a time; indices are uint64 as in shmem_p_bw."""
    there = pgas.ptr(dest, pe)
    end = np.uint64(dest.size)
    first = np.uint64(cuda.grid(1)) * stride
    hop = np.uint64(cuda.gridsize(1)) * stride
    for i in range(iters):
        idx = first
        while idx + hop < end:
            one, two = source[idx], source[idx + hop]
            there[idx] = one
            there[idx + hop] = two
            idx += hop + hop
        if idx < end:
            there[idx] = source[idx]
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
    if cuda.grid(1) == 0:
        pgas.quiet()


TEST = pair.PerfTest(
    name="shmem_st_bw",
    description="Bandwidth and message rate of plain stores to the peer's memory, every byte checked (p2p only).",
    kernels={"thread": st_bw},
    workload=shmem_p_bw.TEST.workload,
    wqes=lambda work, coalesces: (0, 0),
    extra=shmem_p_bw.TEST.extra,
    transports=("p2p",),
    unmapped="plain stores reach the memory of a peer only where it is mapped",
    defaults=Defaults("double"),
    simulator_defaults=shmem_p_bw.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
