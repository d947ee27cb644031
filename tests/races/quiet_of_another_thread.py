"""Every thread starts a get_nbi, but only thread 0 calls quiet, which does not cover concurrent operations of others.

mori#404: quiet returned before the operations of the calling warp were complete, and gets delivered stale data.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "quiet"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def fetch(dest, source, seen):
    thread = cuda.threadIdx.x
    pgas.get_nbi(dest[thread : thread + 1], source[thread : thread + 1], 1 - pgas.my_pe())  #: first
    if thread == 0 or RIGHT:
        pgas.quiet()
    cuda.syncthreads()
    seen[thread] = dest[THREADS - 1 - thread]  #: second


with pgas.init():
    dest, source, seen = pgas.zeros(THREADS, np.int64), pgas.full(THREADS, 7, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(fetch, 1, THREADS, (dest, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()[:4]}")
