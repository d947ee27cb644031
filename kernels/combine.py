"""New values of atomic updates that a path performs by compare-and-swap, because it has no instruction or request for them."""

import functools
from typing import Any

from pgas.kernels.codes import Update
from pgas.kernels.compiler import caster, device

__all__ = ["combine"]


@functools.cache
def combine(update: Update, dtype: Any) -> Any:
    """Make ``combine(old, value)``: the new value of an element of type dtype."""
    cast = caster(dtype)

    @device
    def add(old, value):
        return cast(old + cast(value))

    @device
    def least(old, value):
        return old if old < cast(value) else cast(value)

    @device
    def greatest(old, value):
        return old if old > cast(value) else cast(value)

    @device
    def both(old, value):
        return cast(old & cast(value))

    @device
    def either(old, value):
        return cast(old | cast(value))

    @device
    def differing(old, value):
        return cast(old ^ cast(value))

    @device
    def replaced(old, value):
        return value

    return {
        Update.ADD: add, Update.MIN: least, Update.MAX: greatest, Update.AND: both, Update.OR: either, Update.XOR: differing,
        Update.SWAP: replaced,
    }[update]  # fmt: skip
