"""A program: operations of all PEs in one list, in the order of one possible execution.

A program runs in phases, and in a region of the symmetric heap that is the same on every PE. After a phase, all operations are complete and
visible to all PEs. A region has 64-bit signal words, elements for atomics, and data. Offsets beyond the region are local memory of the
PE, registered with pgas.register::

    [0, 64)  signals    [64, 192)  counters    [192, region_bytes)  data    [region_bytes, memory_bytes)  local
"""

from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

THREAD, WARP, BLOCK = range(3)
SIGNAL_SET, SIGNAL_ADD = range(2)

#: Offsets of the parts of a region in bytes.
SIGNALS, COUNTERS, DATA = 0, 64, 192

#: Number of bytes of local memory.
LOCAL_BYTES = 256

#: Initial value of signal words, chosen so that additions carry into the upper half.
SIGNAL_BEGIN = 2**32 - 2

#: Number of threads of a warp.
LANES = 32


class Kind(IntEnum):
    """Kinds of operations, in the order in which the interpreter compares."""

    # A thread, warp, or block performs these, with any number of elements.
    PUT, PUT_NBI, GET, GET_NBI, IPUT, IGET, PUT_SIGNAL, PUT_SIGNAL_NBI = range(8)
    # A thread performs all others except SYNCTHREADS, which the block performs, and collectives. LOAD and STORE access the PE's own memory.
    # p, atomic_set, and atomic_add write the signal words of FLAG_P, FLAG_SET, and FLAG_ADD.
    P, G, LOAD, STORE, SIGNAL_OP, FLAG_P, FLAG_SET, FLAG_ADD, SIGNAL_FETCH, SIGNAL_WAIT_UNTIL, WAIT_UNTIL, TEST = range(8, 20)
    # These wait for several words, or test them.
    WAIT_UNTIL_ALL, WAIT_UNTIL_ANY, WAIT_UNTIL_SOME, WAIT_UNTIL_ALL_VECTOR, WAIT_UNTIL_ANY_VECTOR, WAIT_UNTIL_SOME_VECTOR = range(20, 26)
    TEST_ALL, TEST_ANY, TEST_SOME, TEST_ALL_VECTOR, TEST_ANY_VECTOR, TEST_SOME_VECTOR = range(26, 32)
    # These are on one element, or on none. Atomics from ATOMIC_FETCH on are fetching.
    FENCE, QUIET, QUIET_PE, FLUSH, SYNCTHREADS = range(32, 37)
    ATOMIC_ADD, ATOMIC_SET, ATOMIC_INC, ATOMIC_AND, ATOMIC_OR, ATOMIC_XOR, ATOMIC_FETCH, ATOMIC_SWAP, ATOMIC_FETCH_ADD = range(37, 46)
    ATOMIC_COMPARE_SWAP, ATOMIC_FETCH_INC, ATOMIC_FETCH_AND, ATOMIC_FETCH_OR, ATOMIC_FETCH_XOR = range(46, 51)
    # A thread, warp, or block of every member of a team performs these collectives.
    TEAM_SYNC, BARRIER, ALLTOALL, BROADCAST, FCOLLECT, REDUCE, REDUCESCATTER, INSCAN, EXSCAN = range(51, 60)


#: Operations that write a signal word for which another PE waits.
FLAGS = (Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI, Kind.SIGNAL_OP, Kind.FLAG_P, Kind.FLAG_SET, Kind.FLAG_ADD)
WAITS = (Kind.SIGNAL_WAIT_UNTIL, Kind.WAIT_UNTIL)
#: Waits and tests on several words: all, any, or some satisfy the condition.
WAITS_FOR_SEVERAL = tuple(kind for kind in Kind if Kind.WAIT_UNTIL_ALL <= kind <= Kind.WAIT_UNTIL_SOME_VECTOR)
TESTS_OF_SEVERAL = tuple(kind for kind in Kind if Kind.TEST_ALL <= kind <= Kind.TEST_SOME_VECTOR)
SEVERAL = WAITS_FOR_SEVERAL + TESTS_OF_SEVERAL
ALL, ANY, SOME = (tuple(kind for kind in SEVERAL if f"_{name}" in kind.name) for name in ("ALL", "ANY", "SOME"))
VECTOR = tuple(kind for kind in SEVERAL if kind.name.endswith("_VECTOR"))
#: Kinds of copies, by direction.
PUTS = (Kind.PUT, Kind.PUT_NBI, Kind.IPUT, Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI)
GETS = (Kind.GET, Kind.GET_NBI, Kind.IGET)
STRIDED = (Kind.IPUT, Kind.IGET)
#: Atomics of floats; integers have all.
FLOAT_ATOMICS = (Kind.ATOMIC_ADD, Kind.ATOMIC_SET, Kind.ATOMIC_FETCH, Kind.ATOMIC_SWAP, Kind.ATOMIC_FETCH_ADD)
MEETINGS = (Kind.TEAM_SYNC, Kind.BARRIER)
COLLECTIVES = tuple(kind for kind in Kind if kind >= Kind.TEAM_SYNC)
#: Collectives whose dest may be source.
IN_PLACE = (Kind.BROADCAST, Kind.REDUCE, Kind.INSCAN, Kind.EXSCAN)
_ORDERING = (Kind.FENCE, Kind.QUIET, Kind.FLUSH, Kind.SYNCTHREADS)


class PhaseEnd(IntEnum):
    """The calls that complete a phase."""

    BARRIER = 0
    BARRIER_WARP = 1
    BARRIER_BLOCK = 2
    QUIET = 3  # by one thread of each block, for the block
    QUIETS = 4  # by all threads


class Operation(NamedTuple):
    """An operation of a thread, warp, or block. Locations are byte offsets in the program's region."""

    kind: Kind
    phase: int
    pe: int  #: calling PE
    who: int  #: calling thread, the first one of a warp or block
    scope: int = THREAD
    target: int = 0  #: target PE
    dest: int = 0
    source: int = 0
    nelems: int = 0  #: number of elements, or of words in a wait; for a collective, from one member to another
    dst_stride: int = 1  #: for a collective: number of repetitions of nelems elements
    src_stride: int = 1
    word: int = 0  #: a signal word, or the first of several
    value: int = 0  #: value of a signal, wait, or flag; bits of an element that is stored or added
    condition: int = 0  #: signals: SIGNAL_SET or SIGNAL_ADD; waits: the comparison; compare_swap: bits of the comparand
    qp: int = 0
    whole: bool = True  #: whether the call does not pass nelems
    left_out: int = 0  #: mask of words that the status array excludes
    values: tuple[int, ...] = ()  #: values of the _vector forms, one for each word
    team: int = -1  #: for a collective: number in Shape.teams; target is then the root's number in the team
    channel: int = 0  #: for a collective: 0 or 1, of the two that a program has in each team


class Shape(NamedTuple):
    """Properties common to the programs of a group, which run in one kernel."""

    n_pes: int
    threads: int  #: threads of the block that performs a program on a PE
    dtype: np.dtype  #: type of elements
    region_bytes: int
    ends: tuple[PhaseEnd, ...]  #: End of each phase
    on_host: int = -1  #: the phase that hosts perform, each as one thread; -1 for none
    teams: tuple[tuple[int, ...], ...] = ()  #: PEs of each team; without teams there are no collectives

    @property
    def memory_bytes(self) -> int:
        return self.region_bytes + LOCAL_BYTES


class Program(NamedTuple):
    """A program: its operations in order, phases ascending."""

    seed: int
    number: int
    shape: Shape
    operations: tuple[Operation, ...]


def callers(shape: Shape, o: Operation) -> tuple[int, ...]:
    """Return the PEs that perform an operation: of a collective, the members of its team, in order."""
    return (o.pe,) if o.team < 0 else shape.teams[o.team]


def wait_set(o: Operation) -> Iterator[tuple[int, int, int]]:
    """Yield the words that the status array includes: index, offset, comparison value."""
    for i in range(o.nelems):
        if not o.left_out >> i & 1:
            yield i, o.word + 8 * i, o.values[i] if o.kind in VECTOR else o.value


def has_atomics(dtype: np.dtype) -> bool:
    """Whether elements of a type have atomics: floats have some, integers all."""
    return dtype.kind in "iuf" and dtype.itemsize >= 4


def is_added(o: Operation) -> bool:
    """Whether a flag is written by addition."""
    return o.kind in FLAGS and o.condition == SIGNAL_ADD


def is_atomic(kind: Kind) -> bool:
    """Whether a kind is an atomic on an element."""
    return Kind.ATOMIC_ADD <= kind < Kind.TEAM_SYNC


def is_fetching(kind: Kind) -> bool:
    """Whether a kind is a fetching atomic."""
    return Kind.ATOMIC_FETCH <= kind < Kind.TEAM_SYNC


def spread(at: int, nelems: int, stride: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges of strided elements: start, end."""
    if stride == 1:
        yield at, at + nelems * size
    else:
        for i in range(nelems):
            yield at + i * stride * size, at + (i * stride + 1) * size


_SUFFIX = ("", "_warp", "_block")
_COMPARISONS = ("EQ", "NE", "GT", "LE", "LT", "GE")


def line(shape: Shape, o: Operation) -> str:
    """Return an operation as source text: ``a`` is the region, ``b`` local memory, ``signals`` the signal words."""
    who = ("thread", "warp", "block")[o.scope] + (f" {(o.who, o.who // LANES, 0)[o.scope]}" if o.scope != BLOCK else "")
    pes = f"PE {o.pe}" if o.team < 0 else f"PEs {', '.join(map(str, shape.teams[o.team]))}"
    return f"{pes} {who}: {_call(shape, o)}"


def _call(shape: Shape, o: Operation) -> str:
    name = o.kind.name.lower() + _SUFFIX[o.scope]

    def part(at: int, stride: int) -> str:
        name, first = named(shape, at)
        return f"{name}[{first}:{first + max(0, (o.nelems - 1) * stride + 1)}]"

    if o.kind in COLLECTIVES:
        parts = []
        for at, count in ((o.dest, o.dst_stride), (o.source, o.src_stride)):
            first = named(shape, at)[1]
            parts.append(f", a[{first}:{first + o.nelems * count}]" if o.kind not in MEETINGS else "")
        root = f", root={o.target}" if o.kind == Kind.BROADCAST else ""
        return f"{name}(team {o.team}{''.join(parts)}{root}, channel={o.channel})"
    pe = f"pe={o.target}" + (f", qp={o.qp}" if o.qp else "")
    dest, source = part(o.dest, o.dst_stride), part(o.source, o.src_stride)
    signal = f"signals, {o.word // 8}, {o.value}"
    if o.kind in (Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI):
        return f"{name}({dest}, {source}, {signal}, {('SET', 'ADD')[o.condition]}, {pe})"
    if o.kind in STRIDED:
        return f"{name}({dest}, {source}, {o.dst_stride}, {o.src_stride}, {pe}, nelems={o.nelems})"
    if o.kind in PUTS or o.kind in GETS:
        return f"{name}({dest}, {source}, {pe}{'' if o.whole else f', nelems={o.nelems}'})"
    if o.kind in _ORDERING:
        return f"{name}()"
    if o.kind == Kind.QUIET_PE:
        return f"{name}({o.target})"
    if o.kind == Kind.SIGNAL_OP:
        return f"{name}({signal}, {('SET', 'ADD')[o.condition]}, {pe})"
    if o.kind in FLAGS:
        return f"{ {Kind.FLAG_P: 'p', Kind.FLAG_SET: 'atomic_set', Kind.FLAG_ADD: 'atomic_add'}[o.kind] }({signal}, {pe})"
    if o.kind in WAITS or o.kind == Kind.TEST:
        return f"{name}(signals, {o.word // 8}, {_COMPARISONS[o.condition]}, {o.value})"
    if o.kind in SEVERAL:
        words = f"signals[{o.word // 8}:{o.word // 8 + o.nelems}]" + (", indices" if o.kind in SOME else "")
        status = [o.left_out >> i & 1 for i in range(o.nelems)]
        return f"{name}({words}, {status}, {_COMPARISONS[o.condition]}, {list(o.values[: o.nelems]) if o.kind in VECTOR else o.value})"
    if o.kind == Kind.SIGNAL_FETCH:
        return f"{name}(signals, {o.word // 8})"
    if o.kind == Kind.LOAD:
        return f"read {source}"
    return _of_an_element(shape, o, name, pe)


def _of_an_element(shape: Shape, o: Operation, name: str, pe: str) -> str:
    size, value = shape.dtype.itemsize, element(shape.dtype, o.value)
    if o.kind == Kind.STORE:
        to, index = named(shape, o.dest)
        return f"{to}[{index}] = {value}"
    if o.kind == Kind.G:
        return f"g(a, {o.source // size}, {pe})"
    values = {
        Kind.ATOMIC_FETCH: "",
        Kind.ATOMIC_INC: "",
        Kind.ATOMIC_FETCH_INC: "",
        Kind.ATOMIC_COMPARE_SWAP: f"{element(shape.dtype, o.condition)}, {value}, ",
    }
    return f"{name}(a, {o.dest // size}, {values.get(o.kind, f'{value}, ')}{pe})"


def named(shape: Shape, at: int) -> tuple[str, int]:
    """Return the array of a location, and the index of its element there."""
    size = shape.dtype.itemsize
    return ("a", at // size) if at < shape.region_bytes else ("b", (at - shape.region_bytes) // size)


def element(dtype: np.dtype, bits: int) -> np.generic:
    """Return the element with these bits."""
    found: np.generic = np.frombuffer(bits.to_bytes(16, "little"), dtype, 1)[0]
    return found
