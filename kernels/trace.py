"""Events of kernels for the timeline (PGAS_TRACE): written into the ring of the caller's block in the trace file (pgas/base/events.py).

This code is compiled only if window.TRACES is True; a job without a timeline has none of it. An event costs an atomic, whose latency the
traced call hides, and four stores that are not waited for.
"""

from typing import Any

from pgas.base import events
from pgas.kernels import window
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.typed import layout

#: Codes of the events that paths write.
WRITTEN, RUNG, COMPLETED, REQUESTED = (constant(code) for code in (events.WRITTEN, events.RUNG, events.COMPLETED, events.REQUESTED))

_RINGS = constant(window.TRACE + events.RINGS)
_BLOCKS, _BLOCK_MASK = constant(events.BLOCKS), constant(events.BLOCK_RINGS - 1)
_SHIFT, _LAUNCH_SHIFT, _BLOCK_SHIFT = constant(events.EVENT_SHIFT), constant(events.LAUNCH_SHIFT), constant(events.BLOCK_SHIFT)
_THREAD_SHIFT, _TICKET_SHIFT = constant(events.THREAD_SHIFT), constant(events.TICKET_SHIFT)
_SIZE_MASK, _LAUNCH_MASK = constant(events.SIZE_MASK), constant(events.LAUNCH_MASK)
_TICKET_MASK, _NOBODY = constant((1 << 32) - 1), constant(events.NOBODY)
_ADDRESS, _WORD, _END, _WHAT = (constant(word) for word in (events.ADDRESS, events.WORD, events.END, events.WHAT))
_0, _1 = constant(0), constant(1)


@device
def ring_of_block():
    """Return the number of the caller's block's ring among those of blocks."""
    return u64(ptx.block_rank()) & _BLOCK_MASK


@device
def begin():
    """Begin an event: return its ticket and the time."""
    return ptx.atom_add_gpu_u64(layout.TRACE_HEADS + ring_of_block() * layout.TRACE_HEAD_SIZE, _1), ptx.globaltimer()


@device
def end(began, code, peer, address, nbytes, word, value):
    """Write the event that has ended now.

    began: the result of begin(). code: a code with the scope and comparison. For the other operands see pgas/base/events.py.
    """
    _write(began, ptx.globaltimer(), code, peer, address, nbytes, word, value)


@device
def mark(began, code, queue, index, nbytes):
    """Write an event of a queue pair. queue: its number, index: of a WQEBB, or a ticket.

    began: the result of begin(), before what it marks is visible to others; otherwise their events could have earlier times.
    """
    _write(began, began[1], code, _NOBODY, _0, nbytes, queue, index)


@device
def _write(began, now, code, peer, address, nbytes, word, value):
    ticket, start = began
    at = _RINGS + (((_BLOCKS + ring_of_block()) << window.TRACE_SHIFT) + ((ticket & window.TRACE_MASK) << _SHIFT))
    ptx.st_pair_sys(at + _ADDRESS, address, nbytes & _SIZE_MASK | (ptx.grid_number() & _LAUNCH_MASK) << _LAUNCH_SHIFT)
    ptx.st_pair_sys(at + _WORD, word, value)
    ptx.st_pair_sys(at + _END, now, peer & _NOBODY | u64(ptx.block_rank()) << _BLOCK_SHIFT)
    what = code | u64(ptx.thread_rank()) << _THREAD_SHIFT | (ticket & _TICKET_MASK) << _TICKET_SHIFT
    ptx.st_pair_sys(at + _WHAT, what, start)


def leading(rank: Any) -> Any:
    """Make ``leading()``: whether the caller writes the event of its scope."""

    @device
    def leading():
        return rank() == u32(0)

    return leading
