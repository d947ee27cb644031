"""A PE stores to a word of its own while another PE puts to the same word."""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def both(word):
    if pgas.my_pe() == 1:
        word[0] = 1  #: first
    if RIGHT:
        pgas.barrier_all()
    if pgas.my_pe() == 0:
        pgas.p(word, 0, 2, 1)  #: second


with pgas.init():
    word = pgas.zeros(1, np.int64)
    pgas.launch(both, 1, 1, (word,))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 has {word[0]}")
