"""Jobs for tests: programs in separate processes, under mpirun if there are several PEs, which must leave nothing behind.

Kernels run in the simulator. Tests that can also run on GPUs do so under NUMBA_ENABLE_CUDASIM=0.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import forks
import pytest

from pgas.perftests.harness.jobs import marked, mpirun

#: Whether jobs that can run on GPUs do so in this session.
ON_GPUS = os.environ.get("NUMBA_ENABLE_CUDASIM", "1") == "0"

#: Whether jobs of several PEs are started by python -m pgas.run instead of mpirun.
BY_RUN = os.environ.get("TEST_LAUNCHER") == "run"

#: Seconds in which a job must end by itself: well below PGAS_TIMEOUT, and enough for a slow machine, and for compiling the card's engine
#: after an installation.
SOON = 40

#: Seconds after which a job is killed: the first jobs after an installation compile, side by side, on as few as 2 cores.
LIMIT = 150

#: Environment variable with the job's folder, in all of its processes.
MARK = "TEST_JOB"

#: Most GPU memory in MiB that the MPS server may keep after a job; a leaked heap has 256.
SLACK = 128

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from numba import cuda
import pgas
from pgas.base.launcher import launched_rank

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # one write: lines of two PEs do not mix

def attempt(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        say(f"PE {me}: {type(error).__name__}:", str(error))
    else:
        say(f"PE {me}: no error")

def note(name, *words):
    path = sys.argv[0].replace("program.py", name)
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.writelines(f"{word}\\n" for word in words)
    os.rename(file.name, path)

def init(*args, start=pgas.init):
    try:
        job = start(*args)
        if job.nic is not None:
            note("card", job.nic.process)
        return job
    finally:  # what of /dev/shm this process uses and a killed job would leave
        with open("/proc/self/maps") as maps:
            note(f"shm-{os.getpid()}", *(line[line.index("/dev/shm/") :].rstrip("\\n") for line in maps if "/dev/shm/" in line))

pgas.init = init

def later(seconds, call, *args):
    threading.Timer(seconds, call, args).start()

@pgas.jit
def waits(word):
    pgas.signal_wait_until(word, 0, pgas.GE, 1)

def here():
    say("waiting")
    note(f"waiting-{me}", os.getpid())

def wait(how, word):
    here()
    if how == "kernel":
        waits[1, 1](word)
    elif how == "barrier":
        pgas.barrier_all()
    else:
        time.sleep(100)

me = 0
"""

INIT = """
pgas.init()
me, n = pgas.my_pe(), pgas.n_pes()
word = pgas.zeros(1, np.uint64)
"""


@dataclass
class Ended:
    status: int
    out: str
    err: str
    seconds: float

    def lines(self, pe):
        """Return the lines that attempt() printed on one PE."""
        return [line.partition(": ")[2] for line in self.out.splitlines() if line.startswith(f"PE {pe}: ")]

    def only_line(self, pe):
        """Return the only line that attempt() printed on one PE."""
        said = self.lines(pe)
        assert len(said) == 1, self
        return said[0]

    def __str__(self):
        return f"status {self.status} after {self.seconds:.1f} s\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def launcher(npes):
    """Return the command that starts a number of PEs."""
    if BY_RUN:
        return [sys.executable, "-m", "pgas.run", "-n", str(npes)]
    try:
        return mpirun(npes)
    except FileNotFoundError:
        pytest.skip("capability missing: an mpirun")


def _plain(text):
    """Return output without a launcher's prefixes and colors."""
    return re.sub(r"\x1b\[[0-9;]*m|^\[PE \d+\] ", "", text, flags=re.MULTILINE)


class Running:
    def __init__(self, folder, command, environment, npes, memory):
        self._folder, self._npes, self._memory = folder, npes, memory
        self._started = time.monotonic()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**environment, MARK: str(folder)}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)

    def seconds(self):
        return time.monotonic() - self._started

    def wait(self, seconds=LIMIT):
        """Wait until all PEs have called here() of the prelude; return their pids and the card's."""
        names = [f"waiting-{pe}" for pe in range(self._npes)]
        until(lambda: all((self._folder / name).exists() for name in names) or self.process.poll() is not None, seconds)
        if not all((self._folder / name).exists() for name in names):
            pytest.fail(f"the PEs were not there after {seconds} s\n{self._killed()}")
        return [int((self._folder / name).read_text()) for name in names], self.card()

    def card(self):
        """Return the pid of the job's software card, None if it has none."""
        path = self._folder / "card"
        return int(path.read_text()) if path.exists() else None

    def end(self, seconds=LIMIT):
        """Wait until the job has ended by itself, and check that nothing is left of it."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end within {seconds} s\n{self._killed()}")
        ended = Ended(self.process.returncode, _plain(out), _plain(err), self.seconds())
        files = {line for file in self._folder.glob("shm-*") for line in file.read_text().splitlines()}
        left: dict[int, str] = {}

        def gone():
            left.clear()
            left.update(self._processes())  # once: a PE that is ending may still start one, which ends with it
            return not (left or present(files) or self._socket() or self._memory_held())

        until(gone, SOON)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left: {left}\n{ended}"
        assert not present(files), f"left in /dev/shm: {present(files)}\n{ended}"
        assert not self._socket(), f"left in /proc/net/unix: {self._socket()}\n{ended}"
        assert not self._memory_held(), f"MiB of GPU memory left: {self._memory_held()}\n{ended}"
        return ended

    def _killed(self):
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        out, err = self.process.communicate(timeout=10)
        return f"--- stdout\n{out}\n--- stderr\n{err}"

    def _processes(self):
        """Return the job's processes and their command lines, without zombies."""
        found = {}
        for pid in marked(MARK, self._folder):
            with contextlib.suppress(OSError):
                found[pid] = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def _socket(self):
        """Return the abstract sockets of the job's card."""
        if (card := self.card()) is None:
            return []
        return re.findall(rb"@pgas-hca-%d-\S+" % card, Path("/proc/net/unix").read_bytes())  # names of other sockets may be any bytes

    def _memory_held(self):
        if self._memory is None:
            return 0
        return max(0, gpu_memory() - self._memory - SLACK)


class Jobs:
    """job(text, npes=2, seconds=LIMIT, **variables) runs a program and returns it Ended; job.start() returns it Running.

    Args:
        folder: folder for the program and the notes of its PEs.
        gpus: whether kernels run on GPUs.
        real: whether each PE is a real child of mpirun, as tests of deaths and signals need. Otherwise, in the simulator, it is a fork.
    """

    def __init__(self, folder, gpus=False, real=False):
        self._folder, self._gpus, self._real = folder, gpus, real or gpus

    def __call__(self, text, npes=2, seconds=LIMIT, **options):
        return self.start(text, npes, **options).end(seconds)

    def start(self, text, npes=2, per_pe=None, wrapper=(), prelude=PRELUDE, **variables):
        """Start a program.

        Args:
            text: the program after the prelude.
            npes: number of PEs; under mpirun if more than 1.
            per_pe: environment variables of each PE.
            wrapper: command in front of the program's.
            prelude: common start of programs.
            variables: environment variables of all PEs.
        """
        path = self._folder / "program.py"
        path.write_text(prelude + text)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))}
        environment |= {"NUMBA_ENABLE_CUDASIM": "0" if self._gpus else "1", "PGAS_SYMMETRIC_SIZE": "256M" if self._gpus else "16M"}
        environment |= {"PYTHONFAULTHANDLER": "1", **variables}
        program = command = [*wrapper, sys.executable if self._real else forks.python(), str(path)]
        if npes > 1:
            command = [*launcher(npes), *program]
            if per_pe is not None:
                if BY_RUN:
                    pytest.skip("pgas.run gives all PEs the same variables")
                command = [mpirun(npes)[0]]
                for pe, settings in enumerate(per_pe):
                    command += [":"] * (pe > 0) + ["-n", "1", "env", *(f"{name}={value}" for name, value in settings.items()), *program]
        return Running(self._folder, command, environment, npes, gpu_memory() if self._gpus else None)


@pytest.fixture
def job(tmp_path):
    return Jobs(tmp_path)


@pytest.fixture
def real_job(tmp_path):
    """Jobs in the simulator whose PEs die or get signals."""
    return Jobs(tmp_path, real=True)


@pytest.fixture(autouse=True)
def mps_server():
    """Start the MPS server by a client of its own, for modules that run on GPUs.

    The server's memory must not count as a job's. After a test has killed a client in a kernel, the server refuses the next client once,
    and restarts.
    """
    client = [sys.executable, "-c", "from numba import cuda\nfor i in range(len(cuda.gpus)): cuda.select_device(i)"]
    ended = []
    if ON_GPUS:
        until(lambda: ended.append(subprocess.run(client, capture_output=True, text=True, timeout=LIMIT)) or not ended[-1].returncode, SOON)
        assert ended[-1].returncode == 0, ended[-1].stderr


def also(*case):
    """Mark a case of parametrize as slow, for `make check-all`, as it rarely fails alone."""
    return pytest.param(*case, marks=pytest.mark.slow)


def by_pgas_run(size):
    """Return PGAS_LAUNCHED of PE 0."""
    return json.dumps({"rank": 0, "size": size, "host": "127.0.0.1", "port": 1, "secret": "5ec2", "word": []})


def until(condition, seconds):
    """Wait for a condition, at most some seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def present(names):
    return {name for name in names if os.path.exists(name)}


def gpu_memory():
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command += ["--id", visible]
    return sum(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))


def holds(ended, *texts, status=None):
    """Check texts of stdout or stderr, and the exit status (None: any failure)."""
    for text in texts:
        assert text in ended.out + ended.err, f"{text!r} is missing\n{ended}"
    assert ended.status == status if status is not None else ended.status != 0, ended
    assert "Segmentation fault" not in ended.err, ended
    assert "Fatal Python error" not in ended.err, ended
