"""Kernels on a GPU that sees a NIC's writes out of order, as an A100 may: data becomes visible after its completion.

The software card delays the last bytes of each write (late= of PGAS_SOFTHCA_FAULTS). With PGAS_NIC_ORDERING=none kernels see all data.
Without it some must see old data, which shows that the card delays it and that the test notices. With
two paths, data from near PEs is never late.
"""

import numpy as np
import pytest
from conformance.checks import TRANSPORT, everywhere, kernel_of, launch_together
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
#: Rounds without any old data, and rounds within which some must be seen: by chance, and on a busy machine, a flag is later than its data.
SETTLED, UNSETTLED = 4, 400
WORLD = int(pgas.TEAM_WORLD)


@cuda.jit(device=True)
def count_old(dest, wrong, value):
    cuda.syncthreads()
    if dest[cuda.threadIdx.x] != value:
        cuda.atomic.add(wrong, 0, 1)


#: By name: the lines of a kernel, in which t is the thread; count_old comes behind them unless they count themselves.
KERNELS = {
    "get": ["pgas.get_block(dest, source, pe)"],
    "get_of_each_lane": ["pgas.get(dest[t:], source[t:], pe, 1)"],
    "get_nbi": ["pgas.get_nbi_block(dest, source, pe)", "if t == 0: pgas.quiet()"],
    "get_nbi_of_a_pe": ["pgas.get_nbi_block(dest, source, pe)", "if t == 0: pgas.quiet_pe(pe)"],
    "iget": ["pgas.iget_block(dest, source, 1, 1, pe)"],
    "g": ["if pgas.g(source, t, pe) != value: cuda.atomic.add(wrong, 0, 1)"],
    "g_of_every_other": ["if pgas.g(source, 5 * t % 32, pe) != value: cuda.atomic.add(wrong, 0, 1)"],
    "atomic_fetch": ["if pgas.atomic_fetch(source, t, pe) != value: cuda.atomic.add(wrong, 0, 1)"],
    "atomic_fetch_or": ["if pgas.atomic_fetch_or(source, t, 0, pe) != value: cuda.atomic.add(wrong, 0, 1)"],
    "put_to_itself": ["pgas.put_block(dest, source, pgas.my_pe())", "if t == 0: pgas.quiet()"],
    "signal_wait_until": [
        "pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)",
        "if t == 0: pgas.signal_wait_until(sig, 0, pgas.GE, value)",
    ],
    "signal_fetch": [
        "pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)",
        "while t == 0 and pgas.signal_fetch(sig, 0) < value: pass",
    ],
    "poll": [
        "pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)",
        "while t == 0 and not pgas.test(sig, 0, pgas.GE, value): pass",
    ],
    "wait_until_any": [
        "pgas.put_signal_block(dest, source, sig, 0, value, pgas.SIGNAL_SET, pe)",
        "if t == 0: pgas.wait_until_any(sig, None, pgas.GE, value)",
    ],
    "barrier_all": ["pgas.put_nbi_block(dest, source, pe)", "pgas.barrier_all_block()"],
    "broadcast": ["pgas.broadcast_block(WORLD, dest, source, value % pgas.n_pes())"],
    "reduce": ["pgas.reduce_block(WORLD, dest, source, pgas.SUM)", "count_old(dest, wrong, value * pgas.n_pes())"],
    "fcollect": [
        "size = source.size // pgas.n_pes()",
        "pgas.fcollect_block(WORLD, dest, source[:size])",
        "cuda.syncthreads()",
        "if t < size * pgas.n_pes() and dest[t] != value: cuda.atomic.add(wrong, 0, 1)",
    ],
}

#: Over ibrc these fetch into host memory, where the card delays nothing.
INTO_THE_HOST = ("g", "g_of_every_other", "atomic_fetch", "atomic_fetch_or")


@pytest.mark.parametrize("name", KERNELS)
def test_data_behind_its_completion(heap, right, name):
    """Each round moves its number, in all elements."""
    dest, source = heap.zeros(N_ELEMS, np.int64), heap.zeros(N_ELEMS, np.int64)
    sig, wrong = heap.zeros(1, np.uint64), heap.zeros(1, np.int32)
    settled = window.constants().settles or ("ibrc" in PATHS and name in INTO_THE_HOST)
    lines = KERNELS[name] if "wrong" in KERNELS[name][-1] else [*KERNELS[name], "count_old(dest, wrong, value)"]
    names = {"count_old": count_old, "WORLD": WORLD}
    kernel = kernel_of("dest, source, sig, wrong, pe, value", "t = cuda.threadIdx.x", *lines, **names)
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
