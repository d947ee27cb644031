"""A block stores and signals another block of its PE without a fence, so that the other may read the old data."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def hand_over(data, signal, seen):
    if cuda.blockIdx.x == 0:
        for i in range(SIZE):
            data[i] = 7  #: first
        if RIGHT:
            pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, pgas.my_pe())
    else:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = data[i]  #: second


with pgas.init():
    data, seen, signal = pgas.zeros(SIZE, np.int32), pgas.zeros(SIZE, np.int32), pgas.zeros(1, np.uint64)
    pgas.launch(hand_over, 2, 1, (data, signal, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
