"""The source of a put_nbi is overwritten while the put may still read it."""

import sys

import numpy as np

import pgas

MISSING = "flush or quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(data, source):
    other = 1 - pgas.my_pe()
    pgas.put_nbi(data, source, other)  #: first
    if RIGHT:
        pgas.flush()
    for i in range(SIZE):
        source[i] = 0  #: second


with pgas.init():
    data, source = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64)
    pgas.launch(send, 1, 1, (data, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} received {data.copy_to_host()}")
