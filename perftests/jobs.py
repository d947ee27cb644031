"""Jobs of perf tests: the GPUs here, MPS, mpirun, and the name that the files of this machine carry."""

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["BASELINES", "ROOT", "gpus", "machine_name", "mpirun", "mps", "run"]

#: The repository.
ROOT = Path(__file__).resolve().parent.parent

#: Where the results of machines are kept.
BASELINES = ROOT / "perftests" / "baselines"


def run(command: list[str], seconds: int, **environment: str) -> bool:
    """Run a command, shown first; return whether it succeeded in time."""
    print("+", shlex.join(command), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, timeout=seconds, env=os.environ | environment, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"timed out after {seconds} s", flush=True)
        return False


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """Run an MPS daemon of our own, unless one is configured already."""
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = folder
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False)
            del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]


def gpus() -> list[str]:
    """Names of the GPUs that the processes may use; asked in another process, which keeps CUDA out of this one."""
    code = "from numba import cuda; print('\\n'.join(d.name if isinstance(d.name, str) else d.name.decode() for d in cuda.list_devices()))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return listed.stdout.split("\n")[:-1] if listed.returncode == 0 else []


@functools.cache
def _mpirun() -> tuple[str, ...]:
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which("mpirun", path=folders)
    if path is None:
        raise FileNotFoundError("no mpirun beside this Python or in PATH")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return (path, *(["--oversubscribe"] if "Open MPI" in version or "OpenRTE" in version else []))


def mpirun(n: int) -> list[str]:
    """Command that starts n PEs, with the mpirun beside this Python if there is one; Open MPI counts cores unless told not to."""
    return [*_mpirun(), "-n", str(n)]


def machine_name(gpus: list[str]) -> str:
    """Return the part of a result's file name that says on which GPUs two PEs ran: 1xH100-80GB-HBM3, 2xH200, simulator."""
    return f"{min(len(gpus), 2)}x{gpus[0].removeprefix('NVIDIA ').replace(' ', '-')}" if gpus else "simulator"
