"""``make check-gpu`` without GPUs: the MPS daemon is a script that records its calls."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import check_gpu
import pytest

from pgas.perftests.harness import jobs
from pgas.perftests.harness.jobs import Step

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_on_a_machine_without_gpus",)


@pytest.fixture
def daemons(tmp_path, monkeypatch):
    """Return the recorded calls of nvidia-cuda-mps-control: arguments, visible GPU, folder."""
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


def test_two_at_once_on_each_of_two_gpus(tmp_path, daemons, monkeypatch, capfd):
    """Four steps wait for each other. Each GPU has one daemon, which is ended. Failed steps run again alone."""
    monkeypatch.setattr(check_gpu, "LOGS", tmp_path / "logs")
    code = f"""
import os, time
from pathlib import Path
folder, name = Path({str(tmp_path)!r}), os.environ["OF_STEP"]
again = (folder / f"said-{{name}}").exists()
(folder / f"said-{{name}}").write_text(" ".join(os.environ[v] for v in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")))
deadline = time.monotonic() + 40
while len(list(folder.glob("said-*"))) < 4:
    assert time.monotonic() < deadline
    time.sleep(0.02)
print("met", name)
raise SystemExit(name == "4" or name == "3" and not again)
"""
    became = check_gpu._share([step(name, code) for name in "1234"], ["GPU-a", "GPU-b"], 2, float("inf"))
    assert became == {"1": "passed", "2": "passed", "3": "passed", "4": "failed"}
    assert [call[:2] for call in daemons()[:2]] == [["-d", "GPU-a"], ["-d", "GPU-b"]]
    assert [call[0] for call in daemons()[2:]] == ["", "", "-d", ""]
    assert {path.read_text().split()[0] for path in tmp_path.glob("said-[12]")} <= {"GPU-a", "GPU-b"}
    assert "3: failed after" in (shown := capfd.readouterr().out)
    assert "3: passed after" in shown
    assert (tmp_path / "logs" / "4.txt").read_text() == "met 4\n"
    assert check_gpu._perform([step("late")], [{}], time.monotonic()) == {"late": "left"}


#: Starts a process in a new session, as mpirun may, and records its pid.
ELSEWHERE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
with open({path!r}, "w") as file:
    file.write(str(child.pid))
child.wait()
"""


def is_gone(path):
    """Wait until the process whose pid is in a file has ended."""
    deadline = time.monotonic() + 20
    command = Path("/proc", path.read_text(), "cmdline")
    while time.monotonic() < deadline:
        try:
            if not command.read_bytes():  # a zombie
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


def test_a_signal_ends_all(tmp_path, daemons):
    program = f"""
from pathlib import Path
import sys; sys.path.insert(0, {str(Path(check_gpu.__file__).parent)!r})
import check_gpu
from pgas.perftests.harness import jobs
import sys
check_gpu.LOGS = Path({str(tmp_path)!r})
code = {ELSEWHERE!r}
steps = [jobs.Step(name, [sys.executable, "-c", code.format(path={str(tmp_path)!r} + "/" + name)], 60) for name in "abc"]
with jobs.ended_by_signals():
    check_gpu._share(steps, ["GPU-a"], 2, float("inf"))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        for name in "ab":
            appears(tmp_path / name)
        started.send_signal(signal.SIGTERM)
        _, errors = started.communicate(timeout=40)
    assert started.returncode == 143, errors
    assert all(is_gone(tmp_path / name) for name in "ab")
    assert not (tmp_path / "c").exists()
    assert [call[0] for call in daemons()] == ["-d", ""]


def test_steps_have_unique_names_and_existing_files():
    steps = [*check_gpu._tests(), *check_gpu._nic_tests(), *check_gpu._alone()]
    steps += [*check_gpu._measurements("here"), *check_gpu._nic_measurements("here")]
    assert len({each.name for each in steps}) == len(steps) > 100
    for each in steps:
        assert all(Path(jobs.ROOT, word).exists() for word in each.command if word.startswith("tests/")), each
    named = {each.name for each in steps}
    assert {"p2p 2 init", "ibgda 4 every atomic", "ibrc 3 order", "ibrc 2 heap_growth", "ibgda 2 gigabytes", "deaths", "soak"} <= named
    assert {name for name in named if name.startswith("ibrc 2 atomics")} == {f"ibrc 2 atomics {i}/4" for i in (1, 2, 3, 4)}
    assert not {"p2p 3 init", "ibgda 2 setup", "p2p 2 two_paths", "p2p 2 nic_order"} & named
    assert all(f"{pair} {machines} two paths" in named for pair in ("p2p,ibgda", "p2p,ibrc") for machines in ("2+2", "2+1", "1+1+1"))
    two = next(each for each in steps if each.name == "p2p,ibrc 2+1 groups 2/6")
    assert (two.variables["PGAS_PES_PER_NODE"], two.command[-1]) == ("2,1", "tests/conformance/test_wrong_collectives.py")
    # tests/mpi alone does not know the option.
    assert all("--conformance-report" not in each.command for each in steps if "tests/mpi/test_two_paths.py" in each.command)


def test_parts_of_the_tests_of_a_file():
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", __file__]
    everything, *parts = (
        [line for line in subprocess.check_output([*command, *part], cwd=jobs.ROOT, text=True).splitlines() if "::" in line]
        for part in ([], ["--part", "1/2"], ["--part", "2/2"])
    )
    assert parts == [everything[0::2], everything[1::2]]
    assert all(parts)


def test_on_a_machine_without_gpus():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, check_gpu.__file__], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "check-gpu needs a GPU and an mpirun\n")


@pytest.mark.parametrize(
    ("version", "flags"),
    [("mpirun (Open MPI) 4.1.6", ["--oversubscribe", "--bind-to", "none"]), ("HYDRA build details:\n    Version: 5.0.1", [])],
)
def test_open_mpi_is_told_not_to_bind(tmp_path, monkeypatch, version, flags):
    """Otherwise the PEs of all jobs of two would share two cores."""
    program = tmp_path / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(jobs.sys, "executable", str(tmp_path / "python"))
    jobs._mpirun.cache_clear()
    try:
        assert jobs.mpirun(2) == [str(program), *flags, "-n", "2"]
    finally:
        jobs._mpirun.cache_clear()
