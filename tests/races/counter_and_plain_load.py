"""The owner of a counter reads it by a plain load while others add atomically."""

import sys

import numpy as np

import pgas

MISSING = "atomic"
RIGHT = "right" in sys.argv


@pgas.jit
def count(counter, seen):
    if pgas.my_pe() == 1:
        pgas.atomic_add(counter, 0, 1, 0)  #: first
    elif RIGHT:
        seen[0] = pgas.atomic_fetch(counter, 0, 0)
    else:
        seen[0] = counter[0]  #: second


with pgas.init():
    counter, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 1, (counter, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"PE 0 saw {seen[0]}")
