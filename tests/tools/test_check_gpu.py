"""``make check-gpu`` without GPUs: its plan, and how it starts jobs."""

import os
import subprocess
import sys
from pathlib import Path

import check_gpu
import pytest

from pgas.perftests.harness import jobs

#: Tests of this tool in `make check`; the others are in `make check-all`.
SMOKE = ("test_on_a_machine_without_gpus",)


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
