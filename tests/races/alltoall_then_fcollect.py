"""An fcollect overwrites the result of an alltoall while a slower member reads it.

pytorch#137171: an all-to-all followed by an all-gather corrupted data without an error.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "barrier"
RIGHT = "right" in sys.argv
THREADS, SIZE = 64, 640  # 5 KiB from each PE: more than goes through staging memory


@pgas.jit
def both(dest, source, seen):
    thread = cuda.threadIdx.x
    pgas.alltoall_block(pgas.TEAM_WORLD, dest, source)
    for i in range(thread, dest.size, THREADS):
        seen[thread] += dest[i]  #: first
    if RIGHT:
        pgas.team_sync_block(pgas.TEAM_WORLD)
    pgas.fcollect_block(pgas.TEAM_WORLD, dest, source[:SIZE])  #: second


with pgas.init():
    dest, source = pgas.zeros(SIZE * pgas.n_pes(), np.int64), pgas.full(SIZE * pgas.n_pes(), 7, np.int64)
    seen = pgas.zeros(THREADS, np.int64)
    pgas.launch(both, 1, THREADS, (dest, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} added {seen.copy_to_host().sum()}")
