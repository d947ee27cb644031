"""The signal of the last step has the same value as that of this step, so that the wait ends at once."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
STEPS, SIZE = 3, 4


@pgas.jit
def send(data, source, signal, seen):
    for step in range(STEPS):
        number = step + 1 if RIGHT else 1
        if pgas.my_pe() == 0:
            pgas.put_signal(data[step], source, signal, 0, number, pgas.SIGNAL_SET, 1)  #: first
        else:
            pgas.signal_wait_until(signal, 0, pgas.GE, number)
            for i in range(SIZE):
                seen[step] += data[step, i]  #: second
        pgas.barrier_all()


with pgas.init():
    data, source, seen = pgas.zeros((STEPS, SIZE), np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(STEPS, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 1, (data, source, signal, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen.copy_to_host()}")
