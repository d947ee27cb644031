"""Atomic memory operations (OpenSHMEM 1.5, section 9.8)."""

from collections.abc import Callable
from typing import Any

from numba.cuda import types

from pgas.kernels import operands, operation, state, transport
from pgas.kernels.compiler import KernelTypeError, address_of_element, element_size, u64


def atomic_add(*, fetch: bool) -> Callable[..., Any]:
    """Typing function of atomic_add and atomic_fetch_add."""
    name = "atomic_fetch_add" if fetch else "atomic_add"
    op = operation.number(name)

    def typing(dest: Any, idx: Any, value: Any, pe: Any) -> Any:
        operands.subscript(name, "dest", dest, idx)
        _addable(name, dest.dtype)
        operands.scalar(name, dest.dtype, value)
        operands.integer(name, "pe", pe)
        check, nbytes = operands.checking(), element_size(dest.dtype)
        update = transport.current().atomic_fetch_add(dest.dtype) if fetch else transport.current().atomic_add(dest.dtype)
        if fetch:

            def body(dest, idx, value, pe):
                addr = address_of_element(dest, idx)
                if check:
                    if not state.valid_element(op, pe, dest, idx, addr, u64(nbytes)):
                        return operands.some_element(dest)
                return update(addr, dest, value, pe)

        else:

            def body(dest, idx, value, pe):
                addr = address_of_element(dest, idx)
                if check:
                    if not state.valid_element(op, pe, dest, idx, addr, u64(nbytes)):
                        return
                update(addr, dest, value, pe)

        return body

    return typing


def _addable(name: str, dtype: Any) -> None:
    if not isinstance(dtype, (types.Integer, types.Float)) or element_size(dtype) not in (4, 8):
        raise KernelTypeError(f"pgas.{name}: dest has elements of type {dtype}; 32- and 64-bit integers and floats can be added atomically")
