"""One counter counts the chunks that have arrived, but a later chunk may be counted before an earlier one.

nvshmem#84: NVIDIA's ring-reduce example returned wrong sums over IBGDA.
"""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
CHUNKS, SIZE = 3, 4


@pgas.jit
def ring(dest, source, arrived, seen):
    if pgas.my_pe() == 0:
        for c in range(CHUNKS):
            pgas.put_signal_nbi(dest[c], source[c], arrived, 0, 1, pgas.SIGNAL_ADD, 1)  #: first
            if RIGHT:
                pgas.fence()
    else:
        for c in range(CHUNKS):
            pgas.signal_wait_until(arrived, 0, pgas.GE, c + 1)
            for i in range(SIZE):
                seen[c] += dest[c, i]  #: second


with pgas.init():
    dest, source = pgas.zeros((CHUNKS, SIZE), np.int64), pgas.full((CHUNKS, SIZE), 1, np.int64)
    arrived, seen = pgas.zeros(1, np.uint64), pgas.zeros(CHUNKS, np.int64)
    pgas.launch(ring, 1, 1, (dest, source, arrived, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 added {seen.copy_to_host()}")
