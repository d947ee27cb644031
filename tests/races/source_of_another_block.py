"""A block gathers what another block has written, without a grid barrier."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "grid barrier"
RIGHT = "right" in sys.argv
SIZE = 32


@pgas.jit
def gather(dest, source):
    if cuda.blockIdx.x == 1:
        source[cuda.threadIdx.x] = pgas.my_pe() + 1  #: first
    if RIGHT:
        cuda.cg.this_grid().sync()
    if cuda.blockIdx.x == 0:
        pgas.fcollect_block(pgas.TEAM_WORLD, dest, source)  #: second


with pgas.init():
    dest, source = pgas.zeros(SIZE * pgas.n_pes(), np.int64), pgas.zeros(SIZE, np.int64)
    pgas.launch(gather, 2, SIZE, (dest, source))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} gathered {dest.copy_to_host()[::SIZE]}")
