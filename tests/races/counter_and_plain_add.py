"""The owner of a counter adds to it by a plain load and store while others add atomically."""

import sys

import numpy as np

import pgas

MISSING = "atomic"
RIGHT = "right" in sys.argv


@pgas.jit
def count(counter):
    for _ in range(10):
        if pgas.my_pe() == 0 and not RIGHT:
            counter[0] += 1  #: second
        else:
            pgas.atomic_add(counter, 0, 1, 0)  #: first


with pgas.init():
    counter = pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 1, (counter,))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"{pgas.n_pes()} PEs counted to {counter[0]}")
