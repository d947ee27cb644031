"""A thread stores a row and lets a PE get it after quiet_pe, which completes operations on that PE, but not the stores of the row."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def offer(row, token, ready, got):
    if pgas.my_pe() == 0:
        for i in range(SIZE):
            row[i] = 7  #: first
        pgas.p(token, 0, 1, 1)
        if RIGHT:
            pgas.quiet()
        else:
            pgas.quiet_pe(1)
        pgas.signal_op(ready, 0, 1, pgas.SIGNAL_SET, 1)
    else:
        pgas.signal_wait_until(ready, 0, pgas.EQ, 1)
        pgas.get(got, row, 0)  #: second


with pgas.init():
    row, got, token = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64), pgas.zeros(1, np.int64)
    ready = pgas.zeros(1, np.uint64)
    pgas.launch(offer, 1, 1, (row, token, ready, got))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 got {got.copy_to_host()}")
