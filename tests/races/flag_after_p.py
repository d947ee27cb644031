"""Elements and their flag are sent with p without a fence, so that the flag may arrive first."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(data, flag, seen):
    if pgas.my_pe() == 0:
        for i in range(SIZE):
            pgas.p(data, i, 7, 1)  #: first
        if RIGHT:
            pgas.fence()
        pgas.p(flag, 0, 1, 1)
    else:
        pgas.wait_until(flag, 0, pgas.EQ, 1)
        for i in range(SIZE):
            seen[i] = data[i]  #: second


with pgas.init():
    data, flag, seen = pgas.zeros(SIZE, np.int32), pgas.zeros(1, np.int32), pgas.zeros(SIZE, np.int32)
    pgas.launch(send, 1, 1, (data, flag, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
