"""Atomic addition of floats through a NIC, which adds integers only: compare-and-swap until nobody came between."""

from typing import Any

from pgas.kernels import ptx, state
from pgas.kernels.compiler import caster, constant, device, element_of_word, element_words

_POISON, _SOUND = constant(state.POISON), constant(state.SOUND)


def atomic_fetch_add(dtype: Any, load: Any, compare_swap: Any) -> Any:
    """Make ``atomic_fetch_add(addr, array, value, pe)`` of a float dtype from a transport's g and compare_swap.

    Args:
        dtype: float32 or float64.
        load: the transport's g of that dtype.
        compare_swap: ``compare_swap(addr, compare, swap, pe)`` returns the old word; words hold the bits of an element.
    """
    cast = caster(dtype)

    @device
    def atomic_fetch_add(addr, array, value, pe):
        old = load(addr, array, pe, 0)
        while True:
            compare, _ = element_words(array, old)
            swap, _ = element_words(array, cast(old + cast(value)))
            seen = compare_swap(addr, compare, swap, pe)
            if seen == compare or ptx.ld_relaxed_sys_u64(_POISON) != _SOUND:
                return old
            old = element_of_word(array, seen)

    return atomic_fetch_add
