"""A thread takes flush for quiet: the source may be reused after it, but the data may still be in flight."""

import sys

import numpy as np

import pgas

MISSING = "quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def read_back(data, source, back):
    other = 1 - pgas.my_pe()
    pgas.put_nbi(data, source, other)  #: first
    if RIGHT:
        pgas.quiet()
    else:
        pgas.flush()
    pgas.get(back, data, other)  #: second


with pgas.init():
    data, source, back = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(read_back, 1, 1, (data, source, back))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read back {back.copy_to_host()}")
