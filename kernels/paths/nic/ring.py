"""The ring of ibrc: kernels write requests, and a host thread (transports/ibrc) posts them to the NIC.

The ring is in host memory that kernels and the proxy thread share. A request is 64 bytes; its last word marks it as written (layout.py).
Requests have numbers, *tickets*, that only grow; ticket t is at slot t modulo the ring's size::

    completed <= tail (the proxy's) <= head (what kernels reserved);    tail <= completed + size

Every wait is for the single word ``completed``: all requests before this ticket are complete. The word also tells which slots are free, so
that a request holds its slot until it is complete. NVSHMEM frees the slot when the proxy has taken the request; but then kernels poll a
second word of host memory, and the send queues fill before that many requests are outstanding.
"""

from pgas.kernels import state, trace, traffic, window
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths.nic.lanes import of_first, place
from pgas.kernels.paths.nic.queue_pair import NOWHERE, local_operand, lost, number_of
from pgas.kernels.state import fixed
from pgas.kernels.typed import layout

_NOWHERE, _COMPLETION, _GE, _BASE = constant(NOWHERE), constant(state.COMPLETION), constant(Comparison.GE), constant(window.BASE)
_POLLS_MASK = 63
_0, _1, _2 = constant(0), constant(1), constant(2)
_WAITING, _DONE, _LOST = _0, _1, _2

#: Back-off: ns per outstanding request (log2), and its maximum.
_SLEEP_SHIFT, _SLEEP_MAX = constant(4), constant(20_000)


# Waiting ------------------------------------------------------------------------------------------------------------------------


@device
def look(op, target, polls, deadline):
    """Make one iteration of wait. Return DONE, LOST, or WAITING for another iteration."""
    control = fixed(layout.CONTROL)
    seen = ptx.ld_relaxed_gpu_u64(layout.RING_SEEN)
    if seen >= target:
        ptx.ld_acquire_gpu_u64(layout.RING_SEEN)
        return _DONE
    if ptx.ld_relaxed_gpu_u64(layout.RING_LOOKING) == _0 and ptx.atom_cas_gpu_u64(layout.RING_LOOKING, _0, _1) == _0:
        ptx.st_release_gpu_u64(layout.RING_SEEN, ptx.ld_acquire_sys_u64(control + layout.COMPLETED))
        ptx.st_release_gpu_u64(layout.RING_LOOKING, _0)
    else:
        ptx.nanosleep(u32(min((target - seen) << _SLEEP_SHIFT, _SLEEP_MAX)))
    if polls & _POLLS_MASK == 0:
        done, record = ptx.ld_relaxed_gpu_u64(layout.RING_SEEN), ptx.ld_relaxed_sys_u64(control + layout.FAILED_QUEUE)
        if record != _0:
            state.fail(_COMPLETION, op, _0, record, target, done, _0)
            return _LOST
        if lost(op, layout.RING_HEAD, target, done, deadline):
            return _LOST
    state.relax(op, control, _GE, target)
    return _WAITING


@device
def wait(op, target):
    """Wait until every request before target is complete. Return False if the job is poisoned, for example by an error CQE.

    One thread at a time reads host memory, which takes a microsecond, and publishes the value, because thousands of readers would saturate
    the link. The others sleep; the more requests are outstanding before theirs, the longer they sleep.
    """
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    found = _WAITING
    while found == _WAITING:
        polls = u32(polls + u32(1))
        found = look(op, target, polls, deadline)
    return found == _DONE


@device
def reserved():
    """Return the ticket just past the last reserved request."""
    return ptx.ld_relaxed_gpu_u64(layout.RING_HEAD)


# Requests -----------------------------------------------------------------------------------------------------------------------


@device
def reserve(op, here, number, n):
    """Reserve n tickets for the active lanes and return the first; NOWHERE if the job is poisoned. number: the lane's rank among them.

    One lane looks for room, one iteration at a time with the others, so that they stay together.
    """
    base, found = _0, _DONE
    if number == 0:
        base = ptx.atom_add_gpu_u64(layout.RING_HEAD, n)
        if ptx.ld_relaxed_gpu_u64(layout.RING_SEEN) + window.RING_SIZE < base + n:
            found = _WAITING
    base = of_first(here, here, base)
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    while ptx.vote_any(here, u32(found == _WAITING)) != 0:
        polls = u32(polls + u32(1))
        if found == _WAITING:
            found = look(op, base + n - window.RING_SIZE, polls, deadline)
    if ptx.vote_any(here, u32(found == _LOST)) != 0:
        return _NOWHERE
    ptx.syncwarp_mask(here)
    return base


@device
def write_at(ticket, what, nbytes, local, to, value, second):
    """Write the request of a ticket; return the next ticket."""
    at = fixed(layout.CONTROL) + layout.RING + ((ticket & (window.RING_SIZE - _1)) << layout.REQUEST_SHIFT)
    ptx.st_octoword(at + layout.WHAT, what, nbytes)
    ptx.st_octoword(at + layout.LOCAL, local, to)
    ptx.st_octoword(at + layout.VALUE, value, second)
    if window.COUNTS:
        traffic.count_post((what >> layout.NUMBER_SHIFT) & layout.NUMBER_MASK, _1)
    if window.TRACES:
        began = trace.begin()
    ptx.st_release_sys_u64(at + layout.SEQUENCE, ticket + _1)
    if window.TRACES:
        trace.mark(began, trace.REQUESTED, (what >> layout.NUMBER_SHIFT) & layout.NUMBER_MASK, ticket, nbytes)
    return ticket + _1


@device
def post(op, what, nbytes, local, to, value, second):
    """Submit a request to the proxy; the active lanes reserve together. Return its ticket + 1, or NOWHERE if the job is poisoned."""
    here = ptx.here()
    base = reserve(op, here, place(here), u64(ptx.popc(here)))
    if base == _NOWHERE:
        return _NOWHERE
    return write_at(base + place(here), what, nbytes, local, to, value, second)


@device
def of_pair(what, pe, qp):
    """Return the first word of a request for queue pair qp to PE pe."""
    return what | number_of(pe, qp) << layout.NUMBER_SHIFT


@device
def post_copy(op, what, nbytes, local, to, value, second):
    """Post a request that moves nbytes from or to local memory; value and second: those of the signal that follows it, if there is one."""
    where = _0
    if nbytes != _0:
        where = local_operand(op, (to - _BASE) >> window.SHIFT, local, nbytes)
        if where == _NOWHERE:
            return _NOWHERE
    return post(op, what | where << layout.LOCAL_SHIFT, nbytes, local, to, value, second)
