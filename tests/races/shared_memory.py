"""A thread reads from shared memory what another thread has stored there, without a syncthreads."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def reverse(dest, source):
    thread, tile = cuda.threadIdx.x, cuda.shared.array(THREADS, np.int64)
    tile[thread] = source[thread]  #: first
    if RIGHT:
        cuda.syncthreads()
    pgas.p(dest, thread, tile[THREADS - 1 - thread], 1 - pgas.my_pe())  #: second


with pgas.init():
    dest, source = pgas.zeros(THREADS, np.int64), pgas.array(np.arange(THREADS))
    pgas.launch(reverse, 1, THREADS, (dest, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {dest.copy_to_host()[:4]}")
