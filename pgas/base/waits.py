"""Waits of the host for another process: how long they last before they are told of, and in which words."""

import contextlib
import math
import select
import socket
import sys
from collections.abc import Callable, Sequence

from pgas.base import config, liveness

__all__ = ["described", "listed", "overdue", "patience", "say", "tell_if_late"]

#: The longest time that poll(2) takes, an int.
_POLL_MAX_MS = (1 << 31) - 1

#: PEs that a line names at most.
_NAMED = 8


def say(text: str) -> None:
    """Print a line to stderr, in one write: mpirun mixes what PEs write. That it is closed must not keep the job from ending."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pgas: {text}\n")  # print() writes the end of the line by itself where PYTHONUNBUFFERED is set
        sys.stderr.flush()


def patience() -> float:
    """Return after how many seconds a wait of the host for another process is told of."""
    try:
        return float(config.read("PGAS_TIMEOUT")) if config.read("PGAS_HANG_REPORT") != "off" else math.inf
    except ValueError:  # init says it
        return math.inf


def overdue(waiter: str, whom: str) -> None:
    """Say of a wait of the host that it lasts."""
    say(f"{waiter} has waited {patience():g} s (PGAS_TIMEOUT) for {whom}, and goes on waiting")


def tell_if_late(source: socket.socket, waiter: str, whom: Callable[[], str]) -> None:
    """Wait until there is something to receive; no longer than until it is told that there is nothing yet."""
    if (seconds := patience()) == math.inf:
        return
    poller = select.poll()
    poller.register(source, select.POLLIN)
    if not poller.poll(min(seconds * 1e3, _POLL_MAX_MS)):
        overdue(waiter, whom())


def described(pid: int) -> str:
    """Return a process of this machine in words, in parentheses."""
    condition = {"": "", "stopped": ", which is stopped", "ended": ", which has ended"}
    return f"(process {pid}{condition[liveness.state(pid)]})"


def listed(pes: Sequence[str]) -> str:
    """Return the PEs that a wait is for, in words; few of them if they are many."""
    more = f" and {len(pes) - _NAMED} more" if len(pes) > _NAMED else ""
    return (", ".join(pes[:_NAMED]) or "other PEs") + more
