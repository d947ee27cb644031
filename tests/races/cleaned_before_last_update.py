"""The counter of the last round is cleared while an update from that round may still be in flight.

DeepEP#310: head updates arrived after the buffers had been cleaned, and led to data errors and hangs.
"""

import sys

import numpy as np

import pgas

MISSING = "barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def dispatch(head):
    pgas.atomic_inc(head, 0, 1 - pgas.my_pe())  #: first


@pgas.jit
def clean(head):
    head[0] = 0  #: second


with pgas.init():
    head = pgas.zeros(1, np.int64)
    dispatch[1, 1](head)
    if RIGHT:
        pgas.barrier_all()
    else:
        pgas.synchronize()
        pgas.sync_all()
    clean[1, 1](head)
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} has {head[0]}")
