"""Command lines of pgas: flags, and the PGAS_* variables that a command reads. A mistake is reported in one sentence, with status 2."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from pgas.base import config
from pgas.base.config import parse_size
from pgas.base.launcher import launched_rank
from pgas.base.text import integer, one_host, printable, real


class Parser(argparse.ArgumentParser):
    """A parser of a command that one process or all PEs of a job run. Only PE 0 prints.

    Args:
        unread: PGAS_* variables whose values this command must not check.
        starts_jobs: whether the command is a launcher itself, so that variables of other launchers do not matter.
    """

    def __init__(self, *args: Any, unread: Collection[str] = (), starts_jobs: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._starts_jobs = starts_jobs
        self._unread = unread

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the flags, then check the variables."""
        parsed = super().parse_args(args, namespace)
        try:
            for name in config.VARIABLES.keys() - self._unread:
                config.read(name)
            if not self._starts_jobs:
                launched_rank()  # It reads the variables of all launchers.
        except ValueError as error:
            self.error(str(error))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Print one line, and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {printable(message, 1000)}\n")

    def _print_message(self, message: str, file: object = None) -> None:
        try:
            first = launched_rank() in (None, 0)
        except ValueError:  # PGAS_LAUNCHED is not from pgas.run, or launchers contradict each other.
            first = True
        if message and first:
            super()._print_message(message, file or sys.stderr)  # type: ignore[arg-type]


def size_flag(size: int) -> str:
    """Return a size with the largest suffix that divides it: 64K for 65536."""
    for unit, suffix in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if size and size % unit == 0:
            return f"{size // unit}{suffix}"
    return str(size)


def within(least: int, most: int, read: Callable[[str], int] = integer) -> Callable[[str], int]:
    """Return a converter of arguments that rejects values out of a range."""
    shown = size_flag if read is parse_size else str
    kind = "a size (a number with an optional unit K, M, G, or T)" if read is parse_size else "an integer"
    allowed = f"it must be {shown(least)} to {shown(most)}"

    def convert(text: str) -> int:
        try:
            value = read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not {kind}; {allowed}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text.strip()} is out of range; {allowed}")
        return value

    return convert


def positive(text: str) -> float:
    """Convert an argument that is a number greater than 0 and less than 1e9."""
    try:
        value = real(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a number greater than 0 and less than 1e9")
    return value


def one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    """Return a converter of arguments that rejects all other values."""

    def convert(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is unknown; it must be one of {', '.join(allowed)}")
        return text

    return convert


def pattern(text: str) -> re.Pattern[str]:
    """Convert an argument that is a regular expression."""
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a regular expression: {error}") from error


def input_file(text: str) -> str:
    """Convert an argument that is a file to read."""
    try:
        with open(text, "rb"):
            return text
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' cannot be read: {getattr(error, 'strerror', error)}") from None


def output_file(text: str) -> str:
    """Convert an argument that is a file to write. Only PE 0, which writes it, checks it, because other PEs may be on other nodes."""
    if launched_rank() in (None, 0) and (os.path.isdir(text) or not os.access(os.path.dirname(os.path.abspath(text)), os.W_OK)):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' cannot be written; it must be a file in a directory that exists")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Convert an argument HOST:PORT. An IPv6 address may be in brackets."""
    name, _, port = text.rpartition(":")
    try:
        if not 0 < integer(port) < 1 << 16:
            raise ValueError(f"the port must be 1 to {(1 << 16) - 1}")
        return one_host(name.removeprefix("[").removesuffix("]")), int(port)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not HOST:PORT: {error}") from None
