"""The data of a row: source, destination before and after, and the first wrong byte. It uses only NumPy.

A destination is ``guard | span of the message | guard``. Before the row, the message's elements hold the complement of the expected values,
so that no byte is right by chance; guards and the gaps of a stride always hold POISON.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgas.perftests.harness.workload import Workload

#: Number of bytes of guard on either side of the message: two cache lines, so that the message is aligned like the array.
GUARD_BYTES = 256
#: Byte value of guards and gaps of a destination.
POISON = 0xA5
#: Byte value of the gaps of a source, so that a gap that was sent is detected.
GAP = 0x3C


@dataclass(frozen=True)
class WrongByte:
    """The first wrong byte of a destination.

    Attributes:
        offset: bytes from the start of the message; negative in the guard before it.
        where: message, gap, or guard.
        expected, found: byte values.
        count: number of wrong bytes in the whole array.
    """

    offset: int
    where: str
    expected: int
    found: int
    count: int

    def __str__(self) -> str:
        wrong = "1 wrong byte" if self.count == 1 else f"{self.count} wrong bytes, the first"
        return f"{wrong} at offset {self.offset} ({self.where}): 0x{self.found:02x} instead of 0x{self.expected:02x}"


def random_elements(work: Workload, seed: int, pe: int) -> NDArray[np.generic]:
    """Return the elements that PE pe sends in this row: random bits that depend only on seed, size, and PE."""
    bits = np.random.default_rng([seed, work.size, pe]).bytes(work.size)
    return np.frombuffer(bits, dtype=work.dtype)


def source_image(work: Workload, elements: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return the source array: the elements, separated by the stride."""
    return _spread(work, elements, GAP, 0)


def dest_image(work: Workload, elements: NDArray[np.generic], *, arrived: bool) -> NDArray[np.generic]:
    """Return the whole destination array, including guards, before or after the elements arrive."""
    if not arrived:
        elements = np.invert(elements.view(np.uint8)).view(work.dtype)
    return _spread(work, elements, POISON, GUARD_BYTES)


def find_fault(work: Workload, found: NDArray[np.generic], expected: NDArray[np.generic]) -> WrongByte | None:
    """Compare two whole destination arrays byte for byte; return the first difference, None if there is none."""
    found_bytes, expected_bytes = found.view(np.uint8), expected.view(np.uint8)
    wrong = np.flatnonzero(found_bytes != expected_bytes)
    if not wrong.size:
        return None
    index = int(wrong[0])
    offset = index - GUARD_BYTES
    element = offset // work.dtype.itemsize
    inside = "message" if element % work.stride == 0 else "gap"
    where = inside if 0 <= element < work.span else "guard"
    return WrongByte(offset, where, int(expected_bytes[index]), int(found_bytes[index]), int(wrong.size))


def _spread(work: Workload, elements: NDArray[np.generic], fill: int, guard_bytes: int) -> NDArray[np.generic]:
    image = np.full(2 * guard_bytes + work.span * work.dtype.itemsize, fill, dtype=np.uint8).view(work.dtype)
    guard = guard_bytes // work.dtype.itemsize
    image[guard : guard + work.span : work.stride] = elements
    return image
