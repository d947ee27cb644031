"""The program's other threads that are inside calls of pgas. The end of a job waits for them."""

import contextlib
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from pgas.base.errors import PgasError
from pgas.base.tracebacks import in_pgas
from pgas.job.health.detector import GRACE_S
from pgas.job.paths.platform import platform

_POLL_S = 0.005

#: Modules of the functions that programs call. pgas's own threads are in others.
_PUBLIC = ("pgas.api.", "pgas.job.memory.array", "pgas.sim.frontend")

#: Resources of a job that has ended, which other threads may still access.
_kept: contextlib.ExitStack | None = None


def awaited(seconds: float, interrupt: Callable[[], None]) -> list[str]:
    """Wait until no other thread is inside a call of pgas, at most a number of seconds, and describe those that still are.

    interrupt: function called during the wait; it may end the wait by an exception.
    """
    deadline = time.monotonic() + seconds
    while (left := _inside()) and time.monotonic() < deadline:
        interrupt()
        time.sleep(_POLL_S)
    return left


def close(resources: contextlib.ExitStack, end_waits: Callable[[], None]) -> None:
    """Close the resources of a job, including its memory, when no other thread is inside a call of pgas.

    If a thread stays inside for a grace period, the resources are kept until the next pgas.init() or the end of the process.

    end_waits: function that ends waits of kernels; called if a thread is inside.
    """
    global _kept
    if _inside():
        with contextlib.suppress(PgasError):  # The context may be lost.
            end_waits()
    if awaited(GRACE_S, lambda: None):
        _kept = resources
    else:
        resources.close()


def close_kept() -> None:
    """Close what close() has kept. Raises PgasError if a thread may still access it."""
    global _kept
    if _kept is None:
        return
    if left := awaited(GRACE_S, lambda: None):
        raise PgasError(f"pgas.init: calls made before the last pgas.finalize() must have returned: {', '.join(left)}")
    kept, _kept = _kept, None
    kept.close()


def _inside() -> list[str]:
    """Describe the other threads that are inside a call of pgas, each with the program's line."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    calls = ((ident, _call(frame)) for ident, frame in frames.items() if ident != threading.get_ident())
    return [f"thread {names.get(ident, ident)} is in {_described(call)}" for ident, call in calls if call is not None]


def _call(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the call of pgas that a thread is in, or None if it is in none."""
    frame, call = platform.host_frame(frame), None
    while frame is not None:
        if f"{frame.f_globals.get('__name__')}.".startswith(_PUBLIC):
            call = frame
        frame = frame.f_back
    return call


def _described(call: FrameType) -> str:
    caller = call.f_back
    while caller is not None and in_pgas(caller):  # such as the function that checks the call's arguments
        caller = caller.f_back
    if caller is None or caller.f_code.co_filename == threading.__file__:  # It is the target of a thread.
        return f"pgas.{call.f_code.co_name}"
    path, line = caller.f_code.co_filename, caller.f_lineno
    return f"{linecache.getline(path, line).strip()} ({os.path.basename(path)}:{line})"
