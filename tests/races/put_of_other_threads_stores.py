"""Thread 0 puts what all threads of the block have written, without a syncthreads in between."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 64


@pgas.jit
def send(data, source):
    thread = cuda.threadIdx.x
    source[thread] = 7  #: first
    if RIGHT:
        cuda.syncthreads()
    if thread == 0:
        pgas.put(data, source, 1 - pgas.my_pe())  #: second


with pgas.init():
    data, source = pgas.zeros(THREADS, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(send, 1, THREADS, (data, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {data.copy_to_host().sum()}")
