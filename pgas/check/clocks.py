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


@dataclass(frozen=True, eq=False, slots=True)
class Clock:
    """What is known: by lane, the launch that has ended; by block, the phase that has ended; by thread, its tick."""

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
        if self is other or not (other.launches or other.blocks or other.threads):
            return self
        launches = latest(self.launches, other.launches)
        blocks = latest(self.blocks, other.blocks)
        threads = latest(self.threads, other.threads)
        if launches is self.launches and blocks is self.blocks and threads is self.threads:
            return self
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


def joined(clocks: Iterable[Clock]) -> Clock:
    """Return a clock that knows what any of these knows; cheaper than one ``|`` after the other if most share their parts."""
    different = list({id(clock): clock for clock in clocks}.values())
    if len(different) == 1:
        return different[0]
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
    if len(different) <= 1:
        return different[0] if different else {}
    found = max(different, key=len).copy()
    for part in different:
        for key, n in part.items():
            if found.get(key, -1) < n:
                found[key] = n
    return found


#: Position of the PE in the numbers of threads and blocks. The number of a block is that of its first thread.
PE_SHIFT = 40

#: Bits of numbers that stand for all threads of a warp, named by its first thread, or of a block.
OF_WARP, OF_BLOCK = 1 << 38, 1 << 39

NOTHING = Clock()


def latest(mine: dict[Any, int], other: dict[Any, int]) -> dict[Any, int]:
    """Return the maximum of each entry; the same object if the other has nothing new."""
    if mine is other or not other:
        return mine
    new = {key: n for key, n in other.items() if mine.get(key, -1) < n}
    return mine | new if new else mine
