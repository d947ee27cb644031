"""Public stubs bound to the functions that check their operand types and return their bodies: overloads of the compiler.

* ``device_function(typing)``: a stub that device code may call, and also the host if a host function is given;
* ``array_function(typing, host)``: one that returns an array.

Calls on the host that launch kernels are bound later (``HOST_FORMS``): the modules that launch kernels are in higher layers.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from pgas.base import parameters
from pgas.kernels.compiler import backend

__all__ = ["HOST_FORMS", "Index", "Integer", "array_function", "device_function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Types of an integer of Python or NumPy, and of the index of an element.
Integer = int | np.integer
Index = Integer | tuple[Integer, ...]

#: Functions for calls outside kernels, by stub name (pgas/api/host_ops.py).
HOST_FORMS: dict[str, Callable[..., Any]] = {}


def device_function(typing: Callable[..., Any], host: Callable[..., Any] | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Bind a documented stub to ``typing``, which has the same parameters, gets the types of the operands, and returns the body.

    Keyword-only parameters of the stub are available only on the host.

    Outside a kernel, a call runs the stub's function in HOST_FORMS, otherwise ``host``; if there is neither, it raises TypeError.
    """

    def bind(stub: Callable[_P, _R]) -> Callable[_P, _R]:
        if list(parameters.in_kernels(stub).parameters) != list(inspect.signature(typing).parameters):
            raise TypeError(f"{stub.__name__}: stub and typing function have different parameters")

        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            form = HOST_FORMS.get(stub.__name__, host)
            if form is None:
                raise TypeError(f"pgas.{stub.__name__} is a device function: call it inside a kernel")
            return parameters.call(stub.__name__, form, args, kwargs)

        return backend.overload(stub, typing, on_host)

    return bind


def array_function(typing: Callable[..., Any], host: Callable[..., Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Bind the stub of (dest, pe) like device_function; its body returns the address of an array that is otherwise like dest."""

    def bind(stub: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            return parameters.call(stub.__name__, host, args, kwargs)

        return backend.array_overload(stub, typing, on_host)

    return bind
