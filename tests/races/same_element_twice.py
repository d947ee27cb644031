"""A thread stores to the same element twice without a fence, so that the first value may be the last."""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv


@pgas.jit
def twice(word):
    other = 1 - pgas.my_pe()
    pgas.p(word, 0, 1, other)  #: first
    if RIGHT:
        pgas.fence()
    pgas.p(word, 0, 2, other)  #: second


with pgas.init():
    word = pgas.zeros(1, np.int64)
    pgas.launch(twice, 1, 1, (word,))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {word[0]}")
