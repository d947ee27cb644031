"""Ping-pong of put, fence, and an atomic increment, like NVSHMEM's shmem_put_atomic_ping_pong_latency: the whole round trip.

    mpirun -n 2 shmem_put_atomic_ping_pong_latency -e 64K

NVSHMEM's test ignores its flags and runs the defaults of this one: 50 warm-up and 500 timed iterations, up to 1 MiB.
"""

import sys
from dataclasses import replace

from pgas.perftests import ping_pong, shmem_put_ping_pong_latency
from pgas.perftests.harness import bulk

TEST = ping_pong.perf_test(
    name="shmem_put_atomic_ping_pong_latency",
    what="put, fence and atomic increment",
    kernels={
        scope: ping_pong.kernel(ping_pong.payload_then_flag(call, ping_pong.increase), scope)
        for scope, call in shmem_put_ping_pong_latency.CALLS.items()
    },
    workload=bulk.message_workload,
    wqes=ping_pong.with_flag(bulk.wqes, 1),
    defaults=replace(shmem_put_ping_pong_latency.TEST.defaults, max_size=1 << 20, iters=500, warmup_iters=50),
    simulator_defaults=shmem_put_ping_pong_latency.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
