"""Public stubs bound to the functions that check their operand types and return their bodies: overloads of the compiler.

* ``device_function(typing)``: a stub that device code may call, and also the host if a host function is given;
* ``array_function(typing, host)``: one that returns an array.

Calls on the host that launch kernels are bound later (``HOST_FORMS``): the modules that launch kernels are in higher layers.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np

from pgas.base import parameters
from pgas.kernels.compiler import backend

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)

#: Types of an integer of Python or NumPy, and of the index of an element.
Integer = int | np.integer
Index = Integer | tuple[Integer, ...]

#: Functions for calls outside kernels, by stub name (pgas/api/host_ops.py).
HOST_FORMS: dict[str, Callable[..., Any]] = {}
#: Functions that return the body of a call in a kernel from the stub's name, the types of its operands by parameter, the body, and the
#: defaults of parameters (kernels/ops/traced.py).
WRAPPERS: list[Callable[..., Callable[..., Any]]] = []
#: The function that binds such a call: of the stub's name, its form, and the arguments (pgas/api/bound.py).
BINDER: list[Callable[..., Any]] = []


class HostFunction(Protocol[_P, _R_co]):
    """The type of a public function, for type checkers."""

    __name__: str

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...

    def bind(self, *args: _P.args, **kwargs: _P.kwargs) -> Callable[[], None]:
        """Check a call on a stream, and return it; see "Repeated calls" in docs/graphs.md."""
        ...


def device_function(
    typing: Callable[..., Any], host: Callable[..., Any] | None = None
) -> Callable[[Callable[_P, _R_co]], HostFunction[_P, _R_co]]:
    """Bind a documented stub to ``typing``, which has the same parameters, gets the types of the operands, and returns the body.

    Keyword-only parameters of the stub are available only on the host.

    Outside a kernel, a call runs the stub's function in HOST_FORMS, otherwise ``host``; if there is neither, it raises TypeError.
    """

    def bind(stub: Callable[_P, _R_co]) -> HostFunction[_P, _R_co]:
        if list(parameters.in_kernels(stub).parameters) != list(inspect.signature(typing).parameters):
            raise TypeError(f"{stub.__name__}: stub and typing function have different parameters")

        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            form = HOST_FORMS.get(stub.__name__, host)
            if form is None:
                raise TypeError(f"pgas.{stub.__name__} is a device function: call it inside a kernel")
            return parameters.call(stub.__name__, form, args, kwargs)

        function: Any = backend.overload(stub, _wrapping(stub, typing), on_host)
        function.bind = functools.partial(_bind, stub.__name__)
        return function  # type: ignore[no-any-return]

    return bind


def _wrapping(stub: Callable[..., Any], typing: Callable[..., Any]) -> Callable[..., Any]:
    """Return a typing function whose bodies went through WRAPPERS."""
    taken = inspect.signature(typing)
    defaults = {name: p.default for name, p in taken.parameters.items() if p.default is not p.empty}

    @functools.wraps(typing)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        body = typing(*args, **kwargs)
        given = taken.bind(*args, **kwargs)
        given.apply_defaults()
        for wrap in WRAPPERS:
            body = wrap(stub.__name__, given.arguments, body, defaults)
        return body

    return wrapped


def _bind(name: str, *args: Any, **kwargs: Any) -> Any:
    form = HOST_FORMS.get(name)
    if form is None:
        raise TypeError(f"pgas.{name}.bind: the host cannot call this function on a stream")
    return parameters.call(name, BINDER[0], (name, form, args, kwargs), {})


def array_function(typing: Callable[..., Any], host: Callable[..., Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Bind the stub of (dest, pe) like device_function; its body returns the address of an array that is otherwise like dest."""

    def bind(stub: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            return parameters.call(stub.__name__, host, args, kwargs)

        return backend.array_overload(stub, typing, on_host)

    return bind
