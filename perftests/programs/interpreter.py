"""The kernel that performs programs from a table, a block each; elements have the type of its array of them.

A row of the table holds an operation; the places in it are indices of elements or words. Between phases all PEs meet: then every block
copies its region away, to be compared later.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import pgas
from pgas.perftests.programs.operation import BLOCK, LANES, THREAD, End, Kind

__all__ = ["COLUMNS", "Table", "interpreter"]

COLUMNS = ("kind", "scope", "who", "target", "dest", "source", "nelems", "whole", "qp", "word", "value", "condition", "slot")
_KIND, _SCOPE, _WHO, _TARGET, _DEST, _SOURCE, _NELEMS, _WHOLE, _QP, _WORD, _VALUE, _CONDITION, _SLOT = range(len(COLUMNS))

_PUT, _PUT_NBI, _GET, _PUT_SIGNAL = int(Kind.PUT), int(Kind.PUT_NBI), int(Kind.GET), int(Kind.PUT_SIGNAL)
_PUT_SIGNAL_NBI, _P, _G, _LOAD, _STORE = (int(k) for k in (Kind.PUT_SIGNAL_NBI, Kind.P, Kind.G, Kind.LOAD, Kind.STORE))
_SIGNAL_OP, _FLAG_P, _FLAG_ADD = int(Kind.SIGNAL_OP), int(Kind.FLAG_P), int(Kind.FLAG_ADD)
_SIGNAL_WAIT_UNTIL, _WAIT_UNTIL = int(Kind.SIGNAL_WAIT_UNTIL), int(Kind.WAIT_UNTIL)
_FENCE, _QUIET, _SYNCTHREADS = int(Kind.FENCE), int(Kind.QUIET), int(Kind.SYNCTHREADS)
_ATOMIC_ADD, _ATOMIC_FETCH_ADD = int(Kind.ATOMIC_ADD), int(Kind.ATOMIC_FETCH_ADD)
_END_BARRIER, _END_WARP, _END_BLOCK, _END_QUIET, _END_QUIETS = (int(end) for end in End)


class Table(NamedTuple):
    """What a PE's kernel works on."""

    rows: Any  #: int64, one for each operation of this PE
    first: Any  #: int64: [phase, program] first row of it; those up to that of the next program belong to it
    ends: Any  #: int64: what completes each phase
    operands: Any  #: an element for each row
    area: Any  #: elements of the regions of all programs, on the symmetric heap
    words: Any  #: the same as uint64
    fetched: Any  #: elements that were fetched, by slot
    waited: Any  #: uint64: signals that were fetched, by slot
    copies: Any  #: uint64: [phase, program, word] the regions after each phase


@cuda.jit(device=True)
def _no_atomics(kind, operands, area, fetched, i, dest, pe, slot):
    """Elements that have none."""


@cuda.jit(device=True)
def _atomics(kind, operands, area, fetched, i, dest, pe, slot):
    """Perform an atomic."""
    value = operands[i]
    if kind == _ATOMIC_ADD:
        pgas.atomic_add(area, dest, value, pe)
    elif kind == _ATOMIC_FETCH_ADD:
        fetched[slot] = pgas.atomic_fetch_add(area, dest, value, pe)


@cuda.jit(device=True)
def _copy(rows, area, words, i, scope):
    """put, get and put_signal of a thread, warp or block."""
    kind, pe, to, source, nelems, qp = rows[i, _KIND], rows[i, _TARGET], rows[i, _DEST], rows[i, _SOURCE], rows[i, _NELEMS], rows[i, _QP]
    dest, data = area[to : to + nelems], area[source : source + nelems]
    if kind >= _PUT_SIGNAL:
        word, value, op = rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
        if kind == _PUT_SIGNAL:
            if scope == THREAD:
                pgas.put_signal(dest, data, words, word, value, op, pe)
            elif scope == BLOCK:
                pgas.put_signal_block(dest, data, words, word, value, op, pe)
            else:
                pgas.put_signal_warp(dest, data, words, word, value, op, pe)
        elif scope == THREAD:
            pgas.put_signal_nbi(dest, data, words, word, value, op, pe)
        elif scope == BLOCK:
            pgas.put_signal_nbi_block(dest, data, words, word, value, op, pe)
        else:
            pgas.put_signal_nbi_warp(dest, data, words, word, value, op, pe)
    elif kind == _PUT:
        if scope == BLOCK:
            pgas.put_block(dest, data, pe, None, qp)
        elif scope != THREAD:
            pgas.put_warp(dest, data, pe, None, qp)
        elif rows[i, _WHOLE] != 0:
            pgas.put(dest, data, pe, None, qp)
        else:
            pgas.put(area[to:], area[source:], pe, nelems, qp)
    elif kind == _PUT_NBI:
        if scope == BLOCK:
            pgas.put_nbi_block(dest, data, pe, None, qp)
        elif scope != THREAD:
            pgas.put_nbi_warp(dest, data, pe, None, qp)
        elif rows[i, _WHOLE] != 0:
            pgas.put_nbi(dest, data, pe, None, qp)
        else:
            pgas.put_nbi(area[to:], area[source:], pe, nelems, qp)
    elif scope == BLOCK:
        pgas.get_block(dest, data, pe, None, qp)
    elif scope != THREAD:
        pgas.get_warp(dest, data, pe, None, qp)
    elif rows[i, _WHOLE] != 0:
        pgas.get(dest, data, pe, None, qp)
    else:
        pgas.get(area[to:], area[source:], pe, nelems, qp)


@cuda.jit(device=True)
def _signal(rows, words, waited, i, kind):
    """Signals, and what waits for them."""
    pe, word, value, condition = rows[i, _TARGET], rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
    if kind == _SIGNAL_OP:
        pgas.signal_op(words, word, value, condition, pe)
    elif kind == _FLAG_P:
        pgas.p(words, word, value, pe)
    elif kind == _FLAG_ADD:
        pgas.atomic_add(words, word, value, pe)
    elif kind == _SIGNAL_WAIT_UNTIL:
        waited[rows[i, _SLOT]] = pgas.signal_wait_until(words, word, condition, value)
    elif kind == _WAIT_UNTIL:
        pgas.wait_until(words, word, condition, value)


def _interpreter(atomics):  # type: ignore[no-untyped-def]
    """Make the kernel, with what performs atomics."""

    @cuda.jit(device=True)
    def by_thread(rows, operands, area, words, fetched, waited, i, kind):
        """Perform what is of one thread only."""
        pe, qp, slot = rows[i, _TARGET], rows[i, _QP], rows[i, _SLOT]
        if kind == _P:
            pgas.p(area, rows[i, _DEST], operands[i], pe, qp)
        elif kind == _G:
            fetched[slot] = pgas.g(area, rows[i, _SOURCE], pe, qp)
        elif kind == _LOAD:
            for k in range(rows[i, _NELEMS]):
                fetched[slot + k] = area[rows[i, _SOURCE] + k]
        elif kind == _STORE:
            area[rows[i, _DEST]] = operands[i]
        elif kind == _FENCE:
            pgas.fence()
        elif kind == _QUIET:
            pgas.quiet()
        elif kind >= _ATOMIC_ADD:
            atomics(kind, operands, area, fetched, i, rows[i, _DEST], pe, slot)
        else:
            _signal(rows, words, waited, i, kind)

    @pgas.jit
    def perform(table: Table) -> None:
        """Perform the programs."""
        rows, area, words, copies = table.rows, table.area, table.words, table.copies
        thread, program, size = cuda.threadIdx.x, cuda.blockIdx.x, copies.shape[2]
        grid = cuda.cg.this_grid()
        for phase in range(table.ends.size):
            for i in range(table.first[phase, program], table.first[phase, program + 1]):
                kind, scope, who = rows[i, _KIND], rows[i, _SCOPE], rows[i, _WHO]
                if kind == _SYNCTHREADS:
                    cuda.syncthreads()
                elif scope == BLOCK:
                    _copy(rows, area, words, i, scope)
                elif scope == THREAD:
                    if who == thread:
                        if kind <= _PUT_SIGNAL_NBI:
                            _copy(rows, area, words, i, scope)
                        else:
                            by_thread(rows, table.operands, area, words, table.fetched, table.waited, i, kind)
                elif who == thread // LANES * LANES:
                    _copy(rows, area, words, i, scope)
            end = table.ends[phase]
            if end == _END_QUIETS:
                pgas.quiet()
            elif end == _END_QUIET:
                cuda.syncthreads()
                if thread == 0:
                    pgas.quiet()
            grid.sync()
            if program == 0:
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
            grid.sync()
            for k in range(thread, size, cuda.blockDim.x):
                copies[phase, program, k] = words[program * size + k]
            grid.sync()
            if program == 0 and thread == 0:
                pgas.sync_all()
            grid.sync()

    return perform


_without_atomics = _interpreter(_no_atomics)
_with_atomics = _interpreter(_atomics)


def interpreter(dtype: np.dtype) -> Any:
    """The kernel for elements of a type."""
    return _with_atomics if dtype.kind in "iuf" and dtype.itemsize >= 4 else _without_atomics
