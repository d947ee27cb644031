"""``make figures``: the plan of its runs, a run, its pictures."""

import json
import os
import sys
from pathlib import Path

import pytest

from pgas.perftests import figures, jobs, plot

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_recorded_figures_are_drawn",)

MPIRUN = Path(sys.executable).with_name("mpirun")
PNG = b"\x89PNG\r\n"


def test_plan():
    runs = list(figures.plan(gpu=True))
    commands = [run["command"] for run in runs]
    assert len(runs) == 29
    assert "shmem_put_bw --transport ibgda -n 1000 -w 50 -t 1024 -f 2 -c 64 -b 512 -e 64M" in commands
    assert "shmem_p_bw --transport ibrc -n 50 -w 10 -t 1024 -c 8 -i 2 -b 512K -e 512K" in commands
    for run in runs:
        queues = {"PGAS_IBGDA_NUM_RC_PER_PE": str(run["ctas"]), "PGAS_QP_DEPTH": "8192"}
        assert run["environment"] == queues | ({"PGAS_SOFTHCA_GBPS": "200"} if run["curve"] == figures.LIMITED_PUT else {})


@pytest.mark.parametrize(
    ("gpus", "name"), [([], "simulator"), (["NVIDIA H100 80GB HBM3"], "1xH100-80GB-HBM3"), (["NVIDIA H200"] * 8, "2xH200")]
)
def test_name_of_the_machine(gpus, name):
    assert jobs.machine_name(gpus) == name


@pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
def test_a_real_run(tmp_path, monkeypatch, capsys):
    """Runs of the simulator's plan, and one that fails; drawn, and drawn again from the file; then some curves are measured anew."""
    for name in [name for name in os.environ if name.startswith(("PMI", "HYDI", "MPI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    path = tmp_path / "figures-simulator.json"
    runs = list(figures.plan(gpu=False))
    p, put = (next(run for run in runs if run["curve"] == curve and run["ctas"] == 2) for curve in (figures.COALESCED_P, figures.PUT))
    data = figures.measure([p, p | {"command": f"{p['command']} -s none"}, put], [], path)
    assert [each["succeeded"] for each in data["runs"]] == [True, False, True]
    (row,) = data["runs"][0]["rows"]
    assert row["ctas"] == 2
    assert 0 < row["mops"] < 1
    assert json.loads(path.read_text()) == data
    assert plot.main(["--figures", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: mpirun -n 2 python -m pgas.perftests.{p['command']} -s none"
    assert sorted(tmp_path.glob("*.png")) == [tmp_path / f"{name}-simulator.png" for name in ("put_bandwidth", "put_rate")]
    for drawn in tmp_path.glob("*.png"):
        assert drawn.read_bytes().startswith(PNG)
    again = figures.measure([put], [], path, data | {"commit": "of old runs"})
    assert again["runs"][:2] == data["runs"][:2]
    assert len(again["runs"]) == 3
    assert again["runs"][2]["date"] > data["runs"][2]["date"]
    assert json.loads(path.read_text()) == again


def test_recorded_figures_are_drawn(tmp_path):
    path = tmp_path / "figures-1xH100-80GB-HBM3.json"
    path.write_text((jobs.BASELINES / path.name).read_text())
    assert plot.main(["--figures", str(path)]) == 0
    assert (tmp_path / "put_bandwidth-1xH100-80GB-HBM3.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--figures", "--only", "Jacobo"], "no curve matches; they are: scattered p, coalesced p"),
        (["--figures", "--only", "("], "'(' is no regular expression"),
        (["--figures", "x.json", "--only", "p"], "argument --only: it says what --figures measures, and nothing is to be measured"),
    ],
)
@pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
def test_curves_that_cannot_be_measured(flags, words, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    with pytest.raises(SystemExit) as stop:
        plot.main(flags)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_another_file_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(SystemExit) as stop:
        plot.main(["--figures", str(tmp_path / "x.json")])
    assert stop.value.code == 2
    assert "x.json is no result of" in capsys.readouterr().err
