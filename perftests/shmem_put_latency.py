"""Latency of puts: one CTA puts a message and waits for its completion, like NVSHMEM's shmem_put_latency.

    mpirun -n 2 shmem_put_latency -n 200 -w 20 -t 1024 -e 64K

One kernel loops over the iterations: scope thread put_nbi by one thread, warp put_warp by 32, block put_block by ``-t`` threads; quiet by
the first thread after each. A row is therefore the time until completion at PE 1 is known at PE 0: a round trip, not the one-way time. ``-s
all`` (default) measures the scopes one after the other. With ``--smem``, the CTA lends 44 KiB of shared memory (give_smem), and the calls
are blocking.
"""

import sys

import pgas
from pgas.perftests.harness import bulk, pair
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults
from pgas.perftests.harness.report import LATENCY

TEST = pair.PerfTest(
    name="shmem_put_latency",
    description="Time of a put until it is complete, every byte checked.",
    kernels=bulk.latency_kernels({"thread": pgas.put_nbi, "warp": pgas.put_warp, "block": pgas.put_block}, nbi=False),
    lent=bulk.lent_latency_kernels({"thread": pgas.put, "warp": pgas.put_warp, "block": pgas.put_block}),
    workload=bulk.message_workload,
    wqes=bulk.wqes,
    measures=LATENCY,
    unit="a put and its quiet, on PE 0",
    every_scope=True,
    defaults=Defaults("int", fixed=OF_ONE_CTA, lends=True),
    simulator_defaults=Defaults(
        "int", max_size=64 << 10, step=4, iters=5, warmup_iters=1, threads_per_cta=64, fixed=OF_ONE_CTA, lends=True
    ),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
