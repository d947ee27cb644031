"""The timeline as JSON of Chrome's trace viewer, which Perfetto opens (ui.perfetto.dev): a process per PE, tracks, flows, and counters.

Tracks of a process: the host's threads; per block, its calls and its waits; queue pairs, the proxy thread, and the software NIC, with a
slice per post; what arrives from each other PE. Slices that overlap are on several tracks, because those of one track must not.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from pgas.base import events
from pgas.base.config import size_text
from pgas.kernels.codes import SIGNS
from pgas.trace import flows
from pgas.trace.launches import launches
from pgas.trace.reading import Event, Trace, TracedPE

#: Order of the kinds of tracks in a process.
_HOST, _BLOCK, _QUEUE, _PROXY, _NIC, _ARRIVALS = range(6)

_SCOPES = ("thread", "warp", "block")


class _Process:
    """The tracks of a PE."""

    def __init__(self, out: list[dict[str, Any]], pe: TracedPE) -> None:
        self._out, self.pid = out, pe.pe + 1
        self._tids: dict[tuple[Any, ...], int] = {}
        gpu = pe.job["gpu"] or "the simulator"
        self._tell("process_name", 0, name=f"PE {pe.pe} ({pe.job['transport']}, {gpu}, {pe.job['machine']})")
        self._tell("process_sort_index", 0, sort_index=pe.pe)

    def _tell(self, what: str, tid: int, **args: Any) -> None:
        self._out.append({"ph": "M", "name": what, "pid": self.pid, "tid": tid, "args": args})

    def track(self, kind: int, number: int, lane: int, name: str) -> int:
        """Return the number of a track."""
        key = kind, number, lane
        tid = self._tids.get(key)
        if tid is None:
            tid = self._tids[key] = len(self._tids) + 1
            self._tell("thread_name", tid, name=name if lane == 0 else f"{name} ({lane + 1})")
            self._tell("thread_sort_index", tid, sort_index=(kind << 24) + (number << 4) + min(lane, 15))
        return tid

    def slice(self, tid: int, name: str, category: str, begin: int, end: int, **args: Any) -> None:
        """Add a slice."""
        self._out.append(
            {
                "ph": "X", "name": name, "cat": category, "pid": self.pid, "tid": tid, "ts": begin / 1e3,
                "dur": max(end - begin, 1) / 1e3, "args": args,
            }
        )  # fmt: skip

    def instant(self, tid: int, name: str, category: str, at: int, **args: Any) -> None:
        """Add an event without duration."""
        self._out.append({"ph": "i", "s": "t", "name": name, "cat": category, "pid": self.pid, "tid": tid, "ts": at / 1e3, "args": args})

    def flow(self, phase: str, number: int, tid: int, name: str, at: int) -> None:
        """Add a step of a flow: s, t, or f. It belongs to the innermost slice of the track at this time."""
        step: dict[str, Any] = {"ph": phase, "id": number, "name": name, "cat": "flow", "pid": self.pid, "tid": tid, "ts": at / 1e3}
        if phase == "f":
            step["bp"] = "e"
        self._out.append(step)

    def counter(self, name: str, changes: Iterable[tuple[int, int]], unit: str) -> None:
        """Add a counter from its changes: (time, difference)."""
        value = 0
        for at, group in itertools.groupby(sorted(changes), key=lambda change: change[0]):
            value += sum(difference for _, difference in group)
            self._out.append({"ph": "C", "name": name, "pid": self.pid, "tid": 0, "ts": at / 1e3, "args": {unit: value}})


class _Lanes:
    """Distributes slices that may overlap over lanes. They must come in the order of their beginnings."""

    def __init__(self) -> None:
        self._ends: dict[Any, list[int]] = defaultdict(list)

    def lane(self, track: Any, begin: int, end: int) -> int:
        """Return the first lane of a track that is free from begin on, and take it until end."""
        ends = self._ends[track]
        for lane, until in enumerate(ends):
            if until <= begin:
                ends[lane] = end
                return lane
        ends.append(end)
        return len(ends) - 1


def _last_moment(begin: int, end: int) -> int:
    """Return the last time that is within a slice."""
    return max(begin, end - 1)


def render(trace: Trace) -> dict[str, Any]:
    """Return the timeline of a trace as Chrome's JSON object."""
    out: list[dict[str, Any]] = []
    found = flows.of(trace)
    processes = {pe.pe: _Process(out, pe) for pe in trace.pes}
    tids: dict[int, int] = {}  #: tracks of calls, by id()
    for pe in trace.pes:
        _host(processes[pe.pe], pe)
        _calls(processes[pe.pe], pe, found, tids)
    _connect(processes, found, tids, _posts(processes, trace, found))
    return {"traceEvents": out, "displayTimeUnit": "ns"}


def write(trace: Trace, file: TextIO) -> None:
    """Write the timeline of a trace."""
    json.dump(render(trace), file, separators=(",", ":"))


def _host(process: _Process, pe: TracedPE) -> None:
    for event in pe.events:
        if event.ring == events.HOST:
            tid = process.track(_HOST, event.thread, 0, f"host: {pe.threads.get(event.thread, event.thread)}")
            args = {"stream": hex(event.value)} if event.code == events.LAUNCHED and event.value else {}
            kind = "launch" if event.code == events.LAUNCHED else "host"
            process.slice(tid, event.name, kind, event.begin, event.end, **args)


def _calls(process: _Process, pe: TracedPE, found: flows.Flows, tids: dict[int, int]) -> None:
    """Add the calls of kernels, each within a slice of its kernel; waits have tracks of their own."""
    lanes, by_launch = _Lanes(), defaultdict[tuple[int, int], list[Event]](list)
    for event in pe.events:
        if event.in_kernel:
            by_launch[event.launch, event.block].append(event)
    made = launches(pe)
    for (launch, block), calls in sorted(by_launch.items(), key=lambda item: item[1][0].begin):
        begin, end = calls[0].begin, max(call.end for call in calls)
        tid = process.track(_BLOCK, 2 * block, 0, f"block {block}")
        process.slice(tid, made[launch].name if launch in made else "kernel", "kernel", begin, end, launch=launch)
    for group in _together(pe):
        calls, event = group.calls, group.calls[0]
        waits = flows.is_wait(event)
        lane = lanes.lane((event.block, waits), event.begin, group.end)
        name = f"block {event.block}" + (": waits" if waits else "")
        tid = process.track(_BLOCK, 2 * event.block + waits, lane, name)
        tids.update((id(call), tid) for call in calls)
        args = _arguments(pe, event)
        if len(calls) > 1:
            args["threads"] = len(calls)
        if posts := [post for call in calls for post in found.posts_of.get(id(call), ())]:
            args["queue pair"] = ", ".join(str(queue % pe.job["num_qps"]) for queue in sorted({post.queue for post in posts}))
        if (write := next((found.ended_by[id(call)] for call in calls if id(call) in found.ended_by), None)) is not None:
            args["ended by"] = f"{write.full_name} of PE {write.pe}, block {write.block}"
        title = _title(event) + (f" by {len(calls)} threads" if len(calls) > 1 else "")
        process.slice(tid, title, "wait" if waits else "call", event.begin, group.end, **args)


@dataclass
class _Group:
    """Calls that are shown as one."""

    calls: list[Event] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    end: int = 0  #: when the last one ends

    def joins(self, event: Event) -> bool:
        """Whether another call of another thread begins before the group ends."""
        return event.begin < self.end and event.thread not in self.threads

    def add(self, event: Event) -> None:
        self.calls.append(event)
        self.threads.add(event.thread)
        self.end = max(self.end, event.end)


def _together(pe: TracedPE) -> list[_Group]:
    """Return the calls of kernels in the order of their beginnings. Concurrent calls of several threads that move no data are one.

    These are calls such as fence(), and waits for the same word, which would take a track for each thread of a block.
    """
    found: list[_Group] = []
    latest: dict[tuple[int, ...], _Group] = {}
    for event in pe.events:
        if not event.in_kernel:
            continue
        key = event.launch, event.block, event.code, event.comparison, event.peer, event.address, event.word, event.value
        moves_none = event.scope == 0 and (flows.is_wait(event) or (event.peer < 0 and event.name not in pe.collectives))
        group = latest.get(key) if moves_none else None
        if group is None or not group.joins(event):
            group = _Group()
            found.append(group)
            if moves_none:
                latest[key] = group
        group.add(event)
    return found


def _title(event: Event) -> str:
    """Return a short description of a call."""
    if event.peer < 0:
        return event.full_name
    of_data = event.name in flows.PUTS | flows.GETS and event.name != "signal_op"
    size = f" {size_text(event.nbytes)}" if of_data else ""
    return f"{event.full_name}{size} {'from' if event.name in flows.GETS else 'to' if event.name in flows.PUTS else 'on'} PE {event.peer}"


def _arguments(pe: TracedPE, event: Event) -> dict[str, Any]:
    """Return the details of a call."""
    args: dict[str, Any] = {"scope": _SCOPES[event.scope], "thread": event.thread}
    if event.peer >= 0:
        args |= {"peer": event.peer, "bytes": event.nbytes}
    elif event.name in pe.collectives:
        args |= {"team": event.word, "channel": event.value, "bytes": event.nbytes}
    if event.address:
        args["offset in heap"] = pe.heap_offset(event.address)
    if flows.is_wait(event) and event.name != "set_lock":
        args["waits for"] = f"{SIGNS[event.comparison]} {event.value}"
    elif event.name.startswith(("put_signal", "signal_op")):
        args |= {"signal": event.value, "signal at": pe.heap_offset(event.word or event.address)}
    return args


def _posts(processes: dict[int, _Process], trace: Trace, found: flows.Flows) -> dict[int, list[tuple[_Process, int, int]]]:
    """Add the tracks of queue pairs, the proxy thread, and the software NIC.

    Return by id() of a post its slices, in the order in which it passed through them: process, track, and a time within.
    """
    lanes, passed = _Lanes(), defaultdict[int, list[tuple[_Process, int, int]]](list)
    changes = defaultdict[int, list[tuple[int, int]]](list)
    qps = {pe.pe: pe.job["num_qps"] for pe in trace.pes}
    for post in found.posts:
        process, peer = processes[post.pe], post.queue // qps[post.pe]
        name = f"queue pair {post.queue % qps[post.pe]} to PE {peer}"
        what = post.call.full_name if post.call is not None else "WQE"
        lane = lanes.lane((post.pe, post.queue), post.written, post.last + 1)
        tid = process.track(_QUEUE, post.queue, lane, name)
        stages = {"doorbell": post.rung, "fetched": post.fetched, "CQE written": post.executed, "CQE seen": post.seen}
        took = {stage: f"{(at - post.written) / 1e3:.3f} us after it was written" for stage, at in stages.items() if at is not None}
        process.slice(tid, what, "queue", post.written, post.last + 1, index=post.end, WQEBBs=post.wqebbs, **took)
        for stage, at in stages.items():
            if at is not None:
                process.instant(tid, stage, "queue", at)
        passed[id(post)].append((process, tid, post.written))
        if post.posted is not None:
            lane = lanes.lane((post.pe, "proxy"), post.posted, (post.seen or post.posted) + 1)
            tid = process.track(_PROXY, 0, lane, "proxy thread")
            process.slice(tid, what, "proxy", post.posted, (post.seen or post.posted) + 1, **{"queue pair": name})
            passed[id(post)].append((process, tid, post.posted))
        if post.fetched is not None and post.executed is not None:
            lane = lanes.lane((post.pe, "nic"), post.fetched, post.executed + 1)
            tid = process.track(_NIC, 0, lane, "software NIC")
            process.slice(tid, what, "nic", post.fetched, post.executed + 1, **{"queue pair": name})
            passed[id(post)].append((process, tid, post.fetched))
        if post.seen is not None:
            changes[post.pe] += [(post.written, 1), (post.seen, -1)]
    for number, of_pe in changes.items():
        processes[number].counter("outstanding posts", of_pe, "posts")
    return passed


def _connect(
    processes: dict[int, _Process], found: flows.Flows, tids: dict[int, int], passed: dict[int, list[tuple[_Process, int, int]]]
) -> None:
    """Add arrivals, the flows from puts through the NIC to arrivals to the waits that they ended, and those from the last of a collective.

    tids: tracks of calls by id(). passed: the result of _posts().
    """
    lanes, numbers, in_flight = _Lanes(), itertools.count(1), defaultdict[int, list[tuple[int, int]]](list)
    for arrival in found.arrivals:
        write = arrival.write
        in_flight[write.pe] += [(write.begin, write.nbytes), (arrival.at, -write.nbytes)]
        target = processes.get(write.peer)
        if target is None:  # Its file is missing.
            continue
        number, name = next(numbers), f"{write.name} to PE {write.peer}"
        processes[write.pe].flow("s", number, tids[id(write)], name, write.begin)
        for post in found.posts_of.get(id(write), ())[-1:]:
            for process, tid, at in passed[id(post)]:
                process.flow("t", number, tid, name, at)
        lane = lanes.lane((write.peer, write.pe), write.begin, arrival.at)
        tid = target.track(_ARRIVALS, write.pe, lane, f"from PE {write.pe}")
        target.slice(tid, f"{write.name} {size_text(write.nbytes)}", "arrival", write.begin, arrival.at, bytes=write.nbytes)
        target.flow("f" if arrival.wait is None else "t", number, tid, name, _last_moment(write.begin, arrival.at))
        if (wait := arrival.wait) is not None:
            processes[wait.pe].flow("f", number, tids[id(wait)], name, _last_moment(wait.begin, wait.end))
    for pe, changes in in_flight.items():
        processes[pe].counter("bytes in flight", changes, "bytes")
    for meeting in found.meetings:
        last = meeting.last
        for call in meeting.calls:
            if call is not last:
                number, name = next(numbers), f"last to come to {last.full_name}"
                processes[last.pe].flow("s", number, tids[id(last)], name, last.begin)
                processes[call.pe].flow("f", number, tids[id(call)], name, _last_moment(call.begin, call.end))
