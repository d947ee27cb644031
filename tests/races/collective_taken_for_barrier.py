"""A reduction is taken for a barrier, but it orders only its own data and completes no earlier store."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def exchange(inbox, total, seen):
    pgas.p(inbox, 0, 7, 1 - pgas.my_pe())  #: first
    pgas.reduce(pgas.TEAM_WORLD, total, total, pgas.SUM)
    if RIGHT:
        pgas.barrier(pgas.TEAM_WORLD)
    seen[0] = inbox[0]  #: second


with pgas.init():
    inbox, total, seen = pgas.zeros(1, np.int64), pgas.full(1, 1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(exchange, 1, 1, (inbox, total, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen[0]}")
