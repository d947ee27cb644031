"""Teams in kernels: the entries of this PE's teams in team memory, and their members."""

from pgas.kernels import state
from pgas.kernels.compiler import constant, device, u32, u64
from pgas.kernels.refusals import kind_of
from pgas.kernels.state import fixed, fixed_u32
from pgas.kernels.typed import layout

_TEAM_MASK, _NO_SUCH_TEAM = constant(layout.MAX_TEAMS - 1), constant(kind_of("no such team"))
_0, _4 = constant(0), constant(4)


@device
def entry_of(op, team):
    """Return the entry of a team. If there is no such team, or this PE is not a member, return 0 and poison the state."""
    entry = layout.TEAMS + (u64(team) & _TEAM_MASK) * layout.TEAM_ENTRY  # masked, because the compiler may load from it before it compares
    if u64(team) <= _TEAM_MASK and fixed_u32(entry + layout.TEAM_SIZE) != 0:
        return entry
    state.fail(_NO_SUCH_TEAM, u64(op), u64(state.my_pe()), _0, u64(team), _0, _0)
    return _0


@device
def size_of(entry):
    """Return the number of members."""
    return fixed_u32(entry + layout.TEAM_SIZE)


@device
def rank_of(entry):
    """Return this PE's number in the team."""
    return fixed_u32(entry + layout.TEAM_RANK)


@device
def is_near(entry):
    """Whether all members map each other's memory."""
    return fixed_u32(entry + layout.TEAM_NEAR) != 0


@device
def per_machine(entry):
    """Return the number of members per node of a regular team (collectives/nodes.py); 0 for other teams."""
    return fixed_u32(entry + layout.TEAM_PER_MACHINE)


@device
def member(entry, i):
    """Return the PE of member i. Teams with a stride also load it, because LLVM would hoist the load out of a branch that avoids it."""
    return fixed_u32(fixed(entry + layout.TEAM_LIST) + u64(i) * _4)


@device
def after(q, n):
    """Return the member after member q of n; member 0 follows the last."""
    q = u32(q + u32(1))
    return u32(0) if q == n else q


@device
def wrapped(i, n):
    """Return i modulo n, for i below 2 * n."""
    return i if i < n else u32(i - n)
