"""The way of each post through a NIC: WQEs that a kernel wrote or requests to the proxy thread, from the call to the CQE.

Over ibgda, a post is a reservation of WQEBBs; over ibrc, a request. Its times come from different writers: the kernel (written, seen), the
proxy thread (posted, rung, done), and the software NIC (fetched, executed). What nobody has seen is None, such as what a physical NIC did.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgas.base import events
from pgas.trace.reading import Event, Trace, TracedPE


@dataclass(slots=True)
class Post:
    """A post, with the times of its stages."""

    pe: int
    queue: int  #: number of the queue pair
    end: int  #: index just past its last WQEBB; -1 if the proxy thread has not posted it
    wqebbs: int  #: 0 if unknown
    call: Event | None  #: the call that posted it
    written: int
    posted: int | None = None
    rung: int | None = None
    fetched: int | None = None
    executed: int | None = None
    seen: int | None = None

    @property
    def last(self) -> int:
        """The time of the last known stage."""
        return max(at for stage in _STAGES if (at := getattr(self, stage)) is not None)


#: Stages of a post in their order.
_STAGES = ("written", "posted", "rung", "fetched", "executed", "seen")


class _Progress:
    """Events of one kind on a queue, with the index that the queue had reached then."""

    def __init__(self, found: Iterable[Event]) -> None:
        reached = -1
        self._indices, self._times = list[int](), list[int]()
        for event in found:
            if event.value > reached:  # Several threads may have seen the same.
                reached = event.value
                self._indices.append(reached)
                self._times.append(event.begin)

    def when(self, index: int) -> int | None:
        """Return when the queue had reached an index."""
        at = bisect_left(self._indices, index)
        return self._times[at] if at < len(self._times) else None


def posts(trace: Trace) -> list[Post]:
    """Return the posts of all PEs, by time."""
    found = [post for pe in trace.pes for post in _of_pe(pe)]
    return sorted(found, key=lambda post: post.written)


def _of_pe(pe: TracedPE) -> list[Post]:
    by_code: dict[int, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
    calls: dict[tuple[int, int, int], list[Event]] = defaultdict(list)
    for event in pe.events:
        if event.in_kernel:
            calls[event.launch, event.block, event.thread].append(event)
        elif event.ring != events.HOST:
            by_code[event.code][event.word].append(event)
    begins = {thread: [call.begin for call in of_thread] for thread, of_thread in calls.items()}

    def call_of(event: Event) -> Event | None:
        thread = event.launch, event.block, event.thread
        at = bisect_left(begins.get(thread, ()), event.begin + 1) - 1
        return calls[thread][at] if at >= 0 and event.begin <= calls[thread][at].end else None

    made = []
    for queue, written in by_code[events.WRITTEN].items():
        rung, seen = _Progress(by_code[events.RUNG][queue]), _Progress(by_code[events.COMPLETED][queue])
        for event in written:
            post = Post(pe.pe, queue, event.value, event.nbytes, call_of(event), event.begin)
            post.rung, post.seen = rung.when(event.value), seen.when(event.value)
            made.append(post)
    for queue, requested in by_code[events.REQUESTED].items():
        posted = {event.value: event for event in by_code[events.POSTED][queue]}
        done = {event.value: event.begin for event in by_code[events.DONE][queue]}
        rung = _Progress(by_code[events.RUNG_BY_PROXY][queue])
        for event in requested:
            post = Post(pe.pe, queue, -1, 0, call_of(event), event.begin)
            if (at := posted.get(event.value)) is not None:
                post.posted, post.end, post.rung = at.begin, at.address, rung.when(at.address)
            post.seen = done.get(event.value)
            made.append(post)
    _add_nic(pe, made, by_code)
    for post in made:
        _in_order(post)
    return made


def _in_order(post: Post) -> None:
    """Let no stage come after the next one: a thread may be delayed between what it does and the reading of its clock."""
    following = None
    for stage in reversed(_STAGES):
        at = getattr(post, stage)
        if at is not None:
            following = at if following is None else min(at, following)
            setattr(post, stage, following)


def _add_nic(pe: TracedPE, made: Sequence[Post], by_code: dict[int, dict[int, list[Event]]]) -> None:
    """Add when the software NIC fetched the first WQE of each post and wrote the CQE of its last."""
    for queue in {post.queue for post in made}:
        of_queue = sorted((post for post in made if post.queue == queue and post.end >= 0), key=lambda post: post.end)
        fetched = sorted(by_code[events.FETCHED][queue], key=lambda event: event.value)  # Threads of a CTA write them in any order.
        indices = [event.value for event in fetched]
        executed = _Progress(by_code[events.EXECUTED][queue])
        previous = 0
        for post in of_queue:
            first = post.end - post.wqebbs if post.wqebbs else previous
            at = bisect_left(indices, first)
            if at < len(indices) and indices[at] < post.end:
                post.fetched = fetched[at].begin
            post.executed = executed.when(post.end - 1)
            previous = post.end
