"""``python -m rxe.files`` prints the files, as JSON, that Python needs to start and to import LIBRARIES of rxe.forks."""

import json
import os
import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from rxe.forks import LIBRARIES, import_all

__all__ = ["main"]

#: Not files of the machine's own.
OTHER = ("/proc/", "/sys/", "/dev/", "/run/")

#: The loader as programs name it (System V ABI, AMD64 supplement, 5.2.1), and where it looks libraries up.
LOADER = ("/lib64/ld-linux-x86-64.so.2", "/etc/ld.so.cache")


def _before_imports() -> Iterator[str]:
    """What the loader and Python's start read: nothing tells of it."""
    yield from LOADER
    yield from (sys.executable, str(Path(sys.prefix, "pyvenv.cfg")))
    for folder in site.getsitepackages():
        yield from map(str, Path(folder).glob("*.pth"))


def _sources(opened: Iterable[str]) -> Iterator[str]:
    """The sources behind bytecode, by whose time stamps Python knows it to be good."""
    for path in map(Path, opened):
        if path.suffix == ".pyc" and path.parent.name == "__pycache__":
            yield str(path.parent.parent / f"{path.name.partition('.')[0]}.py")


def _modules() -> Iterator[str]:
    """What was imported before anything could be told of it, and os.py, by which Python finds its library: it is frozen, never opened."""
    for module in list(sys.modules.values()):
        found = getattr(module, "__file__", None), getattr(getattr(module, "__spec__", None), "cached", None)
        yield from filter(None, found)


def _libraries() -> Iterator[str]:
    """Mapped files, and the links beside a shared library that lead to it: by those it is looked up."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.split(maxsplit=5)[5:]
        if not name or not (mapped := Path(name[0])).is_file():
            continue
        yield str(mapped)
        if ".so" in mapped.name:
            beside = mapped.parent.glob(f"{mapped.name.partition('.so')[0]}.so*")
            yield from (str(path) for path in beside if path.is_symlink() and path.resolve() == mapped.resolve())


def main() -> None:
    """Import, and print every file that took, as it was named."""
    opened: set[str] = set()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            opened.add(os.fspath(arguments[0]))

    sys.addaudithook(hook)
    import_all(LIBRARIES)
    opened.update(_before_imports(), _modules(), _libraries())
    opened.update(_sources(list(opened)))
    found = {str(path) for path in opened if os.path.isabs(path) and os.path.isfile(path) and not path.startswith(OTHER)}
    json.dump(sorted(found), sys.stdout)


if __name__ == "__main__":
    main()
