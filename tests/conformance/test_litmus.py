"""Litmus tests with all PEs: outcomes that no order of the operations explains must not occur."""

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import checklist, equal, everywhere, launch_together, needs_peer

ROUNDS = 20 if pgas.SIMULATOR else 2000


@pgas.jit
def load_then_store(x, found, rounds, right):
    """Each PE fetches the word that its left neighbor stores, and then stores its own at its right neighbor."""
    me = pgas.my_pe()
    for r in range(rounds):
        pgas.sync_all()
        found[r] = pgas.g(x, r, me)
        pgas.quiet()
        pgas.p(x, r, 1, right)


@needs_peer
@checklist("Order", "load buffering")
@pytest.mark.pgas_unordered("the load and the store of a round race on purpose")
def test_load_buffering(heap, right):
    """Each PE stores after its load, so not all loads can have seen a store."""
    x, found = heap.zeros(ROUNDS, np.int32), heap.zeros(ROUNDS, np.int32)
    launch_together(load_then_store, 1, 1, x, found, ROUNDS, right)
    pgas.barrier_all()
    seen = np.sum(pgas.allgather_object(found.copy_to_host()), axis=0)
    everywhere(f"values out of thin air in rounds {np.flatnonzero(seen == pgas.n_pes())}" if (seen == pgas.n_pes()).any() else None)
    equal(x, np.ones(ROUNDS, np.int32))


@pgas.jit
def write_to_all_then_flag(data, flag, wrong, rounds):
    """In round r PE r % n writes to all PEs and sets their flags; each PE checks its data."""
    me, n = pgas.my_pe(), pgas.n_pes()
    for r in range(rounds):
        if r % n == me:
            for pe in range(n):
                pgas.p(data, 2 * r, r + 1, pe)
                pgas.p(data, 2 * r + 1, -r - 1, pe)
            pgas.fence()
            for pe in range(n):
                pgas.p(flag, r, 1, pe)
        pgas.wait_until(flag, r, pgas.EQ, 1)
        if data[2 * r] != r + 1 or data[2 * r + 1] != -r - 1:
            cuda.atomic.add(wrong, 0, 1)


@checklist("Order", "message passing", "waits acquire what a NIC wrote")
def test_every_pe_tells_all_others(heap):
    """Plain loads after wait_until() see the data before the flag."""
    data, flag, wrong = heap.zeros(2 * ROUNDS, np.int64), heap.zeros(ROUNDS, np.int32), heap.zeros(1, np.int32)
    launch_together(write_to_all_then_flag, 1, 1, data, flag, wrong, ROUNDS)
    equal(wrong, np.zeros(1, np.int32), "flags that came before their data")


@pgas.jit
def put_by_two_queues(dest, source, flag, wrong, rounds, right, left):
    """Data on one queue pair, fence, flag on another. A PE starts its turn after the flag of the previous one."""
    n = source.size
    for r in range(1, rounds + 1):
        for i in range(n):
            source[i] = 1000 * pgas.my_pe() + r
        pgas.put_nbi(dest, source, right, None, 1)
        pgas.fence()
        pgas.p(flag, 0, r, right, 2)
        pgas.wait_until(flag, 0, pgas.GE, r)
        for i in range(n):
            if dest[i] != 1000 * left + r:
                cuda.atomic.add(wrong, 0, 1)
        pgas.barrier_all()


@checklist("Order", "fence orders puts, across queues")
def test_fence_orders_puts_of_different_queues(heap, right, left):
    dest, source = heap.zeros(65, np.int64), heap.zeros(65, np.int64)
    flag, wrong = heap.zeros(1, np.int64), heap.zeros(1, np.int32)
    launch_together(put_by_two_queues, 1, 1, dest, source, flag, wrong, ROUNDS, right, left)
    equal(wrong, np.zeros(1, np.int32), "flags that came before their data")


@pgas.jit
def put_by_all_then_one_quiet(dest, source, done, pe):
    """Every block puts. The last block, which has acquired what the others did, calls quiet for all and signals the target."""
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    size = source.size // cuda.gridDim.x
    pgas.put_nbi_block(dest[b * size : (b + 1) * size], source[b * size : (b + 1) * size], pe)
    cuda.syncthreads()
    if t == 0:
        cuda.threadfence()
        if cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence()
            pgas.quiet()
            pgas.atomic_add(done, 1, 1, pe)
            pgas.wait_until(done, 1, pgas.GE, 1)


@checklist("Order", "quiet completes what happened before it")
def test_one_quiet_for_all_blocks(heap, me, right, left):
    dest, source, done = heap.zeros(400, np.int32), heap.array(np.arange(400, dtype=np.int32) + 1000 * me), heap.zeros(2, np.int32)
    launch_together(put_by_all_then_one_quiet, 4, 32, dest, source, done, right)
    equal(dest, np.arange(400, dtype=np.int32) + 1000 * left)
