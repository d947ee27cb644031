"""Finds and runs the programs and sessions in pages of Markdown.

A ```python block whose first line is ``# name.py`` is a program. A ```console block is a session: commands after ``$``, and their output;
``...`` stands for any text in a line, or for any lines. Other ```python blocks are parts of programs, which only have to parse; commands
that are not run are in ```sh blocks.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import forks
from jobs import ON_GPUS

from pgas.perftests.harness.jobs import mpirun

ROOT = Path(__file__).resolve().parents[2]

#: README and all pages under docs.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Variables of programs: where there is no PyTorch, a stand-in is in its place.
_PATHS = os.pathsep.join([str(ROOT / "tests" / "stand_ins"), *filter(None, [os.environ.get("PYTHONPATH")])])
STAND_INS = {} if importlib.util.find_spec("torch") else {"PYTHONPATH": _PATHS}


@dataclass(frozen=True)
class Command:
    """A command of a session: ``NAME=value ... mpirun -n npes python script arguments``."""

    page: Path
    number: int  #: position among the commands of the page
    line: str
    environment: tuple[tuple[str, str], ...]
    npes: int
    arguments: tuple[str, ...]  #: arguments of python
    output: tuple[str, ...]  #: expected lines
    after: "Command | None" = None  #: the command before it in its session, if it reads what that one wrote

    @property
    def program(self) -> str:
        """The name of the program: the first argument that ends in .py, which may follow a command of pgas."""
        return next((name for name in self.arguments if name.endswith(".py")), self.arguments[0])

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}-{self.program.removesuffix('.py')}"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return (language, text) of the code blocks of a page."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Return the text of a page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def programs(page: Path, having: str = "") -> dict[str, str]:
    """Return name -> text of the programs of a page that contain a text. A page of the gallery has one, in a file beside it."""
    beside = page.with_suffix(".py")
    found = {beside.name: beside.read_text(encoding="utf-8")} if beside.exists() else {}
    for language, text in blocks(page):
        if language == "python" and (match := re.match(r"# (\w+\.py)\n", text)):
            assert match[1] not in found, f"{page.name} has two programs {match[1]}"
            found[match[1]] = text
    return {name: text for name, text in found.items() if having in text}


def commands(page: Path) -> list[Command]:
    found: list[Command] = []
    for language, text in blocks(page):
        if language != "console":
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, *output = part.rstrip("\n").splitlines()
            match = re.fullmatch(r"((?:\w+=\S+ )*)(?:mpirun -n (\d+) )?python (.+)", line)
            assert match, f"{page.name}: not a command of python or mpirun -n N python: {line}"
            environment = tuple(tuple(setting.split("=", 1)) for setting in match[1].split())
            arguments = tuple(shlex.split(match[3]))
            reads = "trace" in arguments
            last = found[-1] if reads and found else None
            found.append(Command(page, len(found), line, environment, int(match[2] or 1), arguments, tuple(output), last))
    return found


def run(command: Command, folder: Path, npes: int | None = None) -> str:
    """Write the page's programs into a folder and run a command there, after the commands that it follows; return its output.

    Args:
        command: a command of a session.
        folder: an empty folder.
        npes: number of PEs instead of the command's.
    """
    if command.after is not None:
        run(command.after, folder)
    for name, text in programs(command.page).items():
        (folder / name).write_text(text, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PGAS_", "PMI_"))} | STAND_INS | dict(command.environment)
    environment["NUMBA_ENABLE_CUDASIM"] = "0" if ON_GPUS and "PGAS_SIM_WEAK" not in environment else "1"
    npes = npes or command.npes
    launcher = mpirun(npes) if npes > 1 else []
    python = forks.python() if environment["NUMBA_ENABLE_CUDASIM"] == "1" else sys.executable
    done = subprocess.run(
        [*launcher, python, *command.arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    reports = "pgas.check" in command.arguments and any(line.startswith("pgas: ") for line in command.output)
    assert done.returncode == (3 if reports else 0), f"{command.line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def unlike(expected: tuple[str, ...], printed: str) -> str:
    """Return how a text differs from the expected lines, "" if it does not.

    PEs print in any order, and mpirun may join lines of two PEs.
    """
    rest = printed
    for line in sorted((line for line in expected if line not in ("", "...")), key=len, reverse=True):
        match = re.search(".*".join(map(re.escape, line.split("..."))), rest)
        if match is None:
            return f"{line!r} is missing in\n{printed}"
        rest = rest[: match.start()] + rest[match.end() :]
    return "" if "..." in expected or not rest.strip() else f"not expected: {rest.strip()!r} in\n{printed}"
