"""Steps of make check-gpu on the GPUs of a machine, without GPUs: the MPS daemon is a script that writes down how it is called."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pgas.perftests import check_gpu, jobs
from pgas.perftests.pool import Pool, Step

#: What `make check` runs of this tool; the rest is for `make check-all`.
SMOKE = ("test_on_a_machine_without_gpus",)


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


def lists(pool):
    found = pool.outcome
    return found.passed, found.failed, found.left, found.before


def test_what_has_passed_is_not_done_again(tmp_path, capfd):
    """Unless something else is tested, or elsewhere."""
    kept = tmp_path / "build" / "kept.json"
    steps = [step("bad", "raise SystemExit(1)"), step("good", "print('hello')"), step("slow", "import time; time.sleep(60)", seconds=0.2)]
    for of, hello in (("this", True), ("this", False), ("that", True)):
        pool = Pool(kept, of)
        assert pool.goes_on is not hello
        pool.in_turn(steps)
        assert lists(pool) == (["good"] * hello, ["bad", "slow"], [], [] if hello else ["good"])
        assert json.loads(kept.read_text()) == {"of": of, "passed": ["good"], "others": ["bad", "slow"]}
        assert capfd.readouterr().out.count("hello\n") == hello


def test_parts_get_on(tmp_path):
    """What a part had no time for is first in the next one; what had a whole part to itself has failed, and comes last from then on."""
    kept = tmp_path / "kept.json"
    steps = [step("quick"), step("hangs", "import time; time.sleep(60)"), step("other", f"open({str(tmp_path / 'other')!r}, 'w')")]
    found = []
    for _ in range(3):
        began = time.monotonic()
        pool = Pool(kept, "this", seconds=2)
        pool.in_turn(steps)
        assert time.monotonic() - began < 20
        found.append(lists(pool))
    assert found == [
        (["quick"], [], ["hangs", "other"], []),
        ([], ["hangs"], ["other"], ["quick"]),
        (["other"], [], ["hangs"], ["quick"]),
    ]


def test_a_step_that_cannot_be_started(tmp_path, daemons, capfd):
    pool = Pool(tmp_path / "kept.json", "this", gpus=["GPU-a"], at_once=1)
    pool.share([Step("none", ["/no/such/program"], 60), step("good")])
    assert lists(pool) == (["good"], ["none"], [], [])
    assert "/no/such/program: No such file or directory\n" in capfd.readouterr().out


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
    pool = Pool(tmp_path / "kept.json", "this", gpus=["GPU-a", "GPU-b"], at_once=2)
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
with open(f"{{path}}-under", "a") as file:
    print(os.environ["PGAS_SOFTHCA_SMS"], os.environ["CUDA_VISIBLE_DEVICES"], file=file)
if not path.exists():
    path.touch()
    raise SystemExit("the server died")
print("well now")
"""
    pool = Pool(tmp_path / "kept.json", "this", gpus=["GPU-a"], at_once=2)
    pool.share([step("twice", once), step("bad", "raise SystemExit('as always')"), step("good")])
    assert (pool.outcome.failed, sorted(pool.outcome.passed)) == (["bad"], ["good", "twice"])
    assert [call[0] for call in daemons()] == ["-d", "", "-d", ""]
    shown = capfd.readouterr().out
    assert shown.count("as always") == 2
    kept = {path.name: path.read_text() for path in (tmp_path / "kept").iterdir()}
    assert kept == {
        "twice.txt": "the server died\n", "twice-again.txt": "well now\n", "bad.txt": "as always\n", "bad-again.txt": "as always\n",
        "good.txt": "",
    }  # fmt: skip
    assert all(f": {tmp_path / 'kept' / name}\n" in shown for name in ("twice.txt", "bad.txt", "bad-again.txt"))
    Pool(tmp_path / "kept.json", "that")
    assert not [*(tmp_path / "kept").iterdir()]
    assert (tmp_path / "twice-under").read_text() == "8 GPU-a\n" * 2  # the same variables


#: Starts a process in a session of its own, as an mpirun may, and writes down its number.
ELSEWHERE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
with open({path!r}, "w") as file:
    file.write(str(child.pid))
child.wait()
"""


def is_gone(path):
    """Wait until a process whose number stands in a file has ended."""
    deadline = time.monotonic() + 20
    command = Path("/proc", path.read_text(), "cmdline")
    while time.monotonic() < deadline:
        try:
            if not command.read_bytes():  # only to be reaped
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def appears(path):
    deadline = time.monotonic() + 40
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_step_started_ends_with_its_time(tmp_path):
    path = tmp_path / "pid"
    ended = threading.Thread(target=lambda: (appears(path), jobs.end_running()))
    ended.start()
    assert not jobs.run([sys.executable, "-c", ELSEWHERE.format(path=str(path))], 60)
    ended.join()
    assert is_gone(path)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at_once", [0, 2])
def test_a_signal_ends_all(tmp_path, daemons, number, at_once, times):
    """Two, too, as those to a process and to its group."""
    program = f"""
from pathlib import Path
from pgas.perftests import jobs
from pgas.perftests.pool import Pool, Step
import sys
pool = Pool(Path({str(tmp_path)!r}, "kept.json"), "this", gpus=["GPU-a"], at_once={at_once})
with jobs.ended_by_signals():
    pool.share(Step(name, [sys.executable, "-c", {ELSEWHERE!r}.format(path={str(tmp_path)!r} + "/" + name)], 60) for name in "abc")
"""
    begun = "abc"[: at_once or 1]
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        for name in begun:
            appears(tmp_path / name)
        for _ in range(times):
            started.send_signal(number)
            time.sleep(0.002)
        shown, errors = started.communicate(timeout=40)
    assert started.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), errors
    assert all(is_gone(tmp_path / name) for name in begun)
    assert not (tmp_path / "c").exists()
    if at_once:
        assert [f"{name}: failed" in shown for name in begun] == [True, True], errors  # their threads have ended before the program
        assert [call[0] for call in daemons()] == ["-d", ""]


def test_an_mps_daemon_of_the_caller_is_kept(daemons, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/theirs")
    with jobs.mps() as variables:
        assert variables == {}
    with jobs.mps("GPU-a") as variables:
        assert variables["CUDA_MPS_PIPE_DIRECTORY"] != "/theirs" == os.environ["CUDA_MPS_PIPE_DIRECTORY"]
    assert len(daemons()) == 2


def test_every_step_has_a_name_of_its_own_and_files_that_exist():
    steps = [*check_gpu._tests(), *check_gpu._nic_tests(), *check_gpu._alone()]
    steps += [*check_gpu._measurements("here"), *check_gpu._nic_measurements("here")]
    assert len({each.name for each in steps}) == len(steps) > 100
    for each in steps:
        assert all(Path(jobs.ROOT, word).exists() for word in each.command if word.startswith("tests/")), each
    named = {each.name for each in steps}
    assert {"p2p 2 a_init", "ibgda 4 atomics", "ibrc 3 d to g", "ibrc 2 heap_growth", "ibgda 2 gigabytes", "hang reports", "soak"} <= named
    assert {name for name in named if name.startswith("ibrc 2 e_atomics")} == {f"ibrc 2 e_atomics {i}/4" for i in (1, 2, 3, 4)}
    assert not {"p2p 3 a_init", "ibgda 2 setup"} & named


def collected(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *arguments, "tests/test_pool.py"]
    done = subprocess.run(command, cwd=jobs.ROOT, capture_output=True, text=True, check=False)
    return done.returncode, [line for line in done.stdout.splitlines() if "::" in line], done.stderr


def test_parts_of_the_tests_of_a_file():
    _, everything, _ = collected()
    parts = [collected("--part", f"{i}/3")[1] for i in (1, 2, 3)]
    assert parts == [everything[i::3] for i in range(3)]
    assert all(parts)


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b"])
def test_there_is_no_such_part(part):
    code, _, said = collected("--part", part)
    assert (code, said) == (4, f"ERROR: --part {part}: I/N is expected, I from 1 to N\n\n")


@pytest.fixture
def check(tmp_path, monkeypatch, capfd):
    """Run check-gpu on a machine with a GPU, as it seems, with three steps; return its status and what it says."""
    steps = {"_measurements": [step("soak")], "_nic_measurements": [], "_tests": [step("p2p 2 rma")], "_nic_tests": [step("ibrc 2 rma")]}
    for name, found in steps.items():
        monkeypatch.setattr(check_gpu, name, lambda *_, found=found: iter(found))
    monkeypatch.setattr(check_gpu, "_alone", lambda: iter([step("deaths", "raise SystemExit(1)")]))
    monkeypatch.setattr(check_gpu, "gpus", lambda attribute="name": ["NVIDIA H100" if attribute == "name" else "GPU-a"])
    monkeypatch.setattr(check_gpu.shutil, "which", lambda name: name)
    monkeypatch.setattr(check_gpu, "mps", contextlib.nullcontext)
    for name in ("KEPT", "ONLY", "REPORT", "BASELINES"):
        monkeypatch.setattr(check_gpu, name, tmp_path / f"{name}.json")

    def check(*arguments):
        monkeypatch.setattr(sys, "argv", ["check_gpu", *arguments])
        status, said = check_gpu.main(), capfd.readouterr()
        return status, (said.out + said.err).splitlines()[-2:]

    return check


def test_steps_are_chosen_by_name(check):
    """Also those that have passed before; what a run of everything has kept stays."""
    everything = ["check-gpu on 1xH100: 3 steps passed, 0 had before, 1 failed, 0 left", "FAILED: deaths"]
    assert check() == (1, everything)
    for _ in range(2):
        assert check("--only", "rma$")[1][-1] == "check-gpu on 1xH100: 2 steps passed, 0 had before, 0 failed, 0 left"
    assert check("--only", "^ibrc|deaths", "--tests")[1] == [everything[0].replace("3", "1"), everything[1]]
    assert check() == (1, [everything[0].replace("3 steps passed, 0", "0 steps passed, 3"), everything[1]])


def test_the_conformance_report_is_kept_once_all_has_passed(check, tmp_path, monkeypatch):
    about = {"library": "pgas", "transport": "p2p", "npes": 2}
    monkeypatch.setattr(check_gpu, "_sources", lambda: "these")
    kept = tmp_path / "BASELINES.json" / "conformance-1xH100.txt"
    for deaths in ("raise SystemExit(1)", ""):
        monkeypatch.setattr(check_gpu, "_alone", lambda deaths=deaths: iter([step("deaths", deaths)]))
        assert not kept.exists()
        run = {"about": about, "variables": {}, "tests": []}
        code = f"from conformance import report; report.append({str(check_gpu.REPORT)!r}, {run})"
        monkeypatch.setattr(check_gpu, "_tests", lambda code=code: iter([step("p2p 2 rma", code)]))
        monkeypatch.setenv("PYTHONPATH", str(check_gpu.ROOT / "tests"))
        check("--at-once", "0")
    first, second = kept.read_text().splitlines()[:2]
    assert first.startswith("# check_gpu --at-once 0; commit ")
    assert second == "Conformance of pgas  on this machine"


def test_no_step_has_this_name(check):
    assert check("--only", "ibcr") == (2, ["check-gpu: --only 'ibcr' is found in the name of no step"])


@pytest.mark.parametrize("expression", ["(ibrc", "a{99999999999999999999}"])
def test_no_regular_expression(expression):
    command = [sys.executable, "-m", "pgas.perftests.check_gpu", "--only", expression]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"error: argument --only: {expression!r} is no regular expression: " in done.stderr


def test_on_a_machine_without_gpus():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-m", "pgas.perftests.check_gpu"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "check-gpu needs a GPU and an mpirun\n")


@pytest.mark.parametrize(
    ("version", "flags"),
    [("mpirun (Open MPI) 4.1.6", ["--oversubscribe", "--bind-to", "none"]), ("HYDRA build details:\n    Version: 5.0.1", [])],
)
def test_an_mpirun_that_binds_is_told_not_to(tmp_path, monkeypatch, version, flags):
    """The PEs of all jobs of two would run on two cores of the machine."""
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(jobs.sys, "executable", str(tmp_path / "python"))
    jobs._mpirun.cache_clear()
    try:
        assert jobs.mpirun(2) == [str(program), *flags, "-n", "2"]
    finally:
        jobs._mpirun.cache_clear()
