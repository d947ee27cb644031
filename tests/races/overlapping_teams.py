"""A put reaches a PE through the barriers of two teams that share a member, which calls them in the wrong order."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv
PES = 3


@pgas.jit
def pass_on(low, high, inbox, seen):
    me = pgas.my_pe()
    if me == 0:
        pgas.p(inbox, 0, 7, 2)  #: first
        pgas.barrier(low)
    elif me == 1:
        pgas.barrier(low if RIGHT else high)
        pgas.barrier(high if RIGHT else low)
    else:
        pgas.barrier(high)
        seen[0] = inbox[0]  #: second


with pgas.init():
    low = pgas.team_create((0, 1) if pgas.my_pe() < 2 else (2,))
    high = pgas.team_create((1, 2) if pgas.my_pe() > 0 else (0,))
    inbox, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(pass_on, 1, 1, (low, high, inbox, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 2:
        print(f"PE 2 read {seen[0]}")
