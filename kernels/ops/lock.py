"""Locks (OpenSHMEM 1.5, "Distributed Locking Routines"): ticket locks, which threads acquire in the order in which they requested them.

The lock is one word of 8 bytes on one PE. Its upper half counts how often the lock has been cleared; its lower half counts the threads that
hold the lock or wait for it. To request the lock, a thread adds 1. The previous sum of both halves is its ticket, and it holds the lock
when the upper half equals the ticket. Clearing adds CLEAR, which is 1 for the upper half and -1 for the lower one, so that neither half
ever overflows into the other.
"""

from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.codes import Update
from pgas.kernels.compiler import address_of_element, constant, device, element_size, ptx, types, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.sync import given_up
from pgas.kernels.paths import transport
from pgas.kernels.refusals import kind_of, refuse
from pgas.kernels.window import remote

#: Number added to a lock word to clear it.
CLEAR = 0xFFFF_FFFF

_0, _1, _3, _32, _CLEAR = (constant(value) for value in (0, 1, 3, 32, CLEAR))
_EQ, _NOT_SET = constant(0), constant(kind_of("not set"))


@device
def owner(addr):
    """Return the PE with the word of the lock at addr. It depends on the offset, so that the locks of an array are distributed."""
    return u32((addr & window.OFFSET_MASK) >> _3) % state.n_pes()


def _checks(name: str, lock: Any, idx: Any) -> Any:
    """Check the operand types and make ``valid(lock, idx, addr)``."""
    operands.subscript(name, "lock", lock, idx)
    if not isinstance(lock.dtype, types.Integer) or element_size(lock.dtype) != 8:
        refuse("lock word", function=name, dtype=lock.dtype)
    check, op = operands.checking(), operation.number(name)

    @device
    def valid(lock, idx, addr):
        if check:
            return state.valid_element(op, state.my_pe(), lock, idx, addr, u64(8))
        return True

    return valid


def _acquire(op: Any) -> Any:
    """Make ``acquire()``: make visible what earlier holders of the lock completed before they cleared it."""
    settle = transport.settle()

    @device
    def acquire():
        ptx.fence_sys()
        settle(op)

    return acquire


def set_lock(lock: Any, idx: Any) -> Any:
    """Typing function of set_lock."""
    valid, path, op = _checks("set_lock", lock, idx), transport.current(), constant(operation.number("set_lock"))
    look = path.atomic("set_lock", Update.KEEP, lock.dtype, fetch=True)
    add, acquire = path.atomic("set_lock", Update.ADD, lock.dtype, fetch=True), _acquire(op)

    def body(lock, idx):
        addr = address_of_element(lock, idx)
        if not valid(lock, idx, addr):
            return
        pe = owner(addr)
        deadline = ptx.globaltimer() + state.timeout_ns()
        word = u64(add(addr, lock, 1, 1, pe))
        ticket, polls = u32(u32(word >> _32) + u32(word)), u32(0)
        while u32(word >> _32) != ticket:
            polls = u32(polls + 1)
            if polls & state.POLLS_MASK == 0:
                if given_up(op, remote(addr, pe), _EQ, u64(ticket), word >> _32, deadline):
                    return
            state.relax(op, addr, _EQ, u64(ticket))
            word = u64(look(addr, lock, 0, 0, pe))
        acquire()

    return body


def test_lock(lock: Any, idx: Any) -> Any:
    """Typing function of test_lock."""
    valid, path, op = _checks("test_lock", lock, idx), transport.current(), constant(operation.number("test_lock"))
    look = path.atomic("test_lock", Update.KEEP, lock.dtype, fetch=True)
    swap, acquire = path.atomic("test_lock", Update.COMPARE_SWAP, lock.dtype, fetch=True), _acquire(op)

    def body(lock, idx):
        addr = address_of_element(lock, idx)
        if not valid(lock, idx, addr):
            return 1
        pe = owner(addr)
        word = u64(look(addr, lock, 0, 0, pe))
        if u32(word) != 0:
            return 1
        if u64(swap(addr, lock, word + _1, word, pe)) != word:  # another thread has set it meanwhile
            return 1
        acquire()
        return 0

    return body


def clear_lock(lock: Any, idx: Any) -> Any:
    """Typing function of clear_lock."""
    valid, path, op = _checks("clear_lock", lock, idx), transport.current(), constant(operation.number("clear_lock"))
    complete, check = path.quiet, operands.checking()
    look = path.atomic("clear_lock", Update.KEEP, lock.dtype, fetch=True)
    add = path.atomic("clear_lock", Update.ADD, lock.dtype, fetch=False)

    def body(lock, idx):
        addr = address_of_element(lock, idx)
        if not valid(lock, idx, addr):
            return
        pe = owner(addr)
        complete()
        if check:
            if u32(u64(look(addr, lock, 0, 0, pe))) == 0:
                state.fail(_NOT_SET, op, u64(pe), addr, _0, _0, _0)
                return
        add(addr, lock, _CLEAR, _CLEAR, pe)

    return body
