"""Runs a program again with the two accesses of a report in the other order, to show the value that is then read or left (--replay).

Two runs are compared. In each, one access is *held* until the other has been made; the other waits briefly for it to come. In the first
run, the access that came second is held, in the other run the one that came first. Only accesses of the report's lines to the report's
element count. An access is held in a way that the memory model allows:

* the effect of an operation or a store, or the read of a non-blocking put's source, is *kept* until the other access has been made, for
  this element only. What completes or orders it waits briefly for that and then performs it: quiet and barriers of a thread that may know
  it, operations after a fence, the host's wait for all operations; for stores also barriers of the block and the end of the kernel;
* otherwise its thread, or the host, waits before it: always allowed, because nothing says how fast a thread is.

All waits of a process take _PATIENCE_S seconds at most. Nothing is held any more after that, or when the other access has been made. Both
runs are over p2p, where an operation is a copy from one address to another.
"""

import contextlib
import ctypes
import json
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from pgas.check import log, record
from pgas.check.calls import address_on, strided
from pgas.check.memory import CUDA, FROM, READ, SOURCE
from pgas.check.report import Lines, Mistake
from pgas.job import runtime
from pgas.job.memory.array import SymmetricArray
from pgas.kernels import window
from pgas.kernels.codes import SignalOp
from pgas.kernels.compiler import simulator
from pgas.sim import cuda_module, engine, mem, watch
from pgas.sim.arrays import DeviceArray, KernelArray, SharedArray, ndarray_of
from pgas.sim.scheduler import SimThread

#: Maximum time that accesses wait for the other one, in seconds: all of a process; one in the middle of a kernel; and all of a process in
#: the run in which the second access is held, which may need the first line more often than it comes.
_PATIENCE_S, _BRIEFLY_S, _NORMALLY_S = 5.0, 0.5, 1.0

#: Time after which a collective that has begun is taken to have made its accesses, because it may not end before a member comes that waits.
_COLLECTIVE_S = 0.3

#: Interval in which a thread of Python looks whether the other access has been made, in seconds.
_LOOK_S = 0.02

#: Files of a run. Those of the accesses have a record for each time that it was made: time, address, size, bits, kind of dtype.
_PLAN, _FIRST, _SECOND, _CAME, _REORDERED = "plan", "first", "second", "came", "reordered"
_RECORD = struct.Struct("<qQHQc")

#: Maximum number of records that are compared.
_MOST_VALUES = 10_000

#: Operations that can be kept; calls that complete those of their thread; and calls that read words.
_MOVES = ("put", "put_nbi", "put_signal", "put_signal_nbi", "iput", "p", "get", "get_nbi", "iget")
_UPDATES = ("signal_op", *(f"atomic_{name}" for name in ("set", "inc", "add", "min", "max", "and", "or", "xor")))
_COMPLETES = ("quiet", "quiet_pe", "barrier_all", "barrier", "clear_lock")
_WAITS = ("wait", "test", "signal_wait", "signal_fetch")

Place = tuple[int, str, int, int]  #: PE, file, line, column
Value = tuple[int, int, int, str]  #: address, size, bits, kind of dtype


@dataclass(frozen=True)
class Rerun:
    """The two accesses of a report, and which of them a run holds until the other one has been made."""

    first: Place
    second: Place
    addr: int = 0  #: of the element; 0 if it differs between runs
    read: tuple[str, ...] = ()  #: which of them read; none if both write
    keeps: str = ""  #: what of the first access can be kept: "effect", "source", or nothing
    across: bool = False  #: whether they are of kernels on two streams of one PE
    #: Which of them are collectives, and the number of the block, because each block has calls of its own.
    calls: dict[str, int] = field(default_factory=dict)
    late: bool = True  #: whether the first one is held

    @classmethod
    def of(cls, mistake: Mistake, order: Lines) -> "Rerun | None":
        """Return the plan that holds the first access of a report, None if it is not about two accesses."""
        if mistake.accesses is None:
            return None
        first, second = mistake.accesses
        if second.atom == CUDA:  # It loads and stores, so that it can lose the other update.
            first, second = second, first
        place = lambda a, line: (a.epoch.pe, line.file, line.line, line.column)  # noqa: E731
        named = {_FIRST: first, _SECOND: second}
        keeps = "source" if first.kind == SOURCE else "" if first.kind in (READ, FROM) else "effect"
        if first.call or first.epoch.launch == 0 or (second.call and not first.remote >= 0):
            keeps = ""
        return cls(
            place(first, order.site(first)),
            place(second, order.site(second)),
            addr=mistake.addr if mistake.addr & (log.SHARED | log.PRIVATE) == 0 and mistake.addr >> 64 == 0 else 0,
            read=tuple(role for role, a in named.items() if a.kind in (READ, FROM, SOURCE)),
            keeps=keeps,
            across=first.epoch.pe == second.epoch.pe and first.epoch.lane != second.epoch.lane,
            calls={role: order.index(a.epoch) for role, a in named.items() if a.call and a.epoch.launch},
        )

    def normal(self) -> "Rerun":
        """Return the plan of a run in which the second access is held."""
        return replace(self, keeps="", late=False)

    @property
    def shown(self) -> Place:
        """Place of the access whose value differs."""
        return self.second if _SECOND in self.read else self.first

    @property
    def how(self) -> str:
        """What is late, in words."""
        if _FIRST in self.read:
            return "the source read as late as it may be" if self.keeps else "the read later"
        return "the write as late as it may be" if self.keeps else "the write later"

    def write_to(self, folder: Path) -> None:
        (folder / _PLAN).write_text(json.dumps(asdict(self)))


def is_planned(folder: Path) -> bool:
    """Whether a folder of logs has a plan instead."""
    return (folder / _PLAN).exists()


def follow(folder: Path) -> record.Recorder:
    """Follow the plan of a folder in this process from now on."""
    replayer = _Replayer(folder)
    record.install(folder, lambda _: replayer)
    atomics = cuda_module.KERNEL_MODULE._atomic
    for name in cuda_module._ATOMICS:
        setattr(atomics, name, replayer.of_atomics(getattr(atomics, name), takes_index=name != "compare_and_swap"))
    arrays: tuple[Any, ...] = KernelArray, SharedArray
    for kind in arrays:
        kind.__getitem__, kind.__setitem__ = replayer.of_loads(kind.__getitem__), replayer.of_stores(kind.__setitem__)
    for name in ("copy_to_host", "copy_to_device", "__setitem__", "__getitem__"):
        setattr(DeviceArray, name, replayer.of_host(getattr(DeviceArray, name)))
    setattr(SymmetricArray, "__getitem__", replayer.of_host(SymmetricArray.__getitem__))  # noqa: B010
    return replayer


def _with_tuples(told: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}


def values(folder: Path, plan: Rerun) -> list[Value]:
    """Return the values that were read in a run or, if both accesses write, the one that was left."""
    found = []
    for role in (_FIRST, _SECOND):
        with contextlib.suppress(FileNotFoundError):
            data = (folder / role).read_bytes()[: _MOST_VALUES * _RECORD.size]
            found += [(role, *made) for made in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size])]
    found.sort(key=lambda made: made[1])
    if not plan.read and len({made[0] for made in found}) == 2:
        found = [made for made in found if made[3]][-1:]
    elif not plan.read:
        found = []
    return [(addr, nbytes, bits, kind.decode()) for role, _, addr, nbytes, bits, kind in found if nbytes and role in (plan.read or (role,))]


def is_reordered(folder: Path) -> bool:
    """Whether the access that was held came after the other one."""
    return (folder / _REORDERED).exists()


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


def shown(value: Value) -> str:
    """Return the value of an element as text."""
    _, nbytes, bits, kind = value
    if kind in "fib" and (kind != "f" or nbytes > 1):
        return str(np.array(bits, f"u{nbytes}").view(f"{kind}{nbytes}"))
    return str(bits)


def _by_element(values: Sequence[Value]) -> dict[tuple[int, int], list[Value]]:
    found: dict[tuple[int, int], list[Value]] = {}
    for value in values:
        found.setdefault(value[:2], []).append(value)
    return found


@dataclass(eq=False)
class _Kept:
    """The effect of an operation or a store on an element, or its read of the source, that is yet to come."""

    thread: SimThread
    pe: int  #: of the destination or, for a get, of the source
    make: Callable[[], Any]
    made: int  #: how often the other access had been made before
    width: int = 0  #: number of threads that make it together, 0 for one thread
    store: int = 0  #: its address if it is a store of the thread itself, or a get that blocks
    atomic: bool = False  #: whether it is an atomic of CUDA
    lane: Any = 0  #: number of the stream of its kernel
    met: bool = False  #: whether the block may know it, because its threads have been in a barrier since
    ended: bool = False  #: whether its kernel has ended
    fenced: bool = False

    def known_to(self, thread: SimThread) -> bool:
        """Whether a thread knows that all parts have been issued."""
        return self.ended or (self.met and self.thread.block is thread.block) or (self.thread is thread and not self.width)

    def is_met_by(self, threads: Sequence[SimThread], size: int) -> bool:
        """Whether these threads, which are in a barrier of a block of a size, are all that make it."""
        here = {thread.linear for thread in threads if thread.block is self.thread.block}
        first = self.thread.linear
        return here.issuperset(range(first, min(first + max(self.width, 1), size)))


class _Sites(log.Log):
    """Keeps the lines of the program, and tells when the host has waited."""

    def __init__(self, waited: Callable[[int], None]) -> None:
        super().__init__()
        self.places: dict[int, tuple[str, int, int]] = {}
        self._waited = waited

    def open(self, folder: Path, pe: int) -> None:
        """Write nothing."""

    def turn(self) -> int:
        return 0

    def add(self, *event: Any) -> None:
        if event[0] == log.SITE:
            self.places[event[1]] = event[2:5]
        elif event[0] in (log.COMPLETED, log.WAITED, log.AWAITED):
            self._waited(event[0])


class _Replayer(record.Recorder):
    """The watcher of a process that follows a plan."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        told: dict[str, Any] = json.loads((folder / _PLAN).read_text(), object_hook=_with_tuples)
        self._plan = plan = Rerun(**told)
        self.log = self._lines = _Sites(self._host_waited)
        self._where = folder
        #: Which access is held, and which one it waits for.
        self._held, self._other = (_FIRST, _SECOND) if plan.late else (_SECOND, _FIRST)
        self._outside: dict[int, int] = {}  #: by address of shared and other memory, which differs between runs, its number in the values
        self._kind = ""  #: kind of dtype of the array whose element is accessed
        self._late: list[_Kept] = []  #: what is kept
        self._has_waited, self._patience_s = False, _PATIENCE_S if plan.late else _NORMALLY_S
        self._waits_for_held = plan.late
        self._lane: Any = 0  #: number of the stream of the last kernel
        self._changing = threading.RLock()
        self._looks = False

    def restart(self, folder: Path | None = None) -> None:
        """Follow the plan of another folder from now on."""
        self.__init__(folder or self._where)  # type: ignore[misc]  # Others hold this object.

    # The program

    def launch_started(self, launch: Any, stream: Any) -> None:
        self._lane = self.stream(stream)
        self._perform([kept for kept in self._late if kept.store and self._lane in (0, kept.lane)])
        super().launch_started(launch, stream)

    def launch_ended(self, launch: Any) -> None:
        if launch.failure is not None:
            self._late.clear()
        for kept in self._late:
            kept.ended = True
        if not self._plan.across:
            self._perform([kept for kept in self._late if kept.store], _PATIENCE_S)
        super().launch_ended(launch)

    def _host_waited(self, event: int) -> None:
        """Make what is complete when the host has waited: for kernels or, for a barrier of all PEs and the like, for operations."""
        self._perform([kept for kept in self._late if kept.store or event == log.COMPLETED], _PATIENCE_S)

    def threads_synced(self, block: Any, threads: Any, *, whole: bool) -> None:
        here = list(threads)
        for kept in self._late:
            if kept.thread not in self._in_nbi and kept.is_met_by(here, self._threads_of_block):
                kept.met = True
        if not self._plan.across:
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
        covered = kind != watch.ATOMIC and self._covers(addr, nbytes)  # This is called before an atomic, and after a store.
        role = self._role(frame, reads=kind == watch.LOAD) if covered else None
        if kind == watch.LOAD:
            own = [kept for kept in self._late if kept.store == addr]
            self._perform([kept for kept in own if kept.thread is watch.thread()])  # It must see what it has stored.
            self._hold(role)
        if role is not None and not self._is_kept(addr):
            self._note(role, addr, nbytes, self._kind)

    def of_loads(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function like an array's __getitem__() that lets the values be shown."""

        def loading(array: Any, idx: Any) -> Any:
            self._kind = ndarray_of(array).dtype.kind
            return load(array, idx)

        return loading

    def of_stores(self, store: Callable[..., None]) -> Callable[..., None]:
        """Return a function like an array's __setitem__() that holds the store of the plan."""

        def storing(array: Any, idx: Any, value: Any) -> None:
            self._store(array, idx, sys._getframe(1), lambda: store(array, idx, value))

        return storing

    def of_atomics(self, operation: Callable[..., Any], *, takes_index: bool) -> Callable[..., Any]:
        """Return a function like one of cuda.atomic that holds the atomic of the plan between its load and its store."""

        def atomic(array: Any, *args: Any) -> Any:
            return self._store(array, args[0] if takes_index else 0, sys._getframe(1), lambda: operation(array, *args), atomic=True)

        return atomic

    def _store(self, array: Any, idx: Any, frame: FrameType, store: Callable[[], Any], *, atomic: bool = False) -> Any:
        self._kind = ndarray_of(array).dtype.kind
        at = watch.element(array, idx)
        if at is None or not self._covers(*at):
            return store()
        self._perform([kept for kept in self._late if kept.store == at[0] and (kept.atomic or kept.thread is watch.thread())])
        role = self._role(frame, reads=False)
        if role != self._held or self._plan.keeps != "effect" or self._has_waited:
            self._hold(role)
            result = store()
            if atomic and role is not None:
                self._note(role, *at, self._kind)
            return result
        before = ctypes.string_at(*at)
        kept = _Kept(watch.thread(), -1, lambda: None, self._marks(self._other), store=at[0], atomic=atomic)
        self._late.append(kept)  # so that accessed() does not note it
        result = store()
        after = ctypes.string_at(*at)
        ctypes.memmove(at[0], before, at[1])
        dtype = self._kind

        def make() -> None:
            ctypes.memmove(at[0], after, at[1])
            self._note(_FIRST, *at, dtype)

        kept.make = make
        self._keep(kept)
        return result

    def call(self, name: str, names: tuple[str, ...], values: list[Any], body: Callable[..., Any]) -> Any:
        plain, width = self.scope(name)
        given, thread = dict(zip(names, values, strict=True)), watch.thread()
        self._order(plain, given)
        span = self._span(plain, given)
        role = self._role(sys._getframe(2)) if span else None
        if role is None or span is None:
            return body(*values)
        leads = not width or thread.linear % width == 0
        if role == self._held and self._plan.keeps and not self._has_waited:
            if plain in _MOVES:
                self._move_later(name, given, span, thread, leads=leads)
                return None
            if plain in _UPDATES:

                def update() -> None:
                    body(*values)
                    self._note(role, *span)

                self._keep(_Kept(thread, int(given["pe"]), update, self._marks(self._other)))
                return None
        if leads:
            self._hold(role)
        if role in self._plan.calls and leads:
            self._begins(role, span, thread if width else None)
        result = body(*values)
        if leads:
            self._note_result(role, span, result)
        return result

    def _begins(self, role: str, span: tuple[int, int, str], thread: SimThread | None) -> None:
        """Note that a collective begins: it may end only when the thread that waits for it has come."""

        def noted(where: Path) -> None:
            if where is self._where:
                self._note(role, span[0], 0, "")

        def begin() -> None:
            if role in self._plan.read:
                self._note(role, *span)
            else:
                threading.Timer(_COLLECTIVE_S, noted, (self._where,)).start()

        if thread is None:
            begin()
        else:
            self._entering[thread] = begin

    def _note_result(self, role: str, span: tuple[int, int, str], result: Any) -> None:
        """Note the value of an element after an operation: what it has returned, if it reads."""
        addr, nbytes, kind = span
        if role not in self._plan.read:
            self._note(role, *span)
        elif role not in self._plan.calls:
            if result is None or isinstance(result, bool):
                self._note(role, *span)
            else:
                data = np.asarray(result).tobytes()[:nbytes]
                self._append(role, addr, len(data), int.from_bytes(data, "little"), kind)

    # The host

    def of_host(self, copy: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function like one by which the host reads or writes arrays that holds the access of the plan."""

        def copying(array: Any, *args: Any, **kwargs: Any) -> Any:
            if self.on_host():
                self._hold(self._role(sys._getframe(1)))
            return copy(array, *args, **kwargs)

        return copying

    def host_accessed(self, kind: int, array: Any, frame: FrameType) -> None:
        if self.on_host() and (role := self._role(frame, reads=kind == watch.LOAD)) is not None:
            for addr, nbytes in record._runs(array):
                if self._covers(addr, nbytes):
                    self._note(role, *_element(self._plan.addr or addr, addr, array.dtype))

    # What is kept

    def _move_later(self, name: str, given: dict[str, Any], span: tuple[int, int, str], thread: SimThread, *, leads: bool) -> None:
        """Perform a call without what it does to the element of the plan, and keep that."""
        plain, width = self.scope(name)

        def keep() -> None:
            """Keep it, in the barrier at the beginning of the call of a warp or block."""
            nbytes, pairs, data = _copies(plain, given)
            source, now, late = self._plan.keeps == "source", [], None
            addr, width_of, _ = span
            for to, origin in pairs:  # of which one has the element
                start = origin if source else to
                if not start <= addr < start + nbytes:
                    now.append((to, origin, nbytes))
                    continue
                at = (addr - start) // width_of * width_of
                late = to + at, origin + at, width_of
                now += [(to, origin, at), (to + at + width_of, origin + at + width_of, nbytes - at - width_of)]
            for to, origin, n in now:
                ctypes.memmove(to, origin, n)
            signal = _signal_of(given) if "signal" in plain else lambda: None
            if late is None:
                signal()
                return
            if data is None and "nbi" not in plain:
                data = ctypes.string_at(late[1], late[2])

            def make() -> None:
                if source:
                    self._note(_FIRST, *span)
                ctypes.memmove(late[0], data if data is not None else late[1], late[2])
                if not source:
                    self._note(_FIRST, *span)
                signal()

            store = late[0] if plain in ("get", "iget") else 0
            self._keep(_Kept(thread, int(given["pe"]), make, self._marks(self._other), width, store))

        if not width:
            keep()
            return
        if leads:
            self._entering[thread] = keep
        meet = engine.block_barrier if name.endswith("_block") else engine.warp_barrier
        if "nbi" in plain:
            self._in_nbi[thread] = False
        try:
            meet()
            if "nbi" not in plain:
                meet()
        finally:
            self._in_nbi.pop(thread, None)

    def _keep(self, kept: _Kept) -> None:
        kept.lane = self._lane
        self._mark(_CAME)
        with self._changing:
            if kept not in self._late:
                self._late.append(kept)
            starts, self._looks = not self._looks, True
        if starts:
            threading.Thread(target=self._look, daemon=True).start()

    def _is_kept(self, addr: int) -> bool:
        return any(kept.store == addr and kept.thread is watch.thread() for kept in self._late)

    def _look(self) -> None:
        """Make what is kept when the other access has been made, or when its time is over, whatever the kernel does."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            with self._changing:
                if self._has_waited or not self._late:
                    self._looks = False  # What is kept from now on has a thread of its own.
                    break
                kept = self._late[0]
            time.sleep(_LOOK_S)
            if self._marks(self._other) > kept.made:
                self._has_made()
            elif time.monotonic() > until:
                self._has_waited = True
        if self._has_waited and runtime.active():
            self._make(list(self._late))

    def _order(self, plain: str, given: dict[str, Any]) -> None:
        """Make what a call completes or orders, if this thread may know that all of it has been issued."""
        if not self._late:
            return
        thread = watch.thread()
        own = [kept for kept in self._late if kept.known_to(thread)]
        if plain == "quiet_pe":
            self._perform([kept for kept in own if not kept.store and int(given["pe"]) == kept.pe])
        elif plain in _COMPLETES:
            self._perform(own)
        elif plain == "fence":
            for kept in own:
                kept.fenced = True
        elif "pe" in given and "get" not in plain and plain != "g":  # A fence does not order gets.
            self._perform([kept for kept in own if kept.fenced and (kept.store or int(given["pe"]) == kept.pe)])
        if plain == "flush" and self._plan.keeps == "source":
            self._perform(own)
        if "source" in given or plain.startswith(_WAITS):
            self._perform([kept for kept in self._late if kept.store and kept.thread is thread])

    def _perform(self, some: list[_Kept], most_s: float = _BRIEFLY_S) -> None:
        """Wait for the other access, which may itself wait for what its thread does next, and make some of what is kept."""
        if some:
            self._wait_for(self._other, some[0].made + 1, most_s)
            self._make(some)

    def _make(self, some: list[_Kept]) -> None:
        with self._changing:
            for kept in [kept for kept in some if kept in self._late]:
                self._late.remove(kept)
                kept.make()

    # The accesses of the plan

    def _role(self, frame: FrameType, *, reads: bool | None = None) -> str | None:
        """Return which access of the plan the line of a frame makes. reads: whether it reads, if that is known."""
        place, me = self._lines.places.get(self.site(frame)), runtime.current().my_pe
        for role, (pe, *line) in ((_FIRST, self._plan.first), (_SECOND, self._plan.second)):
            if place == tuple(line) and me == pe and reads in (None, role in self._plan.read) and self._is_of_block(role):
                if role == _FIRST and self._plan.first == self._plan.second and (self._late or self._marks(_FIRST)):
                    continue
                return role
        return None

    def _is_of_block(self, role: str) -> bool:
        return role not in self._plan.calls or watch.thread().block.linear == self._plan.calls[role]

    def _covers(self, addr: int, nbytes: int) -> bool:
        return not self._plan.addr or addr <= self._plan.addr < addr + nbytes

    def _span(self, plain: str, given: dict[str, Any]) -> tuple[int, int, str] | None:
        """Return the element of the plan, with its size and kind of dtype, if an operation accesses it."""
        wanted = self._plan.addr
        for name in ("dest", "source", "sig", "ivar", "ivars"):
            array = given.get(name)
            view = ndarray_of(array)
            if not isinstance(view, np.ndarray) or (not wanted and simulator.address_of(array) in self._window):
                continue
            if "idx" in given and (name == "sig" or "sig" not in given):
                addr, nbytes = simulator.address_of_element(array, given["idx"]), view.itemsize
            else:
                addr, nbytes = simulator.address_of(array), view.nbytes
            near = "source" if "put" in plain else "dest" if "get" in plain else "ivar"
            if "pe" in given and name != near:
                addr = address_on(addr, given["pe"])
            elif "pe" not in given and wanted and name == "dest":  # of a collective, which writes to those of all members
                addr = address_on(addr, wanted - window.BASE >> window.STRIDE_SHIFT)
            if self._covers(addr, nbytes):
                return _element(wanted or addr, addr, view.dtype)
        return None

    def _hold(self, role: str | None) -> None:
        """Wait before an access of the plan."""
        if role == self._held and not self._has_waited:
            self._mark(_CAME)
            late = self._plan.late  # Otherwise the other access may have been made already, or may come again in a later round.
            self._wait_for(self._other, self._marks(self._other) + 1, _PATIENCE_S if late else _BRIEFLY_S, last=late)
        elif role == self._other and self._waits_for_held:
            self._waits_for_held = False
            until = time.monotonic() + _BRIEFLY_S
            while not (self._where / _CAME).exists() and time.monotonic() < until:
                time.sleep(1e-3)
                engine.preempt()

    def _wait_for(self, role: str, count: int, most_s: float = _PATIENCE_S, *, last: bool = True) -> None:
        """Wait until an access has been made this number of times; other threads of the kernel go on. last: whether none waits again."""
        began = time.monotonic()
        limit = began + min(most_s, self._patience_s)
        while not self._has_waited and time.monotonic() < limit:
            if self._marks(role) >= count:
                if last:
                    self._has_made()
                break
            time.sleep(1e-3)
            engine.preempt()
        self._patience_s -= time.monotonic() - began
        self._has_waited = self._has_waited or self._patience_s <= 0

    def _has_made(self) -> None:
        self._has_waited = True
        self._mark(_REORDERED)

    def _mark(self, name: str) -> None:
        (self._where / name).touch()

    def _marks(self, role: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return (self._where / role).stat().st_size // _RECORD.size
        return 0

    def _note(self, role: str, addr: int, nbytes: int, kind: str) -> None:
        """Note that an access has been made, with the value that the element has."""
        nbytes = nbytes if nbytes in (1, 2, 4, 8) else 0
        self._append(role, addr, nbytes, int(mem.load(addr, nbytes)) if nbytes else 0, kind)

    def _append(self, role: str, addr: int, nbytes: int, bits: int, kind: str) -> None:
        of_run = addr if addr in self._window else log.PRIVATE | self._outside.setdefault(addr, len(self._outside))
        with open(self._where / role, "ab") as file:
            file.write(_RECORD.pack(time.monotonic_ns(), of_run, nbytes, bits, kind.encode() or b"?"))


def _element(addr: int, start: int, dtype: Any) -> tuple[int, int, str]:
    """Return address, size, and kind of dtype of the element at an address in an array that begins at start."""
    return start + (addr - start) // dtype.itemsize * dtype.itemsize, dtype.itemsize, dtype.kind


def _copies(plain: str, given: dict[str, Any]) -> tuple[int, tuple[tuple[int, int], ...], bytes | None]:
    """Return what an operation copies: bytes of a piece, addresses of each piece, destination and source, and what it has instead."""
    dest, pe = given["dest"], given["pe"]
    view = ndarray_of(dest)
    if plain == "p":
        data = np.asarray(given["value"]).astype(view.dtype).tobytes()
        return view.itemsize, ((address_on(simulator.address_of_element(dest, given["idx"]), pe), 0),), data
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
