"""A PE sets its signal to 0 after the collective allocation, when a peer may already have signaled.

pytorch#196546, DistCA#75: a signal was lost because it arrived before the memory was zeroed.
"""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def notify(signal):
    pgas.signal_op(signal, 0, 1, pgas.SIGNAL_ADD, 1 - pgas.my_pe())  #: second


with pgas.init():
    signal = pgas.empty(1, np.uint64)
    signal[:] = 0  #: first
    if RIGHT:
        pgas.barrier_all()
    notify[1, 1](signal)
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has its signal: {pgas.test(signal, 0, pgas.EQ, 1)}")
