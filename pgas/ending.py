"""How a program's end becomes its job's: an uncaught exception, an exit status, the end without finalize, the death of a process."""

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pgas.bootstrap import Bootstrap
from pgas.errors import CompletionError, PgasError
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca.client import CardGone

if TYPE_CHECKING:
    from pgas.runtime import Job

__all__ = ["GRACE_S", "NOTICE_S", "follows_death", "install", "say"]

#: Seconds that a PE gets to end by itself, with its own error, after a process of the job died; and the job, after a PE failed.
GRACE_S = 3.0

#: Seconds in which the news of a death comes, whose effect may be here already: a process that uses a GPU takes long to end.
NOTICE_S = 4.0

_installed: list[bool] = []


def follows_death(error: BaseException) -> bool:
    """Whether the death of another process can make such an error.

    Under MPS the death of one client is an illegal address (700) or the like in the others, in whatever library calls CUDA next. A peer
    that is gone does not answer the NIC; a card that is gone does not tell what a queue pair's first error was.
    """
    if isinstance(error, CompletionError):
        return error.syndrome in (Syndrome.TRANSPORT_RETRY_EXC_ERR, Syndrome.WR_FLUSH_ERR)
    return isinstance(error, CardGone) or "CUDA" in f"{type(error).__name__} {error}".upper()


def say(text: str) -> None:
    """Print a line to stderr, in one write: mpirun mixes what PEs write. That it is closed must not keep the job from ending."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"pgas: {text}\n")  # print() writes the end of the line by itself where PYTHONUNBUFFERED is set
        sys.stderr.flush()


def install(bootstrap: Bootstrap, current: Callable[[], "Job | None"], end: Callable[["Job"], None]) -> None:
    """Let the end of this program end its job, on every PE. Further calls do nothing.

    Args:
        bootstrap: of the first job.
        current: returns the job, None before and after it.
        end: finalizes it.
    """
    if _installed:
        return
    _installed.append(True)
    show, leave, pid = sys.excepthook, sys.exit, os.getpid()

    def on_exception(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        show(kind, error, tb)
        if os.getpid() != pid:  # a child that was forked: the job is its parent's, here as below
            return
        job = current()
        if bootstrap.size > 1:
            if job is not None and (death := job.death_behind(error)) is not None and death not in str(error):
                say(f"PE {bootstrap.rank}: {death}")
            _give_up(bootstrap, kind)
        elif job is not None:
            job.broken = True

    @functools.wraps(leave)
    def on_exit(status: Any = None, /) -> None:
        job = current()
        if job is not None and threading.current_thread() is threading.main_thread():
            job.exit_status = status
        leave(status)

    sys.excepthook = on_exception
    # Not seen: raise SystemExit(3), exit(3); they end with the job's next collective, at the latest after PGAS_TIMEOUT.
    sys.exit = on_exit  # type: ignore[assignment]  # nothing tells functions of atexit the status
    atexit.register(lambda: _at_exit(current, end) if os.getpid() == pid else None)


def _give_up(bootstrap: Bootstrap, kind: type[BaseException]) -> None:
    say(f"PE {bootstrap.rank} failed ({kind.__name__}), ending the job")
    bootstrap.abort(1)


def _at_exit(current: Callable[[], "Job | None"], end: Callable[["Job"], None]) -> None:
    """Finalize; Python ignores exceptions here, but the other PEs wait for this one."""
    job = current()
    if job is None:
        return
    if job.broken and job.n_pes == 1:
        if job.nic is not None:
            job.nic.stop()
        return
    bootstrap = job._bootstrap
    try:
        if job.broken:
            raise PgasError("the program ends after an error, without pgas.finalize()")
        if job.exit_status not in (None, 0):
            job.hurry(f"the program ended with exit status {job.exit_status}, and the job did not within {GRACE_S:g} s")
        end(job)
    except Exception as error:
        say(f"PE {bootstrap.rank}: {error}")
        _give_up(bootstrap, type(error))
