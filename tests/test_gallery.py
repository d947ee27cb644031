"""The programs of docs/gallery with 1 to 4 PEs over every transport; test_docs.py runs what their pages show."""

import os
import subprocess

import forks
import pytest
from examples import ROOT
from jobs import launcher

GALLERY = ROOT / "docs" / "gallery"

#: Per program, arguments that tell more than the defaults do.
ARGUMENTS = {
    "jacobi": ("--version p", "--version put --nx 67 --threads 64", "--version persistent --blocks 3"),
    "ring_broadcast": ("--chunks 1 8", "--chunks 8 --blocks 3"),
    "ring_allreduce": ("--chunks 1 --blocks 1", "--chunks 3 --blocks 2"),
    "kv_push": ("--slots 1", "--slots 3 --pages 2 --page 5"),
    "gups": ("--table 3 --blocks 3",),
    "histogram": ("--bins 3 --blocks 3",),
    "bfs": ("--degree 1", "--degree 5 --vertices 9 --blocks 3"),
    "matmul": ("--tile 2 --senders 2", "--rows 6 --tile 3 --columns 5 --blocks 2"),
    "moe": ("--top_k 1", "--tokens 11 --experts 3 --top_k 3 --blocks 3 --hidden 5"),
}


def test_every_program_is_here():
    assert ARGUMENTS.keys() == {path.stem for path in GALLERY.glob("*.py")}


#: Transports and numbers of PEs. With two paths, every two PEs are a machine of their own.
JOBS = [(transport, npes) for transport in ("p2p", "ibgda", "ibrc") for npes in (1, 2, 3, 4)] + [("p2p,ibgda", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("transport", "npes"), JOBS)
@pytest.mark.parametrize(("name", "arguments"), [(name, arguments) for name, several in ARGUMENTS.items() for arguments in several])
def test_results_are_right(name, arguments, transport, npes):
    environment = os.environ | {"PGAS_TRANSPORT": transport, "NUMBA_ENABLE_CUDASIM": "1"}
    if "," in transport:
        environment["PGAS_PES_PER_NODE"] = "2"
    command = [*launcher(npes), forks.python(), str(GALLERY / f"{name}.py"), *arguments.split()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{npes} PEs" in done.stdout
    assert "right" in done.stdout
