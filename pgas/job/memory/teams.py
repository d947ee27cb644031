"""Teams of this PE: their members, their entries for kernels, and their parts of team memory (kernels/layout.py)."""

import functools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgas.base.config import size_text
from pgas.base.errors import HeapError, PgasError
from pgas.job.paths.platform import platform
from pgas.kernels import layout, window
from pgas.transports.memory.protocol import Memory, whole_pages

#: Names of the predefined teams, by number. The order is NVSHMEM's.
PREDEFINED = ("TEAM_WORLD", "TEAM_SHARED", "TEAM_NODE", "TEAM_SAME_LOCAL")
WORLD, SHARED, NODE, SAME_LOCAL = range(len(PREDEFINED))

#: Maximum number of team memory units, because the bitmap of free units is part of a note (NOTE_BYTES).
_UNITS = 2048

#: Bytes of the note that members exchange when they make a team: hash of the call, free numbers, free units.
HASH_BYTES = 16
NOTE_BYTES = HASH_BYTES + layout.MAX_TEAMS // 8 + _UNITS // 8

#: Initial epoch of a channel; its first collective has the next one.
_EPOCH = 1

#: Default number of teams of all PEs, including the predefined ones, and the bytes that limit it; _FEWEST teams always have room.
_DEFAULT_TEAMS, _DEFAULT_BYTES, _FEWEST = len(PREDEFINED) + 32, 512 << 20, len(PREDEFINED) + 4

#: Number of channels for the host's calls per channel of a team and of a team of two, one for each block of a call (blocks.py), and maximum
#: of their number times that of members, because channels of many members are large.
_HOST_CHANNELS, _OF_TWO, _HOST_PARTS = 4, 8, 256

#: Bytes of a pair of words.
_PAIR_BYTES = 2 * layout.WORD


def _line(nbytes: int) -> int:
    return -(-nbytes // 128) * 128


def _group(groups: Sequence[Sequence[int]], pe: int) -> Sequence[int]:
    return next(pes for pes in groups if pe in pes)


@dataclass(frozen=True)
class Plan:
    """The division of team memory, the same on every PE."""

    n_pes: int
    channels: int  #: PGAS_CHANNELS
    ll_bytes: int  #: PGAS_LL_BYTES
    max_teams: int  #: PGAS_MAX_TEAMS, or its default for this number of PEs

    @classmethod
    def of(cls, n_pes: int, requested: Mapping[str, Any]) -> "Plan":
        """Return the plan of a job's variables.

        Raises:
            HeapError: if team memory does not fit below the heap, or PGAS_LL_BYTES is too small for so many PEs.
        """
        plan = cls(n_pes, requested["PGAS_CHANNELS"], requested["PGAS_LL_BYTES"], requested["PGAS_MAX_TEAMS"] or _FEWEST)
        if requested["PGAS_MAX_TEAMS"] is None:
            room = _DEFAULT_BYTES // plan.most_bytes(n_pes, plan.channels)
            plan = replace(plan, max_teams=max(_FEWEST, min(_DEFAULT_TEAMS, room)))
        if n_pes * _PAIR_BYTES > 2 * plan.ll_bytes:  # In alltoallv and collect, staging has a pair of words for each member.
            least = 1 << (n_pes * _PAIR_BYTES // 2 - 1).bit_length()
            raise HeapError(f"PGAS_LL_BYTES={plan.ll_bytes}: for {n_pes} PEs it must be {least} or more")
        if plan.nbytes > window.HEAP_OFFSET:
            raise HeapError(
                f"teams of {n_pes} PEs take {size_text(plan.nbytes)}, but there is room for only {size_text(window.HEAP_OFFSET)}; choose a "
                f"smaller PGAS_LL_BYTES ({plan.ll_bytes}), PGAS_CHANNELS ({plan.channels}), or PGAS_MAX_TEAMS ({plan.max_teams})"
            )
        return plan

    def staging_offset(self, members: int) -> int:
        return layout.CHANNEL_HEAD + _line(members * layout.ROW_SIZE)

    def channel_bytes(self, members: int) -> int:
        """Return the bytes of a channel of a team: head, rows, and two halves of staging."""
        return self.staging_offset(members) + 2 * members * 2 * self.ll_bytes

    @staticmethod
    def host_channels(members: int, channels: int) -> int:
        """Return the number of channels of a team that only the host's calls use, one for each block of a call."""
        return max(1, min((_OF_TWO if members == 2 else _HOST_CHANNELS) * channels, _HOST_PARTS // members))

    def all_channels(self, members: int, channels: int) -> int:
        return channels + self.host_channels(members, channels)

    def team_bytes(self, members: int, channels: int) -> int:
        """Return the bytes of a team: channels, list of members, notes of members."""
        return self.list_offset(members, channels) + _line(4 * members) + (members + 1) * _line(NOTE_BYTES)

    def most_bytes(self, members: int, channels: int) -> int:
        """Return the maximum number of bytes of a team of up to ``members``. A smaller team has more host channels, and may take more."""
        return max(self.team_bytes(fewer, channels) for fewer in range(1, members + 1))

    def list_offset(self, members: int, channels: int) -> int:
        return self.all_channels(members, channels) * self.channel_bytes(members)

    def notes_offset(self, members: int, channels: int) -> int:
        """Return the offset of the members' notes in a team's memory. This PE's outgoing note follows the last one."""
        return self.list_offset(members, channels) + _line(4 * members)

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of team memory, in whole pages."""
        return whole_pages(self.max_teams * self.most_bytes(self.n_pes, self.channels) + layout.ALL_ROWS_BYTES)

    @property
    def unit(self) -> int:
        unit = 1024
        while unit * _UNITS < self.nbytes:
            unit *= 2
        return unit

    def units(self, members: int, channels: int) -> int:
        """Return the number of units of a team of up to so many members."""
        return -(-self.most_bytes(members, channels) // self.unit)


@dataclass(frozen=True)
class Room:
    """Bitmaps of free team numbers and free units of team memory: bit i set: i is free."""

    numbers: int
    units: int

    def __and__(self, other: "Room") -> "Room":
        return Room(self.numbers & other.numbers, self.units & other.units)

    def first(self, count: int) -> tuple[int, int] | None:
        """Return the first free number and the first of ``count`` consecutive free units, or None if there are none."""
        runs, length = self.units, 1  # Bit i of runs is set if ``length`` units from i on are free.
        while length < count and runs:
            step = min(length, count - length)
            runs &= runs >> step
            length += step
        if not runs or not self.numbers:
            return None
        return (self.numbers & -self.numbers).bit_length() - 1, (runs & -runs).bit_length() - 1

    def note(self, digest: bytes) -> bytes:
        """Return these bitmaps as a note. digest: the hash of the call."""
        return digest + self.numbers.to_bytes(layout.MAX_TEAMS // 8, "little") + self.units.to_bytes(_UNITS // 8, "little")

    @classmethod
    def of(cls, note: bytes) -> "Room":
        numbers, units = note[HASH_BYTES : HASH_BYTES + layout.MAX_TEAMS // 8], note[HASH_BYTES + layout.MAX_TEAMS // 8 :]
        return cls(int.from_bytes(numbers, "little"), int.from_bytes(units, "little"))


@dataclass(frozen=True)
class Record:
    """A team that this PE is a member of."""

    pes: tuple[int, ...]
    channels: int
    first_unit: int
    where: str  #: the line of the program that made it; "" for predefined teams
    near: bool  #: whether every member maps every member's memory
    host_channels: int  #: number of further channels, which only the host's calls use


class Handle(int):
    """A team's number, with the record of the team for which it was made; a predefined team has no record."""

    _record: Record | None = None


def handles(args: tuple[Any, ...]) -> tuple[Handle, ...]:
    """Return the teams among a kernel's arguments, including those in tuples."""
    found: tuple[Handle, ...] = ()
    for argument in args:
        if isinstance(argument, Handle):
            found += (argument,)
        elif isinstance(argument, tuple):
            found += handles(argument)
    return found


class Teams:
    """The teams of a job that this PE is a member of.

    Args:
        memory: this PE's memory, with the slot and the state page mapped.
        groups: all PEs, in groups that map each other's memory.
        nodes: all PEs, in groups of one node each.
    """

    def __init__(self, memory: Memory, me: int, plan: Plan, groups: Sequence[Sequence[int]], nodes: Sequence[Sequence[int]]) -> None:
        self._memory, self._me, self.plan, self._groups = memory, me, plan, groups
        self._near_pes = _group(groups, me)
        self._base = window.slot(me) + window.HEAP_OFFSET - plan.nbytes
        self.records: dict[int, Record] = {}
        self.room = Room((1 << layout.MAX_TEAMS) - 1, (1 << min((plan.nbytes - layout.ALL_ROWS_BYTES) // plan.unit, _UNITS)) - 1)
        self._predefine(nodes)

    def _predefine(self, nodes: Sequence[Sequence[int]]) -> None:
        """Make the predefined teams. They have the same address on every PE, so each has room for its largest size on any PE."""
        node, every = _group(nodes, self._me), range(self.plan.n_pes)
        local = node.index(self._me)
        same = [pes[local] for pes in nodes if local < len(pes)]
        for number, pes, most in (
            (WORLD, every, len(every)),
            (SHARED, self._near_pes, max(map(len, self._groups))),
            (NODE, node, max(map(len, nodes))),
            (SAME_LOCAL, same, len(nodes)),
        ):
            units = self.plan.units(most, self.plan.channels)
            found = self.room.first(units)
            if found is None:
                raise HeapError(f"team memory has no room for the predefined teams of {self.plan.n_pes} PEs: PGAS_MAX_TEAMS is too small")
            self._enter(number, tuple(pes), self.plan.channels, found[1], "", units)
            self._prepare(number)  # Its memory is new, and therefore zero. Filling it would allocate all its pages.

    def add(self, number: int, pes: tuple[int, ...], channels: int, first_unit: int, where: str) -> None:
        """Make a team at a location that is free on all members. No member may use it before all have made it."""
        self._enter(number, pes, channels, first_unit, where, self.plan.units(len(pes), channels))
        self._clear(number)
        self._prepare(number)

    def _enter(self, number: int, pes: tuple[int, ...], channels: int, first_unit: int, where: str, units: int) -> None:
        self.room = Room(self.room.numbers & ~(1 << number), self.room.units & ~((1 << units) - 1 << first_unit))
        near = all(pe in self._near_pes for pe in pes)
        self.records[number] = Record(pes, channels, first_unit, where, near, self.plan.host_channels(len(pes), channels))

    def _clear(self, number: int) -> None:
        """Zero a team's flags and staging."""
        record = self.records[number]
        count = self.plan.all_channels(len(record.pes), record.channels)
        self._memory.fill(self._address(record), count * self.plan.channel_bytes(len(record.pes)), 0)

    def _prepare(self, number: int) -> None:
        """Write a team's first epochs and list of members, and its entry for kernels."""
        record = self.records[number]
        pes, base, size = record.pes, self._address(record), self.plan.channel_bytes(len(record.pes))
        for channel in range(self.plan.all_channels(len(pes), record.channels)):
            self._memory.write(base + channel * size + layout.EPOCH, struct.pack("<Q", _EPOCH))
        listed = base + self.plan.list_offset(len(pes), record.channels)
        self._memory.write(listed, struct.pack(f"<{len(pes)}I", *pes))
        words = {
            layout.TEAM_SIZE: len(pes), layout.TEAM_RANK: pes.index(self._me),
            layout.CHANNEL_BYTES: size, layout.CHANNEL_COUNT: record.channels,
            layout.STAGING_OFFSET: self.plan.staging_offset(len(pes)), layout.TEAM_NEAR: int(record.near),
            layout.TEAM_PER_MACHINE: self._per_group(pes),
        }  # fmt: skip
        entry = layout.TEAMS + number * layout.TEAM_ENTRY
        for offset, value in words.items():
            self._memory.write(entry + offset, struct.pack("<I", value))
        for offset, address in ((layout.TEAM_LIST, listed), (layout.TEAM_CHANNELS, base)):
            self._memory.write(entry + offset, struct.pack("<Q", address))
        platform.read_again()

    def _per_group(self, pes: tuple[int, ...]) -> int:
        """Return the number of members per group if every group has the same number (kernels/collectives/nodes.py), 0 otherwise."""
        numbers = [next(number for number, group in enumerate(self._groups) if pe in group) for pe in pes]
        count = numbers.count(numbers[0])
        groups = numbers[::count]
        regular = numbers == [group for group in groups for _ in range(count)] and len(set(groups)) == len(groups)
        return count if regular else 0

    def _address(self, record: Record) -> int:
        return self._base + record.first_unit * self.plan.unit

    def remove(self, number: int) -> None:
        """Destroy a team that no member uses any more."""
        record = self.records.pop(number)
        self._memory.fill(layout.TEAMS + number * layout.TEAM_ENTRY, layout.TEAM_ENTRY, 0)
        platform.read_again()
        units = (1 << self.plan.units(len(record.pes), record.channels)) - 1 << record.first_unit
        self.room = Room(self.room.numbers | 1 << number, self.room.units | units)

    def reset(self) -> None:
        """Reset all channels after an error; on every PE, while no kernel runs."""
        for number in self.records:
            self._clear(number)
            self._prepare(number)
        self._memory.fill(window.slot(self._me) + layout.ALL_ROWS, layout.ALL_ROWS_BYTES, 0)
        self._memory.fill(layout.ALL_EPOCH, layout.WORD, 0)

    def find(self, number: int) -> Record:
        """Return a team's record. Raises PgasError if it was destroyed, or this PE is not a member."""
        record = self.records.get(number)
        if isinstance(number, Handle) and number._record is not None and number._record is not record:  # It may be another team's number.
            raise PgasError(f"team {int(number)} was destroyed or belongs to an earlier job")
        if record is None:
            raise PgasError(f"team {int(number)} does not exist, or this PE is not a member of it")
        return record

    def check(self, handles: tuple[Handle, ...]) -> None:
        """Raise PgasError if one of these teams, which are arguments of a launch, was destroyed."""
        for handle in handles:
            self.find(handle)

    def notes(self, number: int) -> tuple[int, int]:
        """Return the addresses of the members' notes and of this PE's outgoing note."""
        record = self.find(number)
        notes = self._address(record) + self.plan.notes_offset(len(record.pes), record.channels)
        return notes, notes + len(record.pes) * _line(NOTE_BYTES)

    def unfreed(self) -> str:
        """Return a text with the teams that were not destroyed and the lines that made them; "" if there are none.

        Each team is reported by its first member.
        """
        left = {number: record for number, record in self.records.items() if number >= len(PREDEFINED) and record.pes[0] == self._me}
        lines = [f"{record.where}: team {number} of PEs {listed(record.pes)}" for number, record in left.items()]
        return "\n  ".join([f"{len(left)} team{'s' * (len(left) > 1)} never destroyed:", *lines]) if left else ""

    def place(self, address: int) -> str | None:
        """Describe an address in team memory: a flag or a line of a member; None for other addresses."""
        found = self._locate(address)
        if found is None:
            pe = self._row_of_all(address)
            return None if pe is None else f"the flag of PE {pe} in the barrier of all PEs"
        number, channel, member, what = found
        record = self.records[number]
        on = f"channel {channel}" if channel < record.channels else f"the host's channel {channel - record.channels}"
        return f"the {what} of PE {record.pes[member]} (member {member}) on {on} of {named(number)}, epoch"

    def located(self, address: int) -> tuple[int, int, str] | None:
        """Return team, channel, and kind of the word at an address in a channel of a team; None for other addresses."""
        found = self._locate(address)
        return None if found is None else (found[0], found[1], found[3])

    def calls(self, number: int, channel: int) -> tuple[tuple[int, ...], dict[int, tuple[int, ...]]]:
        """Return the last two calls of this PE on a channel of a team, and those of the next and previous members, by PE (comparison.py).

        The calls are words with their epochs, of even and of odd ones; 0 if there was none. If this PE made none, the others are not read.
        """
        record = self.records[number]
        n, me = len(record.pes), record.pes.index(self._me)
        row = self._address(record) + channel * self.plan.channel_bytes(n) + layout.CHANNEL_HEAD + layout.CALLS

        def calls(member: int) -> tuple[int, ...]:
            return struct.unpack("<2Q", self._memory.read(row + member * layout.ROW_SIZE, 2 * layout.WORD))

        mine = calls(me)
        neighbors = {(me + 1) % n, (me - 1) % n} - {me} if any(mine) else set()
        return mine, {record.pes[member]: calls(member) for member in sorted(neighbors)}

    def counts_chunks(self, address: int) -> bool:
        """Whether the word at an address is a CHUNK: epoch and number of chunks."""
        found = self._locate(address)
        return found is not None and found[3] == "chunk"

    def writer(self, address: int) -> int | None:
        """Return the PE that writes an address in team memory; None for other addresses."""
        found = self._locate(address)
        return self._row_of_all(address) if found is None else self.records[found[0]].pes[found[2]]

    def _row_of_all(self, address: int) -> int | None:
        """Return the PE that writes an address in the rows of barrier_all and sync_all; None for other addresses."""
        pe = (address - window.slot(self._me) - layout.ALL_ROWS) // layout.ROW_SIZE
        return pe if 0 <= pe < self.plan.n_pes else None

    def _locate(self, address: int) -> tuple[int, int, int, str] | None:
        """Return team, channel, member and kind of the word at an address of this PE's team memory."""
        for number, record in self.records.items():
            members, base = len(record.pes), self._address(record)
            channel, offset = divmod(address - base, self.plan.channel_bytes(members))
            if not 0 <= channel < self.plan.all_channels(members, record.channels):
                continue
            staging = offset - self.plan.staging_offset(members)
            if staging >= 0:
                return number, channel, staging // (2 * self.plan.ll_bytes) % members, "data"
            member, word = divmod(offset - layout.CHANNEL_HEAD, layout.ROW_SIZE)
            if 0 <= member < members:
                return number, channel, member, _FLAGS[word // layout.WORD]
        return None


_FLAGS = ("arrival", "completion", "acknowledgment", "chunk", "data", "", "call", "call")


def named(number: int) -> str:
    """Return a team's name in messages."""
    return PREDEFINED[number] if number < len(PREDEFINED) else f"team {number}"


def listed(pes: Sequence[int]) -> str:
    """Return a list of PEs as text, shortened if it is long."""
    shown = ", ".join(map(str, pes[:8]))
    return shown if len(pes) <= 8 else f"{shown}, … ({len(pes)} in all)"
