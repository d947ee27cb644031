"""Errors of numba-cuda about functions of pgas as one sentence with the line of the kernel, instead of its reports of 10 to 40 lines."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from pgas.base import parameters

__all__ = ["fitted", "in_one_sentence", "shortening"]

#: What a typing function said, in Numba's report.
_REFUSAL = re.compile(r"NumbaTypeError: (pgas\.\w+: [^\n]*)")

_LIBRARY = os.path.dirname(os.path.dirname(parameters.__file__)) + os.sep


def fitted(stub: Callable[..., Any], typing: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    """Return a typing function that names an argument that does not fit the stub in an error, because Numba does not."""
    taken = parameters.in_kernels(stub)

    def checked(*args: Any, **kwargs: Any) -> Any:
        if wrong := parameters.misfit(stub.__name__, taken, len(args), kwargs):
            raise error(wrong)
        return typing(*args, **kwargs)

    return checked


@contextlib.contextmanager
def in_one_sentence() -> Iterator[None]:
    """Shorten an error of the compiler if it is about a function of pgas. Others are left as they are."""
    try:
        yield
    except Exception as error:
        shortened = _shortened(error)
        if shortened is None:
            raise
    else:
        return
    raise shortened


def shortening(dispatcher: Any) -> Any:
    """Let a dispatcher's errors be in one sentence. A launch compiles by its method, too."""
    dispatcher.compile = in_one_sentence()(dispatcher.compile)
    return dispatcher


def _shortened(error: Exception) -> Exception | None:
    place = _place(error)
    if isinstance(error, AttributeError) and getattr(error.obj, "__name__", "") == "pgas":
        return AttributeError(f"{place}{error}", name=error.name, obj=error.obj)
    said = _REFUSAL.findall(re.sub(r"\x1b\[[0-9;]*m", "", str(error)))
    return type(error)(f"{place}{said[-1]}") if said else None


def _place(error: Exception) -> str:
    """Return ``file:line: `` of the kernel's or device function's innermost line that Numba was looking at."""
    found, tb = "", error.__traceback__
    while tb is not None:
        names: dict[str, Any] = tb.tb_frame.f_locals
        where = getattr(names.get("self"), "loc", None)
        if where is not None and not str(where.filename).startswith(_LIBRARY):
            found = f"{where.filename}:{where.line}: "
        tb = tb.tb_next
    return found
