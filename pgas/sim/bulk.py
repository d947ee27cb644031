"""CPU twins of bulk copies: cp.async.bulk between global and shared memory, with mbarriers and bulk groups.

They are performed as late as a GPU may perform them. A load lands when its mbarrier is awaited. A store reads shared memory when its group
is awaited for reading, and writes when it is awaited for completion. A program, or a pipeline, that does not wait therefore always gets
the wrong bytes. The word of an mbarrier is the number of its completed phases.
"""

import ctypes
from typing import Any

from pgas.sim import engine, mem
from pgas.sim.weak import WINDOW

#: By mbarrier: the load on its way, which is (destination, source, bytes).
_loads: dict[int, tuple[int, int, int]] = {}
#: By thread: its stores, each a list of (destination, source or bytes, number of bytes).
_stores: dict[Any, list[tuple[int, Any, int]]] = {}


def is_shared(addr: int) -> int:
    """Whether an address may be in shared memory, which is not in the slots of PEs."""
    return int(not WINDOW[0] <= addr < WINDOW[1])


def init(barrier: int) -> None:
    """Initialize an mbarrier; a load that was never awaited, of a kernel that failed, is forgotten."""
    _loads.pop(barrier, None)
    mem.store(barrier, 0, 8)


def load(dst: int, src: int, nbytes: int, barrier: int) -> None:
    """Start a load into shared memory, which completes a phase of the mbarrier."""
    _loads[barrier] = dst, src, nbytes


def landed(barrier: int, parity: int) -> int:
    """Whether the phase of this parity is complete (mbarrier.try_wait.parity)."""
    if barrier in _loads:
        dst, src, nbytes = _loads.pop(barrier)
        mem.copy_strided(dst, src, 0, nbytes // 16, 1, 16)
        mem.store(barrier, mem.load(barrier, 8) + 1, 8)
    return int(mem.load(barrier, 8) & 1 != parity)


def store(dst: int, src: int, nbytes: int) -> None:
    """Start a store from shared memory, in a group of its own."""
    _stores.setdefault(engine.current(), []).append((dst, src, nbytes))


def wait_read(pending: int) -> None:
    """Let all stores of this thread but the last ``pending`` read shared memory."""
    stores = _stores.get(engine.current(), [])
    for i, (dst, src, nbytes) in enumerate(stores[: len(stores) - pending]):
        if isinstance(src, int):
            stores[i] = dst, ctypes.create_string_buffer(ctypes.string_at(src, nbytes), nbytes), nbytes


def wait_all() -> None:
    """Complete all stores of this thread."""
    wait_read(0)
    for dst, data, nbytes in _stores.pop(engine.current(), []):
        mem.copy_strided(dst, ctypes.addressof(data), 0, nbytes // 16, 1, 16)
