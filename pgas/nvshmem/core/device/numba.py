"""nvshmem4py's device functions for Numba kernels: each calls a function of pgas, with NVSHMEM's semantics where they differ.

Operands have NVSHMEM's order. Functions of an element take the first one of an array. Copies move as many elements as the smaller array
has. A typing function gets the types of the operands and returns the body, like those of kernels/ops; here many are lambdas.
"""

import functools
import itertools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from pgas import api
from pgas.kernels import operation, state
from pgas.kernels.collectives import channel
from pgas.kernels.compiler import KernelTypeError, address_of, backend, constant, ptx, types, u64
from pgas.kernels.ops import operands, query
from pgas.kernels.paths import transport

SmemAmount = IntEnum("SmemAmount", ["SMEM_RECOMMENDED", "SMEM_MINIMUM", "SMEM_BARRIERS_ONLY"], start=0)
FORMS = ("", "_warp", "_block")
OPERATIONS = ("sum", "prod", "min", "max", "and", "or", "xor")

#: Functions of pgas whose names differ from those here.
MEANS = {"sync": "team_sync", "signal_wait": "signal_wait_until", "get_peer_array": "ptr"}

#: What a program may notice, by name.
DIFFERS = {
    **dict.fromkeys(
        map("".join, itertools.product(("put", "get", "put_signal"), ("", "_nbi"), FORMS)),
        "both arrays must have the same number of dimensions; for `put_signal`, also the same size, if they have several",
    ),
    "fcollect": "each thread performs it in its turn; on all members, equally many threads must call it, with the same operands",
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
    """Return the device function that a typing function describes."""
    typing.__name__ = f"nvshmem.core.device.numba.{name}"  # the name in messages

    @functools.wraps(typing)
    def on_host(*args: Any, **kwargs: Any) -> None:
        raise TypeError(f"nvshmem.core.device.numba.{name} is a device function: call it inside a kernel")

    function = bind(typing, typing, on_host)
    function.__name__ = function.__qualname__ = name
    return function


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


def _of_element(names):
    """For functions of an element, the first one of the array that is the first operand. names: those of the operands."""
    array, _, others = names.partition(", ")
    return eval(f"lambda f: lambda {names}: _at_first({array}, lambda i: lambda {names}: f({array}, i, {others}))")


# Collectives ----------------------------------------------------------------------------------------------------------------------


def _of_team(f):
    return lambda team: lambda team: f(team)


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

# Functions that call one of pgas ----------------------------------------------------------------------------------------------------

#: Names, their forms, and what makes the typing function from the function of pgas. None: it is the function of pgas.
_FUNCTIONS: tuple[tuple[str, tuple[str, ...], Any], ...] = (
    ("put get put_nbi get_nbi", FORMS, _copy),
    ("put_signal put_signal_nbi", FORMS, _copy_and_signal),
    ("p", ("",), _of_element("dst, src, pe")),
    ("g atomic_fetch", ("",), _of_element("src, pe")),
    ("atomic_inc atomic_fetch_inc", ("",), _of_element("dst, pe")),
    ("atomic_set atomic_swap atomic_add atomic_and atomic_or atomic_xor", ("",), _of_element("dst, value, pe")),
    ("atomic_fetch_add atomic_fetch_and atomic_fetch_or atomic_fetch_xor", ("",), _of_element("dst, value, pe")),
    ("atomic_compare_swap", ("",), _of_element("dst, cond, value, pe")),
    ("signal_op", ("",), _of_element("signal_var, signal_val, signal_op, pe")),
    ("signal_wait", ("",), _of_element("signal_var, signal_op, signal_val")),
    ("sync barrier", FORMS, _of_team),
    ("reduce reducescatter", FORMS, _reduction),
    ("fcollect", FORMS, _fcollect),
    ("broadcast", FORMS, _broadcast),
    ("alltoall", FORMS, _alltoall),
    ("sync_all barrier_all", FORMS, None),
    ("my_pe n_pes team_my_pe team_n_pes", ("",), None),
)

__all__ = ["SmemAmount", "ask_smem", "get_multicast_array", "get_peer_array", "give_smem", "release_smem"]
for _names, _forms, _make in _FUNCTIONS:
    for _name, _form in itertools.product(_names.split(), _forms):
        _of_pgas = getattr(api, MEANS.get(_name, _name) + _form)
        globals()[_name + _form] = _of_pgas if _make is None else _function(_name + _form, _make(_of_pgas))
        __all__ += [_name + _form]
__all__.sort()
