"""Data goes to one PE and its flag to another, with a fence, which orders only operations to the same PE."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
PES = 3


@pgas.jit
def send(data, flag, seen):
    if pgas.my_pe() == 0:
        pgas.p(data, 0, 7, 1)  #: first
        if RIGHT:
            pgas.quiet()
        else:
            pgas.fence()
        pgas.p(flag, 0, 1, 2)
    elif pgas.my_pe() == 2:
        pgas.wait_until(flag, 0, pgas.EQ, 1)
        seen[0] = pgas.g(data, 0, 1)  #: second


with pgas.init():
    data, flag, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(send, 1, 1, (data, flag, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 2:
        print(f"PE 2 got {seen[0]}")
