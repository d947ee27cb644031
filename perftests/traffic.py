"""The kernels of the soak test: they perform what draws.py says, and check it."""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import pgas
from pgas.perftests.draws import BLOCK, LANES, THREAD, WARP, WORDS, Kind, Shape, draw, half, key, wanted, word

__all__ = ["Heap", "Notes", "check", "fill", "operate"]

# Words of a PE: signals, sums and counters of 8 bytes; sums and counters of 4. All begin at -2, so that they wrap.
SIGNALS, SUMS, COUNTERS, SUMS_4, COUNTERS_4, ALL_WORDS = range(0, 6 * WORDS, WORDS)
BEGIN = -2

# What check() counts, behind the calls of each kind: bytes moved, the fewest and the most WQEs, wrong bytes.
NBYTES, FEWEST, MOST, WRONG, TALLIES = range(len(Kind), len(Kind) + 5)

#: Wrong bytes that are told of, and what is told.
TOLD = 8
FAULT = np.dtype([(name, np.int64) for name in ("lot", "at", "found", "wanted", "kind", "scope", "pe", "start", "nbytes", "written")])


class Heap(NamedTuple):
    """What operations reach: views of area and source by element size, words of 8 and of 4 bytes."""

    area1: Any
    area2: Any
    area4: Any
    area8: Any
    area16: Any
    source1: Any
    source2: Any
    source4: Any
    source8: Any
    source16: Any
    words8: Any
    words4: Any


class Notes(NamedTuple):
    """What kernels note of their own PE's rounds, in its own memory."""

    tallies: Any  #: of the last round
    sums: Any  #: of all rounds: what must have been added to each word of this PE
    fetched: Any  #: of all rounds: a hash of what was fetched from each counter of each PE
    faults: Any  #: of the last round


@pgas.jit
def fill(heap: Heap, seed: int, round_: int) -> None:
    """Make area and source new."""
    background, payload = key(seed, round_, pgas.my_pe(), 2), key(seed, round_, pgas.my_pe(), 1)
    for i in range(cuda.grid(1), heap.area8.size, cuda.gridsize(1)):
        heap.area8[i] = word(background, i)
    for i in range(cuda.grid(1), heap.source8.size, cuda.gridsize(1)):
        heap.source8[i] = word(payload, i)


@cuda.jit(device=True)
def p(heap, width, to, source, pe, qp):
    """Send an element."""
    to, source = to // width, source // width
    if width == 1:
        pgas.p(heap.area1, to, heap.source1[source], pe, qp)
    elif width == 2:
        pgas.p(heap.area2, to, heap.source2[source], pe, qp)
    elif width == 4:
        pgas.p(heap.area4, to, heap.source4[source], pe, qp)
    elif width == 8:
        pgas.p(heap.area8, to, heap.source8[source], pe, qp)
    else:
        pgas.p(heap.area16, to, heap.source16[source], pe, qp)


@cuda.jit(device=True)
def g(heap, width, to, source, pe, qp):
    """Fetch an element."""
    to, source = to // width, source // width
    if width == 1:
        heap.area1[to] = pgas.g(heap.source1, source, pe, qp)
    elif width == 2:
        heap.area2[to] = pgas.g(heap.source2, source, pe, qp)
    elif width == 4:
        heap.area4[to] = pgas.g(heap.source4, source, pe, qp)
    elif width == 8:
        heap.area8[to] = pgas.g(heap.source8, source, pe, qp)
    else:
        heap.area16[to] = pgas.g(heap.source16, source, pe, qp)


@cuda.jit(device=True)
def apart_by_thread(dest, source, o):
    """Copy elements that lie apart."""
    if o.kind == Kind.IPUT:
        pgas.iput(dest, source, o.to_stride, o.from_stride, o.pe, o.nelems)
    else:
        pgas.iget(dest, source, o.to_stride, o.from_stride, o.pe, o.nelems)


@cuda.jit(device=True)
def by_thread(heap, notes, o):
    """Perform an operation of one thread."""
    to, source = o.start, o.source
    if o.together == 1:
        lane = cuda.threadIdx.x % LANES
        to, source = to + lane * o.width, source + lane * o.width
    if o.kind == Kind.IPUT or o.kind == Kind.IGET:
        if o.width == 2:
            apart_by_thread(heap.area2[to // 2 :], heap.source2[source // 2 :], o)
        else:
            apart_by_thread(heap.area16[to // 16 :], heap.source16[source // 16 :], o)
    elif o.kind < Kind.P:
        dest, data = heap.area1[to : to + o.nbytes], heap.source1[source : source + o.nbytes]
        if o.kind == Kind.PUT:
            pgas.put(dest, data, o.pe, None, o.qp)
        elif o.kind == Kind.PUT_NBI:
            pgas.put_nbi(dest, data, o.pe, None, o.qp)
        elif o.kind == Kind.GET:
            pgas.get(dest, data, o.pe, None, o.qp)
        elif o.kind == Kind.GET_NBI:
            pgas.get_nbi(dest, data, o.pe, None, o.qp)
        elif o.kind == Kind.PUT_SIGNAL:
            pgas.put_signal(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
        else:
            pgas.put_signal_nbi(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
    elif o.kind == Kind.P:
        p(heap, o.width, to, source, o.pe, o.qp)
    elif o.kind == Kind.G:
        g(heap, o.width, to, source, o.pe, o.qp)
    elif o.kind == Kind.SIGNAL_SET:
        pgas.signal_op(heap.area8, to // 8, heap.source8[source // 8], pgas.SIGNAL_SET, o.pe)
    elif o.kind == Kind.SIGNAL_ADD:
        pgas.signal_op(heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
    elif o.kind == Kind.ATOMIC_ADD:
        if o.width == 8:
            pgas.atomic_add(heap.words8, SUMS + o.word, o.value, o.pe)
        else:
            pgas.atomic_add(heap.words4, o.word, o.value, o.pe)
    elif o.width == 8:
        old = pgas.atomic_fetch_add(heap.words8, COUNTERS + o.word, o.value, o.pe)
        cuda.atomic.add(notes.fetched, 2 * WORDS * o.pe + o.word, half(np.uint64(old)))
    else:
        old = pgas.atomic_fetch_add(heap.words4, WORDS + o.word, o.value, o.pe)
        cuda.atomic.add(notes.fetched, 2 * WORDS * o.pe + WORDS + o.word, half(np.uint64(old)))


@cuda.jit(device=True)
def by_warp(heap, o):
    """Perform an operation of a warp."""
    dest, data = heap.area1[o.start : o.start + o.nbytes], heap.source1[o.source : o.source + o.nbytes]
    if o.kind == Kind.PUT:
        pgas.put_warp(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.PUT_NBI:
        pgas.put_nbi_warp(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.GET:
        pgas.get_warp(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.GET_NBI:
        pgas.get_nbi_warp(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.IPUT:
        apart, those = heap.area4[o.start // 4 :], heap.source4[o.source // 4 :]
        pgas.iput_warp(apart, those, o.to_stride, o.from_stride, o.pe, o.nelems)
    elif o.kind == Kind.IGET:
        apart, those = heap.area4[o.start // 4 :], heap.source4[o.source // 4 :]
        pgas.iget_warp(apart, those, o.to_stride, o.from_stride, o.pe, o.nelems)
    elif o.kind == Kind.PUT_SIGNAL:
        pgas.put_signal_warp(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
    else:
        pgas.put_signal_nbi_warp(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)


@cuda.jit(device=True)
def by_block(heap, o):
    """Perform an operation of a block."""
    dest, data = heap.area1[o.start : o.start + o.nbytes], heap.source1[o.source : o.source + o.nbytes]
    if o.kind == Kind.PUT:
        pgas.put_block(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.PUT_NBI:
        pgas.put_nbi_block(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.GET:
        pgas.get_block(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.GET_NBI:
        pgas.get_nbi_block(dest, data, o.pe, None, o.qp)
    elif o.kind == Kind.IPUT:
        apart, those = heap.area8[o.start // 8 :], heap.source8[o.source // 8 :]
        pgas.iput_block(apart, those, o.to_stride, o.from_stride, o.pe, o.nelems)
    elif o.kind == Kind.IGET:
        apart, those = heap.area8[o.start // 8 :], heap.source8[o.source // 8 :]
        pgas.iget_block(apart, those, o.to_stride, o.from_stride, o.pe, o.nelems)
    elif o.kind == Kind.PUT_SIGNAL:
        pgas.put_signal_block(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
    else:
        pgas.put_signal_nbi_block(dest, data, heap.words8, o.word, o.value, pgas.SIGNAL_ADD, o.pe)


@pgas.jit
def operate(shape: Shape, heap: Heap, notes: Notes, seed: int, round_: int) -> None:
    """Perform a round's operations."""
    for step in range(shape.steps):
        o = draw(shape, seed, round_, pgas.my_pe(), step, cuda.blockIdx.x, cuda.threadIdx.x)
        if o.scope == BLOCK:
            by_block(heap, o)
        elif o.scope == WARP:
            by_warp(heap, o)
        else:
            by_thread(heap, notes, o)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.quiet()


@cuda.jit(device=True)
def tally(tallies, o, thread):
    """Count a call of this PE, and what the card must have counted for it."""
    nbytes, wqes = o.nbytes, 1
    if o.kind == Kind.PUT_SIGNAL or o.kind == Kind.PUT_SIGNAL_NBI:
        nbytes, wqes = nbytes + 8, 2
    elif o.kind == Kind.SIGNAL_SET:
        wqes = 2  # a NOP completes it
    elif o.kind == Kind.IPUT or o.kind == Kind.IGET:
        nbytes = o.nelems * o.width
        wqes = 1 if o.to_stride == 1 and o.from_stride == 1 else o.nelems
    elif o.kind >= Kind.P:
        nbytes = o.width
    cuda.atomic.add(tallies, o.kind, 1)
    cuda.atomic.add(tallies, NBYTES, nbytes)
    cuda.atomic.add(tallies, MOST, wqes)
    if (o.kind != Kind.P and o.kind != Kind.G) or thread % LANES == 0:  # those of a warp may share a WQE
        cuda.atomic.add(tallies, FEWEST, wqes)


@cuda.jit(device=True)
def expect(sums, o):
    """Add what an operation adds to a word of this PE."""
    if o.kind == Kind.PUT_SIGNAL or o.kind == Kind.PUT_SIGNAL_NBI or o.kind == Kind.SIGNAL_ADD:
        cuda.atomic.add(sums, SIGNALS + o.word, o.value)
    elif o.kind == Kind.ATOMIC_ADD:
        cuda.atomic.add(sums, (SUMS if o.width == 8 else SUMS_4) + o.word, o.value)
    elif o.kind == Kind.ATOMIC_FETCH_ADD:
        cuda.atomic.add(sums, (COUNTERS if o.width == 8 else COUNTERS_4) + o.word, o.value)


@cuda.jit(device=True)
def byte_of(word, i):
    """Return a byte of a word."""
    return np.int64(word >> np.uint64(8 * i)) & 255


@pgas.jit
def check(shape: Shape, heap: Heap, notes: Notes, seed: int, round_: int) -> None:
    """Draw the operations of all PEs again, lot by lot; compare every byte of this PE's area, and note what its words must be."""
    me = pgas.my_pe()
    background = key(seed, round_, me, 2)
    words = shape.lane_bytes // 8
    for lot in range(cuda.grid(1), heap.area8.size // words, cuda.gridsize(1)):
        thread = lot % shape.threads
        cta = lot // shape.threads % shape.ctas
        step = lot // shape.threads // shape.ctas % shape.steps
        sender = lot // shape.threads // shape.ctas // shape.steps
        o = draw(shape, seed, round_, sender, step, cta, thread)
        if o.scope == THREAD or thread == o.first:
            if sender == me:
                tally(notes.tallies, o, thread)
            if o.pe == me:
                expect(notes.sums, o)
        payload = key(seed, round_, o.origin, 1)
        for i in range(lot * words, (lot + 1) * words):
            found, right = heap.area8[i], wanted(background, payload, me, o, i)
            if found != right:
                for byte in range(8):
                    one, other = byte_of(found, byte), byte_of(right, byte)
                    if one != other:
                        number = cuda.atomic.add(notes.tallies, WRONG, 1)
                        if number < TOLD:
                            fault = notes.faults[number]
                            fault.lot, fault.at, fault.found, fault.wanted = lot, 8 * i + byte, one, other
                            fault.kind, fault.scope, fault.pe, fault.start, fault.nbytes = o.kind, o.scope, o.pe, o.start, o.nbytes
                            fault.written = 1 if o.holder == me else 0
