"""Growth of the symmetric heap, with small heaps and steps: its limit, failures of one PE, and kernels in flight."""

import contextlib
import resource
from pathlib import Path

import numpy as np
import pytest
from conformance.checks import RANK, THROUGH_NIC, N, difference, everywhere, neighbors, payload, raises
from descriptors import few_descriptors
from numba import cuda

import pgas
from pgas.base.config import size_text
from pgas.base.errors import HeapError, TransportError
from pgas.job import growth
from pgas.job.health import device_state
from pgas.kernels import layout, window

MIB = 1 << 20


@pytest.fixture
def small(alone, monkeypatch):
    """A job with a heap of 4 MiB that grows in steps of 4 MiB to 20 MiB."""
    for name, value in (("SYMMETRIC_SIZE", "4M"), ("CUMEM_GRANULARITY", "4M"), ("MAX_MEMORY_PER_GPU", "21M")):
        monkeypatch.setenv(f"PGAS_{name}", value)
    with pgas.init() as job:
        arrays = []
        yield job, arrays
        for array in arrays:
            pgas.free(array)


def allocate(arrays, nbytes, make=pgas.empty):
    """A symmetric array of bytes, freed at the end of the test."""
    arrays.append(make(nbytes, np.uint8))
    return arrays[-1]


def offset(array):
    return array.__cuda_array_interface__["data"][0] - window.slot(pgas.my_pe()) - window.HEAP_OFFSET


@pgas.jit
def put_and_add(dest, source, idx, pe):
    pgas.put_block(dest, source, pe)
    pgas.quiet()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.atomic_add(dest, idx, 1000, pe)


def reaches_right(dest):
    """Check that puts by kernels and by the host reach the right neighbor's array, from its first byte to its last."""
    _, _, right, left = neighbors()
    words = dest.view(np.int64)
    sources = [payload(words.size, np.int64, pe) for pe in range(pgas.n_pes())]
    source = pgas.array(sources[pgas.my_pe()])
    put_and_add[1, 64](words, source, words.size - 1, right)
    pgas.barrier_all()
    expected = sources[left].copy()
    expected[-1] += 1000
    everywhere(difference(words.copy_to_host(), expected))
    pgas.put(words, source, right)
    pgas.barrier_all()
    everywhere(difference(words.copy_to_host(), sources[left]))
    pgas.free(source)


def test_a_heap_that_grows_to_its_limit(small):
    """In steps of one chunk, of several, and of the rest; then it is exhausted, and stays usable."""
    job, arrays = small
    for nbytes, alignment in ((21 * MIB, 512), (1, 2 * window.HEAP_OFFSET)):
        with raises(HeapError, rf"symmetric heap exhausted: {size_text(nbytes)} requested.*, 4 MiB of 4 MiB are free"):
            pgas.empty(nbytes, np.uint8, alignment=alignment)
    assert job.heap.size == 4 * MIB
    kept = allocate(arrays, 3 * MIB, pgas.zeros)
    across = allocate(arrays, 2 * MIB)
    assert (offset(across), job.heap.size) == (3 * MIB, 8 * MIB)
    reaches_right(across)
    two = allocate(arrays, 8 * MIB)
    assert (offset(two), job.heap.size) == (5 * MIB, 16 * MIB)
    reaches_right(two[7 * MIB :])
    last = allocate(arrays, 7 * MIB)
    assert (offset(last), job.heap.size) == (13 * MIB, 20 * MIB)
    is_on_the_heap(job, last)
    for _ in range(2):
        with raises(HeapError, r"exhausted: 512 bytes requested, 0 bytes of 20 MiB are free, .*PGAS_MAX_MEMORY_PER_GPU, 20 MiB\)"):
            pgas.empty(512, np.uint8)
    pgas.free(arrays.pop())
    reaches_right(two[:MIB])
    arrays.append(pgas.empty(6 * MIB, np.uint8))
    assert (offset(arrays[-1]), job.heap.size) == (13 * MIB, 20 * MIB)
    everywhere(difference(kept.copy_to_host(), np.zeros(3 * MIB, np.uint8)))


def is_on_the_heap(job, words):
    """Check that an array beyond the first heap passes operand checks, on the host and in kernels, and is named in messages."""
    place = device_state.place(words[-1:].__cuda_array_interface__["data"][0], job.places)
    assert place.startswith(f"element [{words.size - 1}] of the uint8 array of shape ({words.size},)"), place
    assert job.memory.read(layout.HEAP_SIZE, 8) == job.heap.size.to_bytes(8, "little")
    with raises(ValueError, "is on the symmetric heap"):
        pgas.register(words[-1:])


# ------------------------------------------------------------------------------------------------------------------- one PE fails


def held(job):
    """Return this PE's resources: in the simulator descriptors and mappings of the window (not with CUDA), keys of the software card."""
    adapter = getattr(job.nic, "adapter", None)
    keys = sorted(key["key"] for key in adapter.counters()["keys"]) if hasattr(adapter, "counters") else []
    if not pgas.SIMULATOR:
        return keys
    maps = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace")
    window_maps = [line.split()[0] for line in maps.splitlines() if line.startswith("60") and len(line.split("-")[0]) == 12]
    return keys, window_maps, len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def file_size(nbytes):
    """Limit the size of this process's files, including memfds."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def failing(owner, name, error):
    @contextlib.contextmanager
    def patched():
        with pytest.MonkeyPatch.context() as patch:

            def refuse(*args, **kwargs):
                raise error

            patch.setattr(owner, name, refuse)
            yield

    return patched()


@contextlib.contextmanager
def refused_as_a_whole(job):
    """Let the NIC refuse to register a heap that grew as one region."""
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(job.nic, "adapter"):
            register_mr, heap = job.nic.adapter.register_mr, job.nic._pieces[0]

            def refuse_range(address, nbytes, *rest):
                if address == heap.address and nbytes > heap.nbytes:
                    raise TransportError("not as a whole")
                return register_mr(address, nbytes, *rest)

            patch.setattr(job.nic.adapter, "register_mr", refuse_range)
        else:
            from pgas.transports.ibrc import verbs

            register = verbs.register

            def refuse(*args, what, **options):
                if what == "the grown symmetric heap":
                    raise TransportError("not as a whole")
                return register(*args, what=what, **options)

            patch.setattr(verbs, "register", refuse)
        yield


@pytest.mark.skipif(not THROUGH_NIC, reason="capability missing: a NIC")
def test_a_heap_in_pieces(small):
    """Each piece has a region of its own; then, once the NIC takes the whole, there is one again."""
    job, arrays = small
    allocate(arrays, 3 * MIB)
    with refused_as_a_whole(job):
        for _ in range(2):
            reaches_right(allocate(arrays, 2 * MIB))
    assert job.heap.size == 12 * MIB
    job.nic.reset()
    reaches_right(arrays[1])
    allocate(arrays, 6 * MIB)
    assert job.heap.size == 16 * MIB
    for array in arrays[1:3]:
        reaches_right(array)


def failures(job):
    """Return ways in which growth fails on a PE, each with a part of the error's text."""
    yield failing(job.memory, "create", HeapError("no memory today")), "no memory today"
    yield failing(job.memory, "create", OSError(24, "Too many open files")), "Too many open files"
    if pgas.SIMULATOR:
        yield file_size(3 * MIB), "cannot allocate 4 MiB of symmetric heap: File too large"
    if job.nic is None:
        if N > 1:
            yield failing(job.memory, "attach", TransportError("no way today")), f"PE {N - 1} cannot reach PE 0: no way today"
            if pgas.SIMULATOR:
                yield few_descriptors(1), rf"\(SCM_RIGHTS\): PE {N - 1}: .*Too many open files"
    else:
        yield failing(job.nic, "_reach", TransportError("no keys today")), "no keys today"
        if hasattr(job.nic, "adapter"):
            yield failing(job.nic.adapter, "register_mr", TransportError("no region today")), "no region today"
        else:
            from pgas.transports.ibrc import verbs

            yield failing(verbs, "register", TransportError("no region today")), "no region today"


def test_growth_fails_on_one_pe(small):
    """Every PE gets an error that names the PE. Nothing stays mapped, open or registered, and the next attempt succeeds."""
    job, arrays = small
    allocate(arrays, 4 * MIB)
    before = held(job)
    if N > 1:  # PEs that disagree
        with raises(HeapError, r"PEs disagree .*PE 0 called pgas.empty\(shape=\(5,\).*PE 1 called pgas.empty\(shape=\(4,\)"):
            pgas.empty(5 if RANK == 0 else 4, np.uint8)
        assert held(job) == before
    for fault, words in failures(job):
        with fault if RANK == N - 1 else contextlib.nullcontext(), raises(HeapError, words) as caught:
            pgas.zeros(MIB, np.uint8)
        text = str(caught.value)
        assert text.startswith("the symmetric heap of 4 MiB cannot grow by 4 MiB: "), text
        assert f"PE {N - 1}" in text
        assert "PGAS_SYMMETRIC_SIZE" in text
        pgas.barrier_all()
        assert held(job) == before
        assert job.heap.size == 4 * MIB
    reaches_right(allocate(arrays, 2 * MIB))
    assert job.heap.size == 8 * MIB


def test_an_initial_heap_above_the_limit(alone, monkeypatch):
    monkeypatch.setenv("PGAS_SYMMETRIC_SIZE", "4M")
    monkeypatch.setenv("PGAS_MAX_MEMORY_PER_GPU", "3M")
    with raises(ValueError, "PGAS_MAX_MEMORY_PER_GPU=3 MiB: must not be less than PGAS_SYMMETRIC_SIZE=4 MiB"):
        pgas.init()


# --------------------------------------------------------------------------------------------------------------- kernels in flight


@pytest.mark.skipif(not (pgas.SIMULATOR and THROUGH_NIC), reason="capability missing: a NIC whose keys are in kernels' state")
def test_keys_that_kernels_have_read_stay_valid(small, monkeypatch):
    """In the simulator, kernels keep the keys that earlier ones have read, as a kernel in flight would."""
    job, arrays = small
    before = allocate(arrays, 2 * MIB)
    reaches_right(before)
    monkeypatch.setattr(growth.platform, "read_again", lambda: None)
    for added in [pgas.empty(4 * MIB, np.uint8) for _ in range(2)]:
        pgas.free(added)
    assert job.heap.size == 12 * MIB
    reaches_right(before)


@pgas.jit
def wait_and_put(word, dest, source, pe):
    pgas.signal_wait_until(word, 0, pgas.GE, 1)
    cuda.syncthreads()
    pgas.put_block(dest, source, pe)
    pgas.quiet()


@pytest.mark.gpu
def test_a_kernel_in_flight(small):
    """A kernel that starts before the heap grows goes on afterwards, with the keys of its start."""
    job, arrays = small
    _, _, right, left = neighbors()
    sources = [payload(10_000, np.int64, pe) for pe in range(pgas.n_pes())]
    word, dest, source = pgas.zeros(1, np.uint64), pgas.zeros(10_000, np.int64), pgas.array(sources[pgas.my_pe()])
    word.copy_to_device(np.ones(1, np.uint64))
    wait_and_put[1, 64](word, dest, source, right)  # compiled and loaded before any kernel waits
    pgas.barrier_all()
    word.copy_to_device(np.zeros(1, np.uint64))
    dest.copy_to_device(np.zeros(10_000, np.int64))
    pgas.barrier_all()
    stream = cuda.stream()
    wait_and_put[1, 64, stream](word, dest, source, right)
    added = allocate(arrays, 6 * MIB)
    assert job.heap.size == 8 * MIB
    job.memory.write(job.address(word), (1).to_bytes(8, "little"))
    pgas.synchronize(stream)
    pgas.barrier_all()
    everywhere(difference(dest.copy_to_host(), sources[left]))
    reaches_right(added[5 * MIB :])
    arrays += [word, dest, source]
