"""Puts and gets of the host that the GPU's copy engine performs. In the simulator, the copies are memmove()."""

import threading

import numpy as np
import pytest
from conformance.checks import THROUGH_NIC, equal, everywhere, needs_peer

import pgas
from pgas.job import runtime
from pgas.job.paths.platform import platform

pytestmark = [needs_peer, pytest.mark.skipif(THROUGH_NIC, reason="only PEs whose memory is mapped are reached by copies")]

LEAST = 20


@pytest.fixture
def copies(monkeypatch):
    """Let the copy engine move messages of LEAST bytes or more. Return the list of the sizes of its copies."""
    sizes, copying, job = [], platform.copying, runtime.current()

    def counted(to, source, nbytes, stream):
        copy = copying(to, source, nbytes, stream)

        def perform():
            sizes.append(nbytes)
            copy()

        return perform

    monkeypatch.setattr(platform, "copying", counted)
    monkeypatch.setattr(job, "engine_bytes", LEAST)
    monkeypatch.setattr(job, "repeated", {})
    return sizes


def test_put_and_get(heap, me, right, left, copies):
    """By size and place; a stream's later work comes after the copies, and a bound call does the same."""
    dest, source, back = heap.zeros(64, np.int32), heap.array(np.arange(64, dtype=np.int32) + 100 * me), heap.zeros(64, np.int32)
    pgas.put(dest[3:20], source[:17], right)
    pgas.put_nbi(dest[32:], source[32:], right, nelems=5, stream=0)
    pgas.put(dest[60:], source[60:], right)  # a kernel, because it is short
    pgas.barrier_all()
    expected = np.zeros(64, np.int32)
    for part, source_part in ((slice(3, 20), range(17)), (slice(32, 37), range(32, 37)), (slice(60, 64), range(60, 64))):
        expected[part] = np.array(source_part) + 100 * left
    equal(dest, expected, "what put() stores")
    pgas.get(back[:7], source[9:16], right)
    equal(back[:7], np.arange(9, 16, dtype=np.int32) + 100 * right, "what get() loads")
    pgas.get_nbi(back, back, me, stream=0)
    pgas.barrier_all()
    bound = pgas.put.bind(dest, source, right, stream=0)
    bound()
    bound()
    pgas.barrier_all()
    equal(dest, np.arange(64, dtype=np.int32) + 100 * left, "what a bound put() stores")
    everywhere(None if copies == [68, 20, 28, 256, 256, 256] else f"copies of {copies} bytes")


def test_repeated_calls(heap, me, right, left, copies):
    """Later calls with the same arrays are bound ones, which copy what the arrays contain by then; also in a new thread."""
    dest, source = heap.zeros(32, np.int64), heap.zeros(32, np.int64)
    for turn in range(4):
        source.copy_to_device(np.arange(32) + 1000 * me + turn)
        if turn == 3:
            thread = threading.Thread(target=pgas.put, args=(dest, source, right))
            thread.start()
            thread.join()
        else:
            pgas.put(dest, source, right)
        pgas.barrier_all()
        equal(dest, np.arange(32) + 1000 * left + turn, f"what call {turn} stores")
        pgas.barrier_all()
    everywhere(None if copies == 4 * [256] else f"copies of {copies} bytes")


def test_put_signal(heap, me, right, left, copies):
    """The signal comes after the data, whichever value it has."""
    count = 1 << 15  # A message of several blocks; smaller ones have their signal in one kernel.
    dest, source, arrived = heap.zeros(count, np.int64), heap.full(count, me + 1, np.int64), heap.zeros(1, np.uint64)
    for value in (3, 4, 5):
        pgas.put_signal(dest, source, arrived, 0, value, pgas.SIGNAL_ADD, right, stream=0)
    pgas.signal_wait_until(arrived, 0, pgas.EQ, 12, stream=0)
    pgas.synchronize()
    equal(dest, np.full(count, left + 1), "the data of a signal")
    pgas.barrier_all()
    everywhere(None if copies == 3 * [8 * count] else f"copies of {copies} bytes")


def test_refusals(heap, n, copies):
    """A wrong call copies nothing."""
    dest, source = heap.zeros(64, np.int32), heap.zeros(64, np.int32)
    for call, text in (
        (lambda: pgas.put(dest[:8], source, 0), "64 elements wanted, dest has 8"),
        (lambda: pgas.get(dest, source, n), f"pe must be an integer from 0 to {n - 1}"),
        (lambda: pgas.put.bind(dest, source, 0), "stream= is missing"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            call()
    everywhere(None if not copies else f"copies of {copies} bytes")


@pytest.mark.skipif(pgas.SIMULATOR, reason="graphs need a GPU")
def test_a_graph(heap, me, right, left, copies):
    """A captured copy is repeated by the graph."""
    from cuda.core import Device

    dest, source = heap.zeros(64, np.int32), heap.zeros(64, np.int32)
    stream = Device().create_stream()
    builder = stream.create_graph_builder()
    builder.begin_building()
    pgas.put(dest, source, right, stream=builder)
    pgas.quiet(stream=builder)
    graph = builder.end_building().complete()
    for turn in range(2):
        source.copy_to_device(np.full(64, 10 * me + turn, np.int32))
        graph.launch(stream)
        pgas.synchronize(stream)
        pgas.barrier_all()
        equal(dest, np.full(64, 10 * left + turn, np.int32), f"what launch {turn} stores")
        pgas.barrier_all()
