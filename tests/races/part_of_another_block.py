"""Every block reduces a part of an array and reads the part of another block, without a grid barrier."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "grid barrier"
RIGHT = "right" in sys.argv
BLOCKS, SIZE = 2, 128


@pgas.jit
def add_up(data, seen):
    block = cuda.blockIdx.x
    pgas.reduce_block(pgas.TEAM_WORLD, data, data, pgas.SUM, block, part=(block, BLOCKS))  #: first
    if RIGHT:
        cuda.cg.this_grid().sync()
    if cuda.threadIdx.x == 0:
        seen[block] = data[SIZE - 1 if block == 0 else 0]  #: second


with pgas.init():
    data, seen = pgas.full(SIZE, 1, np.int64), pgas.zeros(BLOCKS, np.int64)
    pgas.launch(add_up, BLOCKS, 32, (data, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host()}")
