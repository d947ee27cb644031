"""Waits for any, some, or all of several elements, and tests without waiting (OpenSHMEM 1.5, "Point-To-Point Synchronization Routines").

A *sweep* reads the elements of the wait set once. It returns its result and the number of an element that is still awaited, at which the
next sweep begins; -1 if the condition holds or the wait set is empty. A wait sweeps until it gets -1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import address_of, address_of_element, bits_of, caster, constant, device, element_size, i64, ptx, types, u32, u64
from pgas.kernels.ops import operands, signal
from pgas.kernels.ops.sync import COMPARISONS, acquire, awaitable, given_up, holds
from pgas.kernels.paths import transport
from pgas.kernels.refusals import kind_of, refuse

#: 2^64 divided by the golden ratio: products with it are distributed over the upper bits (Knuth, volume 3, section 6.4).
_GOLDEN, _32 = constant(0x9E37_79B9_7F4A_7C15), constant(32)
_IVARS, _INDICES, _STATUS, _VALUES = (constant(which) for which in range(4))  # the numbers of operation.operand()


# One element ------------------------------------------------------------------------------------------------------------------


def test(ivar: Any, idx: Any, cmp: Any, value: Any) -> Any:
    """Typing function of test."""
    operands.subscript("test", "ivar", ivar, idx)
    awaitable("test", "ivar", ivar)
    operands.code("test", "cmp", cmp, Comparison)
    operands.integer("test", "value", value)
    check, op, nbytes, dtype = operands.checking(), operation.number("test"), element_size(ivar.dtype), caster(ivar.dtype)
    settle = transport.settle()

    def body(ivar, idx, cmp, value):
        addr = address_of_element(ivar, idx)
        if check:
            if not state.valid_element(op, state.my_pe(), ivar, idx, addr, u64(nbytes)):
                return True
            if not state.valid_code(op, state.my_pe(), addr, cmp, COMPARISONS):
                return True
        found = ptx.ld_element(addr, ivar)
        if not holds(found, cmp, dtype(value)):
            return False
        acquire(addr, ivar, found)
        settle(u64(op))
        return True

    return body


def signal_fetch(sig: Any, idx: Any) -> Any:
    """Typing function of signal_fetch."""
    signal.word("signal_fetch", sig)
    operands.subscript("signal_fetch", "sig", sig, idx)
    check, op, settle = operands.checking(), operation.number("signal_fetch"), transport.settle()

    def body(sig, idx):
        addr = address_of_element(sig, idx)
        if check:
            if not state.valid_element(op, state.my_pe(), sig, idx, addr, u64(8)):
                return operands.some_element(sig)
        found = ptx.ld_acquire_element(addr, sig)
        settle(u64(op))
        return found

    return body


# Several ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Several:
    """A function on several elements: wait_until_<kind> or test_<kind>; kind: all, any, or some. vector: each element has its own value."""

    kind: str
    waits: bool
    vector: bool

    @property
    def name(self) -> str:
        """The public name."""
        return f"{'wait_until' if self.waits else 'test'}_{self.kind}{'_vector' if self.vector else ''}"


def several(kind: str, *, waits: bool, vector: bool) -> Callable[..., Any]:
    """Typing function of wait_until_<kind> or test_<kind>, or their vector forms."""
    form = Several(kind, waits, vector)

    def alike(ivars: Any, status: Any, cmp: Any, value: Any, nelems: Any = None) -> Any:
        perform = _performing(form, ivars, None, status, cmp, value, nelems)

        def body(ivars, status, cmp, value, nelems=None):
            return perform(ivars, None, status, cmp, value, nelems)

        return body

    def each(ivars: Any, status: Any, cmp: Any, values: Any, nelems: Any = None) -> Any:
        perform = _performing(form, ivars, None, status, cmp, values, nelems)

        def body(ivars, status, cmp, values, nelems=None):
            return perform(ivars, None, status, cmp, values, nelems)

        return body

    def some_alike(ivars: Any, indices: Any, status: Any, cmp: Any, value: Any, nelems: Any = None) -> Any:
        perform = _performing(form, ivars, indices, status, cmp, value, nelems)

        def body(ivars, indices, status, cmp, value, nelems=None):
            return perform(ivars, indices, status, cmp, value, nelems)

        return body

    def some_each(ivars: Any, indices: Any, status: Any, cmp: Any, values: Any, nelems: Any = None) -> Any:
        perform = _performing(form, ivars, indices, status, cmp, values, nelems)

        def body(ivars, indices, status, cmp, values, nelems=None):
            return perform(ivars, indices, status, cmp, values, nelems)

        return body

    if kind == "some":
        return some_each if vector else some_alike
    return each if vector else alike


def _performing(form: Several, ivars: Any, indices: Any, status: Any, cmp: Any, value: Any, nelems: Any) -> Any:
    """Check the operand types and make ``perform(ivars, indices, status, cmp, value, nelems)``; form.vector: value is an array."""
    name, kind, waits, vector = form.name, form.kind, form.waits, form.vector
    operands.array(name, "ivars", ivars)
    if ivars.ndim != 1:
        refuse("row", function=name, name="ivars", count=ivars.ndim)
    awaitable(name, "ivars", ivars)
    operands.code(name, "cmp", cmp, Comparison)
    masked, whole = not operands.is_none(status), operands.is_none(nelems)
    if masked:
        _integers(name, "status", status)
    if kind == "some":
        _integers(name, "indices", indices)
    if vector:
        _integers(name, "values", value)
    else:
        operands.integer(name, "value", value)
    if not whole:
        operands.integer(name, "nelems", nelems)
    contiguous = operands.contiguous(name, ivars=ivars)
    op, sweep = operation.number(name), _sweep(kind, caster(ivars.dtype), masked, vector)
    count = _count(op, element_size(ivars.dtype), kind == "some", masked, vector, whole, contiguous)
    spreads, answers = kind == "any", kind != "all" or not waits
    wanted = _wanted(caster(ivars.dtype), vector)
    op, settle = constant(op), transport.settle()

    @device
    def perform(ivars, indices, status, cmp, value, nelems):
        n = count(ivars, indices, status, cmp, value, nelems)
        awaited = i64(0)
        if spreads:  # start at a random element, because otherwise one would be returned repeatedly while others also hold
            awaited = i64(((u64(ptx.clock() * _GOLDEN) >> _32) * u64(n)) >> _32)
        if waits:
            deadline = ptx.globaltimer() + state.timeout_ns()
            polls = u32(0)
        while True:
            answer, awaited = sweep(ivars, indices, status, cmp, value, n, awaited)
            if not waits or awaited < 0:
                break
            addr, compared = address_of_element(ivars, awaited), bits_of(wanted(value, awaited))
            polls = u32(polls + 1)
            if polls & state.POLLS_MASK == 0:
                if given_up(op, addr, u64(cmp), compared, bits_of(ptx.ld_element(addr, ivars)), deadline):
                    break
            state.relax(op, addr, cmp, compared)
        if waits or awaited < 0:
            ptx.fence_sys()  # acquires after relaxed loads, so that what the writers released is visible
            settle(op)
        if answers:
            return answer

    return perform


def _sweep(kind: str, dtype: Any, masked: bool, vector: bool) -> Any:
    """Make ``sweep(ivars, indices, status, cmp, value, n, start)``; start: the first element to read."""
    wanted = _wanted(dtype, vector)

    @device
    def included(status, i):
        return status[i] == 0 if masked else True

    @device
    def satisfied(ivars, cmp, value, i):
        return holds(ptx.ld_element(address_of_element(ivars, i), ivars), cmp, wanted(value, i))

    if kind == "all":

        @device
        def sweep(ivars, indices, status, cmp, value, n, start):
            """Return whether the condition has held for every element, each at some time since the first sweep."""
            for i in range(start, n):
                if included(status, i):
                    if not satisfied(ivars, cmp, value, i):
                        return False, i64(i)
            return True, i64(-1)

    elif kind == "any":

        @device
        def sweep(ivars, indices, status, cmp, value, n, start):
            """Return the number of an element for which the condition holds; -1 if there is none."""
            awaited = i64(-1)
            i = i64(start)
            for _ in range(n):
                if included(status, i):
                    if satisfied(ivars, cmp, value, i):
                        return i64(i), i64(-1)
                    if awaited < 0:
                        awaited = i64(i)
                i = i64(i + 1)
                if i == n:
                    i = i64(0)
            return i64(-1), awaited

    else:

        @device
        def sweep(ivars, indices, status, cmp, value, n, start):
            """Return how many elements satisfy the condition; write their numbers into indices."""
            awaited = i64(-1)
            found = i64(0)
            for i in range(n):
                if included(status, i):
                    if satisfied(ivars, cmp, value, i):
                        indices[found] = i
                        found = i64(found + 1)
                    elif awaited < 0:
                        awaited = i64(i)
            return found, i64(-1) if found > 0 else awaited

    return sweep


def _wanted(dtype: Any, vector: bool) -> Any:
    """Make ``wanted(value, i)``: the value with which element i is compared."""

    @device
    def wanted(value, i):
        return dtype(value[i]) if vector else dtype(value)

    return wanted


def _count(op: int, itemsize: int, indexed: bool, masked: bool, vector: bool, whole: bool, contiguous: Any) -> Any:
    """Make ``count(ivars, indices, status, cmp, value, nelems)``: elements to read, 0 if an operand was rejected.

    whole: whether all elements are read. contiguous: the result of operands.contiguous().
    """
    check, too_long = operands.checking(), constant(kind_of("too long"))

    @device
    def count(ivars, indices, status, cmp, value, nelems):
        if contiguous is not None:
            if not contiguous(ivars):
                return i64(0)
        room = i64(ivars.size)
        n = room if whole else i64(nelems)
        short, at = _IVARS, address_of(ivars)
        if indexed and i64(indices.size) < room:
            room, short, at = i64(indices.size), _INDICES, address_of(indices)
        if masked and i64(status.size) < room:
            room, short, at = i64(status.size), _STATUS, address_of(status)
        if vector and i64(value.size) < room:
            room, short, at = i64(value.size), _VALUES, address_of(value)
        if check:
            addr = address_of(ivars)
            if u64(n) > u64(room):
                state.fail(too_long, u64(op), u64(state.my_pe()), at, u64(n), u64(room), short)
                return i64(0)
            if not state.valid(op, state.my_pe(), addr, u64(n) * u64(itemsize)):
                return i64(0)
            if not state.valid_code(op, state.my_pe(), addr, cmp, COMPARISONS):
                return i64(0)
        return min(n, room)

    return count


# Operands ---------------------------------------------------------------------------------------------------------------------


def _integers(name: str, argument: str, array: Any) -> None:
    if not isinstance(array, types.Array) or array.ndim != 1 or not isinstance(array.dtype, types.Integer):
        refuse("row of integers", function=name, name=argument, found=operands.described(array))
