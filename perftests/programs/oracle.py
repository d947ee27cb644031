"""The oracle: OpenSHMEM in plain Python, one operation after the other, which computes memory and fetched values."""

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.operation import Kind, Operation, Program, Shape
from pgas.perftests.programs.rules import Rules, holds


class Results(NamedTuple):
    """Results of a program: bytes of the region by phase and PE; fetched bytes by number of the operation."""

    regions: Sequence[Sequence[bytes]]
    fetched: Mapping[int, bytes]


class Fault(NamedTuple):
    """A difference from the oracle."""

    pe: int
    phase: int
    text: str


def image(seed: int, number: int, pe: int, shape: Shape) -> bytearray:
    """Return a PE's region and local memory before the program."""
    size = shape.dtype.itemsize
    noise = random.Random(f"{seed} {number} {pe}").randbytes(shape.memory_bytes)
    words = ops.SIGNAL_BEGIN.to_bytes(8, "little") * (ops.COUNTERS // 8)
    counters, data = noise[ops.COUNTERS : ops.DATA], noise[ops.DATA :]
    if shape.dtype.kind in "fc":  # Sums must be exact in any order; data must be finite, because conversions change NaNs.
        counters = np.frombuffer(counters, np.uint8)[::size].astype(shape.dtype).tobytes()
        data = finite(np.frombuffer(data, np.uint8), shape.dtype)
    return bytearray(words + counters + data)


def finite(noise: np.ndarray, dtype: np.dtype) -> bytes:
    """Return bytes of floats or complex numbers without infinities and NaNs."""
    if dtype == np.float32:
        return (noise.view(np.uint32) >> np.uint32(2)).tobytes()
    return (noise.view(np.uint64) >> np.uint64(2)).tobytes()


def fetches(shape: Shape, o: Operation) -> int:
    """Return the number of bytes that an operation fetches."""
    if o.kind == Kind.LOAD:
        return o.nelems * shape.dtype.itemsize
    if o.kind in (Kind.SIGNAL_WAIT_UNTIL, Kind.SIGNAL_FETCH, Kind.TEST):
        return 8
    if o.kind in ops.SEVERAL:  # an answer; for _some forms also indices
        return 8 * (1 + (o.nelems if o.kind in ops.SOME else 0))
    return shape.dtype.itemsize if o.kind == Kind.G or ops.is_fetching(o.kind) else 0


class Oracle:
    """The regions of all PEs, and the operations on them."""

    def __init__(self, program: Program) -> None:
        self._program, self._shape = program, program.shape
        self.regions = [image(program.seed, program.number, pe, program.shape) for pe in range(program.shape.n_pes)]

    def faults(self, found: Results) -> Iterator[Fault]:
        values: dict[tuple[int, int], list[int]] = {}
        for phase in range(len(self._shape.ends)):
            operations = [(i, o) for i, o in enumerate(self._program.operations) if o.phase == phase]
            rules = Rules(self._shape, values)
            atomics: dict[tuple[int, int], list[tuple[int, Operation, int]]] = {}
            for number, (i, o) in enumerate(operations):
                rules.admit(o)
                if ops.is_atomic(o.kind):
                    atomics.setdefault((o.target, o.dest), []).append((i, o, number))
                    continue
                wanted = self._perform(o)
                if wanted is not None and (text := self._difference(o, found.fetched.get(i, b""), wanted)):
                    yield Fault(o.pe, phase, text)
            for (pe, at), calls in atomics.items():
                yield from self._atomics(pe, at, calls, rules, found, phase)
            for pe, region in enumerate(self.regions):
                if found.regions[phase][pe] != region:
                    yield Fault(pe, phase, self._wrong_bytes(pe, found.regions[phase][pe], [o for _, o in operations]))

    def _perform(self, o: Operation) -> bytes | None:
        size, here, there = self._shape.dtype.itemsize, self.regions[o.pe], self.regions[o.target]
        if o.kind in ops.PUTS or o.kind in ops.GETS:
            data, dest = (here, there) if o.kind in ops.PUTS else (there, here)
            moved = [bytes(data[lo:hi]) for lo, hi in ops.spread(o.source, o.nelems, o.src_stride, size)]
            if o.src_stride == 1 != o.dst_stride:
                moved = [moved[0][i : i + size] for i in range(0, len(moved[0]), size)]
            elif o.dst_stride == 1 != o.src_stride:
                moved = [b"".join(moved)]
            for (lo, hi), part in zip(ops.spread(o.dest, o.nelems, o.dst_stride, size), moved, strict=True):
                dest[lo:hi] = part
        elif o.kind == Kind.P:
            there[o.dest : o.dest + size] = o.value.to_bytes(size, "little")
        elif o.kind == Kind.STORE:
            here[o.dest : o.dest + size] = o.value.to_bytes(size, "little")
        elif o.kind == Kind.G:
            return bytes(there[o.source : o.source + size])
        elif o.kind == Kind.LOAD:
            return bytes(here[o.source : o.source + o.nelems * size])
        elif o.kind in (Kind.SIGNAL_WAIT_UNTIL, Kind.SIGNAL_FETCH):
            return bytes(here[o.word : o.word + 8])
        elif o.kind == Kind.TEST:
            return int(holds(self._word(o.pe, o.word), o.condition, o.value)).to_bytes(8, "little")
        elif o.kind in ops.SEVERAL:
            return answer(o, self._satisfied(o))
        elif o.kind in ops.COLLECTIVES and o.kind not in ops.MEETINGS:
            self._collective(o)
        if o.kind in ops.FLAGS:
            before = self._word(o.target, o.word) if ops.is_added(o) else 0
            there[o.word : o.word + 8] = (before + o.value).to_bytes(8, "little")
        return None

    def _collective(self, o: Operation) -> None:
        """Give all members of a team their results from the previous contents of the sources."""
        dtype, members = self._shape.dtype, self._shape.teams[o.team]
        sources = [np.frombuffer(self.regions[pe], dtype, o.nelems * o.src_stride, o.source).copy() for pe in members]
        for i, pe in enumerate(members):
            data = taken(o, sources, i).tobytes()
            self.regions[pe][o.dest : o.dest + len(data)] = data

    def _word(self, pe: int, word: int) -> int:
        return int.from_bytes(self.regions[pe][word : word + 8], "little")

    def _satisfied(self, o: Operation) -> list[int]:
        """Return the indices of the words that satisfy the condition."""
        return [i for i, word, value in ops.wait_set(o) if holds(self._word(o.pe, word), o.condition, value)]

    def _is_another(self, o: Operation, found: bytes) -> bool:
        """Whether an answer other than that of answer() is right: _any may return any satisfied word, and wait_until_some one or more."""
        satisfied = self._satisfied(o)
        first, *named = np.frombuffer(found, np.int64).tolist()
        if o.kind in ops.ANY:
            return first in satisfied
        indices, rest = named[:first], named[first:]
        return (
            o.kind in ops.SOME
            and o.kind in ops.WAITS_FOR_SEVERAL
            and first > 0
            and indices == sorted({*indices} & {*satisfied})
            and not any(rest)
        )

    def _difference(self, o: Operation, found: bytes, wanted: bytes) -> str:
        """Describe a wrong fetched value; empty if it is right."""
        if o.kind in ops.WAITS:
            value = int.from_bytes(found, "little")
            right = holds(value, o.condition, o.value)  # A later value may also satisfy it.
            return "" if right else f"{ops.line(self._shape, o)} returned {value} instead of {int.from_bytes(wanted, 'little')}"
        if found == wanted or (o.kind in ops.SEVERAL and self._is_another(o, found)):
            return ""
        if o.kind == Kind.TEST or o.kind in ops.SEVERAL:
            one, other = (np.frombuffer(data, np.int64).tolist() for data in (found, wanted))
            return f"{ops.line(self._shape, o)} answered {one} instead of {other}"
        if o.kind == Kind.SIGNAL_FETCH:
            return f"{ops.line(self._shape, o)} returned {int.from_bytes(found, 'little')} instead of {int.from_bytes(wanted, 'little')}"
        i = next(i for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if a != b) // self._shape.dtype.itemsize
        one, other = (self._element(data, i) for data in (found, wanted))
        return f"{ops.line(self._shape, o)} found {one} instead of {other}" + (f" in element {i}" if o.kind == Kind.LOAD else "")

    def _element(self, data: bytes, i: int) -> str:
        """Return an element as text, integers in hexadecimal."""
        size = self._shape.dtype.itemsize
        part = data[i * size : (i + 1) * size]
        if self._shape.dtype.kind in "fc":
            return f"{np.frombuffer(part, self._shape.dtype)[0]} (0x{part[::-1].hex()})"
        return f"0x{part[::-1].hex()}"

    def _wrong_bytes(self, pe: int, found: bytes, operations: Sequence[Operation]) -> str:
        region, size = self.regions[pe], self._shape.dtype.itemsize
        wrong = [i for i, (a, b) in enumerate(zip(found, region, strict=True)) if a != b]
        at = wrong[0]
        if at < ops.COUNTERS:
            one, other = (int.from_bytes(data[at // 8 * 8 : at // 8 * 8 + 8], "little") for data in (found, region))
            text = f"signal {at // 8} is {one} instead of {other}"
        else:
            name, index = ops.named(self._shape, at)
            what = f"element {index}" if name == "a" else f"element {index} of local memory"
            text = f"{what} is {self._element(found, at // size)} instead of {self._element(bytes(region), at // size)}"
        writers = [ops.line(self._shape, o) for o in operations if _writes(self._shape, o, pe, at)]
        who = f"; it is written by {writers[-1]}" if writers else "; nobody writes to it in this phase"
        return f"{text} ({len(wrong)} wrong byte{'s' if len(wrong) > 1 else ''}){who}"

    def _atomics(
        self, pe: int, at: int, calls: Sequence[tuple[int, Operation, int]], rules: Rules, found: Results, phase: int
    ) -> Iterator[Fault]:
        """Accept a word's final value if some order of its atomics explains it and the values that they fetched."""
        dtype, region = self._shape.dtype, self.regions[pe]
        last = found.regions[phase][pe][at : at + dtype.itemsize]
        first = bytes(region[at : at + dtype.itemsize])
        numbers = [number for _, _, number in calls]
        before = [{numbers.index(n) for n in rules.predecessors[number] if n in numbers} for number in numbers]
        seen = [found.fetched.get(i) for i, _, _ in calls]
        if _explained([o for _, o, _ in calls], before, seen, first, last, dtype):
            region[at : at + dtype.itemsize] = last
            return
        got = [
            f"{ops.line(self._shape, o)}" + (f" found {self._element(s, 0)}" if s else "") for (_, o, _), s in zip(calls, seen, strict=True)
        ]
        yield Fault(
            pe,
            phase,
            f"element {at // dtype.itemsize} was {self._element(first, 0)} and is {self._element(last, 0)}, which no order of its atomics "
            f"explains: {'; '.join(got)}",
        )
        region[at : at + dtype.itemsize] = last


def taken(o: Operation, sources: Sequence[np.ndarray], me: int) -> np.ndarray:
    """Return what member ``me`` receives. Reductions take the maximum of floats, and the sum of others, which integers wrap."""
    dtype, part = sources[0].dtype, slice(me * o.nelems, (me + 1) * o.nelems)
    if o.kind == Kind.BROADCAST:
        return sources[o.target]
    if o.kind in (Kind.ALLTOALL, Kind.FCOLLECT):
        return np.concatenate([source[part] if o.kind == Kind.ALLTOALL else source for source in sources])
    combine, neutral = (np.maximum, -np.inf) if dtype.kind == "f" else (np.add, 0)
    if o.kind in (Kind.INSCAN, Kind.EXSCAN):
        sources = sources[: me + (o.kind == Kind.INSCAN)]
    total: np.ndarray = functools.reduce(combine, sources, np.full(o.nelems * o.src_stride, neutral, dtype))
    return total[part] if o.kind == Kind.REDUCESCATTER else total


def answer(o: Operation, satisfied: Sequence[int]) -> bytes:
    """Return the answer of a wait or test of several words, given those that satisfy the condition; _any returns the first."""
    if o.kind in ops.SOME:
        return np.array([len(satisfied), *satisfied, *[0] * (o.nelems - len(satisfied))], np.int64).tobytes()
    if o.kind in ops.ANY:
        return np.array(satisfied[0] if satisfied else -1, np.int64).tobytes()
    return np.array(len(satisfied) == len(list(ops.wait_set(o))), np.int64).tobytes()


def _writes(shape: Shape, o: Operation, pe: int, at: int) -> bool:
    """Whether an operation writes to a byte of a PE's region."""
    if o.team >= 0:
        return pe in ops.callers(shape, o) and o.dest <= at < o.dest + o.nelems * o.dst_stride * shape.dtype.itemsize
    size = shape.dtype.itemsize
    if o.kind in ops.FLAGS and o.target == pe and o.word <= at < o.word + 8:
        return True
    if o.kind in ops.PUTS or o.kind in ops.GETS:
        parts = ops.spread(o.dest, o.nelems, o.dst_stride, size)
        return (o.target if o.kind in ops.PUTS else o.pe) == pe and any(lo <= at < hi for lo, hi in parts)
    if o.kind in (Kind.P, Kind.STORE) or ops.is_atomic(o.kind):
        return (o.pe if o.kind == Kind.STORE else o.target) == pe and o.dest <= at < o.dest + size
    return False


def _explained(
    calls: Sequence[Operation], before: Sequence[set[int]], seen: Sequence[bytes | None], first: bytes, last: bytes, dtype: np.dtype
) -> bool:
    """Whether some order of the calls that respects ``before`` leads from first to last and explains the fetched values."""
    everything = (1 << len(calls)) - 1
    masks = [sum(1 << i for i in numbers) for numbers in before]
    open_, tried = [(0, first)], {(0, first)}
    while open_:
        done, value = open_.pop()
        if done == everything:
            if value == last:
                return True
            continue
        for i, o in enumerate(calls):
            if not done >> i & 1 and masks[i] & ~done == 0 and (seen[i] is None or seen[i] == value):
                after = done | 1 << i, atomic(o, value, dtype)
                if after not in tried:
                    tried.add(after)
                    open_.append(after)
    return False


def atomic(o: Operation, value: bytes, dtype: np.dtype) -> bytes:
    """Return an element after an atomic."""
    size, kind = dtype.itemsize, o.kind
    operand = o.value.to_bytes(size, "little")
    if kind == Kind.ATOMIC_FETCH:
        return value
    if kind in (Kind.ATOMIC_SET, Kind.ATOMIC_SWAP):
        return operand
    if kind == Kind.ATOMIC_COMPARE_SWAP:
        return operand if value == o.condition.to_bytes(size, "little") else value
    if dtype.kind == "f":
        sum_: np.ndarray = np.frombuffer(value, dtype) + np.frombuffer(operand, dtype)
        return sum_.tobytes()
    before = int.from_bytes(value, "little")
    if kind in (Kind.ATOMIC_ADD, Kind.ATOMIC_FETCH_ADD):
        after = before + o.value
    elif kind in (Kind.ATOMIC_INC, Kind.ATOMIC_FETCH_INC):
        after = before + 1
    elif kind in (Kind.ATOMIC_AND, Kind.ATOMIC_FETCH_AND):
        after = before & o.value
    elif kind in (Kind.ATOMIC_OR, Kind.ATOMIC_FETCH_OR):
        after = before | o.value
    else:
        after = before ^ o.value
    return (after % (1 << 8 * size)).to_bytes(size, "little")
