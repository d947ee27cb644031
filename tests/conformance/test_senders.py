"""Signals of several senders, and what a signal does not guarantee."""

import numpy as np
from numba import cuda

from conformance import library as pgas
from conformance.checks import checklist, equal, launch_together

ROUNDS = 5 if pgas.SIMULATOR else 100
CHUNK = 50


@pgas.jit
def put_then_signal(dest, source, sig, wrong, rounds, right, left):
    """A put, a fence, then a signal without data: only the fence orders the signal after the put."""
    t, me = cuda.threadIdx.x, pgas.my_pe()
    for r in range(1, rounds + 1):
        for i in range(t, source.size, cuda.blockDim.x):
            source[i] = 1000 * me + 10 * r
        pgas.put_nbi_block(dest, source, right)
        cuda.syncthreads()
        if t == 0:
            pgas.fence()
            pgas.signal_op(sig, 0, r, pgas.SIGNAL_SET, right)
            pgas.signal_wait_until(sig, 0, pgas.GE, r)
        cuda.syncthreads()
        for i in range(t, dest.size, cuda.blockDim.x):
            if dest[i] != 1000 * left + 10 * r:
                cuda.atomic.add(wrong, 0, 1)
        pgas.barrier_all_block()


@checklist("Signals", "earlier puts need a fence")
def test_a_fence_orders_a_signal_after_earlier_puts(heap, right, left):
    dest, source = heap.zeros(CHUNK, np.int64), heap.zeros(CHUNK, np.int64)
    sig, wrong = heap.zeros(1, np.uint64), heap.zeros(1, np.int32)
    launch_together(put_then_signal, 1, 32, dest, source, sig, wrong, ROUNDS, right, left)
    equal(wrong, np.zeros(1, np.int32), "elements that came after their signal")


@pgas.jit
def ring_reduce(total, box, sig, wrong, rounds):
    """Every PE sends to all PEs. A receiver adds the senders' data in the order of PEs, and waits for each sender's own signal word.

    A common word that all senders add to would only say how many messages have arrived, not which: messages of different PEs, and
    non-blocking ones of the same PE, arrive in any order.
    """
    me, n, t = pgas.my_pe(), pgas.n_pes(), cuda.threadIdx.x
    for r in range(1, rounds + 1):
        for pe in range(n):
            pgas.put_signal_nbi_block(box[me], total[me], sig, me, 1, pgas.SIGNAL_ADD, pe)
        for pe in range(n):
            if t == 0:
                pgas.signal_wait_until(sig, pe, pgas.GE, r)
            cuda.syncthreads()
            for i in range(t, box.shape[1], cuda.blockDim.x):
                if box[pe, i] != 100 * pe + i:
                    cuda.atomic.add(wrong, 0, 1)
        pgas.barrier_all_block()


@checklist("Signals", "a sum does not say which sender came", "set and add")
def test_a_word_for_each_sender(heap, me, n):
    total, box = heap.zeros((n, CHUNK), np.int32), heap.zeros((n, CHUNK), np.int32)
    total[me].copy_to_device(100 * me + np.arange(CHUNK, dtype=np.int32))
    sig, wrong = heap.zeros(n, np.uint64), heap.zeros(1, np.int32)
    launch_together(ring_reduce, 1, 40, total, box, sig, wrong, ROUNDS)
    equal(wrong, np.zeros(1, np.int32))
    equal(sig, np.full(n, ROUNDS, np.uint64))
