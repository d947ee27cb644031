"""nvshmem4py's device functions for Numba kernels: each calls a function of pgas, with NVSHMEM's semantics where they differ.

Operands have NVSHMEM's order. Functions of an element take the first one of an array. Copies move as many elements as the smaller array
has. A typing function gets the types of the operands and returns the body, like those of kernels/ops; here many are lambdas.
"""

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from pgas import api
from pgas.kernels import operation, state
from pgas.kernels.collectives import channel
from pgas.kernels.compiler import KernelTypeError, address_of, backend, constant, ptx, types, u64
from pgas.kernels.ops import operands, query
from pgas.kernels.paths import transport

__all__ = [
    "SmemAmount", "alltoall", "alltoall_block", "alltoall_warp", "ask_smem", "atomic_add", "atomic_and", "atomic_compare_swap",
    "atomic_fetch", "atomic_fetch_add", "atomic_fetch_and", "atomic_fetch_inc", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc",
    "atomic_or", "atomic_set", "atomic_swap", "atomic_xor", "barrier", "barrier_all", "barrier_all_block", "barrier_all_warp",
    "barrier_block", "barrier_warp", "broadcast", "broadcast_block", "broadcast_warp", "fcollect", "fcollect_block", "fcollect_warp", "g",
    "get", "get_block", "get_multicast_array", "get_nbi", "get_nbi_block", "get_nbi_warp", "get_peer_array", "get_warp", "give_smem",
    "my_pe", "n_pes", "p", "put", "put_block", "put_nbi", "put_nbi_block", "put_nbi_warp", "put_signal", "put_signal_block",
    "put_signal_nbi", "put_signal_nbi_block", "put_signal_nbi_warp", "put_signal_warp", "put_warp", "reduce", "reduce_block",
    "reduce_warp", "reducescatter", "reducescatter_block", "reducescatter_warp", "release_smem", "signal_op", "signal_wait", "sync",
    "sync_all", "sync_all_block", "sync_all_warp", "sync_block", "sync_warp", "team_my_pe", "team_n_pes",
]  # fmt: skip

SmemAmount = IntEnum("SmemAmount", ["SMEM_RECOMMENDED", "SMEM_MINIMUM", "SMEM_BARRIERS_ONLY"], start=0)
OPERATIONS = ("sum", "prod", "min", "max", "and", "or", "xor")

#: Functions of pgas whose names differ from those here.
MEANS = {"sync": "team_sync", "signal_wait": "signal_wait_until", "get_peer_array": "ptr"}

#: What a program may notice, by name.
DIFFERS = {
    **dict.fromkeys(
        [f"{kind}{nbi}{form}" for kind in ("put", "get", "put_signal") for nbi in ("", "_nbi") for form in ("", "_warp", "_block")],
        "both arrays must have the same number of dimensions; for `put_signal`, also the same size, if they have several",
    ),
    "fcollect": "each thread that calls it performs it, one after another; on all members, equally many threads must call it",
    "get_peer_array": "in the simulator, access to memory that is not mapped raises an error instead of ending the process",
}  # fmt: skip

#: What pgas lacks, and what to use instead.
MISSING = {
    "ask_smem": "pgas needs no fixed amount; pass an array of 2,048 bytes or more to pgas.give_smem_block",
    "give_smem": "pgas uses shared memory only in calls that name it; use pgas.give_smem_block(array) and pgas.put_block(..., smem=array)",
    "release_smem": "pgas uses shared memory only in calls that name it; there is nothing to release",
    "get_multicast_array": "pgas has no multicast memory; use pgas.broadcast or pgas.reduce",
}


def _function(name: str, typing: Callable[..., Any], bind: Callable[..., Any] = backend.overload) -> Any:
    typing.__name__ = f"nvshmem.core.device.numba.{name}"  # the name in messages

    @functools.wraps(typing)
    def on_host(*args: Any, **kwargs: Any) -> None:
        raise TypeError(f"nvshmem.core.device.numba.{name} is a device function: call it inside a kernel")

    function = bind(typing, typing, on_host)
    function.__name__ = function.__qualname__ = name
    return function


def _of(name: str, make: Callable[[Any], Any]) -> Any:
    """Return a function. make: returns the typing function, from the function of pgas."""
    plain = name.removesuffix("_warp").removesuffix("_block")
    return _function(name, make(getattr(api, MEANS.get(plain, plain) + name.removeprefix(plain))))


def _forms(name: str, make: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """Return the functions of a thread, a warp, and a block."""
    return _of(name, make), _of(f"{name}_warp", make), _of(f"{name}_block", make)


def _flat(*arguments):
    return all(isinstance(a, types.Array) and a.ndim == 1 for a in arguments)


def _at_first(array, body):
    """Return a body that uses the array's first element. body: function of its index."""
    return body((0,) * array.ndim if isinstance(array, types.Array) and array.ndim != 1 else 0)


# Copies, elements, signals --------------------------------------------------------------------------------------------------------


def _copy(move):
    def typing(dst, src, pe):
        if not (isinstance(dst, types.Array) and isinstance(src, types.Array)):
            return lambda dst, src, pe: move(dst, src, pe)  # its message names the operand
        return lambda dst, src, pe: move(dst, src, pe, min(src.size, dst.size))

    return typing


def _copy_and_signal(move):
    def typing(dst, src, signal_var, signal_val, signal_op, pe):
        def body(i):
            return lambda dst, src, signal_var, signal_val, signal_op, pe: move(dst, src, signal_var, i, signal_val, signal_op, pe)

        def checked(i):
            return lambda dst, src, signal_var, signal_val, signal_op, pe: move(
                dst[: src.size], src[: dst.size], signal_var, i, signal_val, signal_op, pe
            )

        # Without checks, pgas moves as many elements as the smaller array has.
        return _at_first(signal_var, checked if operands.checking() and _flat(dst, src) else body)

    return typing


def _update(f):
    return lambda dst, value, pe: _at_first(dst, lambda i: lambda dst, value, pe: f(dst, i, value, pe))


def _increment(f):
    return lambda dst, pe: _at_first(dst, lambda i: lambda dst, pe: f(dst, i, pe))


def _fetch(f):
    return lambda src, pe: _at_first(src, lambda i: lambda src, pe: f(src, i, pe))


def _send(f):
    def typing(signal_var, signal_val, signal_op, pe):
        return _at_first(signal_var, lambda i: lambda signal_var, signal_val, signal_op, pe: f(signal_var, i, signal_val, signal_op, pe))

    return typing


def _wait(f):
    def typing(signal_var, signal_op, signal_val):
        return _at_first(signal_var, lambda i: lambda signal_var, signal_op, signal_val: f(signal_var, i, signal_op, signal_val))

    return typing


put, put_warp, put_block = _forms("put", _copy)
get, get_warp, get_block = _forms("get", _copy)
put_nbi, put_nbi_warp, put_nbi_block = _forms("put_nbi", _copy)
get_nbi, get_nbi_warp, get_nbi_block = _forms("get_nbi", _copy)
put_signal, put_signal_warp, put_signal_block = _forms("put_signal", _copy_and_signal)
put_signal_nbi, put_signal_nbi_warp, put_signal_nbi_block = _forms("put_signal_nbi", _copy_and_signal)
p = _of("p", lambda f: lambda dst, src, pe: _at_first(dst, lambda i: lambda dst, src, pe: f(dst, i, src, pe)))
g, atomic_fetch = _of("g", _fetch), _of("atomic_fetch", _fetch)
atomic_inc, atomic_fetch_inc = _of("atomic_inc", _increment), _of("atomic_fetch_inc", _increment)
atomic_set, atomic_swap = _of("atomic_set", _update), _of("atomic_swap", _update)
atomic_add, atomic_fetch_add = _of("atomic_add", _update), _of("atomic_fetch_add", _update)
atomic_and, atomic_fetch_and = _of("atomic_and", _update), _of("atomic_fetch_and", _update)
atomic_or, atomic_fetch_or = _of("atomic_or", _update), _of("atomic_fetch_or", _update)
atomic_xor, atomic_fetch_xor = _of("atomic_xor", _update), _of("atomic_fetch_xor", _update)
atomic_compare_swap = _of(
    "atomic_compare_swap",
    lambda f: lambda dst, cond, value, pe: _at_first(dst, lambda i: lambda dst, cond, value, pe: f(dst, i, cond, value, pe)),
)
signal_op, signal_wait = _of("signal_op", _send), _of("signal_wait", _wait)

# Queries and collectives ----------------------------------------------------------------------------------------------------------

my_pe, n_pes, team_my_pe, team_n_pes = api.my_pe, api.n_pes, api.team_my_pe, api.team_n_pes
sync_all, sync_all_warp, sync_all_block = api.sync_all, api.sync_all_warp, api.sync_all_block
barrier_all, barrier_all_warp, barrier_all_block = api.barrier_all, api.barrier_all_warp, api.barrier_all_block


def _reduction(perform):
    def typing(team, dst_array, src_array, op):
        name = getattr(op, "literal_value", None)
        if name not in OPERATIONS:
            found = operands.described(op) if name is None else repr(name)
            allowed = f"one of the constants {', '.join(OPERATIONS)}"
            raise KernelTypeError(f"nvshmem.core.device.numba.{perform.__name__}: op must be {allowed}, not {found}")
        operation = getattr(api, name.upper())
        if perform.__name__.startswith("reducescatter") or not _flat(dst_array, src_array):
            return lambda team, dst_array, src_array, op: perform(team, dst_array, src_array, operation)
        return lambda team, dst_array, src_array, op: perform(team, dst_array, src_array[: dst_array.size], operation)

    return typing


def _fcollect(perform):
    op = constant(operation.number("fcollect"))

    def typing(team, dst_array, src_array):
        if perform is not api.fcollect:
            return lambda team, dst_array, src_array: perform(team, dst_array, src_array)
        operands.team("fcollect", "team", team)

        def in_turn(team, dst_array, src_array):
            base = channel.channel_of(op, team, 0)[0]
            if base == 0:
                return
            for lane in range(32):  # one lane after another, because a lane that waits may delay the lane of its warp that has the turn
                if lane == ptx.lane():
                    channel.take_turn(op, base)
                    perform(team, dst_array, src_array)
                    channel.end_turn(base)

        return in_turn

    return typing


def _broadcast(perform):
    def typing(team, dst_array, src_array, root=0):
        if not _flat(dst_array, src_array):
            return lambda team, dst_array, src_array, root=0: perform(team, dst_array, src_array, root)
        return lambda team, dst_array, src_array, root=0: perform(team, dst_array, src_array[: dst_array.size], root)

    return typing


def _alltoall(perform):
    members = api.team_n_pes

    def typing(team, dst_array, src_array):
        if not _flat(dst_array, src_array):
            return lambda team, dst_array, src_array: perform(team, dst_array, src_array)
        return lambda team, dst_array, src_array: perform(team, dst_array, src_array[: src_array.size - src_array.size % members(team)])

    return typing


sync, sync_warp, sync_block = _forms("sync", lambda f: lambda team: lambda team: f(team))
barrier, barrier_warp, barrier_block = _forms("barrier", lambda f: lambda team: lambda team: f(team))
reduce, reduce_warp, reduce_block = _forms("reduce", _reduction)
reducescatter, reducescatter_warp, reducescatter_block = _forms("reducescatter", _reduction)
fcollect, fcollect_warp, fcollect_block = _forms("fcollect", _fcollect)
broadcast, broadcast_warp, broadcast_block = _forms("broadcast", _broadcast)
alltoall, alltoall_warp, alltoall_block = _forms("alltoall", _alltoall)

# Addresses ------------------------------------------------------------------------------------------------------------------------


def _peer(arr, pe):
    """Return the address of PE pe's array, 0 if its memory is not mapped."""
    operands.array("ptr", "dest", arr)
    if not transport.maps_peers():
        return lambda arr, pe: address_of(arr) if pe == state.my_pe() else u64(0)
    if not transport.two_paths():
        return query.ptr(arr, pe)
    mapped = backend.device(query.ptr(arr, pe))
    return lambda arr, pe: mapped(arr, pe) if state.near(pe) else u64(0)


def _refuse(name):
    raise KernelTypeError(f"nvshmem.core.device.numba.{name}: {MISSING[name]}")


get_peer_array = _function("get_peer_array", _peer, backend.array_overload)
get_multicast_array = _function("get_multicast_array", lambda team, array: _refuse("get_multicast_array"))
ask_smem, give_smem = _function("ask_smem", lambda flag: _refuse("ask_smem")), _function("give_smem", lambda smem: _refuse("give_smem"))
release_smem = _function("release_smem", lambda: _refuse("release_smem"))
