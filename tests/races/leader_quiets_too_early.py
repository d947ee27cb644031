"""Thread 0 calls quiet after a put_nbi_block, but covers the parts of other threads only after a syncthreads."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
SIZE = 128


@pgas.jit
def send(data, source, signal, seen):
    thread = cuda.threadIdx.x
    if pgas.my_pe() == 0:
        pgas.put_nbi_block(data, source, 1)  #: first
        if RIGHT:
            cuda.syncthreads()
        if thread == 0:
            pgas.quiet()
            pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 1)
    elif thread == 0:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[0] += data[i]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(1, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 64, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen[0]}")
