"""Puts and gets called on the host that the GPU's copy engine performs. In the simulator, the copies are memmove().

In the tests, the engine is used for all PEs that are reached by stores, whether they have another GPU or not.
"""

import threading

import numpy as np
import pytest
from conformance.checks import TRANSPORT, equal, everywhere, needs_peer

import pgas
from pgas.api import host_ops
from pgas.job import runtime
from pgas.job.paths.platform import platform

BY_NIC = TRANSPORT in ("ibgda", "ibrc")
pytestmark = needs_peer

LEAST = 20


@pytest.fixture
def done(monkeypatch):
    """Let the copy engine move messages of LEAST bytes or more. Return the list of what is enqueued: sizes of copies, names of kernels."""
    found, copying, enqueue, job = [], platform.copying, host_ops.enqueue, runtime.current()

    def counted(name, to, source, nbytes, stream):
        copy = copying(name, to, source, nbytes, stream)

        def perform():
            found.append(nbytes if stream in (None, 0) else (nbytes, stream))
            copy()

        return perform

    def launched(kernel, *rest, **options):
        found.append(kernel.__name__.removesuffix("_on_stream").removesuffix("_block"))
        enqueue(kernel, *rest, **options)

    monkeypatch.setattr(platform, "copying", counted)
    monkeypatch.setattr(host_ops, "enqueue", launched)
    monkeypatch.setattr(job, "engine_bytes", LEAST)
    monkeypatch.setattr(job, "on_another_gpu", lambda pe: True)
    monkeypatch.setattr(job, "repeated", {})
    return found


def agreed(done, expected, pe):
    """Check what was enqueued. expected: if PE pe is reached by stores."""
    if runtime.current().stores_to(pe):
        everywhere(None if done == expected else f"{done} instead of {expected}")
    else:
        everywhere("a copy" if any(not isinstance(each, str) for each in done) else None)


def test_put_and_get(heap, me, right, left, done):
    """By size and place. A stream's later work comes after the copies."""
    dest, source, back = heap.zeros(64, np.int32), heap.array(np.arange(64, dtype=np.int32) + 100 * me), heap.zeros(64, np.int32)
    pgas.put(dest[3:20], source[:17], right)
    pgas.put_nbi(dest[32:], source[32:], right, nelems=5, stream=0)
    pgas.put(dest[60:], source[60:], right)  # a kernel, because it is short
    pgas.barrier_all()
    expected = np.zeros(64, np.int32)
    for part in (range(17), range(32, 37), range(60, 64)):
        expected[np.array(part) + 3 * (part.start == 0)] = np.array(part) + 100 * left
    equal(dest, expected, "what put() stores")
    pgas.get(back[:7], source[9:16], right)
    equal(back[:7], np.arange(9, 16, dtype=np.int32) + 100 * right, "what get() loads")
    pgas.get_nbi(back[20 + me :], source[20:], right, nelems=40, stream=0)  # Another place on each PE, unlike what a put would do.
    pgas.put(dest, source, me, nelems=0)
    pgas.barrier_all()
    equal(back[20 + me : 60 + me], np.arange(20, 60, dtype=np.int32) + 100 * right, "what get_nbi() loads")
    equal(source, np.arange(64, dtype=np.int32) + 100 * me, "the source")
    agreed(done, [68, 20, "put", 28, 160], right)


def test_bound_calls_and_streams(heap, me, right, left, done, monkeypatch):
    """A bound call copies on its stream what the source has by then; so does one that is bound by itself, and one in a new thread."""
    dest, source, stream = heap.zeros(32, np.int64), heap.zeros(32, np.int64), pgas.cuda.stream()
    bound = pgas.put.bind(dest, source, right, stream=stream)
    done.clear()
    for turn in range(6):
        source.copy_to_device(np.arange(32) + 1000 * me + turn)
        if turn == 3:
            thread = threading.Thread(target=pgas.put, args=(dest, source, right))
            thread.start()
            thread.join()
        elif turn < 3:
            pgas.put(dest, source, right)
        else:
            bound()
            pgas.synchronize(stream)
        pgas.barrier_all()
        equal(dest, np.arange(32) + 1000 * left + turn, f"what call {turn} stores")
        pgas.barrier_all()
    if runtime.current().stores_to(right):
        assert done == 4 * [256] + 2 * [(256, stream)]
    everywhere(None)


def test_put_signal(heap, me, right, left, done):
    """The signal comes after the data, whichever value it has."""
    count = 1 << 15  # A message of several blocks; smaller ones have their signal in one kernel.
    dest, source, arrived = heap.zeros(count, np.int64), heap.full(count, me + 1, np.int64), heap.zeros(1, np.uint64)
    for value in (3, 4, 5):
        pgas.put_signal(dest, source, arrived, 0, value, pgas.SIGNAL_SET, right, stream=0)
    pgas.signal_wait_until(arrived, 0, pgas.EQ, 5, stream=0)
    pgas.synchronize()
    equal(dest, np.full(count, left + 1), "the data of a signal")
    pgas.barrier_all()
    if runtime.current().stores_to(right):
        assert done[:2] == [8 * count, "signal_op"]
        (repeated,) = runtime.current().repeated["put_signal"].values()  # the call with any value
        assert [type(each).__name__ for each in repeated.bound._launches] == ["_Copy", "BoundLaunch"]
    agreed([each for each in done if not isinstance(each, str)], 3 * [8 * count], right)


def test_refusals(heap, n, done):
    """A wrong call copies nothing."""
    dest, source = heap.zeros(64, np.int32), heap.zeros(64, np.int32)
    for call, text in (
        (lambda: pgas.put(dest[:8], source, 0), "64 elements wanted, dest has 8"),
        (lambda: pgas.get(dest, source, n), f"pe must be an integer from 0 to {n - 1}"),
        (lambda: pgas.put.bind(dest, source, 0), "stream= is missing"),
        (lambda: pgas.put(dest, source, 0, stream="x"), "stream must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            call()
    everywhere(None if not [each for each in done if not isinstance(each, str)] else f"copies: {done}")


def test_hang_reports_know_of_copies(heap, right, done, monkeypatch):
    """A copy is announced like a launch, which also raises the job's failure."""
    dest, source, announced, job = heap.zeros(64, np.int32), heap.zeros(64, np.int32), [], runtime.current()
    launching = job.launching
    monkeypatch.setattr(job, "launching", lambda kernel="", stream=0: (announced.append(kernel), launching(kernel, stream)))
    pgas.put_nbi(dest, source, right, stream=0)
    pgas.barrier_all()
    agreed([256] if "put_nbi of 256 bytes" in announced else [], [256], right)


def test_always_by_kernels(heap, right, done, monkeypatch):
    """PGAS_COPY_ENGINE_BYTES=0; and PEs that have the same GPU."""
    dest, source, job = heap.zeros(64, np.int32), heap.zeros(64, np.int32), runtime.current()
    with monkeypatch.context() as patch:
        patch.setattr(job, "engine_bytes", 0)
        pgas.put(dest, source, right)
    monkeypatch.setattr(job, "on_another_gpu", type(job).on_another_gpu.__get__(job))
    pgas.put(dest[:63], source[:63], pgas.my_pe())
    pgas.barrier_all()
    everywhere(None if done == ["put", "put"] else f"{done}")


@pytest.mark.skipif(pgas.SIMULATOR, reason="graphs need a GPU")
def test_a_graph(heap, me, right, left, done):
    """A captured copy is repeated by the graph."""
    from cuda.core import Device

    dest, source = heap.zeros(64, np.int32), heap.zeros(64, np.int32)
    stream = Device().create_stream()
    builder = stream.create_graph_builder()
    builder.begin_building()
    pgas.put(dest, source, right, stream=builder)
    pgas.quiet(stream=builder)
    graph = builder.end_building().complete()
    assert done[0] == (256, builder) or BY_NIC
    for turn in range(2):
        source.copy_to_device(np.full(64, 10 * me + turn, np.int32))
        graph.launch(stream)
        pgas.synchronize(stream)
        pgas.barrier_all()
        equal(dest, np.full(64, 10 * left + turn, np.int32), f"what launch {turn} stores")
        pgas.barrier_all()
