"""A PE reads after the barrier of a team what came from a PE outside the team."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv
PES = 3


@pgas.jit
def exchange(pair, inbox, seen):
    me = pgas.my_pe()
    if me == 2:
        pgas.p(inbox, 0, 7, 1)  #: first
    if RIGHT:
        pgas.barrier_all()
    elif me < 2:
        pgas.barrier(pair)
    if me == 1:
        seen[0] = inbox[0]  #: second


with pgas.init():
    pair = pgas.team_create((0, 1) if pgas.my_pe() < 2 else (2,))
    inbox, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(exchange, 1, 1, (pair, inbox, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen[0]}")
