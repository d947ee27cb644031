"""Thread 0 calls quiet after a put_signal_nbi_block, but covers the parts of other threads only after a syncthreads."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
SIZE = 128


@pgas.jit
def fold(data, source, signal, seen):
    thread = cuda.threadIdx.x
    pgas.put_signal_nbi_block(data, source, signal, 0, 1, pgas.SIGNAL_ADD, pgas.my_pe())  #: first
    if RIGHT:
        cuda.syncthreads()
    if thread == 0:
        pgas.quiet()
    cuda.syncthreads()
    seen[thread] = data[thread] + data[SIZE - 1 - thread]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(64, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(fold, 1, 64, (data, source, signal, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()}: {signal.copy_to_host()[0]} signal, added {seen.copy_to_host().sum()}")
