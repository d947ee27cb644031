"""The symmetric heap: equal offsets on all PEs, errors on all PEs, use after free."""

import itertools

import numpy as np
import pytest
from numba import cuda

from conformance import library as pgas
from conformance.checks import (
    HEAP_LIMIT,
    HEAP_SIZE,
    PARTICLE,
    PIXEL,
    THROUGH_NIC,
    Watched,
    Words,
    checklist,
    difference,
    equal,
    everywhere,
    needs,
    needs_mapped_peers,
    needs_peer,
    neighbors,
    payload,
    put_whole,
    refused,
)

BIG = (1 << 31) + (1 << 20)

needs_big_heap = pytest.mark.skipif(HEAP_SIZE < BIG + (64 << 20), reason="capability missing: PGAS_SYMMETRIC_SIZE of 2.1 GiB or more")


def address(array):
    return array.__cuda_array_interface__["data"][0]


def same_everywhere(value):
    values = pgas.allgather_object(value)
    assert all(v == values[0] for v in values), values


def raised_by(error, function, *args, **kwargs):
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    return Words(caught.value)


def texts_everywhere(error, function, *args):
    """Return the texts of all PEs; every PE must have raised."""
    texts = pgas.allgather_object(raised_by(error, function, *args))
    assert all(isinstance(t, str) for t in texts), texts
    return [Words(t) for t in texts]


@pgas.jit
def p_at(dest, idx, value, pe):
    pgas.p(dest, idx, value, pe)


@pgas.jit
def increment(array):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += 1


# --------------------------------------------------------------------------------------------------------------------- places


@checklist("Symmetric heap", "offsets are equal on all PEs")
@needs_mapped_peers
def test_offsets_are_equal_on_all_pes(heap, me):
    """For arrays of all kinds, in any order of allocation."""
    arrays = [heap.empty(7, np.uint8), heap.zeros((3, 5), np.float64), heap.full(513, 3, np.int16), heap.array(np.arange(9.0) + me)]
    heap.free(arrays.pop(1))
    arrays += [heap.empty((2, 2), np.complex128), heap.zeros(100_000, np.uint8)]
    same_everywhere([address(pgas.ptr(a, 0)) for a in arrays])
    strides = {address(a) - address(pgas.ptr(a, 0)) for a in arrays}
    assert len(strides) == 1, strides


@checklist("Symmetric heap", "offsets are equal on all PEs")
@needs_mapped_peers
def test_every_pe_names_an_instance_by_the_same_address(heap):
    array = heap.zeros(10)
    same_everywhere([address(pgas.ptr(array, pe)) for pe in range(pgas.n_pes())])
    assert address(pgas.ptr(array, pgas.my_pe())) == address(array)


@checklist("Symmetric heap", "loops of allocations leak nothing")
def test_reuse_after_free(heap):
    first = heap.empty(1000, np.float64)
    where = address(first)
    heap.free(first)
    again = heap.empty(1000, np.float64)
    assert address(again) == where


@checklist("Symmetric heap", "loops of allocations leak nothing")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0)], ids=str)
def test_freed_neighbors_become_one_range(heap, order):
    arrays = [heap.empty(1000, np.uint8) for _ in range(3)]
    where = address(arrays[0])
    for i in order:
        heap.free(arrays[i])
    assert address(heap.empty(3000, np.uint8)) == where


@checklist("Symmetric heap", "odd sizes and more than 2 GiB")
def test_arrays_do_not_overlap(heap):
    """Odd sizes, some freed in between."""
    sizes = [int(n) for n in np.random.default_rng(1).integers(0, 5000, 40)]
    arrays = []
    for i, nbytes in enumerate(sizes):
        arrays.append(heap.empty(nbytes, np.uint8))
        if i % 5 == 4:
            heap.free(arrays.pop(i // 2 % len(arrays)))
    for i, array in enumerate(arrays):
        array.copy_to_device(np.full(array.shape, i, np.uint8))
    everywhere(next((f"array {i} was overwritten" for i, a in enumerate(arrays) if (a.copy_to_host() != i).any()), None))
    ranges = sorted((address(a), address(a) + a.nbytes) for a in arrays)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


@checklist("Symmetric heap", "alignment is honored")
@pytest.mark.parametrize("alignment", [1, 512, 4096, 1 << 16, 1 << 21, 1 << 22, 1 << 23, 1 << 26])
def test_alignment(heap, alignment):
    heap.empty(1, np.uint8)
    for make in (heap.empty, heap.zeros):
        array = make(3, np.uint8, alignment=alignment)
        assert address(array) % max(alignment, 512) == 0, hex(address(array))
    assert address(heap.full(2, 7, alignment=alignment)) % alignment == 0
    assert address(heap.array([1, 2], alignment=alignment)) % alignment == 0


@checklist("Symmetric heap", "alignment is honored")
def test_default_alignment(heap):
    for nbytes in (1, 3, 511, 513):
        assert address(heap.empty(nbytes, np.uint8)) % 512 == 0


@checklist("Symmetric heap", "size 0")
@pytest.mark.parametrize("shape", [0, (0,), (3, 0), (0, 5, 2)], ids=str)
def test_size_zero(heap, shape):
    first, second = heap.empty(shape, np.float32), heap.zeros(shape, np.float32)
    assert first.nbytes == first.size == 0
    assert tuple(first.shape) == (shape if isinstance(shape, tuple) else (shape,))
    assert first.copy_to_host().shape == tuple(first.shape)
    assert address(first) != address(second)
    heap.free(first)
    put_whole[1, 32](second, second, 0)
    pgas.barrier_all()


@checklist("Symmetric heap", "odd sizes and more than 2 GiB")
@needs_big_heap
def test_more_than_two_gib(heap, right, left):
    """The left neighbor writes both ends, and nothing beside them."""
    big = heap.empty(BIG, np.uint8)
    assert big.nbytes == BIG
    ends = [big[:96], big[(1 << 31) - 48 : (1 << 31) + 48], big[BIG - 96 :]]
    for end in ends:
        end.copy_to_device(np.zeros(96, np.uint8))
    source = heap.array(payload(40, np.uint8, pgas.my_pe()))
    pgas.barrier_all()
    put_slice[1, 32](big, 5, source, right)
    put_slice[1, 32](big, (1 << 31) - 20, source, right)
    put_slice[1, 32](big, BIG - 61, source, right)
    p_at[1, 1](big, BIG - 1, 77, right)
    pgas.barrier_all()
    expected = np.zeros((3, 96), np.uint8)
    expected[0, 5:45] = expected[1, 28:68] = expected[2, 35:75] = payload(40, np.uint8, left)
    expected[2, 95] = 77
    for end, image in zip(ends, expected, strict=True):
        everywhere(difference(end.copy_to_host(), image))


@pgas.jit
def put_slice(dest, at, source, pe):
    pgas.put_block(dest[at : at + source.size], source, pe)


@checklist("Symmetric heap", "odd sizes and more than 2 GiB")
@needs_big_heap
def test_more_than_two_gib_in_rows(heap, right, left):
    rows = 1 << 16
    big = heap.empty((rows, BIG // rows // 8), np.int64)
    assert big.nbytes > 1 << 31
    big[rows - 1].copy_to_device(np.zeros(big.shape[1], np.int64))
    pgas.barrier_all()
    p_at[1, 1](big, (rows - 1, big.shape[1] - 2), pgas.my_pe() + 5, right)
    pgas.barrier_all()
    expected = np.zeros(big.shape[1], np.int64)
    expected[-2] = left + 5
    everywhere(difference(big[rows - 1].copy_to_host(), expected))


@checklist("Symmetric heap", "loops of allocations leak nothing")
def test_allocating_and_freeing_leaks_nothing(heap):
    """The sum is larger than the heap, and the sizes would leave holes."""
    keep = heap.empty(100, np.uint8)
    first = heap.empty(HEAP_SIZE // 2, np.uint8)
    where = address(first)
    heap.free(first)
    sizes = np.random.default_rng(2).integers(1, HEAP_SIZE // 5, (15, 3))
    for i, trio in enumerate(sizes):
        arrays = [heap.empty(int(n), np.uint8) for n in trio]
        for j in np.random.default_rng(i).permutation(3):
            heap.free(arrays[j])
    assert address(heap.empty(HEAP_SIZE // 2, np.uint8)) == where
    assert address(keep) < where


# -------------------------------------------------------------------------------------------------------------------- contents


@checklist("Symmetric heap", "zeroed memory is zero")
def test_zeros_are_zero_in_reused_memory(heap):
    used = heap.full(5000, 0xAB, np.uint8)
    where = address(used)
    heap.free(used)
    array = heap.zeros(1250, np.float32)
    assert address(array) == where
    equal(array, np.zeros(1250, np.float32))


@checklist("Symmetric heap", "zeroed memory is zero")
def test_a_peer_may_put_as_soon_as_allocation_returns(heap, me, right, left):
    """Without a barrier: the data of a PE that returns first must not be overwritten by its neighbor's initial values."""
    source = heap.array(payload(2000, np.int32, me))
    makers = (lambda: heap.zeros(2000, np.int32), lambda: heap.full(2000, 9, np.int32), lambda: heap.array(np.ones(2000, np.int32)))
    for make in 4 * makers:
        dest = make()
        put_whole[1, 32](dest, source, right)
        equal(dest, payload(2000, np.int32, left))
        heap.free(dest)


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_full(heap):
    equal(heap.full((2, 3), 7.5), np.full((2, 3), 7.5))
    equal(heap.full(4, 3, np.uint8), np.full(4, 3, np.uint8))
    equal(heap.full(5, True), np.full(5, True))
    equal(heap.full((), 2.5), np.full((), 2.5))


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_array_holds_each_pes_own_values(heap, me):
    equal(heap.array([[1, 2], [3, me]]), np.array([[1, 2], [3, me]]))
    equal(heap.array(np.arange(6)[::-1] + me, np.float32), (np.arange(6)[::-1] + me).astype(np.float32))
    equal(heap.array(np.asfortranarray(np.arange(6.0).reshape(2, 3))), np.arange(6.0).reshape(2, 3))


@checklist("Symmetric heap", "arrays are arrays of other libraries")
@pytest.mark.parametrize("dtype", ["bool", "float16", "complex128", "uint64", PIXEL, PARTICLE], ids=str)
def test_arrays_of_any_dtype(heap, dtype):
    data = payload(33, dtype, pgas.my_pe())
    array = heap.array(data)
    assert (array.dtype, tuple(array.shape), array.nbytes) == (data.dtype, (33,), data.nbytes)
    equal(array, data)


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_default_dtype(heap):
    assert heap.empty(1).dtype == heap.zeros(1).dtype == np.float64


# ------------------------------------------------------------------------------------------------------------------ as an array


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_is_a_device_array(heap):
    array = heap.array(np.arange(12, dtype=np.int32).reshape(3, 4))
    assert isinstance(array, pgas.SymmetricArray)
    assert (tuple(array.shape), array.size, array.ndim, array.nbytes, len(array)) == ((3, 4), 12, 2, 48, 3)
    assert tuple(array.strides) == (16, 4)
    array.copy_to_device(np.arange(12, dtype=np.int32).reshape(3, 4) * 2)
    host = np.zeros((3, 4), np.int32)
    array.copy_to_host(host)
    assert host[2, 3] == 22
    array[1, 1:3] = np.array([-1, -2], np.int32)
    assert array[1].copy_to_host().tolist() == [8, -1, -2, 14]
    assert array.reshape(12)[5:7].copy_to_host().tolist() == [-1, -2]
    assert int(array[2, 3]) == 22
    increment[1, 32](array.reshape(12))
    pgas.synchronize()
    assert int(array[2, 3]) == 23


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_cuda_array_interface(heap):
    """CuPy, PyTorch and Numba read the array through this interface."""
    array = heap.array(np.arange(24, dtype=np.float32).reshape(4, 6))
    interface = array.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"]) == ((4, 6), "<f4")
    assert interface["data"] == (address(array), False)
    assert interface["strides"] in (None, (24, 4))
    assert interface["version"] >= 2
    row = array[2].__cuda_array_interface__
    assert (row["shape"], row["data"][0]) == ((6,), address(array) + 48)
    part = array[1:3, 2].__cuda_array_interface__
    assert (part["shape"], part["data"][0], part["strides"]) == ((2,), address(array) + 32, (24,))


@checklist("Symmetric heap", "arrays are arrays of other libraries")
def test_interface_of_another_library(heap):
    """An object of another library with this interface is the same memory."""
    array = heap.zeros(8, np.int64)

    class Foreign:
        __cuda_array_interface__ = array.__cuda_array_interface__

    increment[1, 32](cuda.as_cuda_array(Foreign()))
    pgas.synchronize()
    assert array.copy_to_host().tolist() == [1] * 8


# ------------------------------------------------------------------------------------------------------------------------ ptr


@checklist("Symmetric heap", "ptr: itself, peers, interior")
@needs_mapped_peers
def test_ptr_on_the_host(heap, me, n, right, left):
    """Arrays, rows and slices of every PE can be read and written."""
    dest = Watched(heap, (4, 5), np.int32)
    theirs = pgas.ptr(dest.array, right)
    assert (tuple(theirs.shape), theirs.dtype) == ((4, 5), np.dtype("int32"))
    theirs[1].copy_to_device(np.arange(5, dtype=np.int32) + 10 * me)
    pgas.ptr(dest.array[3], right)[2:4].copy_to_device(np.array([me, -me], np.int32))
    dest.expect(5, np.arange(5, dtype=np.int32) + 10 * left)
    dest.holds(17, np.array([left, -left], np.int32))
    column = pgas.ptr(dest.array[:, 2], right)  # a strided view
    everywhere(None if column.strides == dest.array[:, 2].strides else f"{column.strides}")
    everywhere(None if int(column[3]) == me else f"{column[3]}")
    found = [int(pgas.ptr(dest.array[3, 2:3], pe)[0]) for pe in range(n)]
    everywhere(None if found == [(pe - 1) % n for pe in range(n)] else f"{found}")


@pgas.jit
def store_and_load(array, back, value, pe):
    i = cuda.threadIdx.x
    theirs = pgas.ptr(array, pe)
    part = pgas.ptr(array[2:], pe)
    if i < 4:
        theirs[i] = value + i
    elif i < theirs.size:
        part[i - 2] = value + i
    cuda.threadfence_system()
    back[i] = theirs[i]


@checklist("Symmetric heap", "ptr: itself, peers, interior")
@needs_mapped_peers
def test_ptr_in_kernels(heap, me, right, left):
    array, back = heap.zeros(10, np.float32), heap.zeros(10, np.float32)
    store_and_load[1, 10](array, back, 100.0 * me, right)
    equal(array, np.arange(10, dtype=np.float32) + 100 * left)
    equal(back, np.arange(10, dtype=np.float32) + 100 * me)


@checklist("Symmetric heap", "ptr: unreachable PEs, other memory")
def test_ptr_refuses_what_is_not_symmetric(heap):
    array = heap.zeros(4)
    assert "symmetric heap" in raised_by(ValueError, pgas.ptr, np.zeros(4), 0)
    assert "symmetric heap" in raised_by(ValueError, pgas.ptr, cuda.to_device(np.zeros(4)), 0)
    for pe in (-1, pgas.n_pes(), 1.5):
        text = raised_by(ValueError, pgas.ptr, array, pe)
        assert f"0 to {pgas.n_pes() - 1}" in text
        assert repr(pe) in text


# ---------------------------------------------------------------------------------------------------------------------- errors


@checklist("Python", "errors of dtype and arity are readable")
@pytest.mark.parametrize("shape", [-1, (3, -2), 1.5, "three", (2, None)], ids=str)
def test_bad_shape(heap, shape):
    text = raised_by((ValueError, TypeError), pgas.empty, shape)
    assert "shape" in text
    assert repr(shape) in text


@checklist("Python", "errors of dtype and arity are readable")
@pytest.mark.parametrize("dtype", ["S4", "U2", object, np.dtype("f4, O"), np.dtype(("f4", (3,)))], ids=str)
def test_bad_dtype(heap, dtype):
    text = raised_by(TypeError, pgas.empty, 3, dtype)
    assert str(np.dtype(dtype)) in text


@checklist("Python", "errors of dtype and arity are readable")
def test_unknown_dtype(heap):
    assert "float33" in raised_by(TypeError, pgas.empty, 3, "float33")


@checklist("Symmetric heap", "alignment is honored")
@pytest.mark.parametrize("alignment", [0, 3, -512, 1000])
def test_bad_alignment(heap, alignment):
    text = raised_by(ValueError, pgas.empty, 3, alignment=alignment)
    assert f"power of two, not {alignment}" in text


@checklist("Symmetric heap", "out of memory is an error on all PEs")
def test_out_of_memory_is_an_error_on_every_pe(heap):
    before = heap.empty(8, np.uint8)
    for text in texts_everywhere(pgas.HeapError, pgas.zeros, 1 << 40, np.uint8):
        assert "exhausted" in text
        assert "1 TiB" in text
        assert "PGAS_SYMMETRIC_SIZE" in text
    after = heap.empty(8, np.uint8)
    assert address(after) == address(before) + 512
    equal(heap.zeros(3), np.zeros(3))


@checklist("Symmetric heap", "out of memory is an error on all PEs")
def test_out_of_memory_by_fragmentation(heap):
    quarter = HEAP_LIMIT // 4 - (1 << 20)
    arrays = [heap.empty(quarter, np.uint8) for _ in range(4)]
    heap.free(arrays[0])
    heap.free(arrays[2])
    assert "exhausted" in raised_by(pgas.HeapError, pgas.empty, 2 * quarter, np.uint8)
    heap.free(arrays[1])
    heap.empty(3 * quarter, np.uint8)


def heap_is_as_before(heap, where):
    array = heap.empty(16, np.uint8)
    assert address(array) == where
    heap.free(array)


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
@pytest.mark.parametrize("odd", ["first", "last"])
@pytest.mark.parametrize(
    ("usual", "other"),
    [
        ((pgas.zeros, (10, np.int32)), (pgas.zeros, (11, np.int32))),
        ((pgas.zeros, (10, np.int32)), (pgas.zeros, (10, np.float32))),
        ((pgas.empty, (10, np.int32)), (pgas.zeros, (10, np.int32))),
        ((pgas.empty, ((2, 3),)), (pgas.empty, ((3, 2),))),
        ((pgas.empty, (10,)), (pgas.empty, (1 << 40,))),
    ],
    ids=["size", "dtype", "function", "shape", "exhausting"],
)
def test_pes_ask_for_different_arrays(heap, me, n, usual, other, odd):
    """Every PE gets an error that names both requests, and none hangs. The heap is unchanged."""
    where = address(probe := heap.empty(16, np.uint8))
    heap.free(probe)
    who = 0 if odd == "first" else n - 1
    function, args = other if me == who else usual
    for text in texts_everywhere(pgas.HeapError, function, *args):
        for function, (shape, *dtype) in (usual, other):
            shape = shape if isinstance(shape, tuple) else (shape,)
            request = f"pgas.{function.__name__}(shape={shape}, dtype={np.dtype(dtype[0] if dtype else 'float64')}"
            assert request in text, f"{request} not in {text}"
        assert "PE 0 called" in text
        assert f"PE {1 if who == 0 else who} called" in text
    heap_is_as_before(heap, where)


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
def test_free_against_empty(heap):
    array = heap.zeros(10)
    where = address(probe := heap.empty(16, np.uint8))
    heap.free(probe)
    call = (lambda: pgas.free(array)) if pgas.my_pe() == 0 else (lambda: pgas.empty(7, np.int16))
    for text in texts_everywhere(pgas.HeapError, call):
        assert "PE 0 called pgas.free(" in text
        assert "PE 1 called pgas.empty(shape=(7,), dtype=int16" in text
    heap_is_as_before(heap, where)
    equal(array, np.zeros(10))


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
def test_barrier_against_empty(heap):
    call = pgas.barrier_all if pgas.my_pe() == 0 else (lambda: pgas.empty(7, np.int16))
    for text in texts_everywhere(pgas.PgasError, call):
        assert "PE 0 called pgas.barrier_all()" in text
        assert "PE 1 called pgas.empty(" in text


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
def test_pes_free_different_arrays(heap):
    first, second = heap.zeros(10), heap.zeros(10)
    for text in texts_everywhere(pgas.HeapError, pgas.free, first if pgas.my_pe() == 0 else second):
        assert text.count("pgas.free(") == 2
    equal(first, np.zeros(10))


@checklist("Symmetric heap", "PEs that disagree get an error, no hang")
@needs_peer
def test_an_error_of_one_pe(heap):
    """A PE's own mistake is an error there; the others get one from the collective call that it does not make."""
    if pgas.my_pe() == 0:
        raised_by(ValueError, pgas.empty, -1)
        text = raised_by(pgas.PgasError, pgas.barrier_all)
    else:
        text = raised_by(pgas.PgasError, pgas.empty, 1)
    assert "PE 0 called pgas.barrier_all()" in text


# ------------------------------------------------------------------------------------------------------------- use after free


@pytest.fixture
def freed(heap):
    """An array and a view of it that were arguments of an earlier launch, as compilers cache properties of arguments."""
    array = pgas.zeros(10, np.int32)
    view = array[2:8]
    increment[1, 32](array)
    increment[1, 32](view)
    pgas.synchronize()
    pgas.free(array)
    return array, view


@checklist("Symmetric heap", "freed arrays are refused")
@pytest.mark.parametrize("which", ["array", "view"])
@pytest.mark.parametrize(
    "use",
    [
        lambda a: a[1:3],
        lambda a: a[0],
        lambda a: a.copy_to_host(),
        lambda a: a.copy_to_device(np.zeros(a.shape, np.int32)),
        lambda a: a.__setitem__(slice(0, 2), 1),
        lambda a: a.reshape(2, -1),
        lambda a: a.view(np.uint8),
        lambda a: a.__cuda_array_interface__,
        lambda a: increment[1, 32](a),
        lambda a: pgas.ptr(a, 0),
    ],
    ids=["slice", "element", "copy_to_host", "copy_to_device", "setitem", "reshape", "view", "interface", "launch", "ptr"],
)
def test_use_after_free(freed, use, which):
    text = raised_by(pgas.HeapError, use, freed[0] if which == "array" else freed[1])
    assert "use after free" in text
    assert "int32 array of shape (10,)" in text
    assert "test_heap.py:" in text


@checklist("Symmetric heap", "freed arrays are refused")
def test_free_twice(freed):
    assert "already freed" in raised_by(pgas.HeapError, pgas.free, freed[0])


@checklist("Symmetric heap", "freed arrays are refused")
def test_memory_of_a_freed_array_in_another(heap):
    """The freed array stays refused when a new array takes its memory."""
    old = heap.zeros(10, np.int32)
    heap.free(old)
    new = heap.full(10, 4, np.int32)
    assert "use after free" in raised_by(pgas.HeapError, old.copy_to_host)
    equal(new, np.full(10, 4, np.int32))


@checklist("Symmetric heap", "freed arrays are refused")
def test_free_of_a_view(heap):
    array = heap.zeros((4, 5))
    for view in (array[1:], array[:2], array[0]):
        assert "view" in raised_by(ValueError, pgas.free, view)
    equal(array, np.zeros((4, 5)))


@checklist("Symmetric heap", "free of nothing")
def test_free_of_anything_else(heap):
    for other in (np.zeros(3), cuda.to_device(np.zeros(3)), None, 7):
        assert "symmetric heap" in raised_by(ValueError, pgas.free, other)


@checklist("Symmetric heap", "freed arrays are refused")
@needs_mapped_peers
@needs_peer
def test_free_of_a_peers_instance(heap):
    array = heap.zeros(5)
    theirs = pgas.ptr(array, neighbors()[2])
    raised_by(ValueError, pgas.free, theirs)
    equal(array, np.zeros(5))


@checklist("Symmetric heap", "freed arrays are refused")
def test_free_waits_for_kernels(heap):
    array = heap.zeros(1000, np.int64)
    for _ in range(3):
        increment[32, 32](array)
    heap.free(array)
    equal(heap.zeros(1000, np.int64), np.zeros(1000, np.int64))


# --------------------------------------------------------------------------------------------------- what a library may refuse


@checklist("Symmetric heap", "free of nothing")
def test_free_of_none(heap):
    """It does nothing, as shmem_free(NULL), or is refused."""
    try:
        pgas.free(None)
    except ValueError as error:
        refused(error)


@checklist("Symmetric heap", "ptr: unreachable PEs, other memory")
@needs_peer
def test_ptr_of_a_peer_that_is_not_mapped(heap):
    """ptr() of the peer is None; that of the PE itself is not."""
    array = heap.full(4, 3, np.int32)
    theirs, mine = pgas.ptr(array, neighbors()[2]), pgas.ptr(array, pgas.my_pe())
    everywhere("ptr() of the PE itself is None" if mine is None and not THROUGH_NIC else None)
    for found in (theirs, mine):  # some PEs may map their neighbor's memory, others not
        everywhere(None if found is None else difference(found, np.full(4, 3, np.int32)))


@checklist("Symmetric heap", "registration of memory from elsewhere")
@needs("register", "unregister")
def test_registered_memory_is_a_local_operand(heap, me, right, left):
    """For put and get. To register it twice, or to use it unregistered, is an error."""
    dest, buffer = Watched(heap, 2048, np.int64), cuda.to_device(payload(1024, np.int64, me))
    try:
        pgas.register(buffer)
    except (ValueError, TypeError, pgas.PgasError) as error:
        refused(error)
    put_whole[1, 64](dest.array[100:1124], buffer, right)
    dest.holds(100, payload(1024, np.int64, left))
    pgas.unregister(buffer)
    raised_by((ValueError, pgas.PgasError), pgas.unregister, buffer)


@checklist("Symmetric heap", "growth past the first heap")
def test_growth(heap, me, right, left):
    """An array that does not fit into the initial heap; puts to both of its ends work."""
    nbytes = HEAP_SIZE + (32 << 20)
    try:
        big = heap.empty(nbytes, np.uint8)
    except pgas.HeapError as error:
        refused(error)
    source = heap.array(payload(40, np.uint8, me))
    for at in (0, nbytes - 40):
        put_slice[1, 32](big, at, source, right)
    pgas.barrier_all()
    for at in (0, nbytes - 40):
        everywhere(difference(big[at : at + 40].copy_to_host(), payload(40, np.uint8, left)))


@pgas.jit
def put_get_and_add(dest, source, back, idx, pe):
    """The put and the get cross the end of the initial heap; the atomics are on both sides of it."""
    pgas.put_block(dest, source, pe)
    pgas.quiet()
    cuda.syncthreads()
    pgas.get_block(back, dest, pe, source.size)
    if cuda.threadIdx.x == 0:
        for i in range(idx.size):
            pgas.atomic_add(dest, idx[i], 1000, pe)


@checklist("Symmetric heap", "growth past the first heap")
def test_growth_in_steps(heap, me, right, left):
    """Arrays across the end of the initial heap and beyond it. Earlier arrays and their views stay valid."""
    nelems = 20_000
    kept = heap.array(payload(1000, np.int64, 50 + me))
    view = kept[100:200]
    source, back = heap.array(payload(nelems, np.int64, me)), heap.empty(nelems, np.int64)
    idx = heap.array(np.array([0, nelems - 1, (2 << 20) - 1]))
    where = [address(kept), address(view)]
    try:
        heap.empty(HEAP_SIZE - (400 << 10), np.uint8)  # leaves too little room for source
        arrays = [heap.zeros(2 << 20, np.int64) for _ in range(5)]
    except pgas.HeapError as error:
        refused(error)
    for array in arrays:
        put_get_and_add[1, 64](array, source, back, idx, right)
        pgas.barrier_all()
        expected = np.zeros(2 << 20, np.int64)
        expected[:nelems] = payload(nelems, np.int64, left)
        expected[[0, nelems - 1, (2 << 20) - 1]] += 1000
        everywhere(difference(array.copy_to_host(), expected))
        everywhere(difference(back.copy_to_host(), payload(nelems, np.int64, me)))
    everywhere(None if [address(kept), address(view)] == where else "an array has moved")
    everywhere(difference(kept.copy_to_host(), payload(1000, np.int64, 50 + me)))
    pgas.barrier_all()
    put_whole[1, 32](view, source[:100], right)
    pgas.barrier_all()
    everywhere(difference(view.copy_to_host(), payload(nelems, np.int64, left)[:100]))


@checklist("Symmetric heap", "growth past the first heap", "loops of allocations leak nothing")
def test_memory_of_a_grown_heap_is_reused(heap):
    try:
        first = heap.empty(HEAP_SIZE + (100 << 20), np.uint8)
    except pgas.HeapError as error:
        refused(error)
    where = address(first)
    for _ in range(3):
        heap.free(first)
        parts = [heap.empty(HEAP_SIZE // 4 + (10 << 20), np.uint8) for _ in range(4)]
        for part in parts:
            heap.free(part)
        first = heap.empty(HEAP_SIZE + (100 << 20), np.uint8)
        assert address(first) == where
