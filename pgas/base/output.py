"""Output of commands whose reader may end first, such as ``python -m pgas info | head``."""

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


def outlive_reader() -> None:
    """Let this command go on quietly after the reader of its stdout or stderr has ended; its exit status remains the command's own.

    An exception would end a job of several PEs like a failure of one of them.
    """
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
