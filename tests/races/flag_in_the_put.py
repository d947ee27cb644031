"""The last element of a put serves as the flag of the others, but a put may arrive in any order.

DeepEP#437 relies on this order to save a round trip per message.
"""

import sys

import numpy as np

import pgas

MISSING = "put_signal or fence"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(box, source, seen):
    if pgas.my_pe() == 0:
        if RIGHT:
            pgas.put(box[:SIZE], source[:SIZE], 1)
            pgas.fence()
            pgas.p(box, SIZE, 1, 1)
        else:
            pgas.put(box, source, 1)  #: first
    else:
        pgas.wait_until(box, SIZE, pgas.EQ, 1)  # the flag
        for i in range(SIZE):
            seen[i] = box[i]  #: second


with pgas.init():
    box, source, seen = pgas.zeros(SIZE + 1, np.int64), pgas.full(SIZE + 1, 1, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(send, 1, 1, (box, source, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
