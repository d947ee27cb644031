"""A PE puts into the source of a reduction of its neighbor, which may still read it although this PE's own call has returned."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "wait"
RIGHT = "right" in sys.argv
THREADS, SIZE = 64, 640


@pgas.jit
def step(total, part, n):
    pgas.reduce_block(pgas.TEAM_WORLD, total, part, pgas.SUM)  #: first
    for i in range(cuda.threadIdx.x, SIZE, THREADS):
        total[i] += 1
    if RIGHT:
        pgas.team_sync_block(pgas.TEAM_WORLD)
    pgas.put_block(part, total, (pgas.my_pe() + 1) % n)  #: second


with pgas.init() as job:
    total, part = pgas.zeros(SIZE, np.int64), pgas.ones(SIZE, np.int64)
    pgas.launch(step, 1, THREADS, (total, part, job.n_pes))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {part.copy_to_host().sum()}")
