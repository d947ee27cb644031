"""The proof of the order checker, ``--order``: random programs under it, whole, and with one ordering operation left out.

The rules by which programs are drawn (rules.py) tell which operations matter: without one of those, the rest of the program has a race.
The checker does not know these rules. It must find nothing in a whole program, and a race in one that lacks an operation that matters::

    mpirun -n 2 python -m pgas.perftests.programs --order --count 10000

performs 10,000 programs, each twice, and prints every false alarm and every miss with its program. It needs the simulator.
"""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pgas
from pgas.check import record
from pgas.check.memory import MemoryAccess
from pgas.check.order import Order
from pgas.kernels import window
from pgas.kernels.compiler import simulator
from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.draw import GROUP, draw, shape
from pgas.perftests.programs.operation import Kind, PhaseEnd, Program, Shape, line
from pgas.perftests.programs.rules import Race, races
from pgas.perftests.programs.trial import Trial

#: Operations that are left out.
ORDERING = (
    *(Kind.FENCE, Kind.QUIET, Kind.QUIET_PE, Kind.FLUSH, Kind.SYNCTHREADS),
    *(*ops.WAITS, *ops.WAITS_FOR_SEVERAL, *ops.MEETINGS),
)

#: Tests, of which nothing in a program depends. One that succeeds would order what follows by luck.
_TESTS = (Kind.TEST, Kind.SIGNAL_FETCH, *ops.TESTS_OF_SEVERAL)

#: Numbers of threads and sizes of regions, few and small because the checker sees every access of the interpreter.
_THREADS, _REGIONS = (1, 1, 1, 1, 2, 2, 3, 4), (384, 512, 512, 768)

#: Fraction of programs without an operation that matters, among those that have one.
_NEEDED_SHARE = 0.8


class OrderCase(NamedTuple):
    """A program, the operation that is left out, -1 for none, and the races that the rest then has."""

    program: Program
    left_out: int = -1
    races: tuple[Race, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.races)

    @property
    def performed(self) -> Program:
        if self.left_out < 0:
            return self.program
        kept = (o for i, o in enumerate(self.program.operations) if i != self.left_out and o.kind not in _TESTS)
        return self.program._replace(operations=tuple(kept))

    def __str__(self) -> str:
        program, shape_ = self.program, self.program.shape
        lines = [f"program {program.number} of seed {program.seed}: {shape_.threads} threads, {shape_.dtype.name}"]
        for i, o in enumerate(program.operations):
            mark = "(left out) " if i == self.left_out else "(on hosts) " if o.phase == shape_.on_host else ""
            lines.append(f"  phase {o.phase}: {mark}{line(shape_, o)}")
        for race in self.races[:3]:
            one, two = (line(shape_, self.performed.operations[number]) for number in (race.first, race.second))
            lines.append(f"  race: {one} and {two}")
        return "\n".join(lines)


def drawn(seed: int, group: int, n_pes: int) -> list[Program]:
    """Return the programs of a group."""
    dice = random.Random(f"ordered {seed} {group}")
    shape_ = shape(seed, group, n_pes)._replace(threads=dice.choice(_THREADS), region_bytes=dice.choice(_REGIONS))
    if shape_.threads < ops.LANES:
        ends = (PhaseEnd.BARRIER_BLOCK if end == PhaseEnd.BARRIER_WARP else end for end in shape_.ends)
        shape_ = shape_._replace(ends=tuple(ends))
    return [draw(seed, number, n_pes, shape_) for number in range(group * GROUP, (group + 1) * GROUP)]


def without_one(program: Program) -> Iterator[OrderCase]:
    """Yield a program without each of its ordering operations, unless kernels themselves would notice its absence."""
    for number, o in enumerate(program.operations):
        if o.kind in ORDERING:
            case = OrderCase(program, number)
            found = races(program.shape, case.performed.operations)
            if not any(race.channel or _may_hang(case.performed, race) for race in found):
                yield case._replace(races=tuple(found))


def _may_hang(program: Program, race: Race) -> bool:
    """Whether a race is of two updates of a signal word on a PE that waits, so that a wait for both may never end."""
    one, other = (program.operations[number] for number in (race.first, race.second))
    if one.kind not in ops.FLAGS or other.kind not in ops.FLAGS or (one.target, one.word) != (other.target, other.word):
        return False
    return any(o.pe == one.target and o.kind in (*ops.WAITS, *ops.WAITS_FOR_SEVERAL) for o in program.operations)


def _one_of(program: Program) -> OrderCase:
    """Return a program without one of its ordering operations, mostly one that matters."""
    dice = random.Random(f"left out {program.seed} {program.number}")
    cases = list(without_one(program))
    needed, others = [case for case in cases if case.needed], [case for case in cases if not case.needed]
    chosen = needed if needed and (not others or dice.random() < _NEEDED_SHARE) else others
    return dice.choice(chosen) if chosen else OrderCase(program)


def _cases(programs: Sequence[Program]) -> list[OrderCase]:
    """Return each program without one of its ordering operations; each PE chooses some of them. Collective."""
    me, n_pes = pgas.my_pe(), pgas.n_pes()
    shares = pgas.allgather_object([_one_of(program) for program in programs[me::n_pes]])
    return [shares[i % n_pes][i // n_pes] for i in range(len(programs))]


class OrderTrial:
    """Programs under the order checker. All methods are collective."""

    def __init__(self, folder: Path) -> None:
        """folder: an empty folder, the same on all PEs."""
        self._folder = folder
        self._recorder = record.install(folder)
        self._trial = Trial()
        area, local = self._trial.arrays[0], self._trial.local
        self._area = simulator.address_of(area) & window.OFFSET_MASK
        self._local = pgas.allgather_object(simulator.address_of(local))

    def free(self) -> None:
        self._trial.free()

    def findings(self, groups: Sequence[Sequence[Program]]) -> list[dict[int, list[str]]]:
        """Perform groups of programs of one shape each; return the races that the checker finds, by position in the group."""
        me, n_pes = pgas.my_pe(), pgas.n_pes()
        folders = [self._folder / str(i) for i in range(len(groups))]
        for programs, folder in zip(groups, folders, strict=True):
            self._begin(folder)
            self._trial.perform(programs, copies_of=0)
        self._begin(self._folder / "none")
        own = {i: self._judge(groups[i][0].shape, folders[i]) for i in range(me, len(groups), n_pes)}
        found = {i: races for part in pgas.allgather_object(own) for i, races in part.items()}
        if me == 0:
            for folder in (*folders, self._folder / "none"):
                shutil.rmtree(folder)
        return [found[i] for i in range(len(groups))]

    def _begin(self, folder: Path) -> None:
        """Begin a log. No PE has events of the next log before all have ended this one."""
        folder.mkdir(exist_ok=True)
        pgas.allgather_object(None)
        self._recorder.restart(folder)
        self._recorder.begin()
        pgas.allgather_object(None)

    def _judge(self, shape_: Shape, folder: Path) -> dict[int, list[str]]:
        """Return the races of a log by program."""
        found: dict[int, list[str]] = {}

        def race(first: MemoryAccess, second: MemoryAccess, addr: int, state: Any) -> None:
            found.setdefault(self._program_at(shape_, addr), []).append(f"{_words(first)}, then {_words(second)}")

        Order.of(folder, race)
        return found

    def _program_at(self, shape_: Shape, addr: int) -> int:
        """Return the position of the program that has an address, -1 if none has: locations determine the program."""
        pe, _ = Order.place(addr)
        if pe >= 0:
            at = (addr & window.OFFSET_MASK) - self._area
            return at // shape_.region_bytes if 0 <= at < GROUP * shape_.region_bytes else -1
        pe, own = Order.owner(addr)
        at = own - self._local[pe] if pe >= 0 else -1
        return at // ops.LOCAL_BYTES if 0 <= at < GROUP * ops.LOCAL_BYTES else -1


def _words(access: MemoryAccess) -> str:
    e = access.epoch
    return f"{access.what} by PE {e.pe}, thread {(e.thread - e.block) & 0xFFFFFF}"


def run(seed: int, first: int, count: int) -> int:
    """Check programs, in groups, and print what was found. Returns the exit status: 1 if there is a false alarm or a miss."""
    folder = Path(pgas.broadcast_object(tempfile.mkdtemp(prefix="pgas-order-") if pgas.my_pe() == 0 else None, 0))
    checker, tally, left_out, started = OrderTrial(folder), Counter[str](), Counter[str](), time.monotonic()
    for group in range(first // GROUP, (first + count + GROUP - 1) // GROUP):
        programs = drawn(seed, group, pgas.n_pes())
        cases = _cases(programs)
        of_whole, of_rest = checker.findings([programs, [case.performed for case in cases]])
        for place in sorted({*of_whole} - {*range(GROUP)} | {*of_rest} - {*range(GROUP)}):
            _say(f"a race that belongs to no program: {[*of_whole.get(place, ()), *of_rest.get(place, ())][0]}")
            tally["false alarms"] += 1
        for place, case in enumerate(cases):
            tally["programs"] += 1
            if place in of_whole:
                tally["false alarms"] += 1
                _say(f"false alarm: {of_whole[place][0]}\n{OrderCase(case.program)}")
                continue
            if case.left_out < 0:
                continue
            found = place in of_rest
            kind = case.program.operations[case.left_out].kind.name.lower()
            tally["needed" if case.needed else "unneeded"] += 1
            left_out[kind] += case.needed
            if case.needed and not found:
                tally["misses"] += 1
                _say(f"miss of {kind}\n{case}")
            elif found and not case.needed:
                tally["unneeded and found"] += 1
                _say(f"not needed, but found: {of_rest[place][0]}\n{case}")
    seconds = time.monotonic() - started
    _say(
        f"{tally['programs']} programs of {pgas.n_pes()} PEs, seed {seed}: {tally['false alarms']} false alarms; "
        f"{tally['needed']} without an operation that matters: {tally['needed'] - tally['misses']} found, {tally['misses']} missed; "
        f"{tally['unneeded']} without another: {tally['unneeded and found']} found; {seconds:.1f} s"
    )
    _say(f"operations that matter: {', '.join(f'{kind} {n}' for kind, n in sorted(left_out.items()) if n)}")
    checker.free()
    if pgas.my_pe() == 0:
        shutil.rmtree(folder)
    return 1 if tally["false alarms"] or tally["unneeded and found"] or tally["misses"] * 100 > tally["needed"] else 0


def _say(text: str) -> None:
    if pgas.my_pe() == 0:
        print(f"programs: {text}", file=sys.stdout, flush=True)
