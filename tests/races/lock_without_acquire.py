"""The next holder of a lock reads without a fence after the atomic, and may read what was there before."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
ROUNDS, TRIES = 2, 1_000_000


@pgas.jit
def count(turn, counter):
    for r in range(ROUNDS):
        mine = r * pgas.n_pes() + pgas.my_pe()
        for _ in range(TRIES):
            if pgas.atomic_fetch(turn, 0, 0) == mine:
                break
        if RIGHT:
            pgas.fence()
        pgas.p(counter, 0, pgas.g(counter, 0, 0) + 1, 0)  #: first #: second
        pgas.fence()  # the counter is there before the turn is passed on
        pgas.atomic_set(turn, 0, mine + 1, 0)


with pgas.init():
    turn, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 1, (turn, counter))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"{counter[0]} of {ROUNDS * pgas.n_pes()} increments")
