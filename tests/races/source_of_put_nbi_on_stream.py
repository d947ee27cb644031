"""A kernel overwrites the source of a put_nbi earlier in its stream, which orders the start of the put and not its end."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "flush or quiet"
RIGHT = "right" in sys.argv
SIZE = 32


@pgas.jit
def fill(source, value):
    source[cuda.threadIdx.x] = value  #: second


with pgas.init():
    data, source = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64)
    stream = cuda.stream()
    pgas.put_nbi(data, source, 1 - pgas.my_pe(), stream=stream)  #: first
    if RIGHT:
        pgas.flush(stream=stream)
    fill[1, SIZE, stream](source, 0)
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {data.copy_to_host()[:4]}")
