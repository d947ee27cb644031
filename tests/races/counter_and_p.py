"""A PE resets a counter by p while others add to it atomically."""

import sys

import numpy as np

import pgas

MISSING = "atomic"
RIGHT = "right" in sys.argv


@pgas.jit
def count(counter):
    if pgas.my_pe() == 0:
        pgas.atomic_add(counter, 0, 1, 1)  #: first
    elif RIGHT:
        pgas.atomic_set(counter, 0, 100, 1)
    else:
        pgas.p(counter, 0, 100, 1)  #: second


with pgas.init():
    counter = pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 1, (counter,))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 has {counter[0]}")
