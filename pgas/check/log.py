"""The log of a PE: what its kernels and its host did, in the order of the PE. `merged` puts the logs of all PEs into one order.

An event is a tuple that begins with one of the codes below. Synchronization has a *turn*, a number from one counter that all PEs share. A
release takes its turn before it takes effect, and an acquire after it has; in the order of turns, a release therefore comes before what
it released. Other events need none: they come after the turn that their PE took before them.

Threads, sites, and launches are numbers of the PE. Address 0 stands for memory that no other thread has, such as local arrays. Addresses
outside the window have a tag: SHARED and the number of their block, or PRIVATE.
"""

import ctypes
import heapq
import itertools
import math
import mmap
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from itertools import dropwhile, islice, pairwise, takewhile
from pathlib import Path
from typing import IO, Any

from pgas.native import atomics

Event = tuple[Any, ...]
_Group = tuple[int, list[Event]]  # turn, events

(
    JOB,  # n_pes
    SITE,  # number, file, line, column, function, text
    MADE,  # address, nbytes, site, shape, itemsize, kind of dtype: a symmetric array
    LAUNCH,  # launch, first thread, threads of a block, blocks, stream, name, site
    ENDED,  # launch
    MET,  # first thread of the block, threads or None for all: in a barrier of the block or a warp operation
    GRID,  # launch
    LOAD, STORE, ATOMIC, SAME,  # thread, address, nbytes, site, ATOMIC: value before: by the kernel's own code; SAME: stores what is there
    FENCE,  # thread, scope of CUDA
    PUT,  # turn, thread, site, pe, dest, source, nbytes of an element, elements, strides in bytes, nbi, signal follows, threads
    GET,  # turn, thread, site, pe, dest, source, nbytes of an element, elements, strides, nbi, threads
    UPDATE,  # turn, thread, site, pe, address, nbytes, kind, value, fetches, value before that if an add, threads: an atomic or a signal
    ACQUIRED,  # turn, thread, site, address, nbytes, comparison or None, value, found: a wait or test has succeeded, a lock is set
    WAITS,  # thread, site, comparison, whether for all, (address, nbytes, value found, wanted) of each word: not satisfied immediately
    FETCHED,  # turn, thread, site, address: an atomic has returned a value
    ORDER,  # turn, thread, site, what, pe: fence, quiet, quiet_pe, flush
    ENTER,  # turn, thread, site, group, what, members, dest, nbytes, source, nbytes, root, part, rows: of alltoallv, in bytes, staged bytes
    LEFT,  # turn, thread, whole warp or block, site, group
    WAITED,  # stream or None: the host has waited for kernels
    MEETS, HAS_MET,  # turn: the host exchanges values with all PEs
    COMPLETED,  # turn: the host has completed the operations of all kernels
    RECORDED,  # event, stream
    AWAITED,  # event, stream, or None for the host
) = range(27)  # fmt: skip

#: Kinds of UPDATE: of a word by p or a small put, by a signal that sets, by a signal that adds, and by atomics.
PLAIN, SET, ADD, ATOMIC_SET, ATOMIC_ADD, ATOMIC_OTHER = range(6)

#: By code, position of the turn in events that have one.
_TURNS = {PUT: 1, GET: 1, UPDATE: 1, ACQUIRED: 1, FETCHED: 1, ORDER: 1, ENTER: 1, LEFT: 1, MEETS: 1, HAS_MET: 1, COMPLETED: 1}

#: Events by which a PE learns of others.
_LEARNS = frozenset({ACQUIRED, FETCHED, LEFT, HAS_MET})

#: Tags of addresses that only the threads of one block, or one PE, can access; addresses themselves have up to 48 bits.
SHARED, PRIVATE = 1 << 62, 1 << 61

#: Number of events that are written together.
_BATCH = 4096

#: Interval in which events are written, in seconds.
_PAUSE_S = 0.1

_COUNTER = "counter"

#: What a log that is complete ends with.
END = pickle.dumps(None, pickle.HIGHEST_PROTOCOL)


class Log:
    """The events of this process, on their way to a file in a folder that all PEs of the job share."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._address = 0
        self._events: list[Event] = []
        self._writing = threading.Lock()

    def open(self, folder: Path, pe: int) -> None:
        """Begin the log of a PE in a folder that exists."""
        fd = os.open(folder / _COUNTER, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self._counter = mmap.mmap(fd, mmap.PAGESIZE)
        finally:
            os.close(fd)
        self._address = ctypes.addressof(ctypes.c_uint64.from_buffer(self._counter))
        self._file = open(folder / f"{pe}.log", "ab")  # noqa: SIM115
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        """Write what there is from time to time, so that a log has what happened before its process is killed."""
        while self._file is not None:
            time.sleep(_PAUSE_S)
            self.flush()

    def turn(self) -> int:
        """Take the next turn among all PEs."""
        return int(atomics.atomic_add_u64(self._address, 1))

    def add(self, *event: Any) -> None:
        """Note an event."""
        self.append(event)

    def append(self, event: Event) -> None:
        """Note an event, given as a tuple."""
        events = self._events
        events.append(event)
        if len(events) >= _BATCH or event[0] == MEETS:  # Before another PE can end the job because of what it does after an exchange.
            self.flush()

    def flush(self) -> None:
        """Write the events of this process to its file."""
        with self._writing:
            if self._file is not None and (events := self._events[:]):
                self._file.write(pickle.dumps(events, pickle.HIGHEST_PROTOCOL))
                self._file.flush()
                del self._events[: len(events)]

    def close(self) -> None:
        """Write the rest, and that the log is complete. Later events are of no log."""
        self.flush()
        with self._writing:
            if self._file is not None:
                self._file.write(END)
                self._file.close()
            self._file = None


def merged(folder: Path, horizon: "Horizon | None" = None) -> Iterator[tuple[int, list[Event]]]:
    """Yield (pe, events that follow each other) of all logs in a folder, in an order in which releases precede what they released.

    An acquire comes only when all PEs are at one. It is then judged beside all updates that do not wait for it, which could come first in
    another run. Events beyond the horizon, that of the folder, are left out.
    """
    horizon = horizon or Horizon(folder)
    logs = [(int(path.stem), takewhile(horizon.within(path), _in_turn(path))) for path in sorted(folder.glob("*.log"))]
    heap = [_head(pe, groups, group) for pe, groups in logs for group in islice(groups, 1)]
    heapq.heapify(heap)
    while heap:
        _, _, pe, events, groups = heap[0]
        yield pe, events
        following = next(groups, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, _head(pe, groups, following))


class Horizon:
    """What may be missing in the logs of a folder: a process that was killed has not written its last events.

    A PE can have learned of such events only by an acquire after the last known turn of that process, or by an exchange of which the log
    of that process knows nothing. Whatever the PE did from then on is beyond the horizon.
    """

    def __init__(self, folder: Path) -> None:
        self._paths, self._turn, self._meetings = list(folder.glob("*.log")), math.inf, math.inf
        for path in self._paths:
            if not _is_complete(path):
                turn, meetings = -1, 0
                for turn, events in _in_turn(path):  # noqa: B007  The last one is used.
                    meetings += events[0][0] == MEETS
                self._turn, self._meetings = min(self._turn, turn), min(self._meetings, meetings)

    def within(self, path: Path) -> Callable[[_Group], bool]:
        """Return a function that tells of each group of a log, in their order, whether it is within the horizon."""
        met = itertools.count(1)

        def known(group: _Group) -> bool:
            turn, ((code, *_), *_) = group
            return next(met) <= self._meetings if code == HAS_MET else code not in _LEARNS or turn <= self._turn

        return known

    def waits_that_ended(self) -> set[tuple[int, int]]:
        """Return the threads, with their PEs, that ended a wait beyond the horizon."""
        if self._turn == math.inf:  # Nothing is beyond it, so that no log is read for this.
            return set()
        beyond = ((path, dropwhile(self.within(path), _in_turn(path))) for path in self._paths)
        return {(int(path.stem), event[2]) for path, groups in beyond for _, events in groups for event in events if event[0] == ACQUIRED}


def _is_complete(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - len(END)))
        return file.read() == END


def _head(pe: int, groups: Iterator[_Group], first: _Group) -> tuple[bool, int, int, list[Event], Iterator[_Group]]:
    """Return the next group of a PE, after what decides when it comes, which differs between PEs."""
    turn, events = first
    return events[0][0] in _LEARNS, turn, pe, events, groups


def _in_turn(path: Path) -> Iterator[_Group]:
    """Yield the events of a log in groups that begin with a turn. Groups that were not written together come in parts."""
    turn = -1
    for events in _read(path):
        turns = [(i, event[at]) for i, event in enumerate(events) if (at := _TURNS.get(event[0])) is not None and event[at] is not None]
        for (i, at), (end, _) in pairwise([(0, turn), *turns, (len(events), turn)]):
            turn = max(turn, at)
            if i < end:
                yield turn, events[i:end]


def _read(path: Path) -> Iterator[list[Event]]:
    """Yield the lists of events in which a log was written."""
    with open(path, "rb") as file:
        while True:
            try:
                if (events := pickle.load(file)) is not None:  # None: END, perhaps of an earlier job of the process.
                    yield events
            except (EOFError, pickle.UnpicklingError):  # The second: the process was killed.
                return
