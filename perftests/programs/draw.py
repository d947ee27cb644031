"""Draws programs from a seed, operation by operation; the rules decide whether an operation is kept."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.operation import Kind, Operation, PhaseEnd, Program, Shape
from pgas.perftests.programs.oracle import finite
from pgas.perftests.programs.rules import Rules

#: Number of programs that run together, one block each: program n is in group n // GROUP.
GROUP = 32

#: Types of elements.
DTYPES = ("uint8", "uint16", "int32", "float32", "uint64", "float64", "complex128")
_EQ, _NE, _GT, _LE, _LT, _GE = range(6)

_COPIES = {Kind.PUT: 4, Kind.PUT_NBI: 4, Kind.GET: 3, Kind.GET_NBI: 3, Kind.IPUT: 2, Kind.IGET: 2}
_ELEMENTS = {Kind.P: 4, Kind.G: 3, Kind.LOAD: 3, Kind.STORE: 2}
_SIGNALS = {Kind.PUT_SIGNAL: 2, Kind.PUT_SIGNAL_NBI: 2, Kind.SIGNAL_OP: 2, Kind.FLAG_P: 1, Kind.FLAG_SET: 1, Kind.FLAG_ADD: 1}
_ORDER = {Kind.FENCE: 2, Kind.QUIET: 2, Kind.QUIET_PE: 1, Kind.FLUSH: 1}
_SENDING = (Kind.PUT, Kind.PUT_NBI, Kind.IPUT, Kind.P)
_NOT_ON_HOSTS = (Kind.TEST, Kind.SYNCTHREADS, *ops.TESTS_OF_SEVERAL)
_SIGNALLED = (Kind.PUT_SIGNAL, Kind.PUT_SIGNAL_NBI)
_HOST_SHARE = 0.2  #: fraction of groups with a phase that hosts perform
_TEAMS_SHARE = 0.25  #: fraction of groups with teams
_COLLECTIVE_SHARE = 0.35  #: fraction of operations in their programs
_LOCAL_SHARE = 0.2  #: fraction of local operands in registered memory
_PLACES = 6  #: number of locations that later operations use again


def shape(seed: int, group: int, n_pes: int) -> Shape:
    """Return the shape of a group."""
    dice = random.Random(f"shape {seed} {group}")
    threads = dice.choice((1, 1, 1, 1, 1, 2, ops.LANES, 2 * ops.LANES))
    ends = [PhaseEnd.BARRIER, PhaseEnd.BARRIER_BLOCK, PhaseEnd.QUIET, PhaseEnd.QUIETS] + [PhaseEnd.BARRIER_WARP] * (threads >= ops.LANES)
    phases = dice.choice((1, 2, 2, 3))
    region = dice.choice((384, 512, 512, 768, 1024, 8192))
    drawn = Shape(n_pes, threads, np.dtype(dice.choice(DTYPES)), region, tuple(dice.choice(ends) for _ in range(phases)))
    if dice.random() < _HOST_SHARE:
        drawn = drawn._replace(on_host=dice.randrange(phases))
    if dice.random() < _TEAMS_SHARE:
        return drawn._replace(teams=_teams(dice, n_pes), region_bytes=dice.choice((region, 8192)))
    return drawn


def _teams(dice: random.Random, n_pes: int) -> tuple[tuple[int, ...], ...]:
    """Draw teams: all PEs, PEs with a stride, and a list."""
    start, stride = dice.randrange(n_pes), dice.choice((-2, -1, 1, 2))
    split = tuple(range(start, n_pes if stride > 0 else -1, stride))
    return tuple(range(n_pes))[:: dice.choice((1, -1))], split, tuple(dice.sample(range(n_pes), dice.randint(1, n_pes)))


class _Place(NamedTuple):
    """Elements of a PE's data."""

    pe: int
    at: int
    nelems: int


def draw(seed: int, number: int, n_pes: int, shape_: Shape | None = None) -> Program:
    """Return the program with that number; shape_: a shape instead of that of its group."""
    shape_ = shape_ or shape(seed, number // GROUP, n_pes)
    drawing = _Drawing(random.Random(f"program {seed} {number}"), shape_)
    return Program(seed, number, shape_, tuple(drawing.operations()))


class _Message(NamedTuple):
    """A flag for which no thread has waited yet, and the data that it announces."""

    flag: Operation
    places: tuple[_Place, ...]


def _conditions(values: list[int]) -> list[tuple[int, int]]:
    """Return comparisons that the last value of a word satisfies and no earlier one does."""
    *before, value = values
    conditions = [(_EQ, value)]
    if all(v < value for v in before):
        conditions += [(_GE, value), (_GT, value - 1)]
    if all(v > value for v in before):
        conditions += [(_LE, value), (_LT, value + 1)]
    if len(set(before)) == 1:
        conditions.append((_NE, before[0]))
    return conditions


class _Drawing:
    def __init__(self, dice: random.Random, shape_: Shape) -> None:
        self._dice, self._shape, self._size = dice, shape_, shape_.dtype.itemsize
        self._values: dict[tuple[int, int], list[int]] = {}
        self._places: list[_Place] = []
        self._told: list[_Message] = []
        self._set: list[int] = []  #: values set by atomics, which compare_swap uses as comparands
        self._rules = Rules(shape_, self._values)
        self._phase = 0
        self._threads = shape_.threads  #: number of threads in this phase
        kinds: dict[Kind, int] = {**_COPIES, **_ELEMENTS, **_SIGNALS, **_ORDER, Kind.SIGNAL_FETCH: 1, Kind.TEST: 1}
        self._waits = list(ops.WAITS)
        if not ops.has_atomics(shape_.dtype) and not shape_.teams:  # interpreter() gives the reason.
            self._waits *= 4
            self._waits += ops.WAITS_FOR_SEVERAL
            kinds |= dict.fromkeys(ops.TESTS_OF_SEVERAL, 1)
        #: Whether only one thread copies; interpreter() gives the reason.
        self._alone = ops.has_atomics(shape_.dtype) and shape_.dtype.kind != "f" and not shape_.teams
        if ops.has_atomics(shape_.dtype) and not shape_.teams:
            atomics = ops.FLOAT_ATOMICS if shape_.dtype.kind == "f" else [kind for kind in Kind if ops.is_atomic(kind)]
            kinds |= dict.fromkeys(atomics, 12 // len(atomics) or 1)
        if shape_.threads > 1:
            kinds[Kind.SYNCTHREADS] = 5
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def operations(self) -> Iterator[Operation]:
        for phase in range(len(self._shape.ends)):
            self._phase, self._rules, self._told = phase, Rules(self._shape, self._values), []
            self._threads = 1 if self._on_host else self._shape.threads
            for _ in range(self._dice.randint(1, 5) * self._shape.n_pes):
                yield from (o._replace(qp=0) for o in self._next()) if self._on_host else self._next()

    @property
    def _on_host(self) -> bool:
        return self._phase == self._shape.on_host

    def _next(self) -> Iterator[Operation]:
        """Draw an operation, or a few that belong together."""
        if self._told and self._dice.random() < 0.5:
            yield from self._wait(self._told.pop(self._dice.randrange(len(self._told))))
            return
        pe = self._dice.randrange(self._shape.n_pes)
        if self._shape.teams and self._dice.random() < _COLLECTIVE_SHARE:
            yield from self._collective()
            return
        if self._dice.random() < 0.15:
            yield from self._message(pe)
            return
        kind = self._dice.choices(self._kinds, self._weights)[0]
        if self._on_host and kind in _NOT_ON_HOSTS:
            return
        for _ in range(3):
            o = self._drawn(kind, pe)
            if self._rules.admit(o):
                yield self._kept(o)
                yield from self._reused(o)
                return
            order = self._operation(self._dice.choice((Kind.QUIET, Kind.FENCE)), o.pe, o.who)
            if self._dice.random() < 0.5 and self._rules.admit(order):
                yield order
                if self._rules.admit(o):
                    yield self._kept(o)
                    return

    def _reused(self, o: Operation) -> Iterator[Operation]:
        """With some probability, write to the source of a non-blocking operation as soon as that is allowed."""
        if o.kind in (Kind.PUT_NBI, Kind.PUT_SIGNAL_NBI) and o.nelems and self._dice.random() < 0.4:
            order = self._operation(self._dice.choice((Kind.FLUSH, Kind.FLUSH, Kind.QUIET)), o.pe, o.who)
            store = self._drawn(Kind.STORE, o.pe)._replace(dest=o.source, who=o.who)
            for then in (order, store):
                yield from self._admitted(then)

    def _kept(self, o: Operation) -> Operation:
        """Record the locations of an operation, for later ones."""
        if o.kind in _SIGNALS:
            places = (_Place(o.target, o.dest, o.nelems),) if o.nelems else ()
            self._told.append(_Message(o, places))
        if o.nelems and (o.kind in ops.PUTS or o.kind in ops.GETS):
            there, here = (o.source, o.dest) if o.kind in ops.GETS else (o.dest, o.source)
            self._places = [*self._places, _Place(o.target, there, o.nelems), _Place(o.pe, here, o.nelems)][-_PLACES:]
        return o

    def _message(self, pe: int) -> Iterator[Operation]:
        """Draw data for another PE, a fence or quiet, and a flag."""
        dice = self._dice
        who, target, sent = dice.randrange(self._threads), dice.randrange(self._shape.n_pes), []
        for _ in range(dice.choice((1, 1, 2, 3))):
            o = self._drawn(dice.choice(_SENDING), pe)._replace(target=target)
            if o.scope == ops.THREAD:
                o = o._replace(who=who)
            if self._rules.admit(o):
                yield self._kept(o)
                sent.append(o)
        if any(o.scope != ops.THREAD for o in sent) and self._shape.threads > 1:
            yield from self._admitted(self._operation(Kind.SYNCTHREADS, pe, 0, scope=ops.BLOCK))
        yield from self._admitted(self._operation(dice.choice((Kind.FENCE, Kind.FENCE, Kind.FENCE, Kind.QUIET)), pe, who))
        flag = self._drawn(dice.choice(list(_SIGNALS)), pe)._replace(target=target)
        if flag.scope == ops.THREAD:
            flag = flag._replace(who=who)
        if self._rules.admit(flag):
            yield self._kept(flag)
            places = tuple(
                _Place(o.target, o.dest, (o.nelems - 1) * o.dst_stride + 1 if o.nelems else 1)
                for o in [*sent, flag]
                if o.nelems or o.kind == Kind.P
            )
            self._told[-1] = _Message(flag, places)

    def _collective(self) -> Iterator[Operation]:
        """Draw a collective, and often the same again with other data, without a barrier in between if that is allowed."""
        dice, size, team = self._dice, self._size, self._dice.randrange(len(self._shape.teams))
        members, kind = self._shape.teams[team], dice.choice(ops.COLLECTIVES[:5] if self._shape.dtype.kind == "c" else ops.COLLECTIVES)
        o = self._operation(kind, members[0], 0, team=team, channel=dice.randrange(2))
        o = self._by_some(o, dice.randrange(self._threads))
        if kind not in ops.MEETINGS:
            written, read = (
                len(members) if kind in some else 1 for some in ((Kind.ALLTOALL, Kind.FCOLLECT), (Kind.ALLTOALL, Kind.REDUCESCATTER))
            )
            most = (self._shape.region_bytes - ops.DATA) // size // max(written, read)
            # A third use rings, chains, and rounds; half of the region leaves room for dest and source.
            nelems = dice.randint(most // 4, most // 2) if dice.random() < 0.3 else min(self._nelems(), most)
            dest, source = (self._within(self._place(members[0]).at, nelems * parts) for parts in (written, read))
            o = o._replace(
                nelems=nelems, dst_stride=written, src_stride=read, target=dice.randrange(len(members)), source=max(source, ops.DATA)
            )
            o = o._replace(dest=o.source if kind in ops.IN_PLACE and dice.random() < 0.2 else max(dest, ops.DATA))
        for _ in range(dice.choice((1, 1, 2, 4))):
            if not self._rules.admit(o):
                yield from self._admitted(o._replace(kind=dice.choice(ops.MEETINGS), nelems=0))
                if not self._rules.admit(o):
                    return
            yield o
            self._places = [*self._places, *(_Place(pe, o.dest, o.nelems) for pe in members if o.nelems)][-_PLACES:]
            for pe in members if o.nelems else ():
                store = self._drawn(Kind.STORE, pe)
                yield from self._admitted(store._replace(dest=o.source + dice.randrange(o.nelems * o.src_stride) * size, who=o.who))

    def _by_some(self, o: Operation, who: int) -> Operation:
        """Draw the scope of an operation that a thread, a warp, or a block performs."""
        scopes = (ops.THREAD, ops.THREAD, ops.BLOCK) + ((ops.WARP, ops.WARP, ops.BLOCK) if self._threads >= ops.LANES else ())
        scope = ops.THREAD if self._alone or self._on_host else self._dice.choice(scopes)
        return o._replace(scope=scope, who=who // ops.LANES * ops.LANES if scope == ops.WARP else 0 if scope == ops.BLOCK else who)

    def _admitted(self, o: Operation) -> Iterator[Operation]:
        if self._rules.admit(o):
            yield o

    def _wait(self, message: _Message) -> Iterator[Operation]:
        """Draw a wait for a flag, and often operations that use the data that it announces."""
        flag = message.flag
        condition, value = self._dice.choice(_conditions(self._rules.values(flag.target, flag.word)))
        who = self._dice.randrange(self._threads)
        wait = self._operation(
            self._dice.choice(ops.WAITS if self._on_host else self._waits),
            flag.target,
            who,
            word=flag.word,
            value=value,
            condition=condition,
        )
        if wait.kind in ops.SEVERAL:
            wait = self._with_others(wait)
        if not self._rules.admit(wait):
            return
        yield wait
        if self._dice.random() < 0.3:  # Draw a test after the wait.
            alone = Kind.SIGNAL_FETCH if self._on_host else Kind.TEST
            again = dict(zip(ops.WAITS_FOR_SEVERAL, ops.TESTS_OF_SEVERAL, strict=True)).get(wait.kind, alone)
            yield from self._admitted(wait._replace(kind=again))
        for place in message.places:
            use = self._operation(self._dice.choice((Kind.LOAD, Kind.PUT, Kind.PUT_NBI)), flag.target, who, source=place.at)
            if use.kind == Kind.LOAD:
                use = use._replace(nelems=min(place.nelems, 8))
            else:
                dest = self._fresh(place.nelems)
                use = use._replace(nelems=place.nelems, target=self._dice.randrange(self._shape.n_pes), dest=dest)
            if self._dice.random() < 0.8 and self._rules.admit(use):
                yield self._kept(use)

    def _with_others(self, o: Operation) -> Operation:
        """Extend a wait or test of a word to neighboring words, except those that would make the outcome undefined."""
        dice, here = self._dice, o.word // 8
        first, last = dice.randint(max(0, here - 3), here), dice.randint(here, min(ops.COUNTERS // 8 - 1, here + 3))
        values, left_out = [], 0
        for i, word in enumerate(range(8 * first, 8 * last + 8, 8)):
            value = o.value
            if word != o.word and o.kind in ops.VECTOR:
                fitting = [v for condition, v in _conditions(self._rules.values(o.pe, word)) if condition == o.condition]
                value = dice.choice([*fitting, *fitting, dice.randrange(1 << 62)])
            values.append(value)
            ends = self._rules.awaits(o.pe, word, o.condition, value)
            open_ = o.kind in ops.WAITS_FOR_SEVERAL and (ends is None or (o.kind in ops.ALL and not ends))
            if word != o.word and (open_ or dice.random() < 0.3):
                left_out |= 1 << i
        vector = tuple(values) if o.kind in ops.VECTOR else ()
        return o._replace(word=8 * first, nelems=last - first + 1, left_out=left_out, values=vector)

    def _operation(self, kind: Kind, pe: int, who: int, **fields: Any) -> Operation:
        return Operation(kind, self._phase, pe, who, **fields)

    def _drawn(self, kind: Kind, pe: int) -> Operation:
        """Draw an operation of a kind; the rules may reject it."""
        dice, who = self._dice, self._dice.randrange(self._threads)
        if kind == Kind.SYNCTHREADS:
            return self._operation(kind, pe, 0, scope=ops.BLOCK)
        target = dice.randrange(self._shape.n_pes)
        if kind in _ORDER:
            return self._operation(kind, pe, who, target=target if kind == Kind.QUIET_PE else 0)
        if kind in (Kind.SIGNAL_FETCH, Kind.TEST) or kind in ops.TESTS_OF_SEVERAL:
            word = 8 * dice.randrange(ops.COUNTERS // 8)
            condition, value = dice.choice(_conditions(self._rules.values(pe, word)))
            look = self._operation(kind, pe, who, word=word, value=dice.choice((value, value, 0)), condition=condition)
            if kind in ops.SEVERAL:
                look = self._with_others(look)
                look = look._replace(left_out=dice.choice((look.left_out, look.left_out, (1 << look.nelems) - 1)))
            return look
        if kind in _COPIES or kind in _SIGNALLED:
            o = self._by_some(self._operation(kind, pe, 0, target=target), who)
        else:
            o = self._operation(kind, pe, who, target=target)
        if kind in _COPIES and kind not in ops.STRIDED:
            o = o._replace(qp=dice.choice((0, 0, 1, 2)), whole=dice.random() < 0.7)
        if kind in _SIGNALS:
            adds = kind == Kind.FLAG_ADD or (kind not in (Kind.FLAG_P, Kind.FLAG_SET) and dice.random() < 0.5)
            value = dice.randint(1, 9) if adds else dice.randrange(1 << 62)
            o = o._replace(qp=dice.choice((0, 1, 2)) if kind == Kind.FLAG_P else 0)
            o = o._replace(word=8 * dice.randrange(ops.COUNTERS // 8), value=value, condition=ops.SIGNAL_ADD if adds else ops.SIGNAL_SET)
        if kind in ops.STRIDED:
            return self._with_strides(o)
        if kind in _COPIES or kind in _SIGNALLED:
            return self._with_places(o)
        if kind in _SIGNALS:
            return o
        if kind == Kind.LOAD:
            place = self._place(pe, local=True)
            return o._replace(source=place.at, nelems=min(place.nelems, 8))
        if kind in (Kind.G, Kind.P, Kind.STORE):
            at = self._place(pe, local=True).at if kind == Kind.STORE else self._place(target).at
            at = self._within(at, 1)
            if kind == Kind.G:
                return o._replace(source=at, qp=dice.choice((0, 1)))
            noise = dice.randbytes(self._size)
            data = finite(np.frombuffer(noise, np.uint8), self._shape.dtype) if self._shape.dtype.kind in "fc" else noise
            return o._replace(dest=at, value=int.from_bytes(data, "little"), qp=dice.choice((0, 0, 1, 2)) if kind == Kind.P else 0)
        at = ops.COUNTERS + dice.randrange(min(4, (ops.DATA - ops.COUNTERS) // self._size)) * self._size
        o = o._replace(dest=at, value=self._operand())
        if kind == Kind.ATOMIC_COMPARE_SWAP:
            o = o._replace(condition=dice.choice([*self._set[-2:], dice.getrandbits(8 * self._size)]))
        self._set.append(o.value)
        return o

    def _operand(self) -> int:
        """Draw the bits of an atomic's operand; floats are small integers, so that sums are exact."""
        if self._shape.dtype.kind == "f":
            return int.from_bytes(np.array(self._dice.randint(-50, 50) / 2, self._shape.dtype).tobytes(), "little")
        return self._dice.getrandbits(8 * self._size)

    def _with_strides(self, o: Operation) -> Operation:
        """Draw strides, source, and destination for a few elements."""
        dice, size = self._dice, self._size
        room = (self._shape.region_bytes - ops.DATA) // size
        dst_stride, src_stride = dice.randint(1, 4), dice.randint(1, 4)
        nelems = dice.randint(0, min(8, room // 4))
        dest, source = (self._fresh(nelems * stride) for stride in (dst_stride, src_stride))
        span = nelems * (src_stride if o.kind in ops.PUTS else dst_stride)
        if span * size <= ops.LOCAL_BYTES and dice.random() < _LOCAL_SHARE:
            elsewhere = self._elsewhere(span)
            dest, source = (dest, elsewhere) if o.kind in ops.PUTS else (elsewhere, source)
        return o._replace(nelems=nelems, dst_stride=dst_stride, src_stride=src_stride, dest=dest, source=source)

    def _with_places(self, o: Operation) -> Operation:
        """Draw the number of elements, source, and destination."""
        near, far = self._place(o.pe, local=True), self._place(o.target)
        nelems = near.nelems if self._dice.random() < 0.5 else far.nelems
        limit = ops.LOCAL_BYTES if near.at >= self._shape.region_bytes else self._shape.region_bytes - ops.DATA
        nelems = min(nelems, limit // self._size)
        near_at, far_at = (self._within(p.at, nelems) for p in (near, far))
        source, dest = (far_at, near_at) if o.kind in ops.GETS else (near_at, far_at)
        return o._replace(source=source, dest=max(dest, ops.DATA), nelems=nelems)

    def _place(self, pe: int, *, local: bool = False) -> _Place:
        """Draw elements of a PE's data, often ones used before; local: whether to also draw from its local memory."""
        known = [place for place in self._places if place.pe == pe and (local or place.at < self._shape.region_bytes)]
        if known and self._dice.random() < 0.5:
            return self._dice.choice(known)
        if local and self._dice.random() < _LOCAL_SHARE:
            nelems = self._dice.randint(1, min(8, ops.LOCAL_BYTES // self._size))
            return _Place(pe, self._elsewhere(nelems), nelems)
        nelems = self._nelems()
        return _Place(pe, self._fresh(nelems), nelems)

    def _within(self, at: int, nelems: int) -> int:
        """Move a location back so that nelems elements fit."""
        end = self._shape.region_bytes if at < self._shape.region_bytes else self._shape.memory_bytes
        return min(at, end - nelems * self._size)

    def _nelems(self) -> int:
        most = (self._shape.region_bytes - ops.DATA) // self._size // 2
        few: Callable[[], int] = lambda: self._dice.randint(1, min(8, most))  # noqa: E731
        return self._dice.choice((lambda: 0, few, few, few, few, lambda: self._dice.randint(1, most)))()

    def _fresh(self, nelems: int) -> int:
        """Draw a location in the data for nelems elements."""
        return ops.DATA + self._dice.randint(0, (self._shape.region_bytes - ops.DATA) // self._size - max(nelems, 1)) * self._size

    def _elsewhere(self, nelems: int) -> int:
        """Draw a location in local memory for nelems elements."""
        return self._shape.region_bytes + self._dice.randint(0, ops.LOCAL_BYTES // self._size - max(nelems, 1)) * self._size
