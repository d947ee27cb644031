"""Queue pairs: their numbers and records, and the memory that they can access: local operands and keys."""

from pgas.kernels import state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, ptx, u64
from pgas.kernels.refusals import kind_of
from pgas.kernels.state import fixed, fixed_u32
from pgas.kernels.typed import layout

#: Value returned instead of an index, a ticket, or a key if the job is poisoned.
NOWHERE = (1 << 64) - 1

_NOWHERE, _BASE = constant(NOWHERE), constant(window.BASE)
_REGISTERED_LKEYS = constant(layout.REGISTERED + layout.PIECE_LKEY)
_HEAP_OFFSET, _NOT_REGISTERED = constant(window.HEAP_OFFSET), constant(kind_of("not registered"))
_TIMED_OUT, _GE = constant(state.NIC_TIMED_OUT), constant(Comparison.GE)
_0, _1 = constant(0), constant(1)


@device
def lands():
    """Record that data arrives here that only quiet() settles (transport.settle)."""
    ptx.st_relaxed_gpu_u64(layout.LANDS, _1)


@device
def landed():
    """Whether such data may have arrived."""
    return ptx.ld_relaxed_gpu_u64(layout.LANDS) != _0


@device
def number_of(pe, qp):
    """Return the number of queue pair qp to PE pe: qp is 1 to num_qps, or 0 for the one assigned to this CTA, SM, or warp."""
    if window.SETTLES:
        if u64(pe) == u64(state.my_pe()):
            lands()
    return _number_of(pe, qp)


@device
def own_number():
    """Return the number of a queue pair to this PE, for requests that do not move data."""
    return _number_of(state.my_pe(), 0)


@device
def _number_of(pe, qp):
    return u64(pe) * window.NUM_QPS + (u64(window.sharer()) if qp == 0 else u64(qp) - _1) % window.NUM_QPS


@device
def record_of(pe, qp):
    """Return the address of the record of queue pair qp to PE pe."""
    return layout.RECORDS + number_of(pe, qp) * layout.RECORD_SIZE


@device
def own_record():
    """Return the address of the record of a queue pair to this PE, for requests that do not move data."""
    return layout.RECORDS + own_number() * layout.RECORD_SIZE


@device
def rkey_of_heap(pe):
    """Return the rkey of PE pe's heap and team memory, big-endian."""
    return fixed_u32(layout.KEYS + u64(pe) * layout.KEY_SIZE)


@device
def local_operand(op, pe, addr, nbytes):
    """Return where a local operand is: 0 in this PE's slot, i + 1 in entry i of REGISTERED; otherwise NOWHERE, and poison the state.

    This does not check that memory of the slot is on the heap, so that operands on the heap cost one comparison; registered() does.
    """
    if (addr - _BASE) >> window.SHIFT == u64(state.my_pe()):
        return _0
    entry, end, number = layout.REGISTERED, ptx.ld_relaxed_gpu_u64(layout.REGISTERED_END), _1
    while entry < end:
        if addr >= ptx.ld_relaxed_gpu_u64(entry + layout.PIECE_START) and addr + nbytes <= ptx.ld_relaxed_gpu_u64(entry + layout.PIECE_END):
            return number
        entry += layout.PIECE_SIZE
        number += _1
    state.fail(_NOT_REGISTERED, u64(op), u64(pe), addr, nbytes, _0, _0)
    return _NOWHERE


@device
def registered(op, pe, addr, nbytes):
    """Check that [addr, addr + nbytes) is on this PE's heap or registered. If not, return False and poison the state."""
    where = local_operand(op, pe, addr, nbytes)
    if where != _0:
        return where != _NOWHERE
    offset = (addr & window.OFFSET_MASK) - _HEAP_OFFSET
    size = state.heap_size()
    if offset > size or offset < _0 or nbytes > size - offset:
        state.fail(_NOT_REGISTERED, u64(op), u64(pe), addr, nbytes, _0, _0)
        return False
    return True


@device
def lkey_of(op, raddr, laddr, nbytes):
    """Return the big-endian lkey of a local operand. If the NIC cannot access it, return NOWHERE and poison the state. raddr has the PE."""
    where = local_operand(op, (raddr - _BASE) >> window.SHIFT, laddr, nbytes)
    if where == _0:
        return fixed(layout.LKEY)
    if where == _NOWHERE:
        return _NOWHERE
    return ptx.ld_relaxed_gpu_u64(_REGISTERED_LKEYS + (where - _1) * layout.PIECE_SIZE)


@device
def lost(op, record, wanted, found, deadline):
    """Whether a wait on a queue must end without its condition (state.given_up)."""
    return state.given_up(_TIMED_OUT, op, record, _GE, wanted, found, deadline)
