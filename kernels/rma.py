"""put, get, p and g: operand checks, and the way to the transport (OpenSHMEM 1.5, section 9.5 "Remote Memory Access Routines").

Each function here gets the Numba types of a call's arguments and returns the body for them (compiler.device_function).
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import operands, operation, p2p, state
from pgas.kernels.compiler import address_of, address_of_element, constant, device, element_size, u64
from pgas.kernels.scope import Scope
from pgas.kernels.window import BASE, remote


def length(dest: Any, source: Any, nelems: Any, name: str) -> Any:
    """Return ``length(dest_size, source_size, nelems, pe, addr)``: bytes to copy, 0 if an operand was refused."""
    return _length(element_size(dest.dtype), operands.is_none(nelems), operation.number(name) if operands.checking() else None)


@functools.cache
def _length(itemsize: int, whole: bool, op: int | None) -> Any:
    """whole: the source's length counts. op: number of the operation in the errors of the checks, None without checks."""
    _itemsize = constant(itemsize)
    if op is None and whole:

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr):
            return u64(min(source_size, dest_size)) * _itemsize  # never beyond dest; under checks a shorter dest is an error

    elif op is None:

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr):
            return u64(nelems) * _itemsize

    else:
        too_long = state.TOO_LONG

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr):
            count = u64(source_size) if whole else u64(nelems)
            room = u64(min(source_size, dest_size))
            if count > room:
                state.fail(u64(too_long), u64(op), u64(pe), addr, count, room, u64(0))
                return u64(0)
            return count * _itemsize if state.valid(op, pe, addr, count * _itemsize) else u64(0)

    return nbytes


def put(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of put and put_nbi at a scope."""
    name = ("put_nbi" if nbi else "put") + scope.suffix
    rank, size, sync = scope.rank, scope.size, scope.sync

    def typing(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0) -> Any:
        _check(name, dest, source, pe, nelems, qp)
        length_of = length(dest, source, nelems, "put_nbi" if nbi else "put")
        copy = p2p.copy(min(operands.unit(dest), operands.unit(source)))

        def body(dest, source, pe, nelems=None, qp=0):
            sync()
            to = address_of(dest)
            nbytes = length_of(dest.size, source.size, nelems, pe, to)
            copy(remote(to, pe), address_of(source), nbytes, u64(rank()), u64(size()), nbi)
            if not nbi:
                sync()

        return body

    return typing


def get(scope: Scope) -> Callable[..., Any]:
    """Typing function of get at a scope."""
    name = "get" + scope.suffix
    rank, size, sync = scope.rank, scope.size, scope.sync

    def typing(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0) -> Any:
        _check(name, dest, source, pe, nelems, qp)
        length_of = length(dest, source, nelems, "get")
        copy = p2p.copy(min(operands.unit(dest), operands.unit(source)), get=True)

        def body(dest, source, pe, nelems=None, qp=0):
            sync()
            origin = address_of(source)
            nbytes = length_of(dest.size, source.size, nelems, pe, origin)
            copy(address_of(dest), remote(origin, pe), nbytes, u64(rank()), u64(size()), False)
            sync()

        return body

    return typing


def p(dest: Any, idx: Any, value: Any, pe: Any, qp: Any = 0) -> Any:
    """Typing function of p."""
    operands.subscript("p", "dest", dest, idx)
    operands.scalar("p", dest.dtype, value)
    operands.integer("p", "pe", pe)
    operands.integer("p", "qp", qp)
    check, op, nbytes = operands.checking(), operation.number("p"), element_size(dest.dtype)

    def body(dest, idx, value, pe, qp=0):
        addr = address_of_element(dest, idx)
        if check:
            if not state.valid(op, pe, addr, u64(nbytes)):
                return
        p2p.p(addr, dest, value, pe)

    return body


def g(source: Any, idx: Any, pe: Any, qp: Any = 0) -> Any:
    """Typing function of g."""
    operands.subscript("g", "source", source, idx)
    operands.scalar("g", source.dtype, None)
    operands.integer("g", "pe", pe)
    operands.integer("g", "qp", qp)
    check, op, nbytes = operands.checking(), operation.number("g"), element_size(source.dtype)

    def body(source, idx, pe, qp=0):
        addr = address_of_element(source, idx)
        if check:
            if not state.valid(op, pe, addr, u64(nbytes)):
                # An element that exists, so that the value has the type; the job fails anyway.
                return p2p.g(u64(BASE), source, state.my_pe())
        return p2p.g(addr, source, pe)

    return body


def _check(name: str, dest: Any, source: Any, pe: Any, nelems: Any, qp: Any) -> None:
    operands.same_elements(name, dest, source)
    operands.integer(name, "pe", pe)
    operands.integer(name, "qp", qp)
    if not operands.is_none(nelems):
        operands.integer(name, "nelems", nelems)
