"""Reductions and scans on teams (OpenSHMEM 1.5, "SHMEM_REDUCTIONS"; scans: 1.6); structured like movement.py."""

from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.codes import OPERATIONS, Reduction
from pgas.kernels.collectives.call import body_of, by_sizes, by_strategy, dividing, pair, sized
from pgas.kernels.collectives.operators import Combine, has_locations, identity, location, reduction
from pgas.kernels.collectives.strategy import Strategy
from pgas.kernels.collectives.words import combined, store_word
from pgas.kernels.compiler import address_of, constant, device, element_size, numpy_dtype, types, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.team import rank_of, size_of
from pgas.kernels.refusals import kind_of, refuse
from pgas.kernels.scope import BLOCK, Scope
from pgas.kernels.typed import layout

_0 = constant(0)
_NO_PAIRS = constant(kind_of("no pairs"))
_DEST, _SOURCE = constant(operation.SYMMETRIC), constant(operation.LOCAL)


def operation_of(name: str, op: Any) -> Reduction:
    """Return the operation of a call, from the type of its argument."""
    if isinstance(op, types.IntEnumMember) and op.instance_class.__name__ in OPERATIONS:
        return Reduction[op.instance_class.__name__]
    refuse("operation", function=name, found=operands.described(op))


def _reduce(scope: Scope, unit: int, combine: Combine) -> Callable[[Strategy], Any]:
    """Perform an all-reduce. request: see call.body_of()."""

    def make(strategy: Strategy) -> Any:
        begin, finish, gather, send = strategy.begin(scope), strategy.finish(scope), strategy.gather(scope), strategy.send_same(scope, unit)
        add_up, of_large, release = (
            combined(scope, unit, combine, strategy.word(), strategy.four(), strategy.fours()),
            strategy.reduce(scope, unit, combine),
            strategy.release(scope),
        )
        staged = strategy.staged(scope)

        @device
        def perform(op, c, request):
            dest, source, nbytes, _whole = request
            epoch = begin(op, c)
            if nbytes <= staged:
                send(op, c, epoch, source, nbytes)
                gather(op, c, epoch)
                if dest == source:
                    release(c)
                add_up(op, c, epoch, dest, source, nbytes, size_of(c[1]))
            else:
                epoch = of_large(op, c, epoch, dest, source, nbytes)
            finish(op, c, epoch)

        return perform

    return make


def _reducescatter(scope: Scope, unit: int, combine: Combine) -> Callable[[Strategy], Any]:
    """Perform a reduce-scatter. request: see call.body_of()."""

    def make(strategy: Strategy) -> Any:
        begin, finish, gather, send = strategy.begin(scope), strategy.finish(scope), strategy.gather(scope), strategy.send_each(scope, unit)
        add_up, of_large = (
            combined(scope, unit, combine, strategy.word(), strategy.four(), strategy.fours()),
            strategy.reducescatter(scope, unit, combine),
        )
        staged = strategy.staged(scope)

        @device
        def perform(op, c, request):
            dest, source, nbytes, step = request
            epoch = begin(op, c)
            if nbytes <= staged:
                send(op, c, epoch, source, step, nbytes)
                gather(op, c, epoch)
                add_up(op, c, epoch, dest, source + u64(rank_of(c[1])) * step, nbytes, size_of(c[1]))
            else:
                epoch = of_large(op, c, epoch, dest, source, step, nbytes)
            finish(op, c, epoch)

        return perform

    return make


def _scan(scope: Scope, unit: int, combine: Combine, identity: int | None) -> Callable[[Strategy], Any]:
    """Perform a scan in rounds through staging. request: see call.body_of(). identity: for an exclusive scan, the word for member 0."""
    exclusive, neutral = identity is not None, constant(identity or 0)

    def make(strategy: Strategy) -> Any:
        begin, finish = strategy.begin(scope), strategy.finish(scope, one_sided=True)  # no member waits for later members
        gather, send, release = strategy.gather(scope), strategy.send_same(scope, unit), strategy.release(scope)
        add_up, store, rank, size, sync = (
            combined(scope, unit, combine, strategy.word(), strategy.four()),
            store_word(unit),
            scope.rank,
            scope.size,
            scope.sync,
        )

        @device
        def fill(dest, nbytes):
            i = u64(rank()) * layout.WORD
            while i < nbytes:
                store(dest + i, neutral, nbytes - i)
                i += u64(size()) * layout.WORD

        @device
        def perform(op, c, request):
            dest, source, nbytes, _whole = request
            me, offset, call = rank_of(c[1]), _0, c[2]
            while offset < nbytes:
                c = c[0], c[1], call
                if offset != _0:
                    sync()
                count, call = min(nbytes - offset, window.LL_BYTES), _0  # The first round compares the calls.
                epoch = begin(op, c)
                send(op, c, epoch, source + offset, count)
                gather(op, c, epoch)
                if dest == source:
                    release(c)
                if exclusive and me == 0:
                    fill(dest + offset, count)
                else:
                    add_up(op, c, epoch, dest + offset, source + offset, count, me if exclusive else u32(me + u32(1)))
                finish(op, c, epoch)
                offset += window.LL_BYTES

        return perform

    return make


def _reducing(plain: str, scope: Scope, perform_of: Callable[..., Callable[[Strategy], Any]], *, divides: bool) -> Callable[..., Any]:
    """Typing function of ``(team, dest, source, op, channel)``, and in a block ``part`` if it ``divides``.

    ``perform_of(scope, unit, op, dtype, combine)`` is for by_strategy().
    """
    name = plain + scope.suffix

    def make(team: Any, dest: Any, source: Any, op: Any, channel: Any, part: Any) -> Any:
        unit, which = pair(name, team, dest, source, channel), operation_of(name, op)
        operands.computable(name, dest.dtype)
        combine = reduction(name, which, dest.dtype)
        request, contiguous = by_sizes(plain)(name, element_size(dest.dtype)), operands.contiguous(name, dest=dest, source=source)
        perform = sized(plain, by_strategy(perform_of(scope, unit, which, dest.dtype, combine)), dest.dtype, which.name)
        return body_of(name, scope, contiguous, request, perform, dividing(name, part))

    def typing(team: Any, dest: Any, source: Any, op: Any, channel: Any = 0) -> Any:
        perform = make(team, dest, source, op, channel, None)

        def body(team, dest, source, op, channel=0):
            perform(team, dest, source, channel, None)

        return body

    def typing_of_block(team: Any, dest: Any, source: Any, op: Any, channel: Any = 0, part: Any = None) -> Any:
        perform = make(team, dest, source, op, channel, part)

        def body(team, dest, source, op, channel=0, part=None):
            perform(team, dest, source, channel, part)

        return body

    return typing_of_block if divides and scope is BLOCK else typing


def reduce(scope: Scope) -> Callable[..., Any]:
    """Typing function of reduce at a scope."""
    return _reducing("reduce", scope, lambda scope, unit, op, dtype, combine: _reduce(scope, unit, combine), divides=True)


def reducescatter(scope: Scope) -> Callable[..., Any]:
    """Typing function of reducescatter at a scope."""
    return _reducing(
        "reducescatter",
        scope,
        lambda scope, unit, op, dtype, combine: _reducescatter(scope, unit, combine),
        divides=True,
    )


def inscan(scope: Scope) -> Callable[..., Any]:
    """Typing function of inscan at a scope."""
    return _reducing("inscan", scope, lambda scope, unit, op, dtype, combine: _scan(scope, unit, combine, None), divides=False)


def exscan(scope: Scope) -> Callable[..., Any]:
    """Typing function of exscan at a scope."""
    return _reducing(
        "exscan",
        scope,
        lambda scope, unit, op, dtype, combine: _scan(scope, unit, combine, identity(op, dtype)),
        divides=False,
    )


def best(plain: str, scope: Scope, *, least: bool) -> Callable[..., Any]:
    """Typing function of maxloc, or minloc (least), at a scope."""
    name = plain + scope.suffix
    op = constant(operation.number(name))

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = pair(name, team, dest, source, channel)
        operands.computable(name, dest.dtype)
        for argument, array in (("dest", dest), ("source", source)):
            if array.ndim != 2 or array.layout == "F" or not has_locations(numpy_dtype(array.dtype)):
                refuse("pairs", function=name, name=argument, found=operands.described(array))
        combine = location(array.dtype, least=least)
        contiguous = operands.contiguous(name, dest=dest, source=source, order=operands.C_ORDER)
        request_of = by_sizes(plain)(name, element_size(dest.dtype))
        perform = sized(plain, by_strategy(_reduce(scope, unit, combine)), dest.dtype)
        perform = body_of(name, scope, contiguous, request_of, perform, dividing(name, None))

        def body(team, dest, source, channel=0):
            if dest.shape[1] != 2:
                state.fail(_NO_PAIRS, op, _0, address_of(dest), _0, u64(dest.shape[1]), _DEST)
            elif source.shape[1] != 2:
                state.fail(_NO_PAIRS, op, _0, address_of(source), _0, u64(source.shape[1]), _SOURCE)
            else:
                perform(team, dest, source, channel, None)

        return body

    return typing
