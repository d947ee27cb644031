"""Shared by all collectives: checks of operands, team and channel, and the way between members."""

from collections.abc import Callable
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import operation, state
from pgas.kernels.compiler import address_of, constant, device, element_size, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.collectives import far, near
from pgas.kernels.ops.collectives.channel import channel_of, is_near, size_of
from pgas.kernels.ops.collectives.way import Way
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse
from pgas.kernels.scope import Scope

if SIMULATOR:
    from pgas.sim import engine

__all__ = ["alone", "body_of", "by_way", "fitting", "of_arrays", "on_channel", "pair"]

_0, _DEST, _SOURCE = constant(0), constant(operation.SYMMETRIC), constant(operation.LOCAL)
_MISFIT = constant(state.MISFIT)


def by_way(make: Callable[[Way], Any]) -> Any:
    """Return make()'s function ``(op, c, request)`` for the way of this job; with two ways, the team decides which one is used."""
    if not transport.two_paths():
        return make(near if transport.maps_peers() else far)
    by_stores, by_nic = make(near), make(far)

    @device
    def perform(op, c, request):
        if is_near(c[1]):
            by_stores(op, c, request)
        else:
            by_nic(op, c, request)

    return perform


def pair(name: str, team: Any, dest: Any, source: Any, channel: Any) -> int:
    """Check the arrays, team and channel of a call. Return the common alignment of both arrays."""
    operands.team(name, "team", team)
    operands.integer(name, "channel", channel)
    operands.array(name, "dest", dest)
    operands.array(name, "source", source)
    if dest.dtype != source.dtype:
        refuse("other dtype", function=name, source=source.dtype, dest=dest.dtype)
    return min(operands.unit(dest), operands.unit(source))


def alone(name: str, scope: Scope, perform: Any) -> Any:
    """Return ``perform(op, c, request)``; in the simulator it refuses a second collective on a channel."""
    if not SIMULATOR:
        return perform
    rank = scope.rank

    def only(op: int, c: tuple[int, int], request: Any) -> None:
        engine.enter(f"pgas.{name}", c[0], rank())
        perform(op, c, request)
        if rank() == 0:
            engine.leave(c[0])

    return only


def on_channel(scope: Scope, name: str, perform: Any) -> Any:
    """Make ``call(team, channel, request)``: perform a collective on a channel."""
    op, sync, perform = constant(operation.number(name)), scope.entry(name), alone(name, scope, perform)

    @device
    def call(team, channel, request):
        sync()
        c = channel_of(op, team, channel)
        if c[0] != _0:
            perform(op, c, request)

    return call


def fitting(name: str, itemsize: int) -> Any:
    """Make ``fits(op, c, dest, dest_size, dest_needed, source, source_size, source_needed)``: check that operands have enough elements."""
    check, nbytes = operands.checking(), constant(itemsize)

    @device
    def fits(op, c, dest, dest_size, dest_needed, source, source_size, source_needed):
        n = u64(size_of(c[1]))
        if dest_size < dest_needed:
            state.fail(_MISFIT, op, n, dest, dest_needed, dest_size, _DEST)
            return False
        if source_size < source_needed:
            state.fail(_MISFIT, op, n, source, source_needed, source_size, _SOURCE)
            return False
        if check:
            if not state.valid(op, state.my_pe(), dest, dest_needed * nbytes):
                return False
            if not state.valid_local(op, state.my_pe(), source, source_needed * nbytes):
                return False
        return True

    return fits


def of_arrays(plain: str, scope: Scope, request_of: Any, perform_of: Any) -> Callable[..., Any]:
    """Typing function of ``(team, dest, source, channel)``.

    ``request_of(name, itemsize)`` makes ``request(op, c, dest, dest_size, source, source_size)``, which checks sizes and returns the
    request for perform; its bytes are 0 if the sizes are refused.
    """
    name = plain + scope.suffix

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = pair(name, team, dest, source, channel)
        contiguous = operands.contiguous(name, dest=dest, source=source)
        return body_of(name, scope, contiguous, request_of(name, element_size(dest.dtype)), by_way(perform_of(scope, unit)))

    return typing


def body_of(name: str, scope: Scope, contiguous: Any, request_of: Any, perform: Any) -> Any:
    """Return the body of ``(team, dest, source, channel)``.

    contiguous: of operands.contiguous(). request_of: ``request(…)`` of of_arrays().
    """
    op, sync, perform = constant(operation.number(name)), scope.entry(name), alone(name, scope, perform)

    def body(team, dest, source, channel=0):
        sync()
        if contiguous is not None:
            if not contiguous(dest, source):
                return
        c = channel_of(op, team, channel)
        if c[0] != _0:
            request = request_of(op, c, address_of(dest), u64(dest.size), address_of(source), u64(source.size))
            if request[2] != _0:
                perform(op, c, request)

    return body
