"""Atomics on elements over a NIC. A NIC has atomics only on words of 4 and 8 bytes, adds only integers, and has no minimum or maximum."""

from typing import Any

from pgas.kernels import operation, state
from pgas.kernels.codes import Update
from pgas.kernels.combine import combine
from pgas.kernels.compiler import constant, device, element_of_word, element_size, element_words, ptx, types
from pgas.kernels.refusals import refuse

_TIMED_OUT, _EQ = constant(state.TIMED_OUT), constant(0)


def atomic(name: str, update: Update, dtype: Any, load: Any, change: Any, *, fetch: bool) -> Any:
    """Make ``atomic(addr, array, value, compare, pe)`` of a path. It returns the old value if ``fetch``, otherwise None.

    Args:
        name: name of the operation, for errors.
        update: kind of update.
        dtype: dtype of the elements.
        load: g() of the path.
        change: ``change(name, update, size, fetch=)`` makes the path's ``change(addr, word, compare, pe)``.
        fetch: whether the old value is returned.
    """
    if element_size(dtype) not in (4, 8):
        refuse("narrow atomic", function=name, dtype=dtype)
    if update in (Update.MIN, Update.MAX) or (isinstance(dtype, types.Float) and update is Update.ADD):
        swap = change(name, Update.COMPARE_SWAP, element_size(dtype), fetch=True)
        return _by_compare_swap(name, combine(update, dtype), load(dtype), swap, fetch=fetch)
    perform = change(name, update, element_size(dtype), fetch=fetch)
    if fetch:

        @device
        def atomic(addr, array, value, compare, pe):
            word, _ = element_words(array, value)
            expected, _ = element_words(array, compare)
            return element_of_word(array, perform(addr, word, expected, pe))

    else:

        @device
        def atomic(addr, array, value, compare, pe):
            word, _ = element_words(array, value)
            perform(addr, word, word, pe)

    return atomic


def _by_compare_swap(name: str, new: Any, load: Any, compare_swap: Any, *, fetch: bool) -> Any:
    """Make an update that the NIC lacks: compare-and-swap until it succeeds or PGAS_TIMEOUT has passed. new: see combine()."""
    op = constant(operation.number(name))

    @device
    def change(addr, array, value, pe):
        deadline = ptx.globaltimer() + state.timeout_ns()
        old = load(addr, array, pe, 0)
        while True:
            expected, _ = element_words(array, old)
            word, _ = element_words(array, new(old, value))
            seen = compare_swap(addr, word, expected, pe)
            if seen == expected:
                return old
            if state.given_up(_TIMED_OUT, op, addr, _EQ, expected, seen, deadline):
                return old
            old = element_of_word(array, seen)

    if fetch:

        @device
        def atomic(addr, array, value, compare, pe):
            return change(addr, array, value, pe)

    else:

        @device
        def atomic(addr, array, value, compare, pe):
            change(addr, array, value, pe)

    return atomic
