"""What atomics make of a word."""

from enum import IntEnum

__all__ = ["Update"]


class Update(IntEnum):
    """The changes that every transport knows (OpenSHMEM 1.5, section 9.8): set is a SWAP whose old value nobody wants, inc adds 1."""

    KEEP = 0  #: nothing: an atomic read
    ADD = 1
    SWAP = 2
    COMPARE_SWAP = 3
    AND = 4
    OR = 5
    XOR = 6
