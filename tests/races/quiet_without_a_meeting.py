"""Every thread of a block calls quiet after a get of the block, which completes only its own part, and reads the part of another."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def fetch(mine, source, seen):
    thread = cuda.threadIdx.x
    pgas.get_nbi_block(mine, source, 1 - pgas.my_pe())  #: first
    pgas.quiet()
    if RIGHT:
        cuda.syncthreads()
    seen[thread] = mine[THREADS - 1 - thread]  #: second


with pgas.init():
    source, mine, seen = pgas.full(THREADS, 7, np.int64), pgas.zeros(THREADS, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(fetch, 1, THREADS, (mine, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host().sum()}")
