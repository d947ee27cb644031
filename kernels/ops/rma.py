"""put, get, p, and g: operand checks, and the call of the path (OpenSHMEM 1.5, "Remote Memory Access Routines").

Each function here takes the Numba types of a call's arguments and returns the body for them (binding.device_function).
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.compiler import address_of, address_of_element, constant, device, element_size, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import transport
from pgas.kernels.paths.nic.queue_pair import registered
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import Scope


def length(dest: Any, source: Any, nelems: Any, name: str, *, get: bool = False) -> Any:
    """Return ``length(dest_size, source_size, nelems, pe, addr, local, qp)``: bytes to copy, 0 if an operand was rejected.

    addr: address of the symmetric operand. local: address of the other one, which must be on the heap or registered if a NIC moves it.
    """
    op = operation.number(name) if operands.checking() else None
    return _length(element_size(dest.dtype), operands.is_none(nelems), op, transport.queue_pairs(), transport.two_paths(), get)


@functools.cache
def _length(itemsize: int, whole: bool, op: int | None, queue_pairs: int | None, two: bool, get: bool) -> Any:
    """Make length().

    whole: whether all of the source is copied. op: number of the operation in error records, or None for no checks. queue_pairs: number of
    queue pairs to each PE, or None without a NIC. two: whether near PEs are reached without the NIC.
    """
    _itemsize = constant(itemsize)
    if op is None and whole:

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr, local, qp):
            return u64(min(source_size, dest_size)) * _itemsize  # never beyond dest; with checks, a shorter dest is an error

    elif op is None:

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr, local, qp):
            return u64(nelems) * _itemsize

    else:
        too_long, symmetric, other = kind_of("too long"), operation.SYMMETRIC, operation.LOCAL

        @device
        def nbytes(dest_size, source_size, nelems, pe, addr, local, qp):
            count = u64(source_size) if whole else u64(nelems)
            room = u64(min(source_size, dest_size))
            if count > room:
                if (source_size if get else dest_size) == room:
                    state.fail(u64(too_long), u64(op), u64(pe), addr, count, room, u64(symmetric))
                else:
                    state.fail(u64(too_long), u64(op), u64(pe), local, count, room, u64(other))
                return u64(0)
            if not state.valid(op, pe, addr, count * _itemsize):
                return u64(0)
            if queue_pairs is not None:
                if not state.valid_queue(op, pe, qp, queue_pairs):
                    return u64(0)
                if not (two and state.near(pe)):
                    if not registered(op, pe, local, count * _itemsize):
                        return u64(0)
            return count * _itemsize

    return nbytes


def put(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of put and put_nbi at a scope."""
    name = ("put_nbi" if nbi else "put") + scope.suffix
    sync = scope.entry(name)

    def typing(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0) -> Any:
        contiguous = _check(name, dest, source, pe, nelems, qp)
        length_of = length(dest, source, nelems, name)
        move = transport.current().put(name, scope, min(operands.unit(dest), operands.unit(source)), nbi=nbi)

        def body(dest, source, pe, nelems=None, qp=0):
            sync()
            if contiguous is not None:
                if not contiguous(dest, source):
                    return
            to, origin = address_of(dest), address_of(source)
            move(to, origin, length_of(dest.size, source.size, nelems, pe, to, origin, qp), pe, qp)

        return body

    return typing


def get(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of get and get_nbi at a scope."""
    name = ("get_nbi" if nbi else "get") + scope.suffix
    sync = scope.entry(name)

    def typing(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0) -> Any:
        contiguous = _check(name, dest, source, pe, nelems, qp)
        length_of = length(dest, source, nelems, name, get=True)
        move = transport.current().get(name, scope, min(operands.unit(dest), operands.unit(source)), nbi=nbi)

        def body(dest, source, pe, nelems=None, qp=0):
            sync()
            if contiguous is not None:
                if not contiguous(dest, source):
                    return
            to, origin = address_of(dest), address_of(source)
            move(to, origin, length_of(dest.size, source.size, nelems, pe, origin, to, qp), pe, qp)

        return body

    return typing


def p(dest: Any, idx: Any, value: Any, pe: Any, qp: Any = 0) -> Any:
    """Typing function of p."""
    operands.subscript("p", "dest", dest, idx)
    operands.scalar("p", dest.dtype, value)
    operands.integer("p", "pe", pe)
    operands.integer("p", "qp", qp)
    check, op, nbytes, store = operands.checking(), operation.number("p"), element_size(dest.dtype), transport.current().p(dest.dtype)
    queue_pairs = transport.queue_pairs()

    def body(dest, idx, value, pe, qp=0):
        addr = address_of_element(dest, idx)
        if check:
            if not state.valid_element(op, pe, dest, idx, addr, u64(nbytes)):
                return
            if queue_pairs is not None:
                if not state.valid_queue(op, pe, qp, queue_pairs):
                    return
        store(addr, dest, value, pe, qp)

    return body


def g(source: Any, idx: Any, pe: Any, qp: Any = 0) -> Any:
    """Typing function of g."""
    operands.subscript("g", "source", source, idx)
    operands.scalar("g", source.dtype, None)
    operands.integer("g", "pe", pe)
    operands.integer("g", "qp", qp)
    check, op, nbytes, load = operands.checking(), operation.number("g"), element_size(source.dtype), transport.current().g(source.dtype)
    queue_pairs = transport.queue_pairs()

    def body(source, idx, pe, qp=0):
        addr = address_of_element(source, idx)
        if check:
            if not state.valid_element(op, pe, source, idx, addr, u64(nbytes)):
                return operands.some_element(source)
            if queue_pairs is not None:
                if not state.valid_queue(op, pe, qp, queue_pairs):
                    return operands.some_element(source)
        return load(addr, source, pe, qp)

    return body


def _check(name: str, dest: Any, source: Any, pe: Any, nelems: Any, qp: Any) -> Any:
    """Reject operands of other types. Return operands.contiguous() of dest and source."""
    contiguous = operands.same_elements(name, dest, source)
    operands.integer(name, "pe", pe)
    operands.integer(name, "qp", qp)
    if not operands.is_none(nelems):
        operands.integer(name, "nelems", nelems)
    return contiguous
