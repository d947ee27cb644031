"""What the checker has found, in words: the two accesses, and the link that would order them."""

import ast
import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pgas.check.clocks import OF_BLOCK, OF_WARP, Clock, Epoch
from pgas.check.memory import GOT, REMOTE, SOURCE, WRITE, MemoryAccess, gets_from
from pgas.check.state import Knowledge
from pgas.kernels.codes import SIGNS
from pgas.sim.scheduler import WARP_SIZE

if TYPE_CHECKING:
    from pgas.check.words import WordUpdate

_MOST_UPDATES = 4

_NO_MEETING = "the threads of the block do not meet in between"

_TOLD_BY_BLOCK = (
    "another thread of the block tells it; the threads of the block do not meet before that (if both are of one warp, syncwarp suffices)"
)

_NOTHING = "no wait, signal, or barrier orders them"


@dataclass(frozen=True)
class SourceLine:
    """A line of the program, and the expression there."""

    file: str
    line: int
    column: int
    function: str
    text: str

    def __str__(self) -> str:
        here = os.path.relpath(self.file)
        return f"{self.file if here.startswith('..') else here}:{self.line}"

    @property
    def shown(self) -> str:
        """The line and its expression, if its source is known."""
        return f"{self}: {self.text}" if self.text else str(self)


class Lines(Protocol):
    """What Order knows of the program's lines and addresses."""

    def site(self, access: MemoryAccess) -> SourceLine: ...

    def site_of(self, pe: int, number: int) -> SourceLine: ...

    def index(self, epoch: Epoch) -> int: ...

    def place(self, addr: int) -> tuple[int, int]: ...


@dataclass(frozen=True)
class _Array:
    """A symmetric array; start: its offset in the slots of PEs."""

    start: int
    nbytes: int
    shape: tuple[int, ...]
    itemsize: int
    kind: str
    site: SourceLine

    def element(self, offset: int) -> str:
        """Return the name of the element at an offset."""
        at = (offset - self.start) // self.itemsize
        index = ", ".join(map(str, np.unravel_index(at, self.shape) if at < np.prod(self.shape, dtype=int) else (at,)))
        name = _assigned(self.site)
        return f"{name}[{index}]" if name else f"element [{index}] of an array"


@functools.cache
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError):
        return None


def _assigned(site: SourceLine) -> str:
    """Return the name to which the program assigns the expression at a site, "" if there is none."""
    tree = _tree(site.file)
    for node in ast.walk(tree) if tree is not None else ():
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items]
        for left, right in pairs:
            if isinstance(left, ast.Name) and (right.lineno, right.col_offset) == (site.line, site.column):
                return left.id
    return ""


@dataclass(frozen=True)
class Seen:
    """A wait, test, or collective by which a thread has learned something."""

    epoch: Epoch
    told: Knowledge
    site: int


@dataclass
class Mistake:
    """Two accesses that nothing orders, or another mistake, whose second site is then the first."""

    first: SourceLine
    second: SourceLine
    missing: str
    text: str
    count: int = 1
    accesses: tuple[MemoryAccess, MemoryAccess] | None = None
    addr: int = 0  #: of the first element that both access
    certain: bool = True  #: whether it is wrong in every run: a signal may be for a wait that this run did not need

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        sites = [{"file": s.file, "line": s.line, "function": s.function, "code": s.text} for s in (self.first, self.second)]
        facts = {"missing": self.missing, "text": self.text, "count": self.count, "certain": self.certain}
        return {"first": sites[0], "second": sites[1], **facts}


@dataclass
class _Race:
    first: MemoryAccess
    second: MemoryAccess
    state: Knowledge  #: of the thread of the second access
    pending: Knowledge | None
    element: str
    addr: int
    count: int = 1


@dataclass
class Mistakes:
    """Notes what happens in a job, and tells its mistakes at the end."""

    order: Lines
    pending: Knowledge | None = None  #: what atomics have returned to the thread whose access is being checked
    _races: dict[tuple[Any, ...], _Race] = field(default_factory=dict)
    _mistakes: dict[Any, Mistake] = field(default_factory=dict)
    _arrays: dict[int, _Array] = field(default_factory=dict)
    _seen: dict[int, list[Seen]] = field(default_factory=dict)  #: by block
    _sent: dict[int, list["WordUpdate"]] = field(default_factory=dict)  #: by thread
    _flags: dict[int, set[Epoch]] = field(default_factory=dict)  #: by block, puts of several elements of which one was awaited
    _signals: dict[SourceLine, set[int]] = field(default_factory=dict)  #: by site of a signal, its words
    _awaited: set[int] = field(default_factory=set)

    # What happens

    def made(self, offset: int, nbytes: int, shape: tuple[int, ...], itemsize: int, kind: str, site: SourceLine) -> None:
        """Note a symmetric array."""
        for start in [a.start for a in self._arrays.values() if a.start < offset + nbytes and offset < a.start + a.nbytes]:
            del self._arrays[start]  # It has been freed.
        self._arrays[offset] = _Array(offset, nbytes, shape, itemsize, kind, site)

    def sent(self, update: "WordUpdate", addr: int, *, signal: bool) -> None:
        """Note an update of a word; signal: whether it is a signal, which somebody should wait for."""
        self._sent.setdefault(update.access.epoch.thread, []).append(update)
        if signal:
            self._signals.setdefault(self.order.site(update.access), set()).add(addr)

    def awaited(self, addr: int) -> None:
        """Note that a word is read."""
        self._awaited.add(addr)

    def saw(self, epoch: Epoch, told: Knowledge, site: int) -> None:
        """Note that a thread has learned what others told."""
        self._seen.setdefault(epoch.block, []).append(Seen(epoch, told, site))

    def saw_put(self, epoch: Epoch, put: MemoryAccess) -> None:
        """Note that a thread has waited for an element of a put of several elements."""
        self._flags.setdefault(epoch.block, set()).add(put.epoch)

    def updates(self, addr: int) -> list["WordUpdate"]:
        """Return all updates of a word, in order."""
        found = [update for updates in self._sent.values() for update in updates if update.addr == addr]
        return sorted(found, key=lambda update: update.access.epoch.tick)

    def never(
        self, site: SourceLine, pe: int, comparison: int, addr: int, found: int, value: int, updates: Sequence["WordUpdate"]
    ) -> None:  # fmt: skip
        """Note a wait that nothing ends."""
        wanted = f"{self.element(addr)} to be {SIGNS[comparison]} {value}"
        made = sorted({f"{self.order.site(u.access)} {'adds' if u.adds else 'sets it to'} {u.value}" for u in updates})
        why = "; ".join(made[:_MOST_UPDATES]) or "nothing changes it"
        text = f"  {site.shown}: PE {pe} waits for {wanted}; it was {found}, and {why}"
        self._mistakes.setdefault((site, "never"), Mistake(site, site, "a write that ends the wait", text))

    def mismatch(self, one: tuple[Any, ...], other: tuple[Any, ...], pe: int, site: SourceLine) -> None:
        """Note calls of members that do not match."""
        text = f"  {site}: PE {pe} calls {_call(other)}, and another member calls {_call(one)} at the same place in the order of calls"
        self._mistakes.setdefault((site, "mismatch"), Mistake(site, site, "the same call", text))

    def race(self, first: MemoryAccess, second: MemoryAccess, addr: int, state: Knowledge) -> None:
        """Note two accesses that nothing orders."""
        key = (
            self.order.site(first),
            self.order.site(second),
            first.epoch.pe == second.epoch.pe,
            first.epoch.thread == second.epoch.thread,
        )
        if (known := self._races.get(key)) is not None:
            known.count += 1
        else:
            self._races[key] = _Race(first, second, state, self.pending, self.element(addr), addr)

    # The report

    @functools.cached_property
    def all(self) -> list[Mistake]:
        """All mistakes: one for each pair of lines and missing link."""
        found: dict[Any, Mistake] = {}
        for race in self._races.values():
            one, two = self.order.site(race.first), self.order.site(race.second)
            missing, why = self._missing(race)
            key = (*sorted((one, two), key=attrgetter("file", "line", "column")), missing)
            if key in found:
                found[key].count += race.count
                continue
            text = f"  {self._described(race.first, one, race.element)}\n  {self._described(race.second, two, race.element)}\n  {why}"
            found[key] = Mistake(one, two, missing, text, race.count, (race.first, race.second), race.addr)
        for site, words in self._signals.items():
            if not words & self._awaited:
                found[site] = Mistake(site, site, "wait", f"  {site.shown}: nobody waited for this signal", certain=False)
        return [*found.values(), *self._mistakes.values()]

    @property
    def certain(self) -> bool:
        """Whether there is a mistake that is certain."""
        return any(finding.certain for finding in self.all)

    def _described(self, access: MemoryAccess, site: SourceLine, element: str) -> str:
        e = access.epoch
        if e.launch == 0:
            who = "on the host"
        elif e.thread & OF_BLOCK:
            who = f"block {self.order.index(e)}"
        else:
            first = (e.thread & ~OF_WARP) - e.block
            who = f"block {self.order.index(e)}, {'warp of ' if e.thread & OF_WARP else ''}thread {first}"
        return f"{site.shown}: {element} {access.what} by PE {e.pe}, {who}"

    def _array(self, pe: int, offset: int) -> _Array | None:
        return next((a for a in self._arrays.values() if a.start <= offset < a.start + a.nbytes), None) if pe >= 0 else None

    def element(self, addr: int) -> str:
        """Return the name of the element at an address."""
        pe, offset = self.order.place(addr)
        array = self._array(pe, offset)
        return "memory" if array is None else f"{array.element(offset)} of PE {pe} (made in line {array.site.line})"

    def _missing(self, race: _Race) -> tuple[str, str]:
        """Return the link that is missing, as a word and as a sentence."""
        a, b, state = race.first, race.second, race.state
        if race.pending is not None and a.ordered_before(state | race.pending, b.epoch.thread, b.remote):
            return "fence", "an atomic has returned what the writer released; a fence must follow before it is used"
        if a.kind in (SOURCE, GOT):
            complete = (state.sources, state.arrived.get(a.pe)) if a.kind == SOURCE else (state.gotten, state.arrived.get(gets_from(a.pe)))
            if (parts := _of_others(a.epoch, *complete)) is not None:
                what = "flush and quiet cover" if a.kind == SOURCE else "quiet covers"
                return parts, f"{what} the parts of other threads only after a {parts} that follows"
        if a.kind == SOURCE:
            return "flush or quiet", "the source of a non-blocking operation may be reused after flush or quiet"
        if a.kind == GOT:
            return "quiet", "the destination of a non-blocking get may be used after quiet"
        knows = a.epoch.thread == b.epoch.thread or state.happened.covers(a.epoch)
        if knows and a.kind == REMOTE:
            return self._incomplete(a, b, state)
        if knows and a.kind == WRITE:
            return "fence", "the store is not before a fence; a signal or an atomic alone does not order it"
        by_host = a.epoch.launch == 0 or b.epoch.launch == 0
        if a.atom != b.atom and not by_host:
            if a.atom and b.atom and "sets" in a.atom + b.atom:
                return "one kind of signal", "a signal word must be changed either by sets or by adds only"
            return "atomic", "while others change an element by atomics, every access to it must be an atomic of pgas"
        return self._unknown(a, b, state)

    def _incomplete(self, a: MemoryAccess, b: MemoryAccess, state: Knowledge) -> tuple[str, str]:
        """Return what is missing if an operation was issued before the other access, but need not have arrived."""
        if (missing := _of_others(a.epoch, state.arrived.get(a.pe))) is not None:
            return missing, f"quiet covers the parts of other threads only after {missing} between the operation and quiet"
        for seen in self._seen.get(b.epoch.block, ()):
            if seen.epoch.phase == b.epoch.phase and seen.epoch.thread != b.epoch.thread and not b.call:
                if a.ordered_before(state | seen.told, b.epoch.thread, b.remote):
                    line = self.order.site_of(b.epoch.pe, seen.site).line
                    return "syncthreads", f"only the thread that waits in line {line} knows; the block does not meet after that"
        carrier = self._carrier(a, state)
        if a.epoch.pe == b.epoch.pe and carrier is None:
            if b.remote >= 0:
                return "fence", "operations of one PE on an element are ordered only by a fence between them"
            return "quiet", "the operation is complete after quiet; neither fence nor program order completes it"
        if carrier is None:
            return (
                "barrier",
                "the other PE knows that it was issued, not that it has arrived: a quiet, or barrier instead of sync, is missing",
            )
        line = self.order.site(carrier.access).line
        if carrier.access.pe != a.pe:
            return "quiet", f"{'the signal of ' if carrier.is_signal else ''}line {line} goes to another PE; a quiet must come before it"
        if a.chain is not None and carrier.is_signal and "put" in a.what:
            return "fence", f"a later signal of line {line} may arrive first: a fence or credit between the two, or another word, is needed"
        if "put" in a.what and carrier.access.atom and carrier.is_signal:
            return "put_signal or fence", f"the signal of line {line} does not order it: use put_signal, or a fence between them"
        return "fence", f"line {line} does not order it; a fence must come before that"

    def _carrier(self, a: MemoryAccess, state: Knowledge) -> "WordUpdate | None":
        """Return the update after an operation that tells a thread of it: of the same thread if there is one, else of its PE."""
        own = [u for u in self._sent.get(a.epoch.thread, ()) if u.access.epoch.tick >= a.epoch.tick]
        of_pe = (u for updates in self._sent.values() for u in updates if u.access.epoch.pe == a.epoch.pe)
        others = (u for u in of_pe if u.state.happened.covers(a.epoch))
        return next((u for u in chain(own, others) if u.addr in self._awaited and u.access is not a and _known(u, state)), None)

    def _unknown(self, a: MemoryAccess, b: MemoryAccess, state: Knowledge) -> tuple[str, str]:
        """Return what is missing if nothing tells the second thread of the first access."""
        if a.epoch in self._flags.get(b.epoch.block, ()):
            return "put_signal or fence", "one put carries data and flag, and its bytes arrive in any order"
        told_before = None
        earlier = [u for u in self._sent.get(a.epoch.thread, ()) if u.access.epoch.tick < a.epoch.tick and u.addr in self._awaited]
        if earlier and _known(earlier[-1], state):
            line = self.order.site(earlier[-1].access).line
            told_before = "wait or barrier", f"line {line} tells the other thread only of what precedes it; the first access follows it"
            if earlier[-1].access.epoch.tick >= a.epoch.since:  # Otherwise, it may have been the signal of an earlier round.
                return told_before
        same_kernel = a.epoch.lane == b.epoch.lane and a.epoch.launch == b.epoch.launch > 0
        of_block = same_kernel and a.epoch.block == b.epoch.block
        if of_block and a.kind != REMOTE:
            return "syncthreads", _NO_MEETING
        for one, other in ((a, b), (b, a)):
            for seen in self._seen.get(other.epoch.block, ()):
                if seen.epoch.phase != other.epoch.phase or a.call or b.call:  # The block meets at the beginning of a collective.
                    continue
                if seen.told.happened.covers(one.epoch) and seen.epoch.thread != other.epoch.thread:
                    line = self.order.site_of(other.epoch.pe, seen.site).line
                    return "syncthreads", f"only the thread that waits in line {line} knows; the block does not meet after that"
                if _told_by_block(seen.told, one.epoch, other.epoch):
                    return "syncthreads", _TOLD_BY_BLOCK
            for block, all_seen in self._seen.items():
                if block != other.epoch.block and any(
                    s.epoch.lane == other.epoch.lane and s.epoch.launch == other.epoch.launch and s.told.happened.covers(one.epoch)
                    for s in all_seen
                ):
                    return "grid barrier", "another block waits for it; the blocks do not meet after that"
        if not b.call and _told_by_block(state, a.epoch, b.epoch):
            return "syncthreads", _TOLD_BY_BLOCK
        if told_before is not None:
            return told_before
        if of_block:
            return "syncthreads", _NO_MEETING
        if same_kernel:
            return "grid barrier", "blocks of a grid run in any order, and nothing orders these two"
        if a.epoch.pe == b.epoch.pe and a.epoch.lane != b.epoch.lane and a.kind != REMOTE != b.kind:
            return "stream order", "the kernels are on different streams, and nothing orders these"
        return "wait or barrier", _NOTHING

    def text(self) -> str:
        """Return the report."""
        parts = []
        for finding in self.all:
            times = f" ({finding.count} times)" if finding.count > 1 else ""
            what = "these two accesses are not ordered" if finding.accesses else "a mistake" if finding.certain else "perhaps a mistake"
            parts.append(f"pgas: {what}{times}; missing: {finding.missing}\n{finding.text}")
        return "\n".join(parts)

    def json(self) -> str:
        """Return the report as JSON."""
        return json.dumps([finding.plain() for finding in self.all], indent=1)


def _of_others(operation: Epoch, *complete: Clock | None) -> str | None:
    """Return the barrier after which a flush or quiet would have covered an operation of a warp or block: its threads have made one.

    complete: what the thread that accesses knows to be complete.
    """
    e = operation
    if not e.thread & (OF_WARP | OF_BLOCK):
        return None
    by = [t for clock in complete if clock for t, tick in clock.ticks(e.block, e.block + e.count) if tick >= e.tick]
    if not by:
        return None
    warp = e.thread & ~OF_WARP
    return "syncwarp" if e.thread & OF_WARP and all(warp <= t < warp + WARP_SIZE for t in by) else "syncthreads"


def _known(update: "WordUpdate", state: Knowledge) -> bool:
    """Whether a thread in a state knows that an update was issued."""
    return state.happened.covers(update.access.epoch) or update.access.ordered_before(state, -1, -1)


def _told_by_block(state: Knowledge, epoch: Epoch, later: Epoch) -> bool:
    """Whether a state knows something that a third thread, of the first event's block, has told since it last met before that event."""
    first, last, two = epoch.block, epoch.block + epoch.count, (epoch.thread, later.thread)
    return any(t not in two and tick >= epoch.since for t, tick in state.happened.ticks(first, last))


def _call(what: tuple[Any, ...]) -> str:
    return ", ".join(str(part) for part in what if part is not None)
