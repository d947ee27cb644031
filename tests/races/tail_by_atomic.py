"""Rows are stored over NVLink and their tail is raised by an atomic of the NIC, without a fence in between.

DeepEP#715: a system fence was missing where NVLink and RDMA mix; it could not be reproduced in a unit test.
"""

import sys

import numpy as np

import pgas

MISSING = "fence"
RIGHT = "right" in sys.argv
ROWS = 4


@pgas.jit
def forward(rows, tail, seen):
    if pgas.my_pe() == 0:
        for r in range(ROWS):
            pgas.p(rows, r, r + 1, 1)  #: first
        if RIGHT:
            pgas.fence()
        pgas.atomic_add(tail, 0, ROWS, 1)
    else:
        pgas.wait_until(tail, 0, pgas.GE, ROWS)
        for r in range(ROWS):
            seen[r] = rows[r]  #: second


with pgas.init():
    rows, tail, seen = pgas.zeros(ROWS, np.int64), pgas.zeros(1, np.int64), pgas.zeros(ROWS, np.int64)
    pgas.launch(forward, 1, 1, (rows, tail, seen))
    pgas.barrier_all()
    if pgas.my_pe() == 1:
        print(f"PE 1 read {seen.copy_to_host()}")
