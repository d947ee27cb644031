"""Ping-pong of put_signal, like NVSHMEM's shmem_put_signal_ping_pong_latency. The figure is the whole round trip.

    mpirun -n 2 shmem_put_signal_ping_pong_latency -n 500 -w 50 -e 1M

NVSHMEM's test has kernels for warps and blocks, but runs only the one for a thread; here, ``-s`` chooses.
"""

import sys
from typing import Any

import pgas
from pgas import cuda
from pgas.perftests import ping_pong, shmem_put_ping_pong_latency
from pgas.perftests.harness import bulk


def _sending(call: Any) -> Any:
    @cuda.jit(device=True)
    def send(dest: Any, source: Any, flag: Any, turn: int, pe: int) -> None:
        call(dest, source, flag, 0, turn, pgas.SIGNAL_SET, pe)

    return send


_CALLS = {"thread": pgas.put_signal_nbi, "warp": pgas.put_signal_nbi_warp, "block": pgas.put_signal_nbi_block}

TEST = ping_pong.perf_test(
    name="shmem_put_signal_ping_pong_latency",
    what="put_signal",
    kernels={scope: ping_pong.kernel(_sending(call), scope) for scope, call in _CALLS.items()},
    workload=bulk.message_workload,
    wqes=ping_pong.with_flag(bulk.wqes, ping_pong.SIGNAL_WQES),
    defaults=shmem_put_ping_pong_latency.TEST.defaults,
    simulator_defaults=shmem_put_ping_pong_latency.TEST.simulator_defaults,
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
