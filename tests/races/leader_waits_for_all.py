"""Thread 0 waits for the signal, and the other threads of the block read without a syncthreads."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def send(data, source, signal, seen):
    thread = cuda.threadIdx.x
    if pgas.my_pe() == 0:
        pgas.put_signal_block(data, source, signal, 0, 1, pgas.SIGNAL_SET, 1)  #: first
    else:
        if thread == 0:
            pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        if RIGHT:
            cuda.syncthreads()
        seen[thread] = data[thread]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(THREADS, np.int64), pgas.full(THREADS, 7, np.int64), pgas.zeros(THREADS, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, THREADS, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen.copy_to_host().sum()}")
