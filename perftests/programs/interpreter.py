"""The kernel that performs programs from a table, a block each; elements have the type of its array of them.

A row of the table holds an operation; the places in it are indices of elements or words. Between phases all PEs meet: then every block
copies its region away, to be compared later.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import pgas
from pgas.perftests.grid import grid_barrier
from pgas.perftests.programs.operation import BLOCK, LANES, THREAD, End, has_atomics

__all__ = ["COLUMNS", "MEETINGS", "Table", "interpreter"]

#: Grid barriers of a phase.
MEETINGS = 4

COLUMNS = (
    "kind", "scope", "who", "target", "dest", "source", "nelems", "dst_stride", "src_stride", "whole", "qp", "word", "value", "condition",
    "slot",
)  # fmt: skip
_KIND, _SCOPE, _WHO, _TARGET, _DEST, _SOURCE, _NELEMS, _DST_STRIDE, _SRC_STRIDE, _WHOLE, _QP, _WORD, _VALUE, _CONDITION, _SLOT = range(
    len(COLUMNS)
)

# Plain integers: members of an enumeration are slow to compare, and the simulator interprets these kernels.
_PUT, _PUT_NBI, _GET, _GET_NBI, _IPUT, _IGET, _PUT_SIGNAL, _PUT_SIGNAL_NBI, _P, _G, _LOAD, _STORE = range(12)
_SIGNAL_OP, _FLAG_P, _FLAG_SET, _FLAG_ADD, _SIGNAL_FETCH, _SIGNAL_WAIT_UNTIL, _WAIT_UNTIL = range(12, 19)
_FENCE, _QUIET, _QUIET_PE, _FLUSH, _SYNCTHREADS = range(19, 24)
_ADD, _SET, _INC, _AND, _OR, _XOR, _FETCH, _SWAP, _FETCH_ADD, _COMPARE_SWAP, _FETCH_INC, _FETCH_AND, _FETCH_OR, _FETCH_XOR = range(24, 38)
_END_BARRIER, _END_WARP, _END_BLOCK, _END_QUIET, _END_QUIETS = (int(end) for end in End)

#: Elements by which operands are longer than what is copied, where the call names a number of elements.
_SPARE = 5


class Table(NamedTuple):
    """What a PE's kernel works on."""

    rows: Any  #: int64, one for each operation of this PE
    first: Any  #: int64: [phase, program] first row of it; those up to that of the next program belong to it
    ends: Any  #: int64: what completes each phase
    operands: Any  #: an element for each row
    conditions: Any  #: an element for each row, that compare_swap compares with
    area: Any  #: elements of the regions of all programs, on the symmetric heap
    words: Any  #: the same as uint64
    fetched: Any  #: elements that were fetched, by slot
    signals: Any  #: uint64: signals that were fetched, by slot
    copies: Any  #: uint64: [phase, program, word] the regions after each phase
    counter: Any  #: of grid_barrier
    meeting: int  #: its value before the kernel


@cuda.jit(device=True)
def _no_atomics(table, i, kind):
    """Elements that have none."""


@cuda.jit(device=True)
def _atomics_of_floats(table, i, kind):
    """Perform an atomic that floats have."""
    rows, area, fetched = table.rows, table.area, table.fetched
    at, pe, slot, value = rows[i, _DEST], rows[i, _TARGET], rows[i, _SLOT], table.operands[i]
    if kind == _ADD:
        pgas.atomic_add(area, at, value, pe)
    elif kind == _SET:
        pgas.atomic_set(area, at, value, pe)
    elif kind == _FETCH:
        fetched[slot] = pgas.atomic_fetch(area, at, pe)
    elif kind == _SWAP:
        fetched[slot] = pgas.atomic_swap(area, at, value, pe)
    elif kind == _FETCH_ADD:
        fetched[slot] = pgas.atomic_fetch_add(area, at, value, pe)


@cuda.jit(device=True)
def _atomics_of_integers(table, i, kind):
    """Perform an atomic."""
    rows, area, fetched = table.rows, table.area, table.fetched
    at, pe, slot, value = rows[i, _DEST], rows[i, _TARGET], rows[i, _SLOT], table.operands[i]
    if kind == _INC:
        pgas.atomic_inc(area, at, pe)
    elif kind == _AND:
        pgas.atomic_and(area, at, value, pe)
    elif kind == _OR:
        pgas.atomic_or(area, at, value, pe)
    elif kind == _XOR:
        pgas.atomic_xor(area, at, value, pe)
    elif kind == _COMPARE_SWAP:
        fetched[slot] = pgas.atomic_compare_swap(area, at, table.conditions[i], value, pe)
    elif kind == _FETCH_INC:
        fetched[slot] = pgas.atomic_fetch_inc(area, at, pe)
    elif kind == _FETCH_AND:
        fetched[slot] = pgas.atomic_fetch_and(area, at, value, pe)
    elif kind == _FETCH_OR:
        fetched[slot] = pgas.atomic_fetch_or(area, at, value, pe)
    elif kind == _FETCH_XOR:
        fetched[slot] = pgas.atomic_fetch_xor(area, at, value, pe)
    else:
        _atomics_of_floats(table, i, kind)


@cuda.jit(device=True)
def _strided_by_thread(kind, scope, dest, data, far, near, pe, nelems):
    """Strided copies of a thread."""
    if kind == _IPUT:
        pgas.iput(dest, data, far, near, pe, nelems)
    else:
        pgas.iget(dest, data, far, near, pe, nelems)


@cuda.jit(device=True)
def _strided(kind, scope, dest, data, far, near, pe, nelems):
    """Strided copies of a thread, warp or block."""
    if scope == THREAD:
        _strided_by_thread(kind, scope, dest, data, far, near, pe, nelems)
    elif kind == _IPUT:
        if scope == BLOCK:
            pgas.iput_block(dest, data, far, near, pe, nelems)
        else:
            pgas.iput_warp(dest, data, far, near, pe, nelems)
    elif scope == BLOCK:
        pgas.iget_block(dest, data, far, near, pe, nelems)
    else:
        pgas.iget_warp(dest, data, far, near, pe, nelems)


@cuda.jit(device=True)
def _signalled_by_thread(kind, scope, dest, data, words, word, value, op, pe):
    """Copies of a thread with a signal."""
    if kind == _PUT_SIGNAL:
        pgas.put_signal(dest, data, words, word, value, op, pe)
    else:
        pgas.put_signal_nbi(dest, data, words, word, value, op, pe)


@cuda.jit(device=True)
def _signalled(kind, scope, dest, data, words, word, value, op, pe):
    """Copies of a thread, warp or block with a signal."""
    if scope == THREAD:
        _signalled_by_thread(kind, scope, dest, data, words, word, value, op, pe)
    elif kind == _PUT_SIGNAL:
        if scope == BLOCK:
            pgas.put_signal_block(dest, data, words, word, value, op, pe)
        else:
            pgas.put_signal_warp(dest, data, words, word, value, op, pe)
    elif scope == BLOCK:
        pgas.put_signal_nbi_block(dest, data, words, word, value, op, pe)
    else:
        pgas.put_signal_nbi_warp(dest, data, words, word, value, op, pe)


@cuda.jit(device=True)
def _copied_by_thread(kind, scope, dest, data, pe, nelems, qp):
    """Copies of a thread."""
    if kind == _PUT:
        pgas.put(dest, data, pe, nelems, qp)
    elif kind == _PUT_NBI:
        pgas.put_nbi(dest, data, pe, nelems, qp)
    elif kind == _GET:
        pgas.get(dest, data, pe, nelems, qp)
    else:
        pgas.get_nbi(dest, data, pe, nelems, qp)


@cuda.jit(device=True)
def _copied(kind, scope, dest, data, pe, nelems, qp):
    """Copies of a thread, warp or block."""
    if scope == THREAD:
        _copied_by_thread(kind, scope, dest, data, pe, nelems, qp)
    elif kind == _PUT:
        if scope == BLOCK:
            pgas.put_block(dest, data, pe, nelems, qp)
        else:
            pgas.put_warp(dest, data, pe, nelems, qp)
    elif kind == _PUT_NBI:
        if scope == BLOCK:
            pgas.put_nbi_block(dest, data, pe, nelems, qp)
        else:
            pgas.put_nbi_warp(dest, data, pe, nelems, qp)
    elif kind == _GET:
        if scope == BLOCK:
            pgas.get_block(dest, data, pe, nelems, qp)
        else:
            pgas.get_warp(dest, data, pe, nelems, qp)
    elif scope == BLOCK:
        pgas.get_nbi_block(dest, data, pe, nelems, qp)
    else:
        pgas.get_nbi_warp(dest, data, pe, nelems, qp)


@cuda.jit(device=True)
def _signal(table, i, kind):
    """Signals, and what waits for them."""
    rows, words = table.rows, table.words
    pe, word, value, condition = rows[i, _TARGET], rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
    if kind == _SIGNAL_OP:
        pgas.signal_op(words, word, value, condition, pe)
    elif kind == _FLAG_P:
        pgas.p(words, word, value, pe)
    elif kind == _FLAG_SET:
        pgas.atomic_set(words, word, value, pe)
    elif kind == _FLAG_ADD:
        pgas.atomic_add(words, word, value, pe)
    elif kind == _SIGNAL_FETCH:
        table.signals[rows[i, _SLOT]] = pgas.signal_fetch(words, word)
    elif kind == _SIGNAL_WAIT_UNTIL:
        table.signals[rows[i, _SLOT]] = pgas.signal_wait_until(words, word, condition, value)
    else:
        pgas.wait_until(words, word, condition, value)


@cuda.jit(device=True)
def _finish(end, thread):
    """Complete what the block has done, or leave that to the barrier."""
    if end == _END_QUIETS:
        pgas.quiet()
    elif end == _END_QUIET:
        cuda.syncthreads()
        if thread == 0:
            pgas.quiet()


@cuda.jit(device=True)
def _meet(end, thread):
    """Meet the other PEs, by the first block."""
    if end == _END_BLOCK:
        pgas.barrier_all_block()
    elif end == _END_WARP:
        if thread < LANES:
            pgas.barrier_all_warp()
    elif thread == 0:
        if end == _END_BARRIER:
            pgas.barrier_all()
        else:
            pgas.sync_all()


def _interpreter(atomics, copied, strided, signalled):  # type: ignore[no-untyped-def]
    """Make the kernel, with what performs atomics and copies."""

    @cuda.jit(device=True)
    def copy(table, i, kind, scope):
        """Perform what moves any number of elements."""
        rows, area, pe = table.rows, table.area, table.rows[i, _TARGET]
        to, source, nelems, far, near = rows[i, _DEST], rows[i, _SOURCE], rows[i, _NELEMS], rows[i, _DST_STRIDE], rows[i, _SRC_STRIDE]
        more = 0 if rows[i, _WHOLE] != 0 else min(_SPARE, area.size - max(to + nelems * far, source + nelems * near))
        dest, data = area[to : to + nelems * far + more], area[source : source + nelems * near + more]
        if kind >= _PUT_SIGNAL:
            word, value, op = rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
            signalled(kind, scope, dest, data, table.words, word, value, op, pe)
        elif kind >= _IPUT:
            strided(kind, scope, dest, data, far, near, pe, nelems)
        else:
            copied(kind, scope, dest, data, pe, nelems, rows[i, _QP])

    @cuda.jit(device=True)
    def by_thread(table, i, kind):
        """Perform what is of one thread only."""
        rows, area = table.rows, table.area
        if kind == _P:
            pgas.p(area, rows[i, _DEST], table.operands[i], rows[i, _TARGET], rows[i, _QP])
        elif kind == _G:
            table.fetched[rows[i, _SLOT]] = pgas.g(area, rows[i, _SOURCE], rows[i, _TARGET], rows[i, _QP])
        elif kind == _LOAD:
            for k in range(rows[i, _NELEMS]):
                table.fetched[rows[i, _SLOT] + k] = area[rows[i, _SOURCE] + k]
        elif kind == _STORE:
            area[rows[i, _DEST]] = table.operands[i]
        elif kind == _FENCE:
            pgas.fence()
        elif kind == _QUIET:
            pgas.quiet()
        elif kind == _QUIET_PE:
            pgas.quiet_pe(rows[i, _TARGET])
        elif kind == _FLUSH:
            pgas.flush()
        elif kind >= _ADD:
            atomics(table, i, kind)
        else:
            _signal(table, i, kind)

    @pgas.jit
    def perform(table: Table) -> None:
        """Perform the programs."""
        rows, words, copies = table.rows, table.words, table.copies
        thread, program, size = cuda.threadIdx.x, cuda.blockIdx.x, copies.shape[2]
        meeting = table.meeting
        for phase in range(table.ends.size):
            for i in range(table.first[phase, program], table.first[phase, program + 1]):
                kind, scope, who = rows[i, _KIND], rows[i, _SCOPE], rows[i, _WHO]
                if kind == _SYNCTHREADS:
                    cuda.syncthreads()
                elif scope == THREAD and kind > _PUT_SIGNAL_NBI:
                    if who == thread:
                        by_thread(table, i, kind)
                elif scope == BLOCK or who == (thread if scope == THREAD else thread // LANES * LANES):
                    copy(table, i, kind, scope)
            end = table.ends[phase]
            _finish(end, thread)
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)
            if program == 0:
                _meet(end, thread)
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)
            for k in range(thread, size, cuda.blockDim.x):
                copies[phase, program, k] = words[program * size + k]
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)
            if program == 0 and thread == 0:
                pgas.sync_all()
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)

    return perform


_BY_THREAD = _copied_by_thread, _strided_by_thread, _signalled_by_thread
_PLAIN, _FLOATS = (_interpreter(atomics, _copied, _strided, _signalled) for atomics in (_no_atomics, _atomics_of_floats))
_INTEGERS = _interpreter(_atomics_of_integers, *_BY_THREAD)


def interpreter(dtype: np.dtype) -> Any:
    """The kernel for elements of a type: those with all atomics copy by one thread only, which halves what a GPU's compiler has to do."""
    if not has_atomics(dtype):
        return _PLAIN
    return _FLOATS if dtype.kind == "f" else _INTEGERS
