"""Teams: integers, as in kernels, whose names are members of Teams (nvshmem4py's teams)."""

import secrets
from types import SimpleNamespace
from typing import Any

from pgas import api

__all__ = [
    "MutableEnum", "TeamConfig", "TeamUniqueId", "Teams", "get_team_unique_id", "team_destroy", "team_get_config", "team_init",
    "team_my_pe", "team_n_pes", "team_split_2d", "team_split_strided", "team_translate_pe",
]  # fmt: skip


class MutableEnum(dict[str, Any]):
    """Values by their names, which are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"nvshmem.core.Teams has no member {name}; its members are {', '.join(self)}") from None

    def add(self, key: str, value: Any) -> None:
        self.check_new(key)
        self[key] = value

    def check_new(self, *keys: str | None) -> None:
        """Check that there are no members with these names. Before a collective call, because a team that has been made would be left."""
        if known := [key for key in keys if key in self]:
            raise ValueError(f"nvshmem.core.Teams: there is a member {known[0]} already; choose another name")

    def remove(self, key: str) -> None:
        del self[key]

    def remove_by_value(self, value: Any) -> None:
        for key in [key for key, known in self.items() if known == value]:
            del self[key]


class TeamUniqueId(SimpleNamespace):
    """A number for team_init."""


class TeamConfig(SimpleNamespace):
    """The configuration of a team, of which only uniqueid has a meaning, in team_init."""

    def __init__(self) -> None:
        super().__init__(version=2, num_contexts=1, uniqueid=0)


_NAMES = ("TEAM_WORLD", "TEAM_SHARED", "TEAM_NODE", "TEAM_SAME_MYPE_NODE")
_predefined = dict(enumerate((api.TEAM_WORLD, api.TEAM_SHARED, api.TEAM_NODE, api.TEAM_SAME_LOCAL)))
_known = dict(_predefined)
Teams = MutableEnum({"TEAM_INVALID": -1} | {name: int(_predefined[i]) for i, name in enumerate(_NAMES)})


def _team(function: str, handle: Any) -> Any:
    if handle not in _known:
        raise ValueError(f"nvshmem.core.{function}: this PE has no team {handle!r}; its teams are {dict(Teams)}")
    return _known[handle]


def handle(team: Any) -> Any:
    """Return a team's handle, or what was given if there is no such team, which pgas rejects."""
    return _known.get(team, team) if isinstance(team, int) else team


def _added(team: Any, name: str | None, prefix: str = "TEAM_") -> int | None:
    """Give a new team a name, and return its number; None on a PE that is not a member."""
    if team is None:
        return None
    Teams.add(name or f"{prefix}{int(team)}", int(team))
    return int(_known.setdefault(int(team), team))


def forget() -> None:
    """Forget all teams but the predefined ones, after the end of the job."""
    for number in [number for number in _known if number not in _predefined]:
        Teams.remove_by_value(number)
        del _known[number]


def get_team_unique_id() -> TeamUniqueId:
    """Return a random number, which one PE sends to the other members of a new team."""
    return TeamUniqueId(value=secrets.randbits(63))


def team_my_pe(team: int) -> int:
    """Return this PE's number in a team."""
    return api.team_my_pe(_team("team_my_pe", team))


def team_n_pes(team: int) -> int:
    """Return the number of members."""
    return api.team_n_pes(_team("team_n_pes", team))


def team_translate_pe(src_team: int, src_pe: int, dest_team: int) -> int:
    """Return a member's number in another team, -1 if it is not a member there."""
    origin, target = _team("team_translate_pe", src_team), _team("team_translate_pe", dest_team)
    if not 0 <= src_pe < origin.n_pes:
        raise ValueError(f"nvshmem.core.team_translate_pe: src_pe must be 0 to {origin.n_pes - 1}, not {src_pe}")
    return api.team_translate_pe(origin, src_pe, target)


def team_get_config(team: int) -> TeamConfig:
    """Return a team's configuration."""
    _team("team_get_config", team)
    return TeamConfig()


def team_split_strided(
    parent_team: int, start: int, stride: int, size: int, config: Any = None, config_mask: int = 0, new_team_name: str | None = None
) -> int | None:
    """Make a team of members of a parent. Returns None on a PE that is not a member. Collective over the parent."""
    Teams.check_new(new_team_name)
    return _added(api.team_split_strided(_team("team_split_strided", parent_team), start, stride, size), new_team_name)


def team_split_2d(
    parent_team: int, xrange: int, x_config: Any = None, x_mask: int = 0, y_config: Any = None, y_mask: int = 0, new_team_name: str = ""
) -> tuple[int | None, int | None]:
    """Arrange the parent's members in rows of xrange, and make a team of each row and column. Collective over the parent."""
    names = (f"{new_team_name}_X", f"{new_team_name}_Y") if new_team_name else ("", "")
    Teams.check_new(*names)
    row, column = api.team_split_2d(_team("team_split_2d", parent_team), xrange)
    return _added(row, names[0], "TEAM_X_"), _added(column, names[1], "TEAM_Y_")


def team_init(team_config: Any, config_mask: int, npes: int, pe_idx_in_team: int, new_team_name: str | None = None) -> int | None:
    """Make a team of the PEs with the same uniqueid, in the order of pe_idx_in_team. Collective over all PEs of the job."""
    if config_mask < 0:
        raise ValueError(f"nvshmem.core.team_init: config_mask must be 0 or more, not {config_mask}")
    Teams.check_new(new_team_name)
    given = api.allgather_object((int(team_config.uniqueid), int(pe_idx_in_team)))
    members = sorted((index, pe) for pe, (uniqueid, index) in enumerate(given) if uniqueid == int(team_config.uniqueid))
    if (found := [index for index, _ in members]) != list(range(npes)):
        raise ValueError(f"nvshmem.core.team_init: pe_idx_in_team must be 0 to {npes - 1} on the PEs with one uniqueid, not {found}")
    return _added(api.team_create([pe for _, pe in members]), new_team_name)


def team_destroy(team: int | str) -> None:
    """Destroy a team, given by its number or name; nothing happens if there is no such number. Collective over the members."""
    number = Teams[team] if isinstance(team, str) else int(team)
    if number in _known:
        api.team_destroy(_known[number])
        del _known[number]
        Teams.remove_by_value(number)
