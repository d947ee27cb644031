"""Who waited for whom, and why: the longest waits of a job, where their time went, and the critical path of a launch.

A wait is divided at the times of what ended it: when the sender's kernel was launched, what the sender did before its call, the stages of
the call's post in the NIC, and the arrival. In a collective, a member waits for the last one to come. Parts are limited to the wait.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgas.base import events
from pgas.base.config import size_text
from pgas.base.errors import PgasError
from pgas.trace import flows
from pgas.trace.launches import launches
from pgas.trace.reading import Event, Trace

#: Causes, in the order in which they occur, and what each means.
SKEW, COMPUTE, CALLS, WAITS = "launch skew", "sender's compute", "sender's other calls", "sender's waits"
RESERVE, PROXY, POST, BELL, EXECUTE = "reservation", "request to proxy", "post to doorbell", "doorbell to fetch", "fetch to CQE"
WIRE, POLL, COLLECTIVE, UNKNOWN = "wire", "polling", "collective", "unknown"
CAUSES = {
    SKEW: "the sender's kernel had not been launched",
    COMPUTE: "the sender's block was in its own code",
    CALLS: "the sender's block was in other calls of pgas",
    WAITS: "the sender's block waited itself",
    RESERVE: "from the call to the written WQE or request",
    PROXY: "until the proxy thread posted the request",
    POST: "until the doorbell was rung",
    BELL: "until the NIC fetched the WQE",
    EXECUTE: "until the NIC wrote the CQE",
    WIRE: "from the call to the arrival, without a NIC",
    POLL: "from the arrival to the end of the wait",
    COLLECTIVE: "after the last member had come",
    UNKNOWN: "what ended the wait is not in the trace",
}


#: What a block does between calls, on the critical path.
OWN = "own code"


@dataclass(frozen=True)
class ExplainedWait:
    """A wait and where its time went."""

    wait: Event
    ended_by: Event | None
    parts: tuple[tuple[str, int], ...]  #: causes with ns

    @property
    def duration(self) -> int:
        return self.wait.end - self.wait.begin


class Why:
    """The causes of a trace's waits."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.found = trace, flows.of(trace)
        self._calls: dict[tuple[int, int], list[Event]] = defaultdict(list)  #: by PE and block
        self._launched: dict[int, dict[int, int]] = {}  #: by PE and launch, when it began
        self.kernels = {pe.pe: launches(pe) for pe in trace.pes}
        for pe in trace.pes:
            for event in pe.events:
                if event.in_kernel:
                    self._calls[pe.pe, event.block].append(event)
            self._launched[pe.pe] = {number: made.begin for number, made in self.kernels[pe.pe].items()}
        self._meeting = {id(call): meeting.last for meeting in self.found.meetings for call in meeting.calls if call is not meeting.last}

    def ender(self, event: Event) -> Event | None:
        """Return what ended a wait: a write, or the call of the last member of a collective; None if it is unknown or no wait."""
        return self.found.ended_by.get(id(event)) or self._meeting.get(id(event))

    def waits(self) -> list[ExplainedWait]:
        """Return all waits for other PEs, the longest first."""
        found = [self.explain(e) for e in self.trace.events() if flows.is_wait(e) or id(e) in self._meeting]
        return sorted(found, key=lambda explained: -explained.duration)

    def explain(self, wait: Event) -> ExplainedWait:
        """Return where the time of a wait went."""
        by = self.ender(wait)
        if by is None:
            return ExplainedWait(wait, None, ((UNKNOWN, wait.end - wait.begin),))
        marks = list(self._before(by, wait.begin))
        marks += [(COLLECTIVE, wait.end)] if id(wait) in self._meeting else list(self._transfer(by, wait))
        parts, at = Counter[str](), wait.begin
        for cause, until in marks:
            until = min(max(until, at), wait.end)
            parts[cause] += until - at
            at = until
        parts[POLL] += wait.end - at
        return ExplainedWait(wait, by, tuple((cause, ns) for cause, ns in parts.items() if ns))

    def _before(self, by: Event, begin: int) -> Iterator[tuple[str, int]]:
        """Yield what the sender did from a time until its call: causes, each with the time at which it ends."""
        launched = self._launched[by.pe].get(by.launch)
        if launched is not None:
            yield SKEW, min(launched, by.begin)
        for call in self._calls[by.pe, by.block]:
            if call.begin >= by.begin:
                break
            if call.end > begin and call.launch == by.launch and call is not by:
                yield COMPUTE, call.begin
                yield (WAITS if self.ender(call) is not None else CALLS), min(call.end, by.begin)
        yield COMPUTE, by.begin

    def _transfer(self, by: Event, wait: Event) -> Iterator[tuple[str, int]]:
        """Yield the stages of a call until its data had arrived."""
        posts = self.found.posts_of.get(id(by))
        if not posts:
            yield WIRE, min(by.end, wait.end)
            return
        post = posts[-1]
        stages = ((RESERVE, post.written), (PROXY, post.posted), (POST, post.rung), (BELL, post.fetched), (EXECUTE, post.executed))
        yield from ((cause, at) for cause, at in stages if at is not None)

    # The critical path ------------------------------------------------------------------------------------------------------------

    def critical_path(self, launch: int) -> list[tuple[int, int, int, str]]:
        """Return the chain of causes of the end of a launch, given by its number on the first PE: PE, begin, end, and what it was.

        From the call that ended last, go back: from a wait to what ended it, if that began later, otherwise to what the block did before.
        The simulator knows when a kernel has ended, which may be after its last call.
        """
        numbers = self._same_launch(launch)
        calls = {key: [e for e in of if e.launch == numbers.get(key[0])] for key, of in self._calls.items()}
        made = {pe: self.kernels[pe][number] for pe, number in numbers.items()}
        ends = {pe.pe: made[pe.pe].end for pe in self.trace.pes if pe.pe in made and not pe.job["gpu"]}
        last = max((e for of in calls.values() for e in of), key=lambda e: (ends.get(e.pe, e.end), e.end), default=None)
        if last is None:
            return []
        path: list[tuple[int, int, int, str]] = []
        event, until = last, last.end
        if last.pe in ends:
            path.append((last.pe, until, ends[last.pe], OWN))
        while True:
            by = self.ender(event)
            if by is not None and by.begin > event.begin and by.launch == numbers.get(by.pe) and by.begin < until:
                path.append((by.pe, by.begin, until, f"{_called(by)}, for {_called(event)} of PE {event.pe}"))
                event, until = by, by.begin
            else:
                if event.begin < until:
                    path.append((event.pe, event.begin, min(until, event.end), _called(event)))
                until = min(until, event.begin)
            before = self._previous(calls[event.pe, event.block], until)
            began = made[event.pe].begin if before is None else before.end
            if began < until:
                path.append((event.pe, began, until, OWN))
            if before is None:
                return path[::-1]
            event, until = before, min(before.end, until)

    def _same_launch(self, launch: int) -> dict[int, int]:
        """Return the number of the corresponding launch on each PE: PEs launch the same kernels in the same order."""
        first = sorted(self.kernels[self.trace.pes[0].pe])
        at = first.index(launch) - len(first)
        return {pe: sorted(of)[at] for pe, of in self.kernels.items() if len(of) >= -at}

    @staticmethod
    def _previous(calls: list[Event], until: int) -> Event | None:
        """Return the call that a block began last before a time."""
        at = bisect_right(calls, until - 1, key=lambda call: call.begin) - 1
        return calls[at] if at >= 0 else None


def _called(event: Event) -> str:
    """Return a short description of a call."""
    size = f" {size_text(event.nbytes)}" if event.name in flows.PUTS | flows.GETS else ""
    return f"{event.full_name}{size}" + (f" to PE {event.peer}" if flows.is_write(event) else "")


def _time(ns: int) -> str:
    return f"{ns / 1e6:.3f} ms" if ns >= 1_000_000 else f"{ns / 1e3:.1f} us"


def report(trace: Trace, kernel: str = "", most: int = 10) -> Iterable[str]:
    """Yield the lines of the report. kernel: only kernels of this name; most: number of waits to show.

    Raises:
        PgasError: if there is no such kernel.
    """
    why = Why(trace)
    shown = {(pe, number) for pe, of_pe in why.kernels.items() for number, made in of_pe.items() if _is(made, kernel)}
    if kernel and not shown:
        names = sorted({_name(made) for of_pe in why.kernels.values() for made in of_pe.values()})
        raise PgasError(f"--kernel: there is no kernel {kernel} in the trace; its kernels are {', '.join(names) or 'none'}")
    waits = [found for found in why.waits() if not kernel or (found.wait.pe, found.wait.launch) in shown]
    if not waits:
        yield "no call waited for another PE"
        return
    total, of_all = Counter[str](), sum(explained.duration for explained in waits)
    for explained in waits:
        total.update(dict(explained.parts))
    yield f"{len(waits)} waits took {_time(of_all)} together, summed over blocks and PEs:"
    for cause, ns in total.most_common():
        yield f"  {100 * ns / max(of_all, 1):5.1f} %  {_time(ns):>12}  {cause}: {CAUSES[cause]}"
    yield f"the longest {min(most, len(waits))}:"
    for explained in waits[:most]:
        wait, by = explained.wait, explained.ended_by
        made = why.kernels[wait.pe].get(wait.launch)
        who = f"PE {wait.pe}, block {wait.block}" + (f", {made.name}" if made is not None else "")
        yield f"  {_time(explained.duration):>12}  {who}: {wait.full_name}" + (
            "" if by is None else f", ended by {_called(by)} of PE {by.pe}, block {by.block}"
        )
        yield "                " + ", ".join(f"{cause} {_time(ns)}" for cause, ns in sorted(explained.parts, key=lambda part: -part[1])[:4])
    of_first = why.kernels[trace.pes[0].pe]
    numbers = [number for number, made in of_first.items() if _is(made, kernel)]
    own = [number for number in numbers if not _name(of_first[number]).endswith(events.OF_HOST_CALLS)]
    if numbers := own or numbers:
        yield from _path(why, max(numbers), of_first[max(numbers)])


def _is(made: Event, kernel: str) -> bool:
    """Whether a launch is of a kernel of this name, or there is no name."""
    return not kernel or _name(made) == kernel


def _name(made: Event) -> str:
    """Return the name of a launch's kernel."""
    return made.name.partition("[")[0]


def _path(why: Why, launch: int, made: Event) -> Iterator[str]:
    """Yield the lines of the critical path of a launch."""
    path = why.critical_path(launch)
    if not path:
        return
    yield f"critical path of the last launch, {made.name}: {_time(path[-1][2] - path[0][1])}"
    shown = path if len(path) <= _MOST_STEPS else [*path[: _MOST_STEPS // 2], None, *path[-_MOST_STEPS // 2 :]]
    for step in shown:
        if step is None:
            yield f"  ... {len(path) - _MOST_STEPS} more steps"
        else:
            pe, begin, end, what = step
            yield f"  {_time(begin - path[0][1]):>12}  PE {pe}  {_time(end - begin):>10}  {what}"
    shares = Counter[str]()
    for pe, begin, end, what in path:
        shares[f"PE {pe}: {what if what == OWN else what.partition(' ')[0]}"] += end - begin
    yield "  most of it: " + ", ".join(f"{what} {_time(ns)}" for what, ns in shares.most_common(3))


#: Maximum number of steps of the critical path that are shown.
_MOST_STEPS = 24
