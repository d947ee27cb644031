"""Kernels on a GPU that sees a NIC's writes out of order, as an A100 may: data becomes visible after its completion.

The software card delays the last bytes of each write (late= of PGAS_SOFTHCA_FAULTS). With PGAS_NIC_ORDERING=none kernels see all data.
Without it some must see old data, which shows that the card delays it and that the test notices. With
two paths, data from near PEs is never late.
"""

import numpy as np
import pytest
from conformance.checks import TRANSPORT, everywhere, launch_together, neighbours
from numba import cuda

import pgas
from mpi.checks import needs_card, observer
from pgas.base import config
from pgas.kernels import window

PATHS = TRANSPORT.split(",")

pytestmark = [
    needs_card,
    pytest.mark.skipif(PATHS[-1] not in ("ibgda", "ibrc"), reason="capability missing: a NIC"),
    pytest.mark.skipif(len(PATHS) > 1 and config.read("PGAS_NIC_ORDERING") != "none", reason="capability missing: a NIC as the only path"),
    pytest.mark.skipif(not pgas.SIMULATOR, reason="capability missing: a card that delays data; its kernel on a GPU does not"),
]

N_ELEMS, LANES = 32, 32
#: Rounds without any old data, and rounds within which some must be seen: by chance a flag may be later than its data.
SETTLED, UNSETTLED = 4, 40
WORLD = int(pgas.TEAM_WORLD)


@cuda.jit(device=True)
def count_old(dest, wrong, value):
    cuda.syncthreads()
    if dest[cuda.threadIdx.x] != value:
        cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def get(dest, source, sig, wrong, pe, value):
    pgas.get_block(dest, source, pe)
    count_old(dest, wrong, value)


@pgas.jit
def get_of_each_lane(dest, source, sig, wrong, pe, value):
    i = cuda.threadIdx.x
    pgas.get(dest[i:], source[i:], pe, 1)
    count_old(dest, wrong, value)


@pgas.jit
def get_nbi(dest, source, sig, wrong, pe, value):
    pgas.get_nbi_block(dest, source, pe)
    if cuda.threadIdx.x == 0:
        pgas.quiet()
    count_old(dest, wrong, value)


@pgas.jit
def get_nbi_of_a_pe(dest, source, sig, wrong, pe, value):
    pgas.get_nbi_block(dest, source, pe)
    if cuda.threadIdx.x == 0:
        pgas.quiet_pe(pe)
    count_old(dest, wrong, value)


@pgas.jit
def iget(dest, source, sig, wrong, pe, value):
    pgas.iget_block(dest, source, 1, 1, pe)
    count_old(dest, wrong, value)


@pgas.jit
def g(dest, source, sig, wrong, pe, value):
    if pgas.g(source, cuda.threadIdx.x, pe) != value:
        cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def g_of_every_other(dest, source, sig, wrong, pe, value):
    i = cuda.threadIdx.x
    if pgas.g(source, 5 * i % 32, pe) != value:
        cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def atomic_fetch(dest, source, sig, wrong, pe, value):
    if pgas.atomic_fetch(source, cuda.threadIdx.x, pe) != value:
        cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def atomic_fetch_or(dest, source, sig, wrong, pe, value):
    if pgas.atomic_fetch_or(source, cuda.threadIdx.x, 0, pe) != value:
        cuda.atomic.add(wrong, 0, 1)


@pgas.jit
def put_to_itself(dest, source, sig, wrong, pe, value):
    pgas.put_block(dest, source, pgas.my_pe())
    if cuda.threadIdx.x == 0:
        pgas.quiet()
    count_old(dest, wrong, value)


@pgas.jit
def signal_wait_until(dest, source, sig, wrong, pe, value):
    pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        pgas.signal_wait_until(sig, 0, pgas.GE, value)
    count_old(dest, wrong, value)


@pgas.jit
def signal_fetch(dest, source, sig, wrong, pe, value):
    pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        while pgas.signal_fetch(sig, 0) < value:
            pass
    count_old(dest, wrong, value)


@pgas.jit
def poll(dest, source, sig, wrong, pe, value):
    pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        while not pgas.test(sig, 0, pgas.GE, value):
            pass
    count_old(dest, wrong, value)


@pgas.jit
def wait_until_any(dest, source, sig, wrong, pe, value):
    pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)
    if cuda.threadIdx.x == 0:
        pgas.wait_until_any(sig, None, pgas.GE, value)
    count_old(dest, wrong, value)


@pgas.jit
def barrier_all(dest, source, sig, wrong, pe, value):
    pgas.put_nbi_block(dest, source, pe)
    pgas.barrier_all_block()
    count_old(dest, wrong, value)


@pgas.jit
def broadcast(dest, source, sig, wrong, pe, value):
    pgas.broadcast_block(WORLD, dest, source, value % pgas.n_pes())
    count_old(dest, wrong, value)


@pgas.jit
def reduce(dest, source, sig, wrong, pe, value):
    pgas.reduce_block(WORLD, dest, source, pgas.SUM)
    count_old(dest, wrong, value * pgas.n_pes())


@pgas.jit
def fcollect(dest, source, sig, wrong, pe, value):
    size = source.size // pgas.n_pes()
    pgas.fcollect_block(WORLD, dest, source[:size])
    cuda.syncthreads()
    if cuda.threadIdx.x < size * pgas.n_pes() and dest[cuda.threadIdx.x] != value:
        cuda.atomic.add(wrong, 0, 1)


#: Over ibrc these fetch into host memory, where the card delays nothing.
INTO_THE_HOST = (g, g_of_every_other, atomic_fetch, atomic_fetch_or)
KERNELS = (
    get, get_of_each_lane, get_nbi, get_nbi_of_a_pe, iget, *INTO_THE_HOST, put_to_itself, signal_wait_until, signal_fetch, poll,
    wait_until_any, barrier_all, broadcast, reduce, fcollect,
)  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_data_behind_its_completion(heap, kernel):
    """Each round moves its number, in all elements."""
    _, _, right, _ = neighbours()
    dest, source = heap.zeros(N_ELEMS, np.int64), heap.zeros(N_ELEMS, np.int64)
    sig, wrong = heap.zeros(1, np.uint64), heap.zeros(1, np.int32)
    settled = window.constants().settles or ("ibrc" in PATHS and kernel in INTO_THE_HOST)
    value, old = 0, 0
    pgas.barrier_all()
    if pgas.my_pe() == 0:
        observer().set_faults("seed=7,late=1,hold=65535")
    pgas.barrier_all()
    try:
        while old == 0 and value < (SETTLED if settled else UNSETTLED):
            value += 1
            source.copy_to_device(np.full(N_ELEMS, value))
            pgas.barrier_all()
            launch_together(kernel, 1, LANES, dest, source, sig, wrong, right, value)
            pgas.barrier_all()
            old = sum(pgas.allgather_object(int(wrong.copy_to_host()[0])))
    finally:
        if pgas.my_pe() == 0:
            observer().set_faults("")
    everywhere(None if (old == 0) == settled else f"{old} old elements were seen in {value} rounds")
