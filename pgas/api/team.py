"""Teams of PEs: predefined ones, splits of them, and queries (OpenSHMEM 1.5, "Team Management Routines").

A team is an ordered set of PEs. Within a team, members are numbered from 0. Four teams exist after pgas.init(): TEAM_WORLD, TEAM_SHARED,
TEAM_NODE, and TEAM_SAME_LOCAL. The host makes other teams from members of an existing team, and destroys them; these calls are collective.
A PE that is not a member gets None instead of a team. Unless the parent has all PEs of the job, a call first waits for this PE's kernels.

On the host a team is a Team, and printing it shows its name and members. A kernel takes the team as an argument, or names a predefined one;
there it is an integer, the same on every member. A launch rejects a team that was destroyed.

On each of its members, a team takes memory outside the heap, for PGAS_CHANNELS channels or the number given with ``channels=``. There is
room for PGAS_MAX_TEAMS teams of all PEs, the predefined ones included, or for more teams that are smaller or have fewer channels.
``python -m pgas info`` prints the size of this memory. pgas.finalize() warns about teams that were never destroyed; a team's first member
prints the warning.
"""

import hashlib
from collections.abc import Iterable
from typing import Any, cast

from pgas.api import host_collectives
from pgas.api.host_only import host_only
from pgas.base.errors import BootstrapError, HeapError, PgasError
from pgas.base.parameters import is_integer
from pgas.job import runtime
from pgas.job.bootstrap.calls import alone
from pgas.job.memory import teams
from pgas.job.memory.array import caller
from pgas.kernels.compiler.binding import Integer, device_function
from pgas.kernels.ops import query

__all__ = [
    "TEAM_NODE", "TEAM_SAME_LOCAL", "TEAM_SHARED", "TEAM_WORLD", "Team", "team_create", "team_destroy", "team_my_pe", "team_n_pes",
    "team_split_2d", "team_split_strided", "team_translate_pe",
]  # fmt: skip


#: Size in bytes of each of the two hashes in a team-setup record: of the call, and of what a PE adds to it.
_CALL_BYTES = teams.HASH_BYTES // 2


class Team(teams.Handle):
    """A team that this PE is a member of. In kernels it is an integer.

    A copy is the team itself. Only predefined teams can be pickled.

    Example:
        >>> pair = pgas.team_create([0, 1])
        >>> total = pgas.full(1, 3, np.int32)
        >>> @pgas.jit
        ... def add_up(team, total):
        ...     pgas.reduce(team, total, total, pgas.SUM)
        >>> pgas.launch(add_up, 1, 1, (pair, total))
        >>> pgas.synchronize()
        >>> int(total[0]), pair.n_pes
        (6, 2)
    """

    @classmethod
    def _of(cls, number: int, record: teams.Record) -> "Team":
        team = cls(number)
        team._record = record
        return team

    def _found(self) -> teams.Record:
        return runtime.current().teams.find(self)

    @property
    def pes(self) -> tuple[int, ...]:
        """Tuple of the members' PE numbers, in team order."""
        return self._found().pes

    @property
    def n_pes(self) -> int:
        """Number of members."""
        return len(self.pes)

    @property
    def my_pe(self) -> int:
        """Number of this PE in the team."""
        return self.pes.index(runtime.current().my_pe)

    @property
    def channels(self) -> int:
        """Number of channels: how many blocks may call collectives of the team concurrently."""
        return self._found().channels

    def __copy__(self) -> "Team":
        return self

    def __deepcopy__(self, memo: Any) -> "Team":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._record is None:  # A predefined team is known by its number.
            return super().__reduce_ex__(protocol)
        raise TypeError(
            f"team {int(self)} cannot be pickled, because its number may refer to another team in another process; send team.pes instead"
        )

    def __repr__(self) -> str:
        """Return the team's name, and its members if there is a job."""
        name = teams.named(int(self)).removeprefix("team ")
        if not runtime.active() and self._record is None:
            return f"<pgas.Team {name}>"
        try:
            return f"<pgas.Team {name}: PEs {teams.listed(self.pes)}>"
        except PgasError:
            return f"<pgas.Team {name}: destroyed, or of an earlier job>"

    __str__ = __repr__


#: The team of all PEs.
TEAM_WORLD = Team(teams.WORLD)
#: The team of this PE and the PEs that share mapped memory with it, for all of which ptr() returns an array (NVSHMEM_TEAM_SHARED,
#: SHMEM_TEAM_SHARED): all PEs over p2p, only this PE over a NIC.
TEAM_SHARED = Team(teams.SHARED)
#: The team of the PEs on this PE's node, whichever transport connects them (NVSHMEMX_TEAM_NODE).
TEAM_NODE = Team(teams.NODE)
#: The team of all PEs that have the same number in their TEAM_NODE as this PE has in its own (NVSHMEMX_TEAM_SAME_MYPE_NODE).
TEAM_SAME_LOCAL = Team(teams.SAME_LOCAL)


# Making teams ---------------------------------------------------------------------------------------------------------------------


@host_only
def team_split_strided(parent: Team, start: int, stride: int, size: int, *, channels: int | None = None) -> Team | None:
    """Make a team of the members start, start + stride, … of a parent, in this order. Collective over the parent.

    OpenSHMEM 1.5: shmem_team_split_strided. Unless the parent has all PEs of the job, the call first waits for this PE's kernels.

    Args:
        parent: a team that this PE is a member of.
        start: number of the first member in the parent.
        stride: distance between consecutive members in the parent; may be negative; may be 0 only if size is 1.
        size: number of members; at least 1.
        channels: number of channels, from 1 to 256: how many blocks may call collectives of the team concurrently. Default: PGAS_CHANNELS.

    Returns:
        The team, or None if this PE is not a member.

    Raises:
        TypeError: parent is not a Team.
        ValueError: a member would not be in the parent, or channels is out of range.
        PgasError: the parent was destroyed.
        HeapError: raised on every PE of the parent, if there is no range of team memory that is free on all members.
        BootstrapError: PEs make different calls.

    Example:
        >>> team = pgas.team_split_strided(pgas.TEAM_WORLD, start=1, stride=-1, size=2)  # PEs 1 and 0
        >>> pgas.my_pe() + team.my_pe
        1
        >>> pgas.team_destroy(team)
    """
    call = f"pgas.team_split_strided(start={start}, stride={stride}, size={size}, channels={channels})"
    members = _team("team_split_strided", "parent", parent).pes
    start, stride, size = (_whole("team_split_strided", n, v) for n, v in (("start", start), ("stride", stride), ("size", size)))
    chosen = [start + i * stride for i in range(max(size, 0))]
    if size < 1 or (stride == 0 and size > 1) or not all(0 <= i < len(members) for i in (chosen[0], chosen[-1])):
        raise ValueError(
            f"pgas.team_split_strided: start={start}, stride={stride}, size={size} must name members of "
            f"{teams.named(int(parent))}, 0 to {len(members) - 1}"
        )
    return _made(call, parent, tuple(members[i] for i in chosen), channels)


@host_only
def team_split_2d(parent: Team, xrange: int, *, channels: int | None = None) -> tuple[Team, Team]:
    """Arrange a parent's members in rows of xrange, and make a team of each row and each column. Collective over the parent.

    Member i is in row ``i // xrange`` and column ``i % xrange``. The last row may be shorter. Unless the parent has all PEs of the job, the
    call first waits for this PE's kernels. OpenSHMEM 1.5: shmem_team_split_2d.

    Args:
        parent: a team that this PE is a member of.
        xrange: number of members in a row; at least 1.
        channels: number of channels of each team, from 1 to 256: how many blocks may call its collectives concurrently. Default:
            PGAS_CHANNELS.

    Returns:
        The team of this PE's row, and the team of its column.

    Raises:
        TypeError: parent is not a Team.
        ValueError: xrange is less than 1, or channels is out of range.
        PgasError: the parent was destroyed.
        HeapError: raised on every PE of the parent, if there is no range of team memory that is free on all members.
        BootstrapError: PEs make different calls.

    Example:
        >>> row, column = pgas.team_split_2d(pgas.TEAM_WORLD, xrange=2)  # a job of two PEs is one row
        >>> row.n_pes, column.n_pes
        (2, 1)
        >>> pgas.team_destroy(column)
        >>> pgas.team_destroy(row)
    """
    call = f"pgas.team_split_2d(xrange={xrange}, channels={channels})"
    members = _team("team_split_2d", "parent", parent).pes
    xrange = _whole("team_split_2d", "xrange", xrange)
    if xrange < 1:
        raise ValueError(f"pgas.team_split_2d: xrange must be 1 or more, not {xrange}")
    row, column = divmod(parent.my_pe, xrange)
    with alone(call):
        first = cast(Team, _made(f"{call}, row", parent, members[row * xrange : (row + 1) * xrange], channels))
        try:
            second = cast(Team, _made(f"{call}, column", parent, members[column::xrange], channels))
        except (HeapError, BootstrapError):  # Raised on every PE, before any PE has used its row.
            runtime.current().teams.remove(int(first))
            raise
    return first, second  # Neither is None, because this PE is a member of its row and its column.


@host_only
def team_create(pes: Iterable[int], *, channels: int | None = None) -> Team | None:
    """Make a team of any PEs, in this order. Collective over all PEs of the job (NVSHMEM: nvshmemx_team_init).

    PEs may pass different lists, so that one call makes several disjoint teams; all members of a team must pass the same list.

    Args:
        pes: PE numbers, each at most once.
        channels: number of channels, from 1 to 256: how many blocks may call collectives of the team concurrently. Default: PGAS_CHANNELS.

    Returns:
        The team, or None if this PE is not in its list.

    Raises:
        TypeError: pes is not iterable.
        ValueError: a number is not that of a PE or occurs twice, or channels is out of range.
        HeapError: raised on every PE, if there is no range of team memory that is free on all members.
        BootstrapError: PEs make different calls, or members pass different lists.

    Example:
        >>> team = pgas.team_create([1, 0])  # PE 1 is member 0
        >>> pgas.my_pe() + team.my_pe
        1
        >>> pgas.team_destroy(team)
    """
    if not isinstance(pes, Iterable):
        raise TypeError(f"pgas.team_create: pes must be PE numbers, such as [0, 1], not {pes!r}")
    members = tuple(_whole("team_create", "pes", pe) for pe in pes)
    n_pes = runtime.current().n_pes
    if not members or len(set(members)) != len(members) or not all(0 <= pe < n_pes for pe in members):
        raise ValueError(f"pgas.team_create: pes must be PE numbers from 0 to {n_pes - 1}, each at most once, not {list(members)}")
    return _made(f"pgas.team_create(channels={channels})", TEAM_WORLD, members, channels)


@host_only
def team_destroy(team: Team | None) -> None:
    """Destroy a team and release its memory. Collective over its members; first waits for this PE's kernels.

    OpenSHMEM 1.5: shmem_team_destroy.

    Args:
        team: the team. If it is None, as on a PE that is not a member, the call does nothing.

    Raises:
        TypeError: team is not a Team.
        ValueError: the team is predefined.
        PgasError: the team was destroyed before.
        BootstrapError: members make different calls.

    Example:
        >>> team = pgas.team_split_strided(pgas.TEAM_WORLD, start=0, stride=1, size=1)
        >>> (team is not None) == (pgas.my_pe() == 0)  # the other PEs are not members
        True
        >>> pgas.team_destroy(team)  # on all PEs
    """
    if team is None:
        return
    _team("team_destroy", "team", team)
    if int(team) < len(teams.PREDEFINED):
        raise ValueError(f"pgas.team_destroy: {teams.named(int(team))} is predefined")
    job = runtime.current()
    call = f"pgas.team_destroy(team {int(team)})"
    with alone(call):
        job.complete("pgas.team_destroy")
        _told(call, team, _digest(call).ljust(teams.NOTE_BYTES, b"\0"))
        job.teams.remove(int(team))


def _made(call: str, parent: Team, pes: tuple[int, ...], channels: int | None) -> Team | None:
    """Make a team. Collective over the parent, whose PEs may request different teams."""
    with alone(call):
        return _made_alone(call, parent, pes, channels)


def _made_alone(call: str, parent: Team, pes: tuple[int, ...], channels: int | None) -> Team | None:
    job = runtime.current()
    count = job.teams.plan.channels if channels is None else channels
    if not is_integer(count) or not 1 <= count <= 256:
        raise ValueError(f"{call.split('(')[0]}: channels must be an integer from 1 to 256, not {channels!r}")
    member = job.my_pe in pes
    notes = _told(call, parent, job.teams.room.note(_digest(call, pes if member else ())))
    failure: Exception | None = None
    found, room = None, job.teams.room
    if member:
        own = notes[parent.pes.index(job.my_pe)]
        for pe in pes:
            note = notes[parent.pes.index(pe)]
            if note[: teams.HASH_BYTES] != own[: teams.HASH_BYTES]:
                failure = BootstrapError(f"{call}: PEs {job.my_pe} and {pe} are in the same team but passed different members")
            room &= teams.Room.of(note)
        found = room.first(job.teams.plan.units(len(pes), count))
        if failure is None and found is None:
            failure = HeapError(
                f"{call}: PEs {teams.listed(pes)} have no common free range of team memory for another team; destroy some teams, "
                f"or choose fewer channels or a larger PGAS_MAX_TEAMS ({job.teams.plan.max_teams})"
            )
        if failure is None and found is not None:
            job.teams.add(found[0], pes, int(count), found[1], caller())
            if job.timeline is not None:
                job.timeline.team(found[0], pes)
    end = f"{call} ends"
    ends = _told(end, parent, _digest(end, type(failure).__name__).ljust(teams.NOTE_BYTES, b"\0"))
    if failure is not None:
        raise failure
    for pe, note in zip(parent.pes, ends, strict=True):
        for error in (HeapError, BootstrapError):
            if note[: teams.HASH_BYTES] == _digest(end, error.__name__):
                if found is not None:
                    job.teams.remove(found[0])
                raise error(f"{call}: PE {pe} failed")
    return None if found is None else Team._of(found[0], job.teams.find(found[0]))


def _digest(call: str, what: object = None) -> bytes:
    """Return two hashes: of a call, which is the same on all PEs, and of what this PE adds to it."""
    return b"".join(hashlib.blake2b(str(part).encode(), digest_size=_CALL_BYTES).digest() for part in (call, what))


def _told(call: str, team: Team, note: bytes) -> list[bytes]:
    """Return the team-setup records of all members, which begin with the _digest() of the call. Collective over the team.

    If the team has all PEs, the host's exchange carries them. Otherwise a kernel does, on the host's channel, where collectives with
    ``stream=`` may run.

    Raises:
        BootstrapError: raised on every member, if members make different calls.
    """
    job = runtime.current()
    members = team.pes
    if len(members) == job.n_pes:
        by_pe = job.agree(call, value=note)
        return [by_pe[pe] for pe in members]
    job.complete(call.partition("(")[0])
    notes, own = job.teams.notes(int(team))
    job.memory.write(own, note)
    host_collectives.gather(int(team), notes, own, len(members), len(note))
    told = [job.memory.read(notes + i * len(note), len(note)) for i in range(len(members))]
    for pe, other in zip(members, told, strict=True):
        if other[:_CALL_BYTES] != note[:_CALL_BYTES]:
            raise BootstrapError(f"PEs disagree in a collective call: PE {job.my_pe} called {call}, PE {pe} made another call")
    return told


def _team(function: str, name: str, team: Any) -> Team:
    if not isinstance(team, Team):
        raise TypeError(f"pgas.{function}: {name} must be a pgas.Team, not {team!r}")
    team._found()
    return team


def _whole(function: str, name: str, value: Any) -> int:
    if not is_integer(value):
        raise ValueError(f"pgas.{function}: {name} must be an integer, not {value!r}")
    return int(value)


# Queries --------------------------------------------------------------------------------------------------------------------------


def _my_pe(team: Any) -> int:
    return -1 if team is None else _team("team_my_pe", "team", team).my_pe


def _n_pes(team: Any) -> int:
    return -1 if team is None else _team("team_n_pes", "team", team).n_pes


def _translate_pe(src_team: Any, src_pe: Any, dest_team: Any) -> int:
    if src_team is None or dest_team is None:
        return -1
    origin, target = _team("team_translate_pe", "src_team", src_team).pes, _team("team_translate_pe", "dest_team", dest_team).pes
    number = _whole("team_translate_pe", "src_pe", src_pe)
    pe = origin[number] if 0 <= number < len(origin) else None
    return target.index(pe) if pe in target else -1


@device_function(query.team_my_pe, _my_pe)
def team_my_pe(team: Integer | None) -> int:
    """Return this PE's number in a team, in a kernel or on the host (OpenSHMEM 1.5: shmem_team_my_pe).

    Completion:
        on return: the number is known.
        complete: nothing.

    Args:
        team: the team. On the host it may be None, as on a PE that is not a member; the result is then -1.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if team is None or not an integer.
        DeviceError: raised later on the host, if this PE is not a member of the team.
        TypeError: on the host, at the call, if team is not a Team.
        PgasError: on the host, at the call, if the team was destroyed.

    Example:
        >>> team, out = pgas.team_create([1, 0]), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def ask(team, out):
        ...     out[0] = pgas.team_my_pe(team)
        >>> ask[1, 1](team, out)
        >>> pgas.synchronize()
        >>> int(out[0]) == 1 - pgas.my_pe()
        True
    """
    raise AssertionError


@device_function(query.team_n_pes, _n_pes)
def team_n_pes(team: Integer | None) -> int:
    """Return the number of members of a team, in a kernel or on the host (OpenSHMEM 1.5: shmem_team_n_pes).

    Completion:
        on return: the number is known.
        complete: nothing.

    Args:
        team: the team. On the host it may be None, as on a PE that is not a member; the result is then -1.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if team is None or not an integer.
        DeviceError: raised later on the host, if this PE is not a member of the team.
        TypeError: on the host, at the call, if team is not a Team.
        PgasError: on the host, at the call, if the team was destroyed.

    Example:
        >>> team, out = pgas.team_create([1, 0]), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def ask(team, out):
        ...     out[0] = pgas.team_n_pes(team)
        >>> ask[1, 1](team, out)
        >>> pgas.synchronize()
        >>> int(out[0]) == 2
        True
    """
    raise AssertionError


@device_function(query.team_translate_pe, _translate_pe)
def team_translate_pe(src_team: Integer | None, src_pe: Integer, dest_team: Integer | None) -> int:
    """Return the number that a member of one team has in another team, or -1 if it is not a member there.

    In kernels and on the host. With TEAM_WORLD as dest_team, the result is the PE's number in the job. OpenSHMEM 1.5:
    shmem_team_translate_pe.

    Completion:
        on return: the number is known.
        complete: nothing.

    Args:
        src_team: the team in which src_pe is a number. On the host it may be None; the result is then -1.
        src_pe: a number in src_team. For any other integer the result is -1.
        dest_team: the team whose number is returned. On the host it may be None; the result is then -1.

    Raises:
        TypingError: at kernel compile time (TypeError in the simulator), if a team is None or an argument is not an integer.
        DeviceError: raised later on the host, if this PE is not a member of both teams.
        TypeError, ValueError: on the host, at the call, if a team is not a Team or src_pe is not an integer.
        PgasError: on the host, at the call, if a team was destroyed.

    Example:
        >>> team, out = pgas.team_create([1, 0]), pgas.zeros(1, np.int64)
        >>> @pgas.jit
        ... def ask(team, out):
        ...     out[0] = pgas.team_translate_pe(team, 0, pgas.TEAM_WORLD)
        >>> ask[1, 1](team, out)
        >>> pgas.synchronize()
        >>> int(out[0]) == 1
        True
    """
    raise AssertionError
