"""Latency of p: one CTA sends a message element by element and waits for its completion, like NVSHMEM's shmem_p_latency.

    mpirun -n 2 shmem_p_latency -n 50 -w 5 -t 512 -e 64K

One kernel loops over the iterations: thread t of n (``-t``) sends elements t, t + n, ...; then the first thread calls quiet. The first rows
are therefore the time of one p and its quiet, later ones that of many messages.
"""

import sys
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests import shmem_p_bw
from pgas.perftests.harness import pair
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults, Options
from pgas.perftests.harness.report import LATENCY
from pgas.perftests.harness.workload import Workload, p_workload


@pgas.jit
def p_latency(dest: Any, source: Any, counter: Any, start: int, iters: int, pe: int) -> None:
    """Send with p; indices are uint64, as in shmem_p_bw."""
    first, hop, end = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x), np.uint64(dest.size)
    for _ in range(iters):
        idx = first
        while idx < end:
            pgas.p(dest, idx, source[idx], pe)
            idx += hop
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            pgas.quiet()
        cuda.syncthreads()


def elements_workload(size: int, options: Options) -> Workload:
    """Return the workload of a size: the threads of one CTA send single elements."""
    return p_workload(size, options.datatype, 1, 1, options.threads_per_cta)


TEST = pair.PerfTest(
    name="shmem_p_latency",
    description="Time of a message sent with p until it is complete, every byte checked.",
    kernels={"thread": p_latency},
    workload=elements_workload,
    wqes=shmem_p_bw.wqes,
    measures=LATENCY,
    unit="all p of a message and their quiet, on PE 0",
    defaults=Defaults("int", fixed=OF_ONE_CTA),
    simulator_defaults=Defaults("int", max_size=4 << 10, step=4, iters=3, warmup_iters=1, threads_per_cta=64, fixed=OF_ONE_CTA),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
