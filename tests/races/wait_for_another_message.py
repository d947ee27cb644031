"""The reader waits for the signal of one message and reads another one, which is not ordered with it."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(box, source, arrived, seen):
    for m in range(2):
        if pgas.my_pe() == 0:
            pgas.put_signal(box[m], source, arrived, m, 1, pgas.SIGNAL_SET, 1)  #: first
        else:
            pgas.signal_wait_until(arrived, m, pgas.EQ, 1)
            slot = m if RIGHT else 1 - m
            for i in range(SIZE):
                seen[slot] += box[slot, i]  #: second


with pgas.init():
    box, source, seen = pgas.zeros((2, SIZE), np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(2, np.int64)
    arrived = pgas.zeros(2, np.uint64)
    pgas.launch(send, 1, 1, (box, source, arrived, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen.copy_to_host()}")
