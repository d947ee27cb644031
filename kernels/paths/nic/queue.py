"""Send queues in the hands of kernels: reserve WQEBBs, hand them over in order, ring the doorbell, poll the completion queue.

Every queue pair has a record in the private state pages. The cursors count WQEBBs and only grow (names: NVSHMEM's; facts/mlx5.md 6.1)::

    cons_idx <= ready_head <= resv_head;    ready_head <= cons_idx + depth

* ``reserve`` moves resv_head, and waits until the WQEBBs up to there are free: what is written fits, what is reserved may not yet.
* ``submit`` waits for its turn (ready_head == base) and moves ready_head on. Then it rings: doorbell record and UAR register, for all that
  is ready. One thread at a time, so that doorbells never go backwards: whoever finds the mark RINGING in ready_head leaves its WQEBBs to
  the one who set it, which does not go before it has rung for them. The turn is thus passed on without the fences of a doorbell.
  A thread that rings may so ring for others as long as they post; it waits for nobody. Lanes that are here together go through both in one
  loop (lanes.py), so that none of them waits for a turn while another's doorbell waits for it.
  The ring is left to a later thread if one has reserved already, unless WQEs of a full batch would wait; as depth is at least twice the
  batch, a thread that waits for room never waits for a doorbell that nobody rings.
* ``poll`` waits until cons_idx reaches an index. The last WQE of each reservation asks for a CQE and has one WQEBB (mlx5.cqe.extend).

Order (DESIGN section 2): lanes store WQEs; a barrier of the lanes; fence.acq_rel.sys before the turn comes, for ready_head is moved by
atomics alone, so that all who moved it release to whoever reads it; of the one who rings for WQEs of others, another such fence, which
covers them; the doorbell record; the register by st.release.sys; the mark is taken away by a release, and set by an acquire. Whoever saw
a completion ends with ld.acquire.sys on the CQE.
"""

import functools
from types import SimpleNamespace
from typing import Any

from pgas.base.backend import SIMULATOR
from pgas.kernels import layout, state, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, primitive, ptx, u32, u64
from pgas.kernels.paths.nic.lanes import of_first, place
from pgas.transports.mlx5 import cqe, wqe

if SIMULATOR:
    from pgas.kernels.compiler import cpu

#: What try_cell returns if it found none.
BUSY = 1

#: What reserve returns if the job is poisoned: nothing may be written or submitted.
NOWHERE = (1 << 64) - 1

_RECORDS, _RECORD_SIZE = constant(layout.RECORDS), constant(layout.RECORD_SIZE)
_WQ, _DBR, _UAR, _CQE, _QPN = (constant(word) for word in (layout.WQ, layout.DBR, layout.UAR, layout.CQE, layout.QPN))
_FIRST, _RESV, _READY = constant(layout.FIRST_IDX), constant(layout.RESV_HEAD), constant(layout.READY_HEAD)
_RUNG, _CONS = constant(layout.RUNG_IDX), constant(layout.CONS_IDX)
_RINGING, _INDEX = constant(layout.RINGING), constant(layout.RINGING - 1)
_USED, _USED_END, _WORD = constant(layout.USED), constant(layout.USED_END), constant(layout.WORD)
_CELLS, _CELL_TICKET, _CELL_TAKEN = constant(layout.CELLS), constant(layout.CELL_TICKET), constant(layout.CELL_TAKEN)
_CELL_MASK, _CELL_SIZE = constant(layout.N_CELLS - 1), constant(layout.CELL_SIZE)
_HEAP_KEYS, _SYSTEM_KEYS = constant(layout.KEYS + layout.HEAP_KEY), constant(layout.KEYS + layout.SYSTEM_KEY)
_KEYS_SIZE, _LKEY = constant(layout.KEYS_SIZE), constant(layout.LKEY)
_REGISTERED_LKEYS, _PIECE_SIZE = constant(layout.REGISTERED + layout.PIECE_LKEY), constant(layout.PIECE_SIZE)
_BASE, _BUSY, _NOWHERE = constant(window.BASE), constant(BUSY), constant(NOWHERE)
_NIC_TIMEOUT, _COMPLETION, _GE = constant(state.NIC_TIMED_OUT), constant(state.COMPLETION), constant(Comparison.GE)
_0, _1, _3, _6, _8, _32, _63 = (constant(c) for c in (0, 1, 3, 6, 8, 32, 63))
_IDX_MASK, _IDX_SHIFT = constant(wqe.WQE_IDX_MASK), constant(wqe.WQE_IDX_SHIFT)
_COUNTER_SHIFT, _OP_OWN_SHIFT = constant(8 * (cqe.CQE_WQE_COUNTER - cqe.CQE_TAIL)), constant(8 * (cqe.CQE_OP_OWN - cqe.CQE_TAIL))
_BYTE, _BYTE_SHIFT = constant(0xFF), constant(8)
_INVALID, _REQ = constant(cqe.CqeOpcode.INVALID), constant(cqe.CqeOpcode.REQ)
_OPCODE_SHIFT = constant(cqe.OP_OWN_OPCODE_SHIFT)
_POLLS_MASK = 63


def _read_only(name: str, nbytes: int) -> Any:
    """A load of what the host wrote at init, at an address that is not constant."""
    text = f"ld.global.nc.u{8 * nbytes} $0, [$1];"
    return primitive(name, f"u{8 * nbytes}(u64)", text, lambda addr: cpu.read_only(addr, nbytes), pure=True)


fixed = _read_only("fixed", 8)
fixed_u32 = _read_only("fixed_u32", 4)


@device
def lost(op, record, kind, wanted, found, deadline):
    """Whether a wait on a queue must end without what it waits for (state.given_up)."""
    return state.given_up(kind, op, record, _GE, wanted, found, deadline)


@functools.cache
def make(constants: window.Constants) -> SimpleNamespace:
    """Make the functions that depend on the job's constants: number, record, slot, reserve, submit, poll, quiet, quiet_pe."""
    depth, batch_mask = constant(constants.depth), constant(NOWHERE ^ (constants.batch - 1))
    num, slot_mask = constant(constants.num_qps), constant(constants.depth - 1)

    if constants.map_by == "sm":
        shared_by = ptx.smid
    elif constants.map_by == "warp":

        @device
        def shared_by():
            return u32(ptx.block_rank() * ((ptx.block_size() + u32(31)) // u32(32)) + ptx.thread_rank() // u32(32))

    else:
        shared_by = ptx.block_rank

    @device
    def number(pe, qp):
        """Number of queue pair qp to PE pe: 1 to num_qps, or 0 for the one of this cta, sm or warp."""
        return u64(pe) * num + (u64(shared_by()) if qp == 0 else u64(qp) - _1) % num

    @device
    def record(pe, qp):
        """Address of the record of queue pair qp to PE pe."""
        return _RECORDS + number(pe, qp) * _RECORD_SIZE

    @device
    def slot(queue, index):
        """Address of a WQEBB."""
        return fixed(queue + _WQ) + ((index & slot_mask) << _6)

    @device
    def advance(queue):
        """Look at the CQE once; return (cons_idx, tail of the CQE). cons_idx only grows, so an older CQE does no harm."""
        cons = ptx.ld_acquire_gpu_u64(queue + _CONS)
        tail = ptx.ld_relaxed_sys_u64(fixed(queue + _CQE))
        if tail >> (_OP_OWN_SHIFT + _OPCODE_SHIFT) == _REQ:
            counter = ((tail >> _COUNTER_SHIFT) & _BYTE) << _BYTE_SHIFT | (tail >> (_COUNTER_SHIFT + _BYTE_SHIFT)) & _BYTE
            distance = (counter + _1 - cons) & _IDX_MASK
            if distance <= depth and distance != _0:
                ptx.red_max_gpu_u64(queue + _CONS, cons + distance)
                cons = cons + distance
        return cons, tail

    @device
    def poll(op, queue, target):
        """Wait until every WQEBB before target has completed. False if the job is poisoned, as by an error CQE."""
        deadline = ptx.globaltimer() + state.timeout_ns()
        polls = u32(0)
        while True:
            cons, tail = advance(queue)
            if cons >= target:
                break
            opcode = tail >> (_OP_OWN_SHIFT + _OPCODE_SHIFT)
            if opcode != _REQ and opcode != _INVALID:
                state.fail(_COMPLETION, op, _0, queue, tail, ptx.ld_relaxed_sys_u64(fixed(queue + _CQE) - _WORD), _0)
                return False
            polls = u32(polls + u32(1))
            if polls & _POLLS_MASK == 0:
                if lost(op, queue, _NIC_TIMEOUT, target, cons, deadline):
                    return False
            state.relax(op, queue, _GE, target)
        ptx.ld_acquire_sys_u64(fixed(queue + _CQE))
        return True

    @device
    def reserve(op, queue, here, mask, rank, n):
        """Reserve n WQEBBs for each group that is here (lanes.group), and wait until they are free.

        Return the lanes with which the caller goes on, and the index of its group's first WQEBB; NOWHERE, in some lanes, if poisoned.
        Those are all that were here if there is room at once; else each group goes alone, as one may have to hand over before another
        has room.
        """
        cons = ptx.ld_relaxed_gpu_u64(queue + _CONS)  # both on their way at once; an older one does no harm
        base = _0
        if rank == 0:
            base = ptx.atom_add_gpu_u64(queue + _RESV, n)
            if base == fixed(queue + _FIRST):  # the first one: all others are handed over behind it, so that no quiet misses them
                number = (queue - _RECORDS) // _RECORD_SIZE
                ptx.red_or_gpu_u64(_USED + (number >> _6) * _WORD, _1 << (number & _63))
        base = of_first(here, mask, base)
        full = cons + depth < base + n
        if ptx.vote_any(here, u32(full)) == 0:
            return here, base
        if full and not poll(op, queue, base + n - depth):
            return mask, _NOWHERE
        return mask, base

    @device
    def submit(op, queue, here, rank, base, n):
        """Hand over WQEBBs [base, base + n) of each group that is here, when all its lanes have written theirs, which all call this.

        Returns when they are rung for, or will be. base is what reserve returned; nothing is handed over if that was NOWHERE for anyone.
        """
        if ptx.vote_all(here, u32(base != _NOWHERE)) == 0:
            return
        ptx.syncwarp_mask(here)
        deadline = ptx.globaltimer() + state.timeout_ns()
        polls = u32(0)
        ptx.fence_sys()
        # All on their way at once. Older values do no harm: indices only grow, and nothing was reserved behind these WQEBBs before them.
        ready, rung = ptx.ld_relaxed_gpu_u64(queue + _READY), ptx.ld_relaxed_gpu_u64(queue + _RUNG)
        reserved = ptx.ld_relaxed_gpu_u64(queue + _RESV)
        end = base + n
        due = reserved == end or (base ^ end) & batch_mask != _0
        waits, rings, own = rank == 0, False, False
        while ptx.vote_any(here, u32(waits or rings)) != 0:
            if waits and ready & _INDEX == base:
                moved = end | (_RINGING if due else ready & _RINGING)
                found = ptx.atom_cas_gpu_u64(queue + _READY, ready, moved)  # acquires: doorbells come after those of who rang before
                if found == ready:
                    waits, rings = False, due and ready & _RINGING == _0
                    own = rung == base  # an index that only grows: an older one is not base
                    ready = moved
                else:  # once at most: nobody but the one who rings changes it now, and then takes its mark away
                    ready = found
            elif waits:
                polls = u32(polls + u32(1))
                if polls & _POLLS_MASK == 0:
                    waits = not lost(op, queue, _NIC_TIMEOUT, base, ready & _INDEX, deadline)
                state.relax(op, queue, _0, base)
                ready = ptx.ld_relaxed_gpu_u64(queue + _READY)
            if rings:
                found = ring(queue, ready, own)
                rings, own = found != ready, False
                ready = found

    @device
    def ring(queue, ready, own):
        """Ring for all that is ready, by the one who has set RINGING. Return READY_HEAD: with the mark, if more got ready meanwhile.

        own: what is ready is the caller's alone.
        """
        index = ready & _IDX_MASK
        if not own:
            ptx.fence_sys()
        ptx.st_relaxed_sys_u32(fixed(queue + _DBR), ptx.swap_u32(u32(index)))
        ptx.st_release_sys_u64(fixed(queue + _UAR), u64(ptx.swap_u32(u32(index << _IDX_SHIFT))) | fixed(queue + _QPN) << _32)
        ptx.st_relaxed_gpu_u64(queue + _RUNG, ready & _INDEX)
        return ptx.atom_cas_release_gpu_u64(queue + _READY, ready, ready & _INDEX)

    @device
    def complete(op, word, bits):
        """Wait until everything has completed that was submitted to the queues of these bits of a word of USED. False if poisoned."""
        while bits != _0:
            number = ((word - _USED) << _3) + u64(ptx.lowest_u64(bits))
            bits &= bits - _1
            queue = _RECORDS + number * _RECORD_SIZE
            if not poll(op, queue, ptx.ld_relaxed_gpu_u64(queue + _RESV)):
                return False
        return True

    @device
    def quiet(op):
        """Wait until everything that was submitted has completed, on the queues that were used."""
        word, end = _USED, fixed(_USED_END)
        while word < end:
            if not complete(op, word, ptx.ld_relaxed_gpu_u64(word)):
                return
            word += _WORD

    @device
    def quiet_pe(op, pe):
        """quiet() on the queues to one PE, whose bits follow each other and may begin and end within a word."""
        first = u64(pe) * num
        end = first + num
        while first < end:
            beyond = min((first | _63) + _1, end)
            word = _USED + (first >> _6) * _WORD
            bits = ptx.ld_relaxed_gpu_u64(word) >> (first & _63)
            if beyond - first <= _63:
                bits &= (_1 << (beyond - first)) - _1
            if not complete(op, word, bits << (first & _63)):
                return
            first = beyond

    return SimpleNamespace(
        number=number, record=record, slot=slot, reserve=reserve, submit=submit, poll=poll, quiet=quiet, quiet_pe=quiet_pe
    )


@device
def try_cell(op, deadline, here):
    """Return the address of a landing cell for the lanes that are here, until each has released it; BUSY if others have it, 0 if poisoned.

    Each has a part of it (lanes.place). What is done with a cell belongs into the loop that tries: lanes that have one may have to wait for
    lanes that loop, so that loops which only take cells could end with all of them in the hands of lanes that wait.
    """
    cell = _0
    if place(here) == 0:
        number = ptx.atom_add_gpu_u64(_CELL_TICKET, _1) & _CELL_MASK
        flag = _CELL_TAKEN + number * _WORD
        if ptx.atom_cas_gpu_u64(flag, _0, u64(ptx.popc(here))) == _0:
            cell = fixed(_CELLS) + number * _CELL_SIZE
        elif not lost(op, flag, _NIC_TIMEOUT, _0, _1, deadline):
            state.relax(op, flag, _0, _0)
            cell = _BUSY
    return of_first(here, here, cell)


@device
def release_cell(cell):
    """Leave a landing cell, of which the caller has read its part."""
    ptx.red_add_release_gpu_u64(_CELL_TAKEN + (cell - fixed(_CELLS)) // _CELL_SIZE * _WORD, _NOWHERE)  # -1


@device
def rkey_of_heap(pe):
    """The rkey of PE pe's heap, big-endian."""
    return fixed_u32(_HEAP_KEYS + u64(pe) * _KEYS_SIZE)


@device
def rkey_of_system_area(pe):
    """The rkey of PE pe's system area, big-endian."""
    return fixed_u32(_SYSTEM_KEYS + u64(pe) * _KEYS_SIZE)


@device
def lkey_of(op, raddr, laddr, nbytes):
    """The lkey of a local operand, big-endian; NOWHERE, and the job poisoned, if the NIC does not reach it. raddr names the PE."""
    where = state.local(op, (raddr - _BASE) >> window.SHIFT, laddr, nbytes)
    if where == _0:
        return fixed(_LKEY)
    if where == _NOWHERE:
        return _NOWHERE
    return ptx.ld_relaxed_gpu_u64(_REGISTERED_LKEYS + (where - _1) * _PIECE_SIZE)
