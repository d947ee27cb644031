"""The host gets what a kernel on a peer stores there, after it has waited for its own kernels only."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def store(mine):
    mine[0] = 7  #: first


with pgas.init():
    mine = pgas.zeros(1, np.int64)
    store[1, 1](mine)
    if RIGHT:
        pgas.barrier_all()
    else:
        pgas.synchronize()
    seen = int(pgas.g(mine, 0, 1 - pgas.my_pe()))  #: second
    print(f"PE {pgas.my_pe()} got {seen}")
