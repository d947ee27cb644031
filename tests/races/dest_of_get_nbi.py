"""The destination of a get_nbi is read before quiet."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def fetch(dest, source, seen):
    pgas.get_nbi(dest, source, 1 - pgas.my_pe())  #: first
    if RIGHT:
        pgas.quiet()
    for i in range(SIZE):
        seen[i] = dest[i]  #: second


with pgas.init():
    dest, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(fetch, 1, 1, (dest, source, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
