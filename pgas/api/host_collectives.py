"""Collectives of teams on the host: at once, or with ``stream=`` in stream order, where a graph may capture them.

A call launches a kernel of one block, which calls the ``_block`` form on a channel that no kernel of the user has; ``channel=`` names
another. Calls on one team and channel must not overlap: on two streams give them two channels. Without ``stream`` a call waits for its
kernel.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.api import collective, reduction
from pgas.api.host_ops import as_array, enqueue, on_stream
from pgas.api.jit import Kernel
from pgas.api.operands import Operand
from pgas.base.backend import SIMULATOR
from pgas.job import runtime
from pgas.kernels import layout
from pgas.kernels.codes import OPERATIONS
from pgas.kernels.compiler.binding import HOST_FORMS, device_function
from pgas.kernels.ops import collective as collectives
from pgas.kernels.scope import BLOCK

__all__ = ["bind", "gather"]

_THREADS = 512 if not SIMULATOR else 32

#: Names of all collectives but team_sync and barrier, by what they take between team and channel.
_OF_ARRAYS = ("alltoall", "fcollect", "collect", "maxloc", "minloc")
_OF_OP = ("reduce", "reducescatter", "inscan", "exscan")


@functools.cache
def _kernel(function: Callable[..., Any]) -> Kernel:
    """Make a kernel that calls a collective; it takes one tuple of arguments."""

    def kernel(args):  # type: ignore[no-untyped-def]
        function(*args)

    return on_stream(kernel, function)


@functools.cache
def _reducing(function: Callable[..., Any], op: Any) -> Kernel:
    """Make a kernel that calls a reduction, compiled for its op."""

    def kernel(team, dest, source, channel):  # type: ignore[no-untyped-def]
        function(team, dest, source, op, channel)

    return on_stream(kernel, function)


def _arrays(name: str, given: dict[str, Any]) -> None:
    """Check array arguments: they are symmetric, dest and source of one dtype."""
    operands = {argument: Operand.of(name, argument, array) for argument, array in given.items()}
    for operand in operands.values():
        operand.check_symmetric(runtime.current())
    if operands["dest"].dtype != operands["source"].dtype:
        operands["dest"].check_pair(operands["source"])


def _team(name: str, team: Any) -> int:
    if not isinstance(team, (int, np.integer)):
        raise TypeError(f"pgas.{name}: team must be a pgas.Team, not {team!r}")
    runtime.current().teams.find(int(team))
    return int(team)


def _form(name: str) -> Callable[..., Any]:
    module = collective if hasattr(collective, name) else reduction
    stub, block = getattr(module, name), getattr(module, f"{name}_block")
    call = inspect.signature(stub)

    def form(*args: Any, **kwargs: Any) -> None:
        try:
            bound = call.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"pgas.{name} on the host: {error}") from None
        values = bound.arguments
        stream, channel = values.pop("stream", None), values.pop("channel", layout.HOST_CHANNEL)
        team = values["team"] = _team(name, values["team"])
        arrays = {argument: value for argument, value in values.items() if argument.startswith(("dest", "source"))}
        if arrays:
            _arrays(name, {argument: arrays[argument] for argument in ("dest", "source")})
        if name in _OF_OP:
            op = values["op"]
            if type(op).__name__ not in OPERATIONS:
                raise ValueError(f"pgas.{name}: op must be pgas.SUM, PROD, MIN, MAX, AND, OR or XOR, not {op!r}")
            enqueue(_reducing(block, op), 1, _THREADS, stream, team, values["dest"], values["source"], int(channel), wait=True)
        else:
            enqueue(_kernel(block), 1, _THREADS, stream, (*values.values(), int(channel)), wait=True)

    return form


@device_function(collectives.fcollect(BLOCK, notes=True))
def _fcollect_notes(team: Any, dest: Any, source: Any, channel: Any = 0) -> None:
    """fcollect_block() in team memory."""


@functools.cache
def _gathering() -> Kernel:
    def kernel(team, dest, source):  # type: ignore[no-untyped-def]
        _fcollect_notes(team, dest, source, layout.HOST_CHANNEL)

    return on_stream(kernel, _fcollect_notes)


def gather(team: int, dest: int, source: int, members: int, nbytes: int) -> None:
    """Concatenate nbytes of every member at dest. Collective over the team. dest, source: addresses in team memory."""
    unsigned = np.dtype(np.uint8)
    enqueue(_gathering(), 1, 32, None, team, as_array(dest, members * nbytes, unsigned), as_array(source, nbytes, unsigned), wait=True)


def bind() -> None:
    """Give the public functions their host forms."""
    names = ("team_sync", "barrier", "broadcast", "alltoallv", *_OF_ARRAYS, *_OF_OP)
    HOST_FORMS.update({name: _form(name) for name in names})
