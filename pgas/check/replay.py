"""Runs a program again with the two accesses of a report in the other order, to show the value that the reader then sees (--replay).

The access that came first by luck is made late, in a way that the memory model allows:

* a store by a put, p, or get_nbi: it is held back until a fence, quiet, or barrier that completes it, as in weak mode, but nothing else is
  delayed; at the end of the kernel, until the reader has read, _PATIENCE_S seconds at most;
* a read: its PE waits before it until the other PE has written, _PATIENCE_S seconds at most.

A second run gives the values to compare with. Nothing is late in it, except for writes that shall come after the read: each waits _PAUSE_S
seconds. Both run over p2p, whose stores can be held back one by one.
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pgas.check import log, record
from pgas.check.memory import FROM, GOT, READ, REMOTE, MemoryAccess
from pgas.check.report import Mistake, SourceLine
from pgas.job import runtime
from pgas.kernels import window
from pgas.sim import mem, set_memory_model, watch
from pgas.sim.arrays import ndarray_of
from pgas.sim.weak import WeakMemory

#: Maximum time that a reader waits for the write of another PE, in seconds.
_PATIENCE_S = 5.0

#: Time for which each of the first writes waits if it shall come after a read, in seconds, and their number.
_PAUSE_S, _PAUSES = 0.1, 32

#: Maximum number of values that a run notes, and of each operation.
_MOST_VALUES, _OF_CALL = 10_000, 64

_PLAN, _VALUES, _WRITTEN, _READ = "plan", "values", "written", "read"

Place = tuple[int, str, int, int]  #: PE, file, line, column
Value = tuple[int, int, int]  #: address, size, bits


@dataclass(frozen=True)
class Rerun:
    """What a run does: at which access it notes the values that are read, and which access is late."""

    write: Place
    read: Place
    held: bool = False  #: whether the write is held back
    stalled: bool = False  #: whether the read waits
    paused: bool = False  #: whether writes wait for _PAUSE_S

    @classmethod
    def of(cls, mistake: Mistake, site: Callable[[MemoryAccess], SourceLine]) -> "Rerun | None":
        """Return the plan that makes the first access of a report late, None if there is none."""
        first, second = mistake.accesses or (None, None)
        if first is None or second is None or first.call or second.call:
            return None
        writes = [access for access in (first, second) if access.kind in (REMOTE, GOT)]
        reads = [access for access in (first, second) if access.kind in (READ, FROM)]
        if len(writes) != 1 or len(reads) != 1 or (reads[0] is first and first.epoch.pe == second.epoch.pe):
            return None
        write, read = ((access.epoch.pe, line.file, line.line, line.column) for access in (*writes, *reads) if (line := site(access)))
        return cls(write, read, held=writes[0] is first, stalled=reads[0] is first)

    def normal(self) -> "Rerun":
        """Return the plan of a run in which nothing is late."""
        return replace(self, held=False, stalled=False, paused=self.stalled)

    def write_to(self, folder: Path) -> None:
        (folder / _PLAN).write_text(json.dumps(asdict(self)))


def is_planned(folder: Path) -> bool:
    """Whether a folder of logs has a plan instead."""
    return (folder / _PLAN).exists()


def follow(folder: Path) -> None:
    """Follow the plan of a folder in this process, for the rest of it."""
    told = json.loads((folder / _PLAN).read_text())
    plan = Rerun(**{**told, "write": tuple(told["write"]), "read": tuple(told["read"])})
    record.install(folder, lambda _: _Replayer(folder, plan))


def values(folder: Path) -> list[Value]:
    """Return the values that were read in a run."""
    with contextlib.suppress(FileNotFoundError):
        return [tuple(value) for value in json.loads((folder / _VALUES).read_text())]
    return []


def difference(normal: Sequence[Value], late: Sequence[Value]) -> tuple[Value, Value] | None:
    """Return the first value that differs between two runs, in both."""
    return next(((a, b) for a, b in zip(normal, late, strict=False) if a[:2] == b[:2] and a != b), None)


class _HeldMemory(WeakMemory):
    """A memory that delays only the stores of chosen operations."""

    held = False

    def __init__(self, own_lo: int, own_hi: int, before_end: Callable[[], None]) -> None:
        super().__init__(0, own_lo, own_hi)
        self._before_end = before_end

    def launch_ended(self, failed: bool) -> None:
        if self._pending:
            self._before_end()
        super().launch_ended(failed)

    def step(self) -> None:
        """Perform nothing from time to time."""

    def _enqueue(self, pieces: Any) -> None:
        super()._enqueue(pieces)
        if not self.held:
            now = set(pieces)
            self._perform_if(lambda piece: piece in now)

    def _load_early(self, *_: Any) -> None:
        """Load nothing early."""


class _Sites(log.Log):
    """Keeps the lines of the program, and no other event."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, tuple[str, int, int]] = {}

    def open(self, folder: Path, pe: int) -> None:
        """Write nothing."""

    def turn(self) -> int:
        return 0

    def add(self, *event: Any) -> None:
        if event[0] == log.SITE:
            self.places[event[1]] = event[2:5]


class _Replayer(record.Recorder):
    """The watcher of a process that follows a plan."""

    def __init__(self, folder: Path, plan: Rerun) -> None:
        super().__init__(folder)
        self.log = self._lines = _Sites()
        self._plan, self._where = plan, folder
        self._values: list[Value] = []
        self._memory: _HeldMemory | None = None
        self._has_waited = False

    def joins(self, job: runtime.Job) -> None:
        if self._plan.held and job.my_pe == self._plan.write[0]:
            own = window.slot(job.my_pe)
            self._memory = _HeldMemory(own, own + (1 << window.STRIDE_SHIFT), lambda: self._wait_for(_READ, 1))
            set_memory_model(self._memory)

    def launch_ended(self, launch: Any) -> None:
        super().launch_ended(launch)
        if self._values:
            (self._where / _VALUES).write_text(json.dumps(self._values))

    def accessed(self, kind: int, addr: int, nbytes: int, frame: FrameType, *, shared: bool) -> None:
        if kind == watch.LOAD and self._is(self._plan.read, self.site(frame)):
            self._before_read()
            self._note(addr, nbytes)

    def call(self, name: str, names: tuple[str, ...], values: list[Any], body: Callable[..., Any]) -> Any:
        site = self.site(sys._getframe(2))
        reads, writes = self._is(self._plan.read, site), self._is(self._plan.write, site)
        if reads:
            self._before_read()
        if writes and self._plan.paused and self._marks(_WRITTEN) < _PAUSES:
            time.sleep(_PAUSE_S)
        if self._memory is not None:
            self._memory.held = writes
        try:
            result = body(*values)
        finally:
            if self._memory is not None:
                self._memory.held = False
        if writes:
            self._mark(_WRITTEN)
        if reads:
            self._note_call(dict(zip(names, values, strict=True)), result, "source" if "put" in name else "dest")
        return result

    def _is(self, place: Place, site: int) -> bool:
        return self._lines.places.get(site) == place[1:] and runtime.current().my_pe == place[0]

    def _before_read(self) -> None:
        if self._plan.stalled:
            self._wait_for(_WRITTEN, self._marks(_WRITTEN) + 1)

    def _wait_for(self, mark: str, count: int) -> None:
        """Wait, once in a run, until the other PE has made this number of accesses."""
        limit = time.monotonic() + _PATIENCE_S
        while not self._has_waited and self._marks(mark) < count and time.monotonic() < limit:
            time.sleep(1e-3)
        self._has_waited = True

    def _mark(self, mark: str) -> None:
        """Note that an access has been made."""
        with open(self._where / mark, "ab") as file:
            file.write(b".")

    def _marks(self, mark: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self._where / mark).stat().st_size
        return 0

    def _note(self, addr: int, nbytes: int) -> None:
        self._mark(_READ)
        if len(self._values) < _MOST_VALUES and nbytes in (1, 2, 4, 8):
            self._values.append((addr, nbytes, int(mem.load(addr, nbytes))))

    def _note_call(self, given: dict[str, Any], result: Any, name: str) -> None:
        """Note what an operation has read: the elements of an array, or its result."""
        if name in given:
            view = ndarray_of(given[name])
            for i in range(min(view.size, _OF_CALL) if view.flags.c_contiguous else 0):
                self._note(int(view.__array_interface__["data"][0]) + i * view.itemsize, view.itemsize)
        elif isinstance(result, int):
            self._values.append((0, 8, result))
