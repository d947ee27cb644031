"""Command line: ``python -m rxe packages`` and ``python -m rxe run [--timeout S] [--forks] COMMAND...``."""

import argparse
import os
import platform
import signal
import subprocess
import sys

from rxe import guest, packages

#: Exit status if there can be no guest (automake's status for skipped tests).
UNAVAILABLE = 77


def _run(command: list[str], timeout_s: float, *, forks: bool, also: list[str]) -> int:
    if (machine := platform.machine()) != "x86_64" or sys.platform != "linux":
        raise packages.Missing(f"the guest is for Linux on x86_64, this is {sys.platform} on {machine}")
    packages.install(packages.GUEST)
    packages.link_pyverbs()
    kernel = packages.kernel()
    if forks:
        os.environ.update(guest.ANY_PROCESSOR, NUMBA_CACHE_DIR=str(packages.cache_folder() / "numba"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise the emulated guest compiles all of pgas
        preload = "; ".join(["from rxe import forks", "forks.preload()", *(f"import {module}" for module in also)])
        subprocess.run([sys.executable, "-c", preload], check=True)
        command = [sys.executable, "-m", "rxe.forks", *command]
    status = guest.boot(kernel, command, timeout_s)
    return 1 if status == UNAVAILABLE else status  # the command's own status must not look like a skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: the command's, 124, 125, or 77 where there can be no guest."""
    parser = argparse.ArgumentParser(prog="python -m rxe", description="A QEMU guest with Soft-RoCE devices on the machine's own root.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("packages", help="install the Debian packages for tests of verbs; status 77 and one line if one is not available")
    run = actions.add_parser("run", help="run a command in the guest; its exit status, 124: too long, 125: guest died")
    run.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="for boot and command (600)")
    run.add_argument("--forks", action="store_true", help="run it under rxe.forks: Python starts once and imports the tests' modules once")
    run.add_argument("--also", action="append", default=[], metavar="MODULE", help="with --forks: compile this module on the machine")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    if options.action == "run" and not options.command:
        parser.error("run: no command")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the guest ends, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        if options.action == "run":
            return _run(options.command, options.timeout, forks=options.forks, also=options.also)
        packages.install(packages.VERBS)
        packages.link_pyverbs()
    except packages.Missing as missing:
        print(f"rxe: no {'guest' if options.action == 'run' else 'tests of verbs'} here: {missing}", file=sys.stderr)
        return UNAVAILABLE
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
