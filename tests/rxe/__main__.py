"""Command line: ``python -m rxe packages``, ``python -m rxe prepare`` and ``python -m rxe run [--timeout S] [--forks] COMMAND...``."""

import argparse
import os
import platform
import subprocess
import sys

from rxe import guest
from rxe.kept import NotKept, keep
from rxe.kernel import Kernel, cache_folder
from rxe.monitor import MonitorError, TooLong
from rxe.packages import VERBS, Missing, install_missing, link_pyverbs

#: Exit status where there can be no guest, as for tests that were skipped (automake's).
UNAVAILABLE = 77


def _say(line: str) -> None:
    print(f"rxe: {line}", file=sys.stderr, flush=True)


def prepare() -> Kernel:
    """Install, link and download what is missing.

    Raises:
        Missing: one line that says what cannot be had.
    """
    if (machine := platform.machine()) != "x86_64" or sys.platform != "linux":
        raise Missing(f"the guest is for Linux on x86_64, this is {sys.platform} on {machine}")
    install_missing(_say)
    link_pyverbs()
    cache = cache_folder()
    return Kernel.cached(cache) or Kernel.fetch(cache, _say)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status: the command's, 124, 125, or 77 where there can be no guest."""
    parser = argparse.ArgumentParser(prog="python -m rxe", description="A QEMU guest with Soft-RoCE devices on the machine's own root.")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("prepare", help="get what is missing from Debian; status 77 and one line if something cannot be had")
    actions.add_parser("packages", help="likewise, only what tests of verbs need outside the guest")
    run = actions.add_parser("run", help="prepare, then run a command in the guest; its exit status, 124: too long, 125: guest died")
    run.add_argument(
        "--timeout", type=float, default=600, metavar="SECONDS", help="for the command and, if no guest is kept, its boot (600)"
    )
    run.add_argument("--forks", action="store_true", help="run it under rxe.forks: Python is started once, the tests' imports are there")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    options = parser.parse_args(arguments)
    try:
        if options.action == "packages":
            install_missing(_say, VERBS)
            link_pyverbs()
            return 0
        kernel = prepare()
    except Missing as missing:
        _say(f"no {'tests of verbs' if options.action == 'packages' else 'guest'} here: {missing}")
        return UNAVAILABLE
    if options.action == "prepare":
        return 0
    if not options.command:
        parser.error("run: no command")
    try:
        with guest.ended_by_signals():
            status = (_run_forks if options.forks else guest.boot)(kernel, options.command, timeout_s=options.timeout)
    except KeyboardInterrupt:
        return 130
    return 1 if status == UNAVAILABLE else status  # the command's own, which is no reason to skip anything


def _run_forks(kernel: Kernel, command: list[str], *, timeout_s: float) -> int:
    """Run a command under rxe.forks, in the guest that is kept on disk, or in one that is booted if none can be."""
    os.environ.update(guest.ANY_PROCESSOR, NUMBA_CACHE_DIR=str(cache_folder() / "numba"))
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the guest would compile all of pgas, emulated
    preload = [sys.executable, "-m", "rxe.preload"]
    kept = None
    with subprocess.Popen(preload) as preloading:
        try:
            kept = keep(kernel, cache_folder(), _say)
        except NotKept as error:
            _say(f"no guest is kept on disk, this run boots one: {error}")
    if preloading.returncode:
        raise subprocess.CalledProcessError(preloading.returncode, preload)
    if kept is not None:
        try:
            return guest.boot(kernel, command, timeout_s=timeout_s, kept=kept)
        except TooLong as error:
            _say(f"the guest kept on disk does not start in time, this run boots one: {error}")
        except MonitorError as error:
            kept.unlink(missing_ok=True)
            _say(f"the guest kept on disk does not start, this run boots one and the next makes another: {error}")
    return guest.boot(kernel, [sys.executable, "-m", "rxe.forks", *command], timeout_s=timeout_s)


if __name__ == "__main__":
    sys.exit(main())
