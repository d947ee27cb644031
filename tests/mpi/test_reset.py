"""pgas.reset(): after an error of a kernel or the NIC, every launch and call raises it again until all PEs have called reset."""

import contextlib
import re

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, TRANSPORT, equal, neighbors, put_whole
from numba import cuda

import pgas
from pgas.job import runtime
from pgas.kernels import layout
from pgas.transports.ibrc import tables, work_requests

if pgas.SIMULATOR:
    from pgas.kernels.compiler import cpu

N = 300


@pgas.jit
def waits(word):
    pgas.signal_wait_until(word, 0, pgas.GE, 1 << 40)


@pgas.jit
def puts_nbi(dest, source, pe):
    pgas.put_nbi_block(dest, source, pe)


@pgas.jit
def moves(dest, source, back, counter, word, old, left, right):
    i = cuda.threadIdx.x
    pgas.put_signal_block(dest, source, word, 0, 1, pgas.SIGNAL_ADD, right)
    if i == 0:
        pgas.signal_wait_until(word, 0, pgas.GE, 1)
    cuda.syncthreads()
    pgas.get_block(back, dest, right)
    old[i] = pgas.atomic_fetch_add(counter, 0, 1, right)
    pgas.barrier_all_block()
    pgas.p(dest, i, 7, left)
    pgas.sync_all_block()


def works(heap):
    """Check that every kind of operation works between all PEs."""
    me, n, right, left = neighbors()
    dest, source, back = heap.zeros(N, np.int32), heap.array(np.arange(N, dtype=np.int32) + 1000 * me), heap.zeros(N, np.int32)
    counter, word, old = heap.zeros(1, np.uint64), heap.zeros(1, np.uint64), heap.zeros(64, np.uint64)
    pgas.launch(moves, 1, 64, (dest, source, back, counter, word, old, left, right))
    pgas.barrier_all()
    equal(back, source)
    equal(np.sort(old.copy_to_host()), np.arange(64, dtype=np.uint64))
    expected = np.arange(N, dtype=np.int32) + 1000 * left
    expected[:64] = 7
    equal(dest, expected)
    equal(word, np.ones(1, np.uint64))
    pgas.put(dest, source, right)
    pgas.barrier_all()
    equal(dest, np.arange(N, dtype=np.int32) + 1000 * left)
    assert pgas.allgather_object(me) == list(range(n))


def raised(call, *args):
    def complete():
        call(*args)
        pgas.synchronize()

    with pytest.raises(pgas.PgasError) as caught:
        complete()
    return type(caught.value), str(caught.value)


def refuses_everything(first, *arrays):
    calls = (
        (waits[1, 1], arrays[2]),
        (pgas.barrier_all,),
        (pgas.sync_all,),
        (pgas.zeros, 3),
        (pgas.put, *arrays[:2], 0),
        (pgas.synchronize,),
    )
    for call, *args in calls:
        assert raised(call, *args) == first


@contextlib.contextmanager
def changed(address, word):
    memory = runtime.current().memory
    before = memory.read(address, 8)
    memory.write(address, word.to_bytes(8, "little"))
    forget()
    try:
        yield
    finally:
        memory.write(address, before)
        forget()


def forget():
    """Drop the simulator's cached copies of such words."""
    if pgas.SIMULATOR:
        cpu.read_again()


def deadline(seconds):
    """Set the deadline of waits in this PE's kernels."""
    return changed(layout.TIMEOUT_NS, int(seconds * 1e9))


def unreachable_heap():
    """Give the NIC a wrong key for this PE's heap."""
    nic = runtime.current().nic
    if "ibgda" in TRANSPORT:
        return changed(layout.LKEY, nic._load(layout.LKEY) ^ 0x100)
    if hasattr(nic, "adapter"):
        nic._own[tables.LKEY // 8] ^= 0x100  # which reset() sets again
    else:
        nic._tables[-1][0, work_requests.PIECE_KEY // 8] ^= 0x100  # the pieces of this PE's heap, which reset() makes again
    return contextlib.nullcontext()


@pytest.mark.parametrize("whose", ["of one PE", "of all PEs"])
def test_wait_past_its_deadline(heap, me, whose):
    """Meanwhile, kernels of the other PEs wait for data that never comes; reset ends them."""
    kept = heap.array(np.arange(N) * (me + 1))
    dest, source, word = heap.zeros(4), heap.zeros(4), heap.zeros(1, np.uint64)
    for _ in range(2):
        pgas.barrier_all()
        if me == 0 or whose == "of all PEs":
            with deadline(0.2):
                first = raised(waits[1, 1], word)
                assert first[0] is pgas.DeviceError
                assert f"PE {me}, block 0, thread 0: signal_wait_until waited" in first[1]
                refuses_everything(first, dest, source, word)
        elif not pgas.SIMULATOR:
            waits[1, 1](word)
        pgas.reset()
        works(heap)
        equal(kept, np.arange(N) * (me + 1))


@pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC transport (PGAS_TRANSPORT=ibgda or ibrc)")
@pytest.mark.parametrize("kernel", [put_whole, puts_nbi])
def test_completion_error(heap, kernel):
    """The WQEs behind it are flushed. Afterwards, queue pairs of other PEs that the error broke work again, too."""
    me, last = pgas.my_pe(), pgas.n_pes() - 1  # with two paths, the last PE is the farthest
    dest, source, word = heap.zeros(N, np.int32), heap.zeros(N, np.int32), heap.zeros(1, np.uint64)
    for _ in range(2):
        pgas.barrier_all()
        if me == 0:
            with unreachable_heap():
                kind, text = first = raised(lambda: [kernel[1, 32](dest, source, last), pgas.barrier_all()])
                assert kind is pgas.CompletionError
                assert f"queue pair 1 to PE {last} " in text
                refuses_everything(first, dest, source, word)
        pgas.reset()
        works(heap)


def test_job_without_an_error(heap):
    """Nothing changes."""
    pgas.reset()
    works(heap)


def test_call_that_is_not_reset(heap, me, n):
    """Its PE gets the error; a PE that resets waits until all do."""
    if me == 0:
        pgas.reset()
    elif n > 1:
        with pytest.raises(pgas.BootstrapError, match=re.escape("PE 0 called pgas.reset()")):
            pgas.barrier_all()
        pgas.reset()
    works(heap)


def test_call_that_is_not_reset_after_an_error(heap, me, n):
    """The error of a PE in another call names the first error of the PE that resets."""
    word = heap.zeros(1, np.uint64)
    if me == 0:
        with deadline(0.2):
            raised(waits[1, 1], word)
        pgas.reset()
    elif n > 1:
        why = r"PE 0 called pgas\.reset\(\) after DeviceError \(PE 0, block 0, thread 0: signal_wait_until waited .*\), PE 1 called"
        with pytest.raises(pgas.BootstrapError, match=why):
            pgas.barrier_all()
        pgas.reset()
    works(heap)
