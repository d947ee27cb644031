"""The host puts to a peer and calls sync_all, after which the peer's kernel may still find the old data."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def read(inbox, seen):
    for i in range(SIZE):
        seen[i] = inbox[i]  #: second


with pgas.init():
    inbox, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.put(inbox, source, 1 - pgas.my_pe())  #: first
    if RIGHT:
        pgas.barrier_all()
    else:
        pgas.sync_all()
    read[1, 1](inbox, seen)
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
