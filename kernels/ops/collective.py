"""Collectives on teams: operand checks, and the forms for small and large messages (OpenSHMEM 1.5, section 9.11).

As in rma.py, each function takes the Numba types of a call's arguments and returns the body for them. ``way`` is between members that map
each other's memory, or through a NIC (collectives/way.py). ``c`` is (address of the channel, its team's entry).

Up to PGAS_LL_BYTES from a member to another travel through staging, so dest need not be ready before the call. More is written into dest.
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import layout, operation, state, window
from pgas.kernels.codes import OPERATIONS, Reduction
from pgas.kernels.compiler import address_of, constant, device, element_size, i64, ptx, types, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.collectives import far, near
from pgas.kernels.ops.collectives.channel import channel_of, entry_of, is_near, member, rank_of, size_of
from pgas.kernels.ops.collectives.reduction import Combine, identity, location, reduction
from pgas.kernels.ops.collectives.way import Way
from pgas.kernels.ops.collectives.words import combined, copy_words, first_of, store_word
from pgas.kernels.paths import transport
from pgas.kernels.refusals import refuse
from pgas.kernels.scope import Scope

if SIMULATOR:
    from pgas.sim import engine

_0, _1, _WORD, _SHORT = constant(0), constant(1), constant(layout.WORD), constant((1 << 32) - 1)
_DEST, _SOURCE = constant(operation.SYMMETRIC), constant(operation.LOCAL)
_MISFIT, _NO_MULTIPLE, _IN_PLACE = constant(state.MISFIT), constant(state.NO_MULTIPLE), constant(state.IN_PLACE)
_ALL_ROWS, _ALL_EPOCH = constant(window.BASE + layout.ALL_ROWS), constant(layout.ALL_EPOCH)
_NO_MEMBER, _OTHER_COUNT = constant(state.NO_MEMBER), constant(state.OTHER_COUNT)


# What all have in common --------------------------------------------------------------------------------------------------------


def _by_way(make: Callable[[Way], Any]) -> Any:
    """Return make()'s function ``(op, c, request)`` for the ways of this job; the team decides which is taken."""
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


def _pair(name: str, team: Any, dest: Any, source: Any, channel: Any) -> int:
    """Check a collective's arrays, and its team and channel. Return the alignment of both arrays."""
    operands.integer(name, "team", team)
    operands.integer(name, "channel", channel)
    operands.array(name, "dest", dest)
    operands.array(name, "source", source)
    if dest.dtype != source.dtype:
        refuse("other dtype", function=name, source=source.dtype, dest=dest.dtype)
    return min(operands.unit(dest), operands.unit(source))


def _alone(name: str, scope: Scope, perform: Any) -> Any:
    """Return ``perform(op, c, request)``; the simulator's refuses a second one on a channel."""
    if not SIMULATOR:
        return perform
    rank = scope.rank

    def alone(op: int, c: tuple[int, int], request: Any) -> None:
        if rank() == 0:
            engine.enter(f"pgas.{name}", c[0])
        perform(op, c, request)
        if rank() == 0:
            engine.leave(c[0])

    return alone


def _collective(scope: Scope, name: str, perform: Any) -> Any:
    """Make ``call(team, channel, request)``: perform a collective on a channel that callers name."""
    op, sync, perform = constant(operation.number(name)), scope.entry(name), _alone(name, scope, perform)

    @device
    def call(team, channel, request):
        sync()
        c = channel_of(op, team, channel)
        if c[0] != _0:
            perform(op, c, request)

    return call


def _fitting(name: str, itemsize: int) -> Any:
    """Make ``fits(op, c, dest, dest_size, dest_needed, source, source_size, source_needed)``: both operands have enough elements."""
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
            if not state.valid(op, state.my_pe(), source, source_needed * nbytes):
                return False
        return True

    return fits


# team_sync and barrier ------------------------------------------------------------------------------------------------------------


def _meeting(scope: Scope, *, completes: bool) -> Callable[[Way], Any]:
    def make(way: Way) -> Any:
        begin, meet, finish = way.begin(scope), way.meet(scope, completes=completes), way.leave(scope)

        @device
        def perform(op, c, request):
            epoch = begin(op, c)
            meet(op, c, epoch)
            finish(op, c, epoch)

        return perform

    return make


def meeting(plain: str, scope: Scope, *, completes: bool) -> Callable[..., Any]:
    """Typing function of team_sync (or barrier, if it completes) at a scope."""
    name = plain + scope.suffix

    def typing(team: Any, channel: Any = 0) -> Any:
        operands.integer(name, "team", team)
        operands.integer(name, "channel", channel)
        call = _collective(scope, name, _by_way(_meeting(scope, completes=completes)))

        def body(team, channel=0):
            call(team, channel, _0)

        return body

    return typing


def meeting_of_all(plain: str, scope: Scope, *, completes: bool) -> Callable[..., Any]:
    """Typing function of sync_all (or barrier_all, if it completes) at a scope.

    They have rows and an epoch of their own, at addresses that are constants, so that nothing is loaded before the flags are stored but
    the epoch and two words of the state page.
    """
    name = plain + scope.suffix
    op, entry = constant(operation.number(name)), scope.entry(name)
    rank, sync = scope.rank, scope.sync

    def typing() -> Any:
        path, mapped = transport.current(), transport.maps_peers() and not transport.two_paths()
        flag, quiet = near.flag if mapped else path.flag, path.quiet
        rounds = far.rounds(scope, flag, _itself)
        few = u32(32) if mapped else u32(1)  # a fence of those that write flags; one thread waits for a NIC

        @device
        def perform(op, c, request):
            epoch = ptx.ld_relaxed_gpu_u64(_ALL_EPOCH) + _1  # before the fence, which takes longer
            me = state.my_pe()
            if completes:
                if rank() < few:
                    quiet()
                if not mapped:
                    sync()
            rounds(op, _ALL_ROWS + (u64(me) << window.SHIFT), _0, state.n_pes(), me, epoch)
            sync()
            if rank() == 0:
                ptx.st_relaxed_gpu_u64(_ALL_EPOCH, epoch)

        perform = _alone(name, scope, perform)

        def body():
            entry()
            perform(op, (_ALL_ROWS, _0), _0)

        return body

    return typing


@device
def _itself(entry, i):
    return i


# alltoall and fcollect ------------------------------------------------------------------------------------------------------------


def _received(scope: Scope, unit: int, way: Way) -> Any:
    """Make ``receive(op, c, epoch, dest, nbytes)``: nbytes of every other member from staging to dest, by the order of members."""
    store, word, first, size = store_word(unit), way.word(), first_of(scope), scope.size

    @device
    def receive(op, c, epoch, dest, nbytes):
        n = size_of(c[1])
        q = rank_of(c[1])
        for k in range(1, n):
            q = u32(q + u32(1))
            if q == n:
                q = u32(0)
            i, to = first(k), dest + u64(q) * nbytes
            while i * _WORD < nbytes:
                store(to + i * _WORD, word(op, c, epoch, q, i), nbytes - i * _WORD)
                i += u64(size())

    return receive


def _exchange(scope: Scope, unit: int, *, same: bool) -> Callable[[Way], Any]:
    """alltoall, or fcollect (same: every member gets the same). request: dest, source, bytes for each member."""

    @device
    def piece(c, q, request):
        dest, source, nbytes = request
        return dest + u64(rank_of(c[1])) * nbytes, source if same else source + u64(q) * nbytes, nbytes

    def make(way: Way) -> Any:
        begin, finish, collect = way.begin(scope), way.finish(scope), way.collect(scope)
        send, receive, own = way.send_each(scope, unit), _received(scope, unit, way), copy_words(scope, unit)
        send_same, push = way.send_same(scope, unit), way.push(scope, unit, piece)

        @device
        def perform(op, c, request):
            dest, source, nbytes = request
            if nbytes == _0:
                return
            epoch = begin(op, c)
            if nbytes <= window.LL_BYTES:
                if same:
                    send_same(op, c, epoch, source, nbytes)
                else:
                    send(op, c, epoch, source, nbytes, nbytes)
                to, origin, _ = piece(c, rank_of(c[1]), request)
                if to != origin:
                    own(to, origin, nbytes)
                collect(op, c, epoch)
                receive(op, c, epoch, dest, nbytes)
            else:
                push(op, c, epoch, request)
            finish(op, c, epoch)

        return perform

    return make


def _of_arrays(plain: str, scope: Scope, request_of: Any, perform_of: Any) -> Callable[..., Any]:
    """Typing function of ``(team, dest, source, channel)``.

    ``request_of(name, itemsize)`` makes ``request(op, c, dest, dest_size, source, source_size)``, which checks sizes and returns perform's
    request, with bytes 0 if they are refused.
    """
    name = plain + scope.suffix

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = _pair(name, team, dest, source, channel)
        return _body(name, scope, request_of(name, element_size(dest.dtype)), _by_way(perform_of(scope, unit)))

    return typing


def _body(name: str, scope: Scope, request_of: Any, perform: Any) -> Any:
    op, sync, perform = constant(operation.number(name)), scope.entry(name), _alone(name, scope, perform)

    def body(team, dest, source, channel=0):
        sync()
        c = channel_of(op, team, channel)
        if c[0] != _0:
            request = request_of(op, c, address_of(dest), u64(dest.size), address_of(source), u64(source.size))
            if request[2] != _0:
                perform(op, c, request)

    return body


def _each(name: str, itemsize: int) -> Any:
    """The request of alltoall: an equal part of source for every member."""
    fits, nbytes = _fitting(name, itemsize), constant(itemsize)

    @device
    def request(op, c, dest, dest_size, source, source_size):
        n = u64(size_of(c[1]))
        each = u64(u32(source_size) // u32(n)) if source_size <= _SHORT else source_size // n  # 64-bit division takes 0.1 us
        if each * n != source_size:
            state.fail(_NO_MULTIPLE, op, n, source, source_size, _0, _SOURCE)
            return dest, source, _0
        if dest == source and n > _1:
            state.fail(_IN_PLACE, op, n, dest, _0, _0, _DEST)
            return dest, source, _0
        if not fits(op, c, dest, dest_size, source_size, source, source_size, source_size):
            return dest, source, _0
        return dest, source, each * nbytes

    return request


def _all_of_source(name: str, itemsize: int) -> Any:
    """The request of fcollect: dest has room for as many elements of every member as source has."""
    fits, nbytes = _fitting(name, itemsize), constant(itemsize)

    @device
    def request(op, c, dest, dest_size, source, source_size):
        n = u64(size_of(c[1]))
        if dest == source and n > _1 and rank_of(c[1]) != 0:
            state.fail(_IN_PLACE, op, n, dest, _0, _0, _DEST)
            return dest, source, _0
        if not fits(op, c, dest, dest_size, n * source_size, source, source_size, source_size):
            return dest, source, _0
        return dest, source, source_size * nbytes

    return request


def alltoall(scope: Scope) -> Callable[..., Any]:
    """Typing function of alltoall at a scope."""
    return _of_arrays("alltoall", scope, _each, functools.partial(_exchange, same=False))


def fcollect(scope: Scope) -> Callable[..., Any]:
    """Typing function of fcollect at a scope."""
    return _of_arrays("fcollect", scope, _all_of_source, functools.partial(_exchange, same=True))


# broadcast ------------------------------------------------------------------------------------------------------------------------


def broadcast(scope: Scope) -> Callable[..., Any]:
    """Typing function of broadcast at a scope."""
    name = "broadcast" + scope.suffix
    op, sync = constant(operation.number(name)), scope.entry(name)

    def typing(team: Any, dest: Any, source: Any, root: Any, channel: Any = 0) -> Any:
        unit = _pair(name, team, dest, source, channel)
        operands.integer(name, "root", root)
        fits, nbytes = _fitting(name, element_size(dest.dtype)), constant(element_size(dest.dtype))
        perform = _alone(name, scope, _by_way(_broadcast(scope, unit)))

        def body(team, dest, source, root, channel=0):
            sync()
            c = channel_of(op, team, channel)
            if c[0] != _0:
                if u64(root) >= u64(size_of(c[1])):
                    state.fail(_NO_MEMBER, op, u64(size_of(c[1])), _0, u64(root), _0, _0)
                elif source.size != 0:
                    size, to, origin = u64(source.size), address_of(dest), address_of(source)
                    if fits(op, c, to, u64(dest.size), size, origin, size, size):
                        perform(op, c, (to, origin, size * nbytes, u32(root)))

        return body

    return typing


def _broadcast(scope: Scope, unit: int) -> Callable[[Way], Any]:
    """request: dest, source, bytes, root."""

    def make(way: Way) -> Any:
        begin, finish, collect = way.begin(scope), way.finish(scope, one_sided=True), way.collect_of(scope)
        send, own, spread = way.send_same(scope, unit), copy_words(scope, unit), way.spread(scope, unit)
        store, word, rank, size = store_word(unit), way.word(), scope.rank, scope.size

        @device
        def perform(op, c, request):
            dest, source, nbytes, root = request
            epoch = begin(op, c)
            if nbytes > window.LL_BYTES:
                spread(op, c, epoch, dest, source, nbytes, root)
            elif root == rank_of(c[1]):
                send(op, c, epoch, source, nbytes)
                if dest != source:
                    own(dest, source, nbytes)
            else:
                collect(op, c, epoch, root)
                i = u64(rank())
                while i * _WORD < nbytes:
                    store(dest + i * _WORD, word(op, c, epoch, root, i), nbytes - i * _WORD)
                    i += u64(size())
            finish(op, c, epoch)

        return perform

    return make


# Reductions -----------------------------------------------------------------------------------------------------------------------


def operation_of(name: str, op: Any) -> Reduction:
    """Return the operation that a call has, by its type."""
    if isinstance(op, types.IntEnumMember) and op.instance_class.__name__ in OPERATIONS:
        return Reduction[op.instance_class.__name__]
    refuse("operation", function=name, found=op)


def _reduce(scope: Scope, unit: int, combine: Combine) -> Callable[[Way], Any]:
    """An all-reduce. request: dest, source, bytes."""

    def make(way: Way) -> Any:
        begin, finish, collect, send = way.begin(scope), way.finish(scope), way.collect(scope), way.send_same(scope, unit)
        add_up, of_large = combined(scope, unit, combine, way.word()), way.reduce(scope, unit, combine)

        @device
        def perform(op, c, request):
            dest, source, nbytes = request
            epoch = begin(op, c)
            if nbytes <= window.LL_BYTES:
                send(op, c, epoch, source, nbytes)
                collect(op, c, epoch)
                add_up(op, c, epoch, dest, source, nbytes, size_of(c[1]))
            else:
                epoch = of_large(op, c, epoch, dest, source, nbytes)
            finish(op, c, epoch)

        return perform

    return make


def _reducescatter(scope: Scope, unit: int, combine: Combine) -> Callable[[Way], Any]:
    """request: dest, source, bytes of dest."""

    def make(way: Way) -> Any:
        begin, finish, collect, send = way.begin(scope), way.finish(scope), way.collect(scope), way.send_each(scope, unit)
        add_up, of_large = combined(scope, unit, combine, way.word()), way.reducescatter(scope, unit, combine)

        @device
        def perform(op, c, request):
            dest, source, nbytes = request
            epoch = begin(op, c)
            if nbytes <= window.LL_BYTES:
                send(op, c, epoch, source, nbytes, nbytes)
                collect(op, c, epoch)
                add_up(op, c, epoch, dest, source + u64(rank_of(c[1])) * nbytes, nbytes, size_of(c[1]))
            else:
                epoch = of_large(op, c, epoch, dest, source, nbytes)
            finish(op, c, epoch)

        return perform

    return make


def _scan(scope: Scope, unit: int, combine: Combine, identity: int | None) -> Callable[[Way], Any]:
    """In rounds through staging. request: dest, source, bytes. identity: None, or what member 0 gets (exclusive), as a word."""
    exclusive, neutral = identity is not None, constant(identity or 0)

    def make(way: Way) -> Any:
        begin, finish = way.begin(scope), way.finish(scope, one_sided=True)  # nobody awaits what members behind it send
        collect, send = way.collect(scope), way.send_same(scope, unit)
        add_up, store, rank, size, sync = combined(scope, unit, combine, way.word()), store_word(unit), scope.rank, scope.size, scope.sync

        @device
        def fill(dest, nbytes):
            i = u64(rank()) * _WORD
            while i < nbytes:
                store(dest + i, neutral, nbytes - i)
                i += u64(size()) * _WORD

        @device
        def perform(op, c, request):
            dest, source, nbytes = request
            me, offset = rank_of(c[1]), _0
            while offset < nbytes:
                if offset != _0:
                    sync()
                count = min(nbytes - offset, window.LL_BYTES)
                epoch = begin(op, c)
                send(op, c, epoch, source + offset, count)
                collect(op, c, epoch)
                if exclusive and me == 0:
                    fill(dest + offset, count)
                else:
                    add_up(op, c, epoch, dest + offset, source + offset, count, me if exclusive else u32(me + u32(1)))
                finish(op, c, epoch)
                offset += window.LL_BYTES

        return perform

    return make


def _like_source(name: str, itemsize: int) -> Any:
    """The request of reduce and scan: dest has as many elements as source."""
    fits, nbytes = _fitting(name, itemsize), constant(itemsize)

    @device
    def request(op, c, dest, dest_size, source, source_size):
        if not fits(op, c, dest, dest_size, source_size, source, source_size, source_size):
            return dest, source, _0
        return dest, source, source_size * nbytes

    return request


def _part_of_source(name: str, itemsize: int) -> Any:
    """The request of reducescatter: source has dest's number of elements for every member."""
    fits, nbytes = _fitting(name, itemsize), constant(itemsize)

    @device
    def request(op, c, dest, dest_size, source, source_size):
        if not fits(op, c, dest, dest_size, dest_size, source, source_size, u64(size_of(c[1])) * dest_size):
            return dest, source, _0
        return dest, source, dest_size * nbytes

    return request


def _reducing(plain: str, scope: Scope, request_of: Any, perform_of: Callable[..., Callable[[Way], Any]]) -> Callable[..., Any]:
    """Typing function of ``(team, dest, source, op, channel)``. ``perform_of(scope, unit, op, dtype, combine)`` makes the ways' maker."""
    name = plain + scope.suffix
    number, sync = constant(operation.number(name)), scope.entry(name)

    def typing(team: Any, dest: Any, source: Any, op: Any, channel: Any = 0) -> Any:
        unit, which = _pair(name, team, dest, source, channel), operation_of(name, op)
        combine = reduction(name, which, dest.dtype)
        perform = _alone(name, scope, _by_way(perform_of(scope, unit, which, dest.dtype, combine)))
        request = request_of(name, element_size(dest.dtype))

        def body(team, dest, source, op, channel=0):
            sync()
            c = channel_of(number, team, channel)
            if c[0] != _0:
                wanted = request(number, c, address_of(dest), u64(dest.size), address_of(source), u64(source.size))
                if wanted[2] != _0:
                    perform(number, c, wanted)

        return body

    return typing


def reduce(scope: Scope) -> Callable[..., Any]:
    """Typing function of reduce at a scope."""
    return _reducing("reduce", scope, _like_source, lambda scope, unit, op, dtype, combine: _reduce(scope, unit, combine))


def reducescatter(scope: Scope) -> Callable[..., Any]:
    """Typing function of reducescatter at a scope."""
    return _reducing("reducescatter", scope, _part_of_source, lambda scope, unit, op, dtype, combine: _reducescatter(scope, unit, combine))


def inscan(scope: Scope) -> Callable[..., Any]:
    """Typing function of inscan at a scope."""
    return _reducing("inscan", scope, _like_source, lambda scope, unit, op, dtype, combine: _scan(scope, unit, combine, None))


def exscan(scope: Scope) -> Callable[..., Any]:
    """Typing function of exscan at a scope."""
    return _reducing(
        "exscan", scope, _like_source, lambda scope, unit, op, dtype, combine: _scan(scope, unit, combine, identity(op, dtype))
    )


def best(plain: str, scope: Scope, *, least: bool) -> Callable[..., Any]:
    """Typing function of maxloc, or minloc (least), at a scope."""
    name = plain + scope.suffix

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = _pair(name, team, dest, source, channel)
        for argument, array in (("dest", dest), ("source", source)):
            numbers = isinstance(array.dtype, (types.Integer, types.Float)) and element_size(array.dtype) in (4, 8)
            if array.ndim != 2 or array.layout != "C" or not numbers:
                refuse("pairs", function=name, name=argument, found=array)
        combine = location(array.dtype, least=least)
        return _body(name, scope, _like_source(name, element_size(dest.dtype)), _by_way(_reduce(scope, unit, combine)))

    return typing


# collect and alltoallv --------------------------------------------------------------------------------------------------------------


def collect(scope: Scope) -> Callable[..., Any]:
    """Typing function of collect at a scope."""
    name = "collect" + scope.suffix

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = _pair(name, team, dest, source, channel)
        perform = _alone(name, scope, _by_way(_collect(scope, unit, name, element_size(dest.dtype))))
        op, sync = constant(operation.number(name)), scope.entry(name)

        def body(team, dest, source, channel=0):
            sync()
            c = channel_of(op, team, channel)
            if c[0] != _0:
                perform(op, c, (address_of(dest), u64(dest.size), address_of(source), u64(source.size)))

        return body

    return typing


def _collect(scope: Scope, unit: int, name: str, itemsize: int) -> Callable[[Way], Any]:
    """Every member tells its number of elements, then stores them into every dest. request: dest, its size, source, its size."""
    fits, each = _fitting(name, itemsize), constant(itemsize)

    @device
    def count(q, request):
        return request[3], _0

    @device
    def piece(c, q, request):
        return request

    def make(way: Way) -> Any:
        begin, finish, gather = way.begin(scope), way.finish(scope), way.collect(scope)
        tell, push, word = way.send_words(scope, count), way.push(scope, unit, piece), way.word()

        @device
        def perform(op, c, request):
            dest, dest_size, source, size = request
            epoch = begin(op, c)
            tell(op, c, epoch, request)
            gather(op, c, epoch)
            before, total = _0, _0
            for q in range(size_of(c[1])):
                if q == rank_of(c[1]):
                    before = total
                    total += size
                else:
                    total += word(op, c, epoch, u32(q), _0)
            if fits(op, c, dest, dest_size, total, source, size, size):
                push(op, c, epoch, (dest + before * each, source, size * each))
            finish(op, c, epoch)

        return perform

    return make


def alltoallv(scope: Scope) -> Callable[..., Any]:
    """Typing function of alltoallv at a scope."""
    name = "alltoallv" + scope.suffix
    op, sync = constant(operation.number(name)), scope.entry(name)

    def typing(
        team: Any, dest: Any, dest_counts: Any, dest_displs: Any, source: Any, source_counts: Any, source_displs: Any, channel: Any = 0
    ) -> Any:
        unit = _pair(name, team, dest, source, channel)
        rows = {"dest_counts": dest_counts, "dest_displs": dest_displs, "source_counts": source_counts, "source_displs": source_displs}
        for argument, row in rows.items():
            if not isinstance(row, types.Array) or row.ndim != 1 or not isinstance(row.dtype, types.Integer):
                refuse("row of integers", function=name, name=argument, found=row)
        fits = _fitting(name, element_size(dest.dtype))
        perform = _alone(name, scope, _by_way(_alltoallv(scope, unit, element_size(dest.dtype))))

        def body(team, dest, dest_counts, dest_displs, source, source_counts, source_displs, channel=0):
            sync()
            c = channel_of(op, team, channel)
            if c[0] != _0:
                n = u64(size_of(c[1]))
                shortest = min(min(dest_counts.size, dest_displs.size), min(source_counts.size, source_displs.size))
                to, origin = address_of(dest), address_of(source)
                if u64(shortest) < n:
                    state.fail(_MISFIT, op, n, to, n, u64(shortest), _SOURCE + _1)
                else:
                    needed, had = _0, _0
                    for q in range(n):
                        needed = max(needed, u64(dest_displs[q]) + u64(dest_counts[q]))
                        had = max(had, u64(source_displs[q]) + u64(source_counts[q]))
                    if fits(op, c, to, u64(dest.size), needed, origin, u64(source.size), had):
                        perform(op, c, (op, to, dest_counts, dest_displs, origin, source_counts, source_displs))

        return body

    return typing


def _alltoallv(scope: Scope, unit: int, itemsize: int) -> Callable[[Way], Any]:
    """Every member tells every other where in its dest it takes how many elements; these are stored there.

    request: op, dest, dest_counts, dest_displs, source, source_counts, source_displs.
    """
    each = constant(itemsize)

    @device
    def place(q, request):
        return u64(request[3][q]), u64(request[2][q])

    def make(way: Way) -> Any:
        word = way.word()

        @device
        def piece(c, q, request):
            epoch, (op, dest, dest_counts, dest_displs, source, source_counts, source_displs) = request
            count = u64(source_counts[q])
            if q == rank_of(c[1]):
                displ, room = u64(dest_displs[q]), u64(dest_counts[q])
            else:
                displ, room = word(op, c, epoch, q, _0), word(op, c, epoch, q, _1)
            if count > room:
                state.fail(_OTHER_COUNT, op, u64(member(c[1], q)), dest, count, room, _0)
                count = _0
            return dest + displ * each, source + u64(source_displs[q]) * each, count * each

        begin, finish, gather = way.begin(scope), way.finish(scope), way.collect(scope)
        tell, push = way.send_words(scope, place), way.push(scope, unit, piece)

        @device
        def perform(op, c, request):
            epoch = begin(op, c)
            tell(op, c, epoch, request)
            gather(op, c, epoch)
            push(op, c, epoch, (epoch, request))
            finish(op, c, epoch)

        return perform

    return make


# Queries --------------------------------------------------------------------------------------------------------------------------


def team_my_pe(team: Any) -> Any:
    """Typing function of team_my_pe."""
    return _query("team_my_pe", team, rank_of)


def team_n_pes(team: Any) -> Any:
    """Typing function of team_n_pes."""
    return _query("team_n_pes", team, size_of)


def _query(name: str, team: Any, read: Any) -> Any:
    operands.integer(name, "team", team)
    window.constants()
    op = constant(operation.number(name))

    def body(team):
        entry = entry_of(op, team)
        return i64(read(entry)) if entry != _0 else i64(-1)

    return body


def team_translate_pe(src_team: Any, src_pe: Any, dest_team: Any) -> Any:
    """Typing function of team_translate_pe."""
    for name, argument in (("src_team", src_team), ("src_pe", src_pe), ("dest_team", dest_team)):
        operands.integer("team_translate_pe", name, argument)
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
