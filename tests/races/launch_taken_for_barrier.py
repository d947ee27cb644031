"""The host fills an inbox and launches a kernel, but a peer's kernel may already have put into it: a launch is not a barrier."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def send(inbox, signal, got):
    other = 1 - pgas.my_pe()
    pgas.put_signal(inbox[0:1], got[0:1], signal, 0, 1, pgas.SIGNAL_SET, other)  #: first
    pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
    got[1] = inbox[0]


with pgas.init():
    inbox, got = pgas.zeros(1, np.int64), pgas.full(2, 7, np.int64)
    signal = pgas.zeros(1, np.uint64)
    inbox[:1] = 3  #: second
    if RIGHT:
        pgas.barrier_all()
    pgas.launch(send, 1, 1, (inbox, signal, got))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {got[1]}")
