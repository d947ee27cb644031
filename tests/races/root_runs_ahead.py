"""Two destinations are used alternately, but the root of a broadcast does not wait for others and may be two rounds ahead."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "barrier"
RIGHT = "right" in sys.argv
ROUNDS, THREADS, SIZE = 3, 64, 640  # 5 KiB: more than goes through staging memory


@pgas.jit
def spread(dest, source, seen):
    thread = cuda.threadIdx.x
    for r in range(ROUNDS):
        pgas.broadcast_block(pgas.TEAM_WORLD, dest[r % 2], source, 0)  #: second
        for i in range(thread, SIZE, THREADS):
            seen[thread] += dest[r % 2, i]  #: first
        if RIGHT:
            pgas.team_sync_block(pgas.TEAM_WORLD)


with pgas.init():
    dest, source, seen = pgas.zeros((2, SIZE), np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(spread, 1, THREADS, (dest, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} added {seen.copy_to_host().sum()}")
