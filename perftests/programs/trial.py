"""Performing programs on all PEs, and comparing: each PE compares some of them for all."""

from collections.abc import Mapping, Sequence
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from numba import cuda

from pgas import config, runtime
from pgas.perftests import grid
from pgas.perftests.programs.draw import GROUP
from pgas.perftests.programs.interpreter import COLUMNS, MEETINGS, Table, interpreter
from pgas.perftests.programs.operation import FLAGS, WAITS, Kind, Program, Shape
from pgas.perftests.programs.oracle import Fault, Found, Oracle, fetches, image

__all__ = ["Trial"]

#: What a PE's kernel leaves: regions after each phase, elements and signals that were fetched, and the slots of the latter.
_Left = tuple[bytes, bytes, bytes, Mapping[tuple[int, int], int]]

_LARGEST_REGION = 8192
_UNTOUCHED = 0xA5


class Trial:
    """The symmetric arrays that programs run in. Collective throughout.

    Raises:
        HeapError: they do not fit on the heap.
    """

    def __init__(self) -> None:
        self._area = pgas.empty(GROUP * _LARGEST_REGION, np.uint8)
        self._counter = grid.Counter()
        #: What is on the heap, in the order it was made.
        self.arrays = [self._area, self._counter.array]
        nic = runtime.current().nic
        self._queue_pairs = 0 if nic is None else config.read("PGAS_IBGDA_NUM_RC_PER_PE")

    def free(self) -> None:
        """Give the arrays back."""
        for array in reversed(self.arrays):
            pgas.free(array)

    def run(self, programs: Sequence[Program]) -> dict[int, list[Fault]]:
        """Perform programs of one shape; return the faults of those that have some, by their place in the list, on every PE alike."""
        me, shape = pgas.my_pe(), programs[0].shape
        table, slots = self._table(programs)
        pgas.barrier_all()  # the regions of all PEs are as the programs need them
        pgas.launch(interpreter(shape.dtype), len(programs), shape.threads, (table,))
        pgas.barrier_all()
        everything = pgas.allgather_object(
            (table.copies.copy_to_host().tobytes(), table.fetched.copy_to_host().tobytes(), table.signals.copy_to_host().tobytes(), slots)
        )
        own: dict[int, list[Fault]] = {}
        for place in range(me, len(programs), pgas.n_pes()):
            faults = list(Oracle(programs[place]).faults(_found(everything, programs, place)))
            if faults:
                own[place] = faults
        gathered: dict[int, list[Fault]] = {}
        for faults_of in pgas.allgather_object(own):
            gathered |= faults_of
        return dict(sorted(gathered.items()))

    def _table(self, programs: Sequence[Program]) -> tuple[Table, dict[tuple[int, int], int]]:
        """The table of this PE; and by place of the program and number of the operation, where it leaves what it fetches."""
        me, shape = pgas.my_pe(), programs[0].shape
        size, phases = shape.dtype.itemsize, len(shape.ends)
        rows: list[tuple[int, ...]] = []
        operands, conditions = bytearray(), bytearray()
        first = np.zeros((phases, len(programs) + 1), np.int64)
        slots: dict[tuple[int, int], int] = {}
        elements = signals = 0
        for phase in range(phases):
            for place, program in enumerate(programs):
                first[phase, place] = len(rows)
                for number, o in enumerate(program.operations):
                    if o.phase != phase or o.pe != me:
                        continue
                    slot = 0
                    if o.kind in _SIGNAL_VALUES and fetches(shape, o):
                        slots[place, number] = slot = signals
                        signals += 1
                    elif nbytes := fetches(shape, o):
                        slots[place, number] = slot = elements
                        elements += nbytes // size
                    rows.append(self._row(shape, place, o, slot))
                    for elements_of, bits in ((operands, o.value), (conditions, o.condition)):
                        elements_of += (bits % (1 << 8 * size)).to_bytes(size, "little")
            first[phase, len(programs)] = len(rows)
        regions = b"".join(image(p.seed, p.number, me, shape) for p in programs)
        self._area[: len(regions)].copy_to_device(np.frombuffer(regions, np.uint8))
        area, words = self._area[: len(regions)].view(shape.dtype), self._area[: len(regions)].view(np.uint64)
        untouched = np.full(max(1, elements) * size, _UNTOUCHED, np.uint8).view(shape.dtype)
        table = Table(
            cuda.to_device(np.array(rows or [(0,) * len(COLUMNS)], np.int64)),
            cuda.to_device(first),
            cuda.to_device(np.array(shape.ends, np.int64)),
            cuda.to_device(np.frombuffer(bytes(operands) or bytes(size), shape.dtype).copy()),
            cuda.to_device(np.frombuffer(bytes(conditions) or bytes(size), shape.dtype).copy()),
            area,
            words,
            cuda.to_device(untouched),
            cuda.to_device(np.zeros(max(1, signals), np.uint64)),
            cuda.to_device(np.zeros((phases, len(programs), shape.region_bytes // 8), np.uint64)),
            self._counter.array,
            self._counter.reserve(len(programs) * MEETINGS * phases),
        )
        return table, slots

    def _row(self, shape: Shape, place: int, o: Any, slot: int) -> tuple[int, ...]:
        """An operation as the interpreter reads it."""
        size, base = shape.dtype.itemsize, place * shape.region_bytes
        dest, source, word = (base + o.dest) // size, (base + o.source) // size, (base + o.word) // 8
        qp = min(o.qp, self._queue_pairs)
        value, condition = (o.value, o.condition) if o.kind in _SIGNAL_VALUES else (0, 0)
        elements = dest, source, o.nelems, o.dst_stride, o.src_stride
        return (o.kind, o.scope, o.who, o.target, *elements, o.whole, qp, word, value, condition, slot)


#: Operations on words, whose value is in the row.
_SIGNAL_VALUES = frozenset((*FLAGS, *WAITS, Kind.SIGNAL_FETCH))


def _found(
    everything: Sequence[tuple[bytes, bytes, bytes, Mapping[tuple[int, int], int]]], programs: Sequence[Program], place: int
) -> Found:
    """What a program left, on all PEs."""
    program = programs[place]
    shape = program.shape
    size, nbytes = shape.dtype.itemsize, shape.region_bytes
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
    return Found(regions, fetched)
