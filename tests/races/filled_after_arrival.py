"""A PE fills the destination of an alltoall while a peer that is ahead may already have written to it.

pytorch#196632: a test filled the output with -1, and found -1 in it after the all-to-all.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "barrier"
RIGHT = "right" in sys.argv
THREADS, SIZE = 64, 640  # 5 KiB for each PE: more than goes through staging memory


@pgas.jit
def exchange(dest, source):
    for i in range(cuda.threadIdx.x, dest.size, THREADS):
        dest[i] = -1  #: first
    if RIGHT:
        pgas.barrier_all_block()
    pgas.alltoall_block(pgas.TEAM_WORLD, dest, source)  #: second


with pgas.init():
    dest, source = pgas.zeros(SIZE * pgas.n_pes(), np.int64), pgas.full(SIZE * pgas.n_pes(), 7, np.int64)
    pgas.launch(exchange, 1, THREADS, (dest, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {np.unique(dest.copy_to_host())}")
