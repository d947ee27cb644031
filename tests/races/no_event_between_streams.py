"""A get delivers data on one stream, and a kernel on another stream reads it without waiting for an event."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "stream order"
RIGHT = "right" in sys.argv
SIZE = 32


@pgas.jit
def read(inbox, seen):
    seen[cuda.threadIdx.x] = inbox[cuda.threadIdx.x]  #: second


with pgas.init():
    inbox, data, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    copy, compute = cuda.stream(), cuda.stream()
    pgas.get(inbox, data, 1 - pgas.my_pe(), stream=copy)  #: first
    if RIGHT:
        arrived = cuda.event()
        arrived.record(copy)
        arrived.wait(compute)
    read[1, SIZE, compute](inbox, seen)
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()[:4]}")
