"""What follows from what: the write that ended each wait, the arrival of data, and the last member to come to each collective.

A wait names a word, a comparison, and a value; operations on other PEs name the word that they write and the value. Of the writes that
satisfy a wait and began before its end, the wait was ended by the earliest one that has not ended an earlier wait of the same thread for
this word, because programs use values in order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne

from pgas.base import events
from pgas.kernels.codes import Comparison, SignalOp
from pgas.trace.posts import Post, posts
from pgas.trace.reading import Event, Trace, TracedPE

#: Operations that send data to a PE, and operations that read from one.
PUTS = {"put", "put_nbi", "iput", "p", "put_signal", "put_signal_nbi", "signal_op"}
GETS = {"get", "get_nbi", "iget", "g"}

#: Comparisons on the host; kernels have ops/sync.holds.
_HOLDS: dict[int, Callable[[int, int], bool]] = {
    Comparison.EQ: eq, Comparison.NE: ne, Comparison.GT: gt, Comparison.LE: le, Comparison.LT: lt, Comparison.GE: ge,
}  # fmt: skip

_MEETING = ("barrier_all", "sync_all")


def is_atomic(event: Event) -> bool:
    """Whether an event is an atomic operation in a kernel."""
    return event.in_kernel and event.name.startswith("atomic_")


def is_write(event: Event) -> bool:
    """Whether an event is an operation that changes memory of its peer."""
    return event.in_kernel and event.peer >= 0 and (event.name in PUTS or (is_atomic(event) and event.name != "atomic_fetch"))


def is_wait(event: Event) -> bool:
    """Whether an event is a wait for words that other PEs write."""
    return event.in_kernel and (event.name.startswith("wait_until") or event.name in ("signal_wait_until", "set_lock"))


@dataclass(frozen=True, slots=True)
class Arrival:
    """Data that a PE has sent to another one."""

    write: Event
    at: int  #: time at which it has arrived at the latest
    wait: Event | None  #: the wait that it ended


@dataclass(frozen=True, slots=True)
class Meeting:
    """A call of a collective by all its members, and the member that came last."""

    calls: tuple[Event, ...]
    last: Event


@dataclass(frozen=True)
class Flows:
    """All that is known of a trace's causes."""

    arrivals: list[Arrival]
    meetings: list[Meeting]
    ended_by: dict[int, Event]  #: by id() of a wait, the write that ended it
    posts: list[Post]
    posts_of: dict[int, list[Post]]  #: by id() of a call, its posts


def of(trace: Trace) -> Flows:
    """Return the flows of a trace."""
    posted, posts_of = posts(trace), defaultdict[int, list[Post]](list)
    for post in posted:
        if post.call is not None:
            posts_of[id(post.call)].append(post)
    writes = sorted((e for e in trace.events() if is_write(e)), key=lambda e: e.begin)
    ended_by = _ended_by(trace, writes)
    waits = {id(ended_by[id(wait)]): wait for wait in trace.events() if id(wait) in ended_by}
    arrivals = [
        Arrival(write, _arrived(write, waits.get(id(write)), posts_of.get(id(write), ())), waits.get(id(write))) for write in writes
    ]
    return Flows(arrivals, _meetings(trace), ended_by, posted, posts_of)


def _arrived(write: Event, wait: Event | None, posts: Sequence[Post]) -> int:
    """Return when a write had arrived at the latest.

    Through a NIC, when its CQE was written or seen; otherwise at its end. If a wait for it ended earlier, then that is the time.
    """
    at = max([write.end if post.executed is post.seen is None else post.executed or post.seen or 0 for post in posts], default=write.end)
    return at if wait is None else max(write.begin, min(at, wait.end))


def _ended_by(trace: Trace, writes: Iterable[Event]) -> dict[int, Event]:
    by_word: dict[tuple[int, int], list[Event]] = defaultdict(list)
    slots = {pe.pe: pe for pe in trace.pes}
    for write in writes:
        address = write.word or write.address
        by_word[write.peer, slots[write.pe].slot_of(address)[1]].append(write)
    found: dict[int, Event] = {}
    used: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for pe in trace.pes:
        for wait in sorted(filter(is_wait, pe.events), key=lambda e: e.end):
            owner, offset = pe.slot_of(wait.address)
            taken = used[pe.pe, wait.block, wait.thread, wait.address]
            chosen = _chosen(wait, by_word.get((owner, offset), ()), taken, trace.alignment.error(trace.pes.index(pe)))
            if chosen is not None:
                taken.add(id(chosen))
                found[id(wait)] = chosen
    return found


def _chosen(wait: Event, writes: Iterable[Event], taken: set[int], error: float) -> Event | None:
    """Return the write that ended a wait. error: ns by which the clocks may differ."""
    before = [write for write in writes if write.begin <= wait.end + error]
    if not before:
        return None
    adds = [write for write in before if _adds(write)]
    if adds:
        return before[-1]  # Sums are not followed: the last one before the end of the wait completed the sum.
    fitting = [write for write in before if wait.name == "set_lock" or _HOLDS[wait.comparison](write.value, wait.value)]
    return next((write for write in fitting if id(write) not in taken), fitting[-1] if fitting else before[-1])


def _adds(write: Event) -> bool:
    if write.name.startswith(("put_signal", "signal_op")):
        return write.comparison == SignalOp.ADD
    return is_atomic(write) and write.name not in ("atomic_set", "atomic_swap")


def _meetings(trace: Trace) -> list[Meeting]:
    """Match the calls of collectives: the nth call of each member on a team's channel; from the end, if events were overwritten."""
    calls: dict[tuple[object, ...], dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    lost = any(ring >= events.BLOCKS for pe in trace.pes for ring in pe.lost)
    for pe in trace.pes:
        for event in pe.events:
            if (key := _group(pe, event)) is not None:
                calls[key][pe.pe].append(event)
    found = []
    for of_pes in calls.values():
        if len(of_pes) < 2:
            continue
        rows = zip(*(reversed(of_pe) if lost else of_pe for of_pe in of_pes.values()), strict=False)
        found += [Meeting(tuple(row), max(row, key=lambda e: e.begin)) for row in rows]
    return sorted(found, key=lambda meeting: meeting.last.begin)


def _group(pe: TracedPE, event: Event) -> tuple[object, ...] | None:
    """Return what calls have in common that may be one collective; None for other events."""
    if not event.in_kernel:
        return None
    if event.name in _MEETING:
        return (event.name,)
    members = pe.teams.get(event.word) if event.name in pe.collectives else None
    return None if members is None else (members, event.value)
