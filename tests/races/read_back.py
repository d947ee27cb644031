"""A thread reads back by g what it has just stored by p, without a quiet, and may get the old value."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv


@pgas.jit
def read_back(word, seen):
    other = 1 - pgas.my_pe()
    pgas.p(word, 0, 7, other)  #: first
    if RIGHT:
        pgas.quiet()
    seen[0] = pgas.g(word, 0, other)  #: second


with pgas.init():
    word, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(read_back, 1, 1, (word, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read back {seen[0]}")
