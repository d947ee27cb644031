"""A member that is ahead writes into the destination of a collect while a slower member reads the last result."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv
ROUNDS, SIZE = 3, 4


@pgas.jit
def gather(dest, source, seen):
    for r in range(ROUNDS):
        pgas.collect(pgas.TEAM_WORLD, dest, source)  #: second
        for i in range(dest.size):
            seen[r] += dest[i]  #: first
        for i in range(source.size):
            source[i] += 1
        if RIGHT:
            pgas.team_sync(pgas.TEAM_WORLD)


with pgas.init():
    dest, source, seen = pgas.zeros(SIZE * pgas.n_pes(), np.int64), pgas.full(SIZE, 1, np.int64), pgas.zeros(ROUNDS, np.int64)
    pgas.launch(gather, 1, 1, (dest, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} added {seen.copy_to_host()}")
