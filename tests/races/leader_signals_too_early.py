"""Thread 0 signals for its block, but the fence covers the stores of other threads only after a syncthreads.

Primus-Turbo#482: the tail of a channel was published by one wave while others were still writing the rows.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def send(rows, tail, seen):
    thread = cuda.threadIdx.x
    if pgas.my_pe() == 0:
        pgas.p(rows, thread, 7, 1)  #: first
        if RIGHT:
            cuda.syncthreads()
        if thread == 0:
            pgas.fence()
            pgas.p(tail, 0, THREADS, 1)
    elif thread == 0:
        pgas.wait_until(tail, 0, pgas.EQ, THREADS)
        for i in range(THREADS):
            seen[0] += rows[i]  #: second


with pgas.init():
    rows, tail, seen = pgas.zeros(THREADS, np.int64), pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(send, 1, THREADS, (rows, tail, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen[0]}")
