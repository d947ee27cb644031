"""A signal follows a strided put without a fence, and may arrive before its elements."""

import sys

import numpy as np

import pgas

MISSING = "put_signal or fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(table, column, signal, seen):
    if pgas.my_pe() == 0:
        pgas.iput(table, column, 2, 1, 1)  #: first
        if RIGHT:
            pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 1)
    else:
        for i in range(SIZE):
            table[2 * i + 1] = -1  # its own column, between the elements of the put
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = table[2 * i]  #: second


with pgas.init():
    table, column, seen = pgas.zeros(2 * SIZE, np.int32), pgas.full(SIZE, 7, np.int32), pgas.zeros(SIZE, np.int32)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 1, (table, column, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
