"""Public stubs bound to the functions that check their operand types and return their bodies: Numba overloads, or calls in the simulator.

* ``device_function(typing)``: a stub that device code calls, and the host if it says so;
* ``array_function(typing, host)``: one that returns an array.

Calls on the host that themselves launch kernels are bound later (``HOST_FORMS``): what makes kernels is above what they call.
"""

import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numba.cuda import types

from pgas.base.backend import SIMULATOR

if SIMULATOR:
    from numba.cuda.np import numpy_support
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray, FakeWithinKernelCUDAArray

    from pgas.kernels.compiler.numba_cuda import facts, host_array
    from pgas.sim import engine
    from pgas.sim.arrays import KernelArray
else:
    from numba.cuda.extending import lower_builtin, overload, type_callable
    from numba.cuda.typing import signature

__all__ = ["HOST_FORMS", "Index", "Integer", "array_function", "device_function"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: An integer of Python or NumPy; and the index of an element.
Integer = int | np.integer
Index = Integer | tuple[Integer, ...]

#: What a call outside a kernel does, by the name of the stub (pgas/api/host_ops.py).
HOST_FORMS: dict[str, Callable[..., Any]] = {}


def device_function(typing: Callable[..., Any], host: Callable[..., Any] | None = None) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Bind a documented stub to ``typing``, which has the same parameters, gets their Numba types and returns the body.

    Keyword-only parameters of the stub are those of the host only.

    ``host`` is what a call outside a kernel does, if HOST_FORMS has nothing for it; without either that is an error.

    On a GPU this is Numba's overload. In the simulator the stub calls ``typing`` with the same types once for each combination, so
    that operands are refused with the same words, and then runs the body as plain Python.
    """

    def bind(stub: Callable[_P, _R]) -> Callable[_P, _R]:
        if _in_kernels(stub).parameters.keys() != inspect.signature(typing).parameters.keys():
            raise TypeError(f"{stub.__name__}: stub and typing function have different parameters")

        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            form = HOST_FORMS.get(stub.__name__, host)
            if form is None:
                raise TypeError(f"pgas.{stub.__name__} is a device function: call it inside a kernel")
            return form(*args, **kwargs)

        if SIMULATOR:
            return _simulated(stub, typing, on_host)
        # strict=False: typing functions carry annotations, bodies do not, and Numba compares those too.
        overload(on_host, target="cuda", jit_options={"forceinline": True}, strict=False)(typing)
        return on_host

    return bind


def array_function(typing: Callable[..., Any], host: Callable[..., Any]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Bind the stub of (dest, pe) like device_function; its body returns the address of an array that is otherwise like dest.

    Numba's compiled functions may not return arrays other than their arguments, so on a GPU this is lowered by hand.
    """

    def bind(stub: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(stub)
        def on_host(*args: Any, **kwargs: Any) -> Any:
            return host(*args, **kwargs)

        if SIMULATOR:

            def typed(*types_: Any) -> Any:
                body = typing(*types_)
                return lambda dest, pe: _array_at(dest, body(dest, pe))

            return _simulated(stub, typed, on_host)

        @type_callable(on_host)
        def _(context):  # type: ignore[no-untyped-def]
            def typer(dest, pe):  # type: ignore[no-untyped-def]
                typing(dest, pe)
                return dest

            return typer

        @lower_builtin(on_host, types.Array, types.Integer)
        def _(context, builder, sig, args):  # type: ignore[no-untyped-def]
            address = context.compile_internal(builder, typing(*sig.args), signature(types.uint64, *sig.args), args)
            view = context.make_array(sig.return_type)(context, builder, value=args[0])
            view.data = builder.inttoptr(address, view.data.type)
            return view._getvalue()

        return on_host

    return bind


def _in_kernels(stub: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters that a stub has in kernels, without types."""
    parameters = inspect.signature(stub).parameters.values()
    return inspect.Signature([p.replace(annotation=p.empty) for p in parameters if p.kind is not p.KEYWORD_ONLY])


def _simulated(stub: Callable[..., Any], typing: Callable[..., Any], on_host: Callable[..., Any]) -> Callable[..., Any]:
    parameters = _in_kernels(stub)
    defaults = tuple(p.default for p in parameters.parameters.values())
    required = sum(d is inspect.Parameter.empty for d in defaults)
    bodies: dict[tuple[Any, ...], Callable[..., Any]] = {}

    @functools.wraps(stub)
    def call(*args: Any, **kwargs: Any) -> Any:
        if engine.current() is None:
            return on_host(*args, **kwargs)
        if kwargs or not required <= len(args) <= len(defaults):
            try:
                bound = parameters.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"pgas.{stub.__name__}{parameters}: {error}") from None
            bound.apply_defaults()
            args = bound.args
        else:
            args += defaults[len(args) :]
        key = tuple([_kind(a) for a in args])
        body = bodies.get(key)
        if body is None:
            body = bodies[key] = typing(*[_type_of(a) for a in args])
        return body(*args)

    return call


if SIMULATOR:

    def _kind(value: Any) -> Any:
        """A hashable that is equal for values of one Numba type."""
        if type(value) is KernelArray or isinstance(value, (FakeWithinKernelCUDAArray, FakeCUDAArray, np.ndarray)):
            return facts(value).kind
        return (type(value), *map(_kind, value)) if type(value) is tuple else type(value)

    def _type_of(value: Any) -> Any:
        if value is None:
            return types.none
        if isinstance(value, tuple):
            return types.Tuple([_type_of(v) for v in value])
        if isinstance(value, (FakeWithinKernelCUDAArray, FakeCUDAArray, np.ndarray)):
            array = host_array(value)
            layout = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A"
            return types.Array(numpy_support.from_dtype(array.dtype), array.ndim, layout, aligned=array.flags.aligned)
        if isinstance(value, np.generic):
            return numpy_support.from_dtype(value.dtype)
        for python, numba in ((bool, types.boolean), (int, types.int64), (float, types.float64), (complex, types.complex128)):
            if isinstance(value, python):
                return numba
        return types.pyobject

    def _array_at(array: Any, addr: int) -> Any:
        """Return an array like ``array`` whose first element is at addr."""
        view = host_array(array)
        memory = (ctypes.c_byte * max(view.nbytes, 1)).from_address(addr)
        return FakeWithinKernelCUDAArray(FakeCUDAArray(np.ndarray(view.shape, view.dtype, memory, 0, view.strides)))  # type: ignore[arg-type]
