"""Remote memory access: put, get, p and g move the right bytes and touch no others."""

import functools
import os

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numba import cuda, float64, int16, int32, int64, uint8

from conformance import library as pgas
from conformance.checks import (
    BLOCK,
    PARTICLE,
    PIXEL,
    PLAIN,
    POINT,
    RECORDS,
    WARP,
    Watched,
    as_many_examples,
    checklist,
    counterpart,
    equal,
    launch_together,
    name_of,
    nbytes_of,
    needs_any_memory,
    payload,
    put_whole,
)  # fmt: skip

THREADS = 64 if pgas.SIMULATOR else 256
LARGE = 1 << 16 if pgas.SIMULATOR else 1 << 22
ROUNDS = 4 if pgas.SIMULATOR else 50

#: By name: the number of threads that call it together.
PUTS = {"put": 1, "put_warp": WARP, "put_block": BLOCK, "put_nbi": 1, "put_nbi_warp": WARP, "put_nbi_block": BLOCK}
GETS = {"get": 1, "get_warp": WARP, "get_block": BLOCK, "get_nbi": 1, "get_nbi_warp": WARP, "get_nbi_block": BLOCK}
COPIES = {**PUTS, **GETS}


@functools.cache
def copying(copy):
    """Return a kernel that copies to dest[at:] from source[origin:]; get_nbi_warp is completed by quiet_pe, other nbi forms by quiet."""
    call, nbi, by_pe = getattr(pgas, copy), "nbi" in copy, copy == "get_nbi_warp"

    @pgas.jit
    def copies(dest, at, source, origin, nelems, pe):
        call(dest[at : at + nelems], source[origin : origin + nelems], pe)
        if by_pe:
            pgas.quiet_pe(pe)
        elif nbi:
            pgas.quiet()

    return copies


copies = pytest.mark.parametrize("copy", COPIES)
dtypes = pytest.mark.parametrize("dtype", PLAIN + RECORDS, ids=name_of)
plain_dtypes = pytest.mark.parametrize("dtype", PLAIN, ids=name_of)


def move(copy, dest, at, source, origin, nelems, *, pe):
    """Copy to PE pe (put) or from it (get)."""
    copying(copy)[1, COPIES[copy]](dest, at, source, origin, nelems, pe)


# ------------------------------------------------------------------------------------------------------ sizes, dtypes, offsets


@checklist("Remote memory access", "every type by every operation", "neighbors of dest are untouched")
@dtypes
def test_every_dtype(heap, me, left, dtype):
    """With every operation, each into its own place."""
    dest, source = Watched(heap, 150 * len(COPIES), dtype), heap.array(payload(128, dtype, me))
    for i, copy in enumerate(COPIES):
        move(copy, dest.array, 150 * i + 11, source, 3, 100, pe=counterpart(copy)[0])
        dest.expect(150 * i + 11, payload(128, dtype, left)[3:103])
    dest.check()


@checklist("Remote memory access", "sizes 0, 1, odd, around powers of two")
@copies
@pytest.mark.parametrize("dtype", [np.dtype("uint8"), np.dtype("float32"), PIXEL], ids=name_of)
def test_sizes(heap, copy, dtype):
    """0, 1, odd sizes, and powers of two with their neighbors."""
    pe, left = counterpart(copy)
    sizes = (0, 1, 3, 15, 16, 17, 31, 33, 95, 97, 255, 256, 1025)
    dest, source = Watched(heap, 1100 * len(sizes), dtype), heap.array(payload(1100, dtype, pgas.my_pe()))
    expected = payload(1100, dtype, left)
    for i, nelems in enumerate(sizes):
        move(copy, dest.array, 1100 * i + 32, source, 16, nelems, pe=pe)
        dest.expect(1100 * i + 32, expected[16 : 16 + nelems])
    dest.check()


@checklist("Remote memory access", "any alignment of dest and source")
@copies
def test_every_alignment_of_dest_and_source(heap, copy):
    """Offsets in bytes, so head, 16-byte body and tail of a copy have all lengths."""
    pe, left = counterpart(copy)
    offsets = [(i, 0) for i in range(17)] + [(0, i) for i in range(1, 17, 3)] + [(i, i) for i in range(1, 16, 3)] + [(3, 11), (8, 4)]
    dest, source = Watched(heap, 128 * len(offsets), np.uint8), heap.array(payload(128, np.uint8, pgas.my_pe()))
    expected = payload(128, np.uint8, left)
    for i, (at, origin) in enumerate(offsets):
        nelems = (77, 5, 16)[i % 3]
        move(copy, dest.array, 128 * i + 16 + at, source, 16 + origin, nelems, pe=pe)
        dest.expect(128 * i + 16 + at, expected[16 + origin : 16 + origin + nelems])
    dest.check()


@checklist("Remote memory access", "any alignment of dest and source")
@pytest.mark.parametrize("parts", [("float32", "complex64"), ("float64", "complex128")], ids=lambda p: p[1])
def test_complex_numbers_at_the_alignment_of_their_parts(heap, me, left, parts):
    real, both = map(np.dtype, parts)
    dest, source = Watched(heap, 64 * len(COPIES) + 1, real), heap.array(payload(64, real, me))
    for i, copy in enumerate(COPIES):
        move(copy, dest.array[1:].view(both), 32 * i + 2, source[3:63].view(both), 1, 25, pe=counterpart(copy)[0])
        dest.expect(64 * i + 5, payload(64, real, left)[5:55])
    dest.check()


@checklist(
    "Remote memory access", "sizes 0, 1, odd, around powers of two", "any alignment of dest and source", "neighbors of dest are untouched"
)
@pytest.mark.parametrize("dtype", [np.dtype(d) for d in ("uint8", "int16", "complex128")] + [POINT, PARTICLE], ids=name_of)
def test_any_size_at_any_offset(heap, me, left, dtype):
    """Hypothesis chooses operation, length and offsets."""
    room = 300
    dest, source = Watched(heap, 2 * room, dtype), heap.array(payload(2 * room, dtype, me))
    expected = payload(2 * room, dtype, left)

    @as_many_examples
    @given(st.sampled_from(sorted(COPIES)), st.integers(0, room), st.integers(0, room), st.integers(0, room))
    @example("put_block", 0, 0, room)
    @example("get_warp", room, room, room)
    def copies_exactly(copy, at, origin, nelems):
        copy, at, origin, nelems = pgas.allgather_object((copy, at, origin, nelems))[0]
        move(copy, dest.array, at, source, origin, nelems, pe=counterpart(copy)[0])
        dest.holds(at, expected[origin : origin + nelems])

    copies_exactly()


@checklist("Remote memory access", "sizes 0, 1, odd, around powers of two")
@copies
def test_large(heap, copy):
    pe, left = counterpart(copy)
    dest, source = Watched(heap, LARGE + 64, np.uint32), heap.array(payload(LARGE, np.uint32, pgas.my_pe()))
    move(copy, dest.array, 33, source, 0, LARGE, pe=pe)
    dest.holds(33, payload(LARGE, np.uint32, left))


# ----------------------------------------------------------------------------------------------------------- who copies to whom


@checklist("Remote memory access", "itself as target")
@copies
def test_to_and_from_itself(heap, me, copy):
    dest, source = Watched(heap, 200, np.int16), heap.array(payload(120, np.int16, me))
    move(copy, dest.array, 5, source, 0, 111, pe=me)
    dest.holds(5, payload(120, np.int16, me)[:111])


@pgas.jit
def exchange_by_puts(dest, source, nelems):
    me, n = pgas.my_pe(), pgas.n_pes()
    for pe in range(cuda.blockIdx.x, n, cuda.gridDim.x):
        pgas.put_block(dest[me * nelems : (me + 1) * nelems], source[pe * nelems : (pe + 1) * nelems], pe)


@pgas.jit
def exchange_by_gets(dest, source, nelems):
    me, n = pgas.my_pe(), pgas.n_pes()
    for pe in range(cuda.blockIdx.x, n, cuda.gridDim.x):
        pgas.get_block(dest[pe * nelems : (pe + 1) * nelems], source[me * nelems : (me + 1) * nelems], pe)


@checklist("Remote memory access", "all pairs of PEs")
@pytest.mark.parametrize("kernel", [exchange_by_puts, exchange_by_gets], ids=["put", "get"])
@pytest.mark.parametrize("blocks", [1, 4])
def test_all_to_all(heap, me, n, kernel, blocks):
    nelems = 101
    dest = Watched(heap, n * nelems + 1, np.int32)
    source = heap.array(payload(n * nelems, np.int32, me))
    kernel[blocks, 40](dest.array, source, nelems)
    dest.holds(0, np.concatenate([payload(n * nelems, np.int32, pe)[me * nelems : (me + 1) * nelems] for pe in range(n)]))


@checklist("Remote memory access", "circular shift", "all pairs of PEs")
@copies
def test_circular_shift_by_every_distance(heap, me, n, copy):
    dest, source = Watched(heap, 50 * n, np.float64), heap.array(payload(40, np.float64, me))
    for distance in range(n):
        to, origin = (me + distance) % n, (me - distance) % n
        move(copy, dest.array, 7 + 50 * distance, source, 0, 40, pe=to if copy in PUTS else origin)
        dest.expect(7 + 50 * distance, payload(40, np.float64, origin))
    dest.check()


# --------------------------------------------------------------------------------------------------------------- single elements


@pgas.jit
def p_each(dest, at, source, nelems, pe):
    i = cuda.grid(1)
    if i < nelems:
        pgas.p(dest, at + i, source[i], pe)


@pgas.jit
def g_each(dest, at, source, nelems, pe):
    i = cuda.grid(1)
    if i < nelems:
        dest[at + i] = pgas.g(source, i, pe)


@checklist("Remote memory access", "every type by every operation")
@pytest.mark.parametrize(("kernel", "copy"), [(p_each, "put"), (g_each, "get")], ids=["p", "g"])
@plain_dtypes
def test_single_elements_of_every_dtype(heap, kernel, copy, dtype):
    pe, left = counterpart(copy)
    dest, source = Watched(heap, 120, dtype), heap.array(payload(100, dtype, pgas.my_pe()))
    kernel[4, 32](dest.array, 9, source, 100, pe)
    dest.holds(9, payload(100, dtype, left))


@pgas.jit
def p_converted(dest, pe):
    pgas.p(dest, 0, 7, pe)
    pgas.p(dest, 1, True, pe)
    pgas.p(dest, 2, int16(100), pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@plain_dtypes
def test_p_converts_values_like_an_assignment(heap, right, dtype):
    dest = heap.zeros(4, dtype)
    p_converted[1, 1](dest, right)
    equal(dest, np.array([7, 1, 100, 0]).astype(dtype))


@pgas.jit
def p_float(dest, value, pe):
    pgas.p(dest, 0, value, pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@pytest.mark.parametrize("dtype", [np.dtype(d) for d in ("int32", "uint64", "float32", "complex64", "float16")], ids=name_of)
def test_p_converts_a_float(heap, right, left, dtype):
    dest = heap.zeros(2, dtype)
    p_float[1, 1](dest, 2.75 + pgas.my_pe(), right)
    equal(dest, np.array([2.75 + left, 0]).astype(dtype))


# ---------------------------------------------------------------------------------------------------------- dimensions and slices


@pgas.jit
def transposed_by_p(dest, source, pe):
    i, j = cuda.grid(2)
    if i < source.shape[0] and j < source.shape[1]:
        pgas.p(dest, (j, i), source[i, j], pe)


@pgas.jit
def transposed_by_g(dest, source, pe):
    i, j = cuda.grid(2)
    if i < source.shape[0] and j < source.shape[1]:
        dest[j, i] = pgas.g(source, (i, j), pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@pytest.mark.parametrize(("kernel", "copy"), [(transposed_by_p, "put"), (transposed_by_g, "get")], ids=["p", "g"])
def test_two_dimensions_by_element(heap, kernel, copy):
    pe, left = counterpart(copy)
    shape = (5, 11)
    dest, source = Watched(heap, shape[::-1], np.int64), heap.array(payload(55, np.int64, pgas.my_pe()).reshape(shape))
    kernel[(2, 2), (4, 8)](dest.array, source, pe)
    equal(dest.array, payload(55, np.int64, left).reshape(shape).T)


@pgas.jit
def cube_by_p(dest, source, pe):
    i, j, k = cuda.grid(3)
    pgas.p(dest, (i, int16(j), k), source[i, j, k], pe)


@pgas.jit
def cube_by_g(dest, source, pe):
    i, j, k = cuda.grid(3)
    dest[i, j, k] = pgas.g(source, (i, j, k), pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@pytest.mark.parametrize(("kernel", "copy"), [(cube_by_p, "put"), (cube_by_g, "get")], ids=["p", "g"])
def test_three_dimensions_by_element(heap, kernel, copy):
    """Also in a 3-D grid of 3-D blocks."""
    pe, left = counterpart(copy)
    shape = (4, 6, 4)
    dest, source = Watched(heap, shape, np.float32), heap.array(payload(96, np.float32, pgas.my_pe()).reshape(shape))
    kernel[(2, 2, 2), (2, 3, 2)](dest.array, source, pe)
    equal(dest.array, payload(96, np.float32, left).reshape(shape))


@pgas.jit
def put_planes(dest, source, pe):
    """Whole arrays, planes, rows and parts of rows are contiguous."""
    pgas.put_block(dest[0], source[0], pe)
    pgas.put_block(dest[1, 1], source[1, 0], pe)
    pgas.put_block(dest[1, 2, 1:4], source[1, 1, 2:5], pe)
    pgas.put_block(dest[2:4], source[2:4], pe)
    pgas.put_block(dest[4:5, :, :], source[3:4, :, :], pe)
    pgas.put_block(dest[1, 0:1, 5:7], source[1, 2:3, ::1][:, 0:2], pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
def test_slices_in_kernels(heap, me, right, left):
    shape = (5, 3, 7)
    dest, source = Watched(heap, shape, np.int16), heap.array(payload(105, np.int16, me).reshape(shape))
    put_planes[1, 33](dest.array, source, right)
    expected, theirs = dest.image.copy(), payload(105, np.int16, left).reshape(shape)
    expected[0] = theirs[0]
    expected[1, 1] = theirs[1, 0]
    expected[1, 2, 1:4] = theirs[1, 1, 2:5]
    expected[2:4] = theirs[2:4]
    expected[4] = theirs[3]
    expected[1, 0, 5:7] = theirs[1, 2, 0:2]
    equal(dest.array, expected)


@pgas.jit
def get_whole(dest, source, pe):
    pgas.get_block(dest, source, pe)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@pytest.mark.parametrize(("kernel", "copy"), [(put_whole, "put"), (get_whole, "get")], ids=["put", "get"])
def test_slices_on_the_host(heap, me, kernel, copy):
    pe, left = counterpart(copy)
    flat, cube = Watched(heap, 90, np.uint16), Watched(heap, (4, 5, 6), np.uint16)
    source, cubes = heap.array(payload(90, np.uint16, me)), heap.array(payload(120, np.uint16, me).reshape(4, 5, 6))
    kernel[1, 32](flat.array[7:47], source[40:80], pe)
    kernel[1, 32](cube.array[1:3], cubes[2:4], pe)
    kernel[1, 32](cube.array[3, 2], cubes[0, 1], pe)
    cube.expect(30, payload(120, np.uint16, left)[60:])
    cube.holds(102, payload(120, np.uint16, left)[6:12])
    flat.holds(7, payload(90, np.uint16, left)[40:80])


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
def test_arrays_in_fortran_order(heap, me, right, left):
    dest, source = Watched(heap, (3, 8), np.int32), heap.array(payload(24, np.int32, me).reshape(3, 8))
    put_whole[1, 32](dest.array.T, source.T, right)
    equal(dest.array, payload(24, np.int32, left).reshape(3, 8))


@checklist("Remote memory access", "sizes 0, 1, odd, around powers of two")
def test_empty_arrays(heap, right):
    for shape in (0, (3, 0, 2)):
        dest, source = heap.empty(shape, np.int32), heap.empty(shape, np.int32)
        put_whole[1, 32](dest, source, right)
        get_whole[1, 32](dest, source, right)


# ----------------------------------------------------------------------------------------------------------------------- nelems


@pgas.jit
def counted(dest, source, nelems, pe, scope):
    if scope == 0:
        if cuda.threadIdx.x == 0:
            pgas.put(dest, source, pe, nelems)
    elif scope == 1:
        if cuda.threadIdx.x < WARP:
            pgas.put_warp(dest, source, pe, nelems=nelems)
    elif scope == 2:
        pgas.put_nbi_block(dest, source, pe, nelems, 0)
    elif scope == 3:
        pgas.get_block(dest, source, pe, nelems=nelems)
    elif cuda.threadIdx.x < WARP:
        pgas.get_warp(dest, source, pe, nelems)


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
@pytest.mark.parametrize("scope", range(5))
def test_nelems(heap, scope):
    """The first nelems elements of both arrays, whose lengths may differ."""
    pe, left = counterpart("put" if scope < 3 else "get")
    dest, source = Watched(heap, 280, np.uint32), heap.array(payload(60, np.uint32, pgas.my_pe()))
    for i, nelems in enumerate((0, 1, 29, 60)):
        counted[1, 64](dest.array[70 * i : 70 * i + 70], source, nelems, pe, scope)
        dest.expect(70 * i, payload(60, np.uint32, left)[:nelems])
    dest.check()


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
def test_nelems_counts_through_all_dimensions(heap, me, right, left):
    dest, source = Watched(heap, (6, 7), np.uint32), heap.array(payload(42, np.uint32, me).reshape(6, 7))
    counted[1, 64](dest.array, source, 17, right, 2)
    dest.holds(0, payload(42, np.uint32, left)[:17])


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
def test_without_nelems_all_of_source_is_copied(heap, me, right, left):
    dest, source = Watched(heap, 50, np.uint32), heap.array(payload(20, np.uint32, me))
    put_whole[1, 64](dest.array, source, right)
    dest.holds(0, payload(20, np.uint32, left))


# ---------------------------------------------------------------------------------------------------------------- local operands


@pgas.jit
def put_from_shared(dest, start, pe):
    buffer = cuda.shared.array(70, int32)
    for i in range(cuda.threadIdx.x, 70, cuda.blockDim.x):
        buffer[i] = start + i
    pgas.put_block(dest[3:73], buffer, pe)
    pgas.put_block(dest[80:89], buffer[11:20], pe)


@pgas.jit
def get_into_shared(dest, source, pe):
    buffer = cuda.shared.array(70, int32)
    pgas.get_block(buffer[1:], source[2:71], pe)
    for i in range(cuda.threadIdx.x, 69, cuda.blockDim.x):
        dest[i] = buffer[1 + i]


@pgas.jit
def put_from_local(dest, start, pe):
    buffer = cuda.local.array(9, float64)
    for i in range(9):
        buffer[i] = start + 100 * cuda.threadIdx.x + i
    pgas.put(dest[9 * cuda.threadIdx.x : 9 * (cuda.threadIdx.x + 1)], buffer, pe)


@pgas.jit
def get_into_local(dest, source, pe):
    buffer = cuda.local.array(9, float64)
    t = cuda.threadIdx.x
    pgas.get(buffer, source[9 * t : 9 * (t + 1)], pe)
    for i in range(9):
        dest[9 * t + i] = buffer[i]


@checklist("Remote memory access", "local operands off the heap")
@needs_any_memory
def test_shared_memory_as_source(heap, me, right, left):
    dest = Watched(heap, 100, np.int32)
    put_from_shared[1, 48](dest.array, 1000 * me, right)
    expected, numbers = dest.image.copy(), np.arange(70, dtype=np.int32) + 1000 * left
    expected[3:73], expected[80:89] = numbers, numbers[11:20]
    equal(dest.array, expected)


@checklist("Remote memory access", "local operands off the heap")
@needs_any_memory
def test_shared_memory_as_destination(heap, me, left):
    dest, source = Watched(heap, 80, np.int32), heap.array(payload(80, np.int32, me))
    get_into_shared[1, 48](dest.array, source, left)
    dest.holds(0, payload(80, np.int32, left)[2:71])


@checklist("Remote memory access", "local operands off the heap")
@needs_any_memory
def test_local_memory_as_source(heap, me, right, left):
    dest = Watched(heap, 300, np.float64)
    put_from_local[1, 33](dest.array, float(me), right)
    dest.holds(0, np.array([left + 100.0 * t + i for t in range(33) for i in range(9)]))


@checklist("Remote memory access", "local operands off the heap")
@needs_any_memory
def test_local_memory_as_destination(heap, me, left):
    dest, source = Watched(heap, 300, np.float64), heap.array(payload(300, np.float64, me))
    get_into_local[1, 33](dest.array, source, left)
    dest.holds(0, payload(300, np.float64, left)[:297])


@checklist("Remote memory access", "local operands off the heap")
@needs_any_memory
def test_memory_of_other_allocators(heap, me, right, left):
    """Device memory that is not symmetric may be a local operand."""
    dest = Watched(heap, 100, np.float32)
    theirs, mine = cuda.to_device(payload(90, np.float32, me)), cuda.to_device(np.zeros(90, np.float32))
    put_whole[1, 64](dest.array[4:94], theirs, right)
    dest.holds(4, payload(90, np.float32, left))
    get_whole[1, 64](mine, dest.array[4:94], right)
    equal(mine, payload(90, np.float32, me))


# -------------------------------------------------------------------------------------------------------------------- records


@pgas.jit
def fill_and_put_records(dest, source, right):
    i = cuda.threadIdx.x
    source[i].mass = 1.5 * i
    source[i]["charge"] = -i
    source[i].kind = 3 * i + pgas.my_pe()
    cuda.syncthreads()
    pgas.put_block(dest[2:], source, right)


@pgas.jit
def get_records(out, source, buffer, pe):
    i = cuda.threadIdx.x
    pgas.get_block(buffer, source, pe)
    out[i] = buffer[i].mass + buffer[i]["charge"] + buffer[i].kind


@checklist("Remote memory access", "slices, dimensions, counts, conversions")
def test_fields_of_records(heap, right, left):
    """Kernels read and write the fields of symmetric records."""
    dest, source, buffer = heap.zeros(42, PARTICLE), heap.zeros(40, PARTICLE), heap.zeros(42, PARTICLE)
    fill_and_put_records[1, 40](dest, source, right)
    expected, i = np.zeros(42, PARTICLE), np.arange(40)
    expected["mass"][2:], expected["charge"][2:], expected["kind"][2:] = 1.5 * i, -i, 3 * i + left
    equal(dest, expected)
    out = heap.zeros(42, np.float64)
    get_records[1, 42](out, dest, buffer, pgas.my_pe())
    equal(out, expected["mass"] + expected["charge"] + expected["kind"])


# ----------------------------------------------------------------------------------------------------------------- completion


@pgas.jit
def put_and_reuse(dest, source, rounds, nelems, pe):
    """A blocking put has read its source on return."""
    for i in range(rounds):
        for j in range(cuda.threadIdx.x, nelems, cuda.blockDim.x):
            source[j] = 1000 * i + j
        pgas.put_block(dest[i * nelems : (i + 1) * nelems], source[:nelems], pe)


@pgas.jit
def put_and_reuse_by_thread(dest, source, rounds, nelems, pe):
    t = cuda.threadIdx.x
    for i in range(rounds):
        source[t] = 1000 * i + t
        pgas.put(dest[i * nelems + t : i * nelems + t + 1], source[t : t + 1], pe)


@pgas.jit
def put_and_reuse_by_warp(dest, source, rounds, nelems, pe):
    warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
    first = warp * WARP
    last = min(first + WARP, nelems)
    for i in range(rounds):
        if first + lane < nelems:
            source[first + lane] = 1000 * i + first + lane
        pgas.put_warp(dest[i * nelems + first : i * nelems + last], source[first:last], pe)


@functools.cache
def put_nbi_and_reuse(complete, everybody):
    """Return a kernel that writes to the source again after quiet or flush, which covers the puts that happen before it."""
    call = getattr(pgas, complete)

    @pgas.jit
    def kernel(dest, source, rounds, nelems, pe):
        for i in range(rounds):
            for j in range(cuda.threadIdx.x, nelems, cuda.blockDim.x):
                source[j] = 1000 * i + j
            pgas.put_nbi_block(dest[i * nelems : (i + 1) * nelems], source[:nelems], pe)
            if not everybody:
                cuda.syncthreads()
            if everybody or cuda.threadIdx.x == 0:
                call()
            cuda.syncthreads()

    return kernel


IS_FREE = checklist("Remote memory access", "source is free after a blocking put")
NBI_QUIET = checklist("Remote memory access", "nbi, then quiet")


@pytest.mark.parametrize(
    ("kernel", "threads"),
    [
        pytest.param(put_and_reuse, 70, marks=IS_FREE, id="block"),
        pytest.param(put_and_reuse_by_thread, 70, marks=IS_FREE, id="thread"),
        pytest.param(put_and_reuse_by_warp, 70, marks=IS_FREE, id="warp"),
        pytest.param(put_nbi_and_reuse("quiet", True), 40, marks=NBI_QUIET, id="quiet of each"),
        pytest.param(put_nbi_and_reuse("flush", True), 40, marks=IS_FREE, id="flush of each"),
        pytest.param(put_nbi_and_reuse("flush", False), 40, marks=IS_FREE, id="flush of one"),
    ],
)
def test_source_may_be_reused(heap, right, kernel, threads):
    rounds, nelems = 5 * ROUNDS, 70
    dest, source = Watched(heap, rounds * nelems + 3, np.int64), heap.zeros(nelems, np.int64)
    kernel[1, threads](dest.array, source, rounds, nelems, right)
    dest.holds(0, np.concatenate([1000 * i + np.arange(nelems, dtype=np.int64) for i in range(rounds)]))


@pgas.jit
def get_nbi_of_all(dest, source, nelems, wrong):
    """Get from every PE at once; one thread calls quiet between two barriers of the block."""
    n, t = pgas.n_pes(), cuda.threadIdx.x
    for pe in range(n):
        pgas.get_nbi_block(dest[pe * nelems : (pe + 1) * nelems], source, pe)
    cuda.syncthreads()
    if t == 0:
        pgas.quiet()
        for pe in range(n):
            for i in range(nelems):
                if dest[pe * nelems + i] != 1000 * pe + i:
                    cuda.atomic.add(wrong, 0, 1)


@checklist("Remote memory access", "nbi, then quiet")
def test_one_quiet_completes_the_gets_of_a_block(heap, me, n):
    nelems = 77
    dest, source, wrong = (
        heap.zeros(n * nelems, np.int32),
        heap.array(1000 * me + np.arange(nelems, dtype=np.int32)),
        heap.zeros(1, np.int32),
    )
    get_nbi_of_all[1, 48](dest, source, nelems, wrong)
    equal(wrong, np.zeros(1, np.int32))


@functools.cache
def copying_many(copy):
    """Return a kernel with as many calls of put_nbi or get_nbi as there are groups of three elements."""
    call = getattr(pgas, copy)

    @pgas.jit
    def kernel(dest, source, count, pe):
        for i in range(cuda.grid(1), count, cuda.gridsize(1)):
            call(dest[3 * i : 3 * i + 3], source[3 * i : 3 * i + 3], pe)
        pgas.quiet()

    return kernel


@checklist("Remote memory access", "more outstanding than queues hold", "nbi, then quiet")
@pytest.mark.parametrize("copy", ["put_nbi", "get_nbi"])
def test_many_outstanding(heap, copy):
    pe, left = counterpart(copy)
    count = 2000 if pgas.SIMULATOR else 200_000
    dest, source = Watched(heap, 3 * count, np.uint16), heap.array(payload(3 * count, np.uint16, pgas.my_pe()))
    copying_many(copy)[2, 16](dest.array, source, count, pe)
    dest.holds(0, payload(3 * count, np.uint16, left))


@pgas.jit
def put_quiet_get(dest, source, back, nelems, pe):
    """Get back what this block has put and completed."""
    pgas.put_block(dest[:nelems], source[:nelems], pe)
    pgas.quiet()
    cuda.syncthreads()
    pgas.get_block(back[:nelems], dest[:nelems], pe)


@checklist("Remote memory access", "get after put")
def test_get_after_put_and_quiet(heap, me, right, left):
    dest, source, back = heap.zeros(500, np.float64), heap.array(payload(500, np.float64, me)), heap.zeros(500, np.float64)
    put_quiet_get[1, 64](dest, source, back, 491, right)
    expected = payload(500, np.float64, me)
    expected[491:] = 0
    equal(back, expected)
    expected = payload(500, np.float64, left)
    expected[491:] = 0
    equal(dest, expected)


# ------------------------------------------------------------------------------------------------------- threads, warps, blocks


@functools.cache
def copying_pieces(copy):
    """Return a kernel in which every thread, warp or block copies its own piece."""
    call, group = getattr(pgas, copy), {"": 1, "_warp": WARP, "_block": THREADS}[copy[3:]]

    @pgas.jit
    def copies(dest, source, chunk, pe):
        i = cuda.grid(1) // group
        call(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], pe)

    return copies, group


@checklist("Remote memory access", "threads, warps and blocks at once")
@pytest.mark.parametrize("copy", ["put", "put_warp", "put_block", "get", "get_warp", "get_block"])
def test_many_at_the_same_time(heap, copy):
    """Each thread, warp or block copies its own odd-sized piece, and nothing into a neighbor's."""
    kernel, group = copying_pieces(copy)
    pe, left = counterpart(copy)
    blocks, chunk = 4, 13
    size = blocks * THREADS // group * chunk
    dest, source = Watched(heap, size + 5, np.uint8), heap.array(payload(size, np.uint8, pgas.my_pe()))
    kernel[blocks, THREADS](dest.array, source, chunk, pe)
    dest.holds(0, payload(size, np.uint8, left))


@pgas.jit
def divergent(dest, source, chunk, right, left):
    """Neighboring threads put and get in different branches."""
    i = cuda.grid(1)
    if i % 3 == 0:
        pgas.put(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], right)
    elif i % 3 == 1:
        for j in range(i * chunk, (i + 1) * chunk):
            pgas.p(dest, j, source[j], right)
    else:
        pgas.get(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], left)


@checklist("Remote memory access", "threads, warps and blocks at once")
@checklist("Concurrency", "diverged warps")
def test_divergent_threads(heap, me, right, left):
    dest, source = Watched(heap, 64 * 5 + 1, np.int32), heap.array(payload(64 * 5, np.int32, me))
    divergent[2, 32](dest.array, source, 5, right, left)
    dest.holds(0, payload(64 * 5, np.int32, left))


@checklist("Remote memory access", "threads, warps and blocks at once")
@pytest.mark.parametrize("block", [1, 31, 33, 45, (5, 3), (2, 3, 4), (16, 3, 1), (1, 1, 40)], ids=str)
def test_blocks_of_any_size_and_shape(heap, me, right, left, block):
    """Partial warps and numbering through two and three dimensions."""
    dest, source = Watched(heap, 404, np.int16), heap.array(payload(200, np.int16, me))
    put_whole[1, block](dest.array[1:201], source, right)
    get_whole[1, block](dest.array[202:402], source, left)
    dest.expect(1, payload(200, np.int16, left))
    dest.holds(202, payload(200, np.int16, left))


@pgas.jit
def warps_of_any_block(dest, source, chunk, pe):
    rank = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)
    i = rank // WARP
    pgas.put_warp(dest[i * chunk : (i + 1) * chunk], source[i * chunk : (i + 1) * chunk], pe)
    pgas.quiet()


@checklist("Remote memory access", "threads, warps and blocks at once")
@pytest.mark.parametrize("block", [1, 7, 33, 45, 64, (5, 13), (4, 3, 6)], ids=str)
def test_partial_warps(heap, me, right, left, block):
    warps = -(-int(np.prod(block)) // WARP)
    chunk = 75
    dest, source = Watched(heap, warps * chunk + 9, np.float32), heap.array(payload(warps * chunk, np.float32, me))
    warps_of_any_block[1, block](dest.array, source, chunk, right)
    dest.holds(0, payload(warps * chunk, np.float32, left))


@pgas.jit
def two_directions(dest, source, rounds, nelems, right):
    """Both PEs of each pair send at the same time, in many rounds, each to its own places."""
    for i in range(rounds):
        pgas.put_block(dest[i * nelems : (i + 1) * nelems], source[i * nelems : (i + 1) * nelems], right)
        if cuda.threadIdx.x == 0:
            pgas.barrier_all()
        cuda.syncthreads()


@checklist("Remote memory access", "threads, warps and blocks at once")
def test_rounds_in_one_kernel(heap, me, right, left):
    rounds, nelems = 2 * ROUNDS, int64(37)
    dest, source = Watched(heap, rounds * 37, np.int32), heap.array(payload(rounds * 37, np.int32, me))
    launch_together(two_directions, 1, 40, dest.array, source, rounds, nelems, right)
    dest.holds(0, payload(rounds * 37, np.int32, left))


BIG = (1 << 31) + (1 << 20) + 5

needs_two_big_arrays = pytest.mark.skipif(
    pgas.SIMULATOR or nbytes_of(os.environ.get("PGAS_SYMMETRIC_SIZE", "0")) < 2 * BIG + (64 << 20),
    reason="capability missing: a GPU and PGAS_SYMMETRIC_SIZE of 4.2 GiB or more",
)


@pgas.jit
def fill_with_numbers(array, first):
    for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
        array[i] = uint8((i * 2654435761 + first) >> 7)


@pgas.jit
def count_wrong_numbers(array, first, wrong):
    for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
        if array[i] != uint8((i * 2654435761 + first) >> 7):
            cuda.atomic.add(wrong, 0, 1)


@needs_two_big_arrays
@checklist("Remote memory access", "1 GiB and more than 2 GiB")
@pytest.mark.parametrize(("kernel", "copy"), [(put_whole, "put"), (get_whole, "get")], ids=["put", "get"])
@pytest.mark.parametrize("nbytes", [1 << 30, BIG], ids=["1GiB", "2GiB"])
def test_messages_of_gigabytes(heap, kernel, copy, nbytes):
    """One call of one block; the device writes and checks the bytes."""
    pe, left = counterpart(copy)
    dest, source, wrong = heap.zeros(nbytes, np.uint8), heap.empty(nbytes, np.uint8), heap.zeros(1, np.int64)
    fill_with_numbers[256, 256](source, 1000 * pgas.my_pe())
    pgas.barrier_all()
    kernel[1, 256](dest, source, pe)
    pgas.barrier_all()
    count_wrong_numbers[256, 256](dest, 1000 * left, wrong)
    equal(wrong, np.zeros(1, np.int64))
