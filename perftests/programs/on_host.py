"""A phase that hosts perform, calling pgas immediately or on a stream, one program after the other.

All PEs process programs and operations in the same order, so that a wait cannot deadlock.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.interpreter import operation_of
from pgas.perftests.programs.operation import Kind, Operation, PhaseEnd, Program, Shape
from pgas.perftests.programs.oracle import fetches

_WITHOUT_OPERAND = (Kind.ATOMIC_FETCH, Kind.ATOMIC_INC, Kind.ATOMIC_FETCH_INC)
_OF_A_SIGNAL = {Kind.FLAG_P: "p", Kind.FLAG_SET: "atomic_set", Kind.FLAG_ADD: "atomic_add"}


class Host:
    """The host side of this PE. Every second program runs on its own stream.

    Args:
        area, words: regions of all programs, as elements and as uint64.
        local: the PE's local memory, as elements.
        teams: the teams of the shape.
    """

    def __init__(self, shape: Shape, area: Any, words: Any, local: Any, teams: Sequence[Any]) -> None:
        self._shape, self._area, self._words, self._local, self._teams = shape, area, words, local, teams
        self._stream = cuda.stream()

    def perform(self, programs: Sequence[Program], phase: int) -> Mapping[tuple[int, int], Any]:
        """Perform and complete the phase; return fetched values by position of the program and number of the operation."""
        fetched = {}
        for place, program in enumerate(programs):
            for number, o in enumerate(program.operations):
                if o.phase == phase and pgas.my_pe() in ops.callers(self._shape, o):
                    value = self._call(o, place, (None, self._stream)[place % 2])
                    if fetches(self._shape, o):
                        fetched[place, number] = value
        for stream in (None, self._stream):
            if self._shape.ends[phase] in (PhaseEnd.QUIET, PhaseEnd.QUIETS):
                pgas.quiet(stream=stream)
                pgas.sync_all(stream=stream)
            else:
                pgas.barrier_all(stream=stream)
        pgas.synchronize(self._stream)
        return fetched

    def _call(self, o: Operation, place: int, stream: Any) -> Any:
        arguments: tuple[Any, ...] = ()
        name, signals = o.kind.name.lower(), self._words[place * self._shape.region_bytes // 8 :]
        if o.kind in (Kind.LOAD, Kind.STORE):
            return self._access(o, place, stream)
        if o.kind in ops.COLLECTIVES:
            arguments = (self._teams[o.team], *self._of_collective(o, place), channel_of(place, o))
        elif o.kind in ops.PUTS or o.kind in ops.GETS:
            arguments = self._copied(o, place)
            if o.kind in ops.FLAGS:
                arguments += (signals, o.word // 8, o.value, o.condition)
            elif o.kind in ops.STRIDED:
                arguments += (o.dst_stride, o.src_stride)
            arguments += (o.target,) if o.whole or o.kind in ops.FLAGS else (o.target, o.nelems)
        elif o.kind in ops.FLAGS:
            name = _OF_A_SIGNAL.get(o.kind, name)
            arguments = (signals, o.word // 8, o.value, *((o.condition,) if o.kind == Kind.SIGNAL_OP else ()), o.target)
        elif o.kind in ops.WAITS:
            arguments = (signals, o.word // 8, o.condition, o.value)
        elif o.kind == Kind.SIGNAL_FETCH:
            arguments = (signals, o.word // 8)
        elif o.kind == Kind.QUIET_PE:
            arguments = (o.target,)
        elif o.kind in (Kind.P, Kind.G) or ops.is_atomic(o.kind):
            values = () if o.kind == Kind.G or o.kind in _WITHOUT_OPERAND else (ops.element(self._shape.dtype, o.value),)
            if o.kind == Kind.ATOMIC_COMPARE_SWAP:
                values = (ops.element(self._shape.dtype, o.condition), *values)
            array, index = self._array(o.source if o.kind == Kind.G else o.dest, place)
            arguments = (array, index, *values, o.target)
        return getattr(pgas, name)(*arguments, stream=stream)

    def _array(self, at: int, place: int) -> tuple[Any, int]:
        """Return the array of a location, and the index of its element."""
        name, index = ops.named(self._shape, at)
        whole, nbytes = (self._area, self._shape.region_bytes) if name == "a" else (self._local, ops.LOCAL_BYTES)
        count = nbytes // self._shape.dtype.itemsize
        return whole[place * count : (place + 1) * count], index

    def _copied(self, o: Operation, place: int) -> tuple[Any, Any]:
        """Return the operands of a copy, longer than the copied part if the call passes nelems."""
        operands = []
        for at, stride in ((o.dest, o.dst_stride), (o.source, o.src_stride)):
            array, first = self._array(at, place)
            operands.append(array[first : first + o.nelems * stride] if o.whole else array[first:])
        return operands[0], operands[1]

    def _of_collective(self, o: Operation, place: int) -> tuple[Any, ...]:
        """Return the arguments of a collective between team and channel."""
        if o.kind in ops.MEETINGS:
            return ()
        operands = []
        for at, parts in ((o.dest, o.dst_stride), (o.source, o.src_stride)):
            array, first = self._array(at, place)
            operands.append(array[first : first + o.nelems * parts])
        last = {Kind.BROADCAST: (o.target,), Kind.ALLTOALL: (), Kind.FCOLLECT: ()}.get(o.kind, (operation_of(self._shape.dtype),))
        return (*operands, *last)

    def _access(self, o: Operation, place: int, stream: Any) -> Any:
        """Read or write the PE's own memory, in the order of the stream."""
        pgas.synchronize(0 if stream is None else stream)
        array, first = self._array(o.source if o.kind == Kind.LOAD else o.dest, place)
        if o.kind == Kind.LOAD:
            return array[first : first + o.nelems].copy_to_host()
        array[first : first + 1].copy_to_device(np.array([ops.element(self._shape.dtype, o.value)]))
        pgas.synchronize()
        return None


def channel_of(place: int, o: Operation) -> int:
    """Return the channel of a collective. Each program of a group has two."""
    return 2 * place + o.channel
