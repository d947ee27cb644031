"""Detects that a process of the job (a PE or the software NIC) has died. Waits for it must end, and exactly one message must name it.

A launcher may kill the other PEs before they can print that message (Hydra does so immediately, by SIGKILL). Therefore, a watcher prints
it: a process in a session of its own that runs this file, which imports little in order to start fast. Another such process reports a
long wait in MPI_Finalize, because that call holds the GIL, so that no thread of the PE can report it.
"""

import contextlib
import fcntl
import math
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

#: ioctl PIDFD_GET_INFO with PIDFD_INFO_EXIT (Linux 6.15): the exit status of a process, even after its parent has waited for it.
_PIDFD_GET_INFO, _PIDFD_INFO_EXIT, _PIDFD_INFO = 3 << 30 | 72 << 16 | 0xFF << 8 | 11, 1 << 3, struct.Struct("=Q52xi8x")

#: Text for a process whose exit status is unknown.
_UNKNOWN = "ended without pgas.finalize()"

#: Seconds that a watcher waits before it prints, so that a job that ends in good order can end its watcher first.
_ORDERLY_S = 0.1

#: First argument of a process that reports a long wait in MPI_Finalize. By it, such processes find each other in /proc.
AT_END = "at-end"

#: Maximum timeout of poll(2), which is an int.
_POLL_MAX_MS = (1 << 31) - 1

#: Seconds in which a process that has begun to end, and has closed its files, ends.
_ENDING_S = 1.0

#: Seconds between calls of the function that reads news of other nodes, which also detects that no more news can come.
_LISTEN_S = 1.0

#: Maximum number of PEs named in a line.
_NAMED = 8


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; OSError if there is no such process."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()


def state(pid: int) -> str:
    """Return the state of a process on this node: "stopped" (by SIGSTOP or a debugger), "ended", or "" for any other."""
    try:
        letter = _stat(pid)[0]
    except OSError:
        return "ended"
    return "stopped" if letter in "Tt" else "ended" if letter in "ZX" else ""


def parent(pid: int) -> int:
    """Return the parent of a process on this node; OSError if there is no such process."""
    return int(_stat(pid)[1])


def described(pid: int) -> str:
    """Return a description of a process on this node, in parentheses."""
    condition = {"": "", "stopped": ", which is stopped", "ended": ", which has ended"}
    return f"(process {pid}{condition[state(pid)]})"


def stopped_launcher(parent_of_pe: int) -> list[str]:
    """Describe the launcher if it is stopped. It is the parent of a PE or, under Hydra, the parent of that process."""
    with contextlib.suppress(OSError):
        for pid in (parent_of_pe, parent(parent_of_pe)):
            if state(pid) == "stopped":
                return [f"the launcher {described(pid)}"]
    return []


def listed(pes: Sequence[str]) -> str:
    """Return a text with the PEs that a wait is for. It names at most _NAMED of them."""
    more = f" and {len(pes) - _NAMED} more" if len(pes) > _NAMED else ""
    return (", ".join(pes[:_NAMED]) or "other PEs") + more


def long_wait(waiter: str, whom: str, seconds: float) -> str:
    """Return the report of a long wait of the host."""
    return f"{waiter} has waited {seconds:g} s (PGAS_TIMEOUT) for {whom} and is still waiting"


def fate(pid: int, pidfd: int) -> str:
    """Return how a process ended, as far as a process that is not its parent can know."""
    status = None
    with contextlib.suppress(OSError):
        status = int(_stat(pid)[49])  # Available until the parent waits for the process.
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    if status is None:
        with contextlib.suppress(OSError):
            fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
            known, code = _PIDFD_INFO.unpack(info)
            status = code if known & _PIDFD_INFO_EXIT else None
    if status is None:
        return _UNKNOWN
    if os.WIFSIGNALED(status):
        return f"was killed by signal {os.WTERMSIG(status)}"
    return f"ended with status {os.WEXITSTATUS(status)} without pgas.finalize()"


def readable(fd: int, seconds: float) -> bool:
    """Whether a file can be read, or can be within some seconds."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(min(seconds * 1e3, _POLL_MAX_MS)))


class _Deaths:
    """A wait for the end of any of some processes.

    Linux closes a process's sockets before it reports the end of the process. On a busy machine a launcher may notice the closed sockets
    and kill the other PEs before that report, and the end of one of these may be reported first. Therefore, a PE also holds a pipe open
    that Linux closes together with its sockets: the first PE to die is the one whose pipe was closed first.
    """

    def __init__(self, wakeup: int, news: tuple[int, Callable[[], tuple[str, str] | None]] | None = None) -> None:
        self._pidfds: dict[int, tuple[str, int]] = {}
        self._pipes: dict[int, int] = {}  #: pidfd of the process that holds a pipe, by the pipe
        self._ending: list[int] = []  #: pidfds of processes whose pipe is closed, in order
        self._news = -1 if news is None else news[0]
        self._read = None if news is None else news[1]
        self._epoll = select.epoll()  # Reports events in the order in which they occur.
        self._epoll.register(wakeup, select.EPOLLIN)
        if news is not None:
            self._epoll.register(self._news, select.EPOLLIN)
        self.ignore = self._epoll.unregister

    def add(self, who: str, pid: int, pipe: int = -1) -> None:
        """Add a process. pipe: the reading end of a pipe that it holds open."""
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = who, pid
        if pipe >= 0:
            self._pipes[pipe] = pidfd
            self._epoll.register(pipe, select.EPOLLIN)
        self._epoll.register(pidfd, select.EPOLLIN)

    def first(self) -> tuple[str, int, str] | None:
        """Wait, and return name, pid, and fate of the first process that ended, or None if the wakeup can be read. The pid is 0 in news."""
        while True:
            fd = next((fd for fd, _ in self._epoll.poll(_LISTEN_S if self._read else None, maxevents=1)), self._news)
            if fd in self._pipes:
                self._epoll.unregister(fd)
                self._ending.append(self._pipes.pop(fd))
                continue
            if fd in self._pidfds:
                first = next((pidfd for pidfd in self._ending if pidfd == fd or readable(pidfd, _ENDING_S)), fd)
                who, pid = self._pidfds[first]
                return who, pid, fate(pid, first)
            if fd != self._news:
                return None
            if self._read is not None and (told := self._read()) is not None:
                return told[0], 0, told[1]

    def close(self) -> None:
        self._epoll.close()
        for fd in self._pidfds:
            os.close(fd)


class Watch:
    """A thread that sleeps until one of some processes ends.

    Args:
        pids: (name, pid) of processes on this node.
        lost: called once, in the thread, with name, pid, and fate of the first process that ended; its pid is 0 in news.
        news: a descriptor that can be read when there is news of other nodes, and the function that reads it, which is called every
            second. It returns name and fate of what has ended, or None if there is no such news.
    """

    def __init__(
        self,
        pids: Iterable[tuple[str, int]],
        lost: Callable[[str, int, str], None],
        news: tuple[int, Callable[[], tuple[str, str] | None]] | None = None,
    ) -> None:
        self._lost = lost
        with contextlib.ExitStack() as undo:
            self._wakeup, self._stop = os.pipe()
            undo.callback(os.close, self._wakeup)
            undo.callback(os.close, self._stop)
            self._deaths = _Deaths(self._wakeup, news)
            undo.callback(self._deaths.close)
            for who, pid in pids:
                self.add(who, pid)
            undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="pgas-liveness", daemon=True)
        self._thread.start()

    def add(self, who: str, pid: int) -> None:
        self._deaths.add(who, pid)

    def _run(self) -> None:
        if (death := self._deaths.first()) is not None:
            self._lost(*death)

    def stop(self) -> None:
        """End the thread; lost is not called any more. Further calls do nothing."""
        if self._stop < 0:
            return
        os.write(self._stop, b"\0")  # Closing the pipe would not wake the thread while a forked child has it open.
        if self._thread is not threading.current_thread():
            self._thread.join()
        for fd in (self._stop, self._wakeup):
            os.close(fd)
        self._stop = -1
        self._deaths.close()


class LastWord:
    """The right to print why the job ends: a byte in a pipe, which one process on the node takes.

    The process that has printed writes a byte into a second pipe. Until then, no process may end the job, because that would kill the
    process that prints. A launcher that does not kill PEs, such as pgas.run, writes a byte into a third pipe when it knows the status of
    the first PE that ended. Then the others need not wait any longer for the launcher to end the job.

    Args:
        maker: pid and descriptors of the process that made the pipes; None: this process makes them.
        inherited: the descriptors of pipes that the parent process made.
    """

    def __init__(self, maker: tuple[int, Sequence[int]] | None = None, inherited: Sequence[int] | None = None) -> None:
        #: Both ends of the pipe with the right, of the pipe that shows that it was used, and of the pipe that shows that waiting may end,
        #: for processes that inherit them.
        self.fds: tuple[int, ...]
        if inherited is not None:
            self.fds = tuple(map(os.dup, inherited))
        elif maker is not None:
            pid, fds = maker
            with contextlib.ExitStack() as undo:
                self.fds = ()
                for fd, way in zip(fds, (os.O_RDONLY, os.O_WRONLY) * 3, strict=True):
                    self.fds += (os.open(f"/proc/{pid}/fd/{fd}", way | os.O_NONBLOCK),)
                    undo.callback(os.close, self.fds[-1])
                undo.pop_all()
        else:
            self.fds = (*os.pipe(), *os.pipe(), *os.pipe())  # All stay open, because a pipe without a writer polls as readable.
            os.set_blocking(self.fds[0], False)
            os.write(self.fds[1], b".")

    def say(self, explain: Callable[[], None]) -> bool:
        """Let explain() print why the job ends, unless a process has taken the right to; return whether explain() was called."""
        try:
            os.read(self.fds[0], 1)
        except BlockingIOError:
            return False
        try:
            explain()
        finally:
            os.write(self.fds[3], b".")
        return True

    def taken(self, seconds: float) -> bool:
        """Whether a process has taken the right, or takes it within some seconds."""
        deadline, poller = time.monotonic() + seconds, select.poll()
        poller.register(self.fds[0], select.POLLIN)
        while poller.poll(0):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def said(self, seconds: float) -> bool:
        """Whether the process that took the right has printed, or does within some seconds. Otherwise that process was killed."""
        return readable(self.fds[2], seconds)

    def release(self) -> None:
        """Let processes end that wait() for others to end the job."""
        os.write(self.fds[5], b".")

    def wait(self, seconds: float) -> None:
        """Wait some seconds for others to end the job, or until release()."""
        readable(self.fds[4], seconds)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def _be_watcher(word: LastWord, rest: str) -> None:
    """Read from stdin which processes to watch, and print the first to end, unless another process prints why the job ends."""
    stdin, unread = sys.stdin.fileno(), b""
    deaths = _Deaths(stdin)
    while (death := deaths.first()) is None:
        read = os.read(stdin, 1 << 16)
        if not read:  # The PE that writes has ended or is ending.
            deaths.ignore(stdin)
        *lines, unread = (unread + read).split(b"\n")
        gone = []
        for line in lines:
            pid, pipe, who = line.decode().split(" ", 2)
            try:
                deaths.add(who, int(pid), int(pipe))
            except ProcessLookupError:
                gone.append(f"{who} (process {pid})")
        if gone:  # They ended before this process started, so which one was the first is unknown.
            return _say(word, f"{' and '.join(gone)} {_UNKNOWN}{rest}")
    _say(word, "{} (process {}) {}".format(*death) + rest)


def _be_at_end(me: int, call: str, seconds: float, pes: Mapping[int, int]) -> None:
    """Report which PEs the parent, a PE, waits for in the call that ends its process. Only the reporter of the lowest waiting PE prints.

    Args:
        seconds: seconds until the report is due.
        pes: pids of the PEs on this node, by number.
    """
    with contextlib.suppress(OSError):  # The parent has ended, or stderr is closed.
        parent_ended = os.pidfd_open(pes[me])
        if readable(parent_ended, seconds):
            return
        reporting = _parents_of_reports()
        waiting = [pe for pe, pid in pes.items() if pid in reporting and not state(pid)]
        if me == min(waiting, default=me):
            late = [f"PE {pe} {described(pid)}" for pe, pid in sorted(pes.items()) if pe not in waiting and state(pid) != "ended"]
            late += stopped_launcher(parent(pes[me]))
            if late:  # Otherwise, all other PEs are through, and this machine is only busy.
                _print(long_wait(f"PE {me}", f"{listed(late)} in {call}", seconds))
        readable(parent_ended, math.inf)  # Until then, the other reporting processes must find this one.


def _parents_of_reports() -> set[int]:
    """Return the pids of processes that wait in MPI_Finalize: the parents of reporting processes."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
            if f"\0{AT_END}\0".encode() in file.read():
                found.add(parent(int(name)))
    return found


def _say(word: LastWord, text: str) -> None:
    time.sleep(_ORDERLY_S)
    with contextlib.suppress(OSError):  # Stderr is closed.
        word.say(lambda: _print(text))


def _print(text: str) -> None:
    os.write(sys.stderr.fileno(), f"pgas: {text}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == AT_END:
        _numbers = list(map(int, sys.argv[5:]))
        _be_at_end(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), dict(zip(_numbers[::2], _numbers[1::2], strict=True)))
    else:
        _be_watcher(LastWord(inherited=list(map(int, sys.argv[2:]))), sys.argv[1])
