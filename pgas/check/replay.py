"""Runs a program again with the two accesses of a report in the other order, to show the value that the reader then sees (--replay).

The access that came first by luck is made late, in a way that the memory model allows:

* a write, or the read of a non-blocking put's source: the operation or store is kept until the other access has been made. Calls that
  complete or order it wait for that, too: its thread's quiet, barriers, and later operations after a fence, and the end of the kernel;
* another read: its thread waits before it until the write has been made.

All waits of a process take _PATIENCE_S seconds at most, and after that, or when the other access has been made, nothing is late any more.
A second run gives the values to compare with. Nothing is late in it, except for writes that shall come after the read: each waits _PAUSE_S
seconds. Both run over p2p, where an operation is a copy from one address to another.
"""

import contextlib
import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pgas.check import log, record
from pgas.check.calls import on
from pgas.check.memory import FROM, GOT, READ, REMOTE, SOURCE, WRITE, MemoryAccess
from pgas.check.report import Mistake, SourceLine
from pgas.job import runtime
from pgas.kernels.compiler import simulator
from pgas.sim import engine, mem, watch
from pgas.sim.arrays import KernelArray, SharedArray, ndarray_of
from pgas.sim.scheduler import SimThread

#: Maximum time that accesses wait for the other one, in seconds: all of a process, and one in the middle of a kernel.
_PATIENCE_S, _BRIEFLY_S = 5.0, 0.3

#: Time for which each of the first writes waits if it shall come after a read, in seconds, and their number.
_PAUSE_S, _PAUSES = 0.1, 32

#: Maximum number of values that a run notes, and of each operation.
_MOST_VALUES, _OF_CALL = 10_000, 64

_PLAN, _VALUES, _WRITTEN, _READ = "plan", "values", "written", "read"

#: Operations that can be kept, and calls that complete those of their thread.
_MOVES = ("put", "put_nbi", "put_signal", "put_signal_nbi", "iput", "p", "get", "get_nbi", "iget")
_COMPLETES = ("quiet", "quiet_pe", "barrier_all", "barrier", "clear_lock")

Place = tuple[int, str, int, int]  #: PE, file, line, column
Value = tuple[int, int, int]  #: address, size, bits


@dataclass(frozen=True)
class Rerun:
    """What a run does: at which access it notes the values that are read, and which access is late."""

    write: Place
    read: Place
    kept: str = ""  #: what is kept until the other access has been made: "write", "source", or nothing
    stalled: bool = False  #: whether the read waits
    paused: bool = False  #: whether writes wait for _PAUSE_S

    @classmethod
    def of(cls, mistake: Mistake, site: Callable[[MemoryAccess], SourceLine]) -> "Rerun | None":
        """Return the plan that makes the first access of a report late, None if there is none."""
        first, second = mistake.accesses or (None, None)
        if first is None or second is None or first.call or second.call:
            return None
        writes = [access for access in (first, second) if access.kind in (WRITE, REMOTE, GOT)]
        reads = [access for access in (first, second) if access.kind in (READ, FROM, SOURCE)]
        if len(writes) != 1 or len(reads) != 1 or (writes[0] is first and first.atom):
            return None
        if any(access.epoch.launch == 0 for access in (first, second)):  # by the host
            return None
        write, read = ((access.epoch.pe, line.file, line.line, line.column) for access in (*writes, *reads) if (line := site(access)))
        if writes[0] is first:
            return cls(write, read, kept="write")
        return cls(write, read, kept="source") if first.kind == SOURCE else cls(write, read, stalled=True)

    def normal(self) -> "Rerun":
        """Return the plan of a run in which nothing is late."""
        return replace(self, kept="", stalled=False, paused=self.stalled or self.kept == "source")

    @property
    def late(self) -> str:
        """What is late, in words."""
        return {"write": "the write as late as it may be", "source": "the source read as late as it may be"}.get(
            self.kept, "the read later"
        )

    def write_to(self, folder: Path) -> None:
        (folder / _PLAN).write_text(json.dumps(asdict(self)))


def is_planned(folder: Path) -> bool:
    """Whether a folder of logs has a plan instead."""
    return (folder / _PLAN).exists()


def follow(folder: Path) -> None:
    """Follow the plan of a folder in this process, for the rest of it."""
    told = json.loads((folder / _PLAN).read_text())
    plan = Rerun(**{**told, "write": tuple(told["write"]), "read": tuple(told["read"])})
    replayer = _Replayer(folder, plan)
    record.install(folder, lambda _: replayer)
    if plan.kept == "write":
        for kind in (KernelArray, SharedArray):
            setattr(kind, "__setitem__", replayer.keeps_stores(kind.__setitem__))  # noqa: B010  # mypy knows no other way


def values(folder: Path) -> list[Value]:
    """Return the values that were read in a run."""
    with contextlib.suppress(FileNotFoundError):
        return [tuple(value) for value in json.loads((folder / _VALUES).read_text())]
    return []


def difference(normal: Sequence[Value], late: Sequence[Value]) -> tuple[Value, Value] | None:
    """Return the first value that differs between two runs, in both. The values of an element are compared in order."""
    left: dict[tuple[int, int], list[Value]] = {}
    for value in reversed(normal):
        left.setdefault(value[:2], []).append(value)
    for value in late:
        if (known := left.get(value[:2])) and (expected := known.pop()) != value:
            return expected, value
    return None


@dataclass(eq=False)
class _Kept:
    """A copy of elements that is yet to be made, by an operation or a store."""

    thread: SimThread
    pe: int  #: of the destination or, for a get, of the source
    nbytes: int  #: of an element, or of all that follow each other
    pairs: tuple[tuple[int, int], ...]  #: addresses: destination and source
    data: tuple[bytes, ...] | None  #: what the source has had, None: it is read at the copy
    together: bool = False  #: whether its thread makes it with the others of its warp or block
    store: bool = False  #: whether it is a store of the thread itself
    met: bool = False  #: whether its thread has met others in a barrier since
    fenced: bool = False
    made: int = 0  #: how often the other access had been made before

    def known_to(self, thread: SimThread) -> bool:
        """Whether a thread knows that all parts have been issued."""
        return (self.met and self.thread.block is thread.block) or (self.thread is thread and not self.together)

    def perform(self) -> None:
        for i, (dest, source) in enumerate(self.pairs):
            ctypes.memmove(dest, self.data[i] if self.data is not None else source, self.nbytes)


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
        self._late: list[_Kept] = []  #: what is kept
        self._has_waited, self._patience_s = False, _PATIENCE_S
        self._inside = 0  #: number of calls of pgas that threads are in
        self._stores_here = False  #: whether the running store is the one to keep
        #: The mark of the access that what is kept waits for.
        self._awaited = _READ if plan.kept == "write" else _WRITTEN

    # The program

    def launch_ended(self, launch: Any) -> None:
        if self._late:
            self._perform(self._late, _PATIENCE_S)
        super().launch_ended(launch)
        if self._values:
            (self._where / _VALUES).write_text(json.dumps(self._values))

    def threads_synced(self, block: Any, threads: Any, *, whole: bool) -> None:
        super().threads_synced(block, threads, whole=whole)
        if not self._inside:
            for kept in self._late:
                kept.met = kept.met or kept.thread in threads

    def accessed(self, kind: int, addr: int, nbytes: int, frame: FrameType, *, shared: bool) -> None:
        site = self.site(frame)
        if kind == watch.LOAD:
            own = (kept for kept in self._late if kept.store and kept.pairs[0][0] == addr)
            self._make([kept for kept in own if kept.thread is watch.thread()])  # It must see what it has stored.
            if self._is(self._plan.read, site):
                self._before_read()
                self._note(addr, nbytes)
        elif self._is(self._plan.write, site):
            self._stores_here = True
            if self._plan.kept != "write":
                self._pause()
                self._mark(_WRITTEN)

    def keeps_stores(self, store: Callable[..., None]) -> Callable[..., None]:
        """Return a function like an array's __setitem__() that keeps the store of the plan."""

        def keeping(array: Any, idx: Any, value: Any) -> None:
            at = watch.element(array, idx) if not self._has_waited else None
            if at is None:
                store(array, idx, value)
                return
            before, self._stores_here = ctypes.string_at(*at), False
            store(array, idx, value)
            if self._stores_here:
                after = ctypes.string_at(*at)
                ctypes.memmove(at[0], before, at[1])
                self._late.append(
                    _Kept(watch.thread(), runtime.current().my_pe, at[1], ((at[0], 0),), (after,), store=True, made=self._marks(_READ))
                )

        return keeping

    def call(self, name: str, names: tuple[str, ...], values: list[Any], body: Callable[..., Any]) -> Any:
        site, plain = self.site(sys._getframe(2)), name.removesuffix("_warp").removesuffix("_block")
        given = dict(zip(names, values, strict=True))
        reads, writes = self._is(self._plan.read, site), self._is(self._plan.write, site)
        self._advance()
        self._order(plain, given)
        if reads and self._plan.kept != "source":
            self._before_read()
        if writes:
            self._pause()
        if plain in _MOVES and not self._has_waited and self._plan.kept == ("write" if writes else "source" if reads else "-"):
            return self._keep(name, plain, given, body)
        self._inside += 1
        try:
            result = body(*values)
        finally:
            self._inside -= 1
        if writes:
            self._mark(_WRITTEN)
        if reads:
            self._note_call(given, result, "source" if "put" in name else "dest")
        self._advance()
        return result

    # What is kept

    def _keep(self, name: str, plain: str, given: dict[str, Any], body: Callable[..., Any]) -> Any:
        """Perform a call that moves nothing, and keep what it would have moved."""
        thread, width = watch.thread(), 0 if name == plain else 32 if name.endswith("_warp") else self._threads_of_block
        if not width or thread.linear % width == 0:
            nbytes, pairs, data = _copies(plain, given)
            late = "nbi" in plain and data is None
            data = data if late or data is not None else tuple(ctypes.string_at(source, nbytes) for _, source in pairs)
            self._late.append(_Kept(thread, int(given["pe"]), nbytes, pairs, data, together=width > 0, made=self._marks(self._awaited)))
        if plain == "p":
            return None
        self._inside += 1
        try:
            nothing = {name: given[name][:0] for name in ("dest", "source")} | ({} if given.get("nelems") is None else {"nelems": 0})
            return body(*(given | nothing).values())
        finally:
            self._inside -= 1

    def _order(self, plain: str, given: dict[str, Any]) -> None:
        """Make what a call completes or orders, if this thread may know that all of it has been issued."""
        own = [kept for kept in self._late if kept.known_to(watch.thread())]
        if plain in _COMPLETES:
            self._perform([kept for kept in own if plain != "quiet_pe" or int(given["pe"]) == kept.pe])
        elif plain == "fence":
            for kept in own:
                kept.fenced = True
        elif "pe" in given and "get" not in plain and plain != "g":  # A fence does not order gets.
            self._perform([kept for kept in own if kept.fenced and int(given["pe"]) == kept.pe])
        if plain == "flush" and self._plan.kept == "source":
            self._perform(own)

    def _advance(self) -> None:
        """Make what is kept if the other access has been made."""
        if self._late and self._marks(self._awaited) > self._late[0].made:
            self._has_waited = True
            self._make(self._late)

    def _perform(self, some: list[_Kept], most_s: float = _BRIEFLY_S) -> None:
        """Wait for the other access, which may itself wait for what its thread does next, and make some of what is kept."""
        if some:
            self._wait_for(self._awaited, some[0].made + 1, most_s)
            self._make(some)

    def _make(self, some: list[_Kept]) -> None:
        for kept in list(some):
            if kept in self._late:
                self._late.remove(kept)
                if self._plan.kept == "source":
                    for _, source in kept.pairs:
                        self._note_all(source, kept.nbytes)
                kept.perform()

    # What is read

    def _is(self, place: Place, site: int) -> bool:
        return self._lines.places.get(site) == place[1:] and runtime.current().my_pe == place[0]

    def _before_read(self) -> None:
        if self._plan.stalled:
            self._wait_for(_WRITTEN, self._marks(_WRITTEN) + 1)

    def _pause(self) -> None:
        if self._plan.paused and self._marks(_WRITTEN) < _PAUSES:
            time.sleep(_PAUSE_S)

    def _wait_for(self, mark: str, count: int, most_s: float = _PATIENCE_S) -> None:
        """Wait until the other access has been made this number of times; other threads of the kernel go on."""
        began = time.monotonic()
        limit = began + min(most_s, self._patience_s)
        while not self._has_waited and time.monotonic() < limit:
            if self._marks(mark) >= count:
                self._has_waited = True
            time.sleep(1e-3)
            engine.preempt()
        self._patience_s -= time.monotonic() - began
        self._has_waited = self._has_waited or self._patience_s <= 0

    def _mark(self, mark: str) -> None:
        """Note that an access has been made."""
        with open(self._where / mark, "ab") as file:
            file.write(b".")

    def _marks(self, mark: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self._where / mark).stat().st_size
        return 0

    def _note(self, addr: int, nbytes: int) -> None:
        if len(self._values) < _MOST_VALUES and nbytes in (1, 2, 4, 8):
            self._values.append((addr, nbytes, int(mem.load(addr, nbytes))))
        self._mark(_READ)

    def _note_call(self, given: dict[str, Any], result: Any, name: str) -> None:
        """Note what an operation has read: the elements of an array, or its result."""
        if name in given:
            view = ndarray_of(given[name])
            self._note_all(int(view.__array_interface__["data"][0]), view.nbytes if view.flags.c_contiguous else 0, view.itemsize)
        elif isinstance(result, int):
            self._values.append((0, 8, result))
            self._mark(_READ)

    def _note_all(self, addr: int, nbytes: int, width: int = 8) -> None:
        for i in range(min(nbytes // width, _OF_CALL)):
            self._note(addr + i * width, width)


def _copies(plain: str, given: dict[str, Any]) -> tuple[int, tuple[tuple[int, int], ...], tuple[bytes, ...] | None]:
    """Return what an operation copies: bytes of a piece, addresses of each piece, destination and source, and what it has instead."""
    dest, pe = given["dest"], given["pe"]
    view = ndarray_of(dest)
    if plain == "p":
        return view.itemsize, ((on(simulator.address_of_element(dest, given["idx"]), pe), 0),), (view.dtype.type(given["value"]).tobytes(),)
    to, origin = simulator.address_of(dest), simulator.address_of(given["source"])
    to, origin = (to, on(origin, pe)) if "get" in plain else (on(to, pe), origin)
    nelems, source = given.get("nelems"), ndarray_of(given["source"])
    if not plain.startswith("i"):
        return (source.size if nelems is None else int(nelems)) * view.itemsize, ((to, origin),), None
    steps = int(given["dst_stride"]), int(given["src_stride"])
    held = min(-(-array.size // step) for array, step in zip((view, source), steps, strict=True))
    count, width = held if nelems is None else int(nelems), view.itemsize
    return width, tuple((to + i * steps[0] * width, origin + i * steps[1] * width) for i in range(count)), None
