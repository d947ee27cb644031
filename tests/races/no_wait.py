"""Nothing waits for the signal of a put_signal before its data is read.

pytorch#191858: put_signal, wait_signal, and barrier of a backend were empty functions that returned success.
"""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(data, source, signal, seen):
    if pgas.my_pe() == 0:
        pgas.put_signal(data, source, signal, 0, 1, pgas.SIGNAL_SET, 1)  #: first
    else:
        if RIGHT:
            pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = data[i]  #: second


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 1, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
