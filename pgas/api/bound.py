"""Host calls whose launches are kept: those of ``pgas.put.bind(...)`` and similar, and calls that are repeated with the same arguments.

A host call checks its operands, chooses a kernel with its blocks, and converts the arguments. All of this follows from the arguments, so
that a repeated call need not do it again. Only a value for an element, such as the number of a round, may change from call to call. The
launch is then repeated with that parameter replaced.
"""

import enum
import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pgas.api.jit import BoundLaunch, Kernel
from pgas.api.operands import Description, described
from pgas.api.values import bounds
from pgas.base import parameters
from pgas.base.errors import HeapError, PgasError
from pgas.job import runtime
from pgas.job.memory import teams
from pgas.job.memory.array import SymmetricArray, block_of
from pgas.job.paths.platform import platform
from pgas.job.paths.streams import identity, with_argument
from pgas.kernels import operation

__all__ = ["BoundCall", "Value", "bind", "is_recording", "keeping", "recording", "remembering"]

#: Maximum number of repeated calls of a function that a job keeps.
_MOST_REMEMBERED = 256

_of_thread = threading.local()

#: A launch takes an integer as an int64.
_INT64 = np.iinfo(np.int64)


class Value(NamedTuple):
    """Where a function has a value for an element: positions of its parameter, and of that of the element's array."""

    position: int
    array: int

    def limits(self, args: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return the minimum and the maximum of the values that may replace that of a call, which have its type."""
        kind, dtype = type(args[self.position]), args[self.array].dtype
        # The call converts values for other elements, such as those of float8. PyTorch's dtypes are others.
        if not isinstance(dtype, np.dtype) or dtype.isbuiltin != 1 or dtype.kind not in "iuf":
            return 1, 0
        if kind is float:
            return (-math.inf, math.inf) if dtype.kind == "f" else (1, 0)
        low, high = (_INT64.min, _INT64.max) if dtype.kind == "f" else bounds(dtype)
        return max(low, int(_INT64.min)), min(high, int(_INT64.max))


class _Integer(int):
    """A value that stands for all values of its type while a call is bound."""


class _Float(float):
    """The same, if it is a float."""


#: In the key of a repeated call, what stands for a value of a type.
_ANY: dict[type, Any] = {int: _Integer(), float: _Float()}


def _place(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the position of such a value in the arguments of a launch: an index per level of nested tuples; () if there is none."""
    for i, arg in enumerate(args):
        if type(arg) is _Integer or type(arg) is _Float:
            return (i,)
        if type(arg) is tuple and (inner := _place(arg)):
            return (i, *inner)
    return ()


class BoundCall:
    """A host call on a stream with its operands checked and converted once; calling it performs the operation again.

    keep: whether it keeps the arrays of other libraries alive, which its caller does otherwise.
    """

    def __init__(
        self, job: runtime.Job, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: list[BoundLaunch], *, keep: bool
    ) -> None:
        self._job, self._name, self._launches, values = job, name, found, (*args, *kwargs.values())
        self.varies = any(launch.varies for launch in found)
        self._blocks = [block for block in map(block_of, values) if block is not None]
        # Launches have only the addresses of operands and the handle of the stream. Symmetric arrays exist until they are freed.
        self._kept = [value for value in values if not isinstance(value, SymmetricArray)] if keep else []
        numbers = {int(value) for value in values if isinstance(value, teams.Handle)}
        if name in operation.COLLECTIVES:  # A plain number of a team may later be that of another team.
            numbers.add(int(kwargs["team"] if "team" in kwargs else args[0]))
        self._teams = [(number, job.teams.records.get(number)) for number in numbers]

    def valid(self, job: runtime.Job) -> bool:
        """Whether the job, the arrays, and the teams of the call still exist."""
        for block in self._blocks:
            if block.freed:
                return False
        records = job.teams.records
        for number, record in self._teams:
            if records.get(number) is not record:
                return False
        return job is self._job

    def __call__(self) -> None:
        """Perform the operation in stream order, like the call that was bound.

        Raises:
            HeapError: if an array was freed.
            PgasError: if a team was destroyed, or pgas.finalize() has run.
        """
        if not self.valid(runtime.current()):
            if any(block.freed for block in self._blocks):
                raise HeapError(f"pgas.{self._name}: an array of this bound call was freed")
            raise PgasError(f"pgas.{self._name}: the team or the job of this bound call has ended")
        self._perform()

    def _perform(self, *value: Any) -> None:
        for launch in self._launches:
            launch(*value)


def is_recording() -> bool:
    """Whether this thread binds a call."""
    return getattr(_of_thread, "launches", None) is not None


def keeping(call: Any) -> bool:
    """Whether this thread binds a call: then keep an object that is like a BoundLaunch."""
    found = getattr(_of_thread, "launches", None)
    if found is None:
        return False
    found.append(call)
    return True


def recording(kernel: Kernel, configuration: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
    """Whether this thread binds a call: then keep the launch instead of performing it."""
    if not is_recording():
        return False
    place = _place(args)
    if place:
        args = with_argument(args, place, lambda value: int(value) if isinstance(value, int) else float(value))
    return keeping(BoundLaunch(kernel, configuration, args, place=place))


def _bound(name: str, form: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool) -> BoundCall:
    found: list[BoundLaunch] = []
    _of_thread.launches = found
    try:
        form(*args, **kwargs)
    finally:
        _of_thread.launches = None
    return BoundCall(runtime.current(), name, args, kwargs, found, keep=keep)


def bind(name: str, form: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
    """Return ``pgas.name.bind(*args, **kwargs)``.

    Raises:
        TypeError: the stream is missing or is none, or the function returns a value; and the errors of the call.
    """
    if kwargs.get("stream") is None:
        raise TypeError(f"pgas.{name}.bind: stream= is missing; a bound call is performed in the order of a stream (0: the default stream)")
    platform.core_stream(kwargs["stream"])  # Rejects other objects.
    return _bound(name, _plain.get(form, form), args, kwargs, keep=True)


class _Repeated:
    """A call that may be repeated: its arguments and, from the second time on, the bound call for them.

    limits: minimum and maximum of a value that may change.
    """

    def __init__(self, args: tuple[Any, ...], stream: Any, limits: tuple[Any, Any]) -> None:
        self._args = tuple([weakref.ref(arg) if type(arg) is SymmetricArray else arg for arg in args])
        self._stream = stream  # Kept, because its ID may be part of the key.
        self.low, self.high = limits
        self.bound: BoundCall | None = None

    def same(self, args: tuple[Any, ...]) -> bool:
        """Whether these are the same objects. IDs alone do not suffice, because Python reuses them. Descriptions are part of the key."""
        for kept, arg in zip(self._args, args, strict=True):
            if kept is not arg and not (type(kept) is weakref.ref and kept() is arg) and type(kept) is not Description:
                return False
        return True


#: By form that remembers calls, the same form without. bind() takes the latter, because a remembered call would be bound within the other.
_plain: dict[Callable[..., Any], Callable[..., Any]] = {}

#: Types of arguments that never change.
_FIXED = (int, float, np.integer, enum.Enum, SymmetricArray, Description)


def remembering(
    name: str, form: Callable[..., Any], *, waits: bool | None, of_team: bool = False, value: Value | None = None
) -> Callable[..., Any]:  # fmt: skip
    """Return a host form whose calls cost what a bound call costs if the arguments are the same objects as before.

    Symmetric arrays never change. Those of other libraries are the same if their addresses, shapes, strides, and dtypes are. Calls with
    them are not kept in a job with a NIC, which must know that the memory is still registered.

    Args:
        waits: whether a call without a stream waits for its kernel; None: it has no kernel, and is not kept.
        of_team: whether the first argument is a team; a plain number may later be another team's.
        value: the value that may differ from that of the call before.
    """

    def call(*args: Any, stream: Any = None, **kwargs: Any) -> None:
        given_stream = {} if stream is None else {"stream": stream}
        if stream is None:
            if waits is None:
                return parameters.call(name, form, args, kwargs)
            stream = 0
        job, values = runtime.current(), (*args, *kwargs.values())
        new: tuple[Any, ...] = ()
        mark: Any = None
        if value is not None and len(args) > (at := value.position):
            mark = _ANY.get(type(args[at]))
            if mark is not None:
                values, new = (*values[:at], mark, *values[at + 1 :]), (args[at],)
        of_name = job.repeated.setdefault(name, {})
        on = identity(stream)
        key = (on, *kwargs, *map(id, values))
        known = of_name.get(key)
        if known is None and job.nic is None and (others := described(values)) is not values:
            values = others
            key = (on, *kwargs, *[each if type(each) is Description else id(each) for each in values])
            known = of_name.get(key)
        if known is not None and not known.same(values):
            known = None
        if known is not None and (not new or known.low <= new[0] <= known.high):
            if known.bound is None:
                given = (*args[:at], type(mark)(new[0]), *args[at + 1 :]) if new else args
                known.bound = _bound(name, form, given, {**kwargs, "stream": stream}, keep=False)
            if not known.bound.valid(job):
                known = None
            elif not new or known.bound.varies:  # Otherwise, the call has converted the value.
                known.bound._perform(*new)
                if waits and not given_stream:
                    job.synchronize(0)
                return
        parameters.call(name, form, args, kwargs | given_stream)  # It returns nothing; an error is not remembered.
        team = kwargs.get("team", args[0] if args else None)
        if known is None and all(isinstance(each, _FIXED) for each in values) and (not of_team or isinstance(team, teams.Handle)):
            if len(of_name) >= _MOST_REMEMBERED:
                of_name.clear()
            of_name[key] = _Repeated(values, stream, value.limits(args) if value is not None and new else (None, None))

    _plain[call] = lambda *args, **kwargs: parameters.call(name, form, args, kwargs)
    return call
