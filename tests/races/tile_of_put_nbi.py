"""The last block sends a tile of its shared memory by put_nbi, and reuses the tile while the put may still read it."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "flush or quiet"
RIGHT = "right" in sys.argv
THREADS, BLOCKS = 4, 2


@pgas.jit
def send(data, source):
    thread, block = cuda.threadIdx.x, cuda.blockIdx.x
    tile = cuda.shared.array(THREADS, np.int64)
    tile[thread] = source[block * THREADS + thread]
    cuda.syncthreads()
    if thread == 0 and block == BLOCKS - 1:
        pgas.put_nbi(data[block * THREADS : (block + 1) * THREADS], tile, 1 - pgas.my_pe())  #: first
        if RIGHT:
            pgas.flush()
        tile[0] = 0  #: second


with pgas.init():
    data, source = pgas.zeros(BLOCKS * THREADS, np.int64), pgas.full(BLOCKS * THREADS, 7, np.int64)
    pgas.launch(send, BLOCKS, THREADS, (data, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {data.copy_to_host()}")
