"""A PE signals that all of its messages have been sent, but nobody waits for that signal."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv


@pgas.jit
def send(inbox, source, arrived, got):
    if pgas.my_pe() == 0:
        for i in range(2):
            pgas.put_signal(inbox[i : i + 1], source, arrived, i, 1, pgas.SIGNAL_SET, 1)
        pgas.fence()
        pgas.signal_op(arrived, 2, 1, pgas.SIGNAL_SET, 1)  #: first, #: second
    else:
        for i in range(2):
            pgas.signal_wait_until(arrived, i, pgas.EQ, 1)
            got[0] += inbox[i]
        if RIGHT:
            pgas.signal_wait_until(arrived, 2, pgas.EQ, 1)


with pgas.init():
    inbox, source, got = pgas.zeros(2, np.int64), pgas.ones(1, np.int64), pgas.zeros(1, np.int64)
    arrived = pgas.zeros(3, np.uint64)
    pgas.launch(send, 1, 1, (inbox, source, arrived, got))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 received {got[0]}")
