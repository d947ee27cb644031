"""Rules for which programs are defined: two accesses to a byte, one of them a write, must be ordered (OpenSHMEM 1.5, "Memory Model").

An operation makes accesses. Each access has three sets of threads, which may be of any PE:

* ``before``: the access happens before their next operation; their fence and quiet cover it;
* ``fenced``: they have called fence or quiet since; their later signals arrive after it;
* ``complete``: for them, the access is complete everywhere.

A later access is allowed if the earlier one is complete for one of its threads, or if both write to the same PE and their thread called
fence in between. Atomics on one word need not be ordered. This is the contract; implementations may order more.

A collective makes accesses on every member, and only its own accesses are complete for each member. Any member may write into the dest of
any other as soon as it has called, so earlier accesses must be complete for all members, except for small messages
(pgas/api/collective.py).

Programs are drawn by these rules. The search for races (``races()``) goes by docs/memory-model.md, which orders more: a fence and what the
threads of a warp or block meet for also order what other threads do later, a load is complete when its thread goes on, collectives on one
channel follow each other, and a broadcast writes only after its root has called.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pgas.kernels.collectives import near
from pgas.kernels.scope import BLOCK, THREAD
from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.operation import Kind, Operation, Shape

#: Modes of access; WORD: atomic with accesses of the same class to that word.
READ, WRITE, WORD = range(3)

#: Completion: on return; at quiet; at flush or quiet; at quiet, and fence orders it before later writes to that PE.
DONE, PENDING, SOURCE, SENT = range(4)


#: Number of bytes from one member to another that go through team memory, whatever PGAS_LL_BYTES is.
SMALL = 64


class _Touch(NamedTuple):
    """One access of an operation: bytes [lo, hi) of a PE's region."""

    pe: int
    lo: int
    hi: int
    mode: int
    when: int
    class_: object = None  # for WORD: concurrent accesses of one class are allowed
    by: tuple[int, ...] = ()  # for a collective: the PEs that may perform it
    channel: int = -1  # for the dest of a collective: calls on one channel write in turn


class Race(NamedTuple):
    """Two operations whose accesses are not ordered. channel: whether both use one channel of a team."""

    first: int
    second: int
    channel: bool


class _Access:
    """An access, and the threads with which it is ordered."""

    __slots__ = ("before", "by", "complete", "fenced", "number", "touch", "via")

    def __init__(self, touch: _Touch, number: int, via: int, by: int, before: int) -> None:
        """via: the other PE of the operation. by: the threads that performed it. The module's docstring describes before."""
        self.touch, self.number, self.via, self.by, self.before, self.fenced = touch, number, via, by, before, 0
        self.complete = before if touch.when == DONE else 0


class Rules:
    """The accesses of a phase. ``admit`` takes operations in order and rejects those that make the outcome undefined."""

    def __init__(self, shape: Shape, values: dict[tuple[int, int], list[int]], *, races: list[Race] | None = None) -> None:
        """Begin a phase.

        Args:
            values: values of signal words, by PE and location, unless they are SIGNAL_BEGIN; updated by admit().
            races: receives accesses that are not ordered, which then are no reason to reject an operation. Answers of waits and tests may
                be undefined, because they do not race with signals.
        """
        self._shape, self._races = shape, races
        self._accesses: list[_Access] = []
        self._carried: dict[tuple[int, int], list[_Access]] = {}  # by signal word: accesses visible to a thread that observes its value
        self._values = {word: values[word][-1:] for word in values}
        self._all_values = values
        self._number = 0
        #: The earlier atomics or signals on the same word that are ordered before one, by its number of admission.
        self.predecessors: dict[int, set[int]] = {}

    def admit(self, o: Operation) -> bool:
        """Add an operation if the outcome stays defined; return whether it does."""
        actors, size = self._actors(o), self._shape.dtype.itemsize
        seen: list[_Access] = []
        if o.kind in ops.WAITS or o.kind in ops.WAITS_FOR_SEVERAL:
            words = [(o.word, o.value)] if o.kind in ops.WAITS else [(word, value) for _, word, value in ops.wait_set(o)]
            answered = self._answered(o, words)
            if answered is None and self._races is None:
                return False
            seen = [access for word in answered or () for access in self._carried.get((o.pe, word), [])]
        touches = list(_touches(o, size) if o.team < 0 else _of_members(o, size, self._shape, SMALL))
        if self._races is not None:
            if o.scope != ops.THREAD:  # Its threads meet at the beginning.
                for pe in ops.callers(self._shape, o):
                    self._meet(self._actors(o, pe))
            touches = [] if o.kind in _LOOKS else [_as_word(o, touch) for touch in self._by_law(o) if touch.lo < touch.hi]
        if any(_overlap(a, b) and (a.mode, b.mode) != (READ, READ) for i, a in enumerate(touches) for b in touches[:i]):
            return False
        earlier = set()
        for touch in touches:
            for access in self._accesses:
                if _overlap(touch, access.touch) and (touch.mode, access.touch.mode) != (READ, READ):
                    ordered = access in seen or all(
                        self._ordered(access, touch, self._actors(o, pe), o) for pe in touch.by or ops.callers(self._shape, o)
                    )
                    if ordered:
                        earlier.add(access.number)
                    elif o.kind in ops.WAITS_FOR_SEVERAL:  # The answer does not depend on this word.
                        continue
                    elif touch.mode != WORD or access.touch.mode != WORD or touch.class_ != access.touch.class_:
                        if self._races is None:
                            return False
                        self._races.append(Race(access.number, self._number, touch.lo < 0))
        for access in seen:
            access.complete |= actors
        if self._races is not None:  # The sources of data that has arrived have been read.
            arrived = {access.number for access in seen}
            for access in self._accesses:
                if access.number in arrived and access.touch.when == SOURCE:
                    access.complete |= actors
        self._perform(o, actors, touches, earlier)
        self._number += 1
        return True

    def _by_law(self, o: Operation) -> Iterator[_Touch]:
        """Yield the accesses of an operation as docs/memory-model.md describes them."""
        size = self._shape.dtype.itemsize
        if o.team < 0:
            yield from _touches(o, size)
            return
        together = o.scope != ops.THREAD or o.kind == Kind.BROADCAST or o.phase == self._shape.on_host
        root = self._shape.teams[o.team][o.target]
        for touch in _of_members(o, size, self._shape, near.staged(BLOCK if together else THREAD)):
            if len(touch.by) > 1 and o.kind == Kind.BROADCAST:
                yield touch._replace(by=(root,))
            elif len(touch.by) > 1 and o.dest == o.source:  # What is there is needed first, so that the member has called.
                yield touch._replace(by=(touch.pe,))
            else:
                yield touch

    def _meet(self, actors: int) -> None:
        """Let threads know of what the others have done before, and of their fences."""
        for access in self._accesses:
            _order(access, _MEETING, actors)
            if access.fenced & actors:
                access.fenced |= actors

    def _actors(self, o: Operation, *pes: int) -> int:
        """Return the threads that perform an operation, of these PEs or of all."""
        threads = self._shape.threads
        count = (1, ops.LANES, threads)[o.scope]
        one = ((1 << count) - 1) << (0 if o.scope == ops.BLOCK else o.who)
        return sum(one << pe * threads for pe in pes or ops.callers(self._shape, o))

    def values(self, pe: int, word: int) -> list[int]:
        """Return the values of a signal word in this phase, in the order of the operations."""
        return self._values.get((pe, word), [ops.SIGNAL_BEGIN])

    def awaits(self, pe: int, word: int, condition: int, value: int) -> bool | None:
        """Whether the last value of a word ends a wait, and no earlier one; None if uncertain."""
        *others, last = self.values(pe, word)
        if holds(last, condition, value):
            return None if any(holds(v, condition, value) for v in others) else True
        # Additions in another order give sums that are not among the values.
        return None if len(others) > 1 or any(holds(v, condition, value) for v in others) else False

    def _answered(self, o: Operation, words: Sequence[tuple[int, int]]) -> list[int] | None:
        """Return the words whose last value has arrived when the wait ends; None if it may end earlier, or never."""
        ends = [self.awaits(o.pe, word, o.condition, value) for word, value in words]
        if None in ends or (words and not any(ends)):
            return None
        if o.kind in ops.WAITS or o.kind in ops.ALL:
            return [word for word, _ in words] if all(ends) else None
        satisfied = [word for (word, _), end in zip(words, ends, strict=True) if end]
        return satisfied if len(satisfied) == 1 else []  # Any of them may have ended it.

    def _ordered(self, access: _Access, touch: _Touch, actors: int, o: Operation) -> bool:
        if access.complete & actors:
            return True
        if self._races is not None and touch.channel >= 0 and touch.channel == access.touch.channel:
            return True
        fenced = (o.scope == ops.THREAD or self._races is not None) and access.fenced & access.before & actors
        return bool(fenced) and access.touch.when == SENT and (touch.when == SENT or touch.mode == WORD)

    def _perform(self, o: Operation, actors: int, touches: list[_Touch], earlier: set[int]) -> None:
        if o.kind in (Kind.FENCE, Kind.QUIET, Kind.QUIET_PE, Kind.FLUSH, Kind.SYNCTHREADS, *ops.MEETINGS):
            for access in self._accesses:
                _order(access, o, actors)
        # After a non-blocking call, threads of a warp or block are not ordered after each other's parts.
        together = actors & (actors - 1) == 0 or o.kind not in _NON_BLOCKING
        added = []
        for t in touches:
            own = self._actors(o, t.pe) if o.team >= 0 else actors
            own = own & -own if t.lo < 0 else own  # The first thread leaves a channel last.
            added.append(_Access(t, self._number, o.target, own, own if together else 0))
        self._accesses += added
        if o.kind in ops.FLAGS:
            self._tell(o, actors, [a for a in added if a.touch.pe == o.target])
        if any(t.mode == WORD for t in touches):
            self.predecessors[self._number] = earlier

    def _read(self, access: _Access) -> int:
        """Return the threads for which an access needs no fence, because it has read when the call returns."""
        return 0 if self._races is None or access.touch.mode != READ or access.touch.when != DONE else access.before

    def _tell(self, o: Operation, actors: int, data: list[_Access]) -> None:
        """Record what a flag makes visible: fenced accesses that are complete or to the same PE, and the signal's own data."""
        seen = [
            a
            for a in self._accesses
            if (a.fenced | self._read(a)) & actors
            and (a.complete & actors or (o.scope == ops.THREAD and a.touch.pe == o.target and a.touch.when == SENT))
        ]
        word, values = (o.target, o.word), self.values(o.target, o.word)
        before = self._carried.get(word, []) if ops.is_added(o) else []  # The sum makes visible what each addition does.
        self._carried[word] = [*before, *seen, *data]
        self._values[word] = [*values, values[-1] + o.value if ops.is_added(o) else o.value]
        self._all_values[word] = self._values[word]


_SCANS = (Kind.INSCAN, Kind.EXSCAN)
_MEETING = Operation(Kind.SYNCTHREADS, 0, 0, 0)
_LOOKS = (*ops.WAITS, *ops.SEVERAL, Kind.TEST, Kind.SIGNAL_FETCH)
_NON_BLOCKING = (Kind.PUT_NBI, Kind.GET_NBI, Kind.PUT_SIGNAL_NBI)


def _order(access: _Access, o: Operation, actors: int) -> None:
    """Apply a fence, quiet, flush, or barrier to an access."""
    covered = access.before & actors
    if o.kind == Kind.SYNCTHREADS:
        if access.by & actors:
            access.before |= actors
        if access.complete & actors:
            access.complete |= actors
    elif o.kind == Kind.FLUSH:
        if covered and access.touch.when == SOURCE:
            access.complete |= actors
    elif o.kind == Kind.TEAM_SYNC:
        if access.complete & actors and (access.fenced & actors or access.touch.mode == READ or access.touch.by):
            access.complete |= actors
    elif o.kind == Kind.QUIET_PE:
        if covered and access.via == o.target and access.touch.when != DONE:
            access.complete |= actors
            access.fenced |= actors
    elif covered or access.complete & actors:
        access.fenced |= actors
        if o.kind == Kind.BARRIER or (o.kind == Kind.QUIET and covered):
            access.complete |= actors


def defined(shape: Shape, operations: tuple[Operation, ...]) -> bool:
    """Whether a list of operations is defined."""
    values: dict[tuple[int, int], list[int]] = {}
    phase, rules = -1, Rules(shape, values)
    for o in operations:
        if o.phase != phase:
            phase, rules = o.phase, Rules(shape, values)
        if not rules.admit(o):
            return False
    return True


def races(shape: Shape, operations: tuple[Operation, ...]) -> list[Race]:
    """Return the accesses that are not ordered; numbers of operations are positions in the list."""
    values: dict[tuple[int, int], list[int]] = {}
    found: list[Race] = []
    for phase in range(len(shape.ends)):
        of_phase: list[Race] = []
        rules, numbers = Rules(shape, values, races=of_phase), []
        for number, o in enumerate(operations):
            if o.phase == phase and rules.admit(o):
                numbers.append(number)
        found += [race._replace(first=numbers[race.first], second=numbers[race.second]) for race in of_phase]
    return found


def holds(found: int, comparison: int, value: int) -> bool:
    """Whether ``found <comparison> value``; comparison: a constant such as pgas.EQ."""
    return (found == value, found != value, found > value, found <= value, found < value, found >= value)[comparison]


def _overlap(a: _Touch, b: _Touch) -> bool:
    return a.pe == b.pe and a.lo < b.hi and b.lo < a.hi


def _of_members(o: Operation, size: int, shape: Shape, small: int) -> Iterator[_Touch]:
    """Yield the accesses of a collective. A channel is a byte before the region. small: maximum size of messages that are staged."""
    members, place = shape.teams[o.team], 2 * o.team + o.channel
    written, read = o.nelems * o.dst_stride * size, o.nelems * o.src_stride * size
    for pe in members:
        yield _Touch(pe, -1 - place, -place, WRITE, DONE, by=(pe,))
        if o.kind not in ops.MEETINGS:
            if o.dest != o.source or o.kind not in ops.IN_PLACE:
                yield _Touch(pe, o.source, o.source + read, READ, DONE, by=(pe,))
            own = o.nelems * size <= small or o.kind in _SCANS
            yield _Touch(pe, o.dest, o.dest + written, WRITE, DONE, by=(pe,) if own else members, channel=place)


def _as_word(o: Operation, touch: _Touch) -> _Touch:
    """Return the access of a flag as that of an atomic, if it is one: sets are atomic with respect to each other."""
    if o.kind not in ops.FLAGS or o.kind == Kind.FLAG_P or (touch.pe, touch.lo, touch.hi) != (o.target, o.word, o.word + 8):
        return touch
    by_signal = o.kind != Kind.FLAG_SET and not ops.is_added(o)
    return touch._replace(mode=WORD, class_="sets" if by_signal else "atomics")


def _touches(o: Operation, size: int) -> Iterator[_Touch]:
    kind = o.kind
    if kind in ops.PUTS:
        when = SOURCE if kind in _NON_BLOCKING else DONE
        yield from (_Touch(o.pe, *part, READ, when) for part in ops.spread(o.source, o.nelems, o.src_stride, size))
        yield from (_Touch(o.target, *part, WRITE, SENT) for part in ops.spread(o.dest, o.nelems, o.dst_stride, size))
    elif kind in ops.GETS:
        when = PENDING if kind in _NON_BLOCKING else DONE
        yield from (_Touch(o.target, *part, READ, when) for part in ops.spread(o.source, o.nelems, o.src_stride, size))
        yield from (_Touch(o.pe, *part, WRITE, when) for part in ops.spread(o.dest, o.nelems, o.dst_stride, size))
    elif kind == Kind.P:
        yield _Touch(o.target, o.dest, o.dest + size, WRITE, SENT)
    elif kind == Kind.G:
        yield _Touch(o.target, o.source, o.source + size, READ, DONE)
    elif kind == Kind.LOAD:
        yield _Touch(o.pe, o.source, o.source + o.nelems * size, READ, DONE)
    elif kind == Kind.STORE:
        yield _Touch(o.pe, o.dest, o.dest + size, WRITE, DONE)
    elif kind in ops.WAITS or kind in (Kind.SIGNAL_FETCH, Kind.TEST):
        yield _Touch(o.pe, o.word, o.word + 8, READ, DONE)
    elif kind in ops.SEVERAL:
        yield from (_Touch(o.pe, word, word + 8, READ, DONE) for _, word, _ in ops.wait_set(o))
    elif ops.is_atomic(kind):
        yield _Touch(o.target, o.dest, o.dest + size, WORD, DONE if ops.is_fetching(kind) else SENT, "atomics")
    if kind in ops.FLAGS:
        added = "signals" if kind != Kind.FLAG_ADD else "atomics"
        yield _Touch(o.target, o.word, o.word + 8, WORD if ops.is_added(o) else WRITE, SENT, added)
