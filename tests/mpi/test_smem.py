"""Bulk copies through lent shared memory: each wait of the copy is needed. The simulator performs loads and stores as late as a GPU may."""

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC
from numba import cuda

import pgas
from pgas.kernels.compiler import ptx

pytestmark = pytest.mark.skipif(not pgas.SIMULATOR or THROUGH_NIC, reason="capability missing: bulk copies of the simulator")

SIZE = 20_000


@pgas.jit
def put_through_little(dest, source):
    smem = cuda.shared.array(2048, np.uint8)
    pgas.give_smem(smem)
    pgas.put(dest, source, pgas.my_pe(), smem=smem)


def copied(heap):
    """Whether a message arrives that uses each stage again and again."""
    dest, source = heap.zeros(SIZE, np.uint8), heap.array((np.arange(SIZE) // 16 % 255 + 1).astype(np.uint8))
    pgas.barrier_all()
    put_through_little[1, 1](dest, source)
    pgas.barrier_all()
    return np.array_equal(dest.copy_to_host(), source.copy_to_host())


def test_copy_waits_for_what_it_needs(heap):
    assert copied(heap)


@pytest.mark.parametrize(
    "wait",
    [
        "bulk_landed",  # the load of a stage, before it is stored
        "bulk_wait_read",  # the store of a stage, before it is loaded again
        "bulk_wait_all",  # the last stores, before the copy returns
    ],
)
def test_copy_without_a_wait_is_wrong(heap, monkeypatch, wait):
    monkeypatch.setattr(ptx, wait, lambda *_: 1)
    assert not copied(heap)
