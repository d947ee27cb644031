"""Queue pairs as kernels name them: their number, their record in the state page, and the keys of memory."""

from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import layout, state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, primitive, ptx, u64

if SIMULATOR:
    from pgas.kernels.compiler import cpu

#: Returned instead of an index, a ticket or a key when the job is poisoned.
NOWHERE = (1 << 64) - 1

_NOWHERE, _BASE = constant(NOWHERE), constant(window.BASE)
_RECORDS, _RECORD_SIZE = constant(layout.RECORDS), constant(layout.RECORD_SIZE)
_HEAP_KEYS, _SYSTEM_KEYS = constant(layout.KEYS + layout.HEAP_KEY), constant(layout.KEYS + layout.SYSTEM_KEY)
_KEYS_SIZE, _LKEY = constant(layout.KEYS_SIZE), constant(layout.LKEY)
_REGISTERED_LKEYS, _PIECE_SIZE = constant(layout.REGISTERED + layout.PIECE_LKEY), constant(layout.PIECE_SIZE)
_TIMED_OUT, _GE = constant(state.NIC_TIMED_OUT), constant(Comparison.GE)
_0, _1 = constant(0), constant(1)


def _read_only(name: str, nbytes: int) -> Any:
    """A load of what the host wrote at init, at an address that is not constant."""
    text = f"ld.global.nc.u{8 * nbytes} $0, [$1];"
    return primitive(name, f"u{8 * nbytes}(u64)", text, lambda addr: cpu.read_only(addr, nbytes), pure=True)


fixed = _read_only("fixed", 8)
fixed_u32 = _read_only("fixed_u32", 4)


@device
def number_of(pe, qp):
    """Return the number of queue pair qp to PE pe: qp is 1 to num_qps, or 0 for the one of this cta, SM or warp."""
    return u64(pe) * window.NUM_QPS + (u64(window.sharer()) if qp == 0 else u64(qp) - _1) % window.NUM_QPS


@device
def record_of(pe, qp):
    """Return the address of the record of queue pair qp to PE pe."""
    return _RECORDS + number_of(pe, qp) * _RECORD_SIZE


@device
def rkey_of_heap(pe):
    """Return the rkey of PE pe's heap, big-endian."""
    return fixed_u32(_HEAP_KEYS + u64(pe) * _KEYS_SIZE)


@device
def rkey_of_system_area(pe):
    """Return the rkey of PE pe's system area, big-endian."""
    return fixed_u32(_SYSTEM_KEYS + u64(pe) * _KEYS_SIZE)


@device
def lkey_of(op, raddr, laddr, nbytes):
    """Return the lkey of a local operand, big-endian. NOWHERE, and poisoned, if the NIC does not reach it. raddr names the PE."""
    where = state.local(op, (raddr - _BASE) >> window.SHIFT, laddr, nbytes)
    if where == _0:
        return fixed(_LKEY)
    if where == _NOWHERE:
        return _NOWHERE
    return ptx.ld_relaxed_gpu_u64(_REGISTERED_LKEYS + (where - _1) * _PIECE_SIZE)


@device
def lost(op, record, wanted, found, deadline):
    """Whether a wait on a queue must end without what it waits for (state.given_up)."""
    return state.given_up(_TIMED_OUT, op, record, _GE, wanted, found, deadline)
