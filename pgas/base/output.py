"""Output of commands whose reader may end first, such as ``python -m pgas info | head``, or that have none, as after ``>&-``."""

import io
import os
import sys
from typing import Any


class _File(io.FileIO):
    """A file that discards what is written after its last reader has ended."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self.fileno())
            return memoryview(data).nbytes


def open_standard_files() -> None:
    """Open /dev/null for each of stdin, stdout, and stderr that is closed.

    Otherwise, the next file or socket would get its number, and with it what is printed; and Python's own object for it is None.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            fd = os.open(os.devnull, os.O_RDWR)
            if fd != number:  # Another thread has opened a file meanwhile.
                os.dup2(fd, number)
                os.close(fd)
            os.set_inheritable(number, True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # Not above, because these files would get the numbers of closed ones.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def outlive_reader() -> None:
    """Let this command go on quietly after the reader of its stdout or stderr has ended; its exit status remains the command's own.

    An exception would end a job of several PEs like a failure of one of them.
    """
    open_standard_files()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):  # A test or notebook may have replaced it.
            stream.flush()
            file: Any = _File(stream.fileno(), "wb", closefd=False)
            buffer = file if stream.write_through else io.BufferedWriter(file)
            text = io.TextIOWrapper(
                buffer, stream.encoding, stream.errors, line_buffering=stream.line_buffering, write_through=stream.write_through
            )
            setattr(sys, name, text)
