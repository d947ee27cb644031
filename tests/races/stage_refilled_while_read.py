"""Thread 0 gets the next chunk into a staging buffer that other threads of the block are still reading.

DeepEP#621, DeepEP#642: a TMA load refilled a stage before the loads of the last chunk were over, and combine returned stale data.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
CHUNKS, THREADS = 3, 64


@pgas.jit
def combine(chunks, stage, total):
    thread = cuda.threadIdx.x
    for c in range(CHUNKS):
        if thread == 0:
            pgas.get(stage, chunks[c], 1 - pgas.my_pe())  #: second
        cuda.syncthreads()
        total[thread] += stage[THREADS - 1 - thread]  #: first
        if RIGHT:
            cuda.syncthreads()


with pgas.init():
    chunks = pgas.array(np.repeat(np.arange(CHUNKS), THREADS).reshape(CHUNKS, THREADS))
    stage, total = pgas.zeros(THREADS, np.int64), pgas.zeros(THREADS, np.int64)
    pgas.launch(combine, 1, THREADS, (chunks, stage, total))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {total.copy_to_host()[:4]}")
