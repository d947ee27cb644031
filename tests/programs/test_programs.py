"""Random programs: drawing, rules and oracle separately; faults are found, made smaller and reported."""

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import by_pgas_run
from perf_runs import mpirun, with_mpirun

import pgas
from pgas.base import config
from pgas.kernels.compiler.binding import HOST_FORMS
from pgas.perftests.programs import __main__ as programs
from pgas.perftests.programs import interpreter, oracle
from pgas.perftests.programs.draw import DTYPES, GROUP, draw, shape
from pgas.perftests.programs.operation import (
    BLOCK,
    COLLECTIVES,
    COUNTERS,
    DATA,
    FLAGS,
    GETS,
    PUTS,
    SEVERAL,
    SIGNAL_ADD,
    SIGNAL_BEGIN,
    SIGNAL_SET,
    THREAD,
    WARP,
    Kind,
    Operation,
    PhaseEnd,
    Program,
    Shape,
    line,
)
from pgas.perftests.programs.oracle import Oracle, Results, fetches, image
from pgas.perftests.programs.rules import defined
from pgas.perftests.programs.shrink import legal, shrunk

simulated = pytest.mark.skipif(not pgas.SIMULATOR, reason="needs the simulator: it changes what kernels call")

SHAPE = Shape(3, 1, np.dtype(np.uint32), 512, (PhaseEnd.BARRIER,))
A, B = DATA, DATA + 64
EQ, GE = 0, 5


# --------------------------------------------------------------------------------------------------------------- what is drawn


@pytest.fixture(scope="module")
def drawn():
    return [draw(3, group * GROUP + i, 2 + group % 2) for group in range(300) for i in range(4)]


def test_everything_occurs(drawn):
    found = Counter((o.kind, o.scope) for program in drawn for o in program.operations)
    copies = [kind for kind in Kind if kind <= Kind.PUT_SIGNAL_NBI]
    assert {key for key in found if key[0] in copies} == {(kind, scope) for kind in copies for scope in (THREAD, WARP, BLOCK)}
    assert {kind for kind, _ in found} == set(Kind)
    assert {key for key in found if key[0] in COLLECTIVES} == {(kind, scope) for kind in COLLECTIVES for scope in (THREAD, WARP, BLOCK)}
    shapes = {program.shape for program in drawn}
    assert {s.dtype.name for s in shapes} == set(DTYPES)
    assert {end for s in shapes for end in s.ends} == set(PhaseEnd)
    assert {o.target == o.pe for program in drawn for o in program.operations if o.kind == Kind.PUT} == {True, False}
    hosts = {o.kind for p in drawn for o in p.operations if o.phase == p.shape.on_host}
    assert hosts == {kind for kind in Kind if kind not in (*SEVERAL, Kind.TEST, Kind.SYNCTHREADS)}
    local = {o.kind for p in drawn for o in p.operations if max(o.source, o.dest) >= p.shape.region_bytes}
    assert local == {*PUTS, *GETS, Kind.LOAD, Kind.STORE}
    assert {o.source % 16 for program in drawn for o in program.operations if o.kind == Kind.PUT} == set(range(16))


def test_programs_are_defined_and_stay_in_their_regions(drawn):
    for program in drawn:
        assert defined(program.shape, program.operations)
        size, end = program.shape.dtype.itemsize, program.shape.region_bytes
        for o in program.operations:
            local = o.source if o.kind in PUTS or o.kind == Kind.LOAD else o.dest if o.kind in GETS or o.kind == Kind.STORE else None
            for at, stride in ((o.dest, o.dst_stride), (o.source, o.src_stride)):
                assert at % size == 0
                elsewhere = at >= end and at == local
                assert at + (1 if o.kind == Kind.STORE else o.nelems) * stride * size <= (program.shape.memory_bytes if elsewhere else end)
            assert o.word + 8 <= COUNTERS


def test_a_seed_gives_the_same_program():
    assert draw(5, 77, 3) == draw(5, 77, 3)
    assert draw(5, 77, 3) != draw(6, 77, 3)
    assert len({shape(5, group, 3) for group in range(50)}) > 20


def test_operations_have_distinct_numbers():
    for kind in Kind:
        assert getattr(interpreter, "_" + kind.name.removeprefix("ATOMIC_")) == kind


# ------------------------------------------------------------------------------------------------------------------- the rules


def put(pe, target, dest=A, source=B, nelems=4, kind=Kind.PUT, **more):
    return Operation(kind, 0, pe, 0, target=target, dest=dest, source=source, nelems=nelems, **more)


def call(kind, pe, target=0, **more):
    return Operation(kind, 0, pe, 0, target=target, **more)


def several(kind, left_out, *values):
    """Return a wait or test of PE 1 for words from 8 on to equal these values."""
    return Operation(Kind[f"{kind.name}_VECTOR"], 0, 1, 0, word=8, nelems=len(values), left_out=left_out, values=values, condition=EQ)


FLAG = call(Kind.SIGNAL_OP, 0, 1, word=8, value=7, condition=SIGNAL_SET)
FLAG_2 = FLAG._replace(word=16, value=9)
WAIT = call(Kind.WAIT_UNTIL, 1, word=8, value=7, condition=EQ)
READ = call(Kind.LOAD, 1, source=A, nelems=4)
FENCE, QUIET, FLUSH = (call(kind, 0) for kind in (Kind.FENCE, Kind.QUIET, Kind.FLUSH))
QUIET_1, QUIET_2 = (call(Kind.QUIET_PE, 0, pe) for pe in (1, 2))
GET = call(Kind.GET, 0, 1, dest=A + 128, source=A, nelems=4)
NBI = put(0, 1, kind=Kind.PUT_NBI)
STORE = call(Kind.STORE, 0, dest=B)
SIGNALLED = put(0, 1, kind=Kind.PUT_SIGNAL, word=8, value=7, condition=SIGNAL_SET)
ADDS = [call(Kind.ATOMIC_ADD, pe, 2, dest=COUNTERS, value=1) for pe in (0, 1)]

RULES = {
    "two PEs write": ([put(0, 2), put(1, 2)], False),
    "two PEs write beside each other": ([put(0, 2), put(1, 2, dest=A + 16)], True),
    "a PE writes twice": ([put(0, 2), put(0, 2)], False),
    "a PE writes twice with a fence": ([put(0, 2), FENCE, put(0, 2)], True),
    "a PE writes twice with a fence before": ([FENCE, put(0, 2), put(0, 2)], False),
    "put, get": ([put(0, 1), GET], False),
    "put, fence, get": ([put(0, 1), FENCE, GET], False),
    "put, quiet, get": ([put(0, 1), QUIET, GET], True),
    "put, quiet of that PE, get": ([put(0, 1), QUIET_1, GET], True),
    "put, quiet of another PE, get": ([put(0, 1), QUIET_2, GET], False),
    "put, quiet of another thread's PE, get of a third": ([put(0, 1), QUIET, call(Kind.G, 2, 1, source=A)], False),
    "put, store to the source": ([put(0, 1), STORE], True),
    "put_nbi, store to the source": ([NBI, STORE], False),
    "put_nbi, fence, store to the source": ([NBI, FENCE, STORE], False),
    "put_nbi, flush, store to the source": ([NBI, FLUSH, STORE], True),
    "put_nbi, flush, get of the data": ([NBI, FLUSH, GET], False),
    "get_nbi, use": ([GET._replace(kind=Kind.GET_NBI), put(0, 2, source=A + 128)], False),
    "get_nbi, flush, use": ([GET._replace(kind=Kind.GET_NBI), FLUSH, put(0, 2, source=A + 128)], False),
    "get_nbi, quiet, use": ([GET._replace(kind=Kind.GET_NBI), QUIET, put(0, 2, source=A + 128)], True),
    "flag without fence": ([put(0, 1), FLAG, WAIT, READ], False),
    "flag after fence": ([put(0, 1), FENCE, FLAG, WAIT, READ], True),
    "flag after fence, no wait": ([put(0, 1), FENCE, FLAG, READ], False),
    "flag after fence, data elsewhere": ([put(0, 2), FENCE, FLAG, WAIT, call(Kind.G, 1, 2, source=A)], False),
    "flag after quiet, data elsewhere": ([put(0, 2), QUIET, FLAG, WAIT, call(Kind.G, 1, 2, source=A)], True),
    "flag after flush": ([put(0, 1), FLUSH, FLAG, WAIT, READ], False),
    "put_signal": ([SIGNALLED, WAIT, READ], True),
    "put_signal and an earlier put": ([put(0, 1, dest=A + 16), SIGNALLED, WAIT, READ._replace(nelems=5)], False),
    "a wait that nobody ends": ([WAIT], False),
    "a wait that has ended before": ([FLAG, FENCE, FLAG._replace(value=8), WAIT], False),
    "a wait whose flag is overwritten": ([FLAG, WAIT, FENCE, FLAG._replace(value=8)], False),
    "a chain of three": (
        [
            put(0, 1), FENCE, FLAG, WAIT, put(1, 2, source=A), call(Kind.FENCE, 1),
            call(Kind.SIGNAL_OP, 1, 2, word=0, value=1, condition=SIGNAL_ADD),
            call(Kind.SIGNAL_WAIT_UNTIL, 2, word=0, value=SIGNAL_BEGIN + 1, condition=GE), call(Kind.LOAD, 2, source=A, nelems=4),
        ],
        True,
    ),
    "atomics of two PEs": (ADDS, True),
    "an atomic and a put": ([ADDS[0], put(1, 2, dest=COUNTERS, nelems=1)], False),
    "source and destination overlap": ([put(0, 0, dest=A, source=A + 4)], False),
    "all of two words": ([put(0, 1), FENCE, FLAG, FLAG_2, several(Kind.WAIT_UNTIL_ALL, 0, 7, 9), READ], True),
    "all of two words, one of them not set": ([FLAG, several(Kind.WAIT_UNTIL_ALL, 0, 7, 9)], False),
    "all of two words, one of them left out": ([FLAG, several(Kind.WAIT_UNTIL_ALL, 0b10, 7, 9)], True),
    "any of two words, one of them not set": ([put(0, 1), FENCE, FLAG, several(Kind.WAIT_UNTIL_ANY, 0, 7, 9), READ], True),
    "any of two words, and both are set": ([put(0, 1), FENCE, FLAG, FLAG_2, several(Kind.WAIT_UNTIL_ANY, 0, 7, 9), READ], False),
    "some of two words, and both are set": ([FLAG, FLAG_2, several(Kind.WAIT_UNTIL_SOME, 0, 7, 9)], True),
    "some of two words, one of them no more": (
        [FLAG_2, FENCE, FLAG, FLAG_2._replace(value=5), several(Kind.WAIT_UNTIL_SOME, 0, 7, 9)],
        False,
    ),
    "some of no words": ([several(Kind.WAIT_UNTIL_SOME, 0b11, 7, 9)], True),
    "some of words that are set later": ([several(Kind.WAIT_UNTIL_SOME, 0b01, 7, SIGNAL_BEGIN), FLAG_2], False),
    "a look at words that may just be set": ([FLAG, several(Kind.TEST_ANY, 0, 7, 9)], False),
    "a look at words that were awaited": ([FLAG, WAIT, several(Kind.TEST_ANY, 0, 7, 9)], True),
    "interleaved": (
        [put(pe, 2, dest=A + 4 * pe, kind=Kind.IPUT, dst_stride=2) for pe in (0, 1)],
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rule(name):
    operations, right = RULES[name]
    assert defined(SHAPE, tuple(operations)) == right


def test_threads_of_a_block_need_a_barrier():
    shape_ = SHAPE._replace(threads=32)
    block, store = put(0, 1, kind=Kind.PUT_NBI, scope=BLOCK), STORE
    sync = Operation(Kind.SYNCTHREADS, 0, 0, 0, scope=BLOCK)
    assert not defined(shape_, (block, QUIET, store))
    assert defined(shape_, (block, sync, QUIET, store))
    assert not defined(shape_, (block, sync, QUIET, store._replace(who=1)))
    assert defined(shape_, (block, sync, QUIET, sync, store._replace(who=1)))


def collective(kind, nelems, *, who=0, channel=0, dest=A, source=B, **more):
    """Return a collective of PEs 1 and 0, thread 0 of each."""
    return Operation(kind, 0, 1, who, team=0, channel=channel, dest=dest, source=source, nelems=nelems, **more)


SMALL, LARGE = collective(Kind.REDUCE, 16), collective(Kind.REDUCE, 17, source=A + 256)
MEET = collective(Kind.TEAM_SYNC, 0)


@pytest.mark.parametrize(
    ("operations", "right"),
    [
        ([SMALL, SMALL], True),
        ([LARGE, LARGE], False),  # a member that is ahead writes into the dest of one that has not returned
        ([LARGE, MEET, LARGE], True),
        ([call(Kind.LOAD, 0, source=A, nelems=4), LARGE], False),
        ([call(Kind.LOAD, 0, source=A, nelems=4), MEET, LARGE], True),
        ([put(0, 1), SMALL], False),
        ([put(0, 1), MEET, SMALL], False),  # it completes nothing
        ([put(0, 1), MEET._replace(kind=Kind.BARRIER), SMALL], True),
        ([SMALL, call(Kind.G, 0, 1, source=A)], False),
        ([SMALL, MEET, call(Kind.G, 0, 1, source=A)], True),
        ([SMALL._replace(dest=B)], True),  # in place
        ([collective(Kind.ALLTOALL, 2, dest=B, dst_stride=2, src_stride=2)], False),
        ([SMALL, SMALL._replace(who=1)], False),  # threads that call one after another
        ([SMALL, SMALL._replace(who=1, channel=1, dest=B + 64)], True),
    ],
)
def test_rule_of_collectives(operations, right):
    assert defined(SHAPE._replace(threads=2, region_bytes=1024, teams=((1, 0),)), tuple(operations)) == right


# ------------------------------------------------------------------------------------------------------------------ the oracle


def performed(operations, spoil=lambda regions, fetched: None):
    """Return the faults of a program whose operations took effect immediately, in the order of the list."""
    program = Program(1, 0, SHAPE, tuple(operations))
    regions, fetched = [image(1, 0, pe, SHAPE) for pe in range(3)], {}
    for number, o in enumerate(operations):
        if o.kind == Kind.PUT:
            regions[o.target][o.dest : o.dest + 4 * o.nelems] = regions[o.pe][o.source : o.source + 4 * o.nelems]
        elif o.kind in (Kind.ATOMIC_FETCH_ADD, Kind.ATOMIC_SWAP):
            word = int.from_bytes(regions[o.target][o.dest : o.dest + 4], "little")
            fetched[number] = word.to_bytes(4, "little")
            after = o.value if o.kind == Kind.ATOMIC_SWAP else (word + o.value) % 2**32
            regions[o.target][o.dest : o.dest + 4] = after.to_bytes(4, "little")
    spoil(regions, fetched)
    return list(Oracle(program).faults(Results([[bytes(region) for region in regions]], fetched)))


def test_a_wrong_byte_is_named():
    operations = [put(0, 1), put(2, 1, dest=A + 16)]
    assert performed(operations) == []

    def spoil(regions, fetched):
        regions[1][A + 17] ^= 1

    (fault,) = performed(operations, spoil)
    assert fault[:2] == (1, 0)
    assert re.match(
        r"element 52 is 0x\w{8} instead of 0x\w{8} \(1 wrong byte\); it is written by PE 2 thread 0: put\(a\[52:56\], ", fault.text
    )

    def beside(regions, fetched):
        regions[0][A] ^= 1

    (fault,) = performed(operations, beside)
    assert fault.pe == 0
    assert fault.text.endswith("(1 wrong byte); nobody writes to it in this phase")


def test_atomics_are_explained_by_an_order():
    calls = [
        call(Kind.ATOMIC_FETCH_ADD, 0, 2, dest=COUNTERS, value=5),
        call(Kind.ATOMIC_SWAP, 1, 2, dest=COUNTERS, value=100),
        call(Kind.ATOMIC_FETCH_ADD, 0, 2, dest=COUNTERS, value=7),
    ]
    for order in ((0, 1, 2), (1, 0, 2), (0, 2, 1)):
        program = [calls[i] for i in order]
        assert performed(program) == []

    def lost(regions, fetched):
        regions[2][COUNTERS] ^= 1

    assert "which no order of its atomics explains: " in performed(calls, lost)[0].text

    def turned(regions, fetched):  # swap PE 0's first and last fetched values
        fetched[0], fetched[2] = fetched[2], fetched[0]

    assert len(performed(calls, turned)) == 1


def test_sizes_of_fetched_values(drawn):
    for program in drawn[:200]:
        for o in program.operations:
            wanted = Oracle(program)._perform(o) if o.kind < Kind.ATOMIC_ADD else b"x" * fetches(program.shape, o)
            assert len(wanted or b"") == fetches(program.shape, o)
            assert line(program.shape, o).startswith(f"PE {o.pe} " if o.team < 0 else "PEs ")


@pytest.mark.parametrize(
    ("kind", "answers", "wrong"),
    [
        (Kind.TEST_ALL, [[0]], [[1]]),
        (Kind.TEST_ANY, [[0], [2]], [[1], [-1], [3]]),
        (Kind.TEST_SOME, [[2, 0, 2, 0, 0]], [[1, 0, 0, 0, 0], [2, 2, 0, 0, 0], [0, 0, 0, 0, 0]]),
        (Kind.WAIT_UNTIL_SOME, [[2, 0, 2, 0, 0], [1, 0, 0, 0, 0], [1, 2, 0, 0, 0]], [[1, 1, 0, 0, 0], [2, 2, 0, 0, 0], [1, 0, 2, 0, 0]]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_answers_of_several(kind, answers, wrong):
    """Words 0, 2 and 3 satisfy the condition, 1 does not, and 3 is excluded."""
    values = SIGNAL_BEGIN, 5, SIGNAL_BEGIN, SIGNAL_BEGIN
    look = several(kind, 0b1000, *values)
    for answer in [*answers, *wrong]:
        faults = performed([look], lambda _, fetched, words=answer: fetched.update({0: np.array(words, np.int64).tobytes()}))
        assert bool(faults) == (answer in wrong), answer


# ------------------------------------------------------------------------------------------------------------------- shrinking


def test_irrelevant_operations_are_dropped():
    program = next(p for p in (draw(1, number, 2) for number in range(1000)) if sum(o.kind in FLAGS for o in p.operations) > 3)
    culprit = [i for i, o in enumerate(program.operations) if o.kind in FLAGS][2]
    asked = []

    def fails(candidate):
        asked.append(candidate)
        return any(number == culprit for number, _ in candidate)

    small = shrunk(program, fails, 100)
    assert [number for number, _ in small] == [culprit]
    assert all(legal(program, candidate) == candidate for candidate in asked)
    assert len(asked) <= 100


def test_necessary_fences_stay():
    operations = (put(0, 1), put(2, 0, dest=A + 64, nelems=1), FENCE, FLAG, WAIT, READ)
    program = Program(1, 0, SHAPE, operations)
    small = shrunk(program, lambda candidate: any(o.kind == Kind.LOAD for _, o in candidate) and len(candidate) > 4, 100)
    assert [(o.kind, o.nelems) for _, o in small] == [
        (Kind.PUT, 1),
        (Kind.FENCE, 0),
        (Kind.SIGNAL_OP, 0),
        (Kind.WAIT_UNTIL, 0),
        (Kind.LOAD, 1),
    ]


# ------------------------------------------------------------------------------------------------- what is wrong in a run is found


@simulated
def test_right_programs_pass(capsys):
    assert programs.run(["--count", "64", "--seed", "9"]) == 0
    assert re.search(r"^programs: 64 programs of 1 PEs, seed 9: \d+ operations in .* 0 failed; over p2p$", capsys.readouterr().out, re.M)


#: Operations of which one by one does nothing, in `make check-all` only.
OTHERS = ("g", Kind.G), ("iget_block", Kind.IGET), ("test_some", Kind.TEST_SOME), ("alltoall", Kind.ALLTOALL)


@simulated
@pytest.mark.parametrize(("name", "kind"), [("put", Kind.PUT), *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)])
def test_an_operation_that_does_nothing_is_found(name, kind, monkeypatch, capsys):
    """It is reported as a program of that operation only, with commands that run it again."""
    monkeypatch.setattr(pgas, name, lambda *_, **__: 0)
    monkeypatch.setattr(interpreter, "_with_collectives", functools.cache(interpreter._with_collectives.__wrapped__))
    assert programs.run(["--count", "1000", "--seed", "9"]) == 1
    told = capsys.readouterr().err
    first = re.search(r"error: program (\d+) of seed 9: PE 0, phase \d: ", told)
    assert f"--seed 9 --first {first[1]} --count 1\n" in told
    small = re.findall(r"^programs:     PEs? 0 (?:thread|warp|block).*: (\w+)\(", told, re.M)
    assert small == [name]
    kept = re.search(r"--first (\d+) --keep (\S+)\n", told)
    assert draw(9, int(kept[1]), 1).operations[int(kept[2].partition(":")[0])].kind == kind

    assert programs.run(["--seed", "9", "--first", kept[1], "--keep", kept[2]]) == 1
    assert "16 of 16 copies failed" in capsys.readouterr().err
    monkeypatch.undo()
    assert programs.run(["--seed", "9", "--first", kept[1], "--keep", kept[2]]) == 0


@simulated
@pytest.mark.parametrize("name", ["iput", *(pytest.param(name, marks=pytest.mark.slow) for name in ("get_nbi", "atomic_inc"))])
def test_an_operation_of_hosts_that_does_nothing_is_found(name, monkeypatch, capsys):
    monkeypatch.setitem(HOST_FORMS, name, lambda *_, **__: None)
    assert programs.run(["--count", "4000", "--seed", "9"]) == 1
    told = capsys.readouterr().err
    assert re.search(r"^programs:   phase \d, of hosts, ended by ", told, re.M)
    assert re.findall(r"^programs:     PE 0 (?:thread|warp|block).*: (\w+)\(", told, re.M) == [name]


@pytest.mark.slow
@simulated
def test_an_oracle_with_a_wrong_rule_is_found(monkeypatch, capsys):
    right = oracle.atomic
    wrong = lambda o, value, dtype: value if o.kind == Kind.ATOMIC_OR else right(o, value, dtype)  # noqa: E731
    monkeypatch.setattr(oracle, "atomic", wrong)
    assert programs.run(["--count", "2000", "--seed", "9"]) == 1
    assert re.search(r"which no order of its atomics explains: PE 0 thread 0: atomic_or\(a, \d+, ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--count", "0"], "argument --count: 0 is out of range"),
        (["--types", "int8"], "argument --types: 'int8' is unknown; it must be one of uint8, "),
        (["--keep", "1:x"], "argument --keep: '1:x' is not a list of numbers"),
        (["--transport", "tcp"], "argument --transport: 'tcp' is unknown"),
    ],
)
def test_bad_value_is_one_sentence(argv, words, capsys, monkeypatch):
    monkeypatch.delenv("PMI_RANK", raising=False)
    with pytest.raises(SystemExit) as stop:
        programs.run(argv)
    assert stop.value.code == 2
    assert f"programs: error: {words}" in capsys.readouterr().err


def test_the_command_that_runs_programs_again(monkeypatch):
    """By the launcher of these, with the variables that are set, and without the job's secret."""
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    told = {"PGAS_LAUNCHED": by_pgas_run(3), "PGAS_SECRET": "key", "PGAS_PES_PER_NODE": "2,1"}
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pgas, "n_pes", lambda: 3)
    command = programs._command(SimpleNamespace(types=DTYPES, seed=4), ["--keep", "1:2"])
    assert command == "PGAS_PES_PER_NODE=2,1 python -m pgas.run -n 3 python -m pgas.perftests.programs --seed 4 --keep 1:2"


@pytest.mark.slow
@simulated
@with_mpirun
def test_the_soak_test(tmp_path):
    """Without a fault, and with a put_warp that does nothing."""
    done = mpirun(2, "-m", "pgas.perftests.programs", "--soak", "1", "--transport", "ibgda")
    assert re.search(r"^programs: soak of 2 PEs, seed 1: \d{3,} operations, .* 0 faults; over ibgda$", done.stdout, re.M)
    (tmp_path / "without.py").write_text(WITHOUT)
    done = mpirun(2, tmp_path / "without.py", "put_warp", "--soak", "1", status=1)
    assert re.search(r"error: PE \d: word \d+ is 0x\w+ instead of 0x\w+; put_warp of \d+ bytes with PE \d, ", done.stderr)


WITHOUT = """
import sys, pgas
from pgas.perftests.programs import __main__ as programs

setattr(pgas, sys.argv[1], lambda *_, **__: None)
sys.exit(programs.run(sys.argv[2:]))
"""


@pytest.mark.slow
@simulated
@with_mpirun
@pytest.mark.parametrize(("name", "transport"), [("fence", "p2p"), ("flush", "ibgda")])
def test_a_missing_order_is_found(name, transport, tmp_path):
    """Under weak memory. What is left of the program: data, the fence that does nothing, a flag, and one who reads too early; or a put, the
    flush that does nothing, and a store to its source. More is left where a machine that is busy hides that a smaller one fails: how small
    is tested without chance above. A fence is found over ibgda too, but only between queue pairs, in one of some hundred programs, or as a
    flag that never comes: too long for a test."""
    (tmp_path / "without.py").write_text(WITHOUT)
    arguments = ["--count", "2000", "--seed", "2", "--transport", transport]
    done = mpirun(2, tmp_path / "without.py", name, *arguments, timeout=300, status=1, PGAS_SIM_WEAK="2")
    told, _, small = done.stderr.partition("made smaller")
    again = rf"again: PGAS_SIM_WEAK=2 mpirun -n 2 python -m pgas\.perftests\.programs --transport {transport} --seed 2 --first \d+"
    assert re.search(rf"{again} --count 1\n", told), done.stderr
    assert re.search(rf"{again} --keep [\d:,]+\n", small), done.stderr
    calls = re.findall(r"^programs:     PEs? [\d, ]+ (?:thread|warp|block)[ \d]*: (\w+)", small, re.M)
    assert name in calls, done.stderr
    operations, left = re.match(r", from (\d+) operations to (\d+):\n", small).groups()
    assert len(calls) == int(left) < int(operations), done.stderr


@pytest.mark.slow
@simulated
@with_mpirun
def test_a_card_that_fails_is_told_with_the_programs(tmp_path):
    """WQE 300 completes with an error: the job ends, and reports the programs that it was running."""
    faults = {"PGAS_SOFTHCA_FAULTS": "fail=300:0x13", "PGAS_TIMEOUT": "20"}
    done = mpirun(2, "-m", "pgas.perftests.programs", "--count", "96", "--transport", "ibgda", status=None, **faults)
    assert done.returncode not in (0, 2)
    assert re.search(
        r"programs: error: programs \d+ to \d+ did not end properly; again: .*fail=300:0x13.* --first \d+ --count 32", done.stderr
    )


# ------------------------------------------------------------------------------------------------------------------ whole runs


BUILD_FOR_A_GPU = """
import sys
import pgas
from pgas import sass  # first: it chooses the real compiler
import numpy as np
from numba.cuda import types
from numba.cuda.np.numpy_support import from_dtype
from pgas.perftests.programs import interpreter

transport, name, teams = sys.argv[1:]
sass.configure(transport)
i64, u64, t = types.int64, types.uint64, from_dtype(np.dtype(name))
array = lambda dtype, ndim=1: types.Array(dtype, ndim, "C")
fields = [array(i64, 2), array(i64, 2), array(i64), *[array(t)] * 4, *[array(u64)] * 2, array(t), array(u64), array(u64, 3)]
fields += [array(i64), i64, i64, i64]
built = sass.build(interpreter.interpreter(np.dtype(name), teams=bool(teams)).__wrapped__, (types.NamedTuple(fields, interpreter.Table),))
print(len(built.instructions), built.registers, built.spills)
assert built.spills == 0
assert built.registers <= 255
"""


@pytest.mark.slow
@pytest.mark.sass
@pytest.mark.parametrize(
    ("transport", "name", "teams"), [("p2p", "uint8", ""), ("p2p", "float32", ""), ("ibrc", "uint64", ""), ("p2p", "float32", "teams")]
)
def test_the_interpreter_compiles_for_a_gpu(transport, name, teams):
    """In a separate process, as this one may have the simulator."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    command = [sys.executable, "-c", BUILD_FOR_A_GPU, transport, name, teams]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
