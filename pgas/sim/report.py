"""Where the threads of a kernel are: the text of deadlock and timeout reports."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from pgas.base.text import ranges

_MAX_LINES = 8

#: The goal of a wait. In a spin loop: a text, or a function that returns it. In a barrier or warp operation: (operation, mask or None).
#: None: the thread is not waiting.
WaitsFor = str | Callable[[], str] | tuple[str, int | None] | None


class ReportedLaunch(Protocol):
    """The part of scheduler.Launch that a report reads."""

    grid: tuple[int, int, int]
    nblocks: int
    nthreads: int
    unborn_left: int

    @property
    def blocks(self) -> Mapping[int, "ReportedBlock"]:
        """The blocks that have not returned, by number."""


class ReportedBlock(Protocol):
    """The part of scheduler.Block that a report reads."""

    alive: int
    lanes: list[int]

    @property
    def launch(self) -> ReportedLaunch:
        """Its launch."""

    @property
    def threads(self) -> Mapping[int, Any]:
        """The threads that have started and not returned, by number, each with what it waits for."""


def describe(launch: ReportedLaunch) -> str:
    """Count and name the threads by what they wait for. Blocks with the same description share one line."""
    alike: dict[str, list[int]] = {}
    for linear, block in launch.blocks.items():
        alike.setdefault(_block(block), []).append(linear)
    started = launch.nblocks - -(-launch.unborn_left // launch.nthreads)
    returned = sorted(set(range(started)) - launch.blocks.keys())
    lines = [f"{_blocks(launch, which)}: {text}" for text, which in alike.items()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"{len(lines) - _MAX_LINES} more kinds of blocks"]
    if returned:
        lines.append(f"{_blocks(launch, returned)} {'has' if len(returned) == 1 else 'have'} returned")
    return ". ".join(lines)


def _block(block: ReportedBlock) -> str:
    n = block.launch.nthreads
    groups: dict[str, list[int]] = {}
    for linear, thread in sorted(block.threads.items()):
        groups.setdefault(_wait(thread.waiting_for), []).append(linear)
    parts = [
        f"{len(who)} of {n} threads {'waits' if len(who) == 1 else 'wait'} {what} ({_threads(who)})"
        if what
        else f"{len(who)} of {n} threads run ({_threads(who)})"
        for what, who in groups.items()
    ]
    if len(parts) > _MAX_LINES:
        parts[_MAX_LINES:] = [f"{len(parts) - _MAX_LINES} more kinds of waits"]
    started = n if block.alive == len(block.threads) or not block.launch.unborn_left else max(block.threads, default=-1) + 1
    gone = [i for i in range(started) if not block.lanes[i // 32] >> i % 32 & 1]
    if gone:
        parts.append(f"{_threads(gone)} {'has' if len(gone) == 1 else 'have'} returned")
    waiting = block.alive - len(block.threads)
    if waiting:
        parts.append(f"{waiting} not started")
    return "; ".join(parts)


def _wait(waiting_for: WaitsFor) -> str:
    if waiting_for is None:
        return ""
    if isinstance(waiting_for, tuple):
        what, mask = waiting_for
        return f"in {what}" if mask is None else f"in {what} mask {mask:#x}"
    return f"for {waiting_for if isinstance(waiting_for, str) else waiting_for()}"


def _threads(linear: Sequence[int]) -> str:
    return f"thread{'s' if len(linear) > 1 else ''} {ranges(linear)}"


def _blocks(launch: ReportedLaunch, linear: Sequence[int]) -> str:
    if len(linear) == 1 and launch.grid[1] * launch.grid[2] > 1:
        x, rest = linear[0] % launch.grid[0], linear[0] // launch.grid[0]
        return f"block {[x, rest % launch.grid[1], rest // launch.grid[1]]}"
    return f"block {linear[0]}" if len(linear) == 1 else f"{len(linear)} blocks ({ranges(linear)}), each"
