"""A PE announces its own stores by a signal without a fence, so that the peer's get may read what was there before.

vllm#57059, aiter#4812, aiter#3290: the start barrier of a custom all-reduce was relaxed, and peers read stale inputs.
"""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def add(mine, ready, total):
    other = 1 - pgas.my_pe()
    for i in range(SIZE):
        mine[i] = pgas.my_pe() + 1  #: first
    if RIGHT:
        pgas.fence()
    pgas.signal_op(ready, 0, 1, pgas.SIGNAL_SET, other)
    pgas.signal_wait_until(ready, 0, pgas.EQ, 1)
    for i in range(SIZE):
        total[i] = mine[i] + pgas.g(mine, i, other)  #: second


with pgas.init():
    mine, total, ready = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64), pgas.zeros(1, np.uint64)
    pgas.launch(add, 1, 1, (mine, ready, total))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} added {total.copy_to_host()}")
