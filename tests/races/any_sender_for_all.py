"""Several senders add 1 to a signal, and the receiver reads the messages of all when the signal is at least 1."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def gather(box, source, arrived, seen):
    me, n = pgas.my_pe(), pgas.n_pes()
    pgas.put_signal(box[me], source, arrived, 0, 1, pgas.SIGNAL_ADD, 0)  #: first
    if me == 0:
        pgas.signal_wait_until(arrived, 0, pgas.GE, n if RIGHT else 1)
        for pe in range(n):
            seen[pe] = box[pe, SIZE - 1]  #: second


with pgas.init():
    n = pgas.n_pes()
    box, source, seen = pgas.zeros((n, SIZE), np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(n, np.int64)
    arrived = pgas.zeros(1, np.uint64)
    pgas.launch(gather, 1, 1, (box, source, arrived, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"PE 0 read {seen.copy_to_host()}")
