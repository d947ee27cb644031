"""How the end of a program ends its job: by an uncaught exception, an exit status, without finalize, or by the death of a process."""

import atexit
import contextlib
import functools
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pgas.base import liveness
from pgas.base.errors import CompletionError, PgasError
from pgas.base.launcher import LAUNCHED, read_launched, start_marking
from pgas.base.liveness import LastWord, Watch
from pgas.base.waits import patience, say
from pgas.job.bootstrap.calls import Collective
from pgas.job.bootstrap.protocol import Bootstrap
from pgas.transports.adapter import AdapterGone
from pgas.transports.mlx5.cqe import Syndrome

if TYPE_CHECKING:
    from pgas.job.runtime import Job

__all__ = ["GRACE_S", "NOTICE_S", "Vigil", "Watcher", "end_all", "follows_death", "install", "say", "status_of"]

#: Seconds for a PE to end by itself, with its own error, after a process of the job died; and for the job to end after a PE failed.
GRACE_S = 3.0

#: Seconds to wait for the news of a death after an error that it may have caused: a process that uses a GPU takes long to end.
NOTICE_S = 4.0

#: The end of the message about a death. _FIRST is for jobs of several machines, as launchers end all PEs when one ends.
_REST, _FIRST = ": the job cannot go on", " (on other machines another PE may have died first)"

_INIT = "pgas.init()"

#: Processes in which install() has run: this one, and those from which it was forked.
_installed: set[int] = set()

#: The LastWord of the last job of this process.
_word: LastWord | None = None

#: The PEs of the last job on this machine: number and pid, this process's first.
_here: dict[int, int] = {}


def follows_death(error: BaseException) -> bool:
    """Whether the death of another process can cause an error.

    Under MPS, the death of a client causes errors such as an illegal address (700) in the others, in the next library that calls CUDA. A
    dead peer does not answer the NIC; a dead card does not report the first error of a queue pair.
    """
    if isinstance(error, CompletionError):
        return error.syndrome in (Syndrome.TRANSPORT_RETRY_EXC_ERR, Syndrome.WR_FLUSH_ERR)
    return isinstance(error, AdapterGone) or "CUDA" in f"{type(error).__name__} {error}".upper()


def status_of(code: Any) -> int:
    """Return the exit status of SystemExit with a code."""
    return code if isinstance(code, int) else int(code is not None)


class Watcher:
    """The process that prints which process died (liveness.py).

    Args:
        word: the right to print, which it takes first.
        rest: the end of the message, after name and fate of the process.
    """

    def __init__(self, word: LastWord, rest: str) -> None:
        command = [sys.executable, "-I", "-S", liveness.__file__, str(word.fd), rest]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[word.fd], start_new_session=True, bufsize=0
        )

    def add(self, who: str, pid: int) -> None:
        """Watch another process."""
        with contextlib.suppress(BrokenPipeError):  # it has printed and ended
            self._process.stdin.write(f"{pid} {who}\n".encode())  # type: ignore[union-attr]

    def stop(self) -> None:
        """End it. Further calls do nothing."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]


class Vigil:
    """Notices the death of a process of the job on this machine: by a thread of each PE, and by one process that prints it."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._watcher: Watcher | None = None
        self.watches = False  #: whether there is any other process

    def begin(self, job: Collective, lost: Callable[[str], None]) -> None:
        """Watch the PEs and their launchers. Collective.

        Args:
            job: its PEs have made their first exchange.
            lost: called once, in a thread, with the message about the first process that ended.
        """
        global _word, _here
        bootstrap, processes = job._bootstrap, job.processes
        me, machines = bootstrap.rank, {process.node for process in processes}
        here = [pe for pe, process in enumerate(processes) if process.node == processes[me].node]
        first = here[0]
        _here = {me: os.getpid()} | {pe: processes[pe].pid for pe in here}
        inherited = _inherited_word()
        made, _ = job.together(_INIT, lambda: inherited or (LastWord() if me == first else None))
        makers = job.exchange(made and (os.getpid(), made.fd))
        word = made
        with contextlib.suppress(OSError):
            word = made or LastWord(makers[first])
        shared = job.exchange(word is not None)
        if _word is not None:
            _word.close()
        _word = word or LastWord()
        parents = {processes[pe].parent: f"the process that started PE {pe}" for pe in reversed(here)}
        watched = [*((f"PE {pe}", processes[pe].pid) for pe in here), *((who, pid) for pid, who in parents.items() if pid)]
        rest = _REST if len(machines) == 1 else f" on {socket.gethostname()}{_REST}{_FIRST}"

        def start() -> None:
            others = [(who, pid) for who, pid in watched if pid != os.getpid()]
            self.watches = bool(others)

            def tell(who: str, pid: int, how: str) -> None:
                lost(f"{who} (process {pid}) {how}{rest}" if pid else f"{who} {how}{_REST}")

            self._watch = Watch(others, tell, bootstrap.hearing())
            if me == first and bootstrap.size > 1 and all(shared[pe] for pe in here):
                self._watcher = Watcher(word, rest)
                for who, pid in watched:
                    self._watcher.add(who, pid)

        job.together(_INIT, start)

    def add(self, who: str, pid: int) -> None:
        """Watch another process."""
        self.watches = True
        for watch in (self._watch, self._watcher):
            if watch is not None:
                watch.add(who, pid)

    def end(self) -> None:
        """Stop watching. Further calls do nothing."""
        for watch in (self._watcher, self._watch):
            if watch is not None:
                watch.stop()


def _inherited_word() -> LastWord | None:
    """Return the machine's LastWord if ``python -m pgas.run`` made it, as that process prints too."""
    values = read_launched(os.environ.get(LAUNCHED, ""))
    return LastWord(inherited=tuple(values["word"])) if values else None


def install(bootstrap: Bootstrap, current: Callable[[], "Job | None"], end: Callable[["Job"], None]) -> None:
    """Let the end of this program end its job, on every PE, and mark the processes that it starts. Further calls do nothing.

    Args:
        bootstrap: that of the first job.
        current: returns the job; None before and after it.
        end: finalizes the job.
    """
    pid = os.getpid()
    if pid in _installed:
        return
    _installed.add(pid)
    start_marking()
    show, leave = sys.excepthook, sys.exit

    def on_exception(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if os.getpid() != pid:  # a forked child: the job is its parent's, here and below
            show(kind, error, tb)
            return
        job = current()
        if bootstrap.size == 1:
            show(kind, error, tb)
            if job is not None:
                job.broken = True
            return

        def explain() -> None:
            show(kind, error, tb)
            say(f"PE {bootstrap.rank} failed ({kind.__name__}), ending the job")

        end_all(bootstrap, explain, after=_is_of_another(error) or (job is not None and job.death_behind(error) is not None))

    @functools.wraps(leave)
    def on_exit(status: Any = None, /) -> None:
        job = current()
        if job is not None and threading.current_thread() is threading.main_thread():
            job.exit_status = status
        leave(status)

    sys.excepthook = on_exception
    # `raise SystemExit(3)` and exit(3) outside `with pgas.init()` are not noticed: such a PE ends when all PEs have come to their ends.
    sys.exit = on_exit  # type: ignore[assignment]  # functions of atexit do not get the status
    atexit.register(lambda: _at_exit(bootstrap, current, end) if os.getpid() == pid else None)


def end_all(bootstrap: Bootstrap, explain: Callable[[], None], *, after: bool, grace_s: float = GRACE_S, status: int = 1) -> None:
    """End the job; print why, unless another process of this machine does.

    Args:
        bootstrap: that of the job.
        explain: prints why.
        after: whether the failure here follows from another process's, which that process reports.
        grace_s: seconds for others to print it, and to end the job.
        status: exit status of the job.
    """
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt this
    if _word is None or (not (after and _word.taken(grace_s)) and _word.take()):
        explain()
    else:
        time.sleep(grace_s)
    bootstrap.abort(status)


def _is_of_another(error: BaseException) -> bool:
    return isinstance(error, PgasError) and error.of_another


def _at_exit(bootstrap: Bootstrap, current: Callable[[], "Job | None"], end: Callable[["Job"], None]) -> None:
    if (job := current()) is not None:
        _finalize(job, end)
    if bootstrap.last_call and len(_here) > 1 and (seconds := patience()) < math.inf:
        # No thread of this process could report a long wait, as the call holds the GIL; and Python 3.12 cannot fork at exit.
        pes = [str(number) for pe in _here.items() for number in pe]
        command = [sys.executable, "-I", "-S", liveness.__file__, liveness.AT_END, pes[0], bootstrap.last_call, str(seconds), *pes]
        null = subprocess.DEVNULL
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # it outlives this process by a moment
            subprocess.Popen(command, stdin=null, stdout=null, start_new_session=True)


def _finalize(job: "Job", end: Callable[["Job"], None]) -> None:
    """Finalize; an exception ends the job. Python ignores exceptions of atexit functions, and the other PEs would wait for this PE."""
    if job.broken and job.n_pes == 1:
        if job.nic is not None:
            job.nic.stop()
        return
    bootstrap, status = job._bootstrap, status_of(job.exit_status)
    try:
        if job.broken:
            raise PgasError("the program ends after an error, without pgas.finalize()")
        if status:
            job.hurry(status)
        end(job)
    except (Exception, KeyboardInterrupt) as error:
        text = f"PE {bootstrap.rank}: {str(error) or type(error).__name__}, ending the job"
        end_all(bootstrap, lambda: say(text), after=_is_of_another(error), status=status or 1)
