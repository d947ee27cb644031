"""The signal of a put_signal is taken for the arrival of an earlier put, but it orders only its own data."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(header, body, source, signal, seen):
    if pgas.my_pe() == 0:
        pgas.put(header, source, 1)  #: first
        if RIGHT:
            pgas.fence()
        pgas.put_signal(body, source, signal, 0, 1, pgas.SIGNAL_SET, 1)
    else:
        pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = header[i]  #: second
        for i in range(SIZE):
            seen[i] += body[i]


with pgas.init():
    header, body, seen = (pgas.zeros(SIZE, np.int64) for _ in range(3))
    source, signal = pgas.full(SIZE, 7, np.int64), pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 1, (header, body, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
