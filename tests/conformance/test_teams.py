"""Teams: members and their numbers, in kernels and on the host; memory and ids of destroyed teams are used again."""

import copy
import itertools
import os
import pickle
import platform
from collections import namedtuple

import numpy as np
import pytest

from conformance import library as pgas
from conformance.checks import BLOCK, checklist, equal, everywhere, needs, needs_peer, raises
from conformance.collectives import kernel

pytestmark = needs("team_split_strided", "team_split_2d")

SPLITS = 20 if pgas.SIMULATOR else 200


@pgas.jit
def queries(team, other, found):
    """Find this PE's number, the number of members, and the number of each member in another team; the last one is of no member."""
    found[0] = pgas.team_my_pe(team)
    found[1] = pgas.team_n_pes(team)
    for i in range(pgas.team_n_pes(team)):
        found[2 + i] = pgas.team_translate_pe(team, i, other)
    found[found.size - 1] = pgas.team_translate_pe(team, pgas.team_n_pes(team), other)


Both = namedtuple("Both", "one other")


@pgas.jit
def inner(teams, found):
    found[0] = pgas.team_n_pes(teams[1].other)


def members_are(heap, team, pes):
    """Check a team's members and their order on the host, in kernels, and by a collective. Collective over all PEs."""
    me, n = pgas.my_pe(), pgas.n_pes()
    fault, found = None, heap.full(n + 3, -7, np.int64)
    where, given = heap.full(len(pes), -1, np.int64), heap.full(1, me, np.int64)
    pgas.barrier_all()
    if me in pes:
        facts = tuple(team.pes), team.n_pes, team.my_pe, pgas.team_my_pe(team), pgas.team_n_pes(team)
        wanted = tuple(pes), len(pes), pes.index(me), pes.index(me), len(pes)
        fault = None if facts == wanted else f"{facts}, not {wanted}"
        queries[1, 1](team, pgas.TEAM_WORLD, found)
        wanted = [pes.index(me), len(pes), *pes, *[-7] * (n - len(pes)), -1]
        pgas.synchronize()
        if list(found.copy_to_host()) != wanted:
            fault = f"{found.copy_to_host()}, not {wanted}"
        kernel("fcollect", "_warp")[1, 32](team, where, given)
        pgas.synchronize()
        if list(where.copy_to_host()) != list(pes):
            fault = f"{where.copy_to_host()} have met, not {pes}"
    elif team is not None or pgas.team_my_pe(team) != -1 or pgas.team_n_pes(team) != -1:
        fault = f"{team!r} for a PE that is no member"
    everywhere(fault)
    for array in (found, where, given):
        heap.free(array)


@checklist("Teams", "predefined teams")
def test_predefined_teams(heap, me, n):
    members_are(heap, pgas.TEAM_WORLD, list(range(n)))
    for team in (pgas.TEAM_SHARED, pgas.TEAM_NODE):
        members = pgas.allgather_object(team.pes)
        everywhere(None if all(me in members[me] and members[pe] == members[me] for pe in members[me]) else f"{team!r}: {members}")
    locals_ = pgas.allgather_object((pgas.TEAM_NODE.my_pe, pgas.TEAM_SAME_LOCAL.pes))
    same = tuple(pe for pe, (number, _) in enumerate(locals_) if number == locals_[me][0])
    everywhere(None if pgas.TEAM_SAME_LOCAL.pes == same else f"{locals_}")
    for team in (pgas.TEAM_SHARED, pgas.TEAM_NODE, pgas.TEAM_SAME_LOCAL):
        if team.n_pes == n:
            members_are(heap, team, list(range(n)))
        where, given = heap.zeros(n, np.int64), heap.full(1, me, np.int64)
        pgas.barrier_all()
        pgas.fcollect(team, where, given)
        equal(where, np.array([*team.pes, *[0] * (n - team.n_pes)]))


@checklist("Teams", "predefined teams")
def test_teams_of_a_node_and_of_shared_memory(heap):
    """NVSHMEM's meanings: the PEs of a node, whichever way they communicate, and the PEs between all of which ptr() gives an array."""
    n, array = pgas.n_pes(), heap.zeros(4, np.int32)
    reached = {pe for pe in range(n) if pgas.ptr(array, pe) is not None}
    everywhere(None if set(pgas.TEAM_SHARED.pes) <= reached else f"{pgas.TEAM_SHARED.pes} share memory, and ptr reaches {reached}")
    hosts = pgas.allgather_object((platform.node(), os.environ.get("PGAS_PES_PER_NODE")))
    if set(hosts) == {(platform.node(), None)}:
        everywhere(None if pgas.TEAM_NODE.pes == tuple(range(n)) else f"{pgas.TEAM_NODE.pes} of {n} PEs on one node")


@checklist("Teams", "split_strided")
def test_every_strided_split(heap, n):
    for start, stride, size in itertools.product(range(n), range(-n + 1, n), range(1, n + 1)):
        pes = [start + i * stride for i in range(size)]
        if len(set(pes)) == size and all(0 <= pe < n for pe in pes):
            team = pgas.team_split_strided(pgas.TEAM_WORLD, start, stride, size)
            members_are(heap, team, pes)
            pgas.team_destroy(team)


@checklist("Teams", "split_strided")
def test_a_split_counts_in_its_parent(heap, me, n):
    """start and stride count in the parent, not in the world. Only members of the parent call."""
    backwards = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
    size = (n + 1) // 2
    second = pgas.team_split_strided(backwards, 0, 2, size)
    pes = list(range(n))[::-1][::2]
    members_are(heap, second, pes)
    third = pgas.team_split_strided(second, size - 1, -1, size) if me in pes else None
    members_are(heap, third, pes[::-1])
    first = pgas.team_split_strided(third, 0, 0, 1) if me in pes else None
    members_are(heap, first, pes[-1:])
    for team in (first, third, second, backwards):
        pgas.team_destroy(team)


@checklist("Teams", "split_2d")
@pytest.mark.parametrize("xrange", [1, 2, 3, 9])
def test_rows_and_columns(heap, me, n, xrange):
    """The last row may be shorter, and there may be fewer members than a row has."""
    backwards = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
    row, column = pgas.team_split_2d(backwards, xrange)
    number = n - 1 - me
    everyone = list(range(n))[::-1]
    members = everyone[number // xrange * xrange :][:xrange], everyone[number % xrange :: xrange]
    everywhere(None if (list(row.pes), list(column.pes)) == members else f"{row.pes} and {column.pes}, not {members}")
    sums, one = heap.zeros(2, np.int32), heap.full(1, 1, np.int32)
    pgas.barrier_all()
    pgas.reduce(row, sums[:1], one, pgas.SUM)
    pgas.reduce(column, sums[1:], one, pgas.SUM)
    equal(sums, np.array([len(m) for m in members], np.int32))
    for team in (row, column, backwards):
        pgas.team_destroy(team)


@checklist("Teams", "teams of any PEs")
def test_any_order(heap, n):
    for pes in itertools.permutations(range(n), max(1, n - 1)):
        team = pgas.team_create(pes)
        members_are(heap, team, list(pes))
        pgas.team_destroy(team)


@checklist("Teams", "teams of any PEs")
def test_copies_of_a_team(heap):
    """A copy is the team itself, as of any object that does not change. The number of a predefined team is the same on every PE."""
    assert pickle.loads(pickle.dumps(pgas.TEAM_WORLD)) == pgas.TEAM_WORLD
    team = pgas.team_create(range(pgas.n_pes()))
    assert copy.copy(team) is team
    assert copy.deepcopy([team])[0] is team
    with raises(
        TypeError, r"^team 4 cannot be pickled, because its number may refer to another team in another process; send team\.pes instead$"
    ):
        pickle.dumps(team)
    pgas.team_destroy(team)


@needs_peer
@checklist("Teams", "teams of any PEs")
def test_disjoint_teams_at_once(heap, me, n):
    """Each PE gives the list of its own team. Both teams may have the same id."""
    lists = [list(range(n // 2)), list(range(n - 1, n // 2 - 1, -1))]
    team = pgas.team_create(lists[me in lists[1]])
    for pes in lists:
        members_are(heap, team if me in pes else None, pes)
    pgas.team_destroy(team)


@checklist("Teams", "translation of PE numbers")
def test_translation(heap, n):
    """All pairs of teams; -1 for numbers of no member, and for no team."""
    teams = [pgas.TEAM_WORLD, pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n), pgas.team_create([n - 1]), None]
    pes = [list(range(n)), list(range(n))[::-1], [n - 1], []]
    for (one, ones), (other, others) in itertools.product(zip(teams, pes, strict=True), repeat=2):
        found = [pgas.team_translate_pe(one, i, other) for i in range(-1, n + 1)]
        known = one is not None and other is not None
        wanted = [others.index(ones[i]) if known and 0 <= i < len(ones) and ones[i] in others else -1 for i in range(-1, n + 1)]
        everywhere(None if found == wanted else f"{found}, not {wanted}")
    for team in teams[1:]:
        pgas.team_destroy(team)


@checklist("Teams", "configuration")
def test_channels(heap):
    """A team has the channels that it was made with, and its last one works."""
    dest, source = heap.zeros(1, np.int64), heap.full(1, 3, np.int64)
    for channels in (1, 3, None):
        team = pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, pgas.n_pes(), channels=channels)
        count = pgas.TEAM_WORLD.channels if channels is None else channels
        everywhere(None if team.channels == count else f"{team.channels} channels, not {count}")
        pgas.barrier_all()
        pgas.reduce(team, dest, source, pgas.SUM, count - 1)
        equal(dest, np.array([3 * pgas.n_pes()]))
        pgas.team_destroy(team)
    with raises(ValueError, "channels must be an integer from 1 to 256, not 0"):
        pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, pgas.n_pes(), channels=0)


@checklist("Teams", "destroy, and ids again")
def test_splits_and_destroys(heap, n):
    """Each round makes a team with the id of the first, performs a collective and destroys the team."""
    dest, source = heap.zeros(n * 40, np.int32), heap.full(40, pgas.my_pe(), np.int32)
    numbers = set()
    for _ in range(SPLITS):
        team = pgas.team_split_strided(pgas.TEAM_WORLD, n - 1, -1, n)
        numbers.add(int(team))
        kernel("fcollect", "_block")[1, BLOCK](team, dest, source)
        pgas.team_destroy(team)
    equal(dest, np.repeat(np.arange(n, dtype=np.int32)[::-1], 40))
    everywhere(None if len(numbers) == 1 else f"{numbers}")
    stale = raises(pgas.PgasError, "was destroyed|does not exist")
    with stale:
        pgas.team_destroy(team)
    with stale:
        pgas.barrier(team)
    with stale:
        pgas.team_n_pes(team)
    again = pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n)
    everywhere(None if int(again) == int(team) else f"{again}, not {team}")
    with stale:  # though its number is that of another team now
        pgas.fcollect(team, dest, source)
    found, launch = heap.zeros(n + 3, np.int64), queries[1, 1]
    for call in (lambda: launch(team, again, found), lambda: pgas.launch(queries, 1, 1, (again, team, found))):
        with stale:
            call()
    with stale:
        inner[1, 1]((again, Both(again, team)), found)
    bound = launch.bind(again, again, found)
    bound()
    equal(found[1:2], np.array([n]))
    pgas.team_destroy(again)
    with stale:
        bound()
    pgas.team_destroy(None)
    with raises(ValueError, "predefined"):
        pgas.team_destroy(pgas.TEAM_WORLD)


@checklist("Teams", "more teams than there may be")
def test_as_many_as_there_may_be(heap, n):
    """All PEs get a HeapError at the same team. After a destroy there is room for one more, and after all destroys for as many again."""

    def fill():
        for _ in range(200):
            try:
                teams.append(pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n))
            except pgas.HeapError:
                return
        raise AssertionError("200 teams, and none was refused")

    counts = []
    for _ in range(2):
        teams = []
        fill()
        counts.append(len(teams))
        pgas.team_destroy(teams.pop(len(teams) // 2))
        fill()
        counts.append(len(teams))
        members_are(heap, teams[-1], list(range(n)))
        for team in teams:
            pgas.team_destroy(team)
    everywhere(None if len(set(counts)) == 1 and counts[0] > 1 else f"{counts}")


@checklist("Teams", "teams one after another and overlapping")
def test_all_pairs(heap, me, n):
    """A team of each pair of PEs and of each PE alone, all at the same time."""
    teams = {pes: pgas.team_create(pes, channels=1) for size in (1, 2) for pes in itertools.combinations(range(n), size)}
    total, one = heap.zeros(1, np.int64), heap.full(1, me, np.int64)
    pgas.barrier_all()
    for pes, team in teams.items():
        if team is not None:
            pgas.reduce(team, total, one, pgas.SUM)
            assert int(total.copy_to_host()[0]) == sum(pes)
    for team in teams.values():
        pgas.team_destroy(team)


@checklist("Teams", "split_strided", "split_2d", "teams of any PEs")
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda n: pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n + 1), ValueError, "must name members of TEAM_WORLD, "),
        (lambda n: pgas.team_split_strided(pgas.TEAM_WORLD, -1, 1, 1), ValueError, "must name members"),
        (lambda n: pgas.team_split_strided(pgas.TEAM_WORLD, 0, 0, 2), ValueError, "must name members"),
        (lambda n: pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, 0), ValueError, "must name members"),
        (lambda n: pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1.5, 1), ValueError, "stride must be an integer, not 1.5"),
        (lambda n: pgas.team_split_strided(0, 0, 1, 1), TypeError, "parent must be a pgas.Team, not 0"),
        (lambda n: pgas.team_split_strided(None, 0, 1, 1), TypeError, "parent must be a pgas.Team, not None"),
        (lambda n: pgas.team_split_2d(pgas.TEAM_WORLD, 0), ValueError, "xrange must be 1 or more, not 0"),
        (lambda n: pgas.team_create([0, 0]), ValueError, "each at most once"),
        (lambda n: pgas.team_create([n]), ValueError, "must be PE numbers"),
        (lambda n: pgas.team_create([]), ValueError, "must be PE numbers"),
        (lambda n: pgas.team_create(1), TypeError, r"^pgas\.team_create: pes must be PE numbers, such as \[0, 1\], not 1$"),
        (lambda n: pgas.team_destroy(3), TypeError, "team must be a pgas.Team, not 3"),
    ],
)
def test_what_is_no_team(heap, call, error, text):
    with raises(error, text):
        call(pgas.n_pes())


@needs_peer
@checklist("Teams", "teams of any PEs", "split_strided")
def test_pes_that_disagree(heap, me, n):
    """All PEs get an error, and the next team has the id that was free before."""
    first = pgas.team_create(range(n))
    pgas.team_destroy(first)
    with raises(pgas.BootstrapError, "disagree"):
        pgas.team_split_strided(pgas.TEAM_WORLD, 0, 1, n if me else 1)
    lists = [list(range(n)), list(range(n))[::-1]]
    with pytest.raises(pgas.PgasError):
        pgas.team_create(lists[min(me, 1)])
    for alone in (0, n - 1):  # PE alone lists all PEs, every other PE only itself: one team cannot be made
        with raises(pgas.BootstrapError, f"PE {alone} failed|PEs {alone} and . are in the same team but passed different members"):
            pgas.team_create(range(n) if me == alone else [me])
    team = pgas.team_create(range(n))
    everywhere(None if int(team) == int(first) else f"{team!r}, not {first!r}")
    members_are(heap, team, list(range(n)))
    pgas.team_destroy(team)
