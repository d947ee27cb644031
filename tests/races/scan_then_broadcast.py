"""A warp broadcasts the sums that another warp of its block scans, but the calls synchronize their own warps only."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
SIZE, WARP = 16, 32


@pgas.jit
def offsets(total, sums, counts, last):
    warp = cuda.threadIdx.x // WARP
    if warp == 0:
        pgas.inscan_warp(pgas.TEAM_WORLD, sums, counts, pgas.SUM)  #: first
    if RIGHT:
        cuda.syncthreads()
    if warp == 1:
        pgas.broadcast_warp(pgas.TEAM_WORLD, total, sums, last, 1)  #: second


with pgas.init():
    total, sums, counts = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64), pgas.ones(SIZE, np.int64)
    pgas.launch(offsets, 1, 2 * WARP, (total, sums, counts, pgas.n_pes() - 1))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {total.copy_to_host()}")
