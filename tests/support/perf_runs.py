"""Runs of perf tests and random programs. Their exit status is checked: 0, or what is given; None: any."""

import json
import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from examples import ROOT
from jobs import launcher

MPIRUN = Path(sys.executable).with_name("mpirun")


def _ended(line, environment, timeout, status):
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert status in (done.returncode, None), f"status {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def mpirun(npes, *command, timeout=120, status=0, **variables):
    """Run a Python command on npes PEs by the mpirun beside this Python, without the variables of a launcher of pytest itself."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PMI", "HYDI", "MPI"))}
    environment |= variables
    line = [str(MPIRUN), "-n", str(npes), forks.python(), *map(str, command)]
    return _ended(line, environment, timeout, status)


def perftest(name, npes, *flags, program="", status=0, **variables):
    """Run a perf test on npes PEs of the simulator. program: text that calls its main()."""
    command = [*launcher(npes), forks.python(), *(["-c", program] if program else ["-m", f"pgas.perftests.{name}"]), *flags]
    return _ended(command, os.environ | {"NUMBA_ENABLE_CUDASIM": "1", **variables}, 250, status)


def compiled(*command):
    """Compile the kernels of a program for a GPU, by ``python -m pgas compile``; return its table."""
    return json.loads(_ended([sys.executable, "-m", "pgas", "compile", "--json", *command], None, 280, 0).stdout)


with_mpirun = pytest.mark.skipif(not MPIRUN.exists(), reason="needs mpirun beside this Python")
