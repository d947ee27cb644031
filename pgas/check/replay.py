"""Runs a program again with the two accesses of a report in the other order, to show the value that the reader then sees (--replay).

The access that came first by luck is made late, in a way that the memory model allows:

* a write, or the read of a non-blocking put's source: the operation or store is kept until the other access has been made. What completes
  or orders it waits briefly for that and then performs it: quiet and barriers of a thread that may know it, operations after a fence, for
  stores also barriers of the block; the end of the kernel waits longer;
* another read: its thread waits before it until the write has been made.

All waits of a process take _PATIENCE_S seconds at most. Nothing is late any more after that, or when the other access has been made. A
second run gives the values to compare with. Nothing is late in it, except for writes that shall come after the read: each waits _PAUSE_S
seconds. Both run over p2p, where an operation is a copy from one address to another.
"""

import contextlib
import ctypes
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from pgas.check import log, record
from pgas.check.calls import address_on, strided
from pgas.check.memory import FROM, GOT, READ, REMOTE, SOURCE, WRITE, MemoryAccess
from pgas.check.report import Mistake, SourceLine
from pgas.job import runtime
from pgas.kernels.codes import SignalOp
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

#: Operations that can be kept; calls that complete those of their thread; and calls that read words.
_MOVES = ("put", "put_nbi", "put_signal", "put_signal_nbi", "iput", "p", "get", "get_nbi", "iget")
_COMPLETES = ("quiet", "quiet_pe", "barrier_all", "barrier", "clear_lock")
_WAITS = ("wait", "test", "signal_wait", "signal_fetch")

#: Interval in which a thread of Python looks whether the other access has been made, in seconds.
_LOOK_S = 0.02

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
    for kind in (KernelArray, SharedArray):
        setattr(kind, "__setitem__", replayer.of_stores(kind.__setitem__))  # noqa: B010  # mypy knows no other way


def values(folder: Path) -> list[Value]:
    """Return the values that were read in a run."""
    with contextlib.suppress(FileNotFoundError):
        return [tuple(value) for value in json.loads((folder / _VALUES).read_text())]
    return []


def difference(normal: Sequence[Value], late: Sequence[Value]) -> tuple[Value, Value] | None:
    """Return the first value that differs between two runs, in both.

    The values of an element are compared in order. If it was read more often in one run, as in a loop that waits, a value counts only if it
    never occurs in the other run.
    """
    of_normal, of_late = _by_element(normal), _by_element(late)
    for element, seen in of_late.items():
        known = of_normal.get(element, [])
        if len(known) == len(seen):
            if found := next(((a, b) for a, b in zip(known, seen, strict=True) if a != b), None):
                return found
        elif known and (new := next((b for b in seen if b not in known), None)):
            return known[0], new
    return None


def _by_element(values: Sequence[Value]) -> dict[tuple[int, int], list[Value]]:
    found: dict[tuple[int, int], list[Value]] = {}
    for value in values:
        found.setdefault(value[:2], []).append(value)
    return found


@dataclass(eq=False)
class _Kept:
    """A copy of elements that is yet to be made, by an operation or a store."""

    thread: SimThread
    pe: int  #: of the destination or, for a get, of the source
    nbytes: int  #: of an element, or of all that follow each other
    width: int  #: of an element
    pairs: tuple[tuple[int, int], ...]  #: addresses: destination and source
    data: tuple[bytes, ...] | None  #: what the source has had, None: it is read at the copy
    made: int  #: how often the other access had been made before
    together: bool = False  #: whether its thread makes it with the others of its warp or block
    store: bool = False  #: whether it is a store of the thread itself
    met: bool = False  #: whether the block may know it, because its thread has been in a barrier since
    fenced: bool = False
    signal: Callable[[], Any] | None = None  #: sends the signal of a put_signal

    def known_to(self, thread: SimThread) -> bool:
        """Whether a thread knows that all parts have been issued."""
        return (self.met and self.thread.block is thread.block) or (self.thread is thread and not self.together)

    def perform(self) -> None:
        for i, (dest, source) in enumerate(self.pairs):
            ctypes.memmove(dest, self.data[i] if self.data is not None else source, self.nbytes)
        if self.signal is not None:
            self.signal()


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
        self._outside: dict[int, int] = {}  #: by address of shared and other memory, which differs between runs, its number in the values
        self._late: list[_Kept] = []  #: what is kept
        self._has_waited, self._patience_s = False, _PATIENCE_S
        self._changing = threading.RLock()
        self._looks = False
        #: The mark of the access that what is kept waits for.
        self._awaited = _READ if plan.kept == "write" else _WRITTEN

    # The program

    def launch_ended(self, launch: Any) -> None:
        if launch.failure is not None:
            self._late.clear()
        self._perform(self._late, _PATIENCE_S)
        super().launch_ended(launch)
        if self._values:
            (self._where / _VALUES).write_text(json.dumps(self._values))

    def threads_synced(self, block: Any, threads: Any, *, whole: bool) -> None:
        here = set(threads)
        for kept in self._late:
            kept.met = kept.met or (kept.thread in here and kept.thread not in self._in_nbi)
        self._make([kept for kept in self._late if kept.store and kept.thread in here])  # Others of the block see it.
        super().threads_synced(block, threads, whole=whole)

    def grid_synced(self, launch: Any) -> None:
        self._make([kept for kept in self._late if kept.store])
        for kept in self._late:
            kept.met = True

    def fenced(self, scope: str) -> None:
        for kept in self._late:
            kept.fenced = kept.fenced or (scope != "block" and kept.thread is watch.thread())

    def accessed(self, kind: int, place: tuple[int, int], frame: FrameType, *, shared: bool) -> None:
        addr, nbytes = place
        own = (kept for kept in self._late if kept.store and kept.pairs[0][0] == addr)
        self._make([kept for kept in own if kept.thread is watch.thread()])  # It must see what it has stored.
        site = self.site(frame)
        if kind == watch.LOAD and self._is(self._plan.read, site):
            self._before_read()
            self._note(addr, nbytes)
        elif kind in (watch.STORE, watch.SAME) and self._is(self._plan.write, site):
            self._mark(_WRITTEN)

    def of_stores(self, store: Callable[..., None]) -> Callable[..., None]:
        """Return a function like an array's __setitem__() that makes the store of the plan late, or waits before it."""

        def storing(array: Any, idx: Any, value: Any) -> None:
            at = watch.element(array, idx) if self._is(self._plan.write, self.site(sys._getframe(1))) else None
            if at is None:
                store(array, idx, value)
                return
            self._pause()
            if self._plan.kept != "write" or self._has_waited:
                store(array, idx, value)
                return
            before = np.ndarray.__getitem__(ndarray_of(array), idx).tobytes()
            store(array, idx, value)
            after = ctypes.string_at(*at)
            ctypes.memmove(at[0], before, at[1])
            self._keep(_Kept(watch.thread(), -1, at[1], at[1], ((at[0], 0),), (after,), self._marks(_READ), store=True))

        return storing

    def call(self, name: str, names: tuple[str, ...], values: list[Any], body: Callable[..., Any]) -> Any:
        site, (plain, width) = self.site(sys._getframe(2)), self.scope(name)
        given = dict(zip(names, values, strict=True))
        reads, writes = self._is(self._plan.read, site), self._is(self._plan.write, site)
        thread = watch.thread()
        leads = not width or thread.linear % width == 0
        self._order(plain, given)
        if reads and self._plan.kept != "source":
            self._before_read()
        if writes and leads:
            self._pause()
        movable = plain in _MOVES and not ("signal" in plain and width)  # Its threads meet in a call that must not send the signal.
        if movable and not self._has_waited and self._plan.kept == ("write" if writes else "source" if reads else "-"):
            return self._move_later(plain, given, body, thread, width, leads=leads)
        result = body(*values)
        if writes:
            self._mark(_WRITTEN)
        if reads:
            self._note_call(given, result, "source" if "put" in name else "dest" if "get" in name else "")
        return result

    # What is kept

    def _move_later(
        self, plain: str, given: dict[str, Any], body: Callable[..., Any], thread: SimThread, width: int, *, leads: bool
    ) -> Any:  # fmt: skip
        """Perform a call that moves nothing, and keep what it would have moved."""

        def keep() -> None:
            """Keep it, in the barrier at the beginning of the call of a warp or block."""
            nbytes, pairs, data = _copies(plain, given)
            if data is None and "nbi" not in plain:
                data = tuple(ctypes.string_at(source, nbytes) for _, source in pairs)
            itemsize = ndarray_of(given["dest"]).itemsize
            signal = _signal_of(given) if "signal" in plain else None
            made = self._marks(self._awaited)
            self._keep(_Kept(thread, int(given["pe"]), nbytes, itemsize, pairs, data, made, together=width > 0, signal=signal))

        if not width:
            keep()
        elif leads:
            self._entering[thread] = keep
        if plain == "p" or "signal" in plain:
            return None
        nothing = {name: given[name][:0] for name in ("dest", "source")} | ({} if given.get("nelems") is None else {"nelems": 0})
        if width and "nbi" in plain:
            self._in_nbi[thread] = False
        try:
            return body(*(given | nothing).values())
        finally:
            self._in_nbi.pop(thread, None)

    def _keep(self, kept: _Kept) -> None:
        self._late.append(kept)
        if not self._looks:
            self._looks = True
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        """Make what is kept when the other access has been made, or when its time is over, whatever the kernel does."""
        until = time.monotonic() + _PATIENCE_S
        while not self._has_waited:
            time.sleep(_LOOK_S)
            late = self._late[:1]  # The kernel's thread may remove it meanwhile.
            if time.monotonic() > until or any(self._marks(self._awaited) > kept.made for kept in late):
                self._has_waited = True
        self._make(list(self._late))

    def _order(self, plain: str, given: dict[str, Any]) -> None:
        """Make what a call completes or orders, if this thread may know that all of it has been issued."""
        thread = watch.thread()
        own = [kept for kept in self._late if kept.known_to(thread)]
        if plain in _COMPLETES:
            self._perform([kept for kept in own if plain != "quiet_pe" or int(given["pe"]) == kept.pe])
        elif plain == "fence":
            for kept in own:
                kept.fenced = True
        elif "pe" in given and "get" not in plain and plain != "g":  # A fence does not order gets.
            self._perform([kept for kept in own if kept.fenced and (kept.store or int(given["pe"]) == kept.pe)])
        if plain == "flush" and self._plan.kept == "source":
            self._perform(own)
        if plain in _COMPLETES or "source" in given or plain.startswith(_WAITS):
            self._make([kept for kept in self._late if kept.store and kept.thread is thread])

    def _perform(self, some: list[_Kept], most_s: float = _BRIEFLY_S) -> None:
        """Wait for the other access, which may itself wait for what its thread does next, and make some of what is kept."""
        if some:
            self._wait_for(self._awaited, some[0].made + 1, most_s)
            self._make(some)

    def _make(self, some: list[_Kept]) -> None:
        with self._changing:
            for kept in [kept for kept in some if kept in self._late]:
                self._late.remove(kept)
                if self._plan.kept == "source":
                    for _, source in kept.pairs:
                        self._note_all(source, kept.nbytes, kept.width)
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
            of_run = addr if addr in self._window else log.PRIVATE | self._outside.setdefault(addr, len(self._outside))
            self._values.append((of_run, nbytes, int(mem.load(addr, nbytes))))
        self._mark(_READ)

    def _note_call(self, given: dict[str, Any], result: Any, name: str) -> None:
        """Note what an operation has read: the elements of an array, or its result."""
        if name in given:
            view, nelems = ndarray_of(given[name]), given.get("nelems")
            nbytes = view.nbytes if nelems is None else int(nelems) * view.itemsize
            self._note_all(int(view.__array_interface__["data"][0]), nbytes if view.flags.c_contiguous else 0, view.itemsize)
        elif result is not None:
            data, array = np.asarray(result).tobytes(), given.get("source", given.get("dest"))
            addr = 0 if array is None or "idx" not in given else address_on(simulator.address_of_element(array, given["idx"]), given["pe"])
            self._values.append((addr, len(data), int.from_bytes(data, "little")))
            self._mark(_READ)

    def _note_all(self, addr: int, nbytes: int, width: int) -> None:
        for i in range(min(nbytes // width, _OF_CALL)):
            self._note(addr + i * width, width)


def _copies(plain: str, given: dict[str, Any]) -> tuple[int, tuple[tuple[int, int], ...], tuple[bytes, ...] | None]:
    """Return what an operation copies: bytes of a piece, addresses of each piece, destination and source, and what it has instead."""
    dest, pe = given["dest"], given["pe"]
    view = ndarray_of(dest)
    if plain == "p":
        data = np.asarray(given["value"]).astype(view.dtype).tobytes()
        return view.itemsize, ((address_on(simulator.address_of_element(dest, given["idx"]), pe), 0),), (data,)
    to, origin = simulator.address_of(dest), simulator.address_of(given["source"])
    to, origin = (to, address_on(origin, pe)) if "get" in plain else (address_on(to, pe), origin)
    nelems, source = given.get("nelems"), ndarray_of(given["source"])
    if not plain.startswith("i"):
        return (source.size if nelems is None else int(nelems)) * view.itemsize, ((to, origin),), None
    width, count, steps = strided(given)
    return width, tuple((to + i * steps[0], origin + i * steps[1]) for i in range(count)), None


def _signal_of(given: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that sends the signal of a put_signal."""
    at, value = address_on(simulator.address_of_element(given["sig"], given["idx"]), given["pe"]), int(given["value"])
    if given["op"] == SignalOp.SET:
        return lambda: mem.store_release(at, value, 8)
    return lambda: mem.atomic_add(at, value, 8)
