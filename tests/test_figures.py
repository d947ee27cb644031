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
    """One run of the simulator's plan on two PEs, and one that fails; drawn, and drawn again from the file."""
    for name in [name for name in os.environ if name.startswith(("PMI", "HYDI", "MPI"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{MPIRUN.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    path = tmp_path / "figures-simulator.json"
    run = next(run for run in figures.plan(gpu=False) if run["curve"] == figures.COALESCED_P and run["ctas"] == 2)
    data = figures.measure([run, run | {"command": f"{run['command']} -s none"}], [], path)
    assert [each["succeeded"] for each in data["runs"]] == [True, False]
    (row,) = data["runs"][0]["rows"]
    assert row["ctas"] == 2
    assert 0 < row["mops"] < 1
    assert json.loads(path.read_text()) == data
    assert plot.main(["--figures", str(path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == f"failed: mpirun -n 2 {run['command']} -s none"
    for name in ("put_bandwidth", "put_rate"):
        assert (tmp_path / f"{name}-simulator.png").read_bytes().startswith(PNG)


def test_recorded_figures_are_drawn(tmp_path):
    path = tmp_path / "figures-2xH200.json"
    path.write_text((jobs.BASELINES / path.name).read_text())
    assert plot.main(["--figures", str(path)]) == 0
    assert (tmp_path / "put_bandwidth-2xH200.png").stat().st_size > 20_000


def test_another_file_is_refused(tmp_path, capsys):
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(SystemExit) as stop:
        plot.main(["--figures", str(tmp_path / "x.json")])
    assert stop.value.code == 2
    assert "x.json is no result of" in capsys.readouterr().err
