"""The soak test, ``--soak SECONDS``: many concurrent random operations without an oracle; every PE checks every byte of its area.

A round is one kernel. Each thread performs some operations, alone or with its warp or block. A hash of seed, round, and thread determines
kind, length, alignment, target, and queue pair. A caller writes only to its own lots, ``area[sender][step][cta][thread]``, so that
operations never conflict, and the seed determines every byte of every area. After the round, each PE computes all operations again on the
device, and checks its whole area, its signals, and its counters.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

import pgas
from pgas import cuda
from pgas.kernels import window
from pgas.perftests.programs import interpreter
from pgas.perftests.programs.operation import BLOCK, LANES, THREAD, WARP
from pgas.transports import registry

# Operations; the numbers of copies are those of the interpreter.
_NAMES = {0: "put", 1: "put_nbi", 2: "get", 3: "get_nbi", 6: "put_signal", 7: "put_signal_nbi", 8: "p", 9: "g"}
_GET, _GET_NBI, _PUT_SIGNAL, _PUT_SIGNAL_NBI, _P, _G, _ADD, _FETCH_ADD = 2, 3, 6, 7, 8, 9, 10, 11

#: Number of words of each kind on a PE: signals, sums, and counters. Counters count in steps of one.
_WORDS = 64
_WORD_NAMES = ("signal", "sum", "counter")

#: Indices of the numbers that check() counts.
_WRONG, _CALLS, _NBYTES, _TALLIES = range(4)

#: Number of wrong words that are reported, and the fields of each.
_REPORTED = 8
_FAULT = np.dtype(
    [("found", np.uint64), ("right", np.uint64), *((name, np.int64) for name in ("word", "kind", "scope", "pe", "start", "nbytes"))]
)

_GOLDEN, _MIX_1, _MIX_2 = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_1, _27, _30, _31, _64 = (np.uint64(c) for c in (1, 27, 30, 31, 64))
_ONES = np.uint64((1 << 64) - 1)


class SoakShape(NamedTuple):
    """The job and a round. A source is longer than the lots of a CTA."""

    n_pes: int
    queue_pairs: int
    ctas: int
    threads: int
    steps: int
    lot_bytes: int
    source_bytes: int


class Arrays(NamedTuple):
    """Arrays of the kernels: views of area and source, on the heap as ``words``; results of check(), in the PE's own memory."""

    area: Any
    area8: Any
    source: Any
    source8: Any
    words: Any
    tallies: Any  #: numbers that check() counted in the last round
    faults: Any  #: wrong words of the last round
    added: Any  #: expected sum of all rounds in each word of this PE
    fetched: Any  #: sum over all rounds of the squares of the values that this PE fetched, by counter and PE


class _Operation(NamedTuple):
    kind: int
    scope: int
    first: int  #: first thread of the CTA that calls it
    pe: int
    qp: int
    holder: int  #: PE whose area is written to
    origin: int  #: PE whose source is read
    start: int  #: offset in the area
    source: int  #: offset in the source
    nbytes: int
    word: int
    value: int


def _device(function: Callable[..., Any]) -> Any:
    """Compile a function of integers that kernels call; in the simulator, for the CPU."""
    if not pgas.SIMULATOR:
        return cuda.jit(device=True)(function)
    compiled = njit(function)
    with contextlib.suppress(RuntimeError):  # Without a writable cache, it is compiled in every process.
        compiled.enable_caching()
    return compiled


@_device
def _hash(key, number):
    """Return 64 bits: splitmix64."""
    x = np.uint64(key) + _GOLDEN * np.uint64(number + 1)
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@_device
def _number(key, number):
    """Return a non-negative integer."""
    return np.int64(_hash(key, number) >> _1)


@_device
def _key(seed, round_, pe, what):
    """Return the hash key of a PE in a round. what: 0 operations, 1 source, 2 area before the operations."""
    return _number(_number(_number(seed, round_), pe), what)


@_device
def _draw(shape, seed, round_, pe, step, cta, thread):
    key = _number(_number(_key(seed, round_, pe, 0), step), cta)
    lane = thread % LANES
    scope, first, lots, kinds = BLOCK, 0, shape.threads, 6
    if key % 8 != 0:
        key = _number(key, thread // LANES)
        scope, first, lots, kinds = WARP, thread - lane, LANES, 8
        if key % 4 != 0:
            scope, first, lots, kinds = THREAD, thread, 1, 10
    own = _number(key, lane) if scope == THREAD else _number(key, LANES)
    kind = (key >> 8) % kinds
    kind += 2 if kind > _GET_NBI else 0
    agreed = key if scope != THREAD or key >> 4 & 3 != 0 else own  # Usually, all lanes have the same target and queue pair.
    target, qp = (agreed >> 16) % shape.n_pes, (agreed >> 24) % (shape.queue_pairs + 1)
    room, unit = lots * shape.lot_bytes, 1
    if kind >= _ADD:
        nbytes = 0
    elif kind >= _P:
        nbytes, unit = (8, 8) if scope == THREAD else (8 * LANES, 8)  # A warp's p and g take neighboring elements.
    else:
        nbytes = room >> (own & 15)  # So that every order of magnitude is equally likely.
        nbytes = nbytes + 1 if nbytes == 0 else nbytes - (own >> 4) % (nbytes // 2 + 1)
        unit = 1 if own >> 32 & 3 != 0 else 16
    lot = ((pe * shape.steps + step) * shape.ctas + cta) * shape.threads + first
    start = lot * shape.lot_bytes + _number(own, 1) % ((room - nbytes) // unit + 1) * unit
    source = _number(own, 2) % ((shape.source_bytes - nbytes) // unit + 1) * unit
    holder, origin = (pe, target) if kind in (_GET, _GET_NBI, _G) else (target, pe)
    value = 1 if kind == _FETCH_ADD else own >> 40
    return _Operation(kind, scope, first, target, qp, holder, origin, start, source, nbytes, (own >> 34) % _WORDS, value)


@_device
def _right(background, payload, me, o, i):
    """Return the expected word i of this PE's area, given the operation of its lot."""
    left, at = _hash(background, i), 8 * i
    low, high = max(o.start, at), min(o.start + o.nbytes, at + 8)
    if o.holder != me or low >= high:
        return left
    offset = o.source + at - o.start  # Offset of the word's first byte in the source.
    shift = np.uint64(8 * (offset & 7))
    sent = _hash(payload, offset >> 3) >> shift
    if shift != 0:
        sent |= _hash(payload, (offset >> 3) + 1) << (_64 - shift)
    mask = (_ONES >> np.uint64(64 - 8 * (high - low))) << np.uint64(8 * (low - at))
    return (sent & mask) | (left & ~mask)


@pgas.jit
def fill(arrays: Arrays, seed: int, round_: int) -> None:
    """Fill area and source with the round's initial values."""
    background, payload = _key(seed, round_, pgas.my_pe(), 2), _key(seed, round_, pgas.my_pe(), 1)
    for i in range(cuda.grid(1), arrays.area8.size, cuda.gridsize(1)):
        arrays.area8[i] = _hash(background, i)
    for i in range(cuda.grid(1), arrays.source8.size, cuda.gridsize(1)):
        arrays.source8[i] = _hash(payload, i)


@cuda.jit(device=True)
def _add(arrays, o):
    """Add to a sum or a counter."""
    if o.kind == _ADD:
        pgas.atomic_add(arrays.words, _WORDS + o.word, o.value, o.pe)
    else:
        old = np.int64(pgas.atomic_fetch_add(arrays.words, 2 * _WORDS + o.word, o.value, o.pe))
        cuda.atomic.add(arrays.fetched, _WORDS * o.pe + o.word, old * old)


@pgas.jit
def operate(shape: SoakShape, arrays: Arrays, seed: int, round_: int) -> None:
    """Perform a round's operations."""
    for step in range(shape.steps):
        o = _draw(shape, seed, round_, pgas.my_pe(), step, cuda.blockIdx.x, cuda.threadIdx.x)
        dest, data = arrays.area[o.start : o.start + o.nbytes], arrays.source[o.source : o.source + o.nbytes]
        lane = cuda.threadIdx.x % LANES if o.scope == WARP else 0
        if o.kind == _P:
            pgas.p(arrays.area8, o.start // 8 + lane, arrays.source8[o.source // 8 + lane], o.pe, o.qp)
        elif o.kind == _G:
            arrays.area8[o.start // 8 + lane] = pgas.g(arrays.source8, o.source // 8 + lane, o.pe, o.qp)
        elif o.kind >= _ADD:
            _add(arrays, o)
        elif o.kind >= _PUT_SIGNAL:
            interpreter.signalled(o.kind, o.scope, dest, data, arrays.words, o.word, o.value, pgas.SIGNAL_ADD, o.pe)
        else:
            interpreter.copied(o.kind, o.scope, dest, data, o.pe, None, o.qp)
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        pgas.quiet()


@pgas.jit
def check(shape: SoakShape, arrays: Arrays, seed: int, round_: int) -> None:
    """Compute the operations of all PEs again, compare this PE's area with them, and add up the expected sums."""
    me = pgas.my_pe()
    background, words = _key(seed, round_, me, 2), shape.lot_bytes // 8
    for lot in range(cuda.grid(1), arrays.area8.size // words, cuda.gridsize(1)):
        rest, thread = lot // shape.threads, lot % shape.threads
        rest, cta = rest // shape.ctas, rest % shape.ctas
        sender, step = rest // shape.steps, rest % shape.steps
        o = _draw(shape, seed, round_, sender, step, cta, thread)
        if thread == o.first:
            if sender == me:
                cuda.atomic.add(arrays.tallies, _CALLS, 1)
                cuda.atomic.add(arrays.tallies, _NBYTES, o.nbytes)
            if o.pe == me and (o.kind >= _ADD or o.kind == _PUT_SIGNAL or o.kind == _PUT_SIGNAL_NBI):
                which = 2 if o.kind == _FETCH_ADD else 1 if o.kind == _ADD else 0
                cuda.atomic.add(arrays.added, which * _WORDS + o.word, o.value)
        payload = _key(seed, round_, o.origin, 1)
        for i in range(lot * words, (lot + 1) * words):
            found, right = arrays.area8[i], _right(background, payload, me, o, i)
            if found != right:
                number = cuda.atomic.add(arrays.tallies, _WRONG, 1)
                if number < _REPORTED:
                    fault = arrays.faults[number]
                    fault.word, fault.found, fault.right = i, found, right
                    fault.kind, fault.scope, fault.pe, fault.start, fault.nbytes = o.kind, o.scope, o.pe, o.start, o.nbytes


class Soak:
    """The arrays and rounds of a PE. All methods are collective.

    Raises:
        HeapError: if the area does not fit on the heap.
    """

    def __init__(self, seed: int) -> None:
        n_pes, queue_pairs = pgas.n_pes(), window.constants().num_qps or registry.QUEUE_PAIRS
        self.seed, self.number = seed, 0
        ctas, threads, steps, lot_bytes, source_bytes = (2, 64, 8, 32, 8 << 10) if pgas.SIMULATOR else (32, 256, 8, 1 << 10, 1 << 20)
        self.shape = SoakShape(n_pes, queue_pairs, ctas, threads, steps, lot_bytes, source_bytes)
        area = pgas.empty(n_pes * steps * ctas * threads * lot_bytes, np.uint8)
        source, words = pgas.empty(source_bytes, np.uint8), pgas.zeros(len(_WORD_NAMES) * _WORDS, np.uint64)
        self._heap = [area, source, words]
        sizes = (_TALLIES, np.int64), (_REPORTED, _FAULT), (words.size, np.int64), (n_pes * _WORDS, np.int64)
        own = [np.zeros(size, dtype) for size, dtype in sizes]
        self.arrays = Arrays(area, area.view(np.uint64), source, source.view(np.uint64), words, *map(cuda.to_device, own))
        if pgas.my_pe() == 0 and not pgas.SIMULATOR:
            print("programs: kernels of the soak test are compiled, unless they are in the disk cache", file=sys.stderr, flush=True)
        operate[ctas, threads](self.shape._replace(steps=0), self.arrays, seed, 0)
        pgas.barrier_all()

    def free(self) -> None:
        for array in reversed(self._heap):
            pgas.free(array)

    def round(self) -> tuple[int, int, list[str]]:
        """Run a round; return the calls and bytes of this PE, and its faults."""
        grid, arrays = (self.shape.ctas, self.shape.threads), self.arrays
        fill[grid](arrays, self.seed, self.number)
        pgas.barrier_all()
        operate[grid](self.shape, arrays, self.seed, self.number)
        pgas.barrier_all()
        arrays.tallies.copy_to_device(np.zeros(_TALLIES, np.int64))
        check[grid](self.shape, arrays, self.seed, self.number)
        pgas.synchronize()
        wrong, calls, nbytes = arrays.tallies.copy_to_host().tolist()
        faults = [f"{wrong} wrong words in its area"] if wrong else []
        faults += [self._text(fault) for fault in np.sort(arrays.faults.copy_to_host()[:wrong], order="word")]
        faults += self._wrong_words()
        self.number += 1
        return calls, nbytes, faults

    def _text(self, fault: Any) -> str:
        found, right, word, kind, scope, pe, start, nbytes = fault.item()
        sender, step, cta, thread = (int(i) for i in np.unravel_index(8 * word // self.shape.lot_bytes, self._lots()))
        name = _NAMES[kind] + {THREAD: "", WARP: "_warp", BLOCK: "_block"}[scope]
        return (
            f"word {word} is {found:#018x} instead of {right:#018x}; {name} of {nbytes} bytes with PE {pe}, at byte {start}, "
            f"by PE {sender}, CTA {cta}, thread {thread}, step {step} of round {self.number}, seed {self.seed}"
        )

    def _lots(self) -> tuple[int, ...]:
        return self.shape.n_pes, self.shape.steps, self.shape.ctas, self.shape.threads

    def _wrong_words(self) -> list[str]:
        """Check the words of this PE, and that all PEs together fetched each value of its counters once."""
        found, added = self.arrays.words.copy_to_host().astype(np.int64), self.arrays.added.copy_to_host()
        names = [f"{name} {i}" for name in _WORD_NAMES for i in range(_WORDS)]
        faults = [f"{names[i]} is {found[i]} instead of {added[i]}" for i in np.flatnonzero(found != added)]
        fetched = sum(pgas.allgather_object(self.arrays.fetched.copy_to_host())).reshape(-1, _WORDS)[pgas.my_pe()]
        for i, counted in enumerate(added[2 * _WORDS :].tolist()):
            if (int(fetched[i]) - (counted - 1) * counted * (2 * counted - 1) // 6) % 2**64:
                faults.append(f"counter {i}: its {counted} values were not fetched once each")
        return faults[:_REPORTED]


def run(seed: int, seconds: float) -> int:
    """Run rounds for a time or until a fault; return the exit status of the command. Collective."""
    soak = Soak(seed)
    began = last = time.monotonic()
    calls = nbytes = 0
    faults: list[str] = []
    left = True
    while left and not faults:
        results = pgas.allgather_object((*soak.round(), time.monotonic() - began < seconds))
        calls += sum(result[0] for result in results)
        nbytes += sum(result[1] for result in results)
        faults = [f"PE {pe}: {text}" for pe, result in enumerate(results) for text in result[2]]
        left = results[0][3]
        if pgas.my_pe() == 0 and time.monotonic() - last > 20:
            last = time.monotonic()
            print(f"programs: {calls:,} operations in {last - began:.0f} s", file=sys.stderr, flush=True)
    soak.free()
    if pgas.my_pe() == 0:
        for fault in faults:
            print(f"programs: error: {fault}", file=sys.stderr, flush=True)
        print(
            f"programs: soak of {pgas.n_pes()} PEs, seed {seed}: {calls} operations, {nbytes} bytes in {soak.number} rounds, "
            f"{time.monotonic() - began:.1f} s; {len(faults)} faults; over {pgas.info()['transport']}",
            flush=True,
        )
    return 1 if faults else 0
