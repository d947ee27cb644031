"""A neighbor that is one step ahead overwrites the inbox that is still being read, because there is one instead of two."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
STEPS, SIZE = 4, 4


@pgas.jit
def smooth(x, inbox, signal):
    for step in range(STEPS):
        half = step % 2 if RIGHT else 0
        pgas.put_signal(inbox[half], x, signal, step, 1, pgas.SIGNAL_SET, 1 - pgas.my_pe())  #: second
        pgas.fence()  # messages arrive in the order of the steps
        pgas.signal_wait_until(signal, step, pgas.EQ, 1)
        for i in range(SIZE):
            x[i] = (x[i] + inbox[half, i]) / 2  #: first


with pgas.init():
    x, inbox = pgas.full(SIZE, 100.0 * pgas.my_pe()), pgas.zeros((2, SIZE))
    signal = pgas.zeros(STEPS, np.uint64)
    pgas.launch(smooth, 1, 1, (x, inbox, signal))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {x.copy_to_host()}")
