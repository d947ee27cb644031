"""iput and iget: copies with strides (OpenSHMEM 1.5, "SHMEM_IPUT" and "SHMEM_IGET").

As in rma.py, each function takes the Numba types of a call's arguments and returns the body for them.
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.compiler import address_of, constant, device, element_size, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import transport
from pgas.kernels.paths.nic.queue_pair import registered
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote


def iput(scope: Scope) -> Callable[..., Any]:
    """Typing function of iput at a scope."""
    return _strided("iput", scope, get=False)


def iget(scope: Scope) -> Callable[..., Any]:
    """Typing function of iget at a scope."""
    return _strided("iget", scope, get=True)


def _strided(plain: str, scope: Scope, *, get: bool) -> Callable[..., Any]:
    name = plain + scope.suffix
    sync = scope.entry(name)

    def typing(dest: Any, source: Any, dst_stride: Any, src_stride: Any, pe: Any, nelems: Any = None) -> Any:
        contiguous = operands.same_elements(name, dest, source)
        operands.one_dimension(name, dest)
        for argument, given in (("dst_stride", dst_stride), ("src_stride", src_stride), ("pe", pe)):
            operands.integer(name, argument, given)
        if not operands.is_none(nelems):
            operands.integer(name, "nelems", nelems)
        op, by_nic = operation.number(name), transport.queue_pairs() is not None
        count = _count(element_size(dest.dtype), operands.is_none(nelems), op, operands.checking(), by_nic, transport.two_paths())
        _itemsize = constant(element_size(dest.dtype))
        unit = min(operands.unit(dest), operands.unit(source))
        move = transport.current().strided(name, scope, element_size(dest.dtype), unit, get=get)

        def body(dest, source, dst_stride, src_stride, pe, nelems=None):
            sync()
            if contiguous is not None:
                if not contiguous(dest, source):
                    return
            to, origin = address_of(dest), address_of(source)
            if get:
                n = count(source.size, dest.size, src_stride, dst_stride, nelems, pe, origin, to)
                move(remote(origin, pe), u64(src_stride) * _itemsize, to, u64(dst_stride) * _itemsize, n, pe)
            else:
                n = count(dest.size, source.size, dst_stride, src_stride, nelems, pe, to, origin)
                move(remote(to, pe), u64(dst_stride) * _itemsize, origin, u64(src_stride) * _itemsize, n, pe)

        return body

    return typing


@functools.cache
def _count(itemsize: int, whole: bool, op: int, check: bool, by_nic: bool, two: bool) -> Any:
    """Make ``count(size, local_size, stride, local_stride, nelems, pe, addr, local)``: elements to copy, 0 if an operand was rejected.

    size, stride, addr: those of the symmetric operand. local_size, local_stride, local: those of the other one. whole: whether to copy as
    many elements as both hold. by_nic: whether a NIC copies, except, with two transports, to and from near PEs.
    """
    _itemsize, _1, _op = constant(itemsize), constant(1), constant(op)
    too_long, bad_stride = constant(kind_of("too long")), constant(kind_of("stride"))
    symmetric, other = constant(operation.SYMMETRIC), constant(operation.LOCAL)

    @device
    def held(size, stride):
        return (u64(size) + u64(stride) - _1) // u64(stride)

    @device
    def span(n, stride):
        """Return the bytes from the first of n elements, at least one, to the end of the last."""
        return ((n - _1) * u64(stride) + _1) * _itemsize

    @device
    def count(size, local_size, stride, local_stride, nelems, pe, addr, local):
        least = min(stride, local_stride)
        if least < 1:  # always checked, because with a stride of 0 an array would hold any number of elements
            state.fail(bad_stride, _op, u64(pe), addr, u64(least), u64(0), u64(0))
            return u64(0)
        n = min(held(size, stride), held(local_size, local_stride)) if whole else u64(nelems)
        if check:
            room, local_room = held(size, stride), held(local_size, local_stride)
            if n > room:
                state.fail(too_long, _op, u64(pe), addr, n, room, symmetric)
                return u64(0)
            if n > local_room:
                state.fail(too_long, _op, u64(pe), local, n, local_room, other)
                return u64(0)
            if n == 0:
                return n
            if not state.valid(op, pe, addr, span(n, stride)):
                return u64(0)
            if by_nic and not (two and state.near(pe)):
                if not registered(op, pe, local, span(n, local_stride)):
                    return u64(0)
        return n

    return count
