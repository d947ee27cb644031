"""The host's side of the state page: what init writes into it, and what an error record says in words."""

import struct

import numpy as np

from pgas.errors import DeviceError
from pgas.heap import Allocator
from pgas.kernels import operation, state, window
from pgas.kernels.sync import Comparison
from pgas.transports.memory import Memory

__all__ = ["check", "poison", "setup"]

_SIGNS = {Comparison.EQ: "==", Comparison.NE: "!=", Comparison.GT: ">", Comparison.LE: "<=", Comparison.LT: "<", Comparison.GE: ">="}


def setup(memory: Memory, my_pe: int, n_pes: int, heap_size: int, timeout_s: float) -> None:
    """Write what kernels read: who this PE is, how many there are, how long a wait may last, how large the heap is."""
    for address, value in (
        (state.MY_PE, my_pe),
        (state.N_PES, n_pes),
        (state.TIMEOUT_NS, int(timeout_s * 1e9)),
        (state.HEAP_SIZE, heap_size),
    ):
        memory.write(address, struct.pack("<Q", value))


def poison(memory: Memory) -> None:
    """Make waits in running kernels end: the host has given the job up."""
    memory.write(state.POISON, struct.pack("<Q", state.LOST))


def check(memory: Memory, heap: Allocator, my_pe: int) -> None:
    """Raise what a kernel of this PE found wrong.

    Raises:
        DeviceError: the state is poisoned; the text gives operation, PE, array element, expected and found, block and thread.
    """
    (poison,) = struct.unpack("<Q", memory.read(state.POISON, 8))
    if poison == state.FAILED:
        raise DeviceError(describe(struct.unpack("<9Q", memory.read(state.ERROR, 72)), heap, my_pe))


def describe(record: tuple[int, ...], heap: Allocator, my_pe: int) -> str:
    """Return an error record in words."""
    kind, op, pe, address, wanted, found, comparison, block, thread = record
    name = operation.NAMES[op]
    target = _place(address, heap)
    who = f"PE {my_pe}, block {block}, thread {thread}: {name}"
    if kind == state.TIMED_OUT:
        dtype = _dtype(address, heap)
        return (
            f"{who} waited {_timeout()} s (PGAS_TIMEOUT) for {target} {_SIGNS[Comparison(comparison)]} {_integer(wanted, dtype)}, "
            f"last saw {_integer(found, dtype)}"
        )
    if kind == state.BAD_PE:
        return f"{who}: PE {_integer(pe, None)} does not exist"
    if kind == state.TOO_LONG:
        return f"{who} to or from PE {pe}: {_integer(wanted, None)} elements wanted, but an operand has {found} ({target})"
    return f"{who} to or from PE {pe}: {wanted} bytes at {target} are not on the symmetric heap"


def _timeout() -> str:
    from pgas import config

    return f"{config.read('PGAS_TIMEOUT'):g}"


def _place(address: int, heap: Allocator) -> str:
    offset = (address & ((1 << window.STRIDE_SHIFT) - 1)) - window.HEAP_OFFSET
    if address >= window.BASE and (found := heap.find(offset)) is not None:
        return f"element {found.element(offset)} of the {found}"
    if address >= window.BASE and 0 <= offset + window.HEAP_OFFSET < window.SYSTEM_SIZE:
        return f"flag {(offset + window.HEAP_OFFSET - window.SYNC_FLAGS) // 8} of the barrier"
    return f"address {address:#x}"


def _dtype(address: int, heap: Allocator) -> np.dtype | None:
    found = heap.find((address & ((1 << window.STRIDE_SHIFT) - 1)) - window.HEAP_OFFSET)
    return None if found is None else found.dtype


def _integer(word: int, dtype: np.dtype | None) -> int:
    """A word as the signed number that it most likely is: by dtype, or -1 rather than 2^64 - 1 where there is none."""
    signed = dtype is None or dtype.kind == "i"
    return word - (1 << 64) if signed and word >> 63 else word
