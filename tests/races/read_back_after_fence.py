"""A thread gets back what it has put after a fence, which does not order gets."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def read_back(data, source, back, seen):
    other = 1 - pgas.my_pe()
    pgas.put(data, source, other)  #: first
    if RIGHT:
        pgas.quiet()
    else:
        pgas.fence()
    pgas.get(back, data, other)  #: second
    for i in range(SIZE):
        seen[i] = back[i]


with pgas.init():
    data, source = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64)
    back, seen = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(read_back, 1, 1, (data, source, back, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read back {seen.copy_to_host()}")
