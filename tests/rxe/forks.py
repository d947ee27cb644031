"""tests/forks.py in the guest, where Python takes 2 s to start and half a minute to import what tests use.

``python -m rxe.forks COMMAND...`` imports all the tests need, pytest first. ``python -m rxe.forks --kept COMMAND...`` is what kept.py
starts in the guest's first files: libraries are imported there, the guest is kept on disk and started again, and what it then imports and
runs is read from the machine's own root.
"""

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence

import forks

__all__ = ["IMPORTED", "LIBRARIES", "import_all", "main"]

#: What the server imports: most of what a PE's test session does before its first test.
IMPORTED = ("rxe.preload",)

#: Of that, what is imported before the guest is kept.
LIBRARIES = ("rxe.libraries",)


def import_all(names: Sequence[str]) -> None:
    """Import modules, and pytest with its plugins, while pytest's import hook is there, which rewrites assertions of some of them."""
    import pytest

    class Importer:
        def pytest_load_initial_conftests(self) -> None:
            for name in names:
                importlib.import_module(name)

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
        pytest.main(["--markers", "--noconftest"], plugins=[Importer()])  # --version would end before its hooks are called
    if missing := [name for name in names if name not in sys.modules]:
        raise ImportError(f"pytest did not import {', '.join(missing)}")


def be_kept() -> None:
    """Import libraries from the guest's first files, let the guest be kept on disk, and go on in the machine's root, at /live."""
    import_all(LIBRARIES)
    subprocess.run(["/busybox/sh", "/pause.sh"], check=True)
    os.chroot("/live")
    os.chdir("/")
    importlib.invalidate_caches()  # folders have more in them now


def main(command: Sequence[str], names: Sequence[str] = IMPORTED) -> int:
    """Import, and serve a command as forks.run() does."""
    if command[0] == "--kept":
        be_kept()
        command = command[1:]
    import_all(names)
    return forks.run(command, nested=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
