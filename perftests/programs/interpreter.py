"""The kernel that performs programs from a table, one block per program.

A row of the table is an operation; its locations are indices of elements or words. After each phase, all PEs synchronize, and every block
copies its region for the comparison.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

import pgas
from pgas.perftests.harness.grid import grid_barrier
from pgas.perftests.programs.operation import BLOCK, LANES, LOCAL_BYTES, THREAD, PhaseEnd, has_atomics

#: Number of grid barriers per phase.
MEETINGS = 4

COLUMNS = (
    "kind", "scope", "who", "target", "dest", "source", "nelems", "dst_stride", "src_stride", "whole", "qp", "word", "value", "condition",
    "slot", "local",
)  # fmt: skip
_KIND, _SCOPE, _WHO, _TARGET, _DEST, _SOURCE, _NELEMS, _DST_STRIDE, _SRC_STRIDE, _WHOLE, _QP, _WORD, _VALUE, _CONDITION = range(14)
_SLOT, _LOCAL = range(14, len(COLUMNS))

# Plain integers, because the simulator interprets these kernels, and enum members are slow to compare.
_PUT, _PUT_NBI, _GET, _GET_NBI, _IPUT, _IGET, _PUT_SIGNAL, _PUT_SIGNAL_NBI, _P, _G, _LOAD, _STORE = range(12)
_SIGNAL_OP, _FLAG_P, _FLAG_SET, _FLAG_ADD, _SIGNAL_FETCH, _SIGNAL_WAIT_UNTIL, _WAIT_UNTIL, _TEST = range(12, 20)
_WAIT_UNTIL_ALL, _WAIT_UNTIL_ANY, _WAIT_UNTIL_SOME, _WAIT_UNTIL_ALL_VECTOR, _WAIT_UNTIL_ANY_VECTOR, _WAIT_UNTIL_SOME_VECTOR = range(20, 26)
_TEST_ALL, _TEST_ANY, _TEST_SOME, _TEST_ALL_VECTOR, _TEST_ANY_VECTOR, _TEST_SOME_VECTOR = range(26, 32)
_FENCE, _QUIET, _QUIET_PE, _FLUSH, _SYNCTHREADS = range(32, 37)
_ADD, _SET, _INC, _AND, _OR, _XOR, _FETCH, _SWAP, _FETCH_ADD, _COMPARE_SWAP, _FETCH_INC, _FETCH_AND, _FETCH_OR, _FETCH_XOR = range(37, 51)
_TEAM_SYNC, _BARRIER, _ALLTOALL, _BROADCAST, _FCOLLECT, _REDUCE, _REDUCESCATTER, _INSCAN, _EXSCAN = range(51, 60)
_END_BARRIER, _END_WARP, _END_BLOCK, _END_QUIET, _END_QUIETS = (int(end) for end in PhaseEnd)

#: Operand in local memory: 0 for none, otherwise dest or source.
IN_DEST, IN_SOURCE = 1, 2

#: Number of extra elements of operands if the call passes nelems.
_SPARE = 5


class KernelData(NamedTuple):
    """Arrays and numbers of a PE's kernel."""

    rows: Any  #: int64, one for each operation of this PE
    first: Any  #: int64, by phase and program: first row of a program; its rows end at the next program's first
    ends: Any  #: int64: End of each phase
    operands: Any  #: an element for each row
    conditions: Any  #: an element for each row: the condition of compare_swap
    area: Any  #: elements of the regions of all programs, on the symmetric heap
    local: Any  #: elements of this PE's local memory
    words: Any  #: area as uint64
    local_words: Any  #: local as uint64
    fetched: Any  #: fetched elements, by slot
    signals: Any  #: uint64: fetched signals, by slot, and records of _several()
    copies: Any  #: uint64, by phase, program, and word: the regions after each phase, and local memory; or of no phases
    counter: Any  #: counter of grid_barrier
    meeting: int  #: value of the counter before the kernel
    begin: int  #: first phase that the kernel performs
    end: int


@cuda.jit(device=True)
def _no_atomics(table, i, kind):
    """Do nothing, because the elements have no atomics."""


@cuda.jit(device=True)
def _atomics_of_floats(table, i, kind):
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
    if kind == _IPUT:
        pgas.iput(dest, data, far, near, pe, nelems)
    else:
        pgas.iget(dest, data, far, near, pe, nelems)


@cuda.jit(device=True)
def _strided(kind, scope, dest, data, far, near, pe, nelems):
    """Strided copies of a thread, warp, or block."""
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
    if kind == _PUT_SIGNAL:
        pgas.put_signal(dest, data, words, word, value, op, pe)
    else:
        pgas.put_signal_nbi(dest, data, words, word, value, op, pe)


@cuda.jit(device=True)
def signalled(kind, scope, dest, data, words, word, value, op, pe):
    """Copies of a thread, warp, or block with a signal."""
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
    if kind == _PUT:
        pgas.put(dest, data, pe, nelems, qp)
    elif kind == _PUT_NBI:
        pgas.put_nbi(dest, data, pe, nelems, qp)
    elif kind == _GET:
        pgas.get(dest, data, pe, nelems, qp)
    else:
        pgas.get_nbi(dest, data, pe, nelems, qp)


@cuda.jit(device=True)
def copied(kind, scope, dest, data, pe, nelems, qp):
    """Copies of a thread, warp, or block."""
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
    """Signals and waits for one word."""
    rows, words = table.rows, table.words
    pe, word, value, condition = rows[i, _TARGET], rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
    if kind == _SIGNAL_OP:
        pgas.signal_op(words, word, value, condition, pe)
    elif kind == _FLAG_P:
        pgas.p(words, word, value, pe, rows[i, _QP])
    elif kind == _FLAG_SET:
        pgas.atomic_set(words, word, value, pe)
    elif kind == _FLAG_ADD:
        pgas.atomic_add(words, word, value, pe)
    elif kind == _SIGNAL_FETCH:
        table.signals[rows[i, _SLOT]] = pgas.signal_fetch(words, word)
    elif kind == _SIGNAL_WAIT_UNTIL:
        table.signals[rows[i, _SLOT]] = pgas.signal_wait_until(words, word, condition, value)
    elif kind == _WAIT_UNTIL:
        pgas.wait_until(words, word, condition, value)
    else:
        table.signals[rows[i, _SLOT]] = pgas.test(words, word, condition, value)


@cuda.jit(device=True)
def _not_several(table, i, kind):
    """Do nothing, because programs of these elements never wait for several words; see interpreter()."""


@cuda.jit(device=True)
def _several(table, i, kind):
    """Wait for several words or test them. A record has the answer, then for each word its index, status, and value."""
    rows, n, slot = table.rows, table.rows[i, _NELEMS], table.rows[i, _SLOT]
    word, cmp, value, record = rows[i, _WORD], rows[i, _CONDITION], np.uint64(rows[i, _VALUE]), table.signals
    ivars, indices = table.words[word : word + n], record[slot + 1 : slot + 1 + n]
    status, values = record[slot + 1 + n : slot + 1 + 2 * n], record[slot + 1 + 2 * n : slot + 1 + 3 * n]
    found = 1
    if kind == _WAIT_UNTIL_ALL:
        pgas.wait_until_all(ivars, status, cmp, value)
    elif kind == _WAIT_UNTIL_ANY:
        found = pgas.wait_until_any(ivars, status, cmp, value, n)
    elif kind == _WAIT_UNTIL_SOME:
        found = pgas.wait_until_some(ivars, indices, status, cmp, value)
    elif kind == _WAIT_UNTIL_ALL_VECTOR:
        pgas.wait_until_all_vector(ivars, status, cmp, values, n)
    elif kind == _WAIT_UNTIL_ANY_VECTOR:
        found = pgas.wait_until_any_vector(ivars, status, cmp, values)
    elif kind == _WAIT_UNTIL_SOME_VECTOR:
        found = pgas.wait_until_some_vector(ivars, indices, status, cmp, values, n)
    elif kind == _TEST_ALL:
        found = int(pgas.test_all(ivars, status, cmp, value))
    elif kind == _TEST_ANY:
        found = pgas.test_any(ivars, status, cmp, value, n)
    elif kind == _TEST_SOME:
        found = pgas.test_some(ivars, indices, status, cmp, value)
    elif kind == _TEST_ALL_VECTOR:
        found = int(pgas.test_all_vector(ivars, status, cmp, values, n))
    elif kind == _TEST_ANY_VECTOR:
        found = pgas.test_any_vector(ivars, status, cmp, values)
    else:
        found = pgas.test_some_vector(ivars, indices, status, cmp, values, n)
    record[slot] = np.uint64(np.int64(found))


@cuda.jit(device=True)
def _no_collectives(table, i, kind, scope):
    """Do nothing, because there are no teams."""


def _collective(scope: str, op: Any) -> Any:
    """Make a function that performs a collective of a scope."""
    names = "team_sync", "barrier", "alltoall", "broadcast", "fcollect", "reduce", "reducescatter", "inscan", "exscan"
    team_sync, barrier, alltoall, broadcast, fcollect, reduce, reducescatter, inscan, exscan = (
        getattr(pgas, name + scope) for name in names
    )

    @cuda.jit(device=True)
    def collective(kind, team, dest, data, root, channel):
        if kind == _TEAM_SYNC:
            team_sync(team, channel)
        elif kind == _BARRIER:
            barrier(team, channel)
        elif kind == _ALLTOALL:
            alltoall(team, dest, data, channel)
        elif kind == _BROADCAST:
            broadcast(team, dest, data, root, channel)
        elif kind == _FCOLLECT:
            fcollect(team, dest, data, channel)
        elif kind == _REDUCE:
            reduce(team, dest, data, op, channel)
        elif kind == _REDUCESCATTER:
            reducescatter(team, dest, data, op, channel)
        elif kind == _INSCAN:
            inscan(team, dest, data, op, channel)
        else:
            exscan(team, dest, data, op, channel)

    return collective


def operation_of(dtype: np.dtype) -> Any:
    """Return an op for reductions whose result does not depend on the order of members."""
    return pgas.MAX if dtype.kind == "f" else pgas.SUM


def _collectives(op: Any) -> Any:
    """Make a function that performs the collective of a row."""
    by_thread, by_warp, by_block = (_collective(scope, op) for scope in ("", "_warp", "_block"))

    @cuda.jit(device=True)
    def collectives(table, i, kind, scope):
        rows, area, to, source = table.rows, table.area, table.rows[i, _DEST], table.rows[i, _SOURCE]
        dest = area[to : to + rows[i, _NELEMS] * rows[i, _DST_STRIDE]]
        data = area[source : source + rows[i, _NELEMS] * rows[i, _SRC_STRIDE]]
        team, root, channel = rows[i, _VALUE], rows[i, _TARGET], rows[i, _WORD]
        if scope == THREAD:
            by_thread(kind, team, dest, data, root, channel)
        elif scope == BLOCK:
            by_block(kind, team, dest, data, root, channel)
        else:
            by_warp(kind, team, dest, data, root, channel)

    return collectives


@cuda.jit(device=True)
def _finish(end, thread):
    """Call quiet, unless the phase ends with a barrier, which includes it."""
    if end == _END_QUIETS:
        pgas.quiet()
    elif end == _END_QUIET:
        cuda.syncthreads()
        if thread == 0:
            pgas.quiet()


@cuda.jit(device=True)
def _meet(end, thread):
    """Synchronize with the other PEs; the first block does it."""
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


def _interpreter(atomics, several, copied, strided, signalled, collectives=_no_collectives):  # type: ignore[no-untyped-def]
    """Make the kernel from some of the functions above."""

    @cuda.jit(device=True)
    def copy(table, i, kind, scope):
        """Perform a copy."""
        rows, area, pe = table.rows, table.area, table.rows[i, _TARGET]
        to, source, nelems, far, near = rows[i, _DEST], rows[i, _SOURCE], rows[i, _NELEMS], rows[i, _DST_STRIDE], rows[i, _SRC_STRIDE]
        target = table.local if rows[i, _LOCAL] == IN_DEST else area
        origin = table.local if rows[i, _LOCAL] == IN_SOURCE else area
        more = 0 if rows[i, _WHOLE] != 0 else min(_SPARE, target.size - to - nelems * far, origin.size - source - nelems * near)
        dest, data = target[to : to + nelems * far + more], origin[source : source + nelems * near + more]
        if kind >= _PUT_SIGNAL:
            word, value, op = rows[i, _WORD], np.uint64(rows[i, _VALUE]), rows[i, _CONDITION]
            signalled(kind, scope, dest, data, table.words, word, value, op, pe)
        elif kind >= _IPUT:
            strided(kind, scope, dest, data, far, near, pe, nelems)
        else:
            copied(kind, scope, dest, data, pe, nelems, rows[i, _QP])

    @cuda.jit(device=True)
    def by_thread(table, i, kind):
        """Perform an operation that has no warp or block form."""
        rows, area = table.rows, table.area
        if kind == _P:
            pgas.p(area, rows[i, _DEST], table.operands[i], rows[i, _TARGET], rows[i, _QP])
        elif kind == _G:
            table.fetched[rows[i, _SLOT]] = pgas.g(area, rows[i, _SOURCE], rows[i, _TARGET], rows[i, _QP])
        elif kind == _LOAD:
            origin = table.local if rows[i, _LOCAL] == IN_SOURCE else area
            for k in range(rows[i, _NELEMS]):
                table.fetched[rows[i, _SLOT] + k] = origin[rows[i, _SOURCE] + k]
        elif kind == _STORE:
            target = table.local if rows[i, _LOCAL] == IN_DEST else area
            target[rows[i, _DEST]] = table.operands[i]
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
        elif kind >= _WAIT_UNTIL_ALL:
            several(table, i, kind)
        else:
            _signal(table, i, kind)

    @pgas.jit
    def perform(table: KernelData) -> None:
        """Perform the programs."""
        rows, words, copies = table.rows, table.words, table.copies
        thread, program = cuda.threadIdx.x, cuda.blockIdx.x
        size = copies.shape[2] - LOCAL_BYTES // 8
        meeting = table.meeting
        for phase in range(table.begin, table.end):
            for i in range(table.first[phase, program], table.first[phase, program + 1]):
                kind, scope, who = rows[i, _KIND], rows[i, _SCOPE], rows[i, _WHO]
                if kind == _SYNCTHREADS:
                    cuda.syncthreads()
                elif kind >= _TEAM_SYNC:
                    if scope == BLOCK or who == (thread if scope == THREAD else thread // LANES * LANES):
                        collectives(table, i, kind, scope)
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
            for k in range(thread, size if phase < copies.shape[0] else 0, cuda.blockDim.x):
                copies[phase, program, k] = words[program * size + k]
            for k in range(thread, LOCAL_BYTES // 8 if phase < copies.shape[0] else 0, cuda.blockDim.x):
                copies[phase, program, size + k] = table.local_words[program * (LOCAL_BYTES // 8) + k]
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)
            if program == 0 and thread == 0:
                pgas.sync_all()
            meeting += cuda.gridDim.x
            grid_barrier(table.counter, meeting)

    return perform


_BY_THREAD = _copied_by_thread, _strided_by_thread, _signalled_by_thread
_PLAIN = _interpreter(_no_atomics, _several, copied, _strided, signalled)
_FLOATS = _interpreter(_atomics_of_floats, _not_several, copied, _strided, signalled)
_INTEGERS = _interpreter(_atomics_of_integers, _not_several, *_BY_THREAD)


@functools.cache
def _with_collectives(op: Any) -> Any:
    return _interpreter(_no_atomics, _not_several, copied, _strided, signalled, _collectives(op))


def interpreter(dtype: np.dtype, *, teams: bool = False) -> Any:
    """Return the kernel for elements of a type.

    To halve compile times, integers are copied by only one thread, and types with atomics do not wait for several words. With teams, there
    are collectives, but neither atomics nor waits for several words.
    """
    if teams:
        return _with_collectives(operation_of(dtype))
    if not has_atomics(dtype):
        return _PLAIN
    return _FLOATS if dtype.kind == "f" else _INTEGERS
