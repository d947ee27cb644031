"""Runs commands for tests and perf tests: processes, MPS, and mpirun; also the GPUs of this machine, and its name in file names."""

import contextlib
import functools
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NoReturn

from pgas.base.launcher import launched

#: Directory of the repository, or of the package if it is installed from a wheel.
ROOT = Path(__file__).resolve().parent.parent.parent

#: Environment variable that marks all processes of a command of run().
_MARK = "PERFTESTS_COMMAND"

#: Variables without which Open MPI rejects more PEs than cores, and binds the PEs of every job of two to the same two cores.
_OPEN_MPI = ("--oversubscribe", "--bind-to", "none")

_running: set[str] = set()

#: Directory of recorded results.
BASELINES = ROOT / "perftests" / "baselines"

#: Directory for new results: in the repository that of the recorded ones, elsewhere the current directory.
RESULTS = BASELINES if (ROOT / "pyproject.toml").exists() else Path()


@dataclass(frozen=True)
class Step:
    """A named command, its time limit, and its environment variables."""

    name: str
    command: Sequence[str]
    seconds: float
    variables: Mapping[str, str] = field(default_factory=dict)


def run(
    command: Sequence[str],
    seconds: float,
    variables: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    folder: Path | None = None,
) -> bool:
    """Run a command and return whether it succeeded in time. After ``seconds`` it is killed with its descendants.

    Args:
        variables: environment variables in addition to those of this process.
        output: file for its output. Default: the command and its output are shown.
        folder: directory in which it runs. Default: the current directory.
    """
    if output is None:
        print("+", shlex.join(command), flush=True)
    both = None if output is None else subprocess.STDOUT
    mark = secrets.token_hex(8)
    environment = os.environ | dict(variables or {}) | {_MARK: mark}
    _running.add(mark)
    try:
        try:
            started = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=both, start_new_session=True)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", flush=True)
            return False
        with started:
            try:
                return started.wait(seconds) == 0
            except subprocess.TimeoutExpired:
                print(f"timed out after {seconds:.0f} s: {shlex.join(command)}", flush=True)
                return False
            finally:
                _end(mark)
    finally:
        _end(mark)  # Once more, because a signal may arrive before Popen returns.
        _running.discard(mark)


def end_running() -> None:
    """Kill every running command of run(), in all threads, with its descendants."""
    for mark in list(_running):
        _end(mark)


def _end(mark: str) -> None:
    for pid in marked(_MARK, mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(name: str, value: str) -> Iterator[int]:
    """Yield the processes with a variable in their environment. Sessions and process groups do not suffice: mpirun makes new ones."""
    wanted = os.fsencode(f"{name}={value}")
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # It is gone, or another user's.
            if wanted in environ.read_bytes().split(b"\0"):
                yield int(environ.parent.name)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise an exception, like Ctrl-C, so that commands and daemons end. A second signal is ignored."""

    def leave(number: int, _frame: object) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN)}
    for each in before:
        signal.signal(each, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def mps(gpu: str | None = None) -> Iterator[dict[str, str]]:
    """Run an MPS daemon, and yield its clients' environment variables.

    Args:
        gpu: UUID of the only GPU that it serves. Default: all GPUs; then the variables are set in this process, and no daemon is started if
            the environment names one.
    """
    if gpu is None and "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Because the daemon may still write its log.
        of_clients = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})}
        with _environment(of_clients if gpu is None else {}):
            control = functools.partial(subprocess.run, env=os.environ | of_clients)
            control(["nvidia-cuda-mps-control", "-d"], check=True)
            try:
                yield of_clients
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):  # Some client does not end.
                    control(["nvidia-cuda-mps-control"], input=b"quit -t 10\n", check=False, timeout=30)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables in a with block."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def gpus(attribute: str = "name") -> list[str]:
    """Return the names of the visible GPUs, or another attribute such as ``uuid``, from a child process to avoid loading CUDA here."""
    code = f"""
from numba import cuda
for device in cuda.list_devices():
    found = device.{attribute}
    print(found if isinstance(found, str) else found.decode())
"""
    listed = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    return listed.stdout.splitlines() if listed.returncode == 0 else []


@functools.cache
def _mpirun() -> tuple[str, ...]:
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which("mpirun", path=folders)
    if path is None:
        raise FileNotFoundError("no mpirun next to this Python or in PATH")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return (path, *(_OPEN_MPI if "Open MPI" in version or "OpenRTE" in version else ()))


def starting(npes: int) -> list[str]:
    """Return the start of a command, for messages: this job's launcher, otherwise mpirun, or pgas.run if there is none; and ``-n npes``."""
    found = launched()
    launcher = found.launcher if found is not None else ""
    if launcher not in ("mpirun", "srun", "pgas.run"):
        launcher = "pgas.run" if shutil.which("mpirun") is None else "mpirun"
    return [*(["python", "-m"] if launcher == "pgas.run" else []), launcher, "-n", str(npes)]


def mpirun(n: int) -> list[str]:
    """Return the command that starts n PEs on any cores, with the mpirun next to this Python if there is one."""
    return [*_mpirun(), "-n", str(n)]


def machine_name(gpus: list[str], npes: int = 2) -> str:
    """Return the machine's part of a result's file name, for a number of PEs: 1xH100-80GB-HBM3, 2xH200, simulator."""
    return f"{min(len(gpus), npes)}x{gpus[0].removeprefix('NVIDIA ').replace(' ', '-')}" if gpus else "simulator"
