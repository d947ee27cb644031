"""Trace files as events: the records of each PE, with names, in the clock of the first PE."""

import glob
import mmap
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pgas.base import events
from pgas.base.errors import PgasError
from pgas.trace.clocks import Alignment, GpuClock, align

#: Suffixes of names, by the number of a scope in events.
_SUFFIXES = ("", "_warp", "_block")


#: Number of the ring of events that the software NIC wrote.
NIC = -1


@dataclass(slots=True)
class Event:
    """One event. Times are in ns since the beginning of the trace, in the clock of the first PE."""

    pe: int  #: PE that wrote it
    ring: int
    code: int
    name: str  #: operation without scope, name of a kernel or host function, or of a NIC's event
    scope: int  #: threads that made the call together: 0 for a thread, 1 for a warp, 2 for a block
    comparison: int
    thread: int
    block: int
    launch: int
    begin: int
    end: int
    peer: int  #: PE that the operation is on; -1 if there is none
    address: int
    nbytes: int
    word: int
    value: int

    @property
    def in_kernel(self) -> bool:
        """Whether it is a call in a kernel."""
        return self.code < events.WRITTEN

    @property
    def full_name(self) -> str:
        """The name with its scope."""
        return self.name + _SUFFIXES[self.scope]


@dataclass
class TracedPE:
    """What one PE wrote."""

    path: str
    job: dict[str, Any]
    exchanges: list[list[tuple[int, int]]] = field(default_factory=list)
    gpu_clocks: list[GpuClock] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    teams: dict[int, tuple[int, ...]] = field(default_factory=dict)  #: members, by the team's number
    lost: dict[int, int] = field(default_factory=dict)  #: events that were overwritten, by ring; NIC: of the software NIC

    @property
    def pe(self) -> int:
        return int(self.job["pe"])

    @property
    def collectives(self) -> Sequence[str]:
        """Names of the collectives of teams."""
        return self.job["collectives"]  # type: ignore[no-any-return]

    def slot_of(self, address: int) -> tuple[int, int]:
        """Return the PE in whose slot an address is, and its offset there."""
        base, shift, _ = self.job["window"]
        return (address - base) >> shift, address & ((1 << shift) - 1)

    def heap_offset(self, address: int) -> int:
        """Return the offset of an address in the symmetric heap; negative in team memory."""
        return self.slot_of(address)[1] - int(self.job["window"][2])


@dataclass
class Trace:
    """The trace of a job."""

    pes: list[TracedPE]
    alignment: Alignment
    card_error: float  #: ns by which the times of the software NIC may differ
    duration: int  #: ns from the first event to the last

    def events(self) -> Iterable[Event]:
        """Yield all events, PE by PE."""
        for pe in self.pes:
            yield from pe.events


def files(names: Iterable[str]) -> list[str]:
    """Return the paths of trace files from what a user names: files, or the FILE of PGAS_TRACE=timeline:FILE.

    Raises:
        PgasError: if there is no such file.
    """
    found: list[str] = []
    for name in names:
        of_job = [path for path in glob.glob(f"{glob.escape(name)}.*") if path[len(name) + 1 :].removeprefix("nic").isdigit()]
        if Path(name).is_file():
            found.append(name)
        elif of_job:
            found += sorted(of_job, key=lambda path: (len(path), path))
        else:
            raise PgasError(f"there is no trace file {name} or {name}.0; set PGAS_TRACE=timeline:{name} when you run the job")
    return list(dict.fromkeys(found))


def read(names: Iterable[str]) -> Trace:
    """Read the trace files of a job.

    Raises:
        PgasError: if a file is missing or is not a trace file, or files are of different jobs.
    """
    pes, records, cards = [], [], []
    for path in files(names):
        try:
            data, rings, capacity = events.open_for_reading(path)
            told = list(events.lines(data))
            of_file = _records(data, rings, capacity)
            if card := next((line["card"] for line in told if "card" in line), None):
                cards.append((path, card, of_file))
            else:
                pes.append(_described(path, told))
                records.append(of_file)
        except (OSError, ValueError) as error:
            raise PgasError(str(error)) from error
    if not pes:
        raise PgasError(f"there is no trace file of a PE among {', '.join(path for path, *_ in cards)}")
    numbers = [pe.pe for pe in pes]
    if len(set(numbers)) < len(numbers) or len({pe.job["id"] for pe in pes}) > 1:
        jobs = list(dict.fromkeys(pe.job["id"] for pe in pes))
        listed = ", ".join(f"{pe.path} is of PE {pe.pe} of {pe.job['n_pes']} in job {jobs.index(pe.job['id']) + 1}" for pe in pes)
        raise PgasError(f"the trace files are of different jobs: {listed}; name the files of one job")
    order = np.argsort(numbers)
    pes, records = [pes[i] for i in order], [records[i] for i in order]
    alignment = align([(pe.job["boot"], pe.exchanges, pe.gpu_clocks) for pe in pes])
    for i, (pe, of_pe) in enumerate(zip(pes, records, strict=True)):
        for ring, (lost, rows) in of_pe.items():
            if lost:
                pe.lost[ring] = lost
            _add(pe, ring, rows, lambda times, ring=ring, i=i: alignment.aligned(i, times, on_gpu=ring >= events.BLOCKS))
    card_errors = [_add_card(pes, alignment, card, *of_file[0]) for _, card, of_file in cards if of_file]
    return Trace(pes, alignment, max(card_errors, default=0), _begin_at_zero(pes))


def _described(path: str, told: Iterable[dict[str, Any]]) -> TracedPE:
    """Return a PE without events from the lines of its file."""
    job = next((line["job"] for line in told if "job" in line), None)
    if job is None:
        raise ValueError(f"{path}: the job did not begin: there is no description of it in the file")
    pe = TracedPE(path, job)
    for line in told:
        if "exchanges" in line:
            pe.exchanges.append([(int(a), int(b)) for a, b in line["exchanges"]])
        elif "gpu_clock" in line:
            pe.gpu_clocks.append(GpuClock(**line["gpu_clock"]))
        elif "name" in line:
            pe.names[line["name"]] = line["text"]
        elif "team" in line:
            pe.teams[line["team"]] = tuple(line["pes"])
        elif "thread" in line:
            pe.threads[line["thread"]] = line["text"]
    return pe


def _records(data: mmap.mmap, rings: int, capacity: int) -> dict[int, tuple[int, np.ndarray]]:
    """Return the number of overwritten events, and the records in the order of tickets, of each ring that has any."""
    found = {}
    table = np.frombuffer(data, np.uint64, rings * capacity * 8, events.RINGS).reshape(rings, capacity, 8)
    used = np.flatnonzero(table[:, :, 1].any(axis=1))  # No event begins at 0. The first slot of a call in progress is empty.
    for ring in used.tolist():
        rows = table[ring][table[ring][:, 1] != 0]
        tickets = rows[:, 0] >> np.uint64(events.TICKET_SHIFT)
        rows = rows[np.argsort(tickets, kind="stable")]
        found[ring] = max(0, int(tickets.max()) + 1 - capacity), rows
    return found


def _add_card(pes: list[TracedPE], alignment: Alignment, card: dict[str, Any], lost: int, rows: np.ndarray) -> float:
    """Add the events of a software NIC to the PEs whose queue pairs they are of. Return the error of their times in ns."""
    queues = {(pe.pe, qpn): (pe, number) for pe in pes for number, qpn in enumerate(pe.job["qpns"])}
    own = next((i for i, pe in enumerate(pes) if pe.job["boot"] == card["boot"]), 0)
    times, error = rows[:, events.BEGIN // 8].astype(np.int64), 0.0
    if card["on_gpu"]:
        offset, error = _offset_of_card(queues, rows)
        times += offset
    else:
        times = alignment.aligned(own, times, on_gpu=False)
    for row, at in zip(rows.tolist(), times.tolist(), strict=True):
        what, _, _, owner, qpn, _, _, index = row
        pe, number = queues.get((owner, qpn), (None, 0))
        if pe is not None:
            code = what & events.CODE_MASK
            pe.events.append(Event(pe.pe, NIC, code, events.NAMES[code], 0, 0, 0, 0, 0, at, at, -1, 0, 0, number, index))
            if lost:
                pe.lost[NIC] = lost
    return error


def _offset_of_card(queues: dict[tuple[int, int], tuple[TracedPE, int]], rows: np.ndarray) -> tuple[int, float]:
    """Return what to add to the times of a software NIC on a GPU, and its error.

    No WQE was fetched before it was written, and no CQE was seen before it was written.
    """
    reached: dict[tuple[int, int, bool], list[tuple[int, int]]] = defaultdict(list)
    for pe in {id(pe): pe for pe, _ in queues.values()}.values():
        for event in sorted(pe.events, key=lambda event: event.begin):
            if event.code in (events.WRITTEN, events.POSTED):
                end = event.value if event.code == events.WRITTEN else event.address
                reached[pe.pe, event.word, True].append((end, event.begin))
            elif event.code == events.COMPLETED:
                reached[pe.pe, event.word, False].append((event.value, event.begin))
    low, high = list[int](), list[int]()
    for what, begin, _, owner, qpn, _, _, index in rows.tolist():
        if (owner, qpn) in queues:
            pe, number = queues[owner, qpn]
            fetched = what & events.CODE_MASK == events.FETCHED
            steps = reached[pe.pe, number, fetched]
            at = bisect_right(steps, (index, 1 << 64))
            if at < len(steps):
                (low if fetched else high).append(steps[at][1] - begin)
    if not low or not high:
        return 0, 0.0
    return (max(low) + min(high)) // 2, abs(min(high) - max(low)) / 2


def _add(pe: TracedPE, ring: int, rows: np.ndarray, aligned: Any) -> None:
    operations = pe.job["operations"]
    begins, ends = aligned(rows[:, events.BEGIN // 8]), aligned(rows[:, events.END // 8])
    for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
        what, _, _, who, address, size, word, value = row
        code = what & events.CODE_MASK
        scope = what >> events.SCOPE_SHIFT & events.SCOPE_MASK
        if code < len(operations):
            name = operations[code].removesuffix(_SUFFIXES[scope])
        elif code in (events.CALLED, events.LAUNCHED):
            name = pe.names.get(address, "?")
        else:
            name = events.NAMES.get(code, f"event {code:#x}")
        peer = who & events.NOBODY
        pe.events.append(
            Event(
                pe.pe, ring, code, name, scope,
                what >> events.COMPARISON_SHIFT & events.COMPARISON_MASK, what >> events.THREAD_SHIFT & events.THREAD_MASK,
                who >> events.BLOCK_SHIFT, size >> events.LAUNCH_SHIFT, begin, end, -1 if peer == events.NOBODY else peer,
                address, size & events.SIZE_MASK, word, value,
            )
        )  # fmt: skip


def _begin_at_zero(pes: list[TracedPE]) -> int:
    """Let times begin at the first event. Return the time of the last."""
    first = min((event.begin for pe in pes for event in pe.events), default=0)
    last = first
    for pe in pes:
        for event in pe.events:
            last = max(last, event.end)
            event.begin -= first
            event.end -= first
        pe.events.sort(key=lambda event: (event.begin, -event.end))
    return last - first
