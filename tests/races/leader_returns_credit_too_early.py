"""Thread 0 returns the credit of a slot when it has read its own part, but other threads may still be reading theirs."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
ROUNDS, THREADS = 3, 64


@pgas.jit
def stream(slot, source, arrived, credits, seen):
    thread = cuda.threadIdx.x
    for r in range(ROUNDS):
        if pgas.my_pe() == 0:
            if thread == 0:
                pgas.signal_wait_until(credits, 0, pgas.GE, r)  # message r - 1 has been read
            pgas.put_signal_block(slot, source, arrived, r, 1, pgas.SIGNAL_SET, 1)  #: second
        else:
            if thread == 0:
                pgas.signal_wait_until(arrived, r, pgas.EQ, 1)
            cuda.syncthreads()
            seen[thread] += slot[thread]  #: first
            if RIGHT:
                cuda.syncthreads()
            if thread == 0:
                pgas.signal_op(credits, 0, 1, pgas.SIGNAL_ADD, 0)


with pgas.init():
    slot, source, seen = pgas.zeros(THREADS, np.int64), pgas.full(THREADS, 7, np.int64), pgas.zeros(THREADS, np.int64)
    arrived, credits = pgas.zeros(ROUNDS, np.uint64), pgas.zeros(1, np.uint64)
    pgas.launch(stream, 1, THREADS, (slot, source, arrived, credits, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen.copy_to_host().sum()}")
