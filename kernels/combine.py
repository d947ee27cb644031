"""New values of atomic updates that a path performs by compare-and-swap, because it has no instruction or request for them."""

import functools
from typing import Any

from pgas.kernels.codes import Update
from pgas.kernels.compiler import caster, device


@functools.cache
def combine(update: Update, dtype: Any) -> Any:
    """Make ``combine(old, value)``: the new value of an element of type dtype."""
    cast = caster(dtype)

    forms: dict[Update, Any] = {
        Update.ADD: lambda old, value: cast(old + cast(value)),
        Update.MIN: lambda old, value: old if old < cast(value) else cast(value),
        Update.MAX: lambda old, value: old if old > cast(value) else cast(value),
        Update.AND: lambda old, value: cast(old & cast(value)),
        Update.OR: lambda old, value: cast(old | cast(value)),
        Update.XOR: lambda old, value: cast(old ^ cast(value)),
        Update.SWAP: lambda old, value: value,
    }
    return device(forms[update])
