"""The source of a put_signal_nbi is overwritten after a fence, which does not wait until it has been read."""

import sys

import numpy as np

import pgas

MISSING = "flush or quiet"
RIGHT = "right" in sys.argv
SIZE = 4


@pgas.jit
def send(data, source, signal, seen):
    other = 1 - pgas.my_pe()
    pgas.put_signal_nbi(data, source, signal, 0, 1, pgas.SIGNAL_SET, other)  #: first
    if RIGHT:
        pgas.flush()
    else:
        pgas.fence()
    for i in range(SIZE):
        source[i] = 0  #: second
    pgas.signal_wait_until(signal, 0, pgas.EQ, 1)
    for i in range(SIZE):
        seen[i] = data[i]


with pgas.init():
    data, source, seen = pgas.zeros(SIZE, np.int64), pgas.full(SIZE, 7, np.int64), pgas.zeros(SIZE, np.int64)
    signal = pgas.zeros(1, np.uint64)
    pgas.launch(send, 1, 1, (data, source, signal, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
