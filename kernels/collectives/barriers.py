"""barrier_all, sync_all, and their forms for teams (OpenSHMEM 1.5, "Collective Routines")."""

from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.collectives import far
from pgas.kernels.collectives.call import alone, any_size, by_strategy, entering
from pgas.kernels.collectives.comparison import verifying_all
from pgas.kernels.collectives.strategy import Strategy
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.paths import p2p, transport
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout

_0, _1 = constant(0), constant(1)
_ALL_ROWS = constant(window.BASE + layout.ALL_ROWS)


def _barrier(scope: Scope, *, completes: bool) -> Callable[[Strategy], Any]:
    def make(strategy: Strategy) -> Any:
        begin, barrier, finish = strategy.begin(scope), strategy.barrier(scope, completes=completes), strategy.leave(scope)

        @device
        def perform(op, c, request):
            epoch = begin(op, c)
            barrier(op, c, epoch)
            finish(op, c, epoch)

        return perform

    return make


def of_team(plain: str, scope: Scope, *, completes: bool) -> Callable[..., Any]:
    """Typing function of team_sync, or barrier (completes), at a scope."""
    name = plain + scope.suffix
    op, enter = constant(operation.number(name)), entering(scope, name)

    def typing(team: Any, channel: Any = 0) -> Any:
        operands.team(name, "team", team)
        operands.integer(name, "channel", channel)
        perform = any_size(plain, scope, by_strategy(_barrier(scope, completes=completes)))

        def body(team, channel=0):
            c = enter(team, None, None, channel)
            if c[0] != _0:
                perform(op, c, _0)

        return body

    return typing


def of_all(plain: str, scope: Scope, *, completes: bool) -> Callable[..., Any]:
    """Typing function of sync_all, or barrier_all (completes), at a scope.

    They have their own rows and epoch at constant addresses, so that only the epoch and two words of the state page are loaded before the
    flags are stored.
    """
    name = plain + scope.suffix
    op, entry = constant(operation.number(name)), scope.entry(name)
    rank, sync = scope.rank, scope.sync

    def typing() -> Any:
        path, mapped = transport.current(), transport.maps_peers() and not transport.two_paths()
        flag, quiet = p2p.flag if mapped else path.flag, path.quiet
        rounds = far.rounds(scope, flag, _itself)
        check = operands.checking()
        declare, verify = verifying_all(plain, flag)
        few = u32(32) if mapped else u32(1)  # the threads that write flags must fence; for a NIC, one thread waits

        @device
        def perform(op, c, request):
            epoch = ptx.ld_relaxed_gpu_u64(layout.ALL_EPOCH) + _1  # loaded before the fence, which takes longer
            me = state.my_pe()
            if completes:
                if rank() < few:
                    quiet()
                if not mapped:
                    sync()
            rows = _ALL_ROWS + (u64(me) << window.SHIFT)
            if check:
                if rank() == 0:
                    declare(rows, state.n_pes(), me, epoch)
            rounds(op, rows, _0, state.n_pes(), me, epoch)
            if check:
                if rank() == 0:
                    verify(op, rows, state.n_pes(), me, epoch)
            sync()
            if rank() == 0:
                ptx.st_relaxed_gpu_u64(layout.ALL_EPOCH, epoch)

        perform = alone(name, scope, perform)

        def body():
            entry()
            perform(op, (_ALL_ROWS, _0), _0)

        return body

    return typing


@device
def _itself(entry, i):
    return i
