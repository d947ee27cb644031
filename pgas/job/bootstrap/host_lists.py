"""Slurm's lists of hosts, such as ``node[03-05,9],rack[0-1]node[3-4]-ib``: names, in which brackets contain numbers, ranges, or names."""

import re
import subprocess
from collections.abc import Iterator

from pgas.base import text
from pgas.base.errors import BootstrapError

#: Pattern of a range of numbers. All numbers have at least the width of the first one.
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")

#: Pattern of a range that lacks a number.
_HALF_RANGE = re.compile(r"[0-9]*-[0-9]*")

#: Maximum number of brackets in a name, in each other or one after another.
_BRACKETS = 16

#: Seconds that Slurm's own command may take.
_COMMAND_S = 10


def first_host(listed: str) -> str:
    """Return the first host of a list. Slurm's own command is asked only about what is not a list here. Raises BootstrapError."""
    for read in (hosts, _by_scontrol):
        try:
            return text.host(next(read(listed), ""))
        except ValueError:
            continue
    raise BootstrapError(
        f"SLURM_STEP_NODELIST='{text.printable(listed)}' must be a list of hosts, such as node[03-05,9],gpu1; only srun may set it"
    )


def hosts(listed: str) -> Iterator[str]:
    """Yield the hosts of a list in its order. Raises ValueError at an item that is not a name of hosts."""
    for item in _split(listed):
        yield from _names(item, _BRACKETS)


def _split(listed: str) -> Iterator[str]:
    """Yield the items of a list. A comma in brackets does not end an item."""
    depth = begin = 0
    for at, character in enumerate(listed):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            yield listed[begin:at]
            begin = at + 1
    yield listed[begin:]


def _names(item: str, brackets: int) -> Iterator[str]:
    """Yield the names that an item stands for; the numbers of its last brackets change fastest."""
    before, opened, rest = item.partition("[")
    if "]" in before or not item or not brackets:
        raise ValueError
    if not opened:
        yield item
        return
    depth = 1
    end = next((at for at, character in enumerate(rest) if (depth := depth + (character == "[") - (character == "]")) == 0), None)
    if end is None:
        raise ValueError
    for part in _split(rest[:end]):
        for middle in _numbers(part, brackets - 1):
            for last in _names(rest[end + 1 :], brackets - 1) if rest[end + 1 :] else ("",):
                yield before + middle + last


def _numbers(part: str, brackets: int) -> Iterator[str]:
    """Yield what a part of the text in brackets stands for."""
    if (found := _RANGE.fullmatch(part)) is None:
        if _HALF_RANGE.fullmatch(part):
            raise ValueError
        yield from _names(part, brackets)
        return
    low, high = int(found[1]), int(found[2])
    if low > high:
        raise ValueError
    for number in range(low, high + 1):
        yield f"{number:0{len(found[1])}d}"


def _by_scontrol(listed: str) -> Iterator[str]:
    """Yield the hosts of a list according to ``scontrol show hostnames``, if there is this command."""
    command = ["scontrol", "show", "hostnames", listed.lstrip("-")]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_COMMAND_S)
    except (OSError, subprocess.SubprocessError):
        return
    yield from done.stdout.split()
