"""The ibrc path: kernels write requests into a ring, and a host thread posts them to the NIC (nic/ring.py, transports/ibrc).

Ordering is the same as in ibgda.py: fence is the same as quiet, and a signal is an atomic posted after its data on the same queue pair.
Requests are the same for every NIC, because the proxy adds byte order, opcodes, and keys. Old values, however, come in the byte order in
which the NIC writes them (cells.py).

Data fetched by g and atomics is written to host memory, like the completion. On a GPU that may observe NIC writes out of order
(window.SETTLES), get() and quiet() settle the data written to GPU memory.
"""

import functools
from typing import Any

from pgas.kernels import operation, state, window
from pgas.kernels.codes import Request, Update
from pgas.kernels.compiler import constant, device, element_size, element_words, ptx, u32, u64
from pgas.kernels.paths.nic import amo, ring
from pgas.kernels.paths.nic.cells import fetching, first_cell, old_word, sink
from pgas.kernels.paths.nic.lanes import follows, group, place
from pgas.kernels.paths.nic.queue_pair import NOWHERE, landed, lands, own_number
from pgas.kernels.paths.nic.ring import of_pair, post, post_copy
from pgas.kernels.scope import Scope
from pgas.kernels.typed import layout
from pgas.kernels.window import remote

_WRITE, _READ, _STORE = constant(Request.WRITE), constant(Request.READ), constant(Request.STORE)
_SIGNAL_SET, _SIGNAL_ADD = constant(Request.SIGNAL_SET), constant(Request.SIGNAL_ADD)
_REQUESTS = {Update.KEEP: Request.ADD} | {u: Request[u.name] for u in Update if u.name in Request.__members__}  # KEEP adds 0
_NOWHERE = constant(NOWHERE)
_SIGNAL, _BARRIER = constant(operation.number("signal_op")), constant(operation.number("barrier_all"))
_QUIET, _QUIET_PE, _FLUSH = (constant(operation.number(name)) for name in ("quiet", "quiet_pe", "flush"))
_0, _1, _8 = constant(0), constant(1), constant(8)


def put(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put(to, source, nbytes, pe, qp)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def put(to, source, nbytes, pe, qp):
        if rank() == 0:
            if nbytes != _0:
                end = post_copy(op, of_pair(_WRITE, pe, qp), nbytes, source, remote(to, pe), _0, _0)
                if not nbi:
                    ring.wait(op, end)
        sync()

    return put


def get(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``get(dest, origin, nbytes, pe, qp)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def get(dest, origin, nbytes, pe, qp):
        if rank() == 0:
            if nbytes != _0:
                end = post_copy(op, of_pair(_READ, pe, qp), nbytes, dest, remote(origin, pe), _0, _0)
                if nbi:
                    if window.SETTLES:
                        lands()
                else:
                    ring.wait(op, end)
                    if window.SETTLES:
                        settle(op)
        sync()

    return get


def strided(name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
    """Make ``strided(raddr, raddr_step, laddr, laddr_step, nelems, pe)``: one request per element, or a single one if contiguous."""
    request, settles = _READ if get else _WRITE, get and window.constants().settles
    op, nbytes, rank, size, sync = constant(operation.number(name)), constant(itemsize), scope.rank, scope.size, scope.sync

    @device
    def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
        what, end = of_pair(request, pe, 0), _0
        i, step, total = u64(rank()), u64(size()), nbytes
        if raddr_step == nbytes and laddr_step == nbytes and nelems != _0:
            nelems, total = _1, nelems * nbytes
        while i < nelems:
            end = post_copy(op, what, total, laddr + i * laddr_step, raddr + i * raddr_step, _0, _0)
            if end == _NOWHERE:
                break
            i += step
        if end != _0:
            ring.wait(op, end)
            if settles:
                settle(op)
        sync()

    return strided


def put_signal(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put_signal(to, source, nbytes, word, value, add, pe)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def put_signal(to, source, nbytes, word, value, add, pe):
        if rank() == 0:
            what = of_pair(_SIGNAL_ADD if add else _SIGNAL_SET, pe, 0)
            end = post_copy(op, what, nbytes, source, remote(to, pe), value, remote(word, pe))
            if not nbi:
                ring.wait(op, end)
        sync()

    return put_signal


def p(dtype: Any) -> Any:
    """Make ``p(addr, array, value, pe, qp)``: store one element of array's dtype."""
    return _p(element_size(dtype))


@functools.cache
def _p(size: int) -> Any:
    op, nbytes = constant(operation.number("p")), constant(size)

    @device
    def p(addr, array, value, pe, qp):
        low, high = element_words(array, value)
        post(op, of_pair(_STORE, pe, qp), nbytes, _0, remote(addr, pe), low, high)

    return p


def g(dtype: Any) -> Any:
    """Make ``g(addr, array, pe, qp)``: load one element of array's dtype."""
    return _g(element_size(dtype))


@functools.cache
def _g(size: int) -> Any:
    op, nbytes = constant(operation.number("g")), constant(size)

    @device
    def read(op, here, at, value, request):
        what, count, together, raddr, array = request
        number, n = place(here), _1 if together else u64(ptx.popc(here))
        base = ring.reserve(op, here, number, n)
        if base != _NOWHERE:
            ticket = base if together else base + number
            if ticket == base + number:
                size_read = u64(u32(count * nbytes)) if together else nbytes
                ring.write_at(ticket, what, size_read, at, raddr, _0, _0)
            ring.wait(op, ticket + _1)
        return ptx.ld_element(at, array)

    fetched = fetching(read)

    @device
    def g(addr, array, pe, qp):
        """If the active lanes form a single group with contiguous elements, they post one READ, otherwise one each. All share a cell."""
        what = of_pair(_READ | layout.LANDING, pe, qp)
        here, mask, rank, count = group(what)
        in_row = follows(here, mask, rank, addr, nbytes)
        together = ptx.vote_all(here, u32(mask == here and in_row)) != 0
        request = what, count, together, remote(addr, pe), array
        return fetched(op, here, nbytes, ptx.ld_element(first_cell(), array), request)

    return g


@functools.cache
def atomic(name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
    """Make ``atomic(addr, array, value, compare, pe)``, atomic with respect to every NIC access to the element."""
    return amo.atomic(name, update, dtype, g, _change, fetch=fetch)


@functools.cache
def _change(name: str, update: Update, size: int, *, fetch: bool) -> Any:
    """Make ``change(addr, word, compare, pe)`` for words; see amo.py."""
    op, nbytes, what = constant(operation.number(name)), constant(size), constant(_REQUESTS[update])
    compares = update is Update.COMPARE_SWAP

    @device
    def fetch_atomic(op, here, at, old, request):
        what, to, value, second = request
        number = place(here)
        base = ring.reserve(op, here, number, u64(ptx.popc(here)))
        if base != _NOWHERE:
            ring.wait(op, ring.write_at(base + number, what | layout.LANDING, nbytes, at, to, value, second))
            old = old_word(at, nbytes)
        return old

    if fetch:
        fetched = fetching(fetch_atomic)

        @device
        def change(addr, word, compare, pe):
            request = of_pair(what, pe, 0), remote(addr, pe), word, compare if compares else _0
            return fetched(op, ptx.here(), _8, _0, request)

    else:

        @device
        def change(addr, word, compare, pe):
            post(op, of_pair(what, pe, 0), nbytes, _0, remote(addr, pe), word, _0)

    return change


@device
def signal(addr, value, add, pe):
    """Set or increase a signal word."""
    post(_SIGNAL, of_pair(_SIGNAL_ADD if add else _SIGNAL_SET, pe, 0), _0, _0, _0, value, remote(addr, pe))


@device
def flag(addr, value, pe):
    """Store a flag in PE pe's team memory."""
    post(_BARRIER, of_pair(_STORE, pe, 1), _8, _0, remote(addr, pe), value, _0)


@device
def quiet():
    """Complete every reserved request: what it wrote is then in the target's memory, and what it read is here."""
    ring.wait(_QUIET, ring.reserved())
    if window.SETTLES:
        if landed():
            settle(_QUIET)


@device
def quiet_pe(pe):
    """Complete all transfers, including those to and from one PE, because requests to all PEs complete in a single order."""
    ring.wait(_QUIET_PE, ring.reserved())
    if window.SETTLES:
        if landed():
            settle(_QUIET_PE)


@device
def flush():
    """Wait until sources may be reused. Only its completion tells that a request has read its source."""
    ring.wait(_FLUSH, ring.reserved())


@device
def fence():
    """Complete earlier requests, because a NIC orders WQEs only by their completion."""
    ring.wait(_QUIET, ring.reserved())


@device
def settle(op):
    """Make earlier NIC writes to this GPU's memory visible to this thread, by a READ of this PE's own memory (transport.settle)."""
    here = ptx.here()
    number = place(here)
    base = ring.reserve(op, here, number, _1)
    if base != _NOWHERE:
        if number == _0:
            what = _READ | layout.LANDING | own_number() << layout.NUMBER_SHIFT
            ring.write_at(base, what, _8, sink(), remote(layout.ALL_ROWS, state.my_pe()), _0, _0)
        ring.wait(op, base + _1)
