"""Pythons that pgas starts do not take modules of the working folder for Python's or those of packages. What import leaves behind."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgas.base import interpreter

ROOT = Path(__file__).resolve().parent.parent

#: Modules that pgas and Numba import.
NAMES = ("json", "secrets", "numbers", "token", "numba", "numpy", "greenlet")


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name}.py of the user')\n")
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


def ran(command, folder, **variables):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1", **variables}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_software_nic(folder):
    program = folder / "elsewhere" / "program.py"
    program.write_text("import pgas\nwith pgas.init() as job:\n    print(job.transport)\n")
    assert ran([sys.executable, str(program)], folder, PGAS_TRANSPORT="ibgda", PGAS_SYMMETRIC_SIZE="16M") == (0, "ibgda\n", "")


def test_commands(folder):
    """python -m puts the working folder on the path; a module that the user names is found there."""
    (folder / "own.py").write_text("import os\nprint('own of', os.environ['PGAS_LAUNCHED'].count('rank'))\n")
    status, out, err = ran([sys.executable, "-m", "pgas.run", "-n", "2", "-m", "own"], folder)
    assert (status, sorted(out.splitlines()), err) == (0, ["[PE 0] own of 1", "[PE 1] own of 1"], "")
    for command in ([sys.executable, "-m", "pgas", "info"], interpreter.command("pgas", "info")):
        status, out, err = ran(command, folder)
        assert (status, err) == (0, "")
        assert "Environment variables" in out


def test_every_python_is_started_so():
    """Only pgas.run starts the user's program, from the user's folder."""
    starts = []
    for path in sorted(file for part in ("pgas", "kernels", "transports", "perftests") for file in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            for here, following in zip(node.elts, node.elts[1:], strict=False) if isinstance(node, ast.List) else ():
                if ast.unparse(here) == "sys.executable" and ast.unparse(following) not in ("'-P'", "'-I'"):
                    starts.append(str(path.relative_to(ROOT)))
    assert set(starts) == {"pgas/run.py"}


IMPORT = """
import gc, weakref

class Node:
    pass

class Proxy:
    __class__ = property(lambda self: print("evaluated") or Node)

node, proxy = Node(), Proxy()
node.itself, left = node, weakref.ref(node)
gc.collect()  # node is of the oldest generation
import pgas
del node
gc.collect()
print(left(), gc.isenabled(), gc.get_freeze_count() > 100_000)
"""


def test_the_collector_does_not_visit_what_import_made(tmp_path):
    """A full collection would take 50 ms longer, and the end of the process 0.2 s. What the program made before is collected as ever.

    A proxy of the program, such as one of PyTorch that warns of a deprecation, is not evaluated.
    """
    assert ran([sys.executable, "-c", IMPORT], tmp_path) == (0, "None True True\n", "")
