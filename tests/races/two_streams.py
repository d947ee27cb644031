"""A kernel writes the source on one stream, and a put on another stream reads it."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "stream order"
RIGHT = "right" in sys.argv
SIZE = 32


@pgas.jit
def fill(source):
    source[cuda.threadIdx.x] = 7  #: first


with pgas.init():
    data, source = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64)
    compute, copy = cuda.stream(), cuda.stream()
    fill[1, SIZE, compute](source)
    pgas.put(data, source, 1 - pgas.my_pe(), stream=compute if RIGHT else copy)  #: second
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {data.copy_to_host()[:4]}")
