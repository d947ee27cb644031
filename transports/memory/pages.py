"""Sharing private memory of this process with another one in the simulator, by replacing its pages with pages of memfds.

Whole pages are replaced, although an array's first and last page may also hold other data. No other thread may write to them meanwhile.
Python threads cannot, because the calls hold the GIL. The threads of pgas that run without the GIL have separate pages.
"""

import ctypes
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

from pgas.base.errors import TransportError
from pgas.transports.memory.protocol import Loan

# Use PyDLL, because its calls hold the GIL.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_READ_WRITE, _SHARED, _PRIVATE_ANONYMOUS, _FIXED = 0x3, 0x1, 0x22, 0x10
_MAYMOVE_FIXED = 0x3
_FAILED = ctypes.c_void_p(-1).value
_PAGE = mmap.PAGESIZE

#: Maximum number of descriptors in one message to the software NIC.
_MOST_PIECES = 8


@dataclass
class _Piece:
    """A run of replaced pages, and the number of loans that contain it."""

    start: int
    end: int
    fd: int
    loans: int = 0


class SharedPages:
    """The pages of this process that other processes map."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []  # by address

    def lend(self, address: int, nbytes: int) -> Loan:
        """Replace the pages of a range of memory, except those replaced already.

        Raises:
            TransportError: the pages are not plain memory of this process.
        """
        start, end = address // _PAGE * _PAGE, -(-(address + nbytes) // _PAGE) * _PAGE
        known = [piece for piece in self._pieces if piece.start < end and start < piece.end]
        bounds = [start, *(at for piece in known for at in (piece.start, piece.end)), end]
        gaps = [(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True) if low < high]
        if len(gaps) + len(known) > _MOST_PIECES:
            raise TransportError(
                f"{nbytes} bytes at {address:#x} share pages with {len(known)} registered arrays: register them as one array"
            )
        for low, high in gaps:
            _check_private(low, high)
        made = [_Piece(low, high, _exchange(low, high)) for low, high in gaps]
        self._pieces = sorted([*self._pieces, *made], key=lambda piece: piece.start)
        used = sorted([*known, *made], key=lambda piece: piece.start)
        for piece in used:
            piece.loans += 1
        parts = tuple((max(start, piece.start) - piece.start, min(end, piece.end) - max(start, piece.start)) for piece in used)
        return Loan(start, end - start, parts, tuple(piece.fd for piece in used))

    def take_back(self, loan: Loan) -> None:
        """Make the pages private again, except those in other loans."""
        for piece in [p for p in self._pieces if p.fd in loan.fds]:
            piece.loans -= 1
            if not piece.loans:
                _replace(piece.start, piece.end, -1)
                os.close(piece.fd)
                self._pieces.remove(piece)

    def close(self) -> None:
        for piece in self._pieces:
            _replace(piece.start, piece.end, -1)
            os.close(piece.fd)
        self._pieces = []


def borrow(loan: Loan) -> int:
    """Map another process's loan and return the address of its first byte."""
    base = _libc.mmap(None, loan.nbytes, _READ_WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if base == _FAILED:
        raise TransportError(f"cannot map {loan.nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    at = base
    for (offset, nbytes), fd in zip(loan.pieces, loan.fds, strict=True):
        if _libc.mmap(at, nbytes, _READ_WRITE, _SHARED | _FIXED, fd, offset) != at:
            reason = os.strerror(ctypes.get_errno())
            _libc.munmap(base, loan.nbytes)
            raise TransportError(f"cannot map {nbytes} bytes of another process: {reason}")
        at += nbytes
    return int(base)


def give_back(loan: Loan, address: int) -> None:
    """Undo borrow()."""
    _libc.munmap(address, loan.nbytes)


def _check_private(start: int, end: int) -> None:
    """Reject read-only pages and pages of a file."""
    at = start
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high, flags, inode, path = _MAPPING.match(line).groups()  # type: ignore[union-attr]
        if int(low, 16) <= at < int(high, 16):
            if (flags != "rw-p" and flags != "rwxp") or int(inode) or path not in ("", "[heap]"):
                raise TransportError(f"{at:#x} is in {path or 'memory'} ({flags}), not in plain memory of this process")
            at = int(high, 16)
            if at >= end:
                return
    raise TransportError(f"{at:#x} is not mapped")


_MAPPING = re.compile(r"(\w+)-(\w+) (\S+) \w+ \S+ (\d+)\s*(.*)")


def _exchange(start: int, end: int) -> int:
    """Replace pages with those of a new memfd with the same contents; return its descriptor."""
    fd = os.memfd_create("pgas-registered")
    os.ftruncate(fd, end - start)
    _replace(start, end, fd)
    return fd


def _replace(start: int, end: int, fd: int) -> None:
    """Replace pages, in one step, with pages of the same contents: those of a file, or private ones if fd is -1."""
    nbytes = end - start
    sharing = _SHARED if fd >= 0 else _PRIVATE_ANONYMOUS
    new = _libc.mmap(None, nbytes, _READ_WRITE, sharing, fd, 0)
    if new == _FAILED:
        raise TransportError(f"cannot map {nbytes} bytes: {os.strerror(ctypes.get_errno())}")
    _libc.memcpy(new, start, nbytes)
    if _libc.mremap(new, nbytes, nbytes, _MAYMOVE_FIXED, start) != start:
        raise TransportError(f"cannot exchange {nbytes} bytes at {start:#x}: {os.strerror(ctypes.get_errno())}")
