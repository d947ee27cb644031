"""The processes of a job, as the operating system knows them."""

import contextlib
import fcntl
import os
import socket
import stat
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple

from pgas.base import liveness
from pgas.base.ancestors import lineage
from pgas.base.launcher import launched_rank


class Process(NamedTuple):
    """A process of a job."""

    node: str  #: node_name()
    pid: int
    parent: int  #: the launcher's process; 0 if there is none, or it is not visible

    @classmethod
    def this(cls) -> "Process":
        return cls(node_name(), os.getpid(), 0 if launched_rank() is None else os.getppid())


def siblings(launcher: int) -> dict[int, int]:
    """Return the pids of a launcher's processes with a rank, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):  # It is gone, another user's, or has variables that are not a launcher's.
            if liveness.parent(int(folder.name)) == launcher:
                ancestors = lineage(int(folder.name))
                if (rank := launched_rank(ancestors[0].environment, ancestors)) is not None:
                    found[rank] = int(folder.name)
    return found


def flush() -> None:
    """Flush stdout and stderr, before os._exit."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # It has no reader, or is closed.
            stream.flush()


def await_readers(seconds: float) -> bool:
    """Flush stdout and stderr, and return whether their readers have taken everything, or do within some seconds.

    This applies to pipes and sockets. In other files, nothing waits for a reader.
    """
    flush()
    deadline = time.monotonic() + seconds
    while any(map(_unread, (1, 2))):
        if time.monotonic() > deadline:
            return False
        time.sleep(1e-3)
    return True


def _unread(fd: int) -> int:
    """Return the number of written bytes of a file that its reader has not taken; 0 if the kernel does not tell."""
    with contextlib.suppress(OSError):
        mode = os.fstat(fd).st_mode
        request = termios.FIONREAD if stat.S_ISFIFO(mode) else termios.TIOCOUTQ if stat.S_ISSOCK(mode) else None
        if request is not None:
            return int.from_bytes(fcntl.ioctl(fd, request, bytes(4)), sys.byteorder)
    return 0


def node_name() -> str:
    """Return host, boot, PID namespace, and network namespace, which are equal if two processes can pass each other file descriptors."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return "/".join((socket.gethostname(), boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))))
