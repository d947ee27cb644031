"""One PE sets a signal and another adds to it, and a set is not atomic with respect to an add by the NIC."""

import sys

import numpy as np

import pgas

MISSING = "one kind of signal"
RIGHT = "right" in sys.argv
KIND = pgas.SIGNAL_ADD if RIGHT else pgas.SIGNAL_SET


@pgas.jit
def tell(signal):
    if pgas.my_pe() == 0:
        pgas.signal_op(signal, 0, 10, KIND, 1)  #: first
    else:
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_ADD, 1)  #: second
        pgas.signal_wait_until(signal, 0, pgas.GE, 1)


with pgas.init():
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(tell, 1, 1, (signal,))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 has {signal[0]}")
