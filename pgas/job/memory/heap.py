"""The symmetric heap's allocator. It is deterministic: equal calls give an array the same offset on every PE."""

import bisect
import math
import operator
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from pgas.base.config import size_text
from pgas.base.errors import HeapError
from pgas.base.parameters import is_integer

#: Number of arrays that an error of an exhausted heap names.
_NAMED = 3

#: Alignment of every allocation: 16-byte vectors of a warp, and at least that of cudaMalloc.
ALIGNMENT = 512


@dataclass(eq=False)
class HeapBlock:
    """An array's allocation: bytes [offset, offset + nbytes) of the heap on every PE."""

    offset: int
    span: int
    shape: tuple[int, ...]
    dtype: np.dtype
    where: str
    freed: bool = field(default=False)  #: freed, or not usable in this process
    foreign: str = ""  #: why it cannot be used in this process; "" if it can

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} array of shape {self.shape} allocated at {self.where}"

    def element(self, offset: int) -> str:
        """Return the subscript, such as ``[3]`` or ``[1, 2]``, of the element at a heap offset inside the block."""
        index = (offset - self.offset) // max(self.dtype.itemsize, 1)
        if index >= math.prod(self.shape):
            return f"[{index}]"
        return "[" + ", ".join(str(int(i)) for i in np.unravel_index(index, self.shape)) + "]"


_offset = operator.attrgetter("offset")


class Allocator:
    """First fit with coalescing over [0, size). Deterministic: equal sequences of calls give equal offsets.

    Args:
        size: size of the heap in bytes.
        origin: offset of the heap in the slot. Slots begin at multiples of every alignment, so an address has the alignment of
            origin + heap offset.
        limit: maximum size after extend(); None: size.
    """

    def __init__(self, size: int, origin: int = 0, limit: int | None = None) -> None:
        self.size, self._origin, self.limit = size, origin, limit or size
        self._free: list[tuple[int, int]] = [(0, size)]  #: offset and size of free ranges, ordered by offset, never adjacent
        self.blocks: list[HeapBlock] = []  #: blocks, ordered by offset

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype, alignment: int, where: str) -> HeapBlock:
        """Return a new block. A block of 0 bytes also takes one unit, so that its address is unique.

        Raises:
            ValueError: if alignment is not a power of two.
            HeapError: if no free range is large enough; the message gives the largest.
        """
        span, alignment = _span(shape, dtype), _checked(alignment)
        for i, (offset, room) in enumerate(self._free):
            start = self._aligned(offset, alignment)
            if start + span <= offset + room:
                rest = [(offset, start - offset), (start + span, offset + room - start - span)]
                self._free[i : i + 1] = [r for r in rest if r[1]]
                block = HeapBlock(start, span, shape, dtype, where)
                bisect.insort(self.blocks, block, key=_offset)
                return block
        wanted, free, largest = math.prod(shape) * dtype.itemsize, sum(r for _, r in self._free), max((r for _, r in self._free), default=0)
        aligned = f" at a multiple of {size_text(alignment)}" * (alignment > ALIGNMENT)
        arrays = sorted(self.blocks, key=lambda block: -block.nbytes)[:_NAMED]
        raise HeapError(
            f"symmetric heap exhausted: {size_text(wanted)} requested{aligned}, {size_text(free)} of {size_text(self.size)} are free, and "
            f"the largest free range has {size_text(largest)} (the heap starts at PGAS_SYMMETRIC_SIZE and can grow to "
            f"PGAS_MAX_MEMORY_PER_GPU, {size_text(self.limit)})"
            + "; the largest arrays: " * bool(arrays)
            + ", ".join(f"{block}: {size_text(block.nbytes)}" for block in arrays)
        )

    def lacking(self, shape: tuple[int, ...], dtype: np.dtype, alignment: int) -> int:
        """Return the bytes to add at the end for a new block, 0 if it fits. Arguments and ValueError are those of allocate()."""
        span, alignment = _span(shape, dtype), _checked(alignment)
        if any(self._aligned(offset, alignment) + span <= offset + room for offset, room in self._free):
            return 0
        at_end = self._free[-1][0] if self._free and sum(self._free[-1]) == self.size else self.size
        return self._aligned(at_end, alignment) + span - self.size

    def extend(self, nbytes: int) -> None:
        """Add bytes at the end; they merge with a free range there."""
        self.size += nbytes
        self._give_back(self.size - nbytes, self.size)

    def _aligned(self, offset: int, alignment: int) -> int:
        """Return the first aligned offset at or after an offset."""
        return -(-(self._origin + offset) // alignment) * alignment - self._origin

    def release(self, block: HeapBlock) -> None:
        """Free a block. Raises ValueError if it is not a block of this heap, or was freed before."""
        i = bisect.bisect_left(self.blocks, block.offset, key=_offset)
        if self.blocks[i : i + 1] != [block]:
            raise ValueError(f"not on this heap: {block}")
        del self.blocks[i]
        block.freed = True
        self._give_back(block.offset, block.offset + block.span)

    def _give_back(self, start: int, end: int) -> None:
        """Make a range free; merge it with adjacent free ranges."""
        i = bisect.bisect(self._free, (start, 0))
        if i < len(self._free) and self._free[i][0] == end:
            end += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == start:
            i -= 1
            start = self._free.pop(i)[0]
        self._free.insert(i, (start, end - start))

    def unfreed(self) -> str:
        """Return a list of the arrays that are not freed: a line for each kind, with the line that allocated it; "" if there are none."""
        lines = Counter(f"{b.where}: {b.dtype} array of shape {b.shape}, {size_text(b.nbytes)}" for b in self.blocks)
        shown = [line if count == 1 else f"{line}, {count} times" for line, count in lines.items()]
        count = len(self.blocks)
        return "\n  ".join([f"{count} symmetric array{'s' * (count > 1)} never freed:", *shown]) if shown else ""

    def find(self, offset: int) -> HeapBlock | None:
        i = bisect.bisect(self.blocks, offset, key=_offset)
        return self.blocks[i - 1] if i and offset < self.blocks[i - 1].offset + max(self.blocks[i - 1].nbytes, 1) else None


def _span(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Return the bytes of the heap that an array takes."""
    return max(1, -(-math.prod(shape) * dtype.itemsize // ALIGNMENT)) * ALIGNMENT


def _checked(alignment: int) -> int:
    """Return the actual alignment for a requested one."""
    if not is_integer(alignment) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment must be a power of two, not {alignment}")
    return max(int(alignment), ALIGNMENT)
