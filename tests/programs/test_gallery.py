"""The programs of docs/gallery with 1 to 4 PEs over every transport; test_docs.py runs what their pages show."""

import os
import subprocess
import sys

import forks
import pytest
from examples import ROOT, STAND_INS
from jobs import launcher

GALLERY = ROOT / "docs" / "gallery"

#: Per program, arguments that tell more than the defaults do.
ARGUMENTS = {
    "jacobi": ("--version p", "--version put --nx 67 --threads 64", "--version persistent --blocks 3"),
    "ring_broadcast": ("--chunks 1 8", "--chunks 8 --blocks 3"),
    "ring_allreduce": ("--chunks 1 --blocks 1", "--chunks 3 --blocks 2"),
    "large_allreduce": ("--elements 5 --blocks 3", "--elements 13001 --blocks 1 3 --rounds 1"),
    "kv_push": ("--slots 1", "--slots 3 --pages 2 --page 5"),
    "gups": ("--table 3 --blocks 3",),
    "histogram": ("--bins 3 --blocks 3",),
    "bfs": ("--degree 1", "--degree 5 --vertices 9 --blocks 3"),
    "matmul": ("--tile 2 --senders 2", "--rows 6 --tile 3 --columns 5 --blocks 2"),
    "ep": (
        "--tokens 19 --fewer 5 --top_k 5 --hidden 136 --blocks 3",
        "--tokens 37 --blocks 1 --threads 32 --hidden 128 --top_k 1",
        "--tokens 0",
        "--tokens 3 --used 3 --top_k 4 --blocks 4",
    ),
    "moe": ("--top_k 1", "--tokens 11 --experts 3 --top_k 3 --blocks 3 --hidden 5"),
    "pytorch": ("--times 4", "--tokens 5 --inner 3 --hidden 37 --blocks 3"),
}


def test_every_program_is_here():
    assert ARGUMENTS.keys() == {path.stem for path in GALLERY.glob("*.py")}


#: Transports and numbers of PEs.
JOBS = [(transport, npes) for transport in ("p2p", "ibgda", "ibrc", "p2p,ibgda") for npes in (1, 2, 3, 4)]

#: PGAS_PES_PER_NODE with two paths, by number of PEs.
MACHINES = {1: "1", 2: "1", 3: "2,1", 4: "2"}


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "npes"), JOBS)
@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, several in ARGUMENTS.items() for arguments in several])
def test_results_are_right(name, arguments, transport, npes):
    environment = os.environ | STAND_INS | {"PGAS_TRANSPORT": transport, "NUMBA_ENABLE_CUDASIM": "1"}
    if "," in transport:
        environment["PGAS_PES_PER_NODE"] = MACHINES[npes]
    command = [*launcher(npes), forks.python(), str(GALLERY / f"{name}.py"), *arguments.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{npes} PEs" in done.stdout
    assert "right" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring_broadcast", "ring_allreduce"])
def test_pictures(name, tmp_path):
    picture = tmp_path / "picture.png"
    command = [*launcher(2), forks.python(), str(GALLERY / f"{name}.py"), "--chunks", "1", "2", "--plot", str(picture)]
    done = subprocess.run(command, env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pytorch_under_torchrun():
    """With the real PyTorch; elsewhere a stand-in takes its place under mpirun."""
    pytest.importorskip("torch")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    command = [*torchrun, str(GALLERY / "pytorch.py"), "--dtype", "bfloat16"]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pytorch: 3 PEs, 6 x 24 times 24 x 16, bfloat16: right" in done.stdout
