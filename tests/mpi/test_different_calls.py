"""Members of a team that make different calls: an error that names both calls, where there was a wrong result."""

import re
import time

import numpy as np
import pytest
from conformance.checks import needs_peer
from conformance.collectives import LL_BYTES

import pgas

pytestmark = needs_peer


@pgas.jit
def fcollect_block(dest, source):
    pgas.fcollect_block(0, dest, source)


@pgas.jit
def reduce_max(dest, source):
    pgas.reduce_block(0, dest, source, pgas.MAX)


@pgas.jit
def reduce_sum(dest, source):
    pgas.reduce_block(0, dest, source, pgas.SUM)


@pgas.jit
def broadcast(dest, source, root):
    pgas.broadcast_block(0, dest, source, root)


@pgas.jit
def alltoall(dest, source):
    pgas.alltoall_block(0, dest, source)


@pgas.jit
def scan(dest, source):
    pgas.inscan_block(0, dest, source, pgas.SUM)


@pgas.jit
def sync():
    pgas.team_sync_block(0)


@pgas.jit
def barrier():
    pgas.barrier_block(0)


#: What member 0 calls, and what the others call: on the host, in a kernel, and in the error. The arrays are dest and source of int32, and
#: of float32.
DIFFERENT = {
    "function": (
        (lambda d, s, f, g: pgas.fcollect(0, d, s[:4]), lambda d, s, f, g: fcollect_block[1, 32](d, s[:4]),
         "fcollect of 4 elements of int32"),
        (lambda d, s, f, g: pgas.reduce(0, d[:4], s[:4], pgas.SUM), lambda d, s, f, g: reduce_sum[1, 32](d[:4], s[:4]),
         "reduce of 4 elements of int32 with op SUM"),
    ),
    "op": (
        (lambda d, s, f, g: pgas.reduce(0, d[:4], s[:4], pgas.MAX), lambda d, s, f, g: reduce_max[1, 32](d[:4], s[:4]),
         "reduce of 4 elements of int32 with op MAX"),
        (lambda d, s, f, g: pgas.reduce(0, d[:4], s[:4], pgas.SUM), lambda d, s, f, g: reduce_sum[1, 32](d[:4], s[:4]),
         "reduce of 4 elements of int32 with op SUM"),
    ),
    "root": (
        (lambda d, s, f, g: pgas.broadcast(0, d[:4], s[:4], 0), lambda d, s, f, g: broadcast[1, 32](d[:4], s[:4], 0),
         "broadcast of 4 elements of int32 from root 0"),
        (lambda d, s, f, g: pgas.broadcast(0, d[:4], s[:4], 1), lambda d, s, f, g: broadcast[1, 32](d[:4], s[:4], 1),
         "broadcast of 4 elements of int32 from root 1"),
    ),
    "dtype": (
        (lambda d, s, f, g: pgas.alltoall(0, f, g), lambda d, s, f, g: alltoall[1, 32](f, g), "alltoall of 4 elements of float32"),
        (lambda d, s, f, g: pgas.alltoall(0, d, s), lambda d, s, f, g: alltoall[1, 32](d, s), "alltoall of 4 elements of int32"),
    ),
    "size": (
        (lambda d, s, f, g: pgas.inscan(0, d[:5], s[:5], pgas.SUM), lambda d, s, f, g: scan[1, 32](d[:5], s[:5]),
         "inscan of 5 elements of int32 with op SUM"),
        (lambda d, s, f, g: pgas.inscan(0, d[:4], s[:4], pgas.SUM), lambda d, s, f, g: scan[1, 32](d[:4], s[:4]),
         "inscan of 4 elements of int32 with op SUM"),
    ),
    "dest": (
        (lambda d, s, f, g: pgas.reduce(0, d[:4], s[:4], pgas.SUM), lambda d, s, f, g: reduce_sum[1, 32](d[:4], s[:4]),
         "reduce of 4 elements of int32 with op SUM"),
        (lambda d, s, f, g: pgas.reduce(0, d[4:8], s[:4], pgas.SUM), lambda d, s, f, g: reduce_sum[1, 32](d[4:8], s[:4]),
         "reduce of 4 elements of int32 with op SUM, with dest at another offset on the heap"),
    ),
    "barrier": (
        (lambda d, s, f, g: pgas.barrier(0), lambda d, s, f, g: barrier[1, 32](), "barrier"),
        (lambda d, s, f, g: pgas.team_sync(0), lambda d, s, f, g: sync[1, 32](), "team_sync"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("where", ["host", "kernel"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "barrier")) for name in DIFFERENT])  # it waits
def test_different_calls(heap, name, where):
    """At least one of the members that differ gets the error. After reset(), equal calls work."""
    if where == "kernel" and not pgas.SIMULATOR:
        pytest.skip("only under PGAS_DEBUG=check")
    n, me, calls = pgas.n_pes(), pgas.my_pe(), DIFFERENT[name]
    arrays = [heap.zeros(4 * n, dtype) for dtype in (np.int32, np.int32, np.float32, np.float32)]
    pgas.barrier_all()
    text = ""
    if name == "root" and me:  # Roots do not wait for other members, so the comparison can be certain only in a later call.
        pgas.barrier_all()
    try:
        calls[min(me, 1)][("host", "kernel").index(where)](*arrays)
        pgas.synchronize()
    except pgas.DeviceError as error:
        text = str(error)
    if name == "root" and not me:
        pgas.barrier_all()
    pgas.reset()
    texts = pgas.allgather_object(text)
    here, there = (call[2] for call in calls)
    pairs = (here, there), (there, here)
    assert any(f"calls pgas.{a}, but this PE calls pgas.{b}; all members" in said for a, b in pairs for said in texts), texts
    dest, source = arrays[:2]
    calls[0][0](*arrays)
    pgas.reduce(0, dest[:4], source[:4], pgas.SUM)
    assert dest.copy_to_host()[:4].tolist() == [0] * 4


@pgas.jit
def meets(completes):
    if completes:
        pgas.barrier_all_block()
    else:
        pgas.sync_all_block()


@pytest.mark.skipif(not pgas.SIMULATOR, reason="only under PGAS_DEBUG=check")
def test_barrier_all_and_sync_all_in_kernels(heap, me, n):
    """Calls of even and odd numbers are compared, and equal ones are no error."""
    for turn in range(4):
        pgas.launch(meets, 1, 32, (turn % 2,))
        if n > 1 and turn:
            text = ""
            try:
                meets[1, 32](min(me, 1))
                pgas.synchronize()
            except pgas.DeviceError as error:
                text = str(error)
            pgas.reset()
            texts = "".join(pgas.allgather_object(text))
            assert re.search(r"calls pgas\.(barrier|sync)_all, but this PE calls pgas\.(?!\1)(barrier|sync)_all; all members", texts), texts


@pytest.mark.slow  # it waits for PGAS_TIMEOUT
def test_scans_in_different_numbers_of_rounds(heap):
    """Member 0 takes two rounds, of which the others, which come later, take one: they have the first round's call to compare."""
    me, words = pgas.my_pe(), LL_BYTES // 8
    size = words * (1 if me else 2)
    source, dest = heap.zeros(2 * words, np.int64), heap.zeros(2 * words, np.int64)
    pgas.barrier_all()
    time.sleep(0.2 if me else 0)
    text = ""
    try:
        pgas.inscan(0, dest[:size], source[:size], pgas.SUM)
        pgas.synchronize()
    except pgas.DeviceError as error:
        text = str(error)
    pgas.reset()
    texts = pgas.allgather_object(text)
    assert any(f"calls pgas.inscan of {2 * words} elements" in said for said in texts), texts
