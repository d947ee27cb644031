"""Waits and tests for several elements called on the host, immediately or on a CUDA stream. host_ops.py describes host calls."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.api import wait
from pgas.api.host_ops import calling, enqueue, fetched, on_stream
from pgas.api.jit import Kernel
from pgas.api.operands import Operand
from pgas.api.values import check_code, check_value
from pgas.base import parameters
from pgas.job import runtime
from pgas.kernels import refusals
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import is_float8
from pgas.kernels.compiler.binding import HOST_FORMS

__all__ = ["bind"]

_FUNCTIONS = [getattr(wait, name) for name in wait.__all__ if name != "test"]


@functools.cache
def _without_status(function: Callable[..., Any], *, returns: bool) -> Kernel:
    """Make a kernel like those of calling(), but for a call whose status is None, which a launch cannot pass."""
    if returns:

        def kernel(result, before, after):  # type: ignore[no-untyped-def]
            result[0] = function(*before, None, *after)

    else:

        def kernel(before, after):  # type: ignore[no-untyped-def,misc]
            function(*before, None, *after)

    return on_stream(kernel, function)


def _ivars(title: str, array: Any) -> Operand:
    """Check the array whose elements the call waits for or tests."""
    ivars = Operand.of(title, "ivars", array)
    if len(ivars.shape) != 1:
        raise TypeError(refusals.message("row", function=title, name="ivars", count=len(ivars.shape)))
    if is_float8(ivars.dtype):
        raise TypeError(refusals.message("only copied", function=title, dtype=ivars.dtype))
    if ivars.dtype.kind not in "iu" or ivars.dtype.itemsize < 2:
        raise TypeError(refusals.message("awaited", function=title, name="ivars", dtype=ivars.dtype))
    ivars.check_symmetric(runtime.current())
    return ivars


def _row(title: str, name: str, array: Any) -> int:
    """Check another array, and return its number of elements."""
    row = Operand.of(title, name, array, contiguous=False)
    if len(row.shape) != 1 or row.dtype.kind not in "iu":
        found = f"one of {row.dtype} with the shape {row.shape}"
        raise TypeError(refusals.message("row of integers", function=title, name=name, found=found))
    return row.size


def _form(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the host form of a wait or test for several elements."""
    title = function.__name__
    signature = inspect.signature(function)
    call = inspect.Signature([p.replace(annotation=p.empty) for p in signature.parameters.values()])
    result = bool if title.startswith("test_all") else int
    returns = signature.return_annotation is not None
    rows = [name for name in ("indices", "status", "values") if name in call.parameters]

    def form(*args: Any, **kwargs: Any) -> Any:
        given = {"nelems": None, "stream": None} | parameters.bound(title, call, args, kwargs)
        array, status, nelems, stream = (given[name] for name in ("ivars", "status", "nelems", "stream"))
        ivars = _ivars(title, array)
        sizes = {"ivars": ivars.size} | {
            name: _row(title, name, given[name]) for name in rows if given[name] is not None or name == "values"
        }
        count = ivars.size if nelems is None else nelems
        for name, size in sizes.items():
            if not parameters.is_integer(count) or not 0 <= count <= size:
                raise ValueError(f"pgas.{title}: {count!r} elements wanted, but {name} has {size}")
        cmp = check_code(title, "cmp", given["cmp"], Comparison)
        if "value" in given:
            check_value(title, "value", given["value"], ivars.dtype, integral=True)
        before = (array, given["indices"]) if "indices" in rows else (array,)
        after = cmp, given["value"] if "value" in given else given["values"], count
        operands: tuple[Any, ...]
        if status is None:
            kernel, operands = _without_status(function, returns=returns), (before, after)
        else:
            kernel, operands = calling(function, arguments=True, returns=returns), ((*before, status, *after),)
        if not returns:
            enqueue(kernel, 1, 1, stream, *operands, wait=True)
            return None
        return result(fetched(title, kernel, np.dtype(np.int64), stream, *operands))

    return form


def bind() -> None:
    """Give the public functions their host forms."""
    HOST_FORMS.update({function.__name__: _form(function) for function in _FUNCTIONS})
