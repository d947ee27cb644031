"""Team collectives that move elements, for small and large messages (OpenSHMEM 1.5, "Collective Routines").

Each function takes the Numba types of a call's arguments and returns its body, like those of rma.py. A ``strategy`` (strategy.py) transfers
data between members that map each other's memory, or between others. ``c`` is what channel.channel_of() returns.

Messages of up to PGAS_LL_BYTES from one member to another (Strategy.staged) go through staging, so that dest need not be ready before the
call. Larger ones are written into dest.
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.collectives import sizes
from pgas.kernels.collectives.call import alone, any_size, by_strategy, dividing, entering, fitting, of_arrays, pair, sized
from pgas.kernels.collectives.comparison import differing
from pgas.kernels.collectives.strategy import Strategy
from pgas.kernels.collectives.words import copy_words, first_of, in_batches, store_four, store_word
from pgas.kernels.compiler import address_of, constant, device, element_size, numpy_dtype, types, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.team import after, member, rank_of, size_of
from pgas.kernels.refusals import kind_of, refuse
from pgas.kernels.scope import BLOCK, Scope
from pgas.kernels.typed import layout

_0, _1, _3, _4 = (constant(c) for c in (0, 1, 3, 4))
_DEST, _SOURCE = constant(operation.SYMMETRIC), constant(operation.LOCAL)
_MISFIT, _IN_PLACE = constant(kind_of("misfit")), constant(kind_of("in place"))
_NO_MEMBER, _OTHER_COUNT = constant(kind_of("no member")), constant(kind_of("other count"))
_NEGATIVE = constant(state.NEGATIVE)


# alltoall and fcollect ------------------------------------------------------------------------------------------------------------


def _received(scope: Scope, unit: int, strategy: Strategy) -> Any:
    """Make ``receive(op, c, epoch, dest, step, nbytes)``: copy nbytes of each other member q from staging to dest + q * step."""
    store, store_all, word, four, first = store_word(unit), store_four(unit), strategy.word(), strategy.four(), first_of(scope)
    size, batches = scope.size, in_batches(scope)

    @device
    def receive(op, c, epoch, dest, step, nbytes):
        n = size_of(c[1])
        q = rank_of(c[1])
        for k in range(1, n):
            q = after(q, n)
            i, stride, to = first(k), u64(size()), dest + u64(q) * step
            while batches and (i + _3 * stride) * layout.WORD + layout.WORD <= nbytes:
                store_all(to + i * layout.WORD, stride * layout.WORD, four(op, c, epoch, q, i, stride), nbytes - i * layout.WORD)
                i += _4 * stride
            while i * layout.WORD < nbytes:
                store(to + i * layout.WORD, word(op, c, epoch, q, i), nbytes - i * layout.WORD)
                i += stride

    return receive


def _alltoall(scope: Scope, unit: int, *, same: bool) -> Callable[[Strategy], Any]:
    """Perform alltoall, or fcollect (same: all members get the same data). request: see call.body_of()."""

    @device
    def piece(c, q, request):
        dest, source, nbytes, step = request
        return dest + u64(rank_of(c[1])) * step, source if same else source + u64(q) * step, nbytes

    def make(strategy: Strategy) -> Any:
        begin, finish, gather = strategy.begin(scope), strategy.finish(scope), strategy.gather(scope)
        send, receive, own = strategy.send_each(scope, unit), _received(scope, unit, strategy), copy_words(scope, unit)
        send_same, fcollect_large = strategy.send_same(scope, unit), strategy.fcollect(scope, unit)
        exchange_large, staged = strategy.exchange(scope, unit, piece), strategy.staged(scope)

        @device
        def perform(op, c, request):
            dest, source, nbytes, step = request
            epoch = begin(op, c)
            if nbytes <= staged:
                if same:
                    send_same(op, c, epoch, source, nbytes)
                else:
                    send(op, c, epoch, source, step, nbytes)
                to, origin, _ = piece(c, rank_of(c[1]), request)
                if to != origin:
                    own(to, origin, nbytes)
                gather(op, c, epoch)
                receive(op, c, epoch, dest, step, nbytes)
            elif same:
                fcollect_large(op, c, epoch, request)
            else:
                exchange_large(op, c, epoch, request)
            finish(op, c, epoch)

        return perform

    return make


def _all_of_notes(name: str, itemsize: int) -> Any:
    """Make the request of fcollect for the host's team-setup records in team memory (pgas/api/team.py)."""
    nbytes = constant(itemsize)

    @device
    def request(op, c, dest, dest_size, source, source_size):
        return dest, source, source_size * nbytes

    return request


def alltoall(scope: Scope) -> Callable[..., Any]:
    """Typing function of alltoall at a scope."""
    return of_arrays("alltoall", scope, functools.partial(_alltoall, same=False))


def fcollect(scope: Scope, *, notes: bool = False) -> Callable[..., Any]:
    """Typing function of fcollect at a scope. notes: for the team-setup records that members exchange when they create a team."""
    return of_arrays("fcollect", scope, functools.partial(_alltoall, same=True), _all_of_notes if notes else None)


# broadcast ------------------------------------------------------------------------------------------------------------------------


@device
def _root(request):
    return request[4]


def broadcast(scope: Scope) -> Callable[..., Any]:
    """Typing function of broadcast at a scope."""
    name = "broadcast" + scope.suffix
    op = constant(operation.number(name))

    def make(team: Any, dest: Any, source: Any, root: Any, channel: Any, part: Any) -> Any:
        unit = pair(name, team, dest, source, channel)
        operands.integer(name, "root", root)
        enter = entering(scope, name, operands.contiguous(name, dest=dest, source=source))
        fits, itemsize = fitting(name, element_size(dest.dtype)), constant(element_size(dest.dtype))
        compared = sized("broadcast", by_strategy(_broadcast(scope, unit)), dest.dtype, root=_root)
        perform, divide = alone(name, scope, compared), dividing(name, part)

        @device
        def call(team, dest, source, root, channel, part):
            c = enter(team, dest, source, channel)
            if c[0] != _0:
                if u64(root) >= u64(size_of(c[1])):
                    state.fail(_NO_MEMBER, op, u64(size_of(c[1])), _0, u64(root), _0, _0)
                elif source.size != 0:
                    size, to, origin = u64(source.size), address_of(dest), address_of(source)
                    if fits(op, c, to, u64(dest.size), size, origin, size, size):
                        first, nbytes = divide(size * itemsize, part)
                        if nbytes != _0:
                            perform(op, c, (to + first, origin + first, nbytes, size * itemsize, u32(root)))

        return call

    def typing(team: Any, dest: Any, source: Any, root: Any, channel: Any = 0) -> Any:
        call = make(team, dest, source, root, channel, None)

        def body(team, dest, source, root, channel=0):
            call(team, dest, source, root, channel, None)

        return body

    def typing_of_block(team: Any, dest: Any, source: Any, root: Any, channel: Any = 0, part: Any = None) -> Any:
        call = make(team, dest, source, root, channel, part)

        def body(team, dest, source, root, channel=0, part=None):
            call(team, dest, source, root, channel, part)

        return body

    return typing_of_block if scope is BLOCK else typing


def _broadcast(scope: Scope, unit: int) -> Callable[[Strategy], Any]:
    """Perform broadcast. request: dest, source, bytes, bytes of the whole message, root."""

    def make(strategy: Strategy) -> Any:
        begin, finish, gather = strategy.begin(scope), strategy.finish(scope, one_sided=True), strategy.gather_from(scope)
        send, own, broadcast_large = strategy.send_same(scope, unit), copy_words(scope, unit), strategy.broadcast(scope, unit)
        store, word, rank, size = store_word(unit), strategy.word(), scope.rank, scope.size

        @device
        def perform(op, c, request):
            dest, source, nbytes, whole, root = request
            epoch = begin(op, c)
            if nbytes > window.LL_BYTES:
                broadcast_large(op, c, epoch, dest, source, nbytes, whole, root)
            elif root == rank_of(c[1]):
                send(op, c, epoch, source, nbytes)
                if dest != source:
                    own(dest, source, nbytes)
            else:
                gather(op, c, epoch, root)
                i = u64(rank())
                while i * layout.WORD < nbytes:
                    store(dest + i * layout.WORD, word(op, c, epoch, root, i), nbytes - i * layout.WORD)
                    i += u64(size())
            finish(op, c, epoch)

        return perform

    return make


# collect and alltoallv --------------------------------------------------------------------------------------------------------------

#: Collectives whose members send each other numbers of elements, and the upper 16 bits of these numbers, to which the size of an element
#: is added. Other bits there are data of another call, which must not become an address.
_TAGS = {"collect": 0xC0E0, "alltoallv": 0xA2A0}

_TAG_SHIFT, _NUMBER = constant(48), constant((1 << 48) - 1)


def _tag_of(plain: str, itemsize: int) -> Any:
    return constant(_TAGS[plain] + itemsize << 48)


def _tagged(tag: Any) -> Any:
    """Make ``is_tagged(word)``: whether a word that a member sent is a number of the same call."""

    @device
    def is_tagged(word):
        return word >> _TAG_SHIFT == tag >> _TAG_SHIFT

    return is_tagged


def collect(scope: Scope) -> Callable[..., Any]:
    """Typing function of collect at a scope."""
    name = "collect" + scope.suffix

    def typing(team: Any, dest: Any, source: Any, channel: Any = 0) -> Any:
        unit = pair(name, team, dest, source, channel)
        perform = any_size("collect", scope, by_strategy(_collect(scope, unit, name, dest.dtype)), dest.dtype)
        op, enter = constant(operation.number(name)), entering(scope, name, operands.contiguous(name, dest=dest, source=source))

        def body(team, dest, source, channel=0):
            c = enter(team, dest, source, channel)
            if c[0] != _0:
                perform(op, c, (address_of(dest), u64(dest.size), address_of(source), u64(source.size)))

        return body

    return typing


def _collect(scope: Scope, unit: int, name: str, dtype: Any) -> Callable[[Strategy], Any]:
    """All members exchange their element counts, then store their elements into every dest. request: dest, its size, source, its size."""
    itemsize = element_size(dtype)
    fits, each, in_place = fitting(name, itemsize), constant(itemsize), device(sizes.of("collect").in_place)
    tag, differ = _tag_of("collect", itemsize), differing("collect", numpy_dtype(dtype))
    is_tagged = _tagged(tag)

    @device
    def count(q, request):
        return request[3] | tag, _0

    @device
    def piece(c, q, request):
        return request

    def make(strategy: Strategy) -> Any:
        begin, finish, gather = strategy.begin(scope), strategy.finish(scope), strategy.gather(scope)
        announce, exchange, word = strategy.send_words(scope, count), strategy.exchange(scope, unit, piece), strategy.word()

        @device
        def perform(op, c, request):
            dest, dest_size, source, size = request
            if in_place(dest == source, u64(size_of(c[1])), rank_of(c[1]), dest_size, size):
                state.fail(_IN_PLACE, op, u64(size_of(c[1])), dest, _0, _0, _DEST)
                return
            epoch = begin(op, c)
            announce(op, c, epoch, request)
            gather(op, c, epoch)
            before, total, alike = _0, _0, True
            for q in range(size_of(c[1])):
                if q == rank_of(c[1]):
                    before = total
                    total += size
                else:
                    found = word(op, c, epoch, u32(q), _0)
                    total += found & _NUMBER
                    if not is_tagged(found):
                        differ(op, c, epoch, u32(q))
                        alike = False
            if alike and fits(op, c, dest, dest_size, total, source, size, size):
                exchange(op, c, epoch, (dest + before * each, source, size * each))
            finish(op, c, epoch)

        return perform

    return make


def alltoallv(scope: Scope) -> Callable[..., Any]:
    """Typing function of alltoallv at a scope."""
    name = "alltoallv" + scope.suffix
    op = constant(operation.number(name))

    def typing(
        team: Any, dest: Any, dest_counts: Any, dest_displs: Any, source: Any, source_counts: Any, source_displs: Any, channel: Any = 0
    ) -> Any:
        unit = pair(name, team, dest, source, channel)
        rows = {"dest_counts": dest_counts, "dest_displs": dest_displs, "source_counts": source_counts, "source_displs": source_displs}
        for argument, row in rows.items():
            if not isinstance(row, types.Array) or row.ndim != 1 or not isinstance(row.dtype, types.Integer):
                refuse("row of integers", function=name, name=argument, found=operands.described(row))
        enter = entering(scope, name, operands.contiguous(name, dest=dest, source=source))
        fits, in_place = fitting(name, element_size(dest.dtype)), device(sizes.of("alltoallv").in_place)
        perform = any_size("alltoallv", scope, by_strategy(_alltoallv(scope, unit, dest.dtype)), dest.dtype)

        def body(team, dest, dest_counts, dest_displs, source, source_counts, source_displs, channel=0):
            c = enter(team, dest, source, channel)
            if c[0] != _0:
                n = u64(size_of(c[1]))
                shortest = min(min(dest_counts.size, dest_displs.size), min(source_counts.size, source_displs.size))
                to, origin = address_of(dest), address_of(source)
                if u64(shortest) < n:
                    state.fail(_MISFIT, op, n, to, n, u64(shortest), _SOURCE + _1)
                else:
                    needed, had = _0, _0
                    for q in range(n):
                        needed = max(needed, _end(u64(dest_displs[q]), u64(dest_counts[q])))
                        had = max(had, _end(u64(source_displs[q]), u64(source_counts[q])))
                    if in_place(to == origin, n, rank_of(c[1]), needed, had):
                        state.fail(_IN_PLACE, op, n, to, _0, _0, _DEST)
                    elif fits(op, c, to, u64(dest.size), needed, origin, u64(source.size), had):
                        perform(op, c, (op, to, dest_counts, dest_displs, origin, source_counts, source_displs))

        return body

    return typing


@device
def _end(displ, count):
    """Return the end of a part, 0 for an empty one; if displ or count is negative, a number beyond the size of any array."""
    if count == _0:
        return _0
    return displ + count if displ < _NEGATIVE and count < _NEGATIVE else _NEGATIVE


def _alltoallv(scope: Scope, unit: int, dtype: Any) -> Callable[[Strategy], Any]:
    """Every member sends each other member the location in its dest and the number of elements; then all write there.

    request: op, dest, dest_counts, dest_displs, source, source_counts, source_displs.
    """
    itemsize = element_size(dtype)
    each, tag, differ = constant(itemsize), _tag_of("alltoallv", itemsize), differing("alltoallv", numpy_dtype(dtype))
    is_tagged = _tagged(tag)

    @device
    def place(q, request):
        return u64(request[3][q]) & _NUMBER | tag, u64(request[2][q]) & _NUMBER | tag

    def make(strategy: Strategy) -> Any:
        word = strategy.word()

        @device
        def piece(c, q, request):
            epoch, (op, dest, dest_counts, dest_displs, source, source_counts, source_displs) = request
            count = u64(source_counts[q])
            if q == rank_of(c[1]):
                displ, room = u64(dest_displs[q]), u64(dest_counts[q])
            else:
                displ, room = word(op, c, epoch, q, _0), word(op, c, epoch, q, _1)
                if not is_tagged(displ) or not is_tagged(room):
                    differ(op, c, epoch, q)
                    count = _0
                displ, room = displ & _NUMBER, room & _NUMBER
            if count > room:
                state.fail(_OTHER_COUNT, op, u64(member(c[1], q)), dest, count, room, _0)
                count = _0
            return dest + displ * each, source + u64(source_displs[q]) * each, count * each

        begin, finish, gather = strategy.begin(scope), strategy.finish(scope), strategy.gather(scope)
        announce, exchange = strategy.send_words(scope, place), strategy.exchange(scope, unit, piece)

        @device
        def perform(op, c, request):
            epoch = begin(op, c)
            announce(op, c, epoch, request)
            gather(op, c, epoch)
            exchange(op, c, epoch, (epoch, request))
            finish(op, c, epoch)

        return perform

    return make
