"""tests/forks.py in the guest, where Python takes 2 s to start and half a minute to import what tests use.

``python -m rxe.forks COMMAND...`` imports what a PE's test session imports before its first test, pytest first, and runs the command.
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
    "pyverbs.mr", "pyverbs.pd", "pyverbs.qp", "pgas.perftests.jobs", "pgas.transports.ibrc.verbs",
)  # fmt: skip


def preload() -> None:
    """Import and compile what tests use; on the machine this leaves bytecode and Numba's code on disk, which the guest finds there."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # pgas would, but Numba is imported before it
    for name in IMPORTED:
        importlib.import_module(name)
    from pgas.transports.ibrc import loop, work_requests

    loop.compiled(work_requests)


def _with_pytest(load) -> None:  # type: ignore[no-untyped-def]
    """Import pytest with its plugins, and more while its import hook is there, which rewrites assertions of some modules."""
    import pytest

    class Importer:
        def pytest_load_initial_conftests(self) -> None:
            load()

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        pytest.main(["--markers", "--noconftest"], plugins=[Importer()])  # --version would end before its hooks are called


def main(command: Sequence[str], load=preload) -> int:  # type: ignore[no-untyped-def]
    """Import, and serve a command as forks.run() does."""
    _with_pytest(load)
    return forks.run(command, nested=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
