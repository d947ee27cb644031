"""The host's side of the state page: what init writes into it, and what an error record says in words."""

import struct
from enum import IntEnum

import numpy as np

from pgas.errors import DeviceError, PgasError
from pgas.heap import Allocator
from pgas.kernels import operation, queue, state, window
from pgas.kernels.signal import SignalOp
from pgas.kernels.sync import Comparison
from pgas.transports.memory import Memory
from pgas.transports.nic import NIC

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


def poisoned(memory: Memory) -> bool:
    """Whether a kernel found an error, or the host has given the job up."""
    return memory.read(state.POISON, 8) != struct.pack("<Q", state.SOUND)


def check(memory: Memory, heap: Allocator, my_pe: int, nic: NIC | None = None, given_up: str = "") -> None:
    """Raise what a kernel of this PE found wrong, and that the host has given the job up (given_up: why).

    Raises:
        DeviceError: the state is poisoned; the text gives operation, PE, array element, expected and found, block and thread.
        CompletionError: a WQE failed.
        PgasError: nic.check() found something.
    """
    (poison,) = struct.unpack("<Q", memory.read(state.POISON, 8))
    if poison == state.FAILED:
        record = struct.unpack("<9Q", memory.read(state.ERROR, 72))
        if record[0] in (state.NIC_TIMED_OUT, state.COMPLETION) and nic is not None:
            raise _nic_error(record, my_pe, nic)
        raise DeviceError(describe(record, heap, my_pe))
    if nic is not None and poison in (state.SOUND, state.LOST):
        nic.check()
    if poison == state.LOST:
        raise DeviceError(f"the job was given up earlier ({given_up or 'by its host'}): start a new one")
    if poison != state.SOUND:
        raise DeviceError("a kernel found an error but ended before it had written which: start a new job")


def describe(record: tuple[int, ...], heap: Allocator, my_pe: int) -> str:
    """Return an error record in words."""
    kind, op, pe, address, wanted, found, comparison, block, thread = record
    name = operation.NAMES[op]
    target = _place(address, heap)
    who = f"PE {my_pe}, block {block}, thread {thread}: {name}"
    if kind == state.TIMED_OUT:
        dtype = _dtype(address, heap)
        target = f"one of its wait set, such as {target}," if "_any" in name or "_some" in name else target
        return (
            f"{who} waited {_timeout()} s (PGAS_TIMEOUT) for {target} {_SIGNS[Comparison(comparison)]} {_integer(wanted, dtype)}, "
            f"last saw {_integer(found, dtype)}"
        )
    if kind == state.NOT_REGISTERED:
        local = f"the local operand, {wanted} bytes at {target}"
        return f"{who} to or from PE {pe}: {local}, is not on the symmetric heap, which is all that the NIC reaches"
    if kind == state.BAD_PE:
        return f"{who}: PE {_integer(pe, None)} does not exist"
    if kind == state.OUT_OF_RANGE:
        return f"{who} to or from PE {pe}: idx is {_integer(wanted, None)} on axis {comparison} of an array that has {found} there"
    if kind == state.BAD_CODE:
        codes: type[IntEnum] = SignalOp if found == len(SignalOp) else Comparison
        what, names = "op" if codes is SignalOp else "cmp", ", ".join(f"{c.name} ({c.value})" for c in codes)
        return f"{who}: {what} must be one of {names}, not {_integer(wanted, None)}"
    if kind == state.BAD_QP:
        numbers = f"1 to {found} (PGAS_IBGDA_NUM_RC_PER_PE), or 0 for the one of PGAS_IBGDA_RC_MAP_BY"
        return f"{who} to or from PE {pe}: qp must be {numbers}, not {_integer(wanted, None)}"
    if kind == state.BAD_STRIDE:
        return f"{who} to or from PE {pe}: strides must be 1 or more, not {_integer(wanted, None)}"
    if kind == state.TOO_LONG:
        return f"{who} to or from PE {pe}: {_integer(wanted, None)} elements wanted, but an operand has {found} ({target})"
    return f"{who} to or from PE {pe}: {wanted} bytes at {target} are not on the symmetric heap"


def _nic_error(record: tuple[int, ...], my_pe: int, nic: NIC) -> PgasError:
    """The error of a wait on a queue, or of a WQE."""
    kind, op, _, address, wanted, found, _, block, thread = record
    who = f"PE {my_pe}, block {block}, thread {thread}: {operation.NAMES[op]}"
    if kind == state.COMPLETION:
        return nic.failure(address, who)
    if queue.CELL_TAKEN <= address < queue.CELL_TAKEN + 8 * queue.N_CELLS:
        return DeviceError(f"{who} waited {_timeout()} s (PGAS_TIMEOUT) for a landing cell: all are in use")
    return DeviceError(f"{who} waited {_timeout()} s (PGAS_TIMEOUT) for index {wanted} of {nic.name_of(address)}, which is at {found}")


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
