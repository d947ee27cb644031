"""A thread calls quiet_pe for another PE than the one that it has put to."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def read_back(data, source, back):
    me = pgas.my_pe()
    other = 1 - me
    pgas.put_nbi(data, source, other)  #: first
    pgas.quiet_pe(other if RIGHT else me)
    pgas.get(back, data, other)  #: second


with pgas.init():
    data, source, back = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(read_back, 1, 1, (data, source, back))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read back {back.copy_to_host()}")
