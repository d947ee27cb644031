"""A lock is released before the new value is stored, so that the next holder may read the old value."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv


@pgas.jit
def count(lock, counter):
    pgas.set_lock(lock, 0)
    value = pgas.g(counter, 0, 0)  #: second
    if RIGHT:
        pgas.p(counter, 0, value + 1, 0)
        pgas.clear_lock(lock, 0)
    else:
        pgas.clear_lock(lock, 0)
        pgas.p(counter, 0, value + 1, 0)  #: first


with pgas.init():
    lock, counter = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 2, (lock, counter))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"the counter is {counter[0]}")
