"""What the soak test does, drawn by a counter-based hash: who sends what where is a function of seed, round, PE, step and thread.

So whoever knows the seed knows every byte that must be in a PE's area after a round. An area is made of lots::

    area[sender][step][cta][thread], lane_bytes each

An operation of a thread writes into its own lot only, one of a warp or block into the lots of its threads; what no operation writes holds a
pattern. Puts write into the target's area, gets into that of the PE that called. Compiled into kernels on a GPU; in the simulator for
the CPU, where kernels are interpreted.
"""

import contextlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, njit

from pgas.base.backend import SIMULATOR

__all__ = ["BLOCK", "THREAD", "WARP", "WORDS", "Kind", "Operation", "Shape", "draw", "half", "key", "scrambled", "wanted", "word"]


class Kind(IntEnum):
    """Operations. Those of a warp or block are among the first COPIES, which have any length."""

    PUT = 0
    PUT_NBI = 1
    GET = 2
    GET_NBI = 3
    PUT_SIGNAL = 4
    PUT_SIGNAL_NBI = 5
    IPUT = 6
    IGET = 7
    P = 8
    G = 9
    SIGNAL_SET = 10
    SIGNAL_ADD = 11
    ATOMIC_ADD = 12
    ATOMIC_FETCH_ADD = 13
    ATOMIC = 14  # one of UPDATES, of an element of the lot, which becomes that of the source


class Shape(NamedTuple):
    """The job and what a round is."""

    n_pes: int
    queue_pairs: int  #: to each PE that an operation may name
    ctas: int
    threads: int  #: of a CTA, whole warps
    steps: int  #: operations of each thread in a round
    lane_bytes: int  #: of a lot: a power of two, 32 at least
    source_bytes: int  #: of what is sent: more than the lots of a CTA


class Operation(NamedTuple):
    """What a thread does in a step, alone or with its warp or block."""

    kind: int
    scope: int
    first: int  #: thread of the CTA that is the first to call it
    pe: int  #: the target
    qp: int
    width: int  #: bytes of an element
    together: int  #: p and g: lanes take neighbouring elements
    holder: int  #: PE into whose area it writes; -1: none
    origin: int  #: PE whose source it reads
    start: int  #: offset in the area; of a warp's first lane if they are together
    nbytes: int  #: written from there, by all lanes if they are together
    source: int  #: offset in the source
    word: int  #: number of a signal, sum or counter
    value: int  #: added to it; Kind.ATOMIC: which of UPDATES
    nelems: int  #: iput and iget: elements
    to_stride: int  #: elements from one to the next where it writes; 1 for all other operations
    from_stride: int  #: likewise where it reads


THREAD, WARP, BLOCK = range(3)
#: How Kind.ATOMIC turns an element into that of the source: value modulo UPDATES. AND_OR is two operations.
SET, SWAP, COMPARE_SWAP, XOR, AND_OR, UPDATES = range(6)
LANES = 32
#: Signals, sums and counters of each type on a PE.
WORDS = 64

#: Kinds of single threads, sixteen digits: each is as likely.
_MIX = 0x01_234_567_88_9_A_B_C_D_E
_COPIES = Kind.IGET + 1
#: Strides of iput and iget are up to so many elements, mostly.
_STRIDES = 4
#: One step in so many is a block's; of the others, one in so many is a warp's. Lanes of a warp mostly agree on PE and queue pair.
_BLOCK_STEPS, _WARP_STEPS, _AGREE = 16, 8, 4

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_1, _27, _30, _31, _32, _64, _255 = (np.uint64(c) for c in (1, 27, 30, 31, 32, 64, 255))
_ONES = np.uint64((1 << 64) - 1)


def device(function: Callable[..., Any]) -> Any:
    """Compile a function of integers that kernels call."""
    if not SIMULATOR:
        return cuda.jit(device=True)(function)
    compiled = njit(function)
    with contextlib.suppress(RuntimeError):  # nowhere to write: compiled in every process
        compiled.enable_caching()
    return compiled


def scrambled(x):
    """Return the 64 bits of splitmix64 for a state; also of an array of states."""
    x = np.uint64(x)
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


_scrambled = device(scrambled)


@device
def word(key, counter):
    """Return 64 bits: number `counter` of a stream."""
    return _scrambled(np.uint64(key) + _GOLDEN * np.uint64(counter))


@device
def number(key, counter):
    """Return a non-negative integer: number `counter` of a stream."""
    return np.int64(word(key, counter) >> _1)


@device
def half(x):
    """Return the upper half of scrambled(x)."""
    return np.int64(_scrambled(x) >> _32)


@device
def key(seed, round_, pe, what):
    """Return the key of a PE's stream in a round: 0 of its operations, 1 of its source, 2 of the bytes that nobody writes to."""
    return number(number(number(seed, round_), pe), what)


@device
def draw(shape, seed, round_, pe, step, cta, thread):
    """Return what a thread does in a step."""
    stream = number(key(seed, round_, pe, 0), step)
    warps = shape.threads // LANES
    scope, first, lots = BLOCK, 0, shape.threads
    common = number(stream, cta)
    if common % _BLOCK_STEPS != 0:
        common = number(stream, shape.ctas + cta * warps + thread // LANES)
        scope, first, lots = WARP, thread // LANES * LANES, LANES
        if common % _WARP_STEPS != 0:
            scope, first, lots = THREAD, thread, 1
    own = number(common, thread - thread // LANES * LANES if scope == THREAD else LANES)

    kind = (_MIX >> (common >> 8 & 15) * 4) & 15 if scope == THREAD else (common >> 8 & 255) % _COPIES
    width = 1
    if kind == Kind.P or kind == Kind.G:
        width = 1 << (common >> 16 & 255) % 5
    elif kind == Kind.SIGNAL_SET or kind == Kind.SIGNAL_ADD:
        width = 8
    elif kind == Kind.ATOMIC_ADD or kind == Kind.ATOMIC_FETCH_ADD or kind == Kind.ATOMIC:
        width = 4 << (common >> 16 & 1)
    elif kind == Kind.IPUT or kind == Kind.IGET:  # of a scope, few widths: each is compiled into the kernel
        width = 4 if scope == WARP else 8 if scope == BLOCK else 2 << 3 * (common >> 16 & 1)
    together = 1 if (kind == Kind.P or kind == Kind.G) and common >> 24 & 1 == 0 else 0
    agreed = common >> 28 if scope != THREAD or together == 1 or (common >> 25 & 7) % _AGREE != 0 else own >> 28
    target, qp = (agreed & 0xFFFF) % shape.n_pes, (agreed >> 16 & 0xFF) % (shape.queue_pairs + 1)

    place = own
    if together == 1:
        first, lots, place = thread // LANES * LANES, LANES, number(common, LANES)
    room, unit, nbytes = lots * shape.lane_bytes, width, width
    nelems, to_stride, from_stride = 1, 1, 1
    if kind == Kind.IPUT or kind == Kind.IGET:
        to_stride, from_stride = 1 + (own & 0xFF) % _STRIDES, 1 + (own >> 8 & 0xFF) % _STRIDES
        most = min((room // width - 1) // to_stride, (shape.source_bytes // width - 1) // from_stride) + 1
        nelems = 1 + (own >> 16 & 0xFFFF) % most
        nbytes = ((nelems - 1) * to_stride + 1) * width
    elif kind < _COPIES:
        unit = 16 if own & 3 == 0 else 1
        levels = 1
        while 1 << levels <= room:
            levels += 1
        nbytes = 1 << (own >> 2 & 255) % levels
        nbytes = min(room, nbytes + (own >> 10 & (nbytes - 1)))
    elif together == 1:
        nbytes = LANES * width
    read = nbytes if from_stride == to_stride else ((nelems - 1) * from_stride + 1) * width
    dice, from_ = number(place, 1), number(place, 2)
    lot = (((pe * shape.steps + step) * shape.ctas + cta) * shape.threads + first) * shape.lane_bytes
    start = lot + dice % ((room - nbytes) // unit + 1) * unit
    source = from_ % ((shape.source_bytes - read) // unit + 1) * unit

    holder, origin = target, pe
    if kind == Kind.GET or kind == Kind.GET_NBI or kind == Kind.IGET or kind == Kind.G:
        holder, origin = pe, target
    elif kind == Kind.SIGNAL_ADD or kind == Kind.ATOMIC_ADD or kind == Kind.ATOMIC_FETCH_ADD:
        holder = -1
    which = number(own, 3)
    value = 1 if kind == Kind.ATOMIC_FETCH_ADD else which >> 31
    return Operation(
        kind, scope, first, target, qp, width, together, holder, origin, start, nbytes, source, which % WORDS, value, nelems, to_stride,
        from_stride,
    )  # fmt: skip


@device
def wanted(background, payload, holder, operation, idx):
    """Return a word of an area as it must be.

    Args:
        background: key of what the area holds where nobody writes.
        payload: key of the operation's source.
        holder: PE whose area it is.
        operation: the one of the lot.
        idx: which word.
    """
    left = word(background, idx)
    at = idx * 8
    low, high = max(operation.start, at), min(operation.start + operation.nbytes, at + 8)
    if operation.holder != holder or low >= high:
        return left
    if operation.to_stride != 1 or operation.from_stride != 1:
        for byte in range(low - operation.start, high - operation.start):
            element, part = byte // (operation.width * operation.to_stride), byte % (operation.width * operation.to_stride)
            if part < operation.width:
                offset = operation.source + element * operation.width * operation.from_stride + part
                sent = word(payload, offset >> 3) >> np.uint64(8 * (offset & 7)) & _255
                place = np.uint64(8 * (operation.start + byte - at))
                left = left & ~(_255 << place) | sent << place
        return left
    offset = operation.source + at - operation.start  # in the source, of the word's first byte
    shift = np.uint64(8 * (offset & 7))
    sent = word(payload, offset >> 3) >> shift
    if shift != 0:
        sent |= word(payload, (offset >> 3) + 1) << (_64 - shift)
    mask = (_ONES >> np.uint64(64 - 8 * (high - low))) << np.uint64(8 * (low - at))
    return (sent & mask) | (left & ~mask)
