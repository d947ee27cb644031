"""The engine's primitives on a CPU, those of hostloop/memory_ops.py: for its thread, and for kernels in the simulator."""

import functools
from typing import Any

from pgas.base import config
from pgas.native.cpu import compile_now as compile_now
from pgas.transports.hostloop.compiled import device
from pgas.transports.hostloop.memory_ops import *  # noqa: F403
from pgas.transports.hostloop.memory_ops import add, compare_swap, compare_swap_u32, fence, load, store, store_data, store_release

RECEIVES, DELAYS_DATA, ORDERED_UPDATES = config.read("PGAS_ENGINE") != "cuda", True, True
THREADS = DMA_THREADS = 64
COMPILED: dict[str, Any] = {}
DMA_COMPILED = COMPILED

add_relaxed, compare_swap_relaxed, compare_swap_relaxed_u32 = add, compare_swap, compare_swap_u32


def _fence() -> int:
    fence()
    return 0


@functools.cache
def for_kernel(primitive: Any) -> Any:
    """Return a compiled function, because kernels are Python."""
    if primitive is fence:
        return device(_fence)
    if primitive in (store, store_data, store_release, add):
        return device(lambda address, value: primitive(address, value))
    if primitive in (compare_swap, compare_swap_u32):
        return device(lambda address, expected, value: primitive(address, expected, value))
    return device(lambda address: primitive(address))


def of_kernel(function: Any) -> Any:
    """Return the function itself, because kernels are Python."""
    return function


def fetch(place: int, address: int) -> None:
    """Copy 16 bytes."""
    for_kernel(store)(place, for_kernel(load)(address))
    for_kernel(store)(place + 8, for_kernel(load)(address + 8))


def fetched() -> None:
    """Do nothing, because the copies have been made."""
