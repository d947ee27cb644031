"""A thread stores to its own PE by p and loads the element without a quiet, but p may take the way over the NIC."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv


@pgas.jit
def to_myself(mail, seen):
    pgas.p(mail, 0, 7, pgas.my_pe())  #: first
    if RIGHT:
        pgas.quiet()
    seen[0] = mail[0]  #: second


with pgas.init():
    mail, seen = pgas.zeros(1, np.int64), pgas.zeros(1, np.int64)
    pgas.launch(to_myself, 1, 1, (mail, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen[0]}")
