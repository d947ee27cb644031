"""Tracebacks of uncaught exceptions show the program's own lines: frames of pgas, and of libraries below or above it, are left out.

PGAS_DEBUG=traceback shows all frames. So does an exception of a kind that pgas does not raise about a program's mistake, such as KeyError,
because it is a mistake in pgas.
"""

import functools
import re
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from pgas.base import config
from pgas.base.errors import PgasError

#: Modules of the library. The perf tests count as user programs.
OF_PGAS = re.compile(r"pgas(?!\.perftests)(\.|$)")

#: Top-level packages whose frames are left out together with frames of pgas that they are next to.
_LIBRARIES = frozenset({"cuda", "greenlet", "llvmlite", "mpi4py", "numba", "numpy"}) | sys.stdlib_module_names

#: Exceptions about mistakes in programs. The compiler's and the driver's are recognized by their packages.
_MISTAKES = (PgasError, ValueError, TypeError, IndexError, OverflowError, AttributeError, BufferError, ImportError, KeyboardInterrupt)
_OF_COMPILER = ("numba", "cuda")


def install() -> None:
    """Cut the tracebacks that Python, IPython, and notebooks print for uncaught exceptions, including those of threads."""
    if (ipython := sys.modules.get("IPython")) is not None and (shell := ipython.get_ipython()) is not None:
        _cut_in(shell)
    show, show_of_thread = sys.excepthook, threading.excepthook

    def on_exception(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        error.__traceback__ = tb
        cut(error)
        show(kind, error, error.__traceback__)

    def on_exception_of_thread(args: threading.ExceptHookArgs, /) -> None:
        if args.exc_value is not None:
            cut(args.exc_value)
        show_of_thread(args)

    sys.excepthook, threading.excepthook = on_exception, on_exception_of_thread


def _cut_in(shell: Any) -> None:
    """Cut the tracebacks of an IPython shell, for cells, %run, and %tb. It does not call sys.excepthook."""
    show = shell.showtraceback

    @functools.wraps(show)
    def on_exception(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
        error = (exc_tuple or sys.exc_info())[1]
        if isinstance(error, BaseException):
            cut(error)
            exc_tuple = type(error), error, error.__traceback__
        return show(exc_tuple, *args, **kwargs)

    shell.showtraceback = on_exception


def hide_from_pytest(excinfo: Any = None) -> bool:
    """Mark the modules of pgas, so that pytest calls this function to decide whether to show their frames. Return whether to hide them.

    pytest begins with the outermost frame, which belongs to a module that pgas.api marked. That call marks the modules imported later.
    """
    for name, module in list(sys.modules.items()):
        if OF_PGAS.match(name):
            vars(module)["__tracebackhide__"] = hide_from_pytest
    return excinfo is not None and not config.debugging("traceback") and _is_mistake(excinfo.value)


def cut(error: BaseException) -> None:
    """Leave the frames of pgas out of the tracebacks of an exception and of its causes."""
    if config.debugging("traceback") or not _is_mistake(error):
        return
    causes, seen = [error], {id(error)}
    for each in causes:
        entries = list(_entries(each.__traceback__))
        kept = _of_program(entries)
        if kept or each is not error:  # A command of pgas has no frames of a program.
            each.__traceback__ = _linked(kept)
        if each.__cause__ is not None and _repeats(each, each.__cause__):
            each.__cause__ = None
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                causes.append(cause)


#: Maximum length of a text that may be part of another message by chance.
_SHORTEST = 3


def _repeats(error: BaseException, cause: BaseException) -> bool:
    """Whether an error's message has the text of its cause, which has no frame of the program."""
    text = getattr(cause, "strerror", None) or str(cause)
    return len(text) > _SHORTEST and text in str(error) and not _of_program(list(_entries(cause.__traceback__)))


def _is_mistake(error: BaseException) -> bool:
    entries = list(_entries(error.__traceback__))
    in_program = bool(entries) and not _is_library(entries[-1])
    return in_program or isinstance(error, _MISTAKES) or _package(type(error).__module__) in _OF_COMPILER


def _entries(tb: TracebackType | None) -> Iterator[TracebackType]:
    while tb is not None:
        yield tb
        tb = tb.tb_next


def _of_program(entries: list[TracebackType]) -> list[TracebackType]:
    """Return the entries without every run of libraries' frames that has frames of pgas."""
    kept: list[TracebackType] = []
    run: list[TracebackType] = []
    for entry in [*entries, None]:
        if entry is not None and _is_library(entry):
            run.append(entry)
            continue
        if not any(_is_of_pgas(e) for e in run):
            kept += run
        run = []
        if entry is not None:
            kept.append(entry)
    return kept


def _linked(entries: list[TracebackType]) -> TracebackType | None:
    """Return a traceback of copies of these entries; the original is left unchanged for debuggers."""
    made = None
    for entry in reversed(entries):
        made = TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def in_pgas(frame: FrameType) -> bool:
    """Whether a frame is of a module of pgas. Code that exec() runs may have no module."""
    return OF_PGAS.match(_module(frame)) is not None


def _is_library(entry: TracebackType) -> bool:
    return in_pgas(entry.tb_frame) or _package(_module(entry.tb_frame)) in _LIBRARIES


def _is_of_pgas(entry: TracebackType) -> bool:
    """Whether a frame is of pgas, or of a method that one of its objects inherits, such as Numba's copy_to_device()."""
    own = type(entry.tb_frame.f_locals.get("self")).__module__
    return in_pgas(entry.tb_frame) or OF_PGAS.match(own) is not None


def _module(frame: FrameType) -> str:
    name = frame.f_globals.get("__name__") or ""
    spec = frame.f_globals.get("__spec__") if name == "__main__" else None  # A module that python -m runs has its name there.
    return str(getattr(spec, "name", name))


def _package(module: str) -> str:
    return module.partition(".")[0]
