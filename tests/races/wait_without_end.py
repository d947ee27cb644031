"""A PE waits for the number of all messages, but its peer sends one message less: no write can end the wait."""

import sys

import numpy as np

import pgas

MISSING = "a write that ends the wait"
FAILS = True
RIGHT = "right" in sys.argv
MESSAGES = 3


@pgas.jit
def count(inbox, source, arrived, got):
    if pgas.my_pe() == 0:
        for i in range(MESSAGES if RIGHT else MESSAGES - 1):
            pgas.put_signal(inbox[i : i + 1], source, arrived, 0, 1, pgas.SIGNAL_ADD, 1)
    else:
        pgas.signal_wait_until(arrived, 0, pgas.EQ, MESSAGES)  #: first, #: second
        for i in range(MESSAGES):
            got[0] += inbox[i]


with pgas.init():
    inbox, source, got = pgas.zeros(MESSAGES, np.int64), pgas.ones(1, np.int64), pgas.zeros(1, np.int64)
    arrived = pgas.zeros(1, np.uint64)
    pgas.launch(count, 1, 1, (inbox, source, arrived, got))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 received {got[0]}")
