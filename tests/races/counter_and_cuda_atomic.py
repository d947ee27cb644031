"""The owner of a counter adds by Numba's atomic, which is not atomic with respect to those of a NIC."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "atomic"
RIGHT = "right" in sys.argv


@pgas.jit
def count(counter):
    if pgas.my_pe() == 0 and not RIGHT:
        cuda.atomic.add(counter, 0, 1)  #: second
    else:
        pgas.atomic_add(counter, 0, 1, 0)  #: first


with pgas.init():
    counter = pgas.zeros(1, np.int64)
    pgas.launch(count, 1, 32, (counter,))
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        print(f"{pgas.n_pes()} PEs counted to {counter[0]}")
