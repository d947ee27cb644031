"""The ibgda path: kernels build WQEs, ring the NIC's doorbell, and poll its completion queue; no CPU is involved.

Active lanes of a warp that use the same queue form a group, which reserves WQEBBs and rings the doorbell once. If the elements of every
group are contiguous, p posts one WQE per group; g does so if all active lanes form a single group.

On most GPUs, data fetched by a READ or an atomic is visible when its CQE is. On the others (window.SETTLES), a DUMP follows the READ or
atomic and requests the CQE in its place; settle() posts only a DUMP.

A NIC guarantees the order of two WQEs in the target's memory only if the first has completed before the second is posted, with one
exception: an atomic is performed after all earlier WQEs of its queue pair. Therefore, fence is the same as quiet, and a signal is an atomic
posted after its data.
"""

import functools
from typing import Any

from pgas.kernels import operation, window
from pgas.kernels.codes import Update
from pgas.kernels.compiler import constant, device, element_size, element_words, ptx, u32, u64
from pgas.kernels.paths.nic import amo, atomic_wqe, post, queue
from pgas.kernels.paths.nic.cells import fetching, first_cell
from pgas.kernels.paths.nic.lanes import follows, group
from pgas.kernels.paths.nic.post import dump, fetch_atomic, move, move_apart, post_atomic, signalled, store_dump
from pgas.kernels.paths.nic.queue_pair import NOWHERE, landed, lands, own_record, record_of, rkey_of_heap
from pgas.kernels.scope import Scope
from pgas.kernels.state import fixed
from pgas.kernels.typed import layout, wqe
from pgas.kernels.window import remote
from pgas.transports.mlx5.wqe import Ce, Opcode

_WRITE, _READ, _ALWAYS, _NOWHERE = constant(Opcode.RDMA_WRITE), constant(Opcode.RDMA_READ), constant(Ce.ALWAYS), constant(NOWHERE)
_SIGNAL, _BARRIER = constant(operation.number("signal_op")), constant(operation.number("barrier_all"))
_QUIET, _QUIET_PE, _FLUSH = (constant(operation.number(name)) for name in ("quiet", "quiet_pe", "flush"))
_0, _1 = constant(0), constant(1)


def put(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put(to, source, nbytes, pe, qp)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def put(to, source, nbytes, pe, qp):
        if rank() == 0:
            if nbytes != _0:
                record = record_of(pe, qp)
                end = move(op, record, _WRITE, remote(to, pe), rkey_of_heap(pe), source, nbytes)
                if not nbi:
                    queue.poll(op, record, end)
        sync()

    return put


def get(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``get(dest, origin, nbytes, pe, qp)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def get(dest, origin, nbytes, pe, qp):
        if rank() == 0:
            if nbytes != _0:
                record = record_of(pe, qp)
                end = move(op, record, _READ, remote(origin, pe), rkey_of_heap(pe), dest, nbytes)
                if nbi:
                    if window.SETTLES:
                        lands()
                else:
                    if window.SETTLES:
                        end = max(end, dump(op, record, remote(origin, pe), dest))
                    queue.poll(op, record, end)
        sync()

    return get


def strided(name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
    """Make ``strided(raddr, raddr_step, laddr, laddr_step, nelems, pe)``: one WQE per element, or per GiB if contiguous."""
    opcode, settles = _READ if get else _WRITE, get and window.constants().settles
    op, nbytes, rank, size, sync = constant(operation.number(name)), constant(itemsize), scope.rank, scope.size, scope.sync

    @device
    def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
        record = record_of(pe, 0)
        first, step, each, last = u64(rank()), u64(size()), nbytes, nbytes
        if raddr_step == nbytes and laddr_step == nbytes and nelems != _0:  # contiguous: the first thread copies all
            end = nelems * nbytes - _1
            each, last, step = wqe.MESSAGE_MAX, end % wqe.MESSAGE_MAX + _1, _1
            raddr_step, laddr_step = each, each
            nelems = end // wqe.MESSAGE_MAX + _1 if first == _0 else _0
        if first < nelems:
            n = (nelems - first + step - _1) // step
            there, here = (raddr + first * raddr_step, step * raddr_step), (laddr + first * laddr_step, step * laddr_step)
            end = move_apart(op, record, opcode, rkey_of_heap(pe), there, here, (n, each, last))
            if settles:
                end = max(end, dump(op, record, there[0], here[0]))
            queue.poll(op, record, end)
        sync()

    return strided


def put_signal(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put_signal(to, source, nbytes, word, value, add, pe)``, called by all threads of the scope."""
    op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

    @device
    def put_signal(to, source, nbytes, word, value, add, pe):
        if rank() == 0:
            record = record_of(pe, 0)
            end = signalled(op, record, to, source, nbytes, word, value, add, pe)
            if not nbi:
                queue.poll(op, record, end)
        sync()

    return put_signal


def p(dtype: Any) -> Any:
    """Make ``p(addr, array, value, pe, qp)``: store one element of array's dtype."""
    return _p(element_size(dtype))


@functools.cache
def _p(size: int) -> Any:
    op, nbytes, store_one, store_part = constant(operation.number("p")), constant(size), post.inline(size), post.inline_part(size)

    @device
    def p(addr, array, value, pe, qp):
        """Each group of lanes posts one WQE if the elements of every group are contiguous; a NOP follows a WQE of several WQEBBs."""
        low, high = element_words(array, value)
        record = record_of(pe, qp)
        here, mask, rank, count = group(record)
        in_row = follows(here, mask, rank, addr, nbytes)
        together = ptx.vote_all(here, u32(ptx.popc(here) > 1 and in_row)) != 0
        total = u64(u32(count * nbytes))  # instructions on 32 bits suffice
        ds = post.ds_inline(total)
        blocks = post.wqebbs(ds)
        n = (blocks if blocks == _1 else blocks + _1) if together else u64(count)
        here, base, idle = queue.reserve(op, record, here, mask, rank, n)
        if base != _NOWHERE:
            if together:
                if rank == 0:
                    ce = _ALWAYS if blocks == _1 else _0
                    post.store_inline_head(record, base, ds, remote(addr, pe), rkey_of_heap(pe), total, ce)
                    if blocks != _1:
                        post.store_nop(record, base + blocks)
                store_part(record, base, u64(rank) * nbytes, low, high)
            else:
                ce = _ALWAYS if rank == count - 1 else _0
                store_one(record, base + u64(rank), remote(addr, pe), rkey_of_heap(pe), low, high, ce)
        queue.submit(op, record, here, rank, n, (base, idle))

    return p


def g(dtype: Any) -> Any:
    """Make ``g(addr, array, pe, qp)``: load one element of array's dtype."""
    return _g(element_size(dtype))


@functools.cache
def _g(size: int) -> Any:
    op, nbytes = constant(operation.number("g")), constant(size)

    @device
    def read(op, here, at, value, request):
        record, members, together, raddr, pe, array = request
        mask, rank, count = members
        n = (_1 if together else u64(count)) + (_1 if window.SETTLES else _0)
        here, base, idle = queue.reserve(op, record, here, mask, rank, n)
        if base != _NOWHERE and (rank == 0 or not together):
            index = base if together else base + u64(rank)
            size_read = u64(u32(count * nbytes)) if together else nbytes
            ce = _ALWAYS if index + _1 == base + n else _0
            post.store_copy(record, index, _READ, raddr, rkey_of_heap(pe), at, fixed(layout.CELL_LKEY), size_read, ce)
            if window.SETTLES:
                if rank == 0:
                    store_dump(record, base + n - _1, at, fixed(layout.CELL_LKEY))
        queue.submit(op, record, here, rank, n, (base, idle))
        if base != _NOWHERE:
            queue.poll(op, record, base + n)
            value = ptx.ld_element(at, array)
        return value

    fetched = fetching(read)

    @device
    def g(addr, array, pe, qp):
        """If the active lanes form a single group with contiguous elements, they post one READ, otherwise one each. All share a cell."""
        record = record_of(pe, qp)
        here, mask, rank, count = group(record)
        in_row = follows(here, mask, rank, addr, nbytes)
        together = ptx.vote_all(here, u32(mask == here and in_row)) != 0
        request = record, (mask, rank, count), together, remote(addr, pe), pe, array
        return fetched(op, here, nbytes, ptx.ld_element(first_cell(), array), request)

    return g


@functools.cache
def atomic(name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
    """Make ``atomic(addr, array, value, compare, pe)``, atomic with respect to every NIC access to the element."""
    return amo.atomic(name, update, dtype, g, _change, fetch=fetch)


@functools.cache
def _change(name: str, update: Update, size: int, *, fetch: bool) -> Any:
    """Make ``change(addr, word, compare, pe)`` for words; see amo.py."""
    written, perform = atomic_wqe.form(update, size), fetch_atomic if fetch else post_atomic
    op, operands, form = constant(operation.number(name)), written.operands, (written.opcode, written.wide, constant(size))

    @device
    def change(addr, word, compare, pe):
        words = operands(word, compare)
        return perform(op, record_of(pe, 0), form, remote(addr, pe), rkey_of_heap(pe), words)

    return change


@device
def signal(addr, value, add, pe):
    """Set or increase a signal word."""
    signalled(_SIGNAL, record_of(pe, 0), _0, _0, _0, addr, value, add, pe)


@device
def flag(addr, value, pe):
    """Store a flag in PE pe's team memory."""
    record = record_of(pe, 1)
    here, alone, rank, _ = group(u64(ptx.lane()))
    here, base, idle = queue.reserve(_BARRIER, record, here, alone, rank, _1)
    if base != _NOWHERE:
        post.store_flag(record, base, remote(addr, pe), rkey_of_heap(pe), value)
    queue.submit(_BARRIER, record, here, rank, _1, (base, idle))


@device
def quiet():
    """Complete every WQE: what it wrote is then in the target's memory, and what it read is here."""
    queue.quiet(_QUIET)
    if window.SETTLES:
        if landed():
            settle(_QUIET)


@device
def quiet_pe(pe):
    """Complete transfers to and from one PE."""
    queue.quiet_pe(_QUIET_PE, pe)
    if window.SETTLES:
        if landed():
            settle(_QUIET_PE)


@device
def flush():
    """Wait until sources may be reused. Only a CQE tells that a WQE has read its source."""
    queue.quiet(_FLUSH)


@device
def fence():
    """Complete earlier WQEs, because a NIC orders WQEs only by their completion."""
    queue.quiet(_QUIET)


@device
def settle(op):
    """Make earlier NIC writes to this GPU's memory visible to this thread (transport.settle)."""
    record = own_record()
    here, mask, rank, _ = group(record)
    here, base, idle = queue.reserve(op, record, here, mask, rank, _1)
    if base != _NOWHERE and rank == 0:
        store_dump(record, base, first_cell(), fixed(layout.CELL_LKEY))
    queue.submit(op, record, here, rank, _1, (base, idle))
    if base != _NOWHERE:
        queue.poll(op, record, base + _1)
