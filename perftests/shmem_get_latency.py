"""Latency of gets: one CTA gets a message and waits for it, like NVSHMEM's shmem_get_latency.

    mpirun -n 2 shmem_get_latency -n 200 -w 20 -t 1024 -e 64K

One kernel loops over the iterations: get_nbi by one thread, a warp, or a CTA of ``-t`` threads, then quiet by the first thread. ``-s all``
(default) measures the scopes one after the other. With ``--smem``, the CTA lends 44 KiB of shared memory (give_smem), and the calls are
blocking.
"""

import sys

import pgas
from pgas.perftests import shmem_put_latency
from pgas.perftests.harness import bulk, pair
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults
from pgas.perftests.harness.report import LATENCY

TEST = pair.PerfTest(
    name="shmem_get_latency",
    description="Time of a get until its data is there, every byte checked.",
    kernels=bulk.latency_kernels({"thread": pgas.get_nbi, "warp": pgas.get_nbi_warp, "block": pgas.get_nbi_block}, nbi=True),
    lent=bulk.lent_latency_kernels({"thread": pgas.get, "warp": pgas.get_warp, "block": pgas.get_block}),
    workload=bulk.message_workload,
    wqes=bulk.wqes,
    measures=LATENCY,
    unit="a get and its quiet, on PE 0",
    pattern=pair.Pattern.PULL,
    every_scope=True,
    defaults=Defaults("int", fixed=OF_ONE_CTA, lends=True),
    simulator_defaults=shmem_put_latency.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
