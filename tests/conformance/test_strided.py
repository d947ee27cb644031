"""Strided copies: iput and iget move every n-th element, and nothing in between."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda

from conformance import library as pgas
from conformance.checks import (
    ALIGNED_POINT,
    BLOCK,
    PIXEL,
    PLAIN,
    RECORDS,
    WARP,
    Watched,
    as_many_examples,
    checklist,
    counterpart,
    equal,
    name_of,
    needs_any_memory,
    neighbors,
    payload,
)  # fmt: skip

#: An element of several parts, whose number is no power of two, larger than the most that a lane copies at once.
WIDE = np.dtype([("key", "i8"), ("values", "f4", 9), ("kind", "i4")], align=True)

STRIDES = [(1, 1), (1, 2), (2, 1), (2, 2), (7, 1), (1, 7), (2, 7), (7, 2), (7, 7)]


#: By name: the number of threads that call it together.
COPIES = {"iput": 1, "iput_warp": WARP, "iput_block": BLOCK, "iget": 1, "iget_warp": WARP, "iget_block": BLOCK}


@functools.cache
def copying(copy):
    """Return a kernel that copies to dest[at:] from source[origin:]."""
    call = getattr(pgas, copy)

    @pgas.jit
    def copies(dest, at, source, origin, steps, nelems, pe):
        call(dest[at:], source[origin:], steps[0], steps[1], pe, nelems)

    return copies


copies = pytest.mark.parametrize("copy", COPIES)


def move(copy, dest, at, source, origin, strides, nelems, *, pe):
    """Copy to PE pe (iput) or from it (iget)."""
    copying(copy)[1, COPIES[copy]](dest, at, source, origin, strides, nelems, pe)


def expect(dest, at, source, origin, strides, nelems):
    """Return the expected array after a strided copy of source."""
    for i in range(nelems):
        dest.expect(at + i * strides[0], source[origin + i * strides[1]].reshape(1))


# ------------------------------------------------------------------------------------------------------------ strides and sizes


@checklist("Remote memory access", "strided iput and iget")
@copies
@pytest.mark.parametrize("strides", STRIDES, ids=str)
def test_strides_and_sizes(heap, copy, strides):
    """Also zero elements, and more than a block has lanes. Gaps and neighbors stay unchanged."""
    pe, left = counterpart(copy)
    sizes = (0, 1, 33, 70)
    room = 7 * max(sizes) + 20
    dest, source = Watched(heap, room * len(sizes), np.int32), heap.array(payload(room, np.int32, pgas.my_pe()))
    for i, nelems in enumerate(sizes):
        move(copy, dest.array, room * i + 9, source, 5, strides, nelems, pe=pe)
        expect(dest, room * i + 9, payload(room, np.int32, left), 5, strides, nelems)
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@pytest.mark.parametrize("dtype", [*PLAIN, *RECORDS, WIDE], ids=name_of)
def test_every_dtype(heap, me, left, dtype):
    """With every operation, each into its own place. uint16 stands for bfloat16, too."""
    dest, source = Watched(heap, 150 * len(COPIES), dtype), heap.array(payload(128, dtype, me))
    for i, copy in enumerate(COPIES):
        move(copy, dest.array, 150 * i + 11, source, 3, (3, 2), 40, pe=counterpart(copy)[0])
        expect(dest, 150 * i + 11, payload(128, dtype, left), 3, (3, 2), 40)
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@copies
def test_unaligned_addresses(heap, copy):
    """Larger elements at odd addresses, with different alignments of the two operands."""
    pe, left = counterpart(copy)
    dest, source = Watched(heap, 4 * 1024, np.uint8), heap.array(payload(1024, np.uint8, pgas.my_pe()))
    theirs = payload(1024, np.uint8, left)
    for i, (at, origin) in enumerate([(0, 0), (1, 0), (0, 3), (5, 9)]):
        move(copy, dest.array, 1024 * i + at, source, origin, (2, 3), 200, pe=pe)
        expect(dest, 1024 * i + at, theirs, origin, (2, 3), 200)
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@copies
def test_numbers_at_the_alignment_of_their_parts(heap, copy):
    """Complex numbers at addresses that are multiples of only half their size."""
    pe, left = counterpart(copy)
    dest, source = Watched(heap, 301, np.float64), heap.array(payload(300, np.float64, pgas.my_pe()))
    move(copy, dest.array[1:].view(np.complex128), 2, source[:300].view(np.complex128), 1, (3, 4), 30, pe=pe)
    for i in range(30):
        first = 2 * (1 + 4 * i)
        dest.expect(1 + 2 * (2 + 3 * i), payload(300, np.float64, left)[first : first + 2])
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@pytest.mark.parametrize("dtype", [np.dtype("uint8"), np.dtype("float64"), PIXEL, ALIGNED_POINT], ids=name_of)
def test_any_size_stride_and_offset(heap, me, left, dtype):
    """Hypothesis chooses operation, lengths, strides and offsets."""
    room = 400
    dest, source = Watched(heap, room, dtype), heap.array(payload(room, dtype, me))
    theirs = payload(room, dtype, left)

    @as_many_examples
    @given(st.sampled_from(sorted(COPIES)), st.tuples(st.integers(1, 12), st.integers(1, 12)), st.integers(0, 99), st.integers(0, 99),
           st.integers(0, 25))  # fmt: skip
    def copies_exactly(copy, strides, at, origin, nelems):
        copy, strides, at, origin, nelems = pgas.allgather_object((copy, strides, at, origin, nelems))[0]
        move(copy, dest.array, at, source, origin, strides, nelems, pe=counterpart(copy)[0])
        expect(dest, at, theirs, origin, strides, nelems)
        dest.check()

    copies_exactly()


@checklist("Remote memory access", "strided iput and iget", "more outstanding than queues hold")
@copies
def test_more_elements_than_a_queue_holds(heap, copy):
    pe, left = counterpart(copy)
    nelems = 2500 if pgas.SIMULATOR else 250_000
    dest, source = Watched(heap, 3 * nelems, np.uint16), heap.array(payload(2 * nelems, np.uint16, pgas.my_pe()))
    move(copy, dest.array, 1, source, 1, (3, 2), nelems, pe=pe)
    dest.image[1::3] = payload(2 * nelems, np.uint16, left)[1::2]
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@copies
def test_to_and_from_itself(heap, me, copy):
    dest, source = Watched(heap, 200, np.int16), heap.array(payload(120, np.int16, me))
    move(copy, dest.array, 5, source, 1, (4, 2), 45, pe=me)
    expect(dest, 5, payload(120, np.int16, me), 1, (4, 2), 45)
    dest.check()


# ----------------------------------------------------------------------------------------------------------------------- nelems


@pgas.jit
def whole(dest, source, dst_stride, src_stride, to, origin):
    pgas.iput_block(dest[:100], source, dst_stride, src_stride, to)
    pgas.iget_block(dest[100:], source, dst_stride, src_stride, origin)


@checklist("Remote memory access", "strided iput and iget")
@pytest.mark.parametrize(("strides", "count"), [((1, 1), 60), ((3, 1), 34), ((3, 2), 30), ((2, 7), 9), ((99, 1), 2), ((100, 1), 1)])
def test_without_nelems_the_shorter_array_counts(heap, me, right, left, strides, count):
    dest, source = Watched(heap, 200, np.uint32), heap.array(payload(60, np.uint32, me))
    whole[1, 64](dest.array, source, *strides, right, left)
    for at in (0, 100):
        expect(dest, at, payload(60, np.uint32, left), 0, strides, count)
    dest.check()


@pgas.jit
def empty(dest, source, right):
    pgas.iput_block(dest[:0], source, 2, 3, right)
    pgas.iput(dest, source[:0], 2, 3, right)
    pgas.iget_warp(dest[:0], source[:0], 1, 1, right)


@checklist("Remote memory access", "strided iput and iget")
def test_empty_arrays(heap):
    dest, source = Watched(heap, 20, np.float32), heap.array(payload(20, np.float32, 0))
    empty[1, WARP](dest.array, source, neighbors()[2])
    dest.check()


# ------------------------------------------------------------------------------------------------------------------- dimensions


@pgas.jit
def columns(dest, source, to, pe):
    """Get column 2 of PE pe's source into column 4 of dest; put column 1 into column 0 of PE to's dest."""
    flat, theirs = dest.reshape(dest.size), source.reshape(source.size)
    pgas.iget_block(flat[4:], theirs[2:], dest.shape[1], source.shape[1], pe, source.shape[0])
    pgas.iput_block(flat, theirs[1:], dest.shape[1], source.shape[1], to, source.shape[0])


@checklist("Remote memory access", "strided iput and iget")
def test_columns_of_a_matrix(heap, me, right, left):
    dest, source = Watched(heap, (13, 6), np.float32), heap.array(payload(130, np.float32, me).reshape(13, 10))
    columns[1, 40](dest.array, source, right, left)
    theirs = payload(130, np.float32, left).reshape(13, 10)
    dest.image[:, 4], dest.image[:, 0] = theirs[:, 2], theirs[:, 1]
    dest.check()


# --------------------------------------------------------------------------------------------------------------- who calls it


@pgas.jit
def of_every_thread(dest, source, chunk, to, origin):
    """Each thread has its own strides and count; neighbors are in different branches."""
    t = cuda.grid(1)
    at = t * 5 * chunk
    if t % 2 == 0:
        pgas.iput(dest[at:], source[at:], 1 + t % 5, 1 + t % 3, to, t % (chunk + 1))
    else:
        pgas.iget(dest[at:], source[at:], 1 + t % 4, 1 + t % 5, origin, t % (chunk + 1))


@checklist("Remote memory access", "strided iput and iget")
def test_threads_with_strides_of_their_own(heap, me, right, left):
    threads, chunk = 2 * 40, 20
    dest, source = Watched(heap, threads * 5 * chunk, np.int32), heap.array(payload(threads * 5 * chunk, np.int32, me))
    of_every_thread[2, 40](dest.array, source, chunk, right, left)
    for t in range(threads):
        strides = (1 + t % 5, 1 + t % 3) if t % 2 == 0 else (1 + t % 4, 1 + t % 5)
        expect(dest, t * 5 * chunk, payload(threads * 5 * chunk, np.int32, left), t * 5 * chunk, strides, t % (chunk + 1))
    dest.check()


@checklist("Remote memory access", "strided iput and iget")
@pytest.mark.parametrize("block", [31, 45, (5, 3), (16, 3, 1)], ids=str)
def test_blocks_of_any_size_and_shape(heap, me, right, left, block):
    dest, source = Watched(heap, 200, np.int64), heap.array(payload(60, np.int64, me))
    whole[1, block](dest.array, source, 2, 3, right, left)
    for at in (0, 100):
        expect(dest, at, payload(60, np.int64, left), 0, (2, 3), 20)
    dest.check()


@pgas.jit
def iput_and_reuse(dest, source, rounds, nelems, pe):
    for r in range(rounds):
        for i in range(cuda.threadIdx.x, nelems, cuda.blockDim.x):
            source[2 * i] = 1000 * r + i
        pgas.iput_block(dest[r * 3 * nelems :], source, 3, 2, pe, nelems)


@checklist("Remote memory access", "strided iput and iget")
def test_source_may_be_reused_on_return(heap, right):
    """And the data arrives by the end of the kernel, as with put."""
    rounds, nelems = 10, 50
    dest, source = Watched(heap, rounds * 3 * nelems, np.int64), heap.zeros(2 * nelems, np.int64)
    iput_and_reuse[1, 40](dest.array, source, rounds, nelems, right)
    dest.image[::3] = [1000 * r + i for r in range(rounds) for i in range(nelems)]
    dest.check()


@pgas.jit
def through_shared_memory(dest, source, to, origin):
    buffer = cuda.shared.array(90, np.float32)
    pgas.iget_block(buffer, source, 3, 2, origin, 30)
    pgas.iput_block(dest, buffer, 2, 3, to, 30)


@checklist("Remote memory access", "strided iput and iget", "local operands off the heap")
@needs_any_memory
def test_shared_memory(heap, me, n, right, left):
    dest, source = Watched(heap, 60, np.float32), heap.array(payload(60, np.float32, me))
    through_shared_memory[1, 40](dest.array, source, right, left)
    expect(dest, 0, payload(60, np.float32, (me - 2) % n), 0, (2, 2), 30)
    dest.check()


# --------------------------------------------------------------------------------------------------------------------- refusals


@pgas.jit
def iput_plane(dest, source, pe):
    pgas.iput(dest[1:], source[1:], 2, 2, pe)


@pgas.jit
def iget_column(dest, source, pe):
    pgas.iget_block(dest, source[:, 1], 1, 2, pe)


@pgas.jit
def iput_float_stride(dest, source, pe):
    pgas.iput_warp(dest, source, 2.0, 1, pe)


@checklist("Python", "errors of dtype and arity are readable")
@pytest.mark.parametrize(
    ("kernel", "shape", "words"),
    [
        (iput_plane, (4, 4), r"pgas\.iput: dest and source have 2 dimensions, but must have 1, because strides count elements within"),
        (iget_column, (4, 4), r"pgas\.iget_block: (dest|source) (must be contiguous|has 1 dimension|has 2 dimensions)"),
        (iput_float_stride, 8, r"pgas\.iput_warp: dst_stride must be an integer, not float64"),
    ],
    ids=["plane", "column", "float"],
)
def test_refused_when_compiled(heap, kernel, shape, words):
    dest, source = heap.zeros(shape, np.float32), heap.zeros(shape, np.float32)
    with pytest.raises(Exception, match=words) as caught:
        kernel[1, WARP](dest, source, pgas.my_pe())
    assert type(caught.value).__name__ in ("TypeError", "TypingError")
    equal(dest, np.zeros(shape, np.float32))
