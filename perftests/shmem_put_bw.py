"""Bandwidth of puts: every CTA puts its part of the message in each iteration, like NVSHMEM's shmem_put_bw.

    mpirun -n 2 shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1K -e 64M

One kernel loops over the iterations: put_nbi of the part, then a barrier of the grid; quiet is called only once, at the end, so that
completion is not part of each iteration. With ``-s block`` (default), each CTA puts its part with one call; with ``-s warp`` and ``-s
thread``, each warp or thread puts its own part. PE 0 sends to PE 1; with ``--bidir``, both send, and the bandwidths are summed.
harness/pair.py describes how rows are filled, timed, and checked. Unlike NVSHMEM's test, this one sends remainders, and uses fewer CTAs for
a message of fewer elements than CTAs.
"""

import sys

import pgas
from pgas.perftests.harness import bulk, pair
from pgas.perftests.harness.options import Defaults

TEST = pair.PerfTest(
    name="shmem_put_bw",
    description="Bandwidth and message rate of puts from inside a kernel, every byte checked.",
    kernels=bulk.bandwidth_kernels({"block": pgas.put_nbi_block, "warp": pgas.put_nbi_warp, "thread": pgas.put_nbi}),
    lent=bulk.lent_bandwidth_kernels({"block": pgas.put_block, "warp": pgas.put_warp, "thread": pgas.put}),
    workload=bulk.bandwidth_workload,
    wqes=bulk.wqes,
    defaults=Defaults("double", lends=True),
    simulator_defaults=Defaults("double", max_size=1 << 20, iters=5, warmup_iters=1, ctas=4, threads_per_cta=32, lends=True),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
