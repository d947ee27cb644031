"""A staging buffer is filled with the next chunk while the put of the last one may still read it.

DeepEP#657: the next TMA load overwrote the stage of a store in flight.
"""

import sys

import numpy as np

import pgas

MISSING = "flush or quiet"
RIGHT = "right" in sys.argv
CHUNKS, SIZE = 3, 4


@pgas.jit
def copy(dest, chunks, stage):
    other = 1 - pgas.my_pe()
    for c in range(CHUNKS):
        pgas.get(stage, chunks[c], other)  #: second
        pgas.put_nbi(dest[c], stage, other)  #: first
        if RIGHT:
            pgas.flush()


with pgas.init():
    dest, chunks = pgas.zeros((CHUNKS, SIZE), np.int64), pgas.array(np.arange(CHUNKS * SIZE).reshape(CHUNKS, SIZE))
    stage = pgas.zeros(SIZE, np.int64)
    pgas.launch(copy, 1, 1, (dest, chunks, stage))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {dest.copy_to_host()[:, 0]}")
