"""Removal of MPI's shared-memory files in /dev/shm, which would otherwise remain when a job is killed.

MPI creates them at its start, before all processes have started, and removes them at its end. pgas removes them once every process has
mapped them. Until then a stand-by process, which launchers do not kill with the job, removes them if the PE dies.
"""

import contextlib
import math
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterable

#: Prefix of MPICH's file, which all processes have mapped when MPI_Init returns on any.
_OF_MPICH = "/dev/shm/mpich_shm_"

#: Prefixes of Open MPI's file, and of Open MPI 4's, which prints an error at its end if it cannot remove the file.
_OF_OPEN_MPI, _OF_OPEN_MPI_4 = "/dev/shm/sm_segment.", "/dev/shm/vader_segment."

_ALL = (_OF_MPICH, _OF_OPEN_MPI, _OF_OPEN_MPI_4)

#: Milliseconds between two polls of a guarded process's mappings.
_LOOK_MS = 20

#: The stand-by process, and the pipe that ends it.
_guards: list[tuple[int, int]] = []


def forget_shared_files(*, every: bool = False) -> None:
    """Remove the files, which every process has mapped. every: include those that MPI would remove at its end, which it will not reach."""
    _remove(_mapped("self", _ALL if every else (_OF_MPICH, _OF_OPEN_MPI)))
    while _guards:
        child, pipe = _guards.pop()
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, b"x")
        os.close(pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def forget_early() -> None:
    """Remove the files that no process needs once MPI is initialized in this one."""
    _remove(_mapped("self", (_OF_MPICH,)))


def guard_shared_files(patience_s: float, late: Callable[[], None]) -> None:
    """Start the stand-by process, before MPI_Init. It removes the files if this process is killed before forget_shared_files().

    MPI_Init waits for other processes and holds the GIL, so the stand-by process also reports a long wait.

    Args:
        patience_s: seconds until the wait is reported; inf: never.
        late: function that reports the wait, in the stand-by process.
    """
    parent = os.getpid()
    end, pipe = os.pipe()
    apart, told = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # It is about a fork with other threads, which the child does not need.
        child = os.fork()
    if child == 0:
        try:
            _stand_by(parent, end, told, time.monotonic() + patience_s, late)
        finally:
            os._exit(0)
    os.close(end)
    os.close(told)
    os.read(apart, 1)  # Otherwise, it could be killed with this process before it has left the process group.
    os.close(apart)
    _guards.append((child, pipe))


def _stand_by(parent: int, end: int, told: int, due: float, late: Callable[[], None]) -> None:
    os.setsid()  # Because launchers kill process groups.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    process = os.pidfd_open(parent)
    os.write(told, b"x")
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {2, end, process}:
        with contextlib.suppress(OSError):  # Because launchers wait until all copies of their pipes are closed.
            os.close(fd)
    poller = select.poll()
    poller.register(process, select.POLLIN)
    poller.register(end, select.POLLIN)
    names: set[str] = set()
    while not (ready := dict(poller.poll(_LOOK_MS))):
        with contextlib.suppress(OSError):
            names |= _mapped(str(parent), _ALL)
        if time.monotonic() > due:
            due = math.inf
            with contextlib.suppress(Exception):  # The files must be removed in any case.
                late()
    if process in ready or not os.read(end, 1):  # A dying process closes its files before its pidfd is ready.
        _remove(names)


def _mapped(process: str, kinds: tuple[str, ...]) -> set[str]:
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps:
        return {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if any(kind in line for kind in kinds)}


def _remove(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(name)
