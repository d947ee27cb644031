"""The C structures behind pyverbs's objects, which do not expose their pointers.

Each word of an object is tested as a pointer until one leads to the structure. Memory is read through the kernel, so that a word that is
not a pointer gives an error, not a crash.
"""

import os
import struct
from collections.abc import Callable
from typing import Any

from pgas.base.errors import TransportError


def read(address: int, nbytes: int) -> bytes:
    """Return bytes of this process's memory. Raises OSError if nothing is mapped there."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            return os.pread(memory.fileno(), nbytes, address)
        except OverflowError as error:  # not an address at all
            raise OSError(str(error)) from error


def word(address: int) -> int:
    """Return the 8 bytes at an address as an integer. Raises OSError if nothing is mapped there."""
    return int.from_bytes(read(address, 8), "little")


def behind(thing: Any, matches: Callable[[int], bool]) -> int:
    """Return the address of the C structure behind a pyverbs object.

    Args:
        thing: the object.
        matches: function that tells whether the structure is at an address; may raise OSError.

    Raises:
        TransportError: there is no such structure.
    """
    size = type(thing).__basicsize__ // 8 * 8
    for candidate in struct.unpack(f"<{size // 8}Q", read(id(thing), size))[2:]:  # after the reference count and the type
        try:
            if matches(candidate):
                return int(candidate)
        except OSError:
            continue
    raise TransportError(f"pyverbs keeps its objects ({type(thing).__name__}) in a way that this version of pgas does not know")
