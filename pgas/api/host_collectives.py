"""Collectives of teams called on the host, immediately or with ``stream=`` in stream order, where a graph may capture them.

A call launches a kernel, whose blocks call the ``_block`` form, each with a part of the message, on channels that kernels cannot use. How
many blocks alltoall, broadcast, fcollect, reduce, and reducescatter have depends on the size of the message if members map each other's
memory (pgas/job/blocks.py; PGAS_HOST_BLOCKS). All others have one. So do calls with ``channel=``, which use that channel. All members must
call, in the same order on a channel. Calls on one team and channel must not overlap: on two streams, use two channels.

Calls without ``channel=`` are compared among the members, without a round trip. If function, op, root, dtype, size, or the offset of dest
differ, at least one of the members raises a DeviceError that names both calls, when the host waits for the kernel. Offsets are compared by
a hash of 9 bits, and not in alltoallv, broadcast, collect, and reducescatter. Calls with ``channel=``, which may meet a call of a kernel,
are compared under PGAS_DEBUG=check, like those of kernels.

Without ``stream``, a call waits for its kernel, so dest is complete on return. With ``stream``, it returns immediately; later work in the
stream may read dest and reuse source. The call raises a TypeError or ValueError and has no effect if the team is None, an array is not
symmetric, sizes do not match, dest and source overlap where that is not allowed (except in alltoallv and collect), the op is not defined
for the dtype, or the op, root, or channel does not exist. If the team was destroyed, it raises a PgasError.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.api import collective, reduction
from pgas.api.bound import remembering
from pgas.api.host_ops import as_array, enqueue, on_stream
from pgas.api.jit import Kernel
from pgas.api.operands import Operand
from pgas.base import parameters
from pgas.base.errors import about
from pgas.job import runtime
from pgas.job.blocks import RESIDENT, TABLE
from pgas.job.memory import teams
from pgas.job.paths.platform import platform
from pgas.kernels import layout, refusals
from pgas.kernels.codes import OPERATIONS, Reduction
from pgas.kernels.collectives import comparison, sizes
from pgas.kernels.collectives import movement as collectives
from pgas.kernels.collectives.operators import has_locations, lacking
from pgas.kernels.compiler import cuda, is_float8
from pgas.kernels.compiler.binding import HOST_FORMS, device_function
from pgas.kernels.scope import BLOCK

__all__ = ["bind", "gather"]

_THREADS = platform.COLLECTIVE_THREADS

#: Names of collectives with the arguments dest and source, and with dest, source and op, between team and channel.
_OF_ARRAYS = ("alltoall", "fcollect", "collect", "maxloc", "minloc")
_OF_OP = ("reduce", "reducescatter", "inscan", "exscan")


@functools.cache
def _dividing(function: Callable[..., Any], *, rooted: bool) -> Kernel:
    """Make a kernel whose blocks call a collective, each with its part. rooted: whether it takes a root.

    The channel of the first block has the call, which the members compare (comparison.py).
    """
    if rooted:

        def kernel(team, dest, source, root, channel):  # type: ignore[no-untyped-def]
            block = cuda.blockIdx.x
            function(team, dest, source, root, channel if block == 0 else layout.HOST_CHANNEL + block, (block, cuda.gridDim.x))

    else:

        def kernel(team, dest, source, channel):  # type: ignore[no-untyped-def,misc]
            block = cuda.blockIdx.x
            function(team, dest, source, channel if block == 0 else layout.HOST_CHANNEL + block, (block, cuda.gridDim.x))

    return on_stream(kernel, function, _THREADS)


@functools.cache
def _kernel(function: Callable[..., Any]) -> Kernel:
    """Make a kernel that calls a collective. It takes one tuple of arguments."""

    def kernel(args):  # type: ignore[no-untyped-def]
        function(*args)

    return on_stream(kernel, function, _THREADS)


@functools.cache
def _reducing(function: Callable[..., Any], op: Any, *, divides: bool) -> Kernel:
    """Make a kernel that calls a reduction and is compiled for its op. divides: whether its blocks do so, each with its part."""
    if divides:

        def kernel(team, dest, source, channel):  # type: ignore[no-untyped-def]
            block = cuda.blockIdx.x
            function(team, dest, source, op, channel if block == 0 else layout.HOST_CHANNEL + block, (block, cuda.gridDim.x))

    else:

        def kernel(team, dest, source, channel):  # type: ignore[no-untyped-def,misc]
            function(team, dest, source, op, channel)

    return on_stream(kernel, function, _THREADS)


def _check(name: str, team: teams.Record, values: dict[str, Any]) -> None:
    """Check array arguments, sizes, root, and op like the kernel, but before it is launched. Raises TypeError or ValueError."""
    job, n, who, rules = runtime.current(), len(team.pes), f"pgas.{name}", sizes.of(name)
    dest, source = Operand.of(name, "dest", values["dest"]), Operand.of(name, "source", values["source"])
    for operand in (dest, source):
        operand.check_symmetric(job)
    if dest.dtype != source.dtype:
        dest.check_pair(source)
    for argument in (argument for argument in values if argument.endswith(("_counts", "_displs"))):
        row = Operand.of(name, argument, values[argument])
        if len(row.shape) != 1 or row.dtype.kind not in "iu":
            found = f"one of {row.dtype} with {len(row.shape)}"
            raise TypeError(refusals.message("row of integers", function=name, name=argument, found=found))
        if row.size < n:
            raise ValueError(refusals.message("misfit", who=who, operand=argument, found=row.size, wanted=n, size=n))
    if ("op" in values or name in ("maxloc", "minloc")) and is_float8(dest.dtype):
        raise TypeError(refusals.message("only copied", function=name, dtype=dest.dtype))
    if rules.divides and rules.moved(n, dest.size, source.size) * n != source.size:
        raise ValueError(refusals.message("no multiple", who=who, wanted=source.size, size=n))
    if rules.in_place and rules.in_place(dest.address == source.address, n, team.pes.index(job.my_pe), dest.size, source.size):
        raise ValueError(refusals.message("in place", who=who))
    for operand in (dest, source) if name in ("maxloc", "minloc") else ():
        if len(operand.shape) != 2 or operand.order == "F" or not has_locations(operand.dtype):
            found = f"one of {operand.dtype} of shape {operand.shape}"
            raise TypeError(refusals.message("pairs", function=name, name=operand.name, found=found))
        if operand.shape[1] != 2:
            raise ValueError(refusals.message("no pairs", who=who, operand=operand.name, found=operand.shape[1]))
    for operand, needed in ((dest, rules.dest), (source, rules.source)) if rules.known else ():
        if operand.size < (wanted := int(needed(n, dest.size, source.size))):
            raise ValueError(refusals.message("misfit", who=who, operand=operand.name, found=operand.size, wanted=wanted, size=n))
    if dest.extent[0] < source.extent[1] and source.extent[0] < dest.extent[1] and rules.known:
        _check_overlap(name, n, team.pes.index(job.my_pe), dest, source)
    if "root" in values and not (parameters.is_integer(values["root"]) and 0 <= values["root"] < n):
        raise ValueError(refusals.message("no member", who=who, last=n - 1, wanted=values["root"]))
    if "op" in values:
        op = type(values["op"]).__name__
        if op not in OPERATIONS:
            raise ValueError(f"pgas.{name}: op must be pgas.SUM, PROD, MIN, MAX, AND, OR or XOR, not {values['op']!r}")
        if allowed := lacking(Reduction[op], _kind(dest.dtype)):
            raise TypeError(refusals.message("reduction", function=name, op=op, dtype=dest.dtype, allowed=allowed))


def _check_overlap(name: str, n: int, me: int, dest: Operand, source: Operand) -> None:
    """Raise ValueError if the elements of dest and source that a call uses overlap, unless they are where the collective allows it."""
    rules, itemsize, distance = sizes.of(name), dest.dtype.itemsize, source.address - dest.address
    written, read = (int(needed(n, dest.size, source.size)) * itemsize for needed in (rules.dest, rules.source))
    own = {"fcollect": me * read, "reducescatter": -me * written}.get(name, 0)
    if -read < distance < written and distance not in (0, own):  # If they are the same, in_place() decides.
        allowed = {
            "alltoall": "dest must be separate from source",
            "fcollect": "source must be this member's own part of dest, or separate from it",
            "reducescatter": "dest must be this member's own part of source, or separate from it",
        }.get(name, "dest must be source itself, or separate from it")
        raise ValueError(f"pgas.{name}: dest and source overlap, but {allowed}; use another array")


@functools.cache
def _kind(dtype: np.dtype) -> str:
    """Return NumPy's kind of a dtype; f for bfloat16."""
    return "f" if dtype.name == "bfloat16" else dtype.kind


def _team(name: str, team: Any) -> teams.Record:
    if team is None:
        raise TypeError(refusals.message("no team", function=name, name="team"))
    if not parameters.is_integer(team):
        raise TypeError(f"pgas.{name}: team must be a pgas.Team, not {team!r}")
    with about(f"pgas.{name}"):
        return runtime.current().teams.find(team)


def _channel(name: str, team: teams.Record, channel: Any) -> int:
    if not parameters.is_integer(channel) or not 0 <= channel < team.channels:
        raise ValueError(refusals.message("no such channel", who=f"pgas.{name}", last=team.channels - 1, wanted=channel))
    return int(channel)


def _moved(name: str, members: int, values: dict[str, Any]) -> tuple[int, np.dtype]:
    """Return the number of elements from one member to another, and their dtype."""
    dest, source = Operand.of(name, "dest", values["dest"]), Operand.of(name, "source", values["source"])
    return int(sizes.of(name).moved(members, dest.size, source.size)), dest.dtype


def _blocks(name: str, team: teams.Record, nbytes: int) -> int:
    """Return the number of blocks for nbytes from one member to another."""
    return min(runtime.current().blocks.of(name, nbytes, len(team.pes)), team.host_channels) if team.near else 1


def threads_of(blocks: int) -> int:
    """Return the number of threads of each block of a call.

    An SM holds one block of 512 threads, or two of 256, because a thread has up to 128 registers. So a GPU of 128 SMs or more holds the
    blocks of two calls, which may begin in another order on each PE.
    """
    return _THREADS if blocks <= RESIDENT // 2 else max(_THREADS // 2, 32)


def _call(name: str, values: dict[str, Any], moved: int, dtype: np.dtype) -> int:
    """Return the word by which the members compare a call that moves elements; 0 if it does nothing. moved, dtype: see _moved()."""
    if name in comparison.ANY_SIZE:
        return comparison.word_of(name, dtype)
    if moved == 0:
        return 0
    dest = Operand.of(name, "dest", values["dest"])
    address = dest.address if dest.size else None
    op = type(values["op"]).__name__ if "op" in values else None
    return comparison.word_of(name, dtype, op, int(values.get("root", 0)), moved, address)


def _form(name: str) -> Callable[..., Any]:
    module = collective if hasattr(collective, name) else reduction
    stub, block = getattr(module, name), getattr(module, f"{name}_block")
    call, divides = inspect.signature(stub), name in TABLE

    def form(*args: Any, **kwargs: Any) -> None:
        values = parameters.bound(name, call, args, kwargs)
        record, team = _team(name, values["team"]), int(values["team"])
        values["team"] = team
        stream = values.pop("stream", None)
        channel = _channel(name, record, values.pop("channel")) if "channel" in values else layout.HOST_CHANNEL
        if "dest" in values:
            _check(name, record, values)
        blocks = 1
        if channel == layout.HOST_CHANNEL:
            word = comparison.word_of(name)
            if "dest" in values:
                moved, dtype = _moved(name, len(record.pes), values)
                blocks = _blocks(name, record, moved * dtype.itemsize) if divides else 1
                word = _call(name, values, moved, dtype)
            channel += word << layout.CALL_SHIFT
        if name in _OF_OP:
            kernel = _reducing(block, values.pop("op"), divides=divides)
            enqueue(kernel, blocks, threads_of(blocks), stream, *values.values(), channel, wait=True)
        elif divides:
            enqueue(_dividing(block, rooted="root" in values), blocks, threads_of(blocks), stream, *values.values(), channel, wait=True)
        else:
            enqueue(_kernel(block), 1, _THREADS, stream, (*values.values(), channel), wait=True)

    return form


@device_function(collectives.fcollect(BLOCK, notes=True))
def _fcollect_notes(team: Any, dest: Any, source: Any, channel: Any = 0, part: Any = None) -> None:
    """Like fcollect_block(), but in team memory."""


@functools.cache
def _gathering() -> Kernel:
    sync = collective.team_sync_block

    def kernel(team, dest, source):  # type: ignore[no-untyped-def]
        sync(team, layout.HOST_CHANNEL)
        _fcollect_notes(team, dest, source, layout.HOST_CHANNEL)

    return on_stream(kernel, _fcollect_notes)


def gather(team: int, dest: int, source: int, members: int, nbytes: int) -> None:
    """Concatenate nbytes of every member at dest. Collective over the team. dest, source: addresses in team memory.

    If nbytes exceeds PGAS_LL_BYTES, members write directly to each other's dest, which still holds the result of the previous gather.
    Therefore the kernel begins with team_sync: a member arrives only after its host has read that result.
    """
    unsigned = np.dtype(np.uint8)
    enqueue(_gathering(), 1, 32, None, team, as_array(dest, members * nbytes, unsigned), as_array(source, nbytes, unsigned), wait=True)


def bind() -> None:
    """Give the public functions their host forms."""
    names = ("team_sync", "barrier", "broadcast", "alltoallv", *_OF_ARRAYS, *_OF_OP)
    HOST_FORMS.update({name: remembering(name, _form(name), waits=True, of_team=True) for name in names})
