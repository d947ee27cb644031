"""Checks of operand types when a kernel is compiled (in the simulator: at the first call with these types).

Every refusal is one sentence that names the function and the argument.
"""

from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import layout, window
from pgas.kernels.compiler import constant, device, element_size, numpy_dtype, ptx, types
from pgas.kernels.refusals import refuse

__all__ = [
    "array", "checking", "integer", "is_none", "one_dimension", "same_elements", "scalar", "some_element", "subscript", "unit",
]  # fmt: skip


_STATE = constant(layout.MY_PE)


def checking() -> bool:
    """Whether kernels check PEs and addresses: always in the simulator, under PGAS_DEBUG=check on a GPU."""
    return window.constants().check or SIMULATOR


@device
def some_element(array):
    """Return some value of an element's type, for an operation that was refused; the job fails anyway."""
    return ptx.ld_element(_STATE, array)


def is_none(argument: Any) -> bool:
    """Whether an optional argument was left out."""
    return argument is None or isinstance(argument, types.NoneType) or (isinstance(argument, types.Omitted) and argument.value is None)


def integer(function: str, name: str, argument: Any) -> None:
    """Refuse an argument that is no integer."""
    if isinstance(argument, types.Omitted):
        argument = type(argument.value)
    if argument is not int and not isinstance(argument, (int, types.Integer, types.EnumMember)):
        refuse("no integer", function=function, name=name, found=_described(argument))


def team(function: str, name: str, argument: Any) -> None:
    """Refuse an argument that is no team."""
    if is_none(argument):
        refuse("no team", function=function, name=name)
    integer(function, name, argument)


def array(function: str, name: str, argument: Any) -> None:
    """Refuse an argument that is no contiguous array."""
    if not isinstance(argument, types.Array):
        refuse("no array", function=function, name=name, found=_described(argument))
    if argument.layout not in "CF":
        refuse("gaps", function=function, name=name, found=_described(argument))


def same_elements(function: str, dest: Any, source: Any) -> None:
    """Refuse two arrays whose bytes cannot be copied from one to the other as they are."""
    array(function, "dest", dest)
    array(function, "source", source)
    if dest.dtype != source.dtype:
        refuse("other dtype", function=function, source=source.dtype, dest=dest.dtype)
    if dest.ndim != source.ndim:
        refuse("other dimensions", function=function, source=_axes(source), dest=_axes(dest))
    if dest.ndim > 1 and dest.layout != source.layout:
        refuse("other order", function=function, source=source.layout, dest=dest.layout)


def one_dimension(function: str, dest: Any) -> None:
    """Refuse arrays of several dimensions (dest has as many as source): a stride counts elements of a row."""
    if dest.ndim != 1:
        refuse("strides of dimensions", function=function, found=_axes(dest))


def subscript(function: str, name: str, argument: Any, idx: Any) -> None:
    """Refuse an index that does not select one element of the array ``name``."""
    if not isinstance(argument, types.Array):
        refuse("no array", function=function, name=name, found=_described(argument))
    indices = list(idx) if isinstance(idx, types.BaseTuple) else [idx]
    if len(indices) != argument.ndim:
        refuse("subscripts", function=function, count=len(indices), name=name, found=_axes(argument))
    for index in indices:
        integer(function, "idx", index)


def scalar(function: str, dtype: Any, value: Any, name: str = "value") -> None:
    """Refuse an argument that an element of type dtype cannot hold, and element types that need several accesses."""
    if isinstance(dtype, types.Record) or element_size(dtype) not in (1, 2, 4, 8, 16):
        refuse("element size", function=function, dtype=dtype)
    value = types.unliteral(value) if value is not None else dtype
    numbers = (types.Number, types.Boolean)
    narrows = isinstance(value, types.Complex) and not isinstance(dtype, types.Complex)
    if value != dtype and (narrows or not (isinstance(value, numbers) and isinstance(dtype, numbers))):
        refuse("other value", function=function, name=name, value=value, dtype=dtype)


def unit(argument: Any) -> int:
    """Return the alignment of every element of the array in bytes, at most 16 (complex numbers: that of their parts)."""
    if not argument.aligned:
        return 1
    dtype = numpy_dtype(argument.dtype)
    alignment = dtype.alignment if dtype.itemsize % dtype.alignment == 0 else 1
    return min(16, int(alignment))


def _described(argument: Any) -> str:
    if isinstance(argument, types.Array):
        return f"an array of {argument.dtype} with {_axes(argument)} and gaps"
    return f"{argument}"


def _axes(argument: Any) -> str:
    return f"{argument.ndim} dimension{'s' if argument.ndim != 1 else ''}"
