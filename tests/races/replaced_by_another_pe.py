"""Another PE replaces an element after a signal, but the fence before that signal orders only operations of the first PE."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
PES = 3
SIZE = 4


@pgas.jit
def replace(data, source, signal):
    if pgas.my_pe() == 0:
        pgas.put(data, source, 1)  #: first
        if RIGHT:
            pgas.quiet()
        else:
            pgas.fence()
        pgas.signal_op(signal, 0, 1, pgas.SIGNAL_SET, 2)
    elif pgas.my_pe() == 2:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        pgas.p(data, 0, 8, 1)  #: second


with pgas.init():
    data, source = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(replace, 1, 1, (data, source, signal))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 has {data.copy_to_host()}")
