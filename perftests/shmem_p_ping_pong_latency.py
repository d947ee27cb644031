"""Ping-pong of p, fence, and signal, like NVSHMEM's shmem_p_ping_pong_latency. The figure is the whole round trip.

    mpirun -n 2 shmem_p_ping_pong_latency -n 500 -w 50 -t 512 -e 16K

``-t`` threads send the message element by element, then the first one sends the signal. NVSHMEM's test first sleeps for 10 s.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests import ping_pong, shmem_p_bw, shmem_p_latency


@cuda.jit(device=True)
def send_elements(dest: Any, source: Any, pe: int) -> None:
    """Send with p by all threads of the CTA, then synchronize them."""
    idx, hop, end = np.uint64(cuda.threadIdx.x), np.uint64(cuda.blockDim.x), np.uint64(source.size)
    while idx < end:
        pgas.p(dest, idx, source[idx], pe)
        idx += hop
    cuda.syncthreads()


TEST = ping_pong.perf_test(
    name="shmem_p_ping_pong_latency",
    what="p, fence and signal",
    kernels={"thread": ping_pong.kernel(ping_pong.payload_then_flag(send_elements, ping_pong.signal), "block")},
    workload=shmem_p_latency.elements_workload,
    wqes=ping_pong.with_flag(shmem_p_bw.wqes, ping_pong.SIGNAL_WQES),
    defaults=shmem_p_latency.TEST.defaults,
    simulator_defaults=replace(shmem_p_latency.TEST.simulator_defaults, max_size=1 << 10),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
