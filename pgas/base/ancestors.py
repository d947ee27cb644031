"""The processes that led to this one, from /proc: which programs they run, and which variables they were started with."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from pgas.base import liveness

#: Maximum number of processes to look at.
_MOST = 64

#: Options of Python whose value is the next argument.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


class Ancestor(NamedTuple):
    """This process, or one that led to it."""

    pid: int
    programs: frozenset[str]  #: names of its program: those of its executable, of Python's script, and of Python's module
    environment: Mapping[str, str]  #: variables with which it was started; none if they cannot be read, like those of another user


def lineage(pid: int = 0) -> list[Ancestor]:
    """Return a process of this node (0: this process), its parent, and so on."""
    found: list[Ancestor] = []
    pid = pid or os.getpid()
    while pid > 0 and len(found) < _MOST:
        arguments = _read(pid, "cmdline").split("\0")
        variables = dict(entry.partition("=")[::2] for entry in _read(pid, "environ").split("\0"))
        found.append(Ancestor(pid, frozenset({_read(pid, "comm").strip(), *_programs(arguments)}), variables))
        try:
            pid = liveness.parent(pid)
        except OSError:  # It has ended, or is hidden.
            break
    return found


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def _programs(arguments: list[str]) -> list[str]:
    """Return the names in a command line: of the program, and of what it runs if it is Python. Slurm's daemon appends a colon and text."""
    first, *rest = arguments
    names = [os.path.basename(first.partition(":")[0])]
    while names[0].startswith("python") and rest:
        option = rest.pop(0)
        if option == "-m" or not option.startswith("-"):
            names.append(os.path.basename(rest[0] if option == "-m" and rest else option))
            break
        if option == "-c":
            break
        if option in _WITH_VALUE and rest:
            del rest[0]
    return names
