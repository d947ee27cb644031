"""The Python side: refusals at compile time and their messages, keywords, defaults, kinds of kernels and launches."""

import functools
import re

import numpy as np
import pytest
from numba import cuda, int32

from conformance import checks, library
from conformance import library as pgas
from conformance.checks import (
    REFUSED,
    Watched,
    Words,
    checklist,
    equal,
    kernel_of,
    needs_any_memory,
    needs_mapped_peers,
    needs_peer,
    payload,
    put_whole,
    raises,
)
from conformance.library import GE, SIGNAL_ADD, put, put_signal, quiet, signal_wait_until

# ------------------------------------------------------------------------------------------- what a kernel may not be compiled with
#
# Arrays: f, i of 8 float32 or int32; m of 2 x 4 float32; s of uint64; h of int16; c of complex64; x of records. Other names are values.


@pytest.fixture(scope="module")
def arrays(_job):
    """An array of every kind, for all refused calls."""
    dtypes = {"f": "f4", "i": "i4", "m": "f4", "s": "u8", "h": "i2", "b": "i1", "c": "c8", "x": [("a", "f4"), ("b", "i4")]}
    arrays = {name: pgas.zeros((2, 4) if name == "m" else 8, np.dtype(dtype)) for name, dtype in dtypes.items()}
    yield arrays
    for array in arrays.values():
        pgas.free(array)


def refused(kernel, *args):
    with pytest.raises(REFUSED) as caught:
        kernel[1, 32](*args)
    return Words(re.sub(r"\x1b\[[0-9;]*m", "", str(caught.value)))


#: Statements that must be refused, and what the error says.
CASES = [
    ("pgas.put(f, i, 0)", "pgas.put:", "source has elements of type int32, dest of type float32"),
    ("pgas.put_block(f, i, 0)", "pgas.put_block:", "source has elements of type int32, dest of type float32"),
    ("pgas.put_nbi_warp(f, i, 0)", "pgas.put_nbi_warp:", "source", "dest"),
    ("pgas.get(i, f, 0)", "pgas.get:", "source has elements of type float32, dest of type int32"),
    ("pgas.get_warp(h, f, 0)", "pgas.get_warp:", "source", "dest"),
    ("pgas.put(m, f, 0)", "pgas.put:", "source has 1 dimension, dest has 2 dimensions"),
    ("pgas.get_block(f, m, 0)", "pgas.get_block:", "source has 2 dimensions, dest has 1 dimension"),
    ("pgas.put(m, m.T, 0)", "pgas.put:", "source is in F order, dest in C order"),
    ("pgas.put(f, 3.0, 0)", "pgas.put:", "source must be an array", "float64"),
    ("pgas.put(3, f, 0)", "pgas.put:", "dest must be an array"),
    ("pgas.put(None, f, 0)", "pgas.put:", "dest must be an array"),
    ("pgas.put(f, f, 0.5)", "pgas.put:", "pe must be an integer", "float64"),
    ("pgas.put_block(f, f, None)", "pgas.put_block:", "pe must be an integer"),
    ("pgas.put(f, f, f)", "pgas.put:", "pe must be an integer"),
    ("pgas.put(f, f, 0, 1.5)", "pgas.put:", "nelems must be an integer", "float64"),
    ("pgas.get(f, f, 0, nelems=1.5)", "pgas.get:", "nelems must be an integer"),
    ("pgas.put(f, f, 0, 1, 1.5)", "pgas.put:", "qp must be an integer"),
    ("pgas.put(f, f)", "put", "pe"),
    ("pgas.put(f, f, 0, 1, 0, 0)", "put"),
    ("pgas.put(f, f, 0, npes=0)", "put", "npes"),
    ("pgas.put(f, f, 0, stream=0)", "put", "stream"),
    ("pgas.p(f, 0.5, 1, 0)", "pgas.p:", "idx must be an integer", "float64"),
    ("pgas.p(m, 1, 1.0, 0)", "pgas.p:", "idx has 1 subscript(s)", "dest has 2 dimensions"),
    ("pgas.p(m, (1, 1, 0), 1.0, 0)", "pgas.p:", "idx has 3 subscript(s)", "dest has 2 dimensions"),
    ("pgas.p(m, (1, 0.5), 1.0, 0)", "pgas.p:", "idx must be an integer"),
    ("pgas.p(f, 0, 1j, 0)", "pgas.p:", "value is of type complex128", "float32"),
    ("pgas.p(f, 0, f, 0)", "pgas.p:", "value", "float32"),
    ("pgas.p(f, 0, None, 0)", "pgas.p:", "value"),
    ("pgas.p(x, 0, x[1], 0)", "pgas.p:", "use put or get"),
    ("pgas.p(1, 0, f[0], 0)", "pgas.p:", "dest must be an array"),
    ("pgas.p(f, 0, 1.0, 0.5)", "pgas.p:", "pe must be an integer"),
    ("f[0] = pgas.g(f, 0.5, 0)", "pgas.g:", "idx must be an integer"),
    ("f[0] = pgas.g(f, (0, 1), 0)", "pgas.g:", "idx has 2 subscript(s)", "source has 1 dimension"),
    ("f[0] = pgas.g(f, 0, 0.5)", "pgas.g:", "pe must be an integer"),
    ("pgas.atomic_add(b, 0, 1, 0)", "pgas.atomic_add:", "dest has elements of type int8"),
    ("pgas.atomic_fetch_add(c, 0, 1, 0)", "pgas.atomic_fetch_add:", "dest has elements of type complex64"),
    ("pgas.atomic_add(f, 0, 1j, 0)", "pgas.atomic_add:", "value is of type complex128"),
    ("pgas.atomic_fetch_add(i, 0.5, 1, 0)", "pgas.atomic_fetch_add:", "idx must be an integer"),
    ("pgas.atomic_add(i, 0, 1, 0.5)", "pgas.atomic_add:", "pe must be an integer"),
    ("pgas.atomic_add(i, 0, 1)", "atomic_add", "pe"),
    ("pgas.put_signal(f, f, i, 0, 1, pgas.SIGNAL_SET, 0)", "pgas.put_signal:", "sig must be an array of uint64", "int32"),
    ("pgas.put_signal_block(f, i, s, 0, 1, pgas.SIGNAL_SET, 0)", "pgas.put_signal_block:", "source has elements"),
    ("pgas.put_signal_nbi(f, f, s, (0, 0), 1, pgas.SIGNAL_SET, 0)", "pgas.put_signal_nbi:", "idx", "sig has 1 dimension"),
    ("pgas.put_signal_warp(f, f, s, 0, 1.5, pgas.SIGNAL_SET, 0)", "pgas.put_signal_warp:", "value must be an integer"),
    ("pgas.put_signal(f, f, s, 0, 1, 0.5, 0)", "pgas.put_signal:", "op must be an integer"),
    ("pgas.signal_op(f, 0, 1, pgas.SIGNAL_ADD, 0)", "pgas.signal_op:", "sig must be an array of uint64"),
    ("pgas.signal_op(s, 0, 1.5, pgas.SIGNAL_ADD, 0)", "pgas.signal_op:", "value must be an integer"),
    ("pgas.signal_op(s, 0, 1, pgas.SIGNAL_ADD, 0.5)", "pgas.signal_op:", "pe must be an integer"),
    ("pgas.signal_wait_until(i, 0, pgas.EQ, 0)", "pgas.signal_wait_until:", "sig must be an array of uint64"),
    ("pgas.signal_wait_until(s, 0, 1.5, 0)", "pgas.signal_wait_until:", "cmp must be an integer"),
    ("pgas.wait_until(f, 0, pgas.EQ, 0)", "pgas.wait_until:", "ivar has elements of type float32"),
    ("pgas.wait_until(b, 0, pgas.EQ, 0)", "pgas.wait_until:", "ivar has elements of type int8"),
    ("pgas.wait_until(i, 0, None, 0)", "pgas.wait_until:", "cmp must be an integer"),
    ("pgas.wait_until(i, 0, pgas.EQ, 0.5)", "pgas.wait_until:", "value must be an integer"),
    ("pgas.wait_until(i, (0, 0), pgas.EQ, 0)", "pgas.wait_until:", "idx has 2 subscript(s)", "ivar has 1 dimension"),
    ("f[0] = pgas.ptr(1.0, 0)[0]", "pgas.ptr:", "dest must be an array"),
    ("f[0] = pgas.ptr(f, 0.5)[0]", "pgas.ptr:", "pe must be an integer"),
    ("pgas.fence(f)", "fence"),
    ("pgas.barrier_all_block(f)", "barrier_all_block"),
]


def arrays_in(statement):
    return list(dict.fromkeys(re.findall(r"\b[fimshbcx]\b", statement)))


@checklist("Python", "errors of dtype and arity are readable")
@pytest.mark.parametrize("case", CASES, ids=[statement for statement, *_ in CASES])
def test_refused(arrays, case):
    statement, *wanted = case
    names = arrays_in(statement)
    text = refused(kernel_of(", ".join(names), statement), *[arrays[name] for name in names])
    missing = [w for w in wanted if w not in text]
    assert not missing, f"{missing} not in:\n{text}"
    pgas.synchronize()


@checklist("Python", "errors of dtype and arity are readable")
def test_a_refused_kernel_harms_nobody(right, left, arrays):
    """The job goes on."""
    f, m = arrays["f"], arrays["m"]
    refused(kernel_of("f, i", "pgas.put(f, i, 0)"), f, arrays["i"])
    f.copy_to_device(np.full(8, pgas.my_pe(), np.float32))
    pgas.barrier_all()
    put_whole[1, 32](m[0], f[:4], right)
    equal(m[0], np.full(4, left, np.float32))


# ------------------------------------------------------------------------------------------------------------------ kinds of calls


@pgas.jit
def by_keywords(dest, source, sig, counter, back, pe):
    """Pass every argument by name, in a different order."""
    n = source.size
    pgas.put(pe=pe, source=source[:1], dest=dest[:1])
    pgas.put(dest[1:2], source[1:2], pe=pe, qp=0, nelems=1)
    pgas.put_nbi(nelems=1, dest=dest[2:], source=source[2:], pe=pe)
    pgas.p(value=source[3], idx=3, pe=pe, dest=dest)
    pgas.p(dest, 4, source[4], pe, qp=0)
    pgas.put_signal(op=pgas.SIGNAL_SET, value=5, idx=0, sig=sig, source=source[5:], dest=dest[5:n], pe=pe)
    pgas.signal_op(pe=pe, sig=sig, idx=1, value=6, op=pgas.SIGNAL_ADD)
    pgas.atomic_add(value=3, dest=counter, pe=pe, idx=0)
    counter[2] = pgas.atomic_fetch_add(pe=pe, value=4, idx=1, dest=counter)
    pgas.quiet()
    pgas.signal_wait_until(value=5, cmp=pgas.EQ, idx=0, sig=sig)
    pgas.wait_until(ivar=sig, idx=1, cmp=pgas.GE, value=6)
    pgas.get(source=dest[:4], dest=back[:4], pe=pe)
    back[4] = pgas.g(idx=4, source=dest, pe=pe)
    back[5] = pgas.ptr(pe=pe, dest=dest)[5]


@checklist("Python", "kinds of calls and launches")
@needs_mapped_peers
def test_keywords(heap, me, right, left):
    dest, source = heap.zeros(9, np.float64), heap.array(np.arange(9.0) + 10 * me)
    sig, counter, back = heap.zeros(2, np.uint64), heap.zeros(3, np.int64), heap.zeros(6, np.float64)
    pgas.launch(by_keywords, grid=1, block=1, args=(dest, source, sig, counter, back, right))
    equal(dest, np.arange(9.0) + 10 * left)
    equal(sig, np.array([5, 6], np.uint64))
    equal(counter, np.array([3, 4, 0]))
    equal(back, np.arange(6.0) + 10 * me)


@cuda.jit
def plain_kernel(dest, source, sig, pe):
    """A kernel with Numba's own decorator, names imported from pgas, and the module under another name."""
    put(dest[:4], source[:4], pe)
    library.p(dest, 4, source[4], pe)
    quiet()
    put_signal(dest[5:], source[5:], sig, 0, 1, SIGNAL_ADD, pe)
    signal_wait_until(sig, 0, GE, 1)


@checklist("Python", "kinds of calls and launches")
def test_plain_cuda_jit_and_imported_names(heap, me, right, left):
    """The collective launch is first, so no PE waits in the other one while its neighbor compiles."""
    for launch in (functools.partial(pgas.launch, plain_kernel, 1, 1), lambda args: plain_kernel[1, 1](*args)):
        dest, source, sig = heap.zeros(9, np.int32), heap.array(np.arange(9, dtype=np.int32) + me), heap.zeros(1, np.uint64)
        launch((dest, source, sig, right))
        equal(dest, np.arange(9, dtype=np.int32) + left)


@cuda.jit(device=True)
def send_doubled(dest, source, i, pe):
    pgas.p(dest, i, twice(source, i), pe)


@cuda.jit(device=True)
def twice(source, i):
    return 2 * pgas.g(source, i, pgas.my_pe())


@pgas.jit(device=True)
def right_neighbor():
    return (pgas.my_pe() + 1) % pgas.n_pes()


@pgas.jit
def by_device_functions(dest, source):
    i = cuda.grid(1)
    send_doubled(dest, source, i, right_neighbor())


@checklist("Python", "kinds of calls and launches")
def test_device_functions_of_the_user(heap, me, left):
    dest, source = heap.zeros(64, np.int32), heap.array(np.arange(64, dtype=np.int32) + 100 * me)
    by_device_functions[2, 32](dest, source)
    equal(dest, 2 * (np.arange(64, dtype=np.int32) + 100 * left))
    assert by_device_functions.py_func.__name__ == "by_device_functions"


@pgas.jit
def who_and_how_many(out):
    i = cuda.grid(1)
    out[2 * i] = pgas.my_pe()
    out[2 * i + 1] = pgas.n_pes()


@checklist("Python", "kinds of calls and launches")
def test_my_pe_and_n_pes_in_kernels(heap):
    out = heap.full(160, -1, np.int64)
    who_and_how_many[2, 40](out)
    equal(out, np.tile([pgas.my_pe(), pgas.n_pes()], 80))


@pgas.jit
def to_pes_of_any_type(dest, pes):
    for i in range(pes.size):
        pgas.p(dest, i, i + 1, pes[i])
        pgas.fence()
        pgas.atomic_add(dest, i, 1, pes[i])


@checklist("Python", "kinds of calls and launches")
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_pe_of_any_integer_type(heap, me, n, dtype):
    dest, pes = heap.zeros(n, np.int32), heap.array(np.arange(n), dtype)
    if me == n - 1:
        to_pes_of_any_type[1, 1](dest, pes)
    expected = np.zeros(n, np.int32)
    expected[me] = me + 2
    equal(dest, expected)


DEVICE_FUNCTIONS = [
    name for name in pgas.__all__
    if re.fullmatch(r"(i?put|i?get|barrier_all|sync_all)_(.*_)?(warp|block)", name)
]  # fmt: skip


@checklist("Python", "errors of dtype and arity are readable")
def test_there_are_device_functions():
    assert len(DEVICE_FUNCTIONS) == 20, DEVICE_FUNCTIONS


@checklist("Python", "errors of dtype and arity are readable")
def test_device_functions_on_the_host():
    for name in DEVICE_FUNCTIONS:
        with raises(TypeError, rf"pgas\.{name} is a device function: call it inside a kernel"):
            getattr(pgas, name)()


@checklist("Python", "errors of dtype and arity are readable")
def test_every_public_name_is_there_and_documented():
    for name in pgas.__all__:
        thing = getattr(pgas, name)
        if callable(thing) and not isinstance(thing, int):
            assert thing.__doc__, name


# ------------------------------------------------------------------------------------------------------------------------ launches


@pgas.jit(cache=False)
def count_on_peer(counter, step, pe):
    pgas.atomic_add(counter, cuda.threadIdx.x, step, pe)


@checklist("Python", "kinds of calls and launches")
def test_bound_launch(heap, right):
    """A bound kernel can be launched several times."""
    counter = heap.zeros(40, np.int64)
    bound = count_on_peer[2, 40].bind(counter, 3, right)
    pgas.barrier_all()
    equal(counter, np.zeros(40, np.int64), "bind launches nothing")
    for _ in range(5):
        bound()
    equal(counter, np.full(40, 30))


@checklist("Python", "kinds of calls and launches")
def test_one_kernel_many_configurations(heap, right):
    counter = heap.zeros(64, np.int64)
    configured = count_on_peer[3, 8]
    for _ in range(2):
        configured(counter, 1, right)
    count_on_peer[(2, 2), (64, 1, 1)](counter, 100, right)
    equal(counter, np.where(np.arange(64) < 8, 406, 400))


@pgas.jit
def meet_all_blocks(counter, wrong, threads):
    """Blocks wait for those of their own PE, then for those of all PEs."""
    me, n = pgas.my_pe(), pgas.n_pes()
    cuda.syncthreads()
    if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:
        for pe in range(n):
            pgas.atomic_add(counter, 0, 1, pe)
        pgas.wait_until(counter, 0, pgas.GE, n * cuda.gridDim.x * cuda.gridDim.y)
        if counter[0] > n * cuda.gridDim.x * cuda.gridDim.y or cuda.blockDim.x * cuda.blockDim.y != threads or me >= n:
            cuda.atomic.add(wrong, 0, 1)


@checklist("Python", "kinds of calls and launches")
@checklist("Concurrency", "a kernel that waits for another PE's")
@pytest.mark.parametrize(("grid", "block"), [(7, 33), ((3, 2), (4, 5)), ([2, 2, 1], [2, 2, 1])], ids=str)
def test_launched_blocks_run_at_the_same_time(heap, grid, block):
    counter, wrong = heap.zeros(1, np.int32), heap.zeros(1, np.int32)
    grid, block = (tuple(x) if isinstance(x, list) else x for x in (grid, block))
    pgas.launch(meet_all_blocks, grid, block, (counter, wrong, int(np.prod(block))))
    equal(counter, np.array([pgas.n_pes() * int(np.prod(grid))], np.int32))
    equal(wrong, np.zeros(1, np.int32))


@checklist("Concurrency", "more CTAs than fit at once")
def test_launch_of_more_blocks_than_fit(heap):
    counter = heap.zeros(1, np.int32)
    with raises(ValueError, "meet_all_blocks: 1000000 blocks of 256 threads cannot run concurrently on (this GPU|an H100); the maximum is"):
        pgas.launch(meet_all_blocks, 1_000_000, 256, (counter, counter, 256))
    equal(counter, np.zeros(1, np.int32))


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
def test_pes_launch_different_kernels(heap):
    counter = heap.zeros(1, np.int32)
    kernel, args = (count_on_peer, (counter, 1, 0)) if pgas.my_pe() == 0 else (who_and_how_many, (counter,))
    with pytest.raises(pgas.PgasError) as caught:
        pgas.launch(kernel, 1, 1, args)
    assert "PE 0 called pgas.launch(count_on_peer)" in str(caught.value)
    assert "PE 1 called pgas.launch(who_and_how_many)" in str(caught.value)
    equal(counter, np.zeros(1, np.int32))


@checklist("Python", "errors of dtype and arity are readable")
def test_kernel_without_configuration(heap):
    with raises(ValueError, r"put_whole needs a launch configuration: put_whole\[blocks, threads_per_block\]"):
        put_whole(heap.zeros(1), heap.zeros(1), 0)


@pgas.jit
def put_dynamic_shared(dest, start, pe):
    buffer = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    buffer[t] = start + t
    pgas.put_block(dest[2:34], buffer[:32], pe)


@checklist("Python", "kinds of calls and launches")
@needs_any_memory
@pytest.mark.parametrize("collectively", [True, False])
def test_dynamic_shared_memory(heap, me, right, left, collectively):
    dest = Watched(heap, 40, np.int32)
    if collectively:
        pgas.launch(put_dynamic_shared, 1, 32, (dest.array, 50 * me, right), shared=128)
    else:
        put_dynamic_shared[1, 32, 0, 128](dest.array, 50 * me, right)
    dest.holds(2, np.arange(32, dtype=np.int32) + 50 * left)


@checklist("Streams and graphs", "operations on a stream come in the order of its kernels")
def test_streams(heap, me, right, left):
    """Kernels on two streams, synchronized one by one; launch() on a stream."""
    streams = [cuda.stream(), cuda.stream()]
    dests, source = [Watched(heap, 100, np.int32) for _ in range(3)], heap.array(payload(80, np.int32, me))
    for stream, dest in zip(streams, dests, strict=False):
        put_whole[1, 64, stream](dest.array[7:87], source, right)
    pgas.launch(put_whole, 1, 64, (dests[2].array[7:87], source, right), stream=streams[0])
    for stream in streams:
        pgas.synchronize(stream)
    for dest in dests:
        dest.holds(7, payload(80, np.int32, left))


@cuda.jit(cache=True)
def kernel_in_numbas_cache(dest, pe):
    pgas.p(dest, 0, 1, pe)


@checklist("Python", "compiled code in other processes")
@pytest.mark.gpu
def test_numbas_own_cache_is_refused(heap):
    """Numba's cache key lacks the constants that pgas compiles in."""
    with raises(TypeError, r"kernel_in_numbas_cache.*cannot be kept in Numba's cache: use @pgas.jit"):
        kernel_in_numbas_cache[1, 1](heap.zeros(1), 0)


@checklist("Python", "bfloat16")
def test_bfloat16(heap, me, right, left):
    """NumPy has no such dtype; ml_dtypes adds one."""
    pytest.importorskip("ml_dtypes", reason="capability missing: ml_dtypes, without which NumPy has no bfloat16")
    try:
        dest = heap.zeros(70, "bfloat16")
    except TypeError as error:
        checks.refused(error)
    source = heap.array(np.arange(64) + me, "bfloat16")
    put_whole[1, 32](dest[3:67], source, right)
    expected = np.zeros(70, "bfloat16")
    expected[3:67] = np.arange(64) + left
    equal(dest, expected)


@pgas.jit
def all_copies(dest, source, sig, pe):
    """Fill a row of dest with each function."""
    i = cuda.threadIdx.x
    pgas.put_block(dest[0], source, pe)
    pgas.get_block(dest[1], source, pe)
    pgas.p(dest, (2, i), source[i], pe)
    dest[3, i] = pgas.g(source, i, pe)
    pgas.iput_block(dest[4], source, 1, 2, pe)
    pgas.iget_warp(dest[5], source, 2, 1, pe)
    pgas.put_nbi_block(dest[6], source, pe)
    quiet()
    cuda.syncthreads()
    pgas.put_signal_block(dest[7], source, sig, 0, 1, SIGNAL_ADD, pe)
    signal_wait_until(sig, 0, GE, 1)


@pgas.jit
def all_moves(team, gathered, collected, spread, exchanged, parts, source, counts, displs):
    pgas.fcollect_block(team, gathered, source)
    pgas.collect_block(team, collected, source[: 3 + pgas.my_pe()])
    pgas.broadcast_block(team, spread, source, 0)
    pgas.alltoall_block(team, exchanged, source[: 4 * pgas.n_pes()])
    pgas.alltoallv_block(team, parts, counts, displs, source, counts, displs)


@checklist("Python", "float8")
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_float8(heap, me, n, right, left, name):
    """Bits arrive unchanged, also those of NaNs. ml_dtypes has the types."""
    pytest.importorskip("ml_dtypes", reason="capability missing: ml_dtypes, without which NumPy has no float8")
    try:
        dest = heap.zeros((8, 32), name)
    except TypeError as error:
        checks.refused(error)

    def sent(pe):
        return ((np.arange(32) * 37 + pe * 11 + 120) % 256).astype(np.uint8)

    source, sig = heap.array(sent(me).view(name), name), heap.zeros(1, np.uint64)
    pgas.barrier_all()
    all_copies[1, 32](dest, source, sig, right)
    expected = np.zeros((8, 32), np.uint8)
    expected[[0, 2, 6, 7]], expected[[1, 3]] = sent(left), sent(right)
    expected[4, :16], expected[5, ::2] = sent(left)[::2], sent(right)[:16]
    equal(dest, expected.view(name))
    whole, some = [heap.zeros(n * 32, name) for _ in range(2)], [heap.zeros(32, name) for _ in range(3)]
    counts, displs = heap.full(n, 2, np.int64), heap.array(np.arange(n) * 3)
    pgas.launch(all_moves, 1, 32, (pgas.TEAM_WORLD, *whole, *some, source, counts, displs))
    ends, parts = [np.concatenate([sent(pe)[: 3 + pe] for pe in range(n)]), np.zeros(32, np.uint8)], np.zeros(32, np.uint8)
    ends[1][: 4 * n] = np.concatenate([sent(pe)[4 * me : 4 * me + 4] for pe in range(n)])
    for pe in range(n):
        parts[3 * pe : 3 * pe + 2] = sent(pe)[3 * me : 3 * me + 2]
    equal(whole[0], np.concatenate([sent(pe) for pe in range(n)]).view(name), "fcollect")
    equal(whole[1], np.pad(ends[0], (0, 32 * n - ends[0].size)).view(name), "collect")
    for array, bits, what in zip(some, (sent(0), ends[1], parts), ("broadcast", "alltoall", "alltoallv"), strict=True):
        equal(array, bits.view(name), what)


@pgas.jit
def rows_and_elements(dest, source, pe):
    """Send a row with put, a column with p, the corner with an atomic."""
    i = cuda.threadIdx.x
    pgas.put_block(dest[1], source[2], pe)
    if i < source.shape[0] and i != 1:
        pgas.p(dest, (i, 3), source[i, 0], pe)
    cuda.syncthreads()
    if i == 0:
        pgas.fence()
        pgas.atomic_add(dest, (source.shape[0] - 1, source.shape[1] - 1), 5, pe)


@checklist("Python", "arrays of two dimensions")
def test_two_dimensions(heap, me, right, left):
    dest, source = Watched(heap, (4, 6), np.int32), heap.array(payload(24, np.int32, me).reshape(4, 6))
    rows_and_elements[1, 32](dest.array, source, right)
    expected, theirs = dest.image.copy(), payload(24, np.int32, left).reshape(4, 6)
    expected[1] = theirs[2]
    expected[[0, 2, 3], 3] = theirs[[0, 2, 3], 0]
    expected[3, 5] += 5
    equal(dest.array, expected)
