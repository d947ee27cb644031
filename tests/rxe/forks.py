"""tests/support/forks.py in the guest, where Python takes 2 s to start and half a minute to import the tests' modules.

``python -m rxe.forks COMMAND...`` imports, beginning with pytest, what a test session imports before its first test, and runs the command.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

import forks

__all__ = ["IMPORTED", "main", "preload"]

IMPORTED = (
    "hypothesis", "mpi4py", "numba.cuda.simulator", "numpy.random", "numpy.testing", "pyverbs.addr", "pyverbs.cq", "pyverbs.device",
    "pyverbs.mr", "pyverbs.pd", "pyverbs.qp", "pgas.perftests.harness.jobs", "pgas.transports.ibrc.verbs",
)  # fmt: skip


def preload() -> None:
    """Import and compile what tests use. On the machine this writes bytecode and Numba's cache to disk, which the guest uses."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # pgas sets it, but Numba is imported earlier here
    for name in IMPORTED:
        importlib.import_module(name)
    from pgas.transports.ibrc import loop, work_requests, wqes

    loop.compiled(work_requests)
    loop.compiled(wqes)


def _with_pytest(load) -> None:  # type: ignore[no-untyped-def]
    """Import pytest with its plugins, and the rest while pytest's import hook, which rewrites assertions, is active."""
    import pytest

    class Importer:
        def pytest_load_initial_conftests(self) -> None:
            load()

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        pytest.main(["--markers", "--noconftest"], plugins=[Importer()])  # --version would end before its hooks are called


def main(command: Sequence[str], load=preload) -> int:  # type: ignore[no-untyped-def]
    """Import the modules, and run a command with forks.run()."""
    _with_pytest(load)
    return forks.run(command, nested=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
