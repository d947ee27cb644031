"""Random programs against their oracle, over the transport of this run."""

import pytest

import pgas
from mpi.checks import everywhere
from pgas.perftests.programs.draw import DTYPES, GROUP, draw, shape
from pgas.perftests.programs.operation import line
from pgas.perftests.programs.trial import Trial

SEED = 2026
#: Groups of programs for each element type. On a GPU each type is a kernel that takes long to compile.
GROUPS = 4
#: Of a group. Each has two channels of every team, and teams have 16.
PROGRAMS = 8
TYPES = DTYPES if pgas.SIMULATOR else ("uint8", "uint64")


@pytest.fixture
def trial(heap):
    trial = Trial()
    heap.arrays += trial.arrays  # freed by the fixture, also after a failure
    yield trial
    trial.unregister()


@pytest.mark.parametrize("dtype", TYPES)
def test_programs(trial, dtype):
    groups = (group for group in range(10_000) if shape(SEED, group, pgas.n_pes()).dtype.name == dtype)
    for group in (next(groups) for _ in range(GROUPS)):
        programs = [draw(SEED, group * GROUP + i, pgas.n_pes()) for i in range(PROGRAMS)]
        faults = trial.run(programs)
        if faults:
            place, found = next(iter(faults.items()))
            text = "\n".join(line(programs[place].shape, o) for o in programs[place].operations)
            everywhere(f"program {programs[place].number} of seed {SEED}: {found[0]}\n{text}")
