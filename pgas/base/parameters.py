"""Errors of calls whose arguments do not fit a function's parameters, suggestions for misspelled names, and what counts as an integer."""

import inspect
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from typing import Any, TypeGuard

import numpy as np

#: Pattern of errors that already name what they are about: a function, a variable, or the thread of a kernel in the simulator.
_NAMED = re.compile(r"\bpgas\.\w+|\bPGAS_\w+=|^tid=")
_THREAD = re.compile(r"^tid=\[[\d, ]+\] ctaid=\[[\d, ]+\]: (?=pgas\.)")


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value may be an integer argument of a host call: Python's and NumPy's integers may, but True and False never."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean x?)`` with the known name that is most similar to a misspelled one, or "" if none is similar."""
    import difflib  # Not above, because it takes milliseconds.

    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


#: Function that returns the context in which pgas.name runs on the host (pgas/job/timeline.py); None: no context.
around: Callable[[str], AbstractContextManager[None]] | None = None


def call(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``function(*args, **kwargs)``, the code of pgas.name. Errors about its arguments begin with ``pgas.name: ``."""
    try:
        if around is None:
            return function(*args, **kwargs)
        with around(name):
            return function(*args, **kwargs)
    except (TypeError, ValueError) as error:
        if isinstance(error, TypeError) and (error.__traceback__ is None or error.__traceback__.tb_next is None):  # Raised by this call.
            raise TypeError(misfit(name, inspect.signature(function), len(args), kwargs) or str(error)) from None
        if type(error) in (TypeError, ValueError):
            if (text := _THREAD.sub("", str(error))).startswith(f"pgas.{name}: "):
                error.args = (text,)  # The program does not know the kernel that performs the call.
            elif not _NAMED.search(text):
                error.args = (f"pgas.{name}: {text}",)
        raise


def bound(name: str, parameters: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of pgas.name by the names of its parameters. Raises TypeError if they do not fit."""
    _, names, required = _known.get(id(parameters)) or _positional(parameters)
    if required <= len(args) <= len(names) and (not kwargs or (kwargs.keys() == {"stream"} and "stream" in parameters.parameters)):
        return dict(zip(names, args, strict=False)) | kwargs  # This is what bind() returns, in a tenth of the time.
    try:
        return parameters.bind(*args, **kwargs).arguments
    except TypeError:
        raise TypeError(misfit(name, parameters, len(args), kwargs)) from None


#: Signatures by their identity, because their hash takes 4 us: each with the names of the parameters that may be given by position, and the
#: number of those that must be given.
_known: dict[int, tuple[inspect.Signature, tuple[str, ...], int]] = {}


def _positional(parameters: inspect.Signature) -> tuple[inspect.Signature, tuple[str, ...], int]:
    found = [p for p in parameters.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    known = parameters, tuple(p.name for p in found), sum(p.default is p.empty for p in found)
    return _known.setdefault(id(parameters), known)


def in_kernels(stub: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters that a public function has in kernels, where it lacks the keyword-only ones of the host."""
    parameters = inspect.signature(stub).parameters.values()
    return inspect.Signature([p for p in parameters if p.kind is not p.KEYWORD_ONLY])


def misfit(name: str, parameters: inspect.Signature, count: int, keywords: Collection[str]) -> str:
    """Return what is wrong with the arguments of a call of pgas.name, or "" if nothing is.

    Args:
        count: number of positional arguments of the call.
        keywords: names of its keyword arguments.
    """
    known = parameters.parameters
    there_are = f"the parameters are {', '.join(known)}" if known else "it has none"
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    if unknown := [word for word in keywords if word not in known and not takes_all]:
        return f"pgas.{name}: there is no parameter {unknown[0]}{suggestion(unknown[0], known)}; {there_are}"
    try:
        parameters.bind(*[None] * count, **dict.fromkeys(keywords))
    except TypeError as error:
        return f"pgas.{name}: {error}; {there_are}"
    return ""
