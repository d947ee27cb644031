"""The IBRC transport on the device: kernels write requests into a ring, a thread of the host posts them to the NIC.

The ring lies in host memory that kernels and the proxy thread (transports/ibrc.py) share; a request is 64 bytes, its last word says that
it is there. Requests have numbers, *tickets*, that only grow; ticket t is at slot t modulo the ring's size::

    completed <= tail (the proxy's) <= head (what kernels reserved);    tail <= completed + size

Everything that waits waits for the one word ``completed``: that every request before a ticket is done. It also says which slots are free,
so a slot is held until its request is done. NVSHMEM frees it when the proxy has taken it; but then kernels poll a second word of host
memory, and so many requests are not under way before the send queues are full.

Order is that of ibgda.py: fence is quiet, a signal is an atomic behind its data on the same queue pair. Requests know no NIC: byte order,
opcodes and keys are the proxy's, except that 4-byte atomics leave what they fetch big-endian (facts/mlx5.md 1.7).
"""

import functools
from types import SimpleNamespace
from typing import Any

from pgas.kernels import layout, operation, state, window
from pgas.kernels.codes import Comparison, Request, Update
from pgas.kernels.compiler import constant, device, element_size, element_words, ptx, u32, u64
from pgas.kernels.paths.nic import nic_amo, queue
from pgas.kernels.paths.nic.lanes import group, of_first, place
from pgas.kernels.paths.nic.queue import release_cell, try_cell
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote

_CONTROL, _HEAD, _SEEN, _LOOKING = (constant(word) for word in (layout.CONTROL, layout.RING_HEAD, layout.RING_SEEN, layout.RING_LOOKING))
_COMPLETED, _FAILED_QUEUE, _RING = constant(layout.COMPLETED), constant(layout.FAILED_QUEUE), constant(layout.RING)
_WHAT, _LOCAL, _VALUE, _SEQUENCE = constant(layout.WHAT), constant(layout.LOCAL), constant(layout.VALUE), constant(layout.SEQUENCE)
_SHIFT, _LANDING, _SYSTEM = constant(layout.REQUEST_SHIFT), constant(layout.LANDING), constant(layout.SYSTEM)
_NUMBER_SHIFT, _LOCAL_SHIFT = constant(layout.NUMBER_SHIFT), constant(layout.LOCAL_SHIFT)
_WRITE, _READ, _STORE, _, _, _SIGNAL_SET, _SIGNAL_ADD, *_ = (constant(r) for r in Request)
_REQUESTS = {update: Request.ADD if update is Update.KEEP else Request[update.name] for update in Update}  # KEEP adds 0
_0, _1, _4, _8 = (constant(c) for c in (0, 1, 4, 8))
_NOWHERE, _BUSY, _CELLS, _GE = constant(queue.NOWHERE), constant(queue.BUSY), constant(layout.CELLS), constant(Comparison.GE)
_COMPLETION, _NIC_TIMEOUT = constant(state.COMPLETION), constant(state.NIC_TIMED_OUT)
_QUIET, _BARRIER = constant(operation.number("quiet")), constant(operation.number("barrier_all"))
_FLUSH, _QUIET_PE = constant(operation.number("flush")), constant(operation.number("quiet_pe"))
_POLLS_MASK = 63
_WAITING, _DONE, _LOST = _0, _1, constant(2)
_BASE = constant(window.BASE)

#: Nanoseconds that a wait sleeps for each request that is to be done before: log2, and at most.
_SLEEP_SHIFT, _SLEEP_MAX = constant(4), constant(20_000)


@device
def look(op, target, polls, deadline):
    """A turn of wait: DONE, LOST, or WAITING for the next one."""
    control = queue.fixed(_CONTROL)
    seen = ptx.ld_relaxed_gpu_u64(_SEEN)
    if seen >= target:
        ptx.ld_acquire_gpu_u64(_SEEN)
        return _DONE
    if ptx.ld_relaxed_gpu_u64(_LOOKING) == _0 and ptx.atom_cas_gpu_u64(_LOOKING, _0, _1) == _0:
        ptx.st_release_gpu_u64(_SEEN, ptx.ld_acquire_sys_u64(control + _COMPLETED))
        ptx.st_release_gpu_u64(_LOOKING, _0)
    else:
        ptx.nanosleep(u32(min((target - seen) << _SLEEP_SHIFT, _SLEEP_MAX)))
    if polls & _POLLS_MASK == 0:
        done, record = ptx.ld_relaxed_gpu_u64(_SEEN), ptx.ld_relaxed_sys_u64(control + _FAILED_QUEUE)
        if record != _0:
            state.fail(_COMPLETION, op, _0, record, target, done, _0)
            return _LOST
        if queue.lost(op, _HEAD, _NIC_TIMEOUT, target, done, deadline):
            return _LOST
    state.relax(op, control, _GE, target)
    return _WAITING


@device
def wait(op, target):
    """Wait until every request before target is done. False if the job is poisoned, as by an error CQE.

    One thread at a time reads the host's memory, a microsecond away, and tells the others: thousands would keep the link busy. The others
    sleep the longer the more requests are before theirs.
    """
    deadline = ptx.globaltimer() + state.timeout_ns()
    polls = u32(0)
    found = _WAITING
    while found == _WAITING:
        polls = u32(polls + u32(1))
        found = look(op, target, polls, deadline)
    return found == _DONE


@device
def write(at, ticket, what, nbytes, local, to, value, second):
    """Write a request into its slot."""
    ptx.st_octoword(at + _WHAT, what, nbytes)
    ptx.st_octoword(at + _LOCAL, local, to)
    ptx.st_octoword(at + _VALUE, value, second)
    ptx.st_release_sys_u64(at + _SEQUENCE, ticket + _1)


@functools.cache
def make(constants: window.Constants) -> SimpleNamespace:
    """Make the transport for a job's constants."""
    number_of = queue.make(constants).number
    size, slot_mask = constant(constants.ring), constant(constants.ring - 1)

    @device
    def reserve(op, here, number, n):
        """Return the first of n tickets that are now those of the lanes that are here; NOWHERE if the job is poisoned.

        One of them looks for room, turn by turn with the others, which so stay together.
        """
        base, found = _0, _DONE
        if number == 0:
            base = ptx.atom_add_gpu_u64(_HEAD, n)
            if ptx.ld_relaxed_gpu_u64(_SEEN) + size < base + n:
                found = _WAITING
        base = of_first(here, here, base)
        deadline = ptx.globaltimer() + state.timeout_ns()
        polls = u32(0)
        while ptx.vote_any(here, u32(found == _WAITING)) != 0:
            polls = u32(polls + u32(1))
            if found == _WAITING:
                found = look(op, base + n - size, polls, deadline)
        if ptx.vote_any(here, u32(found == _LOST)) != 0:
            return _NOWHERE
        ptx.syncwarp_mask(here)
        return base

    @device
    def write_at(ticket, what, nbytes, local, to, value, second):
        """Write the request of a ticket; return the next one."""
        at = queue.fixed(_CONTROL) + _RING + ((ticket & slot_mask) << _SHIFT)
        write(at, ticket, what, nbytes, local, to, value, second)
        return ticket + _1

    @device
    def post(op, what, nbytes, local, to, value, second):
        """Hand a request to the proxy; lanes that are here together reserve at once. Return its ticket + 1; NOWHERE if poisoned."""
        here = ptx.here()
        base = reserve(op, here, place(here), u64(ptx.popc(here)))
        if base == _NOWHERE:
            return _NOWHERE
        return write_at(base + place(here), what, nbytes, local, to, value, second)

    @device
    def on(what, pe, qp):
        """The first word of a request that goes to a queue pair."""
        return what | number_of(pe, qp) << _NUMBER_SHIFT

    @device
    def post_copy(op, what, nbytes, local, to, value, second):
        """post() of what moves nbytes from or to local memory; value and second are of the signal behind it, if there is one."""
        where = _0
        if nbytes != _0:
            where = state.local(op, (to - _BASE) >> window.SHIFT, local, nbytes)
            if where == _NOWHERE:
                return _NOWHERE
        return post(op, what | where << _LOCAL_SHIFT, nbytes, local, to, value, second)

    @device
    def fetch_atomic(op, what, nbytes, to, value, second):
        """Perform an atomic and return the old value: 4 bytes come big-endian, 8 in the order of the host (facts/mlx5.md 1.7)."""
        here = ptx.here()
        number, n = place(here), u64(ptx.popc(here))
        deadline = ptx.globaltimer() + state.timeout_ns()
        old = _0
        trying = True
        while trying:
            cell = try_cell(op, deadline, here)
            trying = cell == _BUSY
            if cell > _BUSY:
                mine = cell + number * _8
                base = reserve(op, here, number, n)
                if base != _NOWHERE:
                    wait(op, write_at(base + number, what | _LANDING, nbytes, mine, to, value, second))
                    old = u64(ptx.swap_u32(ptx.ld_relaxed_sys_u32(mine))) if nbytes == _4 else ptx.ld_relaxed_sys_u64(mine)
                release_cell(cell)
        return old

    def put(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def put(to, source, nbytes, pe, qp):
            if rank() == 0:
                if nbytes != _0:
                    end = post_copy(op, on(_WRITE, pe, qp), nbytes, source, remote(to, pe), _0, _0)
                    if not nbi:
                        wait(op, end)
            sync()

        return put

    def get(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def get(dest, origin, nbytes, pe, qp):
            if rank() == 0:
                if nbytes != _0:
                    end = post_copy(op, on(_READ, pe, qp), nbytes, dest, remote(origin, pe), _0, _0)
                    if not nbi:
                        wait(op, end)
            sync()

        return get

    def strided(name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
        request = _READ if get else _WRITE
        op, nbytes, rank, size, sync = constant(operation.number(name)), constant(itemsize), scope.rank, scope.size, scope.sync

        @device
        def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
            what, end = on(request, pe, 0), _0
            i, step, total = u64(rank()), u64(size()), nbytes
            if raddr_step == nbytes and laddr_step == nbytes and nelems != _0:
                nelems, total = _1, nelems * nbytes
            while i < nelems:
                end = post_copy(op, what, total, laddr + i * laddr_step, raddr + i * raddr_step, _0, _0)
                if end == _NOWHERE:
                    break
                i += step
            if end != _0:
                wait(op, end)
            sync()

        return strided

    def put_signal(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def put_signal(to, source, nbytes, word, value, add, pe):
            if rank() == 0:
                what = _SIGNAL_ADD if add else _SIGNAL_SET
                end = post_copy(op, on(what, pe, 0), nbytes, source, remote(to, pe), value, remote(word, pe))
                if not nbi:
                    wait(op, end)
            sync()

        return put_signal

    signal_op = constant(operation.number("signal_op"))

    @device
    def signal(word, value, add, pe):
        post(signal_op, on(_SIGNAL_ADD if add else _SIGNAL_SET, pe, 0), _0, _0, _0, value, remote(word, pe))

    @device
    def flag(addr, value, pe):
        """Store a flag of the barrier, in PE pe's system area."""
        post(_BARRIER, on(_STORE | _SYSTEM, pe, 1), _8, _0, remote(addr, pe), value, _0)

    def p(dtype: Any) -> Any:
        return _p(element_size(dtype))

    @functools.cache
    def _p(size: int) -> Any:
        op, nbytes = constant(operation.number("p")), constant(size)

        @device
        def p(addr, array, value, pe, qp):
            low, high = element_words(array, value)
            post(op, on(_STORE, pe, qp), nbytes, _0, remote(addr, pe), low, high)

        return p

    def g(dtype: Any) -> Any:
        return _g(element_size(dtype))

    @functools.cache
    def _g(size: int) -> Any:
        op, nbytes = constant(operation.number("g")), constant(size)

        @device
        def g(addr, array, pe, qp):
            """Neighbouring elements of lanes that are here together are read at once, others one by one, into one landing cell."""
            what = on(_READ | _LANDING, pe, qp)
            here, mask, rank, count = group(what)
            first = of_first(here, mask, addr)
            together = ptx.vote_all(here, u32(mask == here and addr == first + u64(rank) * nbytes)) != 0
            n, number = _1 if together else u64(ptx.popc(here)), place(here)
            deadline = ptx.globaltimer() + state.timeout_ns()
            value = ptx.ld_element(queue.fixed(_CELLS), array)  # of the right type, if the job is poisoned
            trying = True
            while trying:
                cell = try_cell(op, deadline, here)
                trying = cell == _BUSY
                if cell > _BUSY:
                    mine = cell + number * nbytes
                    base = reserve(op, here, number, n)
                    if base != _NOWHERE:
                        ticket = base if together else base + number
                        if ticket == base + number:
                            size_read = u64(count) * nbytes if together else nbytes
                            write_at(ticket, what, size_read, mine, remote(addr, pe), _0, _0)
                        wait(op, ticket + _1)
                        value = ptx.ld_element(mine, array)
                    release_cell(cell)
            return value

        return g

    @functools.cache
    def change(name: str, update: Update, size: int, *, fetch: bool) -> Any:
        """Make ``change(addr, word, compare, pe)`` of words; see nic_amo."""
        op, nbytes, what = constant(operation.number(name)), constant(size), constant(_REQUESTS[update])
        compares = update is Update.COMPARE_SWAP
        if fetch:

            @device
            def change(addr, word, compare, pe):
                return fetch_atomic(op, on(what, pe, 0), nbytes, remote(addr, pe), word, compare if compares else _0)

        else:

            @device
            def change(addr, word, compare, pe):
                post(op, on(what, pe, 0), nbytes, _0, remote(addr, pe), word, _0)

        return change

    @functools.cache
    def atomic(name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
        return nic_amo.atomic(name, update, dtype, g, change, fetch=fetch)

    @device
    def quiet():
        """Complete: every request that was reserved is done, what it wrote is in the target's memory and what it read is here."""
        wait(_QUIET, ptx.ld_relaxed_gpu_u64(_HEAD))

    @device
    def quiet_pe(pe):
        """Complete what goes to and comes from one PE: requests to all PEs complete in one order, so everything."""
        wait(_QUIET_PE, ptx.ld_relaxed_gpu_u64(_HEAD))

    @device
    def flush():
        """Sources are reusable: of a request nothing is known before it is done."""
        wait(_FLUSH, ptx.ld_relaxed_gpu_u64(_HEAD))

    return SimpleNamespace(
        put=put, get=get, put_signal=put_signal, p=p, g=g, signal=signal, flag=flag, atomic=atomic, quiet=quiet, fence=quiet,
        strided=strided, quiet_pe=quiet_pe, flush=flush,
    )  # fmt: skip
