"""The failure detector: a thread of each PE, and one process per node, that notice when a process of the job ends."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable

from pgas.base import liveness
from pgas.base.launcher import LAUNCHED, read_launched
from pgas.base.liveness import LastWord, Watch
from pgas.job.bootstrap.calls import Collective

#: Seconds for a PE to end by itself, with its own error, after a process of the job died; and for the job to end after a PE failed.
GRACE_S = 3.0

#: End of the message about a process that ended. Jobs on several nodes add _FIRST, because launchers end all PEs when one ends.
_REST, _FIRST = ": the job cannot continue", " (another PE may have died first on another node)"

_INIT = "pgas.init()"

#: The LastWord of the last job of this process.
_word: LastWord | None = None

#: The PEs of the last job on this node: number and pid, this process's first.
_here: dict[int, int] = {}


def last_word() -> LastWord | None:
    """Return the right to report how the last job of this process ended. Before a job has formed, that of pgas.run, or None."""
    return _word or _inherited_word()


def here() -> dict[int, int]:
    """Return the PEs of the last job on this node: number and pid, this process's first."""
    return _here


class Watcher:
    """The process that prints which process died (liveness.py).

    Args:
        word: the right to print, which it takes first.
        rest: the end of the message, after name and fate of the process.
        pipes: reading ends of pipes that some of the processes hold open.
    """

    def __init__(self, word: LastWord, rest: str, pipes: Iterable[int] = ()) -> None:
        self._word = word
        command = [sys.executable, "-I", "-S", liveness.__file__, rest, *map(str, word.fds)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(*word.fds, *pipes), start_new_session=True, bufsize=0
        )

    def add(self, who: str, pid: int, pipe: int = -1) -> None:
        with contextlib.suppress(BrokenPipeError):  # It has printed and ended.
            self._process.stdin.write(f"{pid} {pipe} {who}\n".encode())  # type: ignore[union-attr]

    def stop(self) -> None:
        """End the process, but let it print if it has taken the word. Further calls do nothing."""
        if self._process.returncode is None and self._word.taken(0):
            self._word.said(GRACE_S)
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()  # type: ignore[union-attr]


class FailureDetector:
    """Detects the end of a process of the job on this node, by a thread of each PE, and by one process that prints it."""

    def __init__(self) -> None:
        self._watch: Watch | None = None
        self._watcher: Watcher | None = None
        self._pipe = -1  #: the end of a pipe that this process holds open; its watcher has the other end (liveness._Deaths)
        self.watches = False  #: whether there is any other process

    def begin(self, job: Collective, lost: Callable[[str], None]) -> None:
        """Watch the PEs and their launchers. Collective.

        Args:
            job: job whose PEs have made their first exchange.
            lost: function called once, in a thread, with the message about the first process that ended.
        """
        (read, self._pipe), _ = job.together(_INIT, os.pipe)
        try:
            self._begin(job, lost, read)
        finally:
            os.close(read)  # The watcher has it.

    def _begin(self, job: Collective, lost: Callable[[str], None], pipe: int) -> None:
        global _word, _here
        bootstrap, processes = job.bootstrap, job.processes
        me, nodes = bootstrap.rank, {process.node for process in processes}
        here = [pe for pe, process in enumerate(processes) if process.node == processes[me].node]
        first = here[0]
        _here = {me: os.getpid()} | {pe: processes[pe].pid for pe in here}
        inherited = _inherited_word()
        made, _ = job.together(_INIT, lambda: inherited or (LastWord() if me == first else None))
        makers = job.exchange(made and (os.getpid(), made.fds))
        word = made
        with contextlib.suppress(OSError):
            word = made or LastWord(makers[first])
        shared, ends = zip(*job.exchange((word is not None, pipe)), strict=True)
        if _word is not None:
            _word.close()
        _word = word or LastWord()
        parents = {processes[pe].parent: f"the process that started PE {pe}" for pe in reversed(here)}
        watched = [*((f"PE {pe}", processes[pe].pid) for pe in here), *((who, pid) for pid, who in parents.items() if pid)]
        rest = _REST if len(nodes) == 1 else f" on {socket.gethostname()}{_REST}{_FIRST}"

        def start() -> None:
            others = [(who, pid) for who, pid in watched if pid != os.getpid()]
            self.watches = bool(others)

            def tell(who: str, pid: int, how: str) -> None:
                lost(f"{who} (process {pid}) {how}{rest}" if pid else f"{who} {how}{_REST}")

            self._watch = Watch(others, tell, bootstrap.hearing())
            if me == first and bootstrap.size > 1 and all(shared[pe] for pe in here):
                with contextlib.ExitStack() as opened:
                    pipes = {pid: _opened(pid, ends[pe], opened) for pe, pid in _here.items()}
                    self._watcher = Watcher(word, rest, [pipe for pipe in pipes.values() if pipe >= 0])
                for who, pid in watched:
                    self._watcher.add(who, pid, pipes.get(pid, -1))

        job.together(_INIT, start)

    def add(self, who: str, pid: int) -> None:
        self.watches = True
        for watch in (self._watch, self._watcher):
            if watch is not None:
                watch.add(who, pid)

    def end(self) -> None:
        """Stop watching. Further calls do nothing."""
        for watch in (self._watcher, self._watch):
            if watch is not None:
                watch.stop()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


def _opened(pid: int, fd: int, opened: contextlib.ExitStack) -> int:
    """Return a descriptor of the pipe that another process of the node has open as fd, until opened ends; -1 if /proc does not allow it."""
    try:
        pipe = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return -1
    opened.callback(os.close, pipe)
    return pipe


def _inherited_word() -> LastWord | None:
    """Return the node's LastWord if ``python -m pgas.run`` made it, because that process also prints."""
    values = read_launched(os.environ.get(LAUNCHED, ""))
    return LastWord(inherited=tuple(values["word"])) if values.get("word") else None
