"""Trials, which perform programs on all PEs. Each PE compares the results of some programs for all PEs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import pgas
from pgas import cuda
from pgas.kernels import window
from pgas.perftests.harness import grid
from pgas.perftests.programs import operation as ops
from pgas.perftests.programs.draw import GROUP
from pgas.perftests.programs.interpreter import COLUMNS, IN_DEST, IN_SOURCE, MEETINGS, KernelData, interpreter
from pgas.perftests.programs.on_host import Host, channel_of
from pgas.perftests.programs.operation import Kind, Operation, Program, Shape
from pgas.perftests.programs.oracle import Fault, Oracle, Results, fetches, image

_LARGEST_REGION = 8192
#: Minimum number of bytes of registered memory. CUDA allocates small arrays from one block, which can be registered only once.
_LEAST_REGISTERED = 1 if pgas.SIMULATOR else 4 << 20
_UNTOUCHED = 0xA5


#: What programs leave on a PE: copies of regions, fetched elements, and fetched signals as bytes, and the slots of fetched values.
_Everything = tuple[bytes, bytes, bytes, Mapping[tuple[int, int], int]]


class Trial:
    """The arrays in which programs run. All methods are collective, except unregister().

    Raises:
        HeapError: if the arrays do not fit on the heap.
    """

    def __init__(self) -> None:
        self._area = pgas.empty(GROUP * _LARGEST_REGION, np.uint8)
        #: Registered memory, of LOCAL_BYTES for each program.
        self.local = cuda.device_array(max(GROUP * ops.LOCAL_BYTES, _LEAST_REGISTERED), np.uint8)
        pgas.register(self.local)
        self._counter = grid.Counter()
        #: Arrays on the heap, in order of allocation.
        self.arrays = [self._area, self._counter.array]
        self._queue_pairs = window.constants().num_qps

    def free(self) -> None:
        self.unregister()
        for array in reversed(self.arrays):
            pgas.free(array)

    def unregister(self) -> None:
        """Unregister the local memory. Not collective."""
        pgas.unregister(self.local)

    def run(self, programs: Sequence[Program]) -> dict[int, list[Fault]]:
        """Perform programs of one shape; return faults by position in the list, the same on every PE."""
        everything = pgas.allgather_object(self.perform(programs))
        own: dict[int, list[Fault]] = {}
        for place in range(pgas.my_pe(), len(programs), pgas.n_pes()):
            faults = list(Oracle(programs[place]).faults(_found(everything, programs, place)))
            if faults:
                own[place] = faults
        gathered: dict[int, list[Fault]] = {}
        for faults_of in pgas.allgather_object(own):
            gathered |= faults_of
        return dict(sorted(gathered.items()))

    def perform(self, programs: Sequence[Program], *, copies_of: int | None = None) -> _Everything:
        """Perform programs of one shape; return what they left on this PE. copies_of: number of phases after which memory is copied."""
        shape = programs[0].shape
        teams = [_team(pes) for pes in shape.teams]
        table, slots = self._table(programs, teams, len(shape.ends) if copies_of is None else copies_of)
        by_hosts: dict[int, np.ndarray] = {}
        called: Mapping[tuple[int, int], Any] = {}
        pgas.barrier_all()  # So that the regions of all PEs are initialized.
        for begin, end in _stretches(shape):
            if begin == shape.on_host:
                called = Host(shape, table.area, table.words, table.local, teams).perform(programs, begin)
                by_hosts[begin] = np.hstack([words.copy_to_host().reshape(len(programs), -1) for words in (table.words, table.local_words)])
            else:
                meeting = self._counter.reserve(len(programs) * MEETINGS * (end - begin))
                part = table._replace(meeting=meeting, begin=begin, end=end)
                pgas.launch(interpreter(shape.dtype, teams=bool(teams)), len(programs), shape.threads, (part,))
            pgas.barrier_all()
        for team in teams:
            pgas.team_destroy(team)
        copies, fetched, signals = (array.copy_to_host() for array in (table.copies, table.fetched, table.signals))
        for phase, memory in by_hosts.items() if copies.size else ():
            copies[phase] = memory
        for (place, number), value in called.items():
            left = signals if programs[place].operations[number].kind in _SIGNAL_VALUES else fetched
            left[slots[place, number] :][: np.size(value)] = value
        return copies.tobytes(), fetched.tobytes(), signals.tobytes(), slots

    def _table(self, programs: Sequence[Program], teams: Sequence[Any], copies_of: int) -> tuple[KernelData, dict[tuple[int, int], int]]:
        """Return the table of this PE, and the slots of fetched values by position of the program and number of the operation."""
        me, shape = pgas.my_pe(), programs[0].shape
        size, phases = shape.dtype.itemsize, len(shape.ends)
        rows: list[tuple[int, ...]] = []
        operands, conditions = bytearray(), bytearray()
        signals: list[int] = []
        first = np.zeros((phases, len(programs) + 1), np.int64)
        slots: dict[tuple[int, int], int] = {}
        elements = 0
        for phase in range(phases):
            for place, program in enumerate(programs):
                first[phase, place] = len(rows)
                for number, o in enumerate(program.operations):
                    if o.phase != phase or me not in ops.callers(shape, o):
                        continue
                    slot = 0
                    if o.kind in _SIGNAL_VALUES and fetches(shape, o):
                        slots[place, number] = slot = len(signals)
                        signals += _record(o)
                    elif nbytes := fetches(shape, o):
                        slots[place, number] = slot = elements
                        elements += nbytes // size
                    rows.append(self._row(shape, place, o, slot, teams))
                    for elements_of, bits in ((operands, o.value), (conditions, o.condition)):
                        elements_of += (bits % (1 << 8 * size)).to_bytes(size, "little")
            first[phase, len(programs)] = len(rows)
        images = np.array([np.frombuffer(image(p.seed, p.number, me, shape), np.uint8) for p in programs])
        regions, elsewhere = (np.ascontiguousarray(part).reshape(-1) for part in np.split(images, [shape.region_bytes], axis=1))
        area, local = self._area[: regions.size], self.local[: elsewhere.size]
        area.copy_to_device(regions)
        local.copy_to_device(elsewhere)
        untouched = np.full(max(1, elements) * size, _UNTOUCHED, np.uint8).view(shape.dtype)
        table = KernelData(
            cuda.to_device(np.array(rows or [(0,) * len(COLUMNS)], np.int64)),
            cuda.to_device(first),
            cuda.to_device(np.array(shape.ends, np.int64)),
            cuda.to_device(np.frombuffer(bytes(operands) or bytes(size), shape.dtype).copy()),
            cuda.to_device(np.frombuffer(bytes(conditions) or bytes(size), shape.dtype).copy()),
            area.view(shape.dtype),
            local.view(shape.dtype),
            area.view(np.uint64),
            local.view(np.uint64),
            cuda.to_device(untouched),
            cuda.to_device(np.array(signals or [0], np.uint64)),
            cuda.to_device(np.zeros((copies_of, len(programs), shape.memory_bytes // 8), np.uint64)),
            self._counter.array,
            *(0, 0, 0),  # These are set for each kernel.
        )
        return table, slots

    def _row(self, shape: Shape, place: int, o: Any, slot: int, teams: Sequence[Any]) -> tuple[int, ...]:
        size, base = shape.dtype.itemsize, place * shape.region_bytes
        local = IN_DEST if o.dest >= shape.region_bytes else IN_SOURCE if o.source >= shape.region_bytes else 0
        dest, source = (
            (base + at if at < shape.region_bytes else place * ops.LOCAL_BYTES + at - shape.region_bytes) // size
            for at in (o.dest, o.source)
        )
        word = (base + o.word) // 8
        qp = min(o.qp, self._queue_pairs)
        value, condition = (o.value, o.condition) if o.kind in _SIGNAL_VALUES else (0, 0)
        if o.kind in ops.COLLECTIVES:
            word, value = channel_of(place, o), int(teams[o.team])
        elements = dest, source, o.nelems, o.dst_stride, o.src_stride
        return (o.kind, o.scope, o.who, o.target, *elements, o.whole, qp, word, value, condition, slot, local)


def _team(pes: tuple[int, ...]) -> Any:
    """Make a team, by a split if its PEs have a stride."""
    strides = {b - a for a, b in pairwise(pes)} or {0}
    if len(strides) > 1:
        return pgas.team_create(pes)
    return pgas.team_split_strided(pgas.TEAM_WORLD, pes[0], strides.pop(), len(pes))


def _stretches(shape: Shape) -> Iterator[tuple[int, int]]:
    """Yield ranges of phases (first, end) that one kernel, or the hosts, perform."""
    cuts = sorted({0, len(shape.ends)} | ({shape.on_host, shape.on_host + 1} if shape.on_host >= 0 else set()))
    yield from pairwise(cuts)


#: Operations on signal words, whose value is in the row.
_SIGNAL_VALUES = frozenset((*ops.FLAGS, *ops.WAITS, *ops.SEVERAL, Kind.SIGNAL_FETCH, Kind.TEST))


def _record(o: Operation) -> list[int]:
    """Return the initial contents of an operation's record, which the interpreter's _several() describes."""
    if o.kind not in ops.SEVERAL:
        return [0]
    status = [o.left_out >> i & 1 for i in range(o.nelems)]
    return [0] * (1 + o.nelems) + status + list(o.values[: o.nelems] if o.kind in ops.VECTOR else [0] * o.nelems)


def _found(everything: Sequence[_Everything], programs: Sequence[Program], place: int) -> Results:
    """Collect the results of a program from all PEs."""
    program = programs[place]
    shape = program.shape
    size, nbytes = shape.dtype.itemsize, shape.memory_bytes
    regions = []
    for phase in range(len(shape.ends)):
        at = (phase * len(programs) + place) * nbytes
        regions.append([copies[at : at + nbytes] for copies, *_ in everything])
    fetched = {}
    for number, o in enumerate(program.operations):
        if length := fetches(shape, o):
            _, elements, signals, slots = everything[o.pe]
            data, unit = (signals, 8) if o.kind in _SIGNAL_VALUES else (elements, size)
            at = slots[place, number] * unit
            fetched[number] = data[at : at + length]
    return Results(regions, fetched)
