"""Bandwidth and message rate of p: the threads of a grid send a message element by element, like NVSHMEM's shmem_p_bw.

    mpirun -n 2 shmem_p_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M

One kernel loops over the iterations: thread t of n sends elements t, t + n, t + 2n ... from its PE's source array, then comes a barrier of
the grid; quiet is called once at the end. ``-d`` chooses the element type, and thus 1, 2, 4, or 8 bytes per message. ``-i`` spaces the
elements, in source and destination: contiguous ones coalesce in the SM (or into one WQE), scattered ones do not. Size counts the bytes
sent, not the gaps. PE 0 sends to PE 1; with ``--bidir``, both send and the rates are summed. harness/pair.py describes how rows are filled,
timed, and checked. NVSHMEM's indices overlap for a stride above 1; these do not.
"""

import sys
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.harness import pair
from pgas.perftests.harness.grid import grid_barrier
from pgas.perftests.harness.options import Defaults, Options
from pgas.perftests.harness.workload import Workload, p_workload, rounds_of_warps
from pgas.transports.mlx5.wqe import ds_inline, wqebbs


@pgas.jit
def p_bw(dest: Any, source: Any, stride: np.uint64, counter: Any, start: int, iters: int, pe: int) -> None:
    """Send with p, two elements at a time, so that both loads are in flight before the first store.

    Indices are uint64, because for signed ones Numba tests every access for a negative index.
    """
    end = np.uint64(dest.size)
    first = np.uint64(cuda.grid(1)) * stride
    hop = np.uint64(cuda.gridsize(1)) * stride
    for i in range(iters):
        idx = first
        while idx + hop < end:
            one, two = source[idx], source[idx + hop]
            pgas.p(dest, idx, one, pe)
            pgas.p(dest, idx + hop, two, pe)
            idx += hop + hop
        if idx < end:
            pgas.p(dest, idx, source[idx], pe)
        grid_barrier(counter, start + (i + 1) * cuda.gridDim.x)
    if cuda.grid(1) == 0:
        pgas.quiet()


def _workload(size: int, options: Options) -> Workload:
    return p_workload(size, options.datatype, options.stride, options.ctas, options.threads_per_cta)


def wqes(work: Workload, coalesces: bool) -> tuple[int, int]:
    """Return the minimum and maximum number of WQEs: a WRITE per p, or fewer if the NIC's transport coalesces neighboring p.

    Then the converged lanes of a warp share one. The hardware determines which lanes these are; the number of WQEs is minimal if all are,
    each time.
    """
    if not (coalesces and work.coalesced):
        return work.messages, work.messages
    return sum(rounds * _coalesced(lanes, work.dtype.itemsize) for rounds, lanes in rounds_of_warps(work)), work.messages


def _coalesced(lanes: int, itemsize: int) -> int:
    """Return the WQEs of neighboring p of converged lanes: a WRITE, followed by a NOP if it takes several WQEBBs."""
    return 0 if lanes == 0 else 1 if wqebbs(ds_inline(lanes * itemsize)) == 1 else 2


TEST = pair.PerfTest(
    name="shmem_p_bw",
    description="Bandwidth and message rate of single elements sent with p from inside a kernel, every byte checked.",
    kernels={"thread": p_bw},
    workload=_workload,
    wqes=wqes,
    extra=lambda work: (np.uint64(work.stride),),
    defaults=Defaults("int"),
    simulator_defaults=Defaults("int", max_size=16 << 10, iters=3, warmup_iters=1, ctas=4, threads_per_cta=32),
)

main = TEST.main

if __name__ == "__main__":
    sys.exit(main())
