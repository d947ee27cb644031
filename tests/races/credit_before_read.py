"""The receiver returns the credit for a slot before it has read the slot, and the next message overwrites it."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
ROUNDS, SIZE = 3, 4


@pgas.jit
def stream(slot, source, arrived, credits, seen):
    for r in range(ROUNDS):
        if pgas.my_pe() == 0:
            pgas.signal_wait_until(credits, 0, pgas.GE, r)  # message r - 1 has been read
            source[0] = r
            pgas.put_signal(slot, source, arrived, r, 1, pgas.SIGNAL_SET, 1)  #: second
        else:
            pgas.signal_wait_until(arrived, r, pgas.EQ, 1)
            if not RIGHT:
                pgas.signal_op(credits, 0, 1, pgas.SIGNAL_ADD, 0)
            for i in range(SIZE):
                seen[r] += slot[i]  #: first
            if RIGHT:
                pgas.signal_op(credits, 0, 1, pgas.SIGNAL_ADD, 0)


with pgas.init():
    slot, source, seen = pgas.zeros(SIZE, np.int64), pgas.zeros(SIZE, np.int64), pgas.zeros(ROUNDS, np.int64)
    arrived, credits = pgas.zeros(ROUNDS, np.uint64), pgas.zeros(1, np.uint64)
    pgas.launch(stream, 1, 1, (slot, source, arrived, credits, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
