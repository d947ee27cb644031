"""The members of a team call reduce with different numbers of elements, so that some elements lack the parts of other members."""

import sys

import numpy as np

import pgas

MISSING = "the same call"
FAILS = True
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def add_up(total, numbers, size):
    pgas.reduce(pgas.TEAM_WORLD, total[:size], numbers[:size], pgas.SUM)  #: first, #: second


with pgas.init():
    numbers, total = pgas.ones(SIZE, np.int64), pgas.zeros(SIZE, np.int64)
    size = SIZE if RIGHT or pgas.my_pe() == 0 else SIZE - 1
    pgas.launch(add_up, 1, 1, (total, numbers, size))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {total.copy_to_host()}")
