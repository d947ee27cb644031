"""Code shared by all collectives: checking operands, entering a channel, and selecting the transfer strategy."""

from collections.abc import Callable
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import operation, state
from pgas.kernels.collectives import far, near, sizes
from pgas.kernels.collectives.channel import channel_of
from pgas.kernels.collectives.comparison import compared, has_place, word_of
from pgas.kernels.collectives.strategy import Strategy
from pgas.kernels.compiler import address_of, constant, device, element_size, numpy_dtype, types, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.team import is_near, rank_of, size_of
from pgas.kernels.paths import transport
from pgas.kernels.refusals import kind_of, refuse
from pgas.kernels.scope import BLOCK, Scope

if SIMULATOR:
    from pgas.sim import engine

_0, _DEST, _SOURCE = constant(0), constant(operation.SYMMETRIC), constant(operation.LOCAL)
_MISFIT, _NO_SUCH_PART = constant(kind_of("misfit")), constant(kind_of("no such part"))
_NO_MULTIPLE, _IN_PLACE = constant(kind_of("no multiple")), constant(kind_of("in place"))

_SHORT = constant((1 << 32) - 1)
_share_of = device(sizes.share_of)


def by_strategy(make: Callable[[Strategy], Any]) -> Any:
    """Return make()'s function ``(op, c, request)`` for this job's strategy; in a job with two, the team determines which."""
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
    """Check the arrays, team, and channel of a call. Return the common alignment of both arrays."""
    operands.team(name, "team", team)
    operands.integer(name, "channel", channel)
    operands.array(name, "dest", dest)
    operands.array(name, "source", source)
    if dest.dtype != source.dtype:
        refuse("other dtype", function=name, source=source.dtype, dest=dest.dtype)
    return min(operands.unit(dest), operands.unit(source))


def alone(name: str, scope: Scope, perform: Any) -> Any:
    """Return ``perform(op, c, request)``; in the simulator it rejects a second concurrent collective on a channel."""
    if not SIMULATOR:
        return perform
    rank = scope.rank

    def only(op: int, c: tuple[int, int, int], request: Any) -> None:
        engine.enter(f"pgas.{name}", c[0], rank())
        perform(op, c, request)
        if rank() == 0:
            engine.leave(c[0])

    return only


def entering(scope: Scope, name: str, contiguous: Any = None) -> Any:
    """Make ``enter(team, dest, source, channel)``: let the scope enter a channel, and return channel_of(); the address is 0 after an error.

    contiguous: the result of operands.contiguous() for the arrays dest and source.
    """
    op, sync = constant(operation.number(name)), scope.entry(name)

    @device
    def enter(team, dest, source, channel):
        sync()
        if contiguous is not None:
            if not contiguous(dest, source):
                return _0, _0, _0
        return channel_of(op, team, channel)

    return enter


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


def by_sizes(plain: str) -> Callable[[str, int], Any]:
    """Return ``request_of(name, itemsize)`` of of_arrays() for a collective of which both sides know the sizes (sizes.py)."""
    rules = sizes.of(plain)

    def request_of(name: str, itemsize: int) -> Any:
        fits, nbytes = fitting(name, itemsize), constant(itemsize)
        if rules is sizes.ALIKE:

            @device
            def alike(op, c, dest, dest_size, source, source_size):
                if not fits(op, c, dest, dest_size, source_size, source, source_size, source_size):
                    return dest, source, _0
                return dest, source, source_size * nbytes

            return alike
        divides, moved, in_place = rules.divides, device(rules.moved), device(rules.in_place)
        of_dest, of_source = device(rules.dest), device(rules.source)

        @device
        def request(op, c, dest, dest_size, source, source_size):
            n = u64(size_of(c[1]))
            each = moved(n, dest_size, source_size)
            if divides:
                if each * n != source_size:
                    state.fail(_NO_MULTIPLE, op, n, source, source_size, _0, _SOURCE)
                    return dest, source, _0
            if in_place(dest == source, n, rank_of(c[1]), dest_size, source_size):
                state.fail(_IN_PLACE, op, n, dest, _0, _0, _DEST)
                return dest, source, _0
            needed, needed_source = of_dest(n, dest_size, source_size), of_source(n, dest_size, source_size)
            if not fits(op, c, dest, dest_size, needed, source, source_size, needed_source):
                return dest, source, _0
            return dest, source, each * nbytes

        return request

    return request_of


def dividing(name: str, part: Any) -> Any:
    """Make ``divide(nbytes, part)``: return the offset and the number of bytes of a part of nbytes; without a part, 0 and nbytes.

    A part that does not exist has no bytes, and poisons the state.
    """
    if operands.is_none(part):

        @device
        def whole(nbytes, part):
            return _0, nbytes

        return whole
    numbers = list(part) if isinstance(part, types.BaseTuple) else []
    if len(numbers) != 2 or not all(isinstance(number, types.Integer) for number in numbers):
        refuse("no part", function=name, found=operands.described(part))
    op = constant(operation.number(name))

    @device
    def divide(nbytes, part):
        i, k = u64(part[0]), u64(part[1])
        if i >= k or k > _SHORT:
            state.fail(_NO_SUCH_PART, op, u64(state.my_pe()), _0, i, k, _0)
            return _0, _0
        return _share_of(nbytes, i, k)

    return divide


def of_arrays(plain: str, scope: Scope, perform_of: Any, request_of: Any = None) -> Callable[..., Any]:
    """Typing function of ``(team, dest, source, channel)``, and in a block ``part``.

    ``request_of(name, itemsize)`` makes ``request(op, c, dest, dest_size, source, source_size)``, which checks sizes and returns dest,
    source, and bytes; the bytes are 0 if the sizes are rejected. Default: by_sizes().
    """
    name, request_of = plain + scope.suffix, request_of or by_sizes(plain)

    def make(team: Any, dest: Any, source: Any, channel: Any, part: Any) -> Any:
        unit = pair(name, team, dest, source, channel)
        contiguous = operands.contiguous(name, dest=dest, source=source)
        perform = sized(plain, by_strategy(perform_of(scope, unit)), dest.dtype)
        return body_of(name, scope, contiguous, request_of(name, element_size(dest.dtype)), perform, dividing(name, part))

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        perform = make(team, dest, source, channel, None)

        def body(team, dest, source, channel=0):
            perform(team, dest, source, channel, None)

        return body

    def typing_of_block(team: Any, dest: Any, source: Any, channel: Any = 0, part: Any = None) -> Any:
        perform = make(team, dest, source, channel, part)

        def body(team, dest, source, channel=0, part=None):
            perform(team, dest, source, channel, part)

        return body

    return typing_of_block if scope is BLOCK else typing


def sized(plain: str, perform: Any, dtype: Any, op: str | None = None, root: Any = None) -> Any:
    """Return comparison.compared() of a ``perform`` whose request has the number of bytes at index 2. root: its index of the root."""
    each = constant(element_size(dtype))

    @device
    def size(request):
        return request[2] // each

    return compared(perform, word_of(plain, numpy_dtype(dtype), op), size, root, _dest_of(plain))


def any_size(plain: str, scope: Scope, perform: Any, dtype: Any = None) -> Any:
    """Return alone() of comparison.compared(), for a collective whose members may have different numbers of elements, or none."""
    word = word_of(plain, None if dtype is None else numpy_dtype(dtype))
    return alone(plain + scope.suffix, scope, compared(perform, word, _no_size))


@device
def _no_size(request):
    return _0


def _dest_of(plain: str) -> Any:
    """Return the function of a request that returns the address of dest if members compare it, otherwise None."""
    return _first if has_place(plain) else None


@device
def _first(request):
    return u64(request[0])


def body_of(name: str, scope: Scope, contiguous: Any, request_of: Any, perform: Any, divide: Any) -> Any:
    """Return the device function of ``(team, dest, source, channel, part)``.

    contiguous: the result of operands.contiguous(). request_of: ``request(…)`` of of_arrays(). divide: the result of dividing(). perform:
    ``perform(op, c, request)``; request: dest and source of this call's part, its bytes, and the distance of the members' parts in bytes.
    """
    op, enter, perform = constant(operation.number(name)), entering(scope, name, contiguous), alone(name, scope, perform)

    @device
    def body(team, dest, source, channel, part):
        c = enter(team, dest, source, channel)
        if c[0] != _0:
            to, origin, whole = request_of(op, c, address_of(dest), u64(dest.size), address_of(source), u64(source.size))
            first, nbytes = divide(whole, part)
            if nbytes != _0:
                perform(op, c, (to + first, origin + first, nbytes, whole))

    return body
