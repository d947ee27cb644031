"""The host reads what a peer's kernel has sent after synchronize, which waits for this PE's kernels only."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def send(inbox):
    pgas.p(inbox, 0, 7, 1 - pgas.my_pe())  #: first


with pgas.init():
    inbox = pgas.zeros(1, np.int64)
    send[1, 1](inbox)
    if RIGHT:
        pgas.barrier_all()
    else:
        pgas.synchronize()
    seen = int(inbox[0])  #: second
    print(f"PE {pgas.my_pe()} read {seen}")
