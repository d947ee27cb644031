"""Steps of make check-gpu on the GPUs of a machine, without GPUs: the MPS daemon is a script that writes down how it is called."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgas.perftests import check_gpu, jobs
from pgas.perftests.pool import Pool, Step


@pytest.fixture
def daemons(tmp_path, monkeypatch):
    """The calls of nvidia-cuda-mps-control: arguments, the GPU that it sees, its folder."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$* $CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return lambda: [line.split(" ") for line in (tmp_path / "calls").read_text().splitlines()]


def step(name, code="", seconds=60):
    return Step(name, [sys.executable, "-c", code], seconds, {"OF_STEP": name})


def said(folder):
    return {path.name: path.read_text() for path in folder.glob("said-*")}


def test_what_has_passed_is_not_done_again(tmp_path, capfd):
    kept = tmp_path / "build" / "kept.json"
    steps = [step("good", "print('hello')"), step("bad", "raise SystemExit(1)"), step("slow", "import time; time.sleep(60)", seconds=0.2)]
    for hello in (1, 0):
        pool = Pool(kept)
        pool.in_turn(steps)
        assert (pool.outcome.passed, pool.outcome.failed, pool.outcome.left) == (["good"] * hello, ["bad", "slow"], [])
        assert json.loads(kept.read_text()) == ["good"]
        assert capfd.readouterr().out.count("hello\n") == hello


def test_steps_that_time_did_not_allow(tmp_path):
    pool = Pool(tmp_path / "kept.json", seconds=1)
    began = time.monotonic()
    pool.in_turn([step("ended", "import time; time.sleep(60)"), step("never", f"open({str(tmp_path / 'never')!r}, 'w')")])
    assert time.monotonic() - began < 20
    assert (pool.outcome.passed, pool.outcome.failed, pool.outcome.left) == ([], [], ["ended", "never"])
    assert not (tmp_path / "never").exists()


def test_two_at_once_on_each_of_two_gpus(tmp_path, daemons, capfd):
    """Four wait for each other; a GPU has one daemon, which is ended."""
    code = f"""
import os, time
from pathlib import Path
folder = Path({str(tmp_path)!r})
name = os.environ["OF_STEP"]
place = [os.environ[v] for v in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "PGAS_SOFTHCA_SMS")]
(folder / f"said-{{name}}").write_text(" ".join(place))
deadline = time.monotonic() + 40
while len(list(folder.glob("said-*"))) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.02)
print("above")
print("met", name)
"""
    pool = Pool(tmp_path / "kept.json", gpus=["GPU-a", "GPU-b"], at_once=2)
    pool.share(step(name, code) for name in "1234")
    assert sorted(pool.outcome.passed) == ["1", "2", "3", "4"]
    places = sorted(text.split(" ") for text in said(tmp_path).values())
    assert [place[0] for place in places] == ["GPU-a", "GPU-a", "GPU-b", "GPU-b"]
    assert len({tuple(place) for place in places}) == 2
    started, ended = daemons()[:2], daemons()[2:]
    assert [call[:2] for call in started] == [["-d", "GPU-a"], ["-d", "GPU-b"]]
    assert (
        sorted(call[1:] for call in ended) == sorted(call[1:] for call in started) == sorted([*map(list, {tuple(p[:2]) for p in places})])
    )
    shown = capfd.readouterr().out
    assert "met 1\n" in shown
    assert "above" not in shown
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_what_fails_beside_others_is_tried_by_itself(tmp_path, daemons, capfd):
    once = f"""
import os, pathlib
path = pathlib.Path({str(tmp_path)!r}, os.environ["OF_STEP"])
if not path.exists():
    path.touch()
    raise SystemExit("the server died")
"""
    pool = Pool(tmp_path / "kept.json", gpus=["GPU-a"], at_once=2)
    pool.share([step("twice", once), step("bad", "raise SystemExit('as always')"), step("good")])
    assert (pool.outcome.failed, sorted(pool.outcome.passed)) == (["bad"], ["good", "twice"])
    assert [call[0] for call in daemons()] == ["-d", "", "-d", ""]
    assert capfd.readouterr().out.count("as always") == 2


def test_what_a_step_started_ends_with_its_time(tmp_path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(100)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert not jobs.run([sys.executable, "-c", code], 3)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while Path("/proc", str(pid), "cmdline").exists() and Path("/proc", str(pid), "cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_mps_daemon_of_the_caller_is_kept(daemons, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/theirs")
    with jobs.mps() as variables:
        assert variables == {}
    with jobs.mps("GPU-a") as variables:
        assert variables["CUDA_MPS_PIPE_DIRECTORY"] != "/theirs" == os.environ["CUDA_MPS_PIPE_DIRECTORY"]
    assert len(daemons()) == 2


def test_every_step_has_a_name_of_its_own_and_files_that_exist():
    steps = [*check_gpu._tests(), *check_gpu._nic_tests(), *check_gpu._measurements("here"), *check_gpu._nic_measurements("here")]
    assert len({each.name for each in steps}) == len(steps) > 100
    for each in steps:
        assert all(Path(jobs.ROOT, word).exists() for word in each.command if word.startswith("tests/")), each
    named = {each.name for each in steps}
    assert {"p2p 2 a_init", "ibgda 4 e_atomics", "ibrc 3 d_signals", "ibrc 2 heap_growth", "hang reports", "soak"} <= named
    assert not {"p2p 3 a_init", "ibgda 2 setup"} & named


def test_on_a_machine_without_gpus():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "pgas.perftests.check_gpu"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "check-gpu needs a GPU and an mpirun\n")
