"""Atomic memory operations (OpenSHMEM 1.5, "Atomic Memory Operations")."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.codes import Update
from pgas.kernels.compiler import address_of_element, device, element_size, types, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse


@dataclass(frozen=True)
class Atomic:
    """An atomic operation.

    Args:
        update: kind of update.
        fetches: whether the old value is returned.
        value: operand of the update; None if the caller passes it.
        floats: whether elements may be floats.
    """

    update: Update
    fetches: bool = False
    value: int | None = None
    floats: bool = False


#: All operations of the sections "Standard AMOs", "Extended AMOs", and "Bitwise AMOs"; min and max are not part of OpenSHMEM.
ATOMICS = {
    "atomic_fetch": Atomic(Update.KEEP, fetches=True, value=0, floats=True),
    "atomic_set": Atomic(Update.SWAP, floats=True),
    "atomic_swap": Atomic(Update.SWAP, fetches=True, floats=True),
    "atomic_compare_swap": Atomic(Update.COMPARE_SWAP, fetches=True),
    "atomic_inc": Atomic(Update.ADD, value=1),
    "atomic_fetch_inc": Atomic(Update.ADD, fetches=True, value=1),
    "atomic_add": Atomic(Update.ADD, floats=True),
    "atomic_fetch_add": Atomic(Update.ADD, fetches=True, floats=True),
    "atomic_min": Atomic(Update.MIN),
    "atomic_fetch_min": Atomic(Update.MIN, fetches=True),
    "atomic_max": Atomic(Update.MAX),
    "atomic_fetch_max": Atomic(Update.MAX, fetches=True),
    "atomic_and": Atomic(Update.AND),
    "atomic_fetch_and": Atomic(Update.AND, fetches=True),
    "atomic_or": Atomic(Update.OR),
    "atomic_fetch_or": Atomic(Update.OR, fetches=True),
    "atomic_xor": Atomic(Update.XOR),
    "atomic_fetch_xor": Atomic(Update.XOR, fetches=True),
}


def typing_of(name: str) -> Callable[..., Any]:
    """Return the typing function of an operation."""
    atomic = ATOMICS[name]
    own = atomic.value

    def without_value(dest: Any, idx: Any, pe: Any) -> Any:
        perform = _performing(name, dest, idx, pe)

        def body(dest, idx, pe):
            return perform(dest, idx, own, own, pe)

        return body

    def with_value(dest: Any, idx: Any, value: Any, pe: Any) -> Any:
        perform = _performing(name, dest, idx, pe, value=value)

        def body(dest, idx, value, pe):
            return perform(dest, idx, value, value, pe)

        return body

    def with_two(dest: Any, idx: Any, cond: Any, value: Any, pe: Any) -> Any:
        perform = _performing(name, dest, idx, pe, cond=cond, value=value)

        def body(dest, idx, cond, value, pe):
            return perform(dest, idx, value, cond, pe)

        return body

    if atomic.update is Update.COMPARE_SWAP:
        return with_two
    return with_value if own is None else without_value


@device
def _nothing(array):
    """Return nothing: the result of operations without a result."""


def _performing(name: str, dest: Any, idx: Any, pe: Any, **given: Any) -> Any:
    """Check the operand types and make ``perform(dest, idx, value, compare, pe)``."""
    atomic = ATOMICS[name]
    operands.subscript(name, "dest", dest, idx)
    operands.computable(name, dest.dtype)
    integer, floating = isinstance(dest.dtype, types.Integer), isinstance(dest.dtype, types.Float) or dest.dtype == types.bfloat16
    if not (integer or (atomic.floats and floating)) or element_size(dest.dtype) not in (2, 4, 8):
        refuse("atomic", function=name, dtype=dest.dtype, allowed="integers or floats" if atomic.floats else "integers")
    for argument, value in given.items():
        operands.scalar(name, dest.dtype, value, argument)
    operands.integer(name, "pe", pe)
    check, nbytes, op = operands.checking(), element_size(dest.dtype), operation.number(name)
    update = transport.current().atomic(name, atomic.update, dest.dtype, fetch=atomic.fetches)
    refused = operands.some_element if atomic.fetches else _nothing

    @device
    def perform(dest, idx, value, compare, pe):
        addr = address_of_element(dest, idx)
        if check:
            if not state.valid_element(op, pe, dest, idx, addr, u64(nbytes)):
                return refused(dest)
        return update(addr, dest, value, compare, pe)

    return perform
