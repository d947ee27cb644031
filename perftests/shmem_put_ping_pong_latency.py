"""Ping-pong of put, fence, and signal, like NVSHMEM's shmem_put_ping_pong_latency. The figure is the whole round trip.

    mpirun -n 2 shmem_put_ping_pong_latency -n 500 -w 50 -e 1M

With ``-s thread`` (default, like NVSHMEM's), one thread puts the message; with ``-s warp`` and ``-s block``, a warp or ``-t`` threads do.
ping_pong.py describes how iterations are performed and checked.
"""

import sys

import pgas
from pgas.perftests import ping_pong
from pgas.perftests.harness import bulk
from pgas.perftests.harness.options import OF_ONE_CTA, Defaults

#: Blocking calls, on whose return all threads of the scope have done their part.
CALLS = {"thread": pgas.put_nbi, "warp": pgas.put_warp, "block": pgas.put_block}

TEST = ping_pong.perf_test(
    name="shmem_put_ping_pong_latency",
    what="put, fence and signal",
    kernels={scope: ping_pong.kernel(ping_pong.payload_then_flag(call, ping_pong.signal), scope) for scope, call in CALLS.items()},
    workload=bulk.message_workload,
    wqes=ping_pong.with_flag(bulk.wqes, ping_pong.SIGNAL_WQES),
    defaults=Defaults("int", fixed=OF_ONE_CTA),
    simulator_defaults=Defaults("int", max_size=4 << 10, step=4, iters=5, warmup_iters=2, threads_per_cta=64, fixed=OF_ONE_CTA),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
