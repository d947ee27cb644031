"""Reports of the host's waits for other processes: when they are due, and their words."""

import contextlib
import math
import select
import socket
import sys
from collections.abc import Callable, Sequence

from pgas.base import config, liveness

__all__ = ["described", "listed", "overdue", "patience", "say", "tell_if_late"]

#: The longest timeout of poll(2), an int.
_POLL_MAX_MS = (1 << 31) - 1

#: Most PEs that a line names.
_NAMED = 8


def say(text: str) -> None:
    """Print a line to stderr in one write, as mpirun mixes the PEs' output. A closed stderr must not keep the job from ending."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pgas: {text}\n")  # under PYTHONUNBUFFERED, print() writes the newline separately
        sys.stderr.flush()


def patience() -> float:
    """Return the seconds after which a wait of the host for another process is reported."""
    try:
        return float(config.read("PGAS_TIMEOUT")) if config.read("PGAS_HANG_REPORT") != "off" else math.inf
    except ValueError:  # init reports it
        return math.inf


def overdue(waiter: str, whom: str) -> None:
    """Report a long wait of the host."""
    say(f"{waiter} has waited {patience():g} s (PGAS_TIMEOUT) for {whom}, and goes on waiting")


def tell_if_late(source: socket.socket, waiter: str, whom: Callable[[], str]) -> None:
    """Wait until there is something to receive, at most until the wait is due for its report; then report it."""
    if (seconds := patience()) == math.inf:
        return
    poller = select.poll()
    poller.register(source, select.POLLIN)
    if not poller.poll(min(seconds * 1e3, _POLL_MAX_MS)):
        overdue(waiter, whom())


def described(pid: int) -> str:
    """Return words about a process of this machine, in parentheses."""
    condition = {"": "", "stopped": ", which is stopped", "ended": ", which has ended"}
    return f"(process {pid}{condition[liveness.state(pid)]})"


def listed(pes: Sequence[str]) -> str:
    """Return the PEs that a wait is for, in words; at most _NAMED of them by name."""
    more = f" and {len(pes) - _NAMED} more" if len(pes) > _NAMED else ""
    return (", ".join(pes[:_NAMED]) or "other PEs") + more
