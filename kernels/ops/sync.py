"""Waiting and ordering: wait_until, signal_wait_until, fence, and quiet (OpenSHMEM 1.5, "Memory Ordering Routines")."""

from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import address_of_element, bits_of, caster, constant, device, element_size, ptx, types, u32, u64
from pgas.kernels.ops import operands, signal
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse

_EQ, _NE, _GT, _LE, _LT = (int(Comparison[c]) for c in ("EQ", "NE", "GT", "LE", "LT"))
COMPARISONS = len(Comparison)

_TIMED_OUT = constant(state.TIMED_OUT)


@device
def holds(found, comparison, value):
    """Whether ``found comparison value``."""
    if comparison == _EQ:
        return found == value
    if comparison == _NE:
        return found != value
    if comparison == _GT:
        return found > value
    if comparison == _LE:
        return found <= value
    if comparison == _LT:
        return found < value
    return found >= value


@device
def given_up(op, addr, comparison, wanted, found, deadline):
    """Whether a wait for a word of this PE must end without its condition (state.given_up)."""
    return state.given_up(_TIMED_OUT, op, addr, comparison, wanted, found, deadline)


@device
def acquire(addr, array, found):
    """Make visible what the writer of the value ``found`` at addr released."""
    if ptx.ld_acquire_element(addr, array) != found:  # the word has changed again, perhaps by a writer that did not release anything
        ptx.fence_sys()


@device
def wait(op, addr, array, comparison, value):
    """Spin until the local element at addr satisfies the comparison, and return it. What its writer released is then visible."""
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    while True:
        found = ptx.ld_element(addr, array)
        if holds(found, comparison, value):
            break
        polls = u32(polls + 1)
        if polls & state.POLLS_MASK == 0:
            if given_up(op, addr, u64(comparison), bits_of(value), bits_of(found), deadline):
                break
        state.relax(op, addr, comparison, bits_of(value))
    acquire(addr, array, found)
    return found


def wait_until(ivar: Any, idx: Any, cmp: Any, value: Any) -> Any:
    """Typing function of wait_until."""
    operands.subscript("wait_until", "ivar", ivar, idx)
    awaitable("wait_until", "ivar", ivar)
    operands.code("wait_until", "cmp", cmp, Comparison)
    operands.integer("wait_until", "value", value)
    return _waiting("wait_until", ivar, returns=False)


def signal_wait_until(sig: Any, idx: Any, cmp: Any, value: Any) -> Any:
    """Typing function of signal_wait_until."""
    signal.word("signal_wait_until", sig)
    operands.subscript("signal_wait_until", "sig", sig, idx)
    operands.code("signal_wait_until", "cmp", cmp, Comparison)
    operands.integer("signal_wait_until", "value", value)
    return _waiting("signal_wait_until", sig, returns=True)


def awaitable(function: str, name: str, array: Any) -> None:
    """Reject elements of a type that waits do not support."""
    operands.computable(function, array.dtype)
    if not isinstance(array.dtype, types.Integer) or element_size(array.dtype) < 2:
        refuse("awaited", function=function, name=name, dtype=array.dtype)


def _waiting(name: str, array: Any, *, returns: bool) -> Any:
    check, op, nbytes, dtype = operands.checking(), operation.number(name), element_size(array.dtype), caster(array.dtype)
    settle = transport.settle()

    @device
    def element(array, idx, cmp, value):
        addr = address_of_element(array, idx)
        if check:
            if not state.valid_element(op, state.my_pe(), array, idx, addr, u64(nbytes)):
                return dtype(value)
            if not state.valid_code(op, state.my_pe(), addr, cmp, COMPARISONS):
                return dtype(value)
        found = wait(u64(op), addr, array, cmp, dtype(value))
        settle(u64(op))
        return found

    if returns:

        def body(sig, idx, cmp, value):
            return element(sig, idx, cmp, value)

        return body

    def body_without_value(ivar, idx, cmp, value):
        element(ivar, idx, cmp, value)

    return body_without_value


def quiet() -> Any:
    """Typing function of quiet."""
    complete = transport.current().quiet

    def body():
        complete()

    return body


def quiet_pe(pe: Any) -> Any:
    """Typing function of quiet_pe."""
    operands.integer("quiet_pe", "pe", pe)
    complete, check, op = transport.current().quiet_pe, operands.checking(), operation.number("quiet_pe")

    def body(pe):
        if check:
            if not state.valid_pe(op, pe, u64(0), u64(0)):
                return
        complete(pe)

    return body


def flush() -> Any:
    """Typing function of flush."""
    release = transport.current().flush

    def body():
        release()

    return body


def fence() -> Any:
    """Typing function of fence."""
    order = transport.current().fence

    def body():
        order()

    return body
