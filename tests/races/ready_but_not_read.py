"""A PE overwrites what its peer may still be getting: the peer knows when it is ready, but nobody says when it has been read.

tokenspeed#1017, aiter#3514, aiter#4082: inputs of a custom all-reduce were reused while peers still read them.
"""

import sys

import numpy as np

import pgas

MISSING = "wait"
RIGHT = "right" in sys.argv
ROUNDS = 3


@pgas.jit
def publish(mine, ready, done, seen):
    for r in range(ROUNDS):
        if pgas.my_pe() == 0:
            if RIGHT:
                pgas.signal_wait_until(done, 0, pgas.GE, r)
            mine[0] = r + 1  #: second
            pgas.fence()
            pgas.signal_op(ready, 0, r + 1, pgas.SIGNAL_SET, 1)
        else:
            pgas.signal_wait_until(ready, 0, pgas.GE, r + 1)
            seen[r] = pgas.g(mine, 0, 0)  #: first
            if RIGHT:
                pgas.signal_op(done, 0, r + 1, pgas.SIGNAL_SET, 0)


with pgas.init():
    mine, seen = pgas.zeros(1, np.int64), pgas.zeros(ROUNDS, np.int64)
    ready, done = pgas.zeros(1, np.uint64), pgas.zeros(1, np.uint64)
    pgas.launch(publish, 1, 1, (mine, ready, done, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 got {seen.copy_to_host()}")
