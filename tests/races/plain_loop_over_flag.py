"""A flag is polled by plain loads, which the compiler may hoist and which make nothing else visible."""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
TRIES = 1000


@pgas.jit
def send(data, flag, seen):
    if pgas.my_pe() == 0:
        pgas.p(data, 0, 7, 1)  #: first
        pgas.fence()
        pgas.p(flag, 0, 1, 1)  #: first
    else:
        if RIGHT:
            pgas.wait_until(flag, 0, pgas.EQ, 1)
        else:
            for _ in range(TRIES):
                if flag[0] == 1:  #: second
                    break
        seen[0] = data[0]  #: second


with pgas.init():
    data, flag, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(send, 1, 1, (data, flag, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen[0]}")
