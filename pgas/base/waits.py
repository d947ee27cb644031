"""Waits of the host for GPUs and other processes, and reports of long waits: when they are due, and their text."""

import contextlib
import math
import socket
import sys
import time
from collections.abc import Callable

from pgas.base import config
from pgas.base.liveness import long_wait, readable


def say(text: str) -> None:
    """Print a line to stderr in one write, because mpirun mixes the PEs' output. A closed stderr must not keep the job from ending."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pgas: {text}\n")  # Not print(), which writes the newline separately under PYTHONUNBUFFERED.
        sys.stderr.flush()


def until(over: Callable[[], bool], poll: Callable[[], None]) -> None:
    """Wait until a function returns True: poll for a while, then sleep between polls, up to 1 ms. poll may raise to end the wait."""
    started, pause = time.perf_counter(), 10e-6
    while not over():
        if time.perf_counter() - started > 200e-6:
            poll()
            time.sleep(pause)
            pause = min(pause * 1.5, 1e-3)


def patience() -> float:
    """Return the seconds after which a wait of the host for another process is reported."""
    try:
        return float(config.read("PGAS_TIMEOUT")) if config.read("PGAS_HANG_REPORT") != "off" else math.inf
    except ValueError:  # pgas.init() reports it.
        return math.inf


def overdue(waiter: str, whom: str) -> None:
    """Report a long wait of the host."""
    say(long_wait(waiter, whom, patience()))


def tell_if_late(source: socket.socket, waiter: str, whom: Callable[[], str]) -> None:
    """Wait up to patience() seconds for something to receive, and report the wait if nothing comes. Without a limit, return immediately."""
    if (seconds := patience()) == math.inf:
        return
    if not readable(source.fileno(), seconds):
        overdue(waiter, whom())
