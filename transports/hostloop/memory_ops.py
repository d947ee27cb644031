"""Primitives of compiled loops on the CPU, as LLVM instructions.

They are intrinsics, not compiled functions like those of pgas.sim.memory, because LLVM would have to inline hundreds of calls. Also,
compiled lambdas share one mangled name when they come from the disk cache, so that the linker could pick a wrong one.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import int32, types, uint32
from numba.core.extending import intrinsic
from numba.core.typing import signature

from pgas.native.cpu import on_host

_I64 = ir.IntType(64)

#: Limits of idle(), which spins in the first SPINS turns, yields up to turn YIELDS, then sleeps between SLEEP_MIN_US and SLEEP_MAX_US.
SPINS, YIELDS = 200, 1000
SLEEP_MIN_US, SLEEP_MAX_US = 10, 500

#: Number of the last turn for which idle() sleeps at most 50 µs. Threads for which kernels wait must not count beyond it.
LAST_SHORT_TURN = YIELDS + 4 * (50 - SLEEP_MIN_US)

#: A yield that takes longer shows that another thread needs the core; idle() then goes on with this turn, of 200 µs.
CROWDED_NS, CROWDED_TURN = 50_000, YIELDS + 4 * (200 - SLEEP_MIN_US)


def _primitive(arity: int, build: Callable[..., Any]) -> Any:
    """Make an intrinsic of int64 arguments and an int64 result. build: builds its instructions."""

    def typing(*args: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, values: Any) -> Any:
            value = build(builder, *values)
            return _I64(0) if value is None else value

        return signature(types.int64, *[types.int64] * arity), codegen

    forms = (
        lambda typingctx: typing(),
        lambda typingctx, a: typing(a),
        lambda typingctx, a, b: typing(a, b),
        lambda typingctx, a, b, c: typing(a, b, c),
        lambda typingctx, a, b, c, d: typing(a, b, c, d),
    )
    return intrinsic(forms[arity])


def _pointer(builder: Any, address: Any, nbytes: int) -> Any:
    return builder.inttoptr(address, ir.IntType(8 * nbytes).as_pointer())


def _load(nbytes: int, order: str, *, big_endian: bool = False) -> Any:
    """Make a load. order: LLVM's memory order; "" for a load from any address, which is not atomic."""

    def build(builder: Any, address: Any) -> Any:
        pointer = _pointer(builder, address, nbytes)
        value = builder.load_atomic(pointer, order, nbytes) if order else builder.load(pointer, align=1)
        if big_endian:
            value = builder.bswap(value)
        return builder.zext(value, _I64) if nbytes < 8 else value

    return _primitive(1, build)


def _store(nbytes: int, order: str) -> Any:
    def build(builder: Any, address: Any, value: Any) -> None:
        narrow = builder.trunc(value, ir.IntType(8 * nbytes)) if nbytes < 8 else value
        builder.store_atomic(narrow, _pointer(builder, address, nbytes), order, nbytes)

    return _primitive(2, build)


def _update(op: str) -> Any:
    return _primitive(2, lambda builder, address, value: builder.atomic_rmw(op, _pointer(builder, address, 8), value, "seq_cst"))


def _compare_swap(nbytes: int) -> Any:
    def build(builder: Any, address: Any, expected: Any, value: Any) -> Any:
        if nbytes < 8:
            expected, value = (builder.trunc(v, ir.IntType(8 * nbytes)) for v in (expected, value))
        pair = builder.cmpxchg(_pointer(builder, address, nbytes), expected, value, "seq_cst", "seq_cst")
        found = builder.extract_value(pair, 0)
        return builder.zext(found, _I64) if nbytes < 8 else found

    return _primitive(3, build)


def _call(second_bits: int) -> Any:
    def build(builder: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
        pointer, int_ = ir.IntType(8).as_pointer(), ir.IntType(32)
        types_ = [pointer, int_ if second_bits == 32 else pointer, pointer]
        callee = builder.inttoptr(function, ir.FunctionType(int_, types_).as_pointer())
        middle = builder.trunc(second, int_) if second_bits == 32 else builder.inttoptr(second, pointer)
        return builder.sext(builder.call(callee, [builder.inttoptr(first, pointer), middle, builder.inttoptr(third, pointer)]), _I64)

    return _primitive(4, build)


def _stack_words(builder: Any) -> Any:
    with builder.goto_entry_block():
        words = builder.alloca(ir.ArrayType(_I64, 2))
    return builder.ptrtoint(words, _I64)


def _swap32(builder: Any, value: Any) -> Any:
    return builder.zext(builder.bswap(builder.trunc(value, ir.IntType(32))), _I64)


# Relaxed loads and stores of 8 bytes, and of narrower words.
load, load_u8, load_u32 = (_load(n, "monotonic") for n in (8, 1, 4))
store, store_u8, store_u16, store_u32 = (_store(n, "monotonic") for n in (8, 1, 2, 4))

#: Loads from unaligned addresses; they may be split into several accesses.
load_any, load_any_u16, load_any_u32 = (_load(n, "") for n in (8, 2, 4))

#: Acquire loads, release stores.
load_acquire, load_be32_acquire = _load(8, "acquire"), _load(4, "acquire", big_endian=True)
store_release = _store(8, "release")

#: An acquire load of a word that publishes others.
load_published = load_acquire

#: Big-endian words.
load_be32, load_be64 = _load(4, "monotonic", big_endian=True), _load(8, "monotonic", big_endian=True)
swap32, swap64 = _primitive(1, _swap32), _primitive(1, lambda builder, value: builder.bswap(value))

#: Atomic updates of 8 bytes, sequentially consistent; they return the old value.
add, exchange = _update("add"), _update("xchg")
compare_swap, compare_swap_u32 = _compare_swap(8), _compare_swap(4)

#: Order all earlier accesses before all later ones, for every observer (fence.acq_rel.sys).
fence = _primitive(0, lambda builder: builder.fence("seq_cst"))

#: The address of two words on the stack of the calling function.
stack_words = _primitive(0, _stack_words)

#: Call the int (*)(void *, X, void *) at an address; X is a pointer, or an int of 32 bits.
call_with_pointer, call_with_int = _call(64), _call(32)

#: Stores to memory that other threads poll; they are neither torn nor delayed.
store_data, store_data_u8, store_data_u16, store_data_u32 = store, store_u8, store_u16, store_u32

#: Loads of operands that other threads update by atomics.
load_shared, load_shared_u32 = load, _load(4, "monotonic")

_clock_gettime = types.ExternalFunction("clock_gettime", int32(int32, types.intp))
_CLOCK_MONOTONIC = 1
_sched_yield = types.ExternalFunction("sched_yield", int32())
_usleep = types.ExternalFunction("usleep", int32(uint32))
move = types.ExternalFunction("memmove", types.intp(types.intp, types.intp, types.intp))


@on_host
def clock() -> int:
    """Return nanoseconds of CLOCK_MONOTONIC."""
    pair = stack_words()
    _clock_gettime(int32(_CLOCK_MONOTONIC), pair)
    return load(pair) * 1_000_000_000 + load(pair + 8)


@on_host
def worked(turns: int) -> int:
    """Return the turns with which idle() begins again after work: a thread that has slept yields next, to see whether the core is free."""
    return 0 if turns < YIELDS else SPINS - 1


@on_host
def idle(turns: int) -> int:
    """Back off: spin, then yield, then sleep. Return the number of turns from which the caller counts on.

    Sleeps grow by 1 µs every fourth turn: 50 µs after about 5 ms without work, 500 µs after half a second. A doorbell therefore waits at
    most a hundredth of the preceding idle time, and an idle software NIC costs next to nothing. But if another thread needs the core,
    sleeps of 200 µs begin at once, because the scheduler gives threads that yield an equal share of it, and shorter sleeps leave much of a
    crowded core to switches between threads.

    Args:
        turns: consecutive turns of the caller's loop without work.
    """
    if turns < SPINS:
        return turns
    if turns < YIELDS:
        before = clock()
        _sched_yield()
        return turns if clock() - before < CROWDED_NS else CROWDED_TURN
    _usleep(uint32(min(SLEEP_MAX_US, SLEEP_MIN_US + (turns - YIELDS) // 4)))
    return turns
