"""Latency of g: one CTA fetches a message element by element, like NVSHMEM's shmem_g_latency.

    mpirun -n 2 shmem_g_latency -n 200 -w 20 -t 512 -e 64K

One kernel loops over the iterations: thread t of n (``-t``) fetches elements t, t + n, ... and stores them, then all threads synchronize,
so that a row is the time of a whole message. Every element is fetched from PE 1 each time; NVSHMEM's loads may hit the SM's L1, which
explains its 0.16 µs for 4 bytes over NVLink.
"""

import sys
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests import shmem_g_bw, shmem_p_latency
from pgas.perftests.harness import pair
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults
from pgas.perftests.harness.report import LATENCY


@pgas.jit
def g_latency(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
    """Fetch with g; indices are uint64, as in shmem_p_bw."""
    first, hop, end = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x), np.uint64(dest.size)
    for _ in range(iters):
        idx = first
        while idx < end:
            dest[idx] = pgas.g(source, idx, pe)
            idx += hop
        cuda.syncthreads()


TEST = pair.PerfTest(
    name="shmem_g_latency",
    description="Time of a message fetched with g, every byte checked.",
    kernels={"thread": g_latency},
    workload=shmem_p_latency.elements_workload,
    wqes=shmem_g_bw.wqes,
    measures=LATENCY,
    unit="all g of a message, on PE 0",
    pattern=pair.Pattern.PULL,
    defaults=Defaults("int", fixed=OF_ONE_CTA),
    simulator_defaults=shmem_p_latency.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
