"""Host functions reject calls from kernels with an error.

Without this check, the simulator, where kernels are Python, would execute them, and the compiler would report that pgas has no such
attribute.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

from pgas.base import parameters
from pgas.kernels.compiler import backend
from pgas.kernels.refusals import refuse

__all__ = ["host_only"]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def host_only(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a public function raise an error if a kernel calls it: at compile time, in the simulator at the call."""

    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        refuse("host only", function=function.__name__)

    @functools.wraps(function)
    def on_host(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return parameters.call(function.__name__, function, args, kwargs)  # type: ignore[no-any-return]

    return backend.host_only(on_host, refused)
