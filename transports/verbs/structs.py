"""The C structures behind pyverbs's objects, which do not expose their pointers.

The words of an object are tried as pointers until one leads to the structure sought. Memory is read through the kernel, so a word that is
no pointer gives an error, not a crash.
"""

import os
import struct
from collections.abc import Callable
from typing import Any

from pgas.base.errors import TransportError

__all__ = ["behind", "read", "word"]


def read(address: int, nbytes: int) -> bytes:
    """Return bytes of this process's memory.

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
    """Return the address of the C structure behind a pyverbs object.

    Args:
        thing: the object.
        matches: tells whether the structure is at an address; may raise OSError.

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
