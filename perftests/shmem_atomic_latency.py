"""Latency of atomics on 4 and 8 bytes, like NVSHMEM's shmem_atomic_latency.

    mpirun -n 2 shmem_atomic_latency -n 500 -w 50 -a compare_swap

One thread loops over the iterations: the operation ``-a``, then quiet unless it fetches. NVSHMEM's test prints one table for each of nine
types of these two widths, ignores its flags, and runs the defaults of this one.
"""

import sys

from pgas.perftests.harness import atomics, pair
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults, Options
from pgas.perftests.harness.report import LATENCY
from pgas.perftests.harness.workload import Workload, p_workload

_FIXED = (*OF_ONE_CTA, "min_size", "max_size", "step", "datatype", "threads_per_cta")


def _workload(size: int, options: Options) -> Workload:
    return p_workload(size, options.datatype, 1, 1, 1)


TEST = pair.PerfTest(
    name="shmem_atomic_latency",
    description="Time of an atomic until it is complete, every value checked.",
    kernels=atomics.latency_kernels(),
    workload=_workload,
    wqes=atomics.wqes,
    measures=LATENCY,
    unit="an atomic, and its quiet unless it fetches, on PE 0",
    buffers=atomics.Updated,
    defaults=Defaults("uint64", 4, 8, iters=500, warmup_iters=50, threads_per_cta=1, atomic_op="inc", fixed=_FIXED),
    simulator_defaults=Defaults("uint64", 4, 8, iters=10, warmup_iters=5, threads_per_cta=1, atomic_op="inc", fixed=_FIXED),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
