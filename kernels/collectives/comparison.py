"""Comparison of the calls that the members of a team make on a channel: different calls are an error, not a wrong result.

A call is a word: operation, op or root, dtype, number of elements, a hash of dest's offset, and the low bits of its epoch. When a
collective begins, a member writes the word to its row at the next and at the previous member; before it ends, the member compares what
these two have written with its own. If any members differ, two adjacent ones do. This costs two stores and two loads, at any team size, and
no round trip: a member that finds no word of this epoch does not wait for it for long, or in one-sided collectives at all. The last threads
of a block do this; they often have no data to move.

*Of two neighbors, at least one compares their words of a collective.* A row has two words, of even and of odd epochs, and a collective also
compares those of the one before. If a member has not found its neighbor's word of e by the end of e + 1, it waited for it in neither, so
both were one-sided. It then begins e + 2, whose word replaces that of e, when the neighbor has acknowledged e (channel.begin()), which
comes after the neighbor's comparison of e.

The host's calls compare always, on the channels that only they use: their words are part of the channel's number. Kernels compare under
PGAS_DEBUG=check and in the simulator, on the other channels, and the rows of barrier_all and sync_all.
"""

import functools
from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.codes import Comparison, Reduction
from pgas.kernels.collectives.channel import row_of
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.ops import operands
from pgas.kernels.ops.team import member, rank_of, size_of, wrapped
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import Scope
from pgas.kernels.state import fixed, fixed_u32
from pgas.kernels.typed import layout

__all__ = ["ANY_SIZE", "compared", "declaring", "described", "differing", "is_of", "same_epoch", "verifying", "verifying_all", "word_of"]

#: Bits of the number of elements (a mantissa, and the exponent of larger numbers), of root or op, of the dtype, of the operation, and of
#: the epoch.
_MANTISSA_BITS, _EXPONENT_BITS, _ROOT_BITS, _DTYPE_BITS, _OPERATION_BITS, _EPOCH_BITS = 22, 5, 12, 5, 4, 16
_ROOT_SHIFT = _MANTISSA_BITS + _EXPONENT_BITS
_DTYPE_SHIFT = _ROOT_SHIFT + _ROOT_BITS
_OPERATION_SHIFT = _DTYPE_SHIFT + _DTYPE_BITS
_EPOCH_SHIFT = _OPERATION_SHIFT + _OPERATION_BITS

#: Bits of an op, and of the place of dest, which follow in the bits of a root. The place is the upper bits of the product of its offset and
#: an odd number, so that neighboring arrays have different places; 0 if it is unknown.
_OP_BITS = 3
_PLACE_BITS, _PLACE_SHIFT, _FACTOR = _ROOT_BITS - _OP_BITS, _ROOT_SHIFT + _OP_BITS, 0x9E37_79B9_7F4A_7C15
_WORD_BITS = 64
_HASH_SHIFT = _WORD_BITS - _PLACE_BITS

#: Collectives by their numbers in words, from 1 on.
_OPERATIONS = (*operation.COLLECTIVES, "barrier_all", "sync_all")

#: Collectives whose words have no place: those without dest; broadcast, whose root takes the bits; reducescatter, where dest may be each
#: member's own part of source; alltoallv, whose members send each other the location in their dest; collect, where dest may be empty.
_NO_PLACE = ("team_sync", "barrier", "barrier_all", "sync_all", "broadcast", "reducescatter", "alltoallv", "collect")

#: Names of dtypes in words, from 1 on; all others are _OTHER.
_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16",
    "complex64", "complex128", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
_OTHER = (1 << _DTYPE_BITS) - 1

_OF_OP = ("reduce", "reducescatter", "inscan", "exscan")

#: Collectives whose members may have different numbers of elements.
ANY_SIZE = ("collect", "alltoallv")

_OTHER_CALL = constant(kind_of("other call"))
_FACTOR_64, _HASH, _PLACE = constant(_FACTOR), constant(_HASH_SHIFT), constant(_PLACE_SHIFT)
_0, _1, _GE = constant(0), constant(1), constant(Comparison.GE)
_EPOCH, _OLDER = constant(_EPOCH_SHIFT), constant(1 << _EPOCH_BITS - 1)
_MANTISSA, _EXPONENT_SHIFT, _ROOT = constant((1 << _MANTISSA_BITS) - 1), constant(_MANTISSA_BITS), constant(_ROOT_SHIFT)

#: Maximum number of polls for a word, which arrives at about the same time as the data.
_POLLS = 256
_MOST_POLLS = constant(_POLLS)


@functools.lru_cache(maxsize=1024)  # Host calls repeat their arguments, and this takes microseconds.
def word_of(name: str, dtype: Any = None, op: Any = None, root: int = 0, size: int = 0, dest: int | None = None) -> int:
    """Return the word of a call, without its epoch; never 0.

    Args:
        name: name of the collective, without its scope.
        dtype: NumPy dtype of the elements.
        op: name of the operation of a reduction.
        root: root of a broadcast.
        size: number of elements. From 4 Mi on, not all bits of it are compared.
        dest: address of dest, if it is known.
    """
    code = 0 if dtype is None else _DTYPES.index(dtype.name) + 1 if dtype.name in _DTYPES else _OTHER
    exponent = max(0, size.bit_length() - _MANTISSA_BITS)
    low = (root if op is None else Reduction[op]) << _ROOT_SHIFT | exponent << _MANTISSA_BITS | size >> exponent
    if dest is not None and has_place(name):
        low |= max((dest & ((1 << window.STRIDE_SHIFT) - 1)) * _FACTOR % (1 << 64) >> _HASH_SHIFT, 1) << _PLACE_SHIFT
    return (_OPERATIONS.index(name) + 1) << _OPERATION_SHIFT | code << _DTYPE_SHIFT | low


def has_place(name: str) -> bool:
    """Whether all members of a collective must have dest at the same offset, and its words have the place of dest."""
    return name not in _NO_PLACE


def described(word: int, other: int = 0) -> str:
    """Return the call of a word as text. A word without an operation is an unknown call.

    other: word with which it is compared: if only their places differ, the text says so.
    """

    def bits(shift: int, count: int) -> int:
        return word >> shift & (1 << count) - 1

    if not bits(_OPERATION_SHIFT, _OPERATION_BITS):
        return "another function"
    name = _OPERATIONS[bits(_OPERATION_SHIFT, _OPERATION_BITS) - 1]
    code, root = bits(_DTYPE_SHIFT, _DTYPE_BITS), bits(_ROOT_SHIFT, _ROOT_BITS)
    size, exponent = bits(0, _MANTISSA_BITS), bits(_MANTISSA_BITS, _EXPONENT_BITS)
    text = f"pgas.{name}"
    if code:
        dtype = "another dtype" if code == _OTHER else _DTYPES[code - 1]
        count = "" if name in ANY_SIZE else f"{'about ' if exponent else ''}{size << exponent} elements of "
        text += f" of {count}{dtype}"
    if name in _OF_OP:
        text += f" with op {Reduction(root & (1 << _OP_BITS) - 1).name}"
    if has_place(name) and (word ^ other) & (1 << _EPOCH_SHIFT) - 1 in range(1 << _PLACE_SHIFT, 1 << _DTYPE_SHIFT, 1 << _PLACE_SHIFT):
        text += ", with dest at another offset on the heap"
    return text + (f" from root {root}" if name == "broadcast" else "")


def is_of(word: int, epoch: int) -> bool:
    """Whether the call of a word, with its epoch, is the collective of an epoch."""
    return word >> _EPOCH_SHIFT == epoch & (1 << _EPOCH_BITS) - 1


def same_epoch(a: int, b: int) -> bool:
    """Whether two calls, with their epochs, are the same collective of a channel."""
    return a >> _EPOCH_SHIFT == b >> _EPOCH_SHIFT


@device
def _neighbor(c, i):
    """Return the number of this member's next member (i: 0), or of its previous one (1)."""
    n = size_of(c[1])
    return wrapped(u32(rank_of(c[1]) + (u32(1) if i == u32(0) else u32(n - u32(1)))), n)


@functools.cache
def _first_neighbor(scope: Scope) -> Any:
    """Make ``first()``: return the first neighbor that this thread compares calls with; two or more for most threads.

    The last 32 threads do this, because others have more data to move.
    """
    rank, size = scope.rank, scope.size

    @device
    def first():
        return u32(rank() + min(size(), u32(32)) - size())

    return first


@device
def _word_at(base, i, epoch):
    """Return the address of member i's word of an epoch."""
    return row_of(base, i) + layout.CALLS + (epoch & _1) * layout.WORD


@functools.cache
def declaring(scope: Scope, flag: Any) -> Any:
    """Make ``declare(c, epoch)``: send the call of c to both neighbors, and keep it in this PE's own row. Called after channel.begin()."""
    first, size = _first_neighbor(scope), scope.size

    @device
    def declare(c, epoch):
        base, entry, call = c
        if call != _0:
            own, mine, i = _word_at(base, rank_of(entry), epoch), call | u64(epoch << _EPOCH), first()
            while i < min(u32(size_of(entry) - u32(1)), u32(2)):
                flag(own, mine, member(entry, _neighbor(c, i)))
                ptx.st_relaxed_gpu_u64(own, mine)
                i = u32(i + size())

    return declare


@device
def _is_older(found, mine):
    return u64(u64(found - mine) >> _EPOCH) >= _OLDER  # The difference of the epochs is negative.


@device
def _differ(found, mine):
    return found >> _EPOCH == mine >> _EPOCH and found != mine


@functools.cache
def verifying(scope: Scope, *, waits: bool) -> Any:
    """Make ``verify(op, c)``: compare the calls of declare() with those of the neighbors. Called when this thread's data has arrived.

    waits: whether the collective has waited for all members.
    """
    first, size, polls_for_word = _first_neighbor(scope), scope.size, constant(_POLLS if waits else 0)

    @device
    def verify(op, c):
        base, entry, call = c
        if call != _0:
            i = first()
            while i < min(u32(size_of(entry) - u32(1)), u32(2)):
                q = _neighbor(c, i)
                own, at = row_of(base, rank_of(entry)) + layout.CALLS, row_of(base, q) + layout.CALLS
                mine, found = ptx.ld_relaxed_sys_pair(own), ptx.ld_relaxed_sys_pair(at)
                polls = _0
                while polls < polls_for_word and (_is_older(found[0], mine[0]) or _is_older(found[1], mine[1])):
                    found = ptx.ld_relaxed_sys_pair(at)
                    polls += _1
                if _differ(found[0], mine[0]):
                    state.fail(_OTHER_CALL, op, u64(member(entry, q)), at, mine[0], found[0], _0)
                if _differ(found[1], mine[1]):
                    state.fail(_OTHER_CALL, op, u64(member(entry, q)), at + layout.WORD, mine[1], found[1], _0)
                i = u32(i + size())

    return verify


@functools.cache
def verifying_all(name: str, flag: Any) -> Any:
    """Make ``declare(rows, n, me, epoch)`` and ``verify(op, rows, n, me, epoch)`` for barrier_all or sync_all. One thread calls them.

    Both wait for all PEs, so a PE compares only the word of the previous PE, and a word is not replaced before it has been compared.
    """
    call = constant(word_of(name))

    @device
    def declare(rows, n, me, epoch):
        if n > u32(1):
            at = rows + u64(me) * layout.ROW_SIZE + layout.CALLS + (epoch & _1) * layout.WORD
            flag(at, call | u64(epoch << _EPOCH), wrapped(u32(me + u32(1)), n))

    @device
    def verify(op, rows, n, me, epoch):
        if n > u32(1):
            q = wrapped(u32(me + n - u32(1)), n)
            at, mine = rows + u64(q) * layout.ROW_SIZE + layout.CALLS + (epoch & _1) * layout.WORD, call | u64(epoch << _EPOCH)
            found, polls = ptx.ld_relaxed_sys_u64(at), _0
            while polls < _MOST_POLLS and _is_older(found, mine):
                found = ptx.ld_relaxed_sys_u64(at)
                polls += _1
            if _differ(found, mine):
                state.fail(_OTHER_CALL, op, u64(q), at, mine, found, _0)

    return declare, verify


@functools.cache
def differing(name: str, dtype: Any) -> Any:
    """Make ``differ(op, c, epoch, q)``: poison the state, because member q has sent something else than this collective sends.

    The error names the call of a neighbor if it is known here. name, dtype: those of word_of().
    """
    called, polls_for_word = constant(word_of(name, dtype)), constant(_POLLS)

    @device
    def differ(op, c, epoch, q):
        base, entry, _ = c
        own, at = _word_at(base, rank_of(entry), epoch), _word_at(base, q, epoch)
        mine, found, polls = ptx.ld_relaxed_gpu_u64(own), ptx.ld_relaxed_sys_u64(at), _0
        while polls < polls_for_word and (mine == _0 or found >> _EPOCH != mine >> _EPOCH):
            state.relax(op, at, _GE, _0)  # In the simulator, this lets the threads that declare calls run.
            mine, found = ptx.ld_relaxed_gpu_u64(own), ptx.ld_relaxed_sys_u64(at)
            polls += _1
        state.fail(_OTHER_CALL, op, u64(member(entry, q)), at, called, found if found >> _EPOCH == mine >> _EPOCH else _0, _0)

    return differ


def compared(perform: Any, word: int, size: Any, root: Any = None, dest: Any = None) -> Any:
    """Return ``perform(op, c, request)`` that compares the calls of kernels, too, under PGAS_DEBUG=check and in the simulator.

    Args:
        word: result of word_of() for what is known when the kernel is compiled.
        size: ``size(request)``, the number of elements.
        root: ``root(request)``, if the collective has one.
        dest: ``dest(request)``, its address, if the collective has_place().
    """
    if not operands.checking():
        return perform
    fixed_word = constant(word)

    @device
    def call_of(request):
        count, exponent = u64(size(request)), _0
        while count > _MANTISSA:
            count = count >> _1
            exponent = exponent + _1
        whole = fixed_word | count | exponent << _EXPONENT_SHIFT
        if dest is not None:
            whole = whole | max(u64((dest(request) & window.OFFSET_MASK) * _FACTOR_64) >> _HASH, _1) << _PLACE
        return whole if root is None else whole | u64(root(request)) << _ROOT

    @device
    def comparing(op, c, request):
        base, entry, call = c
        of_kernels = u64(fixed_u32(entry + layout.CHANNEL_COUNT)) * u64(fixed_u32(entry + layout.CHANNEL_BYTES))
        if base - fixed(entry + layout.TEAM_CHANNELS) < of_kernels:
            call = call_of(request)
        perform(op, (base, entry, call), request)

    return comparing
