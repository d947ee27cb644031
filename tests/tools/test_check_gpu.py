"""``make check-gpu`` without GPUs: its plan, and how it starts jobs."""

import os
import subprocess
import sys

import check_gpu
import pytest

from pgas.perftests.harness import jobs

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_on_a_machine_without_gpus",)


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
