"""A third PE passes a signal on, but the fence before the first signal does not order the data of the first PE before it."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
PES = 3
SIZE = 4


@pgas.jit
def relay(data, source, signal, seen):
    if pgas.my_pe() == 0:
        pgas.put(data, source, 1)  #: first
        if RIGHT:
            pgas.quiet()
        else:
            pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 2)
    elif pgas.my_pe() == 2:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 1)
    else:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = data[i]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(relay, 1, 1, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
