"""Members of a team that call different collectives: the errors name both calls, although the collectives wait or read other data."""

import jobs
import pytest

job = jobs.job

PROGRAM = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
team, sum_ = pgas.TEAM_WORLD, pgas.SUM
dest, source = pgas.zeros(64, np.int32), pgas.full(64, -1, np.int32)
wide_dest, wide = pgas.zeros(64, np.int64), pgas.full(64, 7, np.int64)
counts, displs = pgas.full(n, 4, np.int64), pgas.array(np.arange(n) * 4)
calls = {
    "team_sync": lambda: pgas.team_sync(team),
    "reduce": lambda: pgas.reduce(team, dest[:4], source[:4], sum_),
    "alltoall": lambda: pgas.alltoall(team, dest[: 4 * n], source[: 4 * n]),
    "alltoallv": lambda: pgas.alltoallv(team, dest, counts, displs, source, counts, displs),
    "alltoallv of int64": lambda: pgas.alltoallv(team, wide_dest, counts, displs, wide, counts, displs),
    "collect": lambda: pgas.collect(team, dest[: 4 * n], source[:4]),
    "inscan": lambda: pgas.inscan(team, dest[:4], source[:4], sum_),
    "nothing": lambda: None,
}
for pair in PAIRS:
    pgas.barrier_all()
    attempt(calls[pair[min(me, 1)]])
    pgas.reset()
"""

#: Calls of PE 0 and of all others.
WAITING = [("team_sync", "reduce"), ("collect", "inscan"), ("alltoall", "team_sync")]
OTHER_DATA = [("alltoallv", "alltoall"), ("alltoall", "alltoallv"), ("collect", "alltoallv"), ("alltoallv of int64", "alltoallv")]

TEXTS = {
    "team_sync": "pgas.team_sync",
    "reduce": "pgas.reduce of 4 elements of int32 with op SUM",
    "alltoall": "pgas.alltoall of 4 elements of int32",
    "alltoallv": "pgas.alltoallv of int32",
    "alltoallv of int64": "pgas.alltoallv of int64",
    "collect": "pgas.collect of int32",
    "inscan": "pgas.inscan of 4 elements of int32 with op SUM",
}


def both(other, own):
    return f"calls {TEXTS[other]}, but this PE calls {TEXTS[own]}; all members of a team must make the same calls in the same order"


@pytest.mark.parametrize("transport", ["p2p", jobs.also("ibgda")])
@pytest.mark.parametrize("npes", [2, jobs.also(4)])
def test_both_calls_are_named(job, npes, transport):
    """Their host forms wait for each other, or take numbers for each other's data, which must not become addresses."""
    pairs = WAITING + OTHER_DATA
    ended = job(f"PAIRS = {pairs}\n" + PROGRAM, npes=npes, PGAS_TIMEOUT="3", PGAS_HANG_REPORT="off", PGAS_TRANSPORT=transport)
    assert ended.status == 0, ended
    for pe in range(npes):
        lines = ended.lines(pe)
        assert len(lines) == len(pairs), ended
        for line, (first, others) in zip(lines, pairs, strict=True):
            own, other = (others, first) if pe else (first, others)
            if pe in (0, 1):
                assert line.startswith(f"DeviceError: PE {pe}, block 0, thread "), ended
                assert both(other, own) in line, ended


def test_a_call_without_a_partner(job):
    """The error names this PE's call, and the last one of the member that makes no further call."""
    pairs = [("reduce", "nothing")]
    text = PROGRAM.replace("    attempt", "    calls['team_sync']()\n    attempt")
    ended = job(f"PAIRS = {pairs}\n" + text, PGAS_TIMEOUT="3")
    assert ended.status == 0, ended
    missing = f"; this PE calls {TEXTS['reduce']}, which PE 1 has not called (its last call there: pgas.team_sync)"
    assert ended.only_line(0).endswith(missing), ended
    assert f"first error: {ended.only_line(0).partition(': ')[2]}" in ended.err, ended
    assert ended.only_line(1) == "no error", ended


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["p2p", "ibgda"])
def test_different_calls_that_wait_for_nobody(job, transport):
    """Roots do not wait, so that neither may have seen the other's call when its own ends. The next call finds the difference."""
    text = """
pgas.init()
me, sum_ = pgas.my_pe(), pgas.SUM
dest, source = pgas.zeros(4, np.int32), pgas.full(4, me, np.int32)
for scan in (False, True) * 2:
    pgas.barrier_all()
    def twice():
        if scan and not me:
            pgas.inscan(0, dest, source, sum_)
        else:
            pgas.broadcast(0, dest, source, me)
        pgas.team_sync(0)
    attempt(twice)
    pgas.reset()
"""
    ended = job(text, PGAS_TIMEOUT="3", PGAS_HANG_REPORT="off", PGAS_TRANSPORT=transport)
    assert ended.status == 0, ended
    for lines in zip(ended.lines(0), ended.lines(1), strict=True):
        assert any("all members of a team must make the same calls" in line for line in lines), ended
