"""One barrier per step completes its stores, but those of the next step may arrive before this one's have been read."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv
STEPS = 3


@pgas.jit
def steps(inbox, seen):
    for step in range(STEPS):
        pgas.p(inbox, 0, step + 1, 1 - pgas.my_pe())  #: second
        pgas.barrier_all()
        seen[step] = inbox[0]  #: first
        if RIGHT:
            pgas.sync_all()


with pgas.init():
    inbox, seen = pgas.zeros(1, np.int64), pgas.zeros(STEPS, np.int64)
    pgas.launch(steps, 1, 1, (inbox, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
