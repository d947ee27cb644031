"""Bandwidth of gets: every CTA gets its part of the message in each iteration, like NVSHMEM's shmem_get_bw.

    mpirun -n 2 shmem_get_bw -n 200 -w 20 -c 32 -t 1024 -b 1K -e 64M

This is like shmem_put_bw, with get_nbi instead of put_nbi: PE 0 fetches from PE 1, and checks its own destination. NVSHMEM's test has only
the scope block.
"""

import sys

import pgas
from pgas.perftests import shmem_put_bw
from pgas.perftests.harness import bulk, pair
from pgas.perftests.harness.options import Defaults

TEST = pair.PerfTest(
    name="shmem_get_bw",
    description="Bandwidth and message rate of gets from inside a kernel, every byte checked.",
    kernels=bulk.bandwidth_kernels({"block": pgas.get_nbi_block, "warp": pgas.get_nbi_warp, "thread": pgas.get_nbi}),
    lent=bulk.lent_bandwidth_kernels({"block": pgas.get_block, "warp": pgas.get_warp, "thread": pgas.get}),
    workload=bulk.bandwidth_workload,
    wqes=bulk.wqes,
    pattern=pair.Pattern.PULL,
    defaults=Defaults("double", lends=True),
    simulator_defaults=shmem_put_bw.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
