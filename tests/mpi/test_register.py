"""Local operands of other allocators (pgas.register): they work through a NIC, and unregistered memory is refused."""

from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import pgas
from mpi.checks import THROUGH_NIC, Watched, capability, equal, everywhere, payload
from pgas.base.errors import TransportError
from pgas.job import runtime
from pgas.kernels import layout
from pgas.transports.softhca.process.client import SoftHCA

pytestmark = capability("plain memory that a NIC maps")

#: The second one does not end at a page boundary; the third one is copied in several shares.
SIZES = [1, 5000, 300_001]


@pgas.jit
def put_and_get(dest, source, back, pe):
    pgas.put_block(dest, source, pe)
    pgas.quiet()
    pgas.get_block(back, dest, pe)


@pgas.jit
def each_thread_puts(dest, source, pe):
    i = cuda.grid(1)
    pgas.put_nbi(dest[8 * i : 8 * i + 8], source[8 * i : 8 * i + 8], pe)


@pgas.jit
def tell(dest, source, sig, pe):
    pgas.put_signal_warp(dest, source, sig, 0, 1, pgas.SIGNAL_ADD, pe)


@pgas.jit
def strided(dest, source, pe):
    pgas.iput_warp(dest, source, 3, 2, pe)


def on_device(values):
    """Return a device array of these values. On GPUs it is a piece of a large one, as small arrays share blocks of CUDA's allocator."""
    if pgas.SIMULATOR:
        return cuda.to_device(values)
    global _pool, _used
    if _pool is None:  # not before pgas.init(), which chooses the GPU
        _pool = cuda.device_array(64 << 20, np.uint8)
    flat = np.ascontiguousarray(values)
    first, _used = _used, (_used + max(flat.nbytes, 1) + 511) // 512 * 512
    if _used > _pool.size:
        raise MemoryError(f"the tests' pool is too small for {flat.nbytes} bytes more")
    array = _pool[first : first + flat.nbytes].view(flat.dtype).reshape(flat.shape)
    array.copy_to_device(flat)
    return array


_pool, _used = None, 0


class Known:
    """Arrays of this process that are registered for one test."""

    def __init__(self):
        self.arrays = []

    def __call__(self, values):
        array = on_device(values)
        pgas.register(array)
        self.arrays.append(array)
        return array


@pytest.fixture
def known(heap):
    known = Known()
    yield known
    for array in known.arrays:
        pgas.unregister(array)


@pytest.mark.parametrize("size", SIZES)
def test_put_and_get_in_kernels(heap, me, n, right, left, known, size):
    sources = [payload(size, np.int32, seed=pe) for pe in range(n)]
    source, back, dest = known(sources[me]), known(np.zeros(size, np.int32)), Watched(heap, size + 100, np.int32)
    put_and_get[1, 64](dest.array[50 : 50 + size], source, back, right)
    dest.holds(50, sources[left])
    equal(back, sources[me])
    equal(source, sources[me])


def test_each_thread_with_its_own_array(heap, me, right, left, known):
    values = np.arange(128 * 8, dtype=np.float64)
    dest, source = heap.zeros(128 * 8), known(values + me)
    each_thread_puts[2, 64](dest, source, right)
    equal(dest, values + left)


def test_signals_and_strides(heap, me, right, left, known):
    values = np.arange(1000, dtype=np.int64)
    dest, sig, source = heap.zeros((2, 1500), np.int64), heap.zeros(1, np.uint64), known(values + 1000 * me)
    tell[1, 32](dest[0, :1000], source, sig, right)
    strided[1, 32](dest[1], source, right)
    expected = np.zeros((2, 1500), np.int64)
    expected[0, :1000], expected[1, ::3] = values + 1000 * left, values[::2] + 1000 * left
    equal(dest, expected)
    equal(sig, np.array([1], np.uint64))


def test_from_the_host(heap, me, right, left, known):
    dest, sig = heap.zeros(70_000, np.float32), heap.zeros(1, np.uint64)
    source, back = known(np.full(70_000, me + 1, np.float32)), known(np.zeros(70_000, np.float32))
    pgas.put_signal(dest, source, sig, 0, 7, pgas.SIGNAL_SET, right)
    pgas.signal_wait_until(sig, 0, pgas.EQ, 7)
    equal(dest, np.full(70_000, left + 1, np.float32))
    pgas.get(back[100:], dest, right, 5)
    pgas.barrier_all()
    expected = np.zeros(70_000, np.float32)
    expected[100:105] = me + 1
    equal(back, expected)


def test_arrays_that_share_pages_and_registering_again(heap, me, right, left):
    """Small arrays share pages. All keep their contents and work through the NIC, in any order of register and unregister."""
    arrays = [on_device(np.full(100 + 50 * i, 100 * me + i, np.int16)) for i in range(6)]
    dest = heap.zeros((6, 400), np.int16)
    for order in ((0, 1, 2, 3, 4, 5), (5, 2, 0, 4, 1, 3)):
        for i in order:
            pgas.register(arrays[i])
        for i in order:
            pgas.put(dest[i, : arrays[i].size], arrays[i], right)
        pgas.barrier_all()
        found = dest.copy_to_host()
        faults = [i for i in range(6) if (found[i, : 100 + 50 * i] != 100 * left + i).any() or found[i, 100 + 50 * i :].any()]
        everywhere(f"rows {faults}" if faults else None)
        pgas.barrier_all()
        dest.copy_to_device(np.zeros((6, 400), np.int16))
        pgas.barrier_all()  # no PE puts before that
        for i in reversed(order[1:]):
            pgas.unregister(arrays[i])
        pgas.unregister(arrays[order[0]])
    everywhere(next((f"array {i}" for i, a in enumerate(arrays) if (a.copy_to_host() != 100 * me + i).any()), None))


def test_refusals(heap):
    array, empty, on_heap, other = on_device(np.zeros(100)), cuda.device_array(0), heap.zeros(10), on_device(np.zeros(10))
    pgas.register(array)
    calls = [
        (ValueError, pgas.register, (array,), "already registered"),
        (ValueError, pgas.register, (empty,), "array is empty"),
        (ValueError, pgas.register, (on_heap,), "on the symmetric heap"),
        (TypeError, pgas.register, ([1.0],), "must be an array"),
        (ValueError, pgas.unregister, (other,), "not registered"),
    ]
    if not runtime.current().stores_to(0):
        calls.append((ValueError, pgas.put, (on_heap, other, 0), "neither on the symmetric heap nor registered"))
    for error, call, args, words in calls:
        with pytest.raises(error, match=words):
            call(*args)
    pgas.unregister(array)
    pgas.register(array)
    pgas.unregister(array[:3])
    pgas.barrier_all()


@pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC")
def test_kernels_do_not_find_unregistered_memory(heap):
    """The addresses may be used for other memory later; entries of the table are reused."""
    memory = runtime.current().memory

    def entries():
        count = (int.from_bytes(memory.read(layout.REGISTERED_END, 8), "little") - layout.REGISTERED) // layout.PIECE_SIZE
        table = [layout.REGISTERED + i * layout.PIECE_SIZE for i in range(max(count, 0))]
        words = [
            [int.from_bytes(memory.read(entry + word, 8), "little") for word in (layout.PIECE_START, layout.PIECE_END)] for entry in table
        ]
        return {tuple(word) for word in words if any(word)}

    before = entries()
    arrays = [on_device(np.zeros(1000 + i)) for i in range(2)]
    for _ in range(2):
        for array in arrays:
            pgas.register(array)
        found = entries() - before
        assert sorted(end - start for start, end in found) == [8000, 8008]
        for array in arrays:
            pgas.unregister(array)
        assert entries() == before
    pgas.barrier_all()


def test_pages_are_private_again_if_the_nic_refuses(heap, monkeypatch):
    adapter = getattr(runtime.current().nic, "adapter", None)  # none under p2p and over plain verbs
    if not (pgas.SIMULATOR and isinstance(adapter, SoftHCA)):
        pytest.skip("capability missing: a NIC for which pages are replaced by shared ones")
    array = on_device(np.arange(3000))

    def shared():
        """Whether other processes can map the array's first page."""
        at = array.ctypes.data
        lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
        ranges = ((*(int(end, 16) for end in fields[0].split("-")), fields[5:]) for fields in lines)
        return next("memfd" in "".join(name) for start, end, name in ranges if start <= at < end)

    def refuse(*_):
        raise TransportError("no regions today")

    with monkeypatch.context() as patched:
        patched.setattr(adapter, "register_mr", refuse)
        with pytest.raises(TransportError, match="no regions today"):
            pgas.register(array)
    assert not shared()
    pgas.register(array)
    assert shared()
    pgas.unregister(array)
    assert not shared()
    equal(array, np.arange(3000))
    pgas.barrier_all()


def test_finalize_unregisters(heap):
    """The array is not unregistered: finalize does that, without a warning."""
    pgas.register(on_device(np.arange(10)))
    pgas.barrier_all()


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_arrays_of_other_libraries(heap, me, right, left, library):
    module = pytest.importorskip(library)
    make = (lambda: module.full((3000,), float(me), device="cuda")) if library == "torch" else (lambda: module.full(3000, float(me)))
    source = make()
    dtype = np.float32 if library == "torch" else np.float64
    dest = heap.zeros(3000, dtype)
    pgas.register(source)
    put_and_get[1, 64](dest, source, source, right)
    equal(dest, np.full(3000, left, dtype))
    pgas.unregister(source)
