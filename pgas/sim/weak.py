"""Weak mode: a memory that performs remote stores late and out of order, like a link may, so that missing fences show on x86.

A store of a kernel thread to another PE's slot, or to the NIC's queues in its own slot, becomes *pending*. Pending stores are performed in
an order drawn from the seed:

| event | stores that it performs |
|---|---|
| `fence("sys")`, `store_release` | stores of the caller, and stores that are published to it |
| a load, atomic, or copy from a remote address | of these, the stores to that address |
| a new store to the same bytes | the stores that it would overtake, because stores to one location stay in order |
| scheduler steps | a few from time to time, so that all stores are performed in the end |
| the end of the kernel | all stores |

*Published* is the model's conservative notion of "happens before". A barrier or warp operation publishes the pending stores of its threads
to their block, and `fence("block")` those of the caller. `fence("gpu")` and a grid barrier publish to the grid. Therefore, a thread that
fences after syncthreads performs the stores of the whole block. Atomics are performed immediately and order nothing.

A copy is cut into pieces that are performed separately. A blocking copy takes its source's bytes at the call. A deferred copy reads each
piece when it is performed, or at ``read_sources`` (flush). It is also delayed if it goes from a remote address to a local one (get_nbi).

Loads may be *early*, because atomics and loads do not order the loads after them. Before an atomic on, or a load of, a remote element,
other remote elements that the thread has loaded before are loaded again. The next load of such an element may return this value, unless
the thread stores to it, fences, acquires, or meets others in a barrier in between. Therefore, if a lock is taken without a fence, loads may
return values from before.

Weak mode finds programs that are wrong on a GPU; it does not change the results of correct ones. It misses races between unordered stores
to the same bytes, other early loads, missing gpu-scope fences between threads of one PE, and loads and stores through array indexing.
"""

import ctypes
import os
import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from pgas.base.errors import PgasError
from pgas.sim import engine, memory
from pgas.sim.scheduler import SimThread

#: Address range of the slots of all PEs. Other memory is private, and stores to it are not delayed.
WINDOW = (0x6000_0000_0000, 0x7C00_0000_0000)

# Probabilities that a scheduler step performs something. One of them is drawn for every kernel.
_DRAIN_CHANCES = (1 / 4, 1 / 16, 1 / 64)
# Holding more pending pieces than a real write queue would only slow the model down without finding more errors.
_MAX_PENDING = 512
_MAX_PIECES = 5
# Number of remote elements of a thread that may be loaded early: those that it has loaded last.
_MAX_EARLY = 16
_PAGE = 4096

_OWN, _BLOCK, _GRID = range(3)


class _Piece:
    """A pending store of `count` elements of `width` bytes, `stride` apart from `lo` on."""

    __slots__ = ("count", "hi", "lo", "owner", "published", "source", "source_stride", "stride", "value", "width")

    def __init__(self, owner: SimThread, lo: int, stride: int, count: int, width: int) -> None:
        self.owner, self.lo, self.stride, self.count, self.width = owner, lo, stride, count, width
        self.hi = lo + (count - 1) * stride + width
        self.published = _OWN
        self.source: Any = None  #: an address, or the bytes themselves, packed
        self.source_stride = width
        self.value = 0  #: value to store if there is no source

    def overlaps(self, lo: int, hi: int, stride: int, width: int) -> bool:
        """Whether elements of `width` bytes, `stride` apart in [lo, hi), touch this piece; True if it is not certain."""
        if self.lo >= hi or lo >= self.hi:
            return False
        if self.stride != stride or stride <= width or self.count == 1:
            return True
        distance = (lo - self.lo) % stride  # The parts of the threads in one cooperative copy are interleaved, but do not overlap.
        return distance < self.width or stride - distance < width

    def take(self) -> None:
        """Read the source, which is an address."""
        source, extent = self.source, (self.count - 1) * self.source_stride
        if not _mapped(min(source, source + extent), max(source, source + extent) + self.width):
            raise self._gone("source", source)
        self.source = (ctypes.c_char * (self.count * self.width))()
        memory.copy_elements(ctypes.addressof(self.source), self.width, source, self.source_stride, self.count, self.width)
        self.source_stride = self.width

    def perform(self) -> None:
        if not _mapped(self.lo, self.hi):
            raise self._gone("target", self.lo)
        if self.source is None:
            memory.store(self.lo, self.value, self.width)
            return
        if isinstance(self.source, int):
            self.take()
        memory.copy_elements(self.lo, self.stride, ctypes.addressof(self.source), self.source_stride, self.count, self.width)

    def _gone(self, what: str, addr: int) -> PgasError:
        return PgasError(
            f"weak memory: the {what} of a pending store is not mapped any more: {addr:#x}, a store of {self.count * self.width} bytes "
            f"by {self.owner!r}. Was it freed before the store was completed, for example by quiet()?"
        )


def _atomic(operation: Callable[..., Any], nbytes: int = 0) -> Callable[..., Any]:
    """Make the method for an atomic of `memory`. nbytes: width of the operand. Default: the last argument."""

    def atomic(self: "WeakMemory", addr: int, *args: Any) -> Any:
        self._before_atomic(addr, nbytes or args[-1])
        return operation(addr, *args)

    return atomic


class WeakMemory:
    """The functions of `pgas.sim.memory` with delayed remote stores. Pass it to `pgas.sim.set_memory_model`.

    Args:
        seed: seed of all choices. The same seed and program repeat them, unless other processes change the order.
        own_lo, own_hi: bounds of the part of this PE's slot that no other PE reads; stores to it are performed immediately.
        window: bounds of the slots of all PEs; stores elsewhere are private, and performed immediately.
    """

    def __init__(self, seed: int, own_lo: int, own_hi: int, window: tuple[int, int] = WINDOW) -> None:
        self.seed, self.own_lo, self.own_hi = seed, own_lo, own_hi
        self.window_lo, self.window_hi = window
        self._random = random.Random(seed)
        self._pending: list[_Piece] = []
        self._chance = self._random.choice(_DRAIN_CHANCES)
        self._loaded: dict[SimThread, dict[tuple[int, int], None]] = {}  #: by thread, address and size of remote elements
        self._early: dict[SimThread, dict[tuple[int, int], int]] = {}  #: the values of these before an atomic

    # Loads, stores, and atomics, with the signatures of `memory`

    def load(self, addr: int, nbytes: int) -> int:
        self._settle(addr, nbytes)
        thread = engine.current() if self._is_remote(addr) else None
        if thread is None:
            return memory.load(addr, nbytes)
        element = int(addr), nbytes
        early = self._early.get(thread, {}).pop(element, None)
        self._load_early(thread, *element)
        loaded = self._loaded.setdefault(thread, {})
        loaded.pop(element, None)
        loaded[element] = None
        if len(loaded) > _MAX_EARLY:
            del loaded[next(iter(loaded))]
        return memory.load(addr, nbytes) if early is None or self._random.random() < 0.5 else early

    def load_acquire(self, addr: int, nbytes: int) -> int:
        self._acquire(engine.current())
        self._settle(addr, nbytes)
        return memory.load_acquire(addr, nbytes)

    def store(self, addr: int, value: int, nbytes: int) -> None:
        thread = engine.current() if self._is_remote(addr) else None
        if thread is None:
            memory.store(addr, value, nbytes)
            return
        piece = _Piece(thread, int(addr), nbytes, 1, nbytes)
        piece.value = int(value)
        self._enqueue([piece])

    def store_release(self, addr: int, value: int, nbytes: int) -> None:
        self.fence("sys")
        memory.store_release(addr, value, nbytes)

    atomic_add, atomic_exchange = _atomic(memory.atomic_add), _atomic(memory.atomic_exchange)
    atomic_and, atomic_or, atomic_xor = _atomic(memory.atomic_and), _atomic(memory.atomic_or), _atomic(memory.atomic_xor)
    atomic_compare_swap = _atomic(memory.atomic_compare_swap)
    atomic_add_f32, atomic_add_f64 = _atomic(memory.atomic_add_f32, 4), _atomic(memory.atomic_add_f64, 8)

    def copy_strided(self, dst: int, src: int, first: int, end: int, step: int, width: int, deferred: bool = False) -> None:
        dst, src, first, end, step, width = int(dst), int(src), int(first), int(end), int(step), int(width)
        offset, stride = first * width, step * width
        self.copy_elements(dst + offset, stride, src + offset, stride, len(range(first, end, step)), width, deferred)

    def copy_elements(self, dst: int, dst_stride: int, src: int, src_stride: int, count: int, width: int, deferred: bool = False) -> None:
        if count <= 0:
            return
        if dst_stride < 0:
            dst, dst_stride = dst + (count - 1) * dst_stride, -dst_stride
            src, src_stride = src + (count - 1) * src_stride, -src_stride
        thread = engine.current() if self._is_remote(dst) or (deferred and self._is_remote(src)) else None
        extent = (count - 1) * src_stride
        if thread is None or not deferred:
            self._settle(min(src, src + extent), abs(extent) + width)
            self._forget(engine.current(), min(src, src + extent), max(src, src + extent) + width)
        if thread is not None and dst_stride < width:  # No delay, because elements overwrite each other.
            self._perform_if(lambda p: p.overlaps(dst, dst + (count - 1) * dst_stride + width, dst_stride, width))
            self._forget(thread, dst, dst + (count - 1) * dst_stride + width)
            thread = None
        if thread is None:
            memory.copy_elements(dst, dst_stride, src, src_stride, count, width)
            return
        source: Any = None
        if not deferred:
            source = (ctypes.c_char * (count * width))()
            memory.copy_elements(ctypes.addressof(source), width, src, src_stride, count, width)
        pieces = []
        for a, b in pairwise(self._cuts(count)):
            piece = _Piece(thread, dst + a * dst_stride, dst_stride, b - a, width)
            if deferred:
                piece.source, piece.source_stride = src + a * src_stride, src_stride
            else:
                piece.source = (ctypes.c_char * ((b - a) * width)).from_buffer(source, a * width)
            pieces.append(piece)
        self._enqueue(pieces)

    def fence(self, scope: str = "sys") -> None:
        """Perform ("sys") or publish ("gpu", "block") the caller's stores, and those published to it."""
        thread = engine.current()
        self._acquire(thread)
        if thread is None:
            memory.fence()
        elif scope == "sys":
            self._perform_if(lambda p: _before(p, thread))
            memory.fence()
        else:
            level = {"block": _BLOCK, "gpu": _GRID}[scope]
            for piece in self._pending:
                if piece.published < level and _before(piece, thread):
                    piece.published = level

    def read_sources(self) -> None:
        """Make the puts that happen before this call read their sources; none needs to arrive."""
        thread = engine.current()
        for piece in self._pending:
            if isinstance(piece.source, int) and self._is_remote(piece.lo) and thread is not None and _before(piece, thread):
                piece.take()

    # Events of the engine

    def threads_synced(self, threads: Iterable[SimThread]) -> None:
        if self._early:
            for thread in threads:
                self._acquire(thread)
        if self._pending:
            met = set(threads)
            for piece in self._pending:
                if piece.published == _OWN and piece.owner in met:
                    piece.published = _BLOCK

    def grid_synced(self) -> None:
        self._early.clear()
        for piece in self._pending:
            piece.published = _GRID

    def step(self) -> None:
        if self._pending and self._random.random() < self._chance:
            self._drain(self._random.randint(1, 1 + len(self._pending) // 4))

    def launch_ended(self, failed: bool) -> None:
        self._chance = self._random.choice(_DRAIN_CHANCES)
        self._loaded.clear()
        self._early.clear()
        try:
            self._drain(len(self._pending))
        except PgasError:
            if not failed:  # Otherwise, the kernel's own error is more precise.
                raise

    # Pending pieces never overlap each other, so any order of performing them is legal.

    def _is_remote(self, addr: int) -> bool:
        return self.window_lo <= addr < self.window_hi and not self.own_lo <= addr < self.own_hi

    def _enqueue(self, pieces: list[_Piece]) -> None:
        for new in pieces:
            self._forget(new.owner, new.lo, new.hi)
            self._perform_if(lambda p, new=new: p.overlaps(new.lo, new.hi, new.stride, new.width))  # type: ignore[misc]
        self._pending += pieces
        if len(self._pending) > _MAX_PENDING:
            self._drain(_MAX_PENDING // 4)

    def _settle(self, lo: int, nbytes: int) -> None:
        """Before an access to [lo, lo + nbytes), perform the stores to it that the calling thread must observe."""
        if self._pending and self._is_remote(lo):
            thread = engine.current()
            if thread is not None:
                self._perform_if(lambda p: p.overlaps(lo, lo + nbytes, nbytes, nbytes) and _before(p, thread))

    def _before_atomic(self, addr: int, nbytes: int) -> None:
        """Perform the stores that an atomic must observe, and some loads after it."""
        self._settle(addr, nbytes)
        if self._loaded and self._is_remote(addr) and (thread := engine.current()) is not None:
            self._forget(thread, addr, addr + nbytes)
            self._load_early(thread, addr, nbytes)

    def _load_early(self, thread: SimThread, addr: int, nbytes: int) -> None:
        """Before an atomic on, or a load of, a remote element, load the other elements that the thread may load after it."""
        early = self._early.setdefault(thread, {})
        for lo, size in self._loaded.get(thread, ()):
            if (lo, size) in early or (lo < addr + nbytes and addr < lo + size):
                continue
            if not any(p.overlaps(lo, lo + size, size, size) for p in self._pending):  # Because a pending store must be observed.
                early[lo, size] = memory.load(lo, size)

    def _acquire(self, thread: SimThread | None) -> None:
        """Let the thread's next loads return what is in memory."""
        self._early.pop(thread, None)  # type: ignore[arg-type]

    def _forget(self, thread: SimThread | None, lo: int, hi: int) -> None:
        """Drop the thread's early loads of [lo, hi), because it stores there, or has loaded from there after the atomic."""
        early = self._early.get(thread) if thread is not None else None
        for element in [e for e in early or () if e[0] < hi and lo < e[0] + e[1]]:
            del early[element]  # type: ignore[union-attr]

    def _cuts(self, count: int) -> list[int]:
        """Return where to cut a copy of `count` elements. Often, its last element is a piece of its own, which may arrive first."""
        inner = {self._random.randrange(1, count) for _ in range(self._random.randrange(_MAX_PIECES))} if count > 1 else set()
        if count > 1 and self._random.random() < 0.5:
            inner.add(count - 1)
        return [0, *sorted(inner), count]

    def _perform_if(self, wanted: Callable[[_Piece], bool]) -> None:
        chosen = [p for p in self._pending if wanted(p)]
        if chosen:
            gone = set(chosen)
            self._pending = [p for p in self._pending if p not in gone]
            self._random.shuffle(chosen)
            self._perform(chosen)

    def _drain(self, count: int) -> None:
        self._random.shuffle(self._pending)
        chosen = self._pending[:count]
        del self._pending[:count]
        self._perform(chosen)

    def _perform(self, pieces: list[_Piece]) -> None:
        failure: PgasError | None = None
        for piece in pieces:
            try:
                piece.perform()
            except PgasError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _before(piece: _Piece, thread: SimThread) -> bool:
    """Whether the store happens before what `thread` does now."""
    if piece.owner is thread or piece.published == _GRID:
        return True
    return piece.published == _BLOCK and piece.owner.block is thread.block


_libc = ctypes.CDLL(None, use_errno=True)
_libc.pwrite.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long
_probe_fd = -1


def _mapped(lo: int, hi: int) -> bool:
    """Whether every page of [lo, hi) can be read. Linux reads a byte of each page, and reports an error if a load would fault."""
    global _probe_fd
    if _probe_fd < 0:
        _probe_fd = os.memfd_create("pgas-weak-probe")
    return all(_libc.pwrite(_probe_fd, addr, 1, 0) == 1 for addr in (lo, *range((lo | _PAGE - 1) + 1, hi, _PAGE)))
