"""put, get, p, and g: operand checks, and the call of the path (OpenSHMEM 1.5, "Remote Memory Access Routines").

Each function here takes the Numba types of a call's arguments and returns the body for them (binding.device_function).
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.compiler import address_of, address_of_element, backend, constant, device, element_size, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import bulk, transport
from pgas.kernels.paths.nic.queue_pair import registered
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote


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
    return _copying("put_nbi" if nbi else "put", scope, get=False, nbi=nbi)


def get(scope: Scope, *, nbi: bool) -> Callable[..., Any]:
    """Typing function of get and get_nbi at a scope."""
    return _copying("get_nbi" if nbi else "get", scope, get=True, nbi=nbi)


def _copying(plain: str, scope: Scope, *, get: bool, nbi: bool) -> Callable[..., Any]:
    """Typing function of a copy. Only the blocking forms have the parameter smem."""
    name = plain + scope.suffix
    sync = scope.entry(name)

    def make(dest: Any, source: Any, pe: Any, nelems: Any, qp: Any, smem: Any) -> Any:
        contiguous = _check(name, dest, source, pe, nelems, qp)
        length_of, unit = length(dest, source, nelems, name, get=get), min(operands.unit(dest), operands.unit(source))
        path = transport.current()
        move = (path.get if get else path.put)(name, scope, unit, nbi=nbi)
        if not operands.is_none(smem):
            operands.array(name, "smem", smem)
        lent = not operands.is_none(smem) and transport.maps_peers() and backend.bulk_copies()
        if lent:
            move = _by_bulk(name, scope, unit, move, element_size(smem.dtype), get=get)

        @device
        def copying(dest, source, pe, nelems, qp, smem):
            sync()
            if contiguous is not None:
                if not contiguous(dest, source):
                    return
            to, origin = address_of(dest), address_of(source)
            nbytes = length_of(dest.size, source.size, nelems, pe, origin if get else to, to if get else origin, qp)
            if lent:
                move(to, origin, nbytes, pe, qp, smem)
            else:
                move(to, origin, nbytes, pe, qp)

        return copying

    def typing_of_nbi(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0) -> Any:
        copying = make(dest, source, pe, nelems, qp, None)

        def body(dest, source, pe, nelems=None, qp=0):
            copying(dest, source, pe, nelems, qp, None)

        return body

    def typing(dest: Any, source: Any, pe: Any, nelems: Any = None, qp: Any = 0, smem: Any = None) -> Any:
        copying = make(dest, source, pe, nelems, qp, smem)

        def body(dest, source, pe, nelems=None, qp=0, smem=None):
            copying(dest, source, pe, nelems, qp, smem)

        return body

    return typing_of_nbi if nbi else typing


def _by_bulk(name: str, scope: Scope, unit: int, by_path: Any, itemsize: int, *, get: bool) -> Any:
    """Make ``move(to, origin, nbytes, pe, qp, smem)``: use bulk copies if PE pe's memory is mapped, otherwise the path.

    itemsize: bytes of an element of smem.
    """
    through = bulk.copy(scope, unit, operation.number(name), get=get, check=operands.checking())
    sync, two, size = scope.sync, transport.two_paths(), constant(itemsize)

    @device
    def move(to, origin, nbytes, pe, qp, smem):
        if two and not state.near(pe):
            by_path(to, origin, nbytes, pe, qp)
        else:
            if get:
                through(to, remote(origin, pe), nbytes, address_of(smem), u64(smem.size) * size)
            else:
                through(remote(to, pe), origin, nbytes, address_of(smem), u64(smem.size) * size)
            sync()

    return move


def give_smem(scope: Scope) -> Callable[..., Any]:
    """Typing function of give_smem at a scope."""
    name = "give_smem" + scope.suffix
    sync, op = scope.entry(name), operation.number(name)

    def typing(array: Any) -> Any:
        operands.array(name, "array", array)
        contiguous, itemsize = operands.contiguous(name, array=array), constant(element_size(array.dtype))
        if not backend.bulk_copies():

            def nothing(array):
                sync()

            return nothing
        prepare = bulk.give(scope, op)

        def body(array):
            sync()
            if contiguous is not None:
                if not contiguous(array):
                    return
            prepare(address_of(array), u64(array.size) * itemsize)

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
