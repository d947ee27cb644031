"""The host's side of the state page: its initial values, and the messages of error records."""

import ctypes
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from pgas.base import config
from pgas.base.errors import DeviceError, PgasError
from pgas.job.health import calls
from pgas.job.memory.heap import Allocator
from pgas.job.memory.teams import Teams
from pgas.job.paths.choice import Paths
from pgas.kernels import layout, operation, refusals, state, window
from pgas.kernels.codes import SIGNS, Comparison, SignalOp
from pgas.kernels.collectives.comparison import described
from pgas.transports.memory.protocol import Memory
from pgas.transports.nic.protocol import NIC

#: Seconds to wait for the call of another member, whose data has already arrived.
_CALL_S = 0.5

#: Bytes of the table of waiters.
_WAITERS_BYTES = layout.N_WAITERS * layout.WAITER_SIZE


@dataclass(frozen=True)
class Places:
    """The arrays and teams in this PE's slot, and the paths by which PEs reach it, for messages about addresses."""

    heap: Allocator
    teams: Teams
    me: int
    paths: Paths


def setup(memory: Memory, my_pe: int, n_pes: int, heap_size: int, timeout_s: float, near_pes: Sequence[int]) -> None:
    """Write the words that kernels read: this PE's number, the number of PEs, the timeout of waits, the near PEs, the size of the heap."""
    for address, value in ((layout.MY_PE, my_pe), (layout.N_PES, n_pes), (layout.TIMEOUT_NS, int(timeout_s * 1e9))):
        memory.write(address, struct.pack("<Q", value))
    memory.write(layout.HOST_WORDS, struct.pack("<Q", memory.host_words))
    memory.write(layout.NEAR_ROW, struct.pack("<2I", near_pes[0], len(near_pes)))
    memory.write(layout.NEAR_BITS, sum(1 << pe for pe in near_pes if pe < layout.MAX_PES).to_bytes(layout.MAX_PES // 8, "little"))
    set_heap_size(memory, heap_size)


def set_heap_size(memory: Memory, nbytes: int) -> None:
    """Set the size of the heap for kernels launched from now on."""
    memory.write(layout.HEAP_SIZE, struct.pack("<Q", nbytes))


def _set_alarm(memory: Memory, value: int) -> None:
    memory.write(memory.host_words + layout.ALARM, struct.pack("<Q", value))


def poison(memory: Memory) -> None:
    """End the waits of running kernels, because the host has aborted the job."""
    if memory.host_words == 0:  # after close()
        return
    _set_alarm(memory, state.LOST)
    memory.write(layout.POISON, struct.pack("<Q", state.LOST))


def reset(memory: Memory) -> None:
    """Clear the error and the waiters. No kernel may run."""
    memory.fill(layout.WAITERS, _WAITERS_BYTES, 0)
    memory.fill(layout.POISON, layout.ERROR + layout.ERROR_RECORD.size - layout.POISON, 0)
    _set_alarm(memory, state.SOUND)


def alarmed(memory: Memory) -> bool:
    """Whether the state may be poisoned. This needs no copy from the GPU, which would take longer than the rest of a synchronize."""
    words = memory.host_words  # 0 after close()
    return words == 0 or ctypes.c_uint64.from_address(words + layout.ALARM).value != 0


def poisoned(memory: Memory) -> bool:
    """Whether a kernel found an error, or the host has aborted the job."""
    return memory.read(layout.POISON, 8) != struct.pack("<Q", state.SOUND)


def check(memory: Memory, places: Places, my_pe: int, nic: NIC | None = None, given_up: str = "") -> None:
    """Raise the error of a kernel of this PE, or an error if the host has aborted the job (given_up: the reason).

    Raises:
        DeviceError: if the state is poisoned; the message gives operation, PE, array element, expected and last value, block, and thread.
        CompletionError: if a WQE failed.
        PgasError: if nic.check() found an error.
    """
    poison = state.SOUND
    if alarmed(memory):
        (poison,) = struct.unpack("<Q", memory.read(layout.POISON, 8))
    if poison == state.FAILED:
        raise first_error(memory, places, my_pe, nic)
    if nic is not None and poison in (state.SOUND, state.LOST):
        nic.check()
    if poison == state.LOST:
        raise DeviceError(f"the job was given up earlier ({given_up or 'by its host'}): pgas.reset() makes it usable again")
    if poison != state.SOUND:
        raise DeviceError("a kernel found an error but ended before it had recorded it: pgas.reset() makes the job usable again")


def recorded(memory: Memory) -> bool:
    """Whether a kernel recorded an error."""
    return memory.read(layout.POISON, 8) == struct.pack("<Q", state.FAILED)


def timed_out(memory: Memory) -> bool:
    """Whether a kernel recorded a wait that lasted too long."""
    return recorded(memory) and struct.unpack("<Q", memory.read(layout.ERROR, 8))[0] in _WAITS


def first_error(memory: Memory, places: Places, my_pe: int, nic: NIC | None) -> PgasError:
    """Return the error that a kernel recorded."""
    record = layout.ERROR_RECORD.unpack(memory.read(layout.ERROR, layout.ERROR_RECORD.size))
    if record[0] == state.COMPLETION and nic is not None:
        return nic.failure(record[3], _who(record, my_pe))
    (n_pes,) = struct.unpack("<Q", memory.read(layout.N_PES, 8))
    kind, op, _, address, wanted, found, *_ = record
    text, teams, name = describe(record, places, my_pe, n_pes, nic), places.teams, operation.NAMES[op]
    if kind != refusals.kind_of("other call"):
        note = calls.of_wait(teams, address, wanted) if kind == state.TIMED_OUT else ""
        text += note or calls.of_error(teams, name)
    elif not found and (note := calls.of_error(teams, name, _CALL_S)):  # The kernel did not find the other call, but it has arrived since.
        text = f"{_who(record, my_pe)}: {note.removeprefix('; ')}"
    return DeviceError(text)


def describe(record: tuple[int, ...], places: Places, my_pe: int, n_pes: int, nic: NIC | None = None) -> str:
    """Return the message of an error record."""
    kind, op, pe, address, wanted, found, comparison, *_ = record
    who, name = _who(record, my_pe), operation.NAMES[op]
    if kind in _WAITS:
        known = kind == state.TIMED_OUT and places.teams.writer(address) is not None
        writer = f": {_writer(kind, op, address, places)}" if known or places.paths.two else ""
        return f"{who} waited {config.read('PGAS_TIMEOUT'):g} s (PGAS_TIMEOUT) for {_goal(record, places, nic)}{writer}"
    if kind == refusals.kind_of("misfit") and wanted == state.NEGATIVE:
        return refusals.message("negative part", who=who, operand=operation.operand(name, comparison))
    row = next(row for row in refusals.TABLE.values() if row.kind == kind)
    values = {"who": who, "target": place(address, places), "last": n_pes - 1}
    for meaning, word in ((row.pe, pe), (row.wanted, wanted), (row.found, found), (row.comparison, comparison)):
        values |= _VALUES[meaning](word, name, places) if meaning in _VALUES else {meaning: _integer(word, None)}
    if row.found == "theirs":
        values["theirs"] = described(found, wanted)
    return row.message.format(**values)


def _codes(count: int, *_: object) -> dict[str, object]:
    codes: type[IntEnum] = SignalOp if count == len(SignalOp) else Comparison
    return {"name": "op" if codes is SignalOp else "cmp", "allowed": refusals.choices(codes)}


#: By meaning of a word of the record (refusals.Refusal), a function that returns values for the message from the word and the name of the
#: operation. All other words are numbers, by the names that they have in the message.
_VALUES: dict[str, Callable[[int, str, Places], dict[str, object]]] = {
    "peer": lambda pe, name, _: {"peer": f"{operation.preposition(name)} PE {pe}"},
    "far": lambda pe, _, places: {"pe": pe, "why": places.paths.why(places.me, pe)},
    "nbytes": lambda nbytes, *_: {"nbytes": nbytes},
    "limit": lambda limit, *_: {"last": limit - 1},
    "codes": _codes,
    "order": lambda of_dest, *_: {"dest": "CF"[of_dest - 1], "source": "FC"[of_dest - 1]},
    "axis": lambda axis, name, _: {"operand": operation.operand(name, operation.ELEMENT), "axis": axis},
    "mine": lambda word, *_: {"mine": described(word)},
    "theirs": lambda word, *_: {"theirs": described(word)},
    "local": lambda _, name, __: {"operand": operation.operand(name, operation.LOCAL)},
    "operand": lambda word, name, _: {
        "operand": operation.operand(name, word & (1 << state.AXIS_SHIFT) - 1),
        "axis": word >> state.AXIS_SHIFT,
    },
}


def _who(record: tuple[int, ...], my_pe: int) -> str:
    return f"PE {my_pe}, block {record[7]}, thread {record[8]}: {operation.NAMES[record[1]]}"


#: Kinds of records of waits.
_WAITS = (state.TIMED_OUT, state.NIC_TIMED_OUT)


def _goal(record: tuple[int, ...], places: Places, nic: NIC | None) -> str:
    kind, _, _, address, wanted, found, comparison, _, _ = record
    if kind == state.NIC_TIMED_OUT:
        if _is_cell(address) or nic is None:
            return "a landing cell: all are in use"
        return f"index {wanted} of {nic.name_of(address)}, which is at {found}{nic.trouble()}"
    if operation.NAMES[record[1]] == "set_lock":
        owner, before = (address - window.BASE) >> window.STRIDE_SHIFT, (wanted - found) & 0xFFFF_FFFF
        return f"the lock, {place(address, places)} on PE {owner}; threads that asked for it earlier and have not cleared it: {before}"
    sign, target, name = SIGNS.get(comparison, f"cmp {comparison}"), place(address, places), operation.NAMES[record[1]]
    target = f"one of its wait set, such as {target}," if "_any" in name or "_some" in name else target
    return f"{target} {sign} {_value(wanted, address, places)}, last saw {_value(found, address, places)}"


def _is_cell(address: int) -> bool:
    return layout.CELL_TAKEN <= address < layout.CELL_TAKEN + layout.WORD * layout.N_CELLS


# ------------------------------------------------------------------------------------------------------------------------- waiters

#: Seconds to wait for the first answer, and seconds without a further answer after which the answers count as complete. The second limit
#: allows for a busy machine, because the simulator's blocks answer one after the other.
_ANSWER_S, _SILENCE_S = 0.5, 0.25


@dataclass(frozen=True)
class Waiter:
    """A waiting thread of this PE."""

    block: int
    thread: int
    operation: str
    goal: str  #: array element or queue, condition, last value read
    waited_s: float
    writer: str  #: what is expected to end the wait


def waiters(memory: Memory, places: Places, my_pe: int, n_pes: int, nic: NIC | None, timeout_s: float) -> list[Waiter]:
    """Query the waiting threads of running kernels, at most layout.N_WAITERS of them, and return their answers.

    After an error in a kernel, return the threads that waited at that time.
    """
    if not poisoned(memory):
        memory.fill(layout.WAITERS, _WAITERS_BYTES, 0)
        memory.write(layout.ASKED, struct.pack("<Q", 1))
    _await_answers(memory)
    memory.write(layout.ASKED, struct.pack("<Q", 0))
    found = []
    for record in _answers(memory):
        _, op, overdue, address, wanted, _, _, block, thread = record
        waited_s = max(0.0, timeout_s + _integer(overdue, None) * 1e-9)
        writer = _writer(record[0], op, address, places) + calls.of_wait(places.teams, address, wanted)
        found.append(Waiter(block, thread, operation.NAMES[op], _goal(record, places, nic), waited_s, writer))
    if not poisoned(memory):  # So that the waiters of a later error find free entries.
        memory.fill(layout.WAITERS, _WAITERS_BYTES, 0)
        _set_alarm(memory, state.SOUND)
        if poisoned(memory):  # by a kernel meanwhile, which has changed POISON before ALARM
            _set_alarm(memory, state.FAILED)
    return sorted(found, key=lambda waiter: (waiter.block, waiter.thread))


def _await_answers(memory: Memory) -> None:
    count, until = 0, time.monotonic() + _ANSWER_S
    while time.monotonic() < until:
        time.sleep(0.01)
        if (answered := len(_answers(memory))) > count:
            count, until = answered, time.monotonic() + _SILENCE_S


def _answers(memory: Memory) -> list[tuple[int, ...]]:
    table = memory.read(layout.WAITERS, _WAITERS_BYTES)
    entries = range(0, len(table), layout.WAITER_SIZE)
    written = (at for at in entries if struct.unpack_from("<Q", table, at + layout.WAITER_STATE)[0] == state.FAILED)
    return [layout.ERROR_RECORD.unpack_from(table, at + layout.WAITER_RECORD) for at in written]


def _writer(kind: int, op: int, address: int, places: Places) -> str:
    if kind == state.NIC_TIMED_OUT:
        over = f", over {places.paths.far}," if places.paths.two else ""
        return "threads that hold one give it back" if _is_cell(address) else f"the NIC{over} completes it"
    if operation.NAMES[op] == "set_lock":
        return "the thread that holds it clears it"
    by = places.teams.writer(address)
    return f"any PE may write it{places.paths.ways_to(places.me)}" if by is None else _comes(by, places)


def _comes(pe: int, places: Places) -> str:
    over = f", over {places.paths.between(pe, places.me)}," if places.paths.two else ""
    return f"PE {pe} writes it{over} when it comes there"


def place(address: int, places: Places) -> str:
    """Describe an address: an array's element, or a word of team memory."""
    offset = (address & ((1 << window.STRIDE_SHIFT) - 1)) - window.HEAP_OFFSET
    if address >= window.BASE and (found := places.heap.find(offset)) is not None:
        return f"element {found.element(offset)} of the {found}"
    return places.teams.place(address) or f"address {address:#x}"


def _value(word: int, address: int, places: Places) -> str:
    found = places.heap.find((address & ((1 << window.STRIDE_SHIFT) - 1)) - window.HEAP_OFFSET)
    if found is None and places.teams.counts_chunks(address):
        return f"{word >> layout.CHUNK_SHIFT} (chunk {word & ((1 << layout.CHUNK_SHIFT) - 1)})"
    return str(_integer(word, None if found is None else found.dtype))


def _integer(word: int, dtype: np.dtype | None) -> int:
    """Return a word as a signed number if dtype is signed, or if there is no dtype, because -1 is more likely than 2^64 - 1."""
    signed = dtype is None or dtype.kind == "i"
    return word - (1 << 64) if signed and word >> 63 else word
