"""What a thread may rely on: the clocks of the memory model (docs/memory-model.md)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from pgas.check import clocks
from pgas.check.clocks import NOTHING, Clock, latest

#: A chain of updates of one word, each of which happens before the next; an update is known with all before it.
Chain = tuple[Any, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Knowledge:
    """Clocks of a thread. Each says of which events it holds; states never change, so that threads share them."""

    happened: Clock = NOTHING  #: they happen before: loads have been performed, operations have been issued
    visible: Clock = NOTHING  #: their stores are visible to this thread
    released: Clock = NOTHING  #: their stores are visible to whoever sees a later signal of this thread: those before its fence
    fenced: Clock = NOTHING  #: operations, each of which becomes visible before later ones of its PE to the same PE
    sources: Clock = NOTHING  #: non-blocking operations that have read their sources
    gotten: Clock = NOTHING  #: non-blocking gets that are complete
    arrived: dict[int, Clock] = field(default_factory=dict)  #: by PE, operations whose data has arrived there
    updates: dict[Chain, int] = field(default_factory=dict)  #: by chain, the number of the last update that has arrived

    def __or__(self, other: "Knowledge") -> "Knowledge":
        if self is other:
            return self
        mine, its = _clocks(self), _clocks(other)
        values = [a if a is b else a | b for a, b in zip(mine, its, strict=True)]
        arrived, updates = _joined(self.arrived, other.arrived), latest(self.updates, other.updates)
        for state, clocks_of in (self, mine), (other, its):
            if arrived is state.arrived and updates is state.updates and all(a is b for a, b in zip(values, clocks_of, strict=True)):
                return state
        return _made(values, arrived, updates)

    def every(self, change: Callable[[Clock], Clock]) -> "Knowledge":
        """Return a state all of whose clocks are changed alike."""
        return _made(map(change, _clocks(self)), {pe: change(c) for pe, c in self.arrived.items()}, self.updates)

    def map(self, change: Callable[[Clock], Clock], *names: str) -> "Knowledge":
        """Return a state some of whose clocks are changed alike."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **changed)


_CLOCKS = tuple(f.name for f in fields(Knowledge))[:6]

_clocks = attrgetter(*_CLOCKS)


def _made(values: Iterable[Clock], arrived: dict[int, Clock], updates: dict[Chain, int]) -> Knowledge:
    happened, visible, released, fenced, sources, gotten = values
    return Knowledge(happened, visible, released, fenced, sources, gotten, arrived, updates)


def joined(states: Iterable[Knowledge]) -> Knowledge:
    """Return what any of these states relies on."""
    different = list({id(state): state for state in states}.values())
    if len(different) == 1:
        return different[0]
    pes = {pe for state in different for pe in state.arrived}
    arrived = {pe: clocks.joined([state.arrived[pe] for state in different if pe in state.arrived]) for pe in pes}
    updates = different[0].updates
    for state in {id(s.updates): s for s in different}.values():
        updates = latest(updates, state.updates)
    parts = [clocks.joined([getattr(state, name) for state in different]) for name in _CLOCKS]
    return _made(parts, arrived, updates)


def _joined(mine: dict[int, Clock], other: dict[int, Clock]) -> dict[int, Clock]:
    if mine is other or not other:
        return mine
    if not mine:
        return other
    new = {}
    for pe, clock in other.items():
        known = mine.get(pe, NOTHING)
        if (joined := known | clock) is not known:
            new[pe] = joined
    if not new:
        return mine
    found = mine | new
    return other if len(found) == len(other) and all(found[pe] is clock for pe, clock in other.items()) else found
