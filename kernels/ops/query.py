"""my_pe, n_pes, and ptr (OpenSHMEM 1.5, "Library Setup, Exit, and Query Routines"), and those of teams ("Team Management Routines")."""

from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.compiler import address_of, constant, element_size, i64, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.team import entry_of, member, rank_of, size_of
from pgas.kernels.paths import transport
from pgas.kernels.refusals import kind_of, refuse
from pgas.kernels.window import remote

_0 = constant(0)


def my_pe() -> Any:
    """Typing function of my_pe."""
    window.constants()

    def body():
        return i64(state.my_pe())

    return body


def n_pes() -> Any:
    """Typing function of n_pes."""
    window.constants()

    def body():
        return i64(state.n_pes())

    return body


def ptr(dest: Any, pe: Any) -> Any:
    """Typing function of ptr; the body returns an address."""
    operands.array("ptr", "dest", dest)
    operands.integer("ptr", "pe", pe)
    if not transport.maps_peers():
        refuse("unmapped", function="ptr", transport=window.constants().transport)
    check, op, itemsize, two = operands.checking(), operation.number("ptr"), element_size(dest.dtype), transport.two_paths()
    far, contiguous = kind_of("far"), operands.contiguous("ptr", dest=dest)

    def body(dest, pe):
        addr = address_of(dest)
        if contiguous is not None:
            if not contiguous(dest):
                return addr
        if check:
            if not state.valid(op, pe, addr, u64(dest.size) * u64(itemsize)):
                return addr
        if two:
            if not state.near(pe):
                state.fail(u64(far), u64(op), u64(pe), addr, u64(0), u64(0), u64(0))
                return addr
        return remote(addr, pe)

    return body


# Teams ----------------------------------------------------------------------------------------------------------------------------


def team_my_pe(team: Any) -> Any:
    """Typing function of team_my_pe."""
    return _query("team_my_pe", team, rank_of)


def team_n_pes(team: Any) -> Any:
    """Typing function of team_n_pes."""
    return _query("team_n_pes", team, size_of)


def _query(name: str, team: Any, read: Any) -> Any:
    operands.team(name, "team", team)
    window.constants()
    op = constant(operation.number(name))

    def body(team):
        entry = entry_of(op, team)
        return i64(read(entry)) if entry != _0 else i64(-1)

    return body


def team_translate_pe(src_team: Any, src_pe: Any, dest_team: Any) -> Any:
    """Typing function of team_translate_pe."""
    operands.team("team_translate_pe", "src_team", src_team)
    operands.integer("team_translate_pe", "src_pe", src_pe)
    operands.team("team_translate_pe", "dest_team", dest_team)
    window.constants()
    op = constant(operation.number("team_translate_pe"))

    def body(src_team, src_pe, dest_team):
        entry, other = entry_of(op, src_team), entry_of(op, dest_team)
        if entry != _0 and other != _0 and u64(src_pe) < u64(size_of(entry)):
            pe = member(entry, u32(src_pe))
            for i in range(size_of(other)):
                if member(other, u32(i)) == pe:
                    return i64(i)
        return i64(-1)

    return body
