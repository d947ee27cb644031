"""Bandwidth and message rate of atomics, like NVSHMEM's shmem_atomic_bw.

    mpirun -n 2 shmem_atomic_bw -n 100 -w 10 -a fetch_add

One kernel loops over the iterations: thread t of n updates elements t, t + n, ... with the operation ``-a``, then comes a barrier of the
grid; quiet is called once at the end. Elements have 8 bytes, or 4 if the size is not a multiple of 8. Final and fetched values are compared
with NumPy's (atomics.py).
"""

import sys

from pgas.perftests.harness import atomics, pair
from pgas.perftests.harness.options import Defaults, Options
from pgas.perftests.harness.workload import Workload, p_workload

_FIXED = ("datatype", "stride")


def _workload(size: int, options: Options) -> Workload:
    if size % 4:
        raise pair.RefusedError(f"size {size}: atomics are of 4 or 8 bytes: sizes must be multiples of 4")
    return p_workload(size, options.datatype, 1, options.ctas, options.threads_per_cta)


TEST = pair.PerfTest(
    name="shmem_atomic_bw",
    description="Bandwidth and message rate of atomics from inside a kernel, every value checked.",
    kernels=atomics.bandwidth_kernels(),
    workload=_workload,
    wqes=atomics.wqes,
    buffers=atomics.Updated,
    defaults=Defaults("uint64", atomic_op="inc", fixed=_FIXED),
    simulator_defaults=Defaults(
        "uint64", max_size=8 << 10, step=4, iters=3, warmup_iters=1, ctas=4, threads_per_cta=32, atomic_op="inc", fixed=_FIXED
    ),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
