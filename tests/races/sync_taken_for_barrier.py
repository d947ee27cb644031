"""sync_all is taken for barrier_all: all PEs have arrived, but their stores may still be in flight."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def exchange(inbox, seen):
    pgas.p(inbox, 0, 7, 1 - pgas.my_pe())  #: first
    if RIGHT:
        pgas.barrier_all()
    else:
        pgas.sync_all()
    seen[0] = inbox[0]  #: second


with pgas.init():
    inbox, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(exchange, 1, 1, (inbox, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen[0]}")
