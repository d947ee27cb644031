"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the Python that is active.

Two GPUs: one PE on each. One GPU: two PEs under MPS, which is started here and ended again if it does not run. Writes
perftests/baselines/<test>-<gpus>.json. ``--quick`` leaves the tests out, ``--tests`` the measurements.
"""

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
BASELINES = ROOT / "perftests" / "baselines"

#: Through the NIC that a kernel plays: scattered and neighbouring p, block puts; a queue pair a CTA.
NIC_MEASUREMENTS = {
    "shmem_p_bw-ibgda-8x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 8 -t 1024 -i 2 -b 64K -e 512K",
    "shmem_p_bw-ibgda-64x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -i 2 -b 512K -e 4M",
    "shmem_p_bw-ibgda-64x1024": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -b 512K -e 4M",
    "shmem_put_bw-ibgda-32x1024": "shmem_put_bw --transport ibgda -n 20 -w 5 -c 32 -t 1024 -b 1K -e 32M",
}

#: Conformance chapters that run through the NIC.
NIC_CHAPTERS = [f"tests/mpi/test_{chapter}.py" for chapter in ("nic", "signal", "order", "amo", "heap", "rma", "python")]

#: The flags of NVSHMEM's figures that ours are compared with (32 and 4 CTAs; README), and a sweep of small messages.
MEASUREMENTS = {
    "shmem_put_bw-32x1024": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M",
    "shmem_put_bw-4x1024": "shmem_put_bw -n 200 -w 20 -c 4 -t 1024 -b 4 -e 32M",
    "shmem_put_bw-32x1024-bidir": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M --bidir",
    "shmem_p_bw-32x1024": "shmem_p_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_p_bw-4x1024": "shmem_p_bw -n 10 -w 10 -c 4 -t 1024 -b 1024 -e 64K",
}


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


def main() -> int:
    """Run everything, report what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measurements only")
    parser.add_argument("--tests", action="store_true", help="tests only")
    options = parser.parse_args()
    names = gpus()
    if not names or shutil.which("mpirun") is None:
        print("check-gpu needs a GPU and an mpirun", file=sys.stderr)
        return 2
    count = min(len(names), 2)
    machine = f"{count}x{names[0].removeprefix('NVIDIA ').replace(' ', '-')}"
    BASELINES.mkdir(exist_ok=True)
    failed = []
    shared = count == 1 or len(names) > 2  # a GPU that the NIC's kernel may use: PE 0's under MPS, or a spare one
    with mps() if count == 1 else contextlib.nullcontext():
        two = [*mpirun(2), sys.executable]
        pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if not options.quick:
            if not run([*two, *pytest, "tests/mpi"], 600, NUMBA_ENABLE_CUDASIM="0"):
                failed.append("conformance")
            if not run([*two, *pytest, "tests/mpi/test_setup.py"], 300, NUMBA_ENABLE_CUDASIM="0", PGAS_DEBUG="check"):
                failed.append("checks in kernels")
            if shared and not run([*two, *pytest, *NIC_CHAPTERS], 900, NUMBA_ENABLE_CUDASIM="0", PGAS_TRANSPORT="ibgda"):
                failed.append("conformance through the NIC")
        if not options.tests:
            for name, line in MEASUREMENTS.items():
                test, *flags = line.split()
                output = str(BASELINES / f"{name}-{machine}.json")
                if not run([*two, f"perftests/{test}.py", *flags, "--json", output], 200):
                    failed.append(name)
            for name, line in NIC_MEASUREMENTS.items() if shared else ():
                test, *flags = line.split()
                output = str(BASELINES / f"{name}-{machine}.json")
                queues = {"PGAS_IBGDA_NUM_RC_PER_PE": flags[flags.index("-c") + 1], "PGAS_QP_DEPTH": "8192"}
                if not run([*two, f"perftests/{test}.py", *flags, "--json", output], 200, **queues):
                    failed.append(name)
            output = str(BASELINES / f"compile_time-{machine}.json")
            if not run([sys.executable, "-m", "pgas.perftests.compile_time", "--json", output], 100):
                failed.append("compile_time")
            if not run([*two, "-m", "pgas.perftests.demo"], 100):
                failed.append("demo")
        if shared and not options.quick:  # last: under MPS the death of a client may take the server with it
            if not run([sys.executable, *pytest, "tests/test_faults_nic.py"], 900, NUMBA_ENABLE_CUDASIM="0"):
                failed.append("deaths")
    print(f"check-gpu on {machine}:", f"FAILED: {', '.join(failed)}" if failed else "all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
