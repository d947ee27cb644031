"""Landing cells: NIC-accessible memory into which the NIC writes the results of g and fetching atomics."""

from typing import Any

from pgas.kernels import state, window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic.lanes import place
from pgas.kernels.paths.nic.queue_pair import lost
from pgas.kernels.state import fixed
from pgas.kernels.typed import layout

#: Results of try_cell without a cell.
_BUSY, _LOST = layout.N_CELLS, constant(layout.N_CELLS + 1)

_CELL_MASK, _MINUS_1 = constant(layout.N_CELLS - 1), constant((1 << 64) - 1)
_0, _1, _4 = constant(0), constant(1), constant(4)


@device
def first_cell():
    """Return the address of a landing cell, which is always readable."""
    return fixed(layout.CELLS)


@device
def sink():
    """Return the address to which atomics write old values that are not used."""
    return fixed(layout.CELLS) + layout.SINK


@device
def try_cell(op, deadline, here, number):
    """Return a landing cell for the active lanes, until each has released it; BUSY if none is free, LOST if the job is poisoned.

    Use the cell inside the retry loop. Otherwise diverged lanes deadlock, because those with a cell may have to wait for those that still
    loop. number: lanes.place(here).
    """
    cell = u32(_LOST)
    if number == 0:
        ticket = ptx.atom_add_gpu_u64(layout.CELL_TICKET, _1) & _CELL_MASK
        flag = layout.CELL_TAKEN + ticket * layout.WORD
        if ptx.atom_cas_gpu_u64(flag, _0, u64(ptx.popc(here))) == _0:
            cell = u32(ticket)
        elif not lost(op, flag, _0, _1, deadline):
            state.relax(op, flag, _0, _0)
            cell = u32(_BUSY)
    return ptx.shfl_u32(here, cell, ptx.lowest(here))


@device
def release_cell(cell):
    """Release a landing cell after the caller has read its part."""
    ptx.red_add_release_gpu_u64(layout.CELL_TAKEN + u64(cell) * layout.WORD, _MINUS_1)


def fetching(fetch: Any) -> Any:
    """Make ``fetched(op, here, nbytes, otherwise, request)`` from ``fetch(op, here, at, otherwise, request)``; all active lanes call both.

    fetch posts a request for nbytes to be written at ``at``, waits for it, and returns what it loads from there. otherwise: the result if
    the job is poisoned.
    """

    @device
    def fetched(op, here, nbytes, otherwise, request):
        deadline = ptx.globaltimer() + state.timeout_ns()
        found, cell, number = otherwise, u32(_BUSY), place(here)
        while cell == _BUSY:
            cell = try_cell(op, deadline, here, number)
            if cell < _BUSY:
                found = fetch(op, here, fixed(layout.CELLS) + u64(cell) * layout.CELL_SIZE + number * nbytes, found, request)
                release_cell(cell)
        return found

    return fetched


@device
def old_word(at, nbytes):
    """Return the old value that an atomic wrote: 4 bytes are big-endian, 8 are in host byte order (window.BIG_ENDIAN: big-endian)."""
    if nbytes == _4:
        return u64(ptx.swap_u32(ptx.ld_relaxed_sys_u32(at)))
    if window.BIG_ENDIAN:
        return ptx.swap_u64(ptx.ld_relaxed_sys_u64(at))
    return ptx.ld_relaxed_sys_u64(at)
