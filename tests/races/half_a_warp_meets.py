"""Lane 0 calls quiet after a put_nbi_warp and a syncwarp of half of the warp, but covers the other lanes' parts only after one of all."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
SIZE, LOWER, ALL = 128, 0xFFFF, 0xFFFFFFFF


@pgas.jit
def send(data, source, signal, seen):
    lane = cuda.threadIdx.x
    if pgas.my_pe() == 0:
        pgas.put_nbi_warp(data, source, 1)  #: first
        if RIGHT:
            cuda.syncwarp(ALL)
        elif lane < 16:
            cuda.syncwarp(LOWER)
        if lane == 0:
            pgas.quiet()
            pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 1)
    elif lane == 0:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[0] += data[i]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(1, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 32, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen[0]}")
