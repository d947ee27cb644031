"""One block overwrites a line that all blocks read, and no grid barrier separates the two.

pytorch#192300: suspected in all-to-all with counts on the device, whose source offsets and results share a line.
"""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "grid barrier"
RIGHT = "right" in sys.argv


@pgas.jit
def offsets(line, seen):
    block = cuda.blockIdx.x
    seen[block] = line[0]  #: first
    if RIGHT:
        cuda.cg.this_grid().sync()
    if block == 0:
        line[0] = 9  #: second


with pgas.init():
    line, seen = pgas.full(1, 7, np.int64), pgas.zeros(4, np.int64)
    pgas.launch(offsets, 4, 1, (line, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
