"""Thread 0 calls barrier_all for its block, but completes the stores of other threads only after a syncthreads."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def exchange(inbox, seen):
    thread = cuda.threadIdx.x
    pgas.p(inbox, thread, 7, 1 - pgas.my_pe())  #: first
    if RIGHT:
        cuda.syncthreads()
    if thread == 0:
        pgas.barrier_all()
    cuda.syncthreads()
    seen[thread] = inbox[thread]  #: second


with pgas.init():
    inbox, seen = pgas.zeros(THREADS, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(exchange, 1, THREADS, (inbox, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} added {seen.copy_to_host().sum()}")
