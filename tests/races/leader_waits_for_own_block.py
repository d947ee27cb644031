"""One thread of a block waits for messages that the block has also sent to itself, but the other threads read without meeting it."""

import sys

import numpy as np

import pgas
from pgas import cuda

MISSING = "syncthreads"
RIGHT = "right" in sys.argv
THREADS = 32


@pgas.jit
def exchange(inbox, source, arrived, seen):
    thread, n = cuda.threadIdx.x, pgas.n_pes()
    for pe in range(n):
        for part in range(2):
            pgas.put_signal_block(inbox[pgas.my_pe(), part], source, arrived, 0, 1, pgas.SIGNAL_ADD, pe)  #: first
    if thread == 0:
        pgas.signal_wait_until(arrived, 0, pgas.EQ, 2 * n)
    if RIGHT:
        cuda.syncthreads()
    seen[thread] = inbox[pgas.my_pe(), 0, thread]  #: second


with pgas.init():
    inbox, source = pgas.zeros((pgas.n_pes(), 2, THREADS), np.int64), pgas.full(THREADS, 7, np.int64)
    arrived, seen = pgas.zeros(1, np.uint64), pgas.zeros(THREADS, np.int64)
    pgas.launch(exchange, 1, THREADS, (inbox, source, arrived, seen))
    pgas.barrier_all()
    print(f"PE {pgas.my_pe()} read {seen.copy_to_host().sum()}")
