"""Runs of perf tests and random programs by the mpirun beside this Python."""

import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest

MPIRUN = Path(sys.executable).with_name("mpirun")


def mpirun(npes, *command, timeout=120, **variables):
    """Run a Python command on npes PEs, without the variables of a launcher of pytest itself."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDI", "MPI"))}
    environment |= variables
    line = [str(MPIRUN), "-n", str(npes), forks.python(), *map(str, command)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=timeout)


with_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
