"""``make figures``: the flags of its plan, runs, its pictures."""

import json
import os
import sys
from pathlib import Path

import figures
import pytest

from pgas.perftests import coll_latency
from pgas.perftests.harness import jobs, options
from pgas.perftests.harness.collectives import COLLECTIVES, messages

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_recorded_figures_are_drawn",)

MPIRUN = Path(sys.executable).with_name("mpirun")
PNG = b"\x89PNG\r\n"


def test_flags_are_accepted():
    of_alltoall = [run["command"].split()[2:] for run in figures.plan(gpu=True) if run["curve"] == figures.ALLTOALL]
    test = coll_latency.TESTS["alltoall_latency"]
    for flags in of_alltoall:
        found = options.parse(test.name, test.description, test.defaults, test.scopes, flags)
        assert [message.size for message in next(messages(COLLECTIVES["alltoall"], found, 2, test.scopes))] == [8 << k for k in range(19)]


@pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
def test_a_real_run(tmp_path, monkeypatch, capsys):
    """Runs of the simulator's plan, and one that fails; drawn, and drawn again from the file; then some curves are measured anew."""
    for name in [name for name in os.environ if name.startswith(("PMI", "HYDI", "MPI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    path = tmp_path / "figures-simulator.json"
    of_p = {"curve": figures.COALESCED_P, "transport": "ibgda", "npes": 2, "ctas": 2}
    of_solver = {"curve": figures.JACOBI_PUT, "transport": "ibrc", "npes": 3}
    of_alltoall = {"curve": figures.ALLTOALL, "transport": "ibgda", "npes": 2}
    every = list(figures.plan(gpu=False))
    p, solver, alltoall = (next(run for run in every if run.items() >= wanted.items()) for wanted in (of_p, of_solver, of_alltoall))
    data = figures.measure([p, p | {"command": f"{p['command']} -s none"}, solver, alltoall], [], path)
    assert [each["succeeded"] for each in data["runs"]] == [True, False, True, True]
    (of_p,), _, (of_solver,), of_alltoall = (each["rows"] for each in data["runs"])
    assert of_p["ctas"] == 2
    assert 0 < of_p["mops"] < 1
    assert (of_solver["pes"], of_solver["version"], of_solver["backend"], of_solver["validated"]) == (3, "put", "ibrc", True)
    assert [(row["size"], row["validated"]) for row in of_alltoall] == [(8, True), (128, True), (2048, True)]
    assert json.loads(path.read_text()) == data
    assert figures.main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: mpirun -n 2 python -m pgas.perftests.{p['command']} -s none"
    assert sorted(tmp_path.glob("*.png")) == [tmp_path / f"{name}-simulator.png" for name in ("alltoall", "jacobi", "put_rate")]
    for drawn in tmp_path.glob("*.png"):
        assert drawn.read_bytes().startswith(PNG)
    again = figures.measure([alltoall], [], path, data | {"commit": "of old runs"})
    assert again["runs"][:3] == data["runs"][:3]
    assert len(again["runs"]) == 4
    assert again["runs"][3]["date"] > data["runs"][3]["date"]
    assert json.loads(path.read_text()) == again


def test_recorded_figures_are_drawn(tmp_path):
    path = tmp_path / "figures-1xH100-80GB-HBM3.json"
    path.write_text((jobs.BASELINES / path.name).read_text())
    assert figures.main([str(path)]) == 0
    assert (tmp_path / "put_bandwidth-1xH100-80GB-HBM3.png").stat().st_size > 20_000


def test_wrong_rows_are_not_drawn():
    row = {"pes": 2, "nx": 4, "ny": 3, "iterations": 1, "nccheck": 1, "time_ms": 2.0, "one_pe_ms": 1.0, "validated": True}
    runs = [
        {"curve": curve, "transport": "ibrc", "rows": [row | {"time_ms": ms}, row | {"pes": 3, "time_ms": 100 * ms, "validated": ms > 5}]}
        for curve, ms in ((figures.JACOBI_P, 6.0), (figures.JACOBI_PUT, 2.0))
    ]
    _, (panel,) = figures._jacobi(runs)
    assert [(curve.label, curve.points) for curve in panel.curves if curve.points] == [
        ("ibrc, p", [(2, 0.006), (3, 0.6)]),
        ("ibrc, put", [(2, 0.002)]),
    ]
    assert panel.title.splitlines()[1] == "ibrc: p takes 3 times as long as put"
