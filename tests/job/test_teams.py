"""Making and destroying teams whose parent lacks a PE of the job: its members exchange notes by a kernel. And what failed calls leave."""

import jobs
import pytest
from jobs import INIT

import pgas
from pgas.base import config
from pgas.job.memory.teams import Plan

job = jobs.job

SUB = INIT + "sub = pgas.team_create([0, 1])\n"

SLOW_READER = """
from pgas.job import runtime
from pgas.job.memory import teams
memory = runtime.current().memory
read, waited = memory.read, []
def slowly(address, nbytes):
    if nbytes == teams.NOTE_BYTES and not waited:
        waited.append(time.sleep(1))
    return read(address, nbytes)
if me == 0:
    memory.read = slowly
if sub is not None:
    attempt(pgas.team_split_strided, sub, 0, 1, 2)
"""

OTHER_CALLS = """
if me == 0:
    attempt(pgas.team_destroy, sub)
if me == 1:
    attempt(pgas.team_split_strided, sub, 1, 1, 1)
pgas.team_destroy(sub)
"""

NO_ROOM = """
from pgas.job import runtime
records = runtime.current().teams.records
while True:
    before = list(records)
    try:
        pgas.team_split_2d(pgas.TEAM_WORLD, 1)
    except pgas.HeapError as error:
        say(f"PE {me}: {'column' in str(error)} {list(records) == before}")
        break
"""


@pytest.mark.slow
def test_a_member_that_reads_the_notes_late(job):
    """The other member's next notes, which are pushed into its memory as they do not fit in a line of staging, wait for it."""
    ended = job(SUB + SLOW_READER, npes=3, PGAS_LL_BYTES="64", PGAS_TIMEOUT="20")
    assert [ended.only_line(pe) for pe in (0, 1)] == ["no error"] * 2, ended


def test_members_that_make_different_calls(job):
    """Both get the error, and the team is as before: then they destroy it."""
    ended = job(SUB + OTHER_CALLS, npes=3, PGAS_TIMEOUT="20")
    calls = "pgas.team_destroy(team 4)", "pgas.team_split_strided(start=1, stride=1, size=1, channels=None)"
    for pe, call in enumerate(calls):
        wanted = f"BootstrapError: PEs disagree in a collective call: PE {pe} called {call}, PE {1 - pe} made another call"
        assert ended.only_line(pe) == wanted, ended
    assert ended.status == 0, ended


def test_a_row_whose_column_has_no_room(job):
    """team_split_2d makes the row first; it is gone when the column fails."""
    ended = job(INIT + NO_ROOM, npes=2, PGAS_MAX_TEAMS="9")  # where the last row leaves no room for its column
    assert [ended.only_line(pe) for pe in (0, 1)] == ["True True"] * 2, ended


TEXTS = """
TEAM_NODE = pgas.TEAM_NODE
@pgas.jit
def numbers(team, out):
    out[0], out[1], out[2], out[3] = team, pgas.TEAM_SHARED, TEAM_NODE, TEAM_NODE + 1
    print(team, TEAM_NODE, "here")
team, out = pgas.team_create([1, 0]), pgas.zeros(4, np.int64)
numbers[1, 1](team, out)
pgas.synchronize()
texts = [f"{pgas.TEAM_WORLD}", str(pgas.TEAM_SAME_LOCAL), repr([team]), f"{team:d}"]
pgas.team_destroy(team)
say(f"PE {me}: {texts} {team} {out.copy_to_host().tolist()}")
"""


def test_a_team_says_what_it_is(job):
    """To people; to the compiler, and in kernels, it is a number."""
    ended = job(INIT + TEXTS, npes=2)
    for pe in (0, 1):
        texts = ["<pgas.Team TEAM_WORLD: PEs 0, 1>", f"<pgas.Team TEAM_SAME_LOCAL: PEs {pe}>", "[<pgas.Team 4: PEs 1, 0>]", "4"]
        assert ended.only_line(pe) == f"{texts} <pgas.Team 4: destroyed, or of an earlier job> [4, 1, 2, 3]", ended
    assert ended.out.count("4 2 here\n") == 2, ended


def test_a_team_without_a_job():
    assert (str(pgas.TEAM_NODE), f"{pgas.TEAM_WORLD}", int(pgas.TEAM_NODE)) == ("<pgas.Team TEAM_NODE>", "<pgas.Team TEAM_WORLD>", 2)


@pytest.mark.parametrize("channels", [1, 4, 16, 64])
def test_no_smaller_team_takes_more_room(channels):
    """A predefined team has the room of its largest size on any PE, also on PEs where it has fewer members and more host channels."""
    defaults = {name: config.read(name) for name in ("PGAS_CHANNELS", "PGAS_LL_BYTES", "PGAS_MAX_TEAMS")}
    plan = Plan.of(140, defaults | {"PGAS_CHANNELS": channels})
    units = [plan.units(members, channels) for members in range(1, 141)]
    assert units == sorted(units)
    assert all(plan.units(members, channels) * plan.unit >= plan.team_bytes(members, channels) for members in range(1, 141))
    assert plan.nbytes >= plan.max_teams * max(plan.team_bytes(members, channels) for members in range(1, 141))
