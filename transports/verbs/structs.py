"""The C structures behind pyverbs's objects, which keep their pointers to themselves.

A pointer is one of the words that an object is made of: the one at which there is what is looked for. Reading goes through the kernel, so
that a word which is no pointer is an error and no crash.
"""

import os
import struct
from collections.abc import Callable
from typing import Any

from pgas.base.errors import TransportError

__all__ = ["behind", "read", "word"]


def read(address: int, nbytes: int) -> bytes:
    """Return bytes of this process.

    Raises:
        OSError: nothing is mapped there.
    """
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            return os.pread(memory.fileno(), nbytes, address)
        except OverflowError as error:  # no address at all
            raise OSError(str(error)) from error


def word(address: int) -> int:
    """Return the 8 bytes at an address as an integer.

    Raises:
        OSError: nothing is mapped there.
    """
    return int.from_bytes(read(address, 8), "little")


def behind(thing: Any, matches: Callable[[int], bool]) -> int:
    """Return the address of the C structure of an object of pyverbs.

    Args:
        thing: the object.
        matches: whether the structure is at an address; may raise OSError.

    Raises:
        TransportError: there is none.
    """
    size = type(thing).__basicsize__ // 8 * 8
    for candidate in struct.unpack(f"<{size // 8}Q", read(id(thing), size))[2:]:  # behind reference count and type
        try:
            if matches(candidate):
                return int(candidate)
        except OSError:
            continue
    raise TransportError(f"pyverbs keeps its objects ({type(thing).__name__}) in a way that this version of pgas does not know")
