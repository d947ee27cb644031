"""The allocator of the symmetric heap: compared with an oracle that marks every unit; its messages."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pgas.base.config import size_text
from pgas.base.errors import HeapError
from pgas.job.memory.heap import ALIGNMENT, Allocator

BYTE = np.dtype(np.uint8)
UNITS = 64  # size of the small heaps here, in units of ALIGNMENT


def allocate(heap, nbytes, alignment=1, where="here.py:1"):
    return heap.allocate((nbytes,), BYTE, alignment, where)


class Oracle:
    """A heap with a flag for each unit; first fit by trying every place."""

    def __init__(self, units):
        self.taken = [False] * units

    def place(self, nbytes, alignment):
        span, step = max(1, -(-nbytes // ALIGNMENT)), max(1, alignment // ALIGNMENT)
        for start in range(0, len(self.taken) - span + 1, step):
            if not any(self.taken[start : start + span]):
                return start, span
        return None

    def lacking(self, nbytes, alignment):
        """Return by how many bytes the heap must grow, by trying every number of units."""
        longer = Oracle(0)
        for more in range(1 << 14):
            longer.taken = self.taken + [False] * more
            if longer.place(nbytes, alignment) is not None:
                return more * ALIGNMENT
        return None

    def extend(self, units):
        self.taken += [False] * units

    def mark(self, start, span, taken):
        assert self.taken[start : start + span] == [not taken] * span
        self.taken[start : start + span] = [taken] * span

    def runs(self):
        """Return the maximal free ranges, in bytes."""
        found, start = [], None
        for i, taken in enumerate([*self.taken, True]):
            if not taken and start is None:
                start = i
            elif taken and start is not None:
                found.append((start * ALIGNMENT, (i - start) * ALIGNMENT))
                start = None
        return found


class AllocatorMachine(RuleBasedStateMachine):
    @initialize(units=st.integers(1, UNITS))
    def start(self, units):
        self.heap, self.twin, self.oracle = (Allocator(units * ALIGNMENT), Allocator(units * ALIGNMENT), Oracle(units))
        self.live = []

    @rule(nbytes=st.integers(0, 12 * ALIGNMENT), shift=st.integers(0, 14))
    def allocate(self, nbytes, shift):
        expected = self.oracle.place(nbytes, 1 << shift)
        lacking = self.heap.lacking((nbytes,), BYTE, 1 << shift)
        assert lacking == self.oracle.lacking(nbytes, 1 << shift)
        if expected is None:
            texts = []
            for heap in (self.heap, self.twin):
                with pytest.raises(HeapError) as refused:
                    allocate(heap, nbytes, 1 << shift)
                texts.append(str(refused.value))
            free = self.oracle.runs()
            largest = max((n for _, n in free), default=0)
            total = sum(n for _, n in free)
            assert texts[0] == texts[1]
            aligned = f" at a multiple of {size_text(1 << shift)}" if 1 << shift > ALIGNMENT else ""
            words = f"{size_text(nbytes)} requested{aligned}, {size_text(total)} of {size_text(self.heap.size)} are free"
            assert f"{words}, and the largest free range has {size_text(largest)}" in texts[0]
            return
        start, span = expected
        block, same = allocate(self.heap, nbytes, 1 << shift), allocate(self.twin, nbytes, 1 << shift)
        assert (block.offset, block.span) == (same.offset, same.span) == (start * ALIGNMENT, span * ALIGNMENT)
        assert block.offset % max(ALIGNMENT, 1 << shift) == 0
        assert block.nbytes == nbytes
        self.oracle.mark(start, span, True)
        self.live.append((block, same))

    @rule(units=st.integers(1, 8))
    def extend(self, units):
        self.heap.extend(units * ALIGNMENT)
        self.twin.extend(units * ALIGNMENT)
        self.oracle.extend(units)

    @precondition(lambda self: getattr(self, "live", None))
    @rule(data=st.data())
    def release(self, data):
        block, same = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.heap.release(block)
        self.twin.release(same)
        assert block.freed
        self.oracle.mark(block.offset // ALIGNMENT, block.span // ALIGNMENT, False)

    @invariant()
    def free_ranges_are_the_oracles(self):
        if hasattr(self, "heap"):
            assert self.heap._free == self.oracle.runs()  # ascending, disjoint, coalesced
            assert {id(b) for b in self.heap.blocks} == {id(b) for b, _ in self.live}

    @invariant()
    def find_names_the_block(self):
        for block, _ in getattr(self, "live", []):
            assert self.heap.find(block.offset) is block
            assert self.heap.find(block.offset + max(block.nbytes, 1) - 1) is block
            assert self.heap.find(block.offset + max(block.nbytes, 1)) is not block


TestAllocatorMachine = AllocatorMachine.TestCase
TestAllocatorMachine.settings = settings(max_examples=60, stateful_step_count=30)


def test_everything_freed_is_one_range():
    heap = Allocator(UNITS * ALIGNMENT)
    blocks = [allocate(heap, n * 100) for n in range(12)]
    for i in (3, 5, 4, 0, 11, 1, 2, 10, 9, 6, 8, 7):
        heap.release(blocks[i])
    assert heap._free == [(0, heap.size)]
    assert heap.blocks == []
    assert allocate(heap, heap.size).offset == 0


def test_empty_arrays_have_distinct_addresses():
    heap = Allocator(UNITS * ALIGNMENT)
    first, second = allocate(heap, 0), allocate(heap, 0)
    assert first.nbytes == second.nbytes == 0
    assert first.offset != second.offset
    assert heap.find(first.offset) is first
    assert heap.find(second.offset) is second
    assert heap.find(first.offset + 1) is None


def test_over_4_gib():
    heap = Allocator(1 << 36)
    a = heap.allocate((3 << 30,), np.dtype(np.complex128), 1, "here.py:1")
    b = allocate(heap, 1)
    assert a.nbytes == 3 << 34
    assert b.offset == 3 << 34
    assert a.element((3 << 34) - 1) == f"[{(3 << 30) - 1}]"


@pytest.mark.parametrize("alignment", [0, -1, 3, 12, 513, -512])
def test_alignment_that_is_no_power_of_two(alignment):
    heap = Allocator(UNITS * ALIGNMENT)
    with pytest.raises(ValueError, match=f"alignment must be a power of two, not {alignment}"):
        allocate(heap, 8, alignment)
    assert heap._free == [(0, heap.size)]


@given(st.integers(0, 20))
def test_alignment_is_honored(shift):
    heap = Allocator(1 << 22)
    allocate(heap, 1)
    assert allocate(heap, 1, 1 << shift).offset == max(ALIGNMENT, 1 << shift)


def test_exhausted():
    heap = Allocator(8 * ALIGNMENT)
    blocks = [allocate(heap, ALIGNMENT) for _ in range(8)]
    heap.release(blocks[1])
    heap.release(blocks[4])
    heap.release(blocks[5])
    before = list(heap._free)
    with pytest.raises(HeapError) as refused:
        heap.allocate((2, 400), np.dtype(np.float64), 1, "here.py:1")
    assert str(refused.value) == (
        "symmetric heap exhausted: 6.25 KiB requested, 1.5 KiB of 4 KiB are free, and the largest free range has 1 KiB "
        "(the heap starts at PGAS_SYMMETRIC_SIZE and can grow to PGAS_MAX_MEMORY_PER_GPU, 4 KiB); the largest arrays: "
        + ", ".join(["uint8 array of shape (512,) allocated at here.py:1: 512 bytes"] * 3)
    )
    with pytest.raises(HeapError, match=r"^symmetric heap exhausted: 8 bytes requested at a multiple of 1 TiB, 1\.5 KiB of 4 KiB are free"):
        heap.allocate((1,), np.dtype(np.float64), 1 << 40, "here.py:1")
    assert heap._free == before
    assert len(heap.blocks) == 5


def test_a_block_across_the_seam():
    heap = Allocator(4 * ALIGNMENT)
    first = allocate(heap, 3 * ALIGNMENT)
    assert heap.lacking((3 * ALIGNMENT,), BYTE, 1) == 2 * ALIGNMENT
    heap.extend(4 * ALIGNMENT)
    assert (heap.size, heap._free) == (8 * ALIGNMENT, [(3 * ALIGNMENT, 5 * ALIGNMENT)])
    across = allocate(heap, 3 * ALIGNMENT)
    assert across.offset == 3 * ALIGNMENT
    heap.release(first)
    heap.release(across)
    assert heap._free == [(0, heap.size)]


def test_lacking_for_an_alignment():
    """From the end of the heap to the end of the block. Alignment refers to addresses in the slot, not to offsets in the heap."""
    heap = Allocator(4 * ALIGNMENT, origin=ALIGNMENT)
    assert heap.lacking((1,), BYTE, 4 * ALIGNMENT) == 0  # at offset 3
    allocate(heap, 4 * ALIGNMENT)
    assert heap.lacking((1,), BYTE, 4 * ALIGNMENT) == 4 * ALIGNMENT  # at offset 7
    with pytest.raises(ValueError, match="alignment must be a power of two, not 3"):
        heap.lacking((1,), BYTE, 3)


def test_released_twice():
    heap = Allocator(UNITS * ALIGNMENT)
    block = allocate(heap, 8)
    heap.release(block)
    with pytest.raises(ValueError, match=r"not on this heap: uint8 array of shape \(8,\) allocated at here\.py:1"):
        heap.release(block)
    assert heap._free == [(0, heap.size)]


def test_freeing_newest_first_takes_linear_time():
    def seconds(n):
        heap = Allocator(n * ALIGNMENT)
        blocks = [allocate(heap, 1) for _ in range(n)]
        start = time.process_time()
        for block in reversed(blocks):
            heap.release(block)
        return time.process_time() - start

    few, many = (min(seconds(n) for _ in range(3)) for n in (1000, 8000))
    assert many < 24 * few  # 8 times as many blocks; with linear searches it would take 64 times as long


def test_block_in_words():
    heap = Allocator(UNITS * ALIGNMENT)
    block = heap.allocate((2, 3), np.dtype(np.int32), 1, "program.py:7")
    assert str(block) == "int32 array of shape (2, 3) allocated at program.py:7"


def test_elements():
    heap = Allocator(UNITS * ALIGNMENT)
    allocate(heap, 1)
    block = heap.allocate((2, 3), np.dtype(np.int32), 1, "program.py:7")
    texts = [block.element(block.offset + 4 * i) for i in range(6)]
    assert texts == ["[0, 0]", "[0, 1]", "[0, 2]", "[1, 0]", "[1, 1]", "[1, 2]"]
    assert block.element(block.offset + 7) == "[0, 1]"
    assert heap.allocate((), np.dtype(np.int8), 1, "x").element(2 * ALIGNMENT) == "[]"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(["u1", "<i2", "<f4", "<f8", "<c16"]), st.data())
def test_element_names_the_index(shape, dtype, data):
    block = Allocator(1 << 20).allocate(tuple(shape), np.dtype(dtype), 1, "x")
    index = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    offset = int(np.ravel_multi_index(index, shape)) * block.dtype.itemsize
    byte = data.draw(st.integers(0, block.dtype.itemsize - 1))
    assert block.element(block.offset + offset + byte) == str(list(index))
