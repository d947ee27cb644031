"""The host puts and then sends a signal without a fence in between, so that the signal may arrive before the data."""

import sys

import numpy as np

import pgas

MISSING = "put_signal or fence"
RIGHT = "right" in sys.argv

with pgas.init():
    data, source, arrived = pgas.zeros(8, np.int64), pgas.full(8, 7, np.int64), pgas.zeros(1, np.uint64)
    other = 1 - pgas.my_pe()
    pgas.put(data, source, other)  #: first
    if RIGHT:
        pgas.fence()
    pgas.signal_op(arrived, 0, 1, pgas.SIGNAL_SET, other)
    pgas.signal_wait_until(arrived, 0, pgas.EQ, 1)
    print(f"PE {pgas.my_pe()} read {data.copy_to_host().tolist()}")  #: second
    pgas.barrier_all()
