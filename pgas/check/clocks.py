"""Clocks of happens-before: which events of which threads a thread knows of.

An event of a thread is known in three ways: the kernel of the thread has ended, its block has met in a later barrier, or the thread itself
has released something since. A clock therefore has three parts, and an entry of the first or second covers all threads of a kernel or of a
block. Clocks never change, so that threads share them. When a warp has met, one entry stands for its threads, so that clocks stay small.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pgas.sim.scheduler import WARP_SIZE


@dataclass(eq=False, slots=True)
class Epoch:
    """The position of an event: its thread, the number of barriers that the thread's block had passed, and the thread's tick.

    It never changes, but is not frozen: that would take longer to make.
    """

    pe: int
    lane: tuple[int, int]  #: PE and stream
    launch: int  #: number of the launch in the stream; 0 on the host
    block: int
    phase: int
    thread: int
    warp: int  #: number that stands for the threads of its warp; for an operation of a warp or block, the same as thread
    tick: int
    since: int = 0  #: tick of the block's last barrier
    count: int = 1  #: number of threads of the block


@dataclass(eq=False, slots=True)
class Clock:
    """What is known: by lane, the launch that has ended; by block, the phase that has ended; by thread, its tick.

    Like an epoch, it never changes, but is not frozen.
    """

    launches: dict[tuple[int, int], int] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)

    def covers(self, e: Epoch) -> bool:
        """Whether an event is known."""
        return (
            self.launches.get(e.lane, 0) >= e.launch > 0
            or self.blocks.get(e.block, -1) >= e.phase
            or self.threads.get(e.thread, -1) >= e.tick
            or self.threads.get(e.warp, -1) >= e.tick
        )

    def __or__(self, other: "Clock") -> "Clock":
        if self is other:
            return self
        launches = latest(self.launches, other.launches)
        blocks = latest(self.blocks, other.blocks)
        threads = latest(self.threads, other.threads)
        if launches is self.launches and blocks is self.blocks and threads is self.threads:
            return self
        if launches is other.launches and blocks is other.blocks and threads is other.threads:
            return other
        return Clock(launches, blocks, threads)

    def with_thread(self, thread: int, tick: int) -> "Clock":
        """Return a clock that also knows a thread's events up to a tick."""
        return Clock(self.launches, self.blocks, self.threads | {thread: tick})

    def with_warps(self, warps: Iterable[range], tick: int) -> "Clock":
        """Return a clock that also knows the events of all threads of warps up to a tick; entries of these threads are dropped."""
        threads = self.threads.copy()
        for warp in warps:
            for number in warp:
                threads.pop(number, None)
            threads[warp.start | OF_WARP] = tick
        return Clock(self.launches, self.blocks, threads)

    def with_block(self, block: int, phase: int, first: int, count: int) -> "Clock":
        """Return a clock that also knows a phase of a block; entries of its threads (count from first on) are dropped."""
        return Clock(self.launches, self.blocks | {block: phase}, _outside(self.threads, first, count))

    def with_launch(self, lane: tuple[int, int], launch: int, first: int, count: int) -> "Clock":
        """Return a clock that also knows a launch; entries of its blocks and threads (count from first on) are dropped."""
        return Clock(self.launches | {lane: launch}, _outside(self.blocks, first, count), _outside(self.threads, first, count))

    def tick_of(self, thread: int, warp: int) -> int:
        """Return the tick up to which a thread's events are known, -1 for none."""
        return max(self.threads.get(thread, -1), self.threads.get(warp, -1))

    def ticks(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the threads of a block that have an entry or whose warp has one, and its tick. first, last: of the block's threads."""
        for number, tick in self.threads.items():
            leader = number & ~OF_WARP
            if first <= leader < last:
                for thread in (number,) if leader == number else range(leader, min(leader + WARP_SIZE, last)):
                    yield thread, tick

    def without(self, ended: Callable[[int], tuple[tuple[int, int], int] | None]) -> "Clock":
        """Return the clock without entries that say nothing new. ended: lane and number of a thread's launch, if it has ended."""

        def says(number: int) -> bool:
            launch = ended(number & ~(OF_WARP | OF_BLOCK))
            return launch is None or self.launches.get(launch[0], 0) < launch[1]

        return Clock(self.launches, {b: n for b, n in self.blocks.items() if says(b)}, {t: n for t, n in self.threads.items() if says(t)})

    def of_pe(self, pe: int) -> "Clock":
        """Return the part about threads of one PE. Numbers of threads and blocks contain the PE."""
        return self._where(lambda number: number == pe)

    def of_others(self, pe: int) -> "Clock":
        """Return the part about threads of the other PEs."""
        return self._where(lambda number: number != pe)

    def _where(self, wanted: Callable[[int], bool]) -> "Clock":
        return Clock(
            {lane: n for lane, n in self.launches.items() if wanted(lane[0])},
            {b: n for b, n in self.blocks.items() if wanted(b >> PE_SHIFT)},
            {t: n for t, n in self.threads.items() if wanted(t >> PE_SHIFT)},
        )


class JoinedClock(Clock):
    """A clock that is computed when somebody asks for more than its first part.

    Each of many atomics on a word tells what all before it have told; most threads never ask.
    """

    __slots__ = ("_entry", "_first", "_made", "_parts")

    _first: Clock  #: what is known without more work
    _parts: tuple[Clock, ...]
    _entry: tuple[int, int] | None  #: a thread and its tick, which it also knows
    _made: Clock | None

    def __init__(self, parts: tuple[Clock, ...], entry: tuple[int, int] | None = None) -> None:
        first = parts[0]
        self._first = (first._made or first._first) if isinstance(first, JoinedClock) else first
        self._parts, self._entry, self._made = parts, entry, None

    def made(self) -> Clock:
        """Return the clock with all that its parts know."""
        if self._made is None:
            plain: list[Clock] = []
            entries: dict[int, int] = {}
            seen, left = {id(self)}, [self]
            while left:
                clock = left.pop()
                if (entry := clock._entry) is not None and entries.get(entry[0], -1) < entry[1]:
                    entries[entry[0]] = entry[1]
                for part in clock._parts:
                    if id(part) not in seen:
                        seen.add(id(part))
                        if isinstance(part, JoinedClock) and part._made is None:
                            left.append(part)
                        else:
                            plain.append(part._made or NOTHING if isinstance(part, JoinedClock) else part)
            self._made = self._first = joined([*plain, Clock(threads=entries)])
            self._parts, self._entry = (), None
        return self._made

    def __or__(self, other: Clock) -> Clock:
        return _joined(self, other)

    def __ror__(self, other: Clock) -> Clock:  # Python calls it before Clock.__or__, because this is a subclass.
        return _joined(other, self)

    def with_thread(self, thread: int, tick: int) -> Clock:
        return JoinedClock((self,), (thread, tick))

    launches = property(lambda self: self.made().launches)
    blocks = property(lambda self: self.made().blocks)
    threads = property(lambda self: self.made().threads)

    def covers(self, e: Epoch) -> bool:
        """Whether an event is known: most often by the first part."""
        return self._first.covers(e) or self.made().covers(e)


def _joined(one: Clock, its: Clock) -> Clock:
    """Return what both know, of which one or both are perhaps computed later."""
    known, new = _known(one), _known(its)
    if one is its or (type(new) is Clock and not (new.launches or new.blocks or new.threads)):
        return one
    if type(known) is not Clock or type(new) is not Clock:
        return JoinedClock((one, its))
    return one if (both := known | new) is known else both


def _known(clock: Clock) -> Clock:
    return (clock._made or clock) if isinstance(clock, JoinedClock) else clock


def joined_later(one: Clock, other: Clock) -> Clock:
    """Return a clock that knows what both know, computed later if what the first knows without more work is little.

    Otherwise, many clocks computed later would each have to join many large parts.
    """
    first = one._first if isinstance(one, JoinedClock) else one
    if len(first.threads) + len(first.blocks) <= _FEW:
        return JoinedClock((one, other))
    return _computed(one) | _computed(other)


def _computed(clock: Clock) -> Clock:
    return clock.made() if isinstance(clock, JoinedClock) else clock


def joined(clocks: Iterable[Clock]) -> Clock:
    """Return a clock that knows what any of these knows; cheaper than one ``|`` after the other if most share their parts."""
    different = list({id(clock): clock for clock in clocks}.values())
    if len(different) == 1:
        return different[0]
    if any(type(clock) is not Clock for clock in different):
        return JoinedClock(tuple(different))
    return Clock(
        _latest([clock.launches for clock in different]),
        _latest([clock.blocks for clock in different]),
        _latest([clock.threads for clock in different]),
    )


def _outside(entries: dict[int, int], first: int, count: int) -> dict[int, int]:
    """Return the entries except those of threads, or their warps, from first on."""
    last = first + count
    return {t: n for t, n in entries.items() if not first <= t & ~OF_WARP < last} if entries else entries


def _latest(parts: list[dict[Any, int]]) -> dict[Any, int]:
    different = list({id(part): part for part in parts if part}.values())
    if len(different) <= 2:
        return latest(different[0], different[-1]) if different else {}
    found = max(different, key=len).copy()
    for part in different:
        for key, n in part.items():
            if found.get(key, -1) < n:
                found[key] = n
    return found


#: Number of threads and blocks in a clock that others are joined to later.
_FEW = 16

#: Position of the PE in the numbers of threads and blocks. The number of a block is that of its first thread.
PE_SHIFT = 40

#: Bits of numbers that stand for all threads of a warp, named by its first thread, or of a block.
OF_WARP, OF_BLOCK = 1 << 38, 1 << 39

NOTHING = Clock()


def latest(mine: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    """Return the maximum of each entry: one of the two objects if it has all of them, because clocks that share them are joined faster."""
    if mine is other or not other or mine == other:
        return mine
    if not mine:
        return other
    known = mine.get
    new = {key: n for key, n in other.items() if known(key, -1) < n}
    if not new:
        return mine
    found = mine | new
    return other if found == other else found
