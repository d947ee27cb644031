"""Words by which threads tell each other something: who has updated them, and what a thread knows that has seen a value."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pgas.check.log import ADD, ATOMIC_ADD, ATOMIC_SET, PLAIN, SET
from pgas.check.memory import MemoryAccess
from pgas.check.state import Knowledge
from pgas.kernels.ops.sync import holds

_SETS, _ADDS = (PLAIN, SET, ATOMIC_SET), (ADD, ATOMIC_ADD)

#: Maximum number of updates of a word that are examined one by one; earlier ones are known to whoever sees the word.
_MOST = 32

#: Maximum number of values of a word that are considered.
_MOST_VALUES = 4096


@dataclass(eq=False, slots=True)
class WordUpdate:
    """An update of a word."""

    access: MemoryAccess
    kind: int
    value: int | None
    state: Knowledge  #: of the thread at the update
    told: Knowledge  #: what a thread knows that has seen the update
    turn: int
    addr: int = 0
    before: int = 0  #: value of the word before it, if it adds

    @property
    def is_signal(self) -> bool:
        return self.kind in (SET, ADD)

    @property
    def adds(self) -> bool:
        return self.kind in _ADDS

    @property
    def arrival(self) -> Knowledge:
        """What a thread knows if the update has arrived."""
        return Knowledge(updates={self.access.chain: self.access.number})  # type: ignore[dict-item]  # SyncWord.add() has set the chain

    @property
    def shown(self) -> Knowledge:
        """What a thread knows that has read the value of the update, or a later one."""
        return self.told | self.arrival

    def follows(self, other: "WordUpdate") -> bool:
        """Whether the other update happens before this one, so that this one was issued later."""
        a, b = self.access.epoch, other.access.epoch
        return (a.thread == b.thread and a.tick > b.tick) or self.state.happened.covers(b)

    def arrives_after(self, other: "WordUpdate") -> bool:
        """Whether the other update has arrived when this one does."""
        return other.access.ordered_before(self.state, self.access.epoch.thread, self.access.pe)


_After = Callable[[WordUpdate, WordUpdate], bool]


@dataclass(slots=True)
class SyncWord:
    """A word and its updates."""

    addr: int
    updates: list[WordUpdate] = field(default_factory=list)
    chains: int = 0
    earlier: Knowledge | None = None  #: what updates tell that are not in the list any more
    first: tuple[int, int] = (0, 0)  #: turn of the first update, and value of the word before it
    added: int = 0  #: by updates that are not in the list any more
    all: Knowledge = field(default_factory=Knowledge)  #: what all updates tell
    last: int = -1  #: turn of the last update

    def reset(self, stays: Callable[[WordUpdate], bool]) -> None:
        """Forget the updates that do not stay, because the word has been overwritten."""
        kept = [update for update in self.updates if stays(update)]
        self.updates, self.earlier, self.all, self.added = kept, None, _shown(kept), 0
        self.first = min(((u.turn, u.before) for u in kept), default=(0, 0))

    def add(self, update: WordUpdate) -> None:
        """Note an update, and give its access a place in a chain: behind one that has arrived when it does."""
        access = update.access
        if not self.updates and self.earlier is None:
            self.first, self.added, self.last = (update.turn, update.before), 0, update.turn
        elif update.adds:
            self.first = min(self.first, (update.turn, update.before))
        self.last = max(self.last, update.turn)
        for previous in reversed(self.updates):
            if update.arrives_after(previous):
                if previous is self._tip(previous):
                    access.chain, access.number = previous.access.chain, previous.access.number + 1
                break
        if access.chain is None:
            self.chains += 1
            access.chain, access.number = (self.addr, self.chains), 0
        self.updates.append(update)
        self.all = self.all | update.shown
        if len(self.updates) > _MOST:
            gone = self.updates.pop(0)
            self.earlier = gone.shown if self.earlier is None else self.earlier | gone.shown
            if gone.kind in _SETS:
                self.first, self.added = (-1, gone.value or 0), 0
            else:
                self.added += gone.value or 0

    def _tip(self, update: WordUpdate) -> WordUpdate:
        chain = update.access.chain
        return max((u for u in self.updates if u.access.chain == chain), key=lambda u: u.access.number)

    def told(self, turn: int) -> Knowledge:
        """Return what updates tell a thread that has read the word in a turn."""
        return self.all if self.last < turn else _shown(self._before(turn), self.earlier)

    def _before(self, turn: int) -> list[WordUpdate]:
        return self.updates if self.last < turn else [u for u in self.updates if u.turn < turn]

    def seen(self, turn: int, comparison: int | None, value: int) -> tuple[list[WordUpdate], list[WordUpdate]]:
        """Return the updates that a thread must have seen whose wait has ended: those that were issued, and those that have arrived.

        These are the updates without which the condition would not hold. The wait may have seen more, but that would be luck.
        """
        before = self._before(turn)
        if comparison is None or any(u.value is None or u.kind not in (*_SETS, *_ADDS) for u in self.updates):
            return before, before
        needed = self._setting if all(u.kind in _SETS for u in self.updates) else self._adding
        found = []
        for after in (WordUpdate.follows, WordUpdate.arrives_after):
            those = needed(self.updates, comparison, value, after)
            if those is None and before is not self.updates:  # Later updates end what the wait has seen.
                those = needed(before, comparison, value, after)
            found.append(before if those is None else those)
        return found[0], found[1]

    @staticmethod
    def _setting(updates: list[WordUpdate], comparison: int, value: int, after: _After) -> list[WordUpdate] | None:
        """Return the first update of each chain that satisfies the condition, if all others that do know of it; None if there is none."""
        first: list[WordUpdate] = []
        for update in updates:
            if not holds(update.value, comparison, value):  # type: ignore[arg-type]
                first = [u for u in first if not update.follows(u)]
            elif not any(after(update, u) for u in first):
                first.append(update)
        if not first:  # They were performed in another order.
            return None
        return [u for u in first if all(other is u or after(other, u) for other in first)]

    def _adding(self, updates: list[WordUpdate], comparison: int, value: int, after: _After) -> list[WordUpdate] | None:
        """Return the updates without one of which, and those after it, the condition does not hold; None if it does not with all."""
        start, total = 0, self.first[1] + self.added
        for i, update in enumerate(updates):
            if update.kind in _SETS:
                start, total = i, update.value or 0
            else:
                total += update.value or 0
        if not holds(total, comparison, value):  # It did, with some of them; which ones is not known.
            return None
        needed = list(updates[: start + 1]) if updates and updates[start].kind in _SETS else []
        adds = [u for u in updates[start:] if u.kind in _ADDS]
        for i, update in enumerate(adds):
            without = total - sum(u.value or 0 for u in adds[i:] if u is update or after(u, update))
            if not holds(without, comparison, value):
                needed.append(update)
        return needed


def can_hold(updates: Iterable[WordUpdate], found: int, nbytes: int, comparison: int, value: int) -> bool | None:
    """Whether a word can have a value that satisfies a condition; None if that is not known. found: its value before the updates."""
    values, adds, mask = {found}, [], (1 << 8 * nbytes) - 1
    for update in updates:
        if update.value is None or update.kind not in (*_SETS, *_ADDS):
            return None
        if update.kind in _SETS:
            values.add(update.value & mask)
        else:
            adds.append(update.value)
    for add in adds:
        values |= {v + add & mask for v in values}
        if len(values) > _MOST_VALUES:
            return None
    return any(holds(v, comparison, value) for v in values)


@dataclass(slots=True)
class CudaAtomics:
    """Atomics of CUDA on a word: the value before each of the last ones, and what those before it tell."""

    told: Knowledge | None = None  #: what all of them tell
    last: deque[tuple[int | None, Knowledge]] = field(default_factory=lambda: deque(maxlen=4 * _MOST))
    by: dict[Any, int] = field(default_factory=dict)  #: by lane, the last launch whose threads tell something
    known: bool = False  #: whether the thread of the next one knows all of it

    def told_to(self, lane: Any, launch: int, state: Knowledge) -> Knowledge | None:
        """Return what those so far tell a thread, which makes the next one; None if it knows that already.

        A thread that releases the stores of a launch knows all that the launch's threads knew, because that is told as a whole.
        """
        if self.by.get(lane) == launch:
            return self.told
        self.known = all(state.released.launches.get(of, 0) >= number for of, number in self.by.items())
        if self.known:
            self.by.clear()
        self.by[lane] = launch
        return None if self.known else self.told

    def add(self, before: int | None, told: Knowledge) -> None:
        """Note an atomic, and what its thread tells."""
        earlier = self.told or Knowledge()
        self.last.append((before, earlier))
        if not self.known:  # What happened before it, its thread also tells: the word has just told it that.
            told = replace(earlier, happened=told.happened, sources=told.sources) | told
        self.told = told
        self.known = False

    def seen(self, comparison: int | None, value: int) -> Knowledge:
        """Return what a thread must have been told whose wait has ended: by all but the last ones, without which the condition held."""
        told = self.told or Knowledge()
        for before, earlier in reversed(self.last):
            if comparison is None or before is None or not holds(before, comparison, value):
                break
            told = earlier
        return told


def _shown(updates: Iterable[WordUpdate], known: Knowledge | None = None) -> Knowledge:
    """Return a state that also knows what updates show."""
    known = known or Knowledge()
    for update in updates:
        known = known | update.shown
    return known


def joined(state: Knowledge, updates: Iterable[WordUpdate]) -> Knowledge:
    """Return a state that also knows what updates tell."""
    for update in updates:
        state = state | update.told
    return state
