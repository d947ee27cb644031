"""Neighbors exchange rows with signals on one word: the signal of a step may arrive before the row of the step before."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
STEPS, SIZE = 4, 8


@pgas.jit
def exchange(a, b, signal, seen):
    me, neighbor = pgas.my_pe(), 1 - pgas.my_pe()
    for step in range(STEPS):
        rows, word = (a, 0) if step % 2 == 0 else (b, int(RIGHT))
        pgas.put_signal(rows[me], rows[me], signal, word, step + 1, pgas.SIGNAL_SET, neighbor)  #: first
        pgas.signal_wait_until(signal, word, pgas.GE, step + 1)
        for i in range(SIZE):
            seen[0] += rows[neighbor, i]  #: second


with pgas.init():
    a, b, seen = pgas.full((2, SIZE), 1, np.int64), pgas.full((2, SIZE), 1, np.int64), pgas.zeros(1, np.int64)
    signal = pgas.zeros(2, np.uint64)
    pgas.launch(exchange, 1, 1, (a, b, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen[0]}")
