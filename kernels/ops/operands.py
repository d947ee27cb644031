"""Checks of operand types when a kernel is compiled (in the simulator: at the first call with these types).

Every error message is one sentence that names the function and the argument.
"""

import functools
from enum import IntEnum
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import operation, state, window
from pgas.kernels.codes import CONSTANTS
from pgas.kernels.compiler import address_of, constant, device, element_size, i64, is_float8, numpy_dtype, ptx, types, u64
from pgas.kernels.refusals import choices, dimensions, kind_of, refuse
from pgas.kernels.typed import layout

_0 = constant(0)


def checking() -> bool:
    """Whether kernels check PEs and addresses: always in the simulator, under PGAS_DEBUG=check on a GPU."""
    return window.constants().check or SIMULATOR


@device
def some_element(array):
    """Return an arbitrary value of an element's type, for an operation that was rejected; the job fails anyway."""
    return ptx.ld_element(layout.MY_PE, array)


def is_none(argument: Any) -> bool:
    """Whether an optional argument was omitted."""
    return argument is None or isinstance(argument, types.NoneType) or (isinstance(argument, types.Omitted) and argument.value is None)


def integer(function: str, name: str, argument: Any) -> None:
    """Reject an argument that is not an integer."""
    if isinstance(argument, types.Omitted):
        argument = type(argument.value)
    if argument is not int and not isinstance(argument, (int, types.Integer, types.EnumMember)):
        refuse("no integer", function=function, name=name, found=described(argument))


def code(function: str, name: str, argument: Any, codes: type[IntEnum]) -> None:
    """Reject an op or a cmp that is not an integer or is a constant of another kind: pgas.SUM has the number of pgas.SIGNAL_SET."""
    if isinstance(argument, types.EnumMember) and argument.instance_class in CONSTANTS and argument.instance_class is not codes:
        refuse("other code", function=function, name=name, allowed=choices(codes), found=described(argument))
    integer(function, name, argument)


def team(function: str, name: str, argument: Any) -> None:
    """Reject an argument that is not a team."""
    if is_none(argument):
        refuse("no team", function=function, name=name)
    integer(function, name, argument)


def array(function: str, name: str, argument: Any) -> None:
    """Reject an argument that is not an array. contiguous() checks whether it is contiguous."""
    if not isinstance(argument, types.Array):
        refuse("no array", function=function, name=name, found=described(argument))


def computable(function: str, dtype: Any) -> None:
    """Reject elements of types that can only be copied."""
    if is_float8(dtype):
        refuse("only copied", function=function, dtype=dtype)


def same_elements(function: str, dest: Any, source: Any) -> Any:
    """Reject two arrays whose bytes cannot be copied from one to the other unchanged. Return contiguous() of both, in the same order."""
    array(function, "dest", dest)
    array(function, "source", source)
    if dest.dtype != source.dtype:
        refuse("other dtype", function=function, source=source.dtype, dest=dest.dtype)
    if dest.ndim != source.ndim:
        refuse("other dimensions", function=function, source=dimensions(source.ndim), dest=dimensions(dest.ndim))
    if dest.ndim > 1 and dest.layout != source.layout and "A" not in (dest.layout, source.layout):
        refuse("other order", function=function, source=source.layout, dest=dest.layout)
    return contiguous(function, one_order=True, dest=dest, source=source)


#: Orders of elements in memory, as bits.
C_ORDER, _F_ORDER = 1, 2
_GAPS, _DIFFERENT_ORDER = constant(kind_of("gaps")), constant(kind_of("different order"))


def contiguous(function: str, *, order: int = C_ORDER | _F_ORDER, one_order: bool = False, **arrays: Any) -> Any:
    """Make ``contiguous(*arrays)``: check at run time that one or two operands are contiguous. Return None if their types imply it.

    The compiler assigns layout A to many slices, such as ``a[1:3, :]`` and ``a[::1]``, whether or not they are contiguous.

    Args:
        function: name of the called function.
        order: permitted orders.
        one_order: whether both operands must have the same order.
        arrays: types of the operands, by argument name.
    """
    if all(argument.layout != "A" for argument in arrays.values()):
        return None
    op = constant(operation.number(function))
    orders = [
        _order(op, operation.position(function, name), element_size(argument.dtype), argument.ndim, order)
        for name, argument in arrays.items()
    ]
    first, second = orders[0], orders[-1]
    if len(orders) == 1:
        return device(lambda array: first(array) != 0)

    @device
    def both(dest, source):
        of_dest, of_source = first(dest), second(source)
        if of_dest == 0 or of_source == 0:
            return False
        if one_order and of_dest & of_source == 0:
            state.fail(_DIFFERENT_ORDER, op, _0, address_of(dest), _0, u64(of_dest), _0)
            return False
        return True

    return both


@functools.cache
def _order(op: Any, which: int, itemsize: int, ndim: int, permitted: int) -> Any:
    """Make ``order(array)``: those of the permitted orders in which its elements are; 0, after an error record, if there are none."""
    c_order, f_order, axis_shift = C_ORDER, _F_ORDER, state.AXIS_SHIFT

    @device
    def gap(array, axis, step):
        """Return the first axis from ``axis`` on whose stride is not contiguous, or -1; its stride; and the contiguous stride."""
        wanted = i64(itemsize)
        for _ in range(ndim):
            if array.shape[axis] != 1:
                if array.strides[axis] != wanted:
                    return axis, array.strides[axis], wanted
                wanted *= array.shape[axis]
            axis += step
        return i64(-1), i64(0), i64(0)

    @device
    def order(array):
        if array.size == 0:
            return i64(permitted)
        in_c, in_f = gap(array, i64(ndim - 1), i64(-1)), gap(array, i64(0), i64(1))
        found = i64((c_order if in_c[0] < 0 else 0) | (f_order if in_f[0] < 0 else 0)) & permitted
        if found == 0:
            state.fail(_GAPS, op, _0, address_of(array), u64(in_c[2]), u64(in_c[1]), u64(which | in_c[0] << axis_shift))
        return found

    return order


def one_dimension(function: str, dest: Any) -> None:
    """Reject arrays of several dimensions (dest has as many as source), because strides count elements within a row."""
    if dest.ndim != 1:
        refuse("strides of dimensions", function=function, found=dimensions(dest.ndim))


def subscript(function: str, name: str, argument: Any, idx: Any) -> None:
    """Reject an index that does not select one element of the array ``name``."""
    if not isinstance(argument, types.Array):
        refuse("no array", function=function, name=name, found=described(argument))
    indices = list(idx) if isinstance(idx, types.BaseTuple) else [idx]
    if len(indices) != argument.ndim:
        refuse("subscripts", function=function, count=len(indices), name=name, found=dimensions(argument.ndim))
    for index in indices:
        integer(function, "idx", index)


def scalar(function: str, dtype: Any, value: Any, name: str = "value") -> None:
    """Reject an argument that an element of type dtype cannot hold, and element types that need several accesses."""
    if isinstance(dtype, types.Record) or element_size(dtype) not in (1, 2, 4, 8, 16):
        refuse("element size", function=function, dtype=dtype)
    value = types.unliteral(value) if value is not None else dtype
    numbers = (types.Number, types.Boolean)
    narrows = isinstance(value, types.Complex) and not isinstance(dtype, types.Complex)
    if value != dtype and (narrows or not (isinstance(value, numbers) and isinstance(dtype, numbers))):
        shown = f"of type {value}" if isinstance(value, numbers) else described(value)
        refuse("other value", function=function, name=name, value=shown, dtype=dtype)


def unit(argument: Any) -> int:
    """Return the alignment of every element of the array in bytes, at most 16 (complex numbers: that of their parts)."""
    if not argument.aligned:
        return 1
    dtype = numpy_dtype(argument.dtype)
    alignment = dtype.alignment if dtype.itemsize % dtype.alignment == 0 else 1
    return min(16, int(alignment))


def described(argument: Any) -> str:
    """Return a description of an argument, for a message, because Numba's type names are long and those of the simulator differ."""
    argument = types.unliteral(argument)
    if isinstance(argument, types.Array):
        return f"an array of {argument.dtype} with {dimensions(argument.ndim)}"
    if is_none(argument):
        return "None"
    if isinstance(argument, types.IntEnumMember):
        return CONSTANTS.get(argument.instance_class, argument.instance_class.__name__)
    if isinstance(argument, (types.Number, types.Boolean)):
        return f"{argument}"
    for kind, name in ((types.BaseTuple, "a tuple"), (types.UnicodeType, "a string"), (types.Module, "a module")):
        if isinstance(argument, kind):
            return name
    return "an object"
