"""The standard input of ``python -m pgas.run``, which goes to one PE, to all, or to none."""

import contextlib
import os
import selectors
import signal
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Bytes to read or write in one call.
_CHUNK = 1 << 16


@dataclass(eq=False)
class _Pipe:
    """The end of a PE's pipe to which this command writes, and what the PE has not taken yet."""

    fd: int
    unsent: deque[bytes] = field(default_factory=deque)


class StandardInput:
    """Gives PEs this command's standard input.

    A PE has the same open file as this command, so that what it does not read remains for the next command in a shell's loop. It has a pipe
    if it could not read the file itself: from a terminal, only the foreground may read, and several PEs would each get a part.

    Args:
        where: "none"; "0": PE 0 only; or "all": each PE gets everything.
        files: selector of the PEs' output, whose keys for this object have a function as data.
    """

    def __init__(self, where: str, files: selectors.BaseSelector) -> None:
        self._where, self._files = where, files
        self._terminal, self._kind = os.isatty(0), stat.S_IFMT(os.fstat(0).st_mode)
        self._pipes: list[_Pipe] = []
        self._reading = self._ended = False
        if self._terminal:
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # Reading in the background is then an error, which does not stop this command.

    @contextlib.contextmanager
    def of(self, rank: int) -> Iterator[int]:
        """Yield the descriptor that becomes a PE's standard input."""
        if self._where == "none" or (self._where == "0" and rank):
            fd = os.open(os.devnull, os.O_RDONLY)
        elif self._terminal or (self._where == "all" and self._kind in (stat.S_IFIFO, stat.S_IFSOCK)):
            fd, ours = os.pipe()
            os.set_blocking(ours, False)
            self._pipes.append(_Pipe(ours))
        elif self._where == "all" and self._kind == stat.S_IFREG:
            fd = os.open("/proc/self/fd/0", os.O_RDONLY)  # With a position of its own.
            os.lseek(fd, os.lseek(0, 0, os.SEEK_CUR), os.SEEK_SET)
        else:
            fd = os.dup(0)
        try:
            yield fd
        finally:
            os.close(fd)

    def turn(self) -> None:
        """Pass on input if there are pipes. It must be called repeatedly, once all PEs have been started."""
        wanted = not self._ended and any(not pipe.unsent for pipe in self._pipes)
        if wanted and self._terminal:
            wanted = os.tcgetpgrp(0) == os.getpgrp()  # This command is in the foreground.
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._files.register(0, selectors.EVENT_READ, self._read)
            else:
                self._files.unregister(0)

    def _read(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except OSError:  # The terminal is gone, or this command was put into the background.
            return
        self._ended = not data
        for pipe in list(self._pipes):
            if data:
                pipe.unsent.append(data)
                if len(pipe.unsent) == 1:
                    self._files.register(pipe.fd, selectors.EVENT_WRITE, lambda pipe=pipe: self._write(pipe))
            elif not pipe.unsent:
                self._close(pipe)

    def _write(self, pipe: _Pipe) -> None:
        data = pipe.unsent.popleft()
        try:
            if rest := data[os.write(pipe.fd, data) :]:
                pipe.unsent.appendleft(rest)
        except BlockingIOError:
            pipe.unsent.appendleft(data)
        except OSError:  # The PE has closed its input, or ended.
            self._files.unregister(pipe.fd)
            self._close(pipe)
            return
        if not pipe.unsent:
            self._files.unregister(pipe.fd)
            if self._ended:
                self._close(pipe)

    def _close(self, pipe: _Pipe) -> None:
        self._pipes.remove(pipe)
        os.close(pipe.fd)
