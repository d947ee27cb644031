"""What a program is: operations of all PEs in one list, whose order is that of one possible execution.

A program runs in a region of the symmetric heap, the same on every PE, and in phases: after each of them everything is complete and
seen by all PEs. A region is made of 64-bit signal words, elements for atomics, and data::

    [0, 64)  signals    [64, 192)  counters    [192, ...)  data
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

__all__ = [
    "BLOCK", "COUNTERS", "DATA", "FLAGS", "LANES", "SIGNALS", "SIGNAL_ADD", "SIGNAL_BEGIN", "SIGNAL_SET", "THREAD", "WAITS", "WARP", "End",
    "Kind", "Operation", "Program", "Shape", "is_added", "is_atomic", "is_fetching", "line",
]  # fmt: skip

THREAD, WARP, BLOCK = range(3)
SIGNAL_SET, SIGNAL_ADD = range(2)

#: Where the parts of a region begin, in bytes.
SIGNALS, COUNTERS, DATA = 0, 64, 192

#: What signal words hold at first: additions carry into the upper half.
SIGNAL_BEGIN = 2**32 - 2

#: Threads of a warp.
LANES = 32


class Kind(IntEnum):
    """Operations: the order in which the interpreter tells them apart."""

    # of a thread, warp or block, with any number of elements
    PUT = 0
    PUT_NBI = 1
    GET = 2
    PUT_SIGNAL = 3
    PUT_SIGNAL_NBI = 4
    # of a thread, from here on
    P = 5
    G = 6
    LOAD = 7  # elements of the PE's own memory, as any kernel reads them
    STORE = 8
    SIGNAL_OP = 9
    FLAG_P = 10  # a signal word written by p
    FLAG_ADD = 11  # and by atomic_add
    SIGNAL_WAIT_UNTIL = 12
    WAIT_UNTIL = 13
    FENCE = 14
    QUIET = 15
    SYNCTHREADS = 16  # of the block
    ATOMIC_ADD = 17
    ATOMIC_FETCH_ADD = 18


#: Operations that tell another PE something, which waits for it.
FLAGS = (Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI, Kind.SIGNAL_OP, Kind.FLAG_P, Kind.FLAG_ADD)
WAITS = (Kind.SIGNAL_WAIT_UNTIL, Kind.WAIT_UNTIL)
_COPIES = (Kind.PUT, Kind.PUT_NBI, Kind.GET, Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI)
_ORDERING = (Kind.FENCE, Kind.QUIET, Kind.SYNCTHREADS)


class End(IntEnum):
    """What completes a phase."""

    BARRIER = 0
    BARRIER_WARP = 1
    BARRIER_BLOCK = 2
    QUIET = 3  # of one thread of each block, for all of it
    QUIETS = 4  # of all threads


class Operation(NamedTuple):
    """What a thread, warp or block of a PE does. Places are bytes of the program's region."""

    kind: Kind
    phase: int
    pe: int  #: who does it
    who: int  #: thread; of a warp or block its first
    scope: int = THREAD
    target: int = 0  #: PE
    dest: int = 0
    source: int = 0
    nelems: int = 0
    word: int = 0  #: a signal word
    value: int = 0  #: of a signal or flag, what is waited for; bits of an element that is stored or added
    condition: int = 0  #: of a signal: SIGNAL_SET or SIGNAL_ADD; of a wait: the comparison
    qp: int = 0
    whole: bool = True  #: nelems is left out of the call


class Shape(NamedTuple):
    """What the programs of a group have in common: they run in one kernel."""

    n_pes: int
    threads: int  #: of the block that performs a program on a PE
    dtype: np.dtype  #: of elements
    region_bytes: int
    ends: tuple[End, ...]  #: of the phases


class Program(NamedTuple):
    """A program: its operations in order, phases ascending."""

    seed: int
    number: int
    shape: Shape
    operations: tuple[Operation, ...]


def is_added(o: Operation) -> bool:
    """Whether a flag is added to its word."""
    return o.kind == Kind.FLAG_ADD or (o.kind in FLAGS and o.kind != Kind.FLAG_P and o.condition == SIGNAL_ADD)


def is_atomic(kind: Kind) -> bool:
    """Whether it is an atomic of an element."""
    return kind >= Kind.ATOMIC_ADD


def is_fetching(kind: Kind) -> bool:
    """Whether it is an atomic that returns what it found."""
    return kind == Kind.ATOMIC_FETCH_ADD


_SUFFIX = ("", "_warp", "_block")
_COMPARISONS = ("EQ", "NE", "GT", "LE", "LT", "GE")


def line(shape: Shape, o: Operation) -> str:
    """An operation as one would write it; places are elements of the region, those of signals its words."""
    who = ("thread", "warp", "block")[o.scope] + (f" {(o.who, o.who // LANES, 0)[o.scope]}" if o.scope != BLOCK else "")
    return f"PE {o.pe} {who}: {_call(shape, o)}"


def _call(shape: Shape, o: Operation) -> str:
    name, size = o.kind.name.lower() + _SUFFIX[o.scope], shape.dtype.itemsize
    value = element(shape.dtype, o.value)

    def part(at: int) -> str:
        return f"a[{at // size}:{at // size + o.nelems}]"

    qp = f", qp={o.qp}" if o.qp else ""
    signal = f"signals, {o.word // 8}, {o.value}, {('SET', 'ADD')[o.condition & 1]}, pe={o.target})"
    if o.kind in (Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI):
        return f"{name}({part(o.dest)}, {part(o.source)}, {signal}"
    if o.kind in _COPIES:
        return f"{name}({part(o.dest)}, {part(o.source)}, pe={o.target}{'' if o.whole else f', nelems={o.nelems}'}{qp})"
    if o.kind in _ORDERING:
        return f"{name}()"
    if o.kind == Kind.SIGNAL_OP:
        return f"{name}({signal}"
    if o.kind in (Kind.FLAG_P, Kind.FLAG_ADD):
        return f"{('p', 'atomic_add')[o.kind == Kind.FLAG_ADD]}(signals, {o.word // 8}, {o.value}, pe={o.target})"
    if o.kind in (Kind.WAIT_UNTIL, Kind.SIGNAL_WAIT_UNTIL):
        return f"{name}(signals, {o.word // 8}, {_COMPARISONS[o.condition]}, {o.value})"
    if o.kind == Kind.LOAD:
        return f"read {part(o.source)}"
    if o.kind == Kind.STORE:
        return f"a[{o.dest // size}] = {value}"
    if o.kind == Kind.G:
        return f"g(a, {o.source // size}, pe={o.target}{qp})"
    return f"{name}(a, {o.dest // size}, {value}, pe={o.target}{qp})"


def element(dtype: np.dtype, bits: int) -> np.generic:
    """The element that has these bits."""
    found: np.generic = np.frombuffer(bits.to_bytes(16, "little"), dtype, 1)[0]
    return found
