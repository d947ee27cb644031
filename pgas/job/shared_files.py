"""The names of MPI's shared memory in /dev/shm, which stay behind when a job is killed.

MPI makes them at its start, when other processes of the job have not come yet, and removes them at its end. pgas removes them as soon as
every process has mapped what they name; until then another process, which launchers do not kill with the job, stands by to do it.
"""

import contextlib
import math
import os
import select
import signal
import time
import warnings
from collections.abc import Callable, Iterable

__all__ = ["forget_early", "forget_shared_files", "guard_shared_files"]

#: Of MPICH, whose processes have all mapped it when MPI_Init returns on one.
_OF_MPICH = "/dev/shm/mpich_shm_"

#: Of Open MPI; of Open MPI 4, which complains at its end if it cannot remove it.
_OF_OPEN_MPI, _OF_OPEN_MPI_4 = "/dev/shm/sm_segment.", "/dev/shm/vader_segment."

_ALL = (_OF_MPICH, _OF_OPEN_MPI, _OF_OPEN_MPI_4)

#: Milliseconds between two looks at what a guarded process has mapped.
_LOOK_MS = 20

#: The process that stands by, and the pipe that ends it.
_guards: list[tuple[int, int]] = []


def forget_shared_files(*, every: bool = False) -> None:
    """Remove the names, as every process has mapped the memory. every: also those that MPI wants to remove; it will not come to that."""
    _remove(_mapped("self", _ALL if every else (_OF_MPICH, _OF_OPEN_MPI)))
    while _guards:
        child, pipe = _guards.pop()
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, b"x")
        os.close(pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def forget_early() -> None:
    """Remove those names that need no other process any more once MPI has been initialized in this one."""
    _remove(_mapped("self", (_OF_MPICH,)))


def guard_shared_files(patience_s: float, late: Callable[[], None]) -> None:
    """Have the names removed if this process is killed before it calls forget_shared_files(). To be called before MPI is initialized.

    MPI_Init waits for other processes and holds the interpreter's lock, so the process that stands by also says that it lasts.

    Args:
        patience_s: seconds until it is late; inf: never.
        late: called in the process that stands by.
    """
    parent = os.getpid()
    end, pipe = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside other threads, which the child does not need
        child = os.fork()
    if child == 0:
        try:
            _stand_by(parent, end, time.monotonic() + patience_s, late)
        finally:
            os._exit(0)
    os.close(end)
    _guards.append((child, pipe))


def _stand_by(parent: int, end: int, due: float, late: Callable[[], None]) -> None:
    os.setsid()  # launchers kill process groups
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    process = os.pidfd_open(parent)
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {2, end, process}:  # launchers wait until nobody holds their pipes
        with contextlib.suppress(OSError):
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
            with contextlib.suppress(Exception):  # the names are still to be removed
                late()
    if process in ready or not os.read(end, 1):  # what a process has open is closed before it ends
        _remove(names)


def _mapped(process: str, kinds: tuple[str, ...]) -> set[str]:
    with open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps:
        return {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if any(kind in line for kind in kinds)}


def _remove(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(name)
