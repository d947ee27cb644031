"""The order checker on random programs: nothing in a valid one, a race in one that lacks an operation that matters."""

import re

import numpy as np
import pytest
from perf_runs import mpirun, with_mpirun

import pgas
from pgas.perftests.programs.operation import COUNTERS, DATA, SIGNAL_ADD, SIGNAL_SET, Kind, Operation, PhaseEnd, Program, Shape
from pgas.perftests.programs.rules import races

pytestmark = pytest.mark.skipif(not pgas.SIMULATOR, reason="the order checker works in the simulator")

SHAPE = Shape(2, 1, np.dtype(np.uint32), 512, (PhaseEnd.BARRIER,))
EQ, NE = 0, 1


def call(kind, pe, target=0, **more):
    return Operation(kind, 0, pe, 0, target=target, **more)


PUT = call(Kind.PUT, 0, 1, dest=DATA, source=DATA + 64, nelems=4)
FENCE, FLUSH = call(Kind.FENCE, 0), call(Kind.FLUSH, 0)
FLAG = call(Kind.SIGNAL_OP, 0, 1, word=8, value=7, condition=SIGNAL_SET)
WAIT = call(Kind.WAIT_UNTIL, 1, word=8, value=7, condition=EQ)
READ = call(Kind.LOAD, 1, source=DATA, nelems=4)
MESSAGE = (PUT, FENCE, FLAG, WAIT, READ)
NBI = (PUT._replace(kind=Kind.PUT_NBI), FLUSH, call(Kind.STORE, 0, dest=DATA + 64))


@pytest.mark.parametrize(
    ("operations", "number", "race"),
    [
        (MESSAGE, 1, (0, 3)),
        (MESSAGE, 3, (0, 3)),
        (NBI, 1, (0, 1)),
        ((FENCE, *MESSAGE), 0, None),
        ((*MESSAGE, FENCE), 5, None),
        ((call(Kind.ATOMIC_ADD, 0, 1, dest=COUNTERS), FENCE, call(Kind.ATOMIC_ADD, 0, 1, dest=COUNTERS)), 1, None),
        ((call(Kind.G, 0, 1, source=DATA), FENCE, FLAG, WAIT, call(Kind.STORE, 1, dest=DATA)), 1, None),
        ((FLAG, FENCE, FLAG._replace(condition=SIGNAL_ADD)), 1, (0, 1)),
    ],
)
def test_the_rules_know_which_operations_matter(operations, number, race):
    from pgas.perftests.programs.ordered import without_one

    program = Program(1, 0, SHAPE, operations)
    assert races(SHAPE, operations) == []
    case = {case.left_out: case for case in without_one(program)}[number]
    assert case.performed.operations == operations[:number] + operations[number + 1 :]
    assert [found[:2] for found in case.races[:1]] == ([race] if race else [])
    assert "(left out)" in str(case)


@with_mpirun
def test_the_checker_finds_what_the_rules_find():
    """512 programs, twice each; ``python -m pgas.perftests.programs --order --count 10000`` performs more."""
    done = mpirun(2, "-m", "pgas.perftests.programs", "--order", "--count", "512", "--seed", "2")
    words = re.search(
        r"512 programs of 2 PEs, seed 2: 0 false alarms; (\d+) without an operation that matters: (\d+) found, (\d+) missed; "
        r"(\d+) without another: 0 found",
        done.stdout,
    )
    assert words, done.stdout + done.stderr
    needed, found, missed, others = map(int, words.groups())
    assert needed > 200
    assert others > 100
    assert found + missed == needed
    assert missed <= needed // 100, done.stdout
