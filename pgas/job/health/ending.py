"""How the end of a program ends its job: by an uncaught exception, an exit status, without finalize, or by a process failure."""

import atexit
import concurrent.futures.thread  # noqa: F401  # If it were imported later, Python would wait for its threads first.
import contextlib
import functools
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Protocol

from pgas.base import liveness
from pgas.base.errors import PgasError
from pgas.base.launcher import start_marking
from pgas.base.waits import patience, say
from pgas.job.bootstrap.protocol import Bootstrap
from pgas.job.health import detector
from pgas.job.health.detector import GRACE_S
from pgas.job.health.health import Health

#: Processes in which install() has run: this one, and those from which it was forked.
_installed: set[int] = set()


class Ends(Protocol):
    """The part of a job that the end of its program needs."""

    bootstrap: Bootstrap
    health: Health

    def note_end_of_program(self, status: int) -> None:
        """Tell the other PEs, in further calls, that the program has ended, and limit the host's waits if its exit status is not 0."""

    def close(self, *, report_leaks: bool) -> None:
        """Finalize. Collective."""

    def abandon(self) -> None:
        """Let a job of one PE end without close()."""


def status_of(code: Any) -> int:
    """Return the exit status of SystemExit with a code."""
    return code if isinstance(code, int) else int(code is not None)


def install(bootstrap: Bootstrap, current: Callable[[], Ends | None]) -> None:
    """Let the end of this program end its job, on every PE, and mark the processes that it starts. Further calls do nothing.

    Args:
        bootstrap: bootstrap of the first job.
        current: function that returns the job; None before and after it.
    """
    pid = os.getpid()
    if pid in _installed:
        return
    _installed.add(pid)
    start_marking()
    show, leave = sys.excepthook, sys.exit

    def on_exception(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if os.getpid() == pid:  # In a forked child, the job is its parent's, here and below.
            _fail(bootstrap, current(), error, lambda: show(kind, error, tb))
        else:
            show(kind, error, tb)

    @functools.wraps(leave)
    def on_exit(status: Any = None, /) -> None:
        job = current()
        if job is not None and threading.current_thread() is threading.main_thread():
            job.health.exit_status = status
        leave(status)

    sys.excepthook = on_exception
    # `raise SystemExit(3)` and exit(3) outside `with pgas.init()` are not detected: such a PE ends only when all PEs have reached their
    # ends.
    sys.exit = on_exit  # type: ignore[assignment]  # Because functions of atexit do not receive the status.
    with contextlib.suppress(RuntimeError):  # Python has ended the main thread.
        threading._register_atexit(lambda: _at_end_of_main_thread(bootstrap, current) if os.getpid() == pid else None)  # type: ignore[attr-defined]
    atexit.register(lambda: _at_exit(bootstrap, current) if os.getpid() == pid else None)


def _fail(bootstrap: Bootstrap, job: Ends | None, error: BaseException, show: Callable[[], None]) -> None:
    """End the job because an exception ends this program, unless it is a job of one PE. show: function that prints the exception."""
    if bootstrap.size == 1:
        show()
        if job is not None:
            job.health.broken = True
        return

    def explain() -> None:
        show()
        say(f"PE {bootstrap.rank} failed ({type(error).__name__}), ending the job")

    followed = job is not None and (job.health.death_behind(error) or job.health.lost) is not None
    end_all(bootstrap, explain, after=followed or _is_of_another(error))


def _uncaught() -> BaseException | None:
    """Return the exception that ended the main thread, except SystemExit; None if none did.

    Python keeps it after it has called sys.excepthook, which may be a function that the program set after pgas.init(). Test tools and
    shells also store exceptions that they caught there, below frames of their own.
    """
    error, tb = getattr(sys, "last_value", None), getattr(sys, "last_traceback", None)
    ended = tb is not None and tb.tb_frame.f_back is None and not hasattr(sys, "ps1")
    return error if ended else None


def end_all(bootstrap: Bootstrap, explain: Callable[[], None], *, after: bool, grace_s: float = GRACE_S, status: int = 1) -> NoReturn:
    """End the job; print why, unless another process on this node does. The job does not end before one has printed it.

    Args:
        explain: function that prints why.
        after: whether the failure here follows from another process's failure, which that process reports.
        grace_s: seconds for others to print it, and to end the job.
    """
    with contextlib.suppress(ValueError):  # This is not the main thread.
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A second Ctrl-C must not interrupt this.
    word = detector.last_word()
    if word is None:
        explain()
    elif (after and word.taken(grace_s)) or not word.say(explain):
        if word.said(GRACE_S):
            word.wait(grace_s)
        else:
            explain()
    bootstrap.abort(status)


def _is_of_another(error: BaseException) -> bool:
    return isinstance(error, PgasError) and error.of_another


def _at_end_of_main_thread(bootstrap: Bootstrap, current: Callable[[], Ends | None]) -> None:
    """End the job if the program has failed, although other threads live on. Python waits for these before it calls functions of atexit."""
    if (error := _uncaught()) is not None:
        _fail(bootstrap, current(), error, lambda: None)  # Only a hook of the program comes here, and it has printed the exception.
    if (job := current()) is not None and status_of(job.health.exit_status):
        deadline = time.monotonic() + GRACE_S
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
                if thread.is_alive():
                    _finalize(job)
                    return


def _at_exit(bootstrap: Bootstrap, current: Callable[[], Ends | None]) -> None:
    if (job := current()) is not None:
        _finalize(job)
    here = detector.here()
    if bootstrap.last_call and len(here) > 1 and (seconds := patience()) < math.inf:
        # No thread of this process could report a long wait, because the call holds the GIL, and Python 3.12 cannot fork at exit.
        pes = [str(number) for pe in here.items() for number in pe]
        command = [sys.executable, "-I", "-S", liveness.__file__, liveness.AT_END, pes[0], bootstrap.last_call, str(seconds), *pes]
        null = subprocess.DEVNULL
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # Because it outlives this process by a moment.
            subprocess.Popen(command, stdin=null, stdout=null, start_new_session=True)


def _finalize(job: Ends) -> None:
    """Finalize. An exception ends the job, because Python ignores exceptions of atexit functions, and the other PEs would wait."""
    bootstrap = job.bootstrap  # Not that of the first job of this process.
    if job.health.broken and bootstrap.size == 1:
        job.abandon()
        return
    status = status_of(job.health.exit_status)
    try:
        if job.health.broken:
            raise PgasError("the program is ending after an error, without having called pgas.finalize()")
        job.note_end_of_program(status)
        job.close(report_leaks=False)
    except (Exception, KeyboardInterrupt) as error:
        text = f"PE {bootstrap.rank}: {str(error) or type(error).__name__}, ending the job"
        end_all(bootstrap, lambda: say(text), after=_is_of_another(error), status=status or 1)
