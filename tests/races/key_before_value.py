"""A hash table's key is published by an atomic without a fence after its value, and may be found before the value."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
KEY, SLOT, TRIES = 5, 3, 1_000_000


@pgas.jit
def insert_and_find(keys, values, found):
    if pgas.my_pe() == 0:
        if pgas.atomic_compare_swap(keys, SLOT, 0, -1, 1) == 0:  # the slot is taken
            pgas.p(values, SLOT, KEY * KEY, 1)  #: first
            if RIGHT:
                pgas.fence()
            pgas.atomic_set(keys, SLOT, KEY, 1)
    else:
        for _ in range(TRIES):
            if pgas.atomic_fetch(keys, SLOT, 1) == KEY:
                break
        pgas.fence()  # the value may be read now
        found[0] = pgas.g(values, SLOT, 1)  #: second


with pgas.init():
    keys, values, found = pgas.zeros(8, np.int64), pgas.zeros(8, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(insert_and_find, 1, 1, (keys, values, found))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 found {found[0]}")
