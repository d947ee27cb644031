"""Every kind of request of a NIC transport, between all pairs of PEs, including a PE and itself: a short check of a transport.

Run this first over a real device (PGAS_HCA).
"""

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, launch_together
from numba import cuda

import pgas
from mpi.checks import DEVICE
from pgas.kernels import window

pytestmark = pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC transport (PGAS_TRANSPORT=ibgda or ibrc)")

ROUNDS = 20


def test_the_adapter_is_named(heap):
    """Perf tests print it: device and port; an engine only with the software card."""
    about = pgas.info()
    if DEVICE in ("auto", "softhca"):
        assert (about["adapter"], about["engine"] is None) == ("softhca", False)
    else:
        assert (about["adapter"].partition(":")[0], about["engine"]) == (DEVICE.partition(":")[0], None)


@pgas.jit
def put_to_all(dest, source, nelems, me, n):
    for pe in range(n):
        pgas.put(dest[me * nelems : (me + 1) * nelems], source[pe * nelems : (pe + 1) * nelems], pe)
    pgas.barrier_all()


@pgas.jit
def get_of_all(dest, source, nelems, me, n):
    for pe in range(n):
        pgas.get(dest[pe * nelems : (pe + 1) * nelems], source[me * nelems : (me + 1) * nelems], pe)


@pytest.mark.parametrize("nelems", [1, 3000])
def test_put_and_get(heap, me, n, nelems):
    source = heap.array(np.arange(n * nelems, dtype=np.int32) + 100_000 * me)
    dest = heap.zeros(n * nelems, np.int32)
    wanted = np.concatenate([np.arange(me * nelems, (me + 1) * nelems) + 100_000 * pe for pe in range(n)])
    launch_together(put_to_all, 1, 1, dest, source, nelems, me, n)
    assert (dest.copy_to_host() == wanted).all()
    pgas.barrier_all()
    dest[:] = 0
    get_of_all[1, 1](dest, source, nelems, me, n)
    pgas.barrier_all()
    assert (dest.copy_to_host() == wanted).all()


def test_a_message_longer_than_a_port_moves(heap, me, n):
    """9 MiB, in work requests of the port's max_msg_sz at most (8 MiB on Soft-RoCE)."""
    nelems = 9 << 17
    source, dest = heap.array(np.arange(nelems) + me), heap.zeros(nelems, np.int64)
    if me == 0:
        put_long[1, 1](dest, source, 1 % n)
    pgas.barrier_all()
    if me == 1 % n:
        assert (dest.copy_to_host() == np.arange(nelems)).all()


@pgas.jit
def put_long(dest, source, pe):
    pgas.put(dest, source, pe)


@pgas.jit
def store_to_all(dest, me, n, value):
    for pe in range(n):
        pgas.p(dest, 3 * me + 1, value, pe)
    pgas.barrier_all()


@pgas.jit
def fetch_of_all(found, dest, n):
    for pe in range(n):
        found[pe] = pgas.g(dest, 3 * pe + 1, pe)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.float32, np.int64, np.complex128], ids=str)
def test_p_and_g(heap, me, n, dtype):
    dest, found = heap.zeros(3 * n, dtype), heap.zeros(n, dtype)
    launch_together(store_to_all, 1, 1, dest, me, n, dtype(me + 7))
    wanted = np.zeros(3 * n, dtype)
    wanted[1::3] = np.arange(n) + 7
    assert (dest.copy_to_host() == wanted).all()
    fetch_of_all[1, 1](found, dest, n)
    assert (found.copy_to_host() == np.arange(n) + 7).all()


@pgas.jit
def add_by_all(word, seen, rounds, pe):
    for i in range(rounds):
        pgas.atomic_add(word, 1, 1, pe)
        seen[cuda.grid(1) * rounds + i] = pgas.atomic_fetch_add(word, 2, 1, pe)
    pgas.quiet()


@pytest.mark.parametrize(("dtype", "rounds"), [(np.int32, ROUNDS), (np.uint64, ROUNDS), (np.float64, 4)], ids=str)
def test_atomics_on_one_word(heap, dtype, rounds):
    """By all threads of all PEs: nothing is lost, every old value is fetched once, the neighbors are untouched.

    Few threads add floats, as that is a compare-and-swap loop.
    """
    n, threads = pgas.n_pes(), 8
    word, seen = heap.zeros(4, dtype), heap.zeros(threads * rounds, dtype)
    add_by_all[1, threads](word, seen, rounds, n - 1)
    pgas.barrier_all()
    total = n * threads * rounds
    if pgas.my_pe() == n - 1:
        assert list(word.copy_to_host()) == [0, total, total, 0]
    everyone = np.concatenate(pgas.allgather_object(seen.copy_to_host()))
    assert sorted(everyone) == list(range(total))


@pgas.jit
def send(data, source, sig, rounds, me, right, left):
    """In each round, send data with SIGNAL_SET and data with SIGNAL_ADD to the right, and wait for those from the left."""
    n = source.size
    for i in range(1, rounds + 1):
        for j in range(n):
            source[j] = 1000 * me + i
        pgas.put_signal(data[:n], source, sig, 0, i, pgas.SIGNAL_SET, right)
        pgas.put_signal_nbi(data[n:], source, sig, 1, 1, pgas.SIGNAL_ADD, right)
        pgas.signal_wait_until(sig, 0, pgas.GE, i)
        pgas.signal_wait_until(sig, 1, pgas.GE, i)
        for j in range(2 * n):
            if data[j] != 1000 * left + i:
                sig[3] = i
        pgas.barrier_all()
    pgas.signal_op(sig, 2, 40, pgas.SIGNAL_SET, right)
    pgas.signal_op(sig, 2, 2, pgas.SIGNAL_ADD, right)
    pgas.barrier_all()


def test_signals_arrive_after_their_data(heap, me, n):
    data, source, sig = heap.zeros(1024, np.int32), heap.zeros(512, np.int32), heap.zeros(4, np.uint64)
    launch_together(send, 1, 1, data, source, sig, ROUNDS, me, (me + 1) % n, (me - 1) % n)
    assert list(sig.copy_to_host()) == [ROUNDS, ROUNDS, 42, 0]


@pgas.jit
def flood(dest, source, count):
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        pgas.put_nbi(dest[i : i + 1], source[i : i + 1], i % pgas.n_pes())
    pgas.quiet()


def test_more_than_the_queues_hold(heap):
    """More puts than fit into send queues and a small ring; quiet waits for all of them."""
    me, n, blocks = pgas.my_pe(), pgas.n_pes(), 2  # each block has a queue pair to each PE
    depth = window.constants().depth
    count = blocks * n * (depth + depth // 4)
    dest, source = heap.zeros(count, np.int32), heap.array(np.arange(1, count + 1, dtype=np.int32))
    flood[blocks, 32](dest, source, count)
    pgas.barrier_all()
    wanted = np.where(np.arange(count) % n == me, np.arange(1, count + 1), 0)
    assert (dest.copy_to_host() == wanted).all()
