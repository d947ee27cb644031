"""Send queues driven by kernels: reserve WQEBBs, submit them in order, ring the doorbell, and poll the completion queue.

Every queue pair has a record in the state page (layout.py). The cursors count WQEBBs and only grow (the names are NVSHMEM's)::

    cons_idx, ready_head, rung_idx <= resv_head;    ready_head <= cons_idx + depth

* ``reserve`` moves resv_head, then waits until these WQEBBs are free. Reservations may exceed the ring; written WQEBBs never do.
* ``submit`` waits for its turn (ready_head == base) and moves ready_head on. Then it rings the doorbell for everything that is ready:
  doorbell record, UAR register. One thread rings at a time, so that doorbells never go backwards. If RINGING is set in ready_head, the
  thread that set it also rings for ours: it clears the bit only after it has rung for everything that is ready. The next thread gets its
  turn without waiting for the fences of a doorbell. A thread may therefore keep ringing while others post, but it does not wait for any
  thread. Active lanes wait for their turns and ring in one loop (lanes.py), so that a lane that waits for its turn does not delay another
  lane's doorbell. If there is a later reservation, its thread rings instead, unless a batch is full. The depth is at least twice the
  batch, so that a thread that waits for room always waits for a doorbell that has been rung or will be.
* If the queue was idle when the WQEBBs were reserved, it is their turn, and no other thread rings. Only the thread whose turn it is sets
  RINGING or moves ready_head, so this one rings first and moves ready_head afterwards, by a store instead of two atomics. Until then,
  rung_idx and cons_idx may be ahead of ready_head.
* ``poll`` waits until cons_idx reaches an index. The last WQE of each reservation requests a CQE and has one WQEBB (mlx5.cqe.extend).

Order:

* Lanes store their WQEs, then execute syncwarp.
* A fence (``order``) before the wait for the turn, and after the load that finds the queue idle.
* A thread that rings for WQEs of other threads executes another fence, which covers them.
* Store of the doorbell record, fence, store to the register.
* RINGING is set by an acquiring CAS and cleared by a releasing CAS. The store that ends the turn of an idle queue releases its doorbell.
* A poll that finds a completion ends with ld.acquire.sys on the CQE.
"""

from pgas.kernels import state, trace, traffic, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic.lanes import of_first
from pgas.kernels.paths.nic.queue_pair import NOWHERE, lost
from pgas.kernels.state import fixed
from pgas.kernels.typed import cqe, layout, wqe

_INDEX, _NOWHERE, _COMPLETION, _GE = constant(layout.RINGING - 1), constant(NOWHERE), constant(state.COMPLETION), constant(Comparison.GE)
_0, _1, _3, _6, _16, _32, _63 = (constant(c) for c in (0, 1, 3, 6, 16, 32, 63))
_COUNTER_SHIFT = constant(8 * (cqe.CQE_WQE_COUNTER - cqe.CQE_TAIL))
_OPCODE_SHIFT = constant(8 * (cqe.CQE_OP_OWN - cqe.CQE_TAIL) + cqe.OP_OWN_OPCODE_SHIFT)
_INVALID, _REQ = constant(cqe.CqeOpcode.INVALID), constant(cqe.CqeOpcode.REQ)
_POLLS_MASK = 63


@device
def number_at(queue):
    """Return the number of the queue pair whose record is at an address."""
    return (queue - layout.RECORDS) // layout.RECORD_SIZE


@device
def slot(queue, index):
    """Return the address of a WQEBB."""
    return fixed(queue + layout.WQ) + ((index & window.SLOT_MASK) << wqe.WQEBB_SHIFT)


@device
def order():
    """Order earlier stores before later ones for the NIC, or for the CPU that reads doorbells in host memory."""
    if window.RUNG_BY_CPU:
        ptx.fence_sys()
    else:
        ptx.fence_nic()


@device
def advance(queue):
    """Read the CQE once; return cons_idx and the tail of the CQE. A stale CQE is safe, because cons_idx only grows."""
    cons = ptx.ld_acquire_gpu_u64(queue + layout.CONS_IDX)
    tail = ptx.ld_relaxed_sys_u64(fixed(queue + layout.CQE))
    if tail >> _OPCODE_SHIFT == _REQ:
        counter = u64(ptx.swap_u32(u32(tail >> _COUNTER_SHIFT))) >> _16
        distance = (counter + _1 - cons) & wqe.WQE_IDX_MASK
        if distance <= window.DEPTH and distance != _0:
            ptx.red_max_gpu_u64(queue + layout.CONS_IDX, cons + distance)
            cons = cons + distance
            if window.TRACES:
                trace.mark(trace.begin(), trace.COMPLETED, number_at(queue), cons, _0)
    return cons, tail


@device
def poll(op, queue, target):
    """Wait until every WQEBB before target has completed. Return False if the job is poisoned, for example by an error CQE."""
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    while True:
        cons, tail = advance(queue)
        if cons >= target:
            break
        opcode = tail >> _OPCODE_SHIFT
        if opcode != _REQ and opcode != _INVALID:
            state.fail(_COMPLETION, op, _0, queue, tail, ptx.ld_relaxed_sys_u64(fixed(queue + layout.CQE) - layout.WORD), _0)
            return False
        polls = u32(polls + u32(1))
        if polls & _POLLS_MASK == 0:
            if lost(op, queue, target, cons, deadline):
                return False
        state.relax(op, queue, _GE, target)
    ptx.ld_acquire_sys_u64(fixed(queue + layout.CQE))
    return True


@device
def reserve(op, queue, here, mask, rank, n):
    """Reserve n WQEBBs for each group of the active lanes (lanes.group), and wait until they are free.

    Return the mask of the lanes that continue together, the index of the group's first WQEBB (NOWHERE, in some lanes, if poisoned), and
    whether all earlier WQEBBs have been rung for, in the group's first lane. If there is room immediately, all active lanes continue
    together. Otherwise each group continues alone, because one may have to submit its WQEBBs before another has room.
    """
    # Issued together with the atomic to overlap their latencies. Stale values are safe.
    cons, rung = ptx.ld_relaxed_gpu_u64(queue + layout.CONS_IDX), ptx.ld_relaxed_gpu_u64(queue + layout.RUNG_IDX)
    ready = ptx.ld_relaxed_gpu_u64(queue + layout.READY_HEAD)
    base = _0
    if rank == 0:
        base = ptx.atom_add_gpu_u64(queue + layout.RESV_HEAD, n)
        # The first marks the queue as used. Later ones are submitted after it, so no quiet misses one.
        if base == fixed(queue + layout.FIRST_IDX):
            number = number_at(queue)
            ptx.red_or_gpu_u64(layout.USED + (number >> _6) * layout.WORD, _1 << (number & _63))
    idle = rank == 0 and ready == base and rung == base
    base = of_first(here, mask, base)
    full = cons + window.DEPTH < base + n
    if ptx.vote_any(here, u32(full)) == 0:
        return here, base, idle
    if full and not poll(op, queue, base + n - window.DEPTH):
        return mask, _NOWHERE, idle
    return mask, base, idle


@device
def submit(op, queue, here, rank, n, reserved):
    """Submit n WQEBBs of each group of the active lanes. All lanes must call this after writing their WQEs.

    Return when the doorbell has been rung for them, or another thread will ring it. reserved: the index of the first one and whether the
    queue was idle, from reserve; if the index is NOWHERE in any lane, nothing is submitted.
    """
    base, idle = reserved
    if ptx.vote_all(here, u32(base != _NOWHERE)) == 0:
        return
    if window.COUNTS:
        if rank == 0:
            traffic.count_post(number_at(queue), n)
    if window.TRACES:
        if rank == 0:
            trace.mark(trace.begin(), trace.WRITTEN, number_at(queue), base + n, n)
    ptx.syncwarp_mask(here)
    end = base + n
    if idle:
        order()
        ring(queue, end)
        ptx.st_release_gpu_u64(queue + layout.READY_HEAD, end)
    waits, rings, own, due = rank == 0 and not idle, False, False, False
    if ptx.vote_any(here, u32(waits)) == 0:
        return
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    ready = _0
    order()
    if waits:
        # Issue the loads together. Stale values are safe, because indices only grow and later WQEBBs are reserved after these.
        ready, rung = ptx.ld_relaxed_gpu_u64(queue + layout.READY_HEAD), ptx.ld_relaxed_gpu_u64(queue + layout.RUNG_IDX)
        # The low 32 bits of the indices suffice, because n is below 2^32.
        due = ptx.ld_relaxed_gpu_u64(queue + layout.RESV_HEAD) == end or (base ^ end) & window.BATCH_MASK != _0
        own = rung == base  # because rung_idx only grows, a stale value is not base
    while ptx.vote_any(here, u32(waits or rings)) != 0:
        if waits and ready & _INDEX == base:
            moved = end | (layout.RINGING if due else ready & layout.RINGING)
            # It acquires, so that later doorbells come after earlier ones.
            found = ptx.atom_cas_gpu_u64(queue + layout.READY_HEAD, ready, moved)
            if found == ready:
                waits, rings = False, due and ready & layout.RINGING == _0
                ready = moved
            else:  # at most once, because until this turn ends, only the ringing thread changes ready_head, by clearing RINGING
                ready = found
        elif waits:
            polls = u32(polls + u32(1))
            if polls & _POLLS_MASK == 0:
                waits = not lost(op, queue, base, ready & _INDEX, deadline)
            state.relax(op, queue, _0, base)
            ready = ptx.ld_relaxed_gpu_u64(queue + layout.READY_HEAD)
        if rings:
            if not own:
                order()
            ring(queue, ready & _INDEX)
            found = ptx.atom_cas_release_gpu_u64(queue + layout.READY_HEAD, ready, ready & _INDEX)
            rings, own = found != ready, False  # RINGING is still set if more became ready meanwhile
            ready = found


@device
def ring(queue, end):
    """Store the doorbell record, the register, and rung_idx for the WQEBBs before end, which come before them in the caller's order."""
    index = end & wqe.WQE_IDX_MASK
    if window.COUNTS:
        traffic.count_doorbell(number_at(queue))
    ptx.st_relaxed_sys_u32(fixed(queue + layout.DBR), ptx.swap_u32(u32(index)))
    if window.TRACES:
        began = trace.begin()
    order()
    ptx.st_relaxed_sys_u64(fixed(queue + layout.UAR), u64(ptx.swap_u32(u32(index << wqe.WQE_IDX_SHIFT))) | fixed(queue + layout.QPN) << _32)
    ptx.st_relaxed_gpu_u64(queue + layout.RUNG_IDX, end)
    if window.TRACES:
        trace.mark(began, trace.RUNG, number_at(queue), end, _0)


@device
def complete(op, word, bits):
    """Complete the queues of these bits of a word of USED. Return False if the job is poisoned."""
    while bits != _0:
        number = ((word - layout.USED) << _3) + u64(ptx.lowest_u64(bits))
        bits &= bits - _1
        queue = layout.RECORDS + number * layout.RECORD_SIZE
        # Most of many queues have nothing outstanding. The atomic that raised cons_idx is behind a fence, after the load of the CQE.
        head, cons = ptx.ld_relaxed_gpu_u64(queue + layout.RESV_HEAD), ptx.ld_acquire_gpu_u64(queue + layout.CONS_IDX)
        if cons < head and not poll(op, queue, head):
            return False
    return True


@device
def quiet(op):
    """Wait until every queue that was used has completed all that was submitted to it."""
    word, end = layout.USED, fixed(layout.USED_END)
    while word < end:
        if not complete(op, word, ptx.ld_relaxed_gpu_u64(word)):
            return
        word += layout.WORD


@device
def quiet_pe(op, pe):
    """quiet() on the queues to one PE. Their bits are consecutive and may begin and end within a word."""
    first = u64(pe) * window.NUM_QPS
    end = first + window.NUM_QPS
    while first < end:
        beyond = min((first | _63) + _1, end)
        word = layout.USED + (first >> _6) * layout.WORD
        bits = ptx.ld_relaxed_gpu_u64(word) >> (first & _63)
        if beyond - first <= _63:
            bits &= (_1 << (beyond - first)) - _1
        if not complete(op, word, bits << (first & _63)):
            return
        first = beyond
