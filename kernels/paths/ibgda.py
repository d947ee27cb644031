"""The IBGDA transport on the device: kernels build WQEs, ring the NIC and poll it; no CPU takes part.

WQEs are those of transports/mlx5/wqe.py, written as octowords (16 bytes) in the byte order of the wire; queues are those of queue.py. Lanes
of a warp that come here together with one queue reserve and ring once; their p of neighbouring elements become one WQE, and g if all lanes
have one queue.

What a READ or an atomic fetched is taken to be in this GPU's memory once its CQE is seen: true of GPUs that keep the order of what comes
in by PCIe (sm_90 and newer); older ones need a DUMP behind it (facts/mlx5.md 5.3), and are not supported.

Through a NIC no two WQEs are ordered in the target's memory but by their completion, except that an atomic comes after what was posted
before it on its queue pair (DESIGN section 5). So fence is quiet, and a signal is an atomic behind its data.
"""

import functools
from types import SimpleNamespace
from typing import Any

from pgas.kernels import layout, operation, state, window
from pgas.kernels.codes import Update
from pgas.kernels.compiler import constant, device, element_size, element_words, ptx, u32, u64
from pgas.kernels.paths.nic import atomic_wqe, nic_amo, queue
from pgas.kernels.paths.nic.lanes import group, of_first, place
from pgas.kernels.paths.nic.queue import release_cell, try_cell
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.wqe import Ce, Opcode

_0, _1, _2, _3, _4, _8, _32 = (constant(c) for c in (0, 1, 2, 3, 4, 8, 32))
_ONES, _ONES_32 = constant((1 << 64) - 1), constant((1 << 32) - 1)
_NOWHERE, _WQEBB_MASK, _WQEBB_SHIFT = constant(queue.NOWHERE), constant(wqe.WQEBB - 1), constant(wqe.WQEBB_SHIFT)
_IDX_MASK, _IDX_SHIFT = constant(wqe.WQE_IDX_MASK), constant(wqe.WQE_IDX_SHIFT)
_DS_SHIFT, _CE_SHIFT = constant(56), constant(8 * (wqe.CTRL_FM_CE_SE % layout.WORD))
_ALWAYS, _INLINE_SEG, _MESSAGE_MAX = constant(Ce.ALWAYS), constant(wqe.INLINE_SEG), constant(wqe.MESSAGE_MAX)
_OCTOWORD, _ROUND_UP = constant(wqe.OCTOWORD), constant(wqe.OCTOWORD - 1)
_RADDR, _DATA = constant(wqe.WQE_RADDR), constant(wqe.WQE_DATA)
_INLINE, _ATOMIC_DATA = constant(wqe.WQE_DATA + wqe.INLINE_HEADER), constant(wqe.WQE_ATOMIC_DATA)
_NOP, _WRITE, _READ = constant(Opcode.NOP), constant(Opcode.RDMA_WRITE), constant(Opcode.RDMA_READ)
_FA, _MASKED_CS_8 = constant(Opcode.ATOMIC_FA), constant(atomic_wqe.MASKED_CS_8)
_DS_NOP, _DS_WRITE, _DS_ATOMIC, _DS_MASKED_CS_8 = (constant(c) for c in (wqe.DS_NOP, wqe.DS_WRITE, wqe.DS_ATOMIC, wqe.DS_MASKED_CS_8))
_CELL_LKEY, _CELLS, _SINK = constant(layout.CELL_LKEY), constant(layout.CELLS), constant(layout.SINK)
_DS_FLAG = constant(wqe.ds_inline(8))
_BUSY = constant(queue.BUSY)
_QPN, _QUIET, _BARRIER = constant(layout.QPN), constant(operation.number("quiet")), constant(operation.number("barrier_all"))
_QUIET_PE, _FLUSH = constant(operation.number("quiet_pe")), constant(operation.number("flush"))

#: WQEs of strided copies that a lane posts at once, at most: those of a warp take no more than half of a queue.
_WARP, _AT_ONCE = 32, 16


# Segments, in the byte order of the wire (facts/mlx5.md 1.2) ------------------------------------------------------------------


@device
def store_ctrl(at, record, index, opcode, ds, ce):
    """Store a control segment; opcode has opmod in its upper byte."""
    idx_opcode = ptx.swap_u32(u32(opcode | (index & _IDX_MASK) << _IDX_SHIFT))
    ptx.st_octoword(at, u64(idx_opcode) | (queue.fixed(record + _QPN) << _32) | ds << _DS_SHIFT, ce << _CE_SHIFT)


@device
def store_raddr(at, raddr, rkey):
    """Store a remote address segment; rkey is big-endian already."""
    ptx.st_octoword(at, ptx.swap_u64(raddr), u64(rkey))


@device
def store_data(at, addr, lkey, nbytes):
    """Store a data segment; lkey is big-endian already."""
    ptx.st_octoword(at, u64(ptx.swap_u32(u32(nbytes))) | lkey << _32, ptx.swap_u64(addr))


@functools.cache
def make(constants: window.Constants) -> SimpleNamespace:
    """Make the transport for a job's constants."""
    q = queue.make(constants)
    record_of, slot, reserve, submit, poll, complete_all = q.record, q.slot, q.reserve, q.submit, q.poll, q.quiet
    complete_pe = q.quiet_pe
    at_once = constant(max(1, min(_AT_ONCE, constants.depth // _WARP // 2)))
    signalling = constant(min(_WARP, constants.depth // 8))  # lanes that signal at once: 4 WQEBBs each, half of a queue at most

    @device
    def store_copy(record, index, opcode, raddr, rkey, laddr, lkey, nbytes, ce):
        """Write a WRITE or READ of one WQEBB; rkey and lkey are big-endian already."""
        at = slot(record, index)
        store_ctrl(at, record, index, opcode, _DS_WRITE, ce)
        store_raddr(at + _RADDR, raddr, rkey)
        store_data(at + _DATA, laddr, lkey, nbytes)

    @device
    def move(op, record, opcode, raddr, rkey, laddr, nbytes):
        """Post WRITEs or READs, one for each GiB, each lane its own. Return the index behind the last."""
        lkey = queue.lkey_of(op, raddr, laddr, nbytes)
        if lkey == _NOWHERE:
            return _NOWHERE
        end = _0
        done = _0
        while done < nbytes and end != _NOWHERE:
            here, mask, rank, count = group(record)
            here, base = reserve(op, record, here, mask, rank, u64(count))
            end = _NOWHERE
            if base != _NOWHERE:
                end = base + u64(count)
                size = min(nbytes - done, _MESSAGE_MAX)
                ce = _ALWAYS if rank == count - 1 else _0
                store_copy(record, base + u64(rank), opcode, raddr + done, rkey, laddr + done, lkey, size, ce)
            submit(op, record, here, rank, base, u64(count))
            done += _MESSAGE_MAX
        return end

    @device
    def move_apart(op, record, opcode, raddr, raddr_step, rkey, laddr, laddr_step, nbytes, n, last):
        """Post n WRITEs or READs of nbytes each, the last one of ``last``, steps apart, each lane its own. Return the index behind them.

        The lanes of a group reserve and ring once for as many as each that is here has left; who has more goes on without the others.
        """
        lkey = queue.lkey_of(op, raddr, laddr, (n - _1) * laddr_step + last) if n != _0 else _0
        if lkey == _NOWHERE:
            return _NOWHERE
        end = _0
        while n != _0 and end != _NOWHERE:
            here, mask, rank, count = group(record)
            each = u64(ptx.least(here, u32(min(n, at_once))))
            behind = each * u64(count)
            here, base = reserve(op, record, here, mask, rank, behind)
            end = _NOWHERE
            if base != _NOWHERE:
                end = base + behind
                index = base + u64(rank)
                while index < end:
                    n -= _1
                    size, ce = nbytes if n != _0 else last, _ALWAYS if index + _1 == end else _0
                    store_copy(record, index, opcode, raddr, rkey, laddr, lkey, size, ce)
                    raddr += raddr_step
                    laddr += laddr_step
                    index += u64(count)
            submit(op, record, here, rank, base, behind)
        return end

    @device
    def store_atomic(record, index, opcode, raddr, rkey, first, second, laddr, nbytes, ce):
        """Write an atomic of one WQEBB; first and second are its segment, the old value lands at laddr."""
        at = slot(record, index)
        store_ctrl(at, record, index, opcode, _DS_ATOMIC, ce)
        store_raddr(at + _RADDR, raddr, rkey)
        ptx.st_octoword(at + _DATA, first, second)
        store_data(at + _ATOMIC_DATA, laddr, queue.fixed(_CELL_LKEY), nbytes)

    @device
    def store_masked_swap(record, index, raddr, rkey, first, second, mask, laddr):
        """Write a MASKED_CS of 8 bytes, which has two WQEBBs and no CQE; first and second are its segment, mask begins the next one."""
        at = slot(record, index)
        store_ctrl(at, record, index, _MASKED_CS_8, _DS_MASKED_CS_8, _0)
        store_raddr(at + _RADDR, raddr, rkey)
        ptx.st_octoword(at + _DATA, first, second)
        ptx.st_octoword(at + _ATOMIC_DATA, mask, _0)
        store_data(slot(record, index + _1), laddr, queue.fixed(_CELL_LKEY), _8)

    @device
    def store_nop(record, index):
        """Write what completes WQEs of several WQEBBs."""
        store_ctrl(slot(record, index), record, index, _NOP, _DS_NOP, _ALWAYS)

    @device
    def room(count, wide):
        """WQEBBs for an atomic of each of count lanes: wide ones have two, and a NOP behind the last."""
        return u64(count) if wide == _0 else _2 * u64(count) + _1

    @device
    def store_mine(record, base, rank, count, opcode, wide, raddr, rkey, first, second, mask, laddr, nbytes):
        """Write a lane's atomic of those from base on."""
        if wide == _0:
            ce = _ALWAYS if rank == count - 1 else _0
            store_atomic(record, base + u64(rank), opcode, raddr, rkey, first, second, laddr, nbytes, ce)
        else:
            index = base + _2 * u64(rank)
            store_masked_swap(record, index, raddr, rkey, first, second, mask, laddr)
            if rank == count - 1:
                store_nop(record, index + _2)

    @device
    def post_atomic(op, record, opcode, wide, raddr, rkey, first, second, mask, nbytes):
        """Post an atomic whose old value nobody wants."""
        here, group_mask, rank, count = group(record)
        n = room(count, wide)
        here, base = reserve(op, record, here, group_mask, rank, n)
        if base != _NOWHERE:
            sink = queue.fixed(_CELLS) + _SINK
            store_mine(record, base, rank, count, opcode, wide, raddr, rkey, first, second, mask, sink, nbytes)
        submit(op, record, here, rank, base, n)

    @device
    def fetch_atomic(op, record, opcode, wide, raddr, rkey, first, second, mask, nbytes):
        """Perform an atomic and return the old value: 4 bytes come big-endian, 8 in the order of the host (facts/mlx5.md 1.7)."""
        here, group_mask, rank, count = group(record)
        n = room(count, wide)
        deadline = ptx.globaltimer() + state.timeout_ns()
        old = _0
        trying = True
        while trying:
            cell = try_cell(op, deadline, here)
            trying = cell == _BUSY
            if cell > _BUSY:
                mine = cell + place(here) * _8
                here, base = reserve(op, record, here, group_mask, rank, n)
                if base != _NOWHERE:
                    store_mine(record, base, rank, count, opcode, wide, raddr, rkey, first, second, mask, mine, nbytes)
                submit(op, record, here, rank, base, n)
                if base != _NOWHERE:
                    poll(op, record, base + n)
                    old = u64(ptx.swap_u32(ptx.ld_relaxed_sys_u32(mine))) if nbytes == _4 else ptx.ld_relaxed_sys_u64(mine)
                release_cell(cell)
        return old

    @device
    def signalled(op, record, to, source, nbytes, word, value, add, pe):
        """Post a WRITE and the signal behind it; data of several WRITEs goes ahead. Return the index behind the last."""
        rkey = queue.rkey_of_heap(pe)
        if nbytes > _MESSAGE_MAX:
            if move(op, record, _WRITE, remote(to, pe), rkey, source, nbytes) == _NOWHERE:
                return _NOWHERE
            nbytes = _0
        data, lkey = _0, _0
        if nbytes != _0:
            data, lkey = _1, queue.lkey_of(op, remote(to, pe), source, nbytes)
            if lkey == _NOWHERE:
                return _NOWHERE
        n = data + (_1 if add else _3)
        # Records are 256 bytes apart: the rest of the key is how many WQEBBs a lane has, and which of the lanes that reserve at once.
        here, mask, rank, count = group(record + n + (u64(ptx.lane()) // signalling << _3))
        total = n * u64(count)
        here, base = reserve(op, record, here, mask, rank, total)
        end = _NOWHERE
        if base != _NOWHERE:
            end = base + total
            index = base + n * u64(rank)
            if data != _0:
                store_copy(record, index, _WRITE, remote(to, pe), rkey, source, lkey, nbytes, _0)
            sink = queue.fixed(_CELLS) + _SINK
            if add:
                store_atomic(record, index + data, _FA, remote(word, pe), rkey, ptx.swap_u64(value), _0, sink, _8, _ALWAYS)
            else:
                store_masked_swap(record, index + data, remote(word, pe), rkey, ptx.swap_u64(value), _0, _ONES, sink)
                store_nop(record, index + data + _2)
        submit(op, record, here, rank, base, total)
        return end

    def put(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def put(to, source, nbytes, pe, qp):
            if rank() == 0:
                if nbytes != _0:
                    record = record_of(pe, qp)
                    end = move(op, record, _WRITE, remote(to, pe), queue.rkey_of_heap(pe), source, nbytes)
                    if not nbi:
                        poll(op, record, end)
            sync()

        return put

    def get(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def get(dest, origin, nbytes, pe, qp):
            if rank() == 0:
                if nbytes != _0:
                    record = record_of(pe, qp)
                    end = move(op, record, _READ, remote(origin, pe), queue.rkey_of_heap(pe), dest, nbytes)
                    if not nbi:
                        poll(op, record, end)
            sync()

        return get

    def strided(name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
        opcode = _READ if get else _WRITE
        op, nbytes, rank, size, sync = constant(operation.number(name)), constant(itemsize), scope.rank, scope.size, scope.sync

        @device
        def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
            record, rkey = record_of(pe, 0), queue.rkey_of_heap(pe)
            first, step, each, last = u64(rank()), u64(size()), nbytes, nbytes
            if raddr_step == nbytes and laddr_step == nbytes and nelems != _0:  # nothing lies between: a WQE for each GiB, by one thread
                end = nelems * nbytes - _1
                each, last, step = _MESSAGE_MAX, end % _MESSAGE_MAX + _1, _1
                raddr_step, laddr_step = each, each
                nelems = end // _MESSAGE_MAX + _1 if first == _0 else _0
            if first < nelems:
                n = (nelems - first + step - _1) // step
                raddr += first * raddr_step
                laddr += first * laddr_step
                poll(op, record, move_apart(op, record, opcode, raddr, step * raddr_step, rkey, laddr, step * laddr_step, each, n, last))
            sync()

        return strided

    def put_signal(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        op, rank, sync = constant(operation.number(name)), scope.rank, scope.sync

        @device
        def put_signal(to, source, nbytes, word, value, add, pe):
            if rank() == 0:
                record = record_of(pe, 0)
                end = signalled(op, record, to, source, nbytes, word, value, add, pe)
                if not nbi:
                    poll(op, record, end)
            sync()

        return put_signal

    signal_op = constant(operation.number("signal_op"))

    @device
    def signal(word, value, add, pe):
        signalled(signal_op, record_of(pe, 0), _0, _0, _0, word, value, add, pe)

    @device
    def flag(addr, value, pe):
        """Store a flag of the barrier, in PE pe's system area."""
        record = record_of(pe, 1)
        here, alone, rank, _ = group(u64(ptx.lane()))
        here, base = reserve(_BARRIER, record, here, alone, rank, _1)
        if base != _NOWHERE:
            at = slot(record, base)
            store_ctrl(at, record, base, _WRITE, _DS_FLAG, _ALWAYS)
            store_raddr(at + _RADDR, remote(addr, pe), queue.rkey_of_system_area(pe))
            ptx.st_octoword(at + _DATA, u64(ptx.swap_u32(u32(_INLINE_SEG | _8))) | value << _32, value >> _32)
        submit(_BARRIER, record, here, rank, base, _1)

    def p(dtype: Any) -> Any:
        return _p(element_size(dtype))

    @functools.cache
    def _p(size: int) -> Any:
        op, ds, nbytes = constant(operation.number("p")), constant(wqe.ds_inline(size)), constant(size)
        header = constant(int.from_bytes((wqe.INLINE_SEG | size).to_bytes(4, "big"), "little"))

        @device
        def write_part(record, base, offset, low, high):
            """Store an element's bytes at an offset of the WQE at base; WQEBBs wrap one by one."""
            at = slot(record, base + (offset >> _WQEBB_SHIFT)) + (offset & _WQEBB_MASK)
            if size == 1:
                ptx.st_u8(at, u32(low))
            elif size == 2:
                ptx.st_u16(at, u32(low))
            else:
                ptx.st_u32(at, u32(low & _ONES_32))
                if size >= 8:
                    offset += _4
                    ptx.st_u32(slot(record, base + (offset >> _WQEBB_SHIFT)) + (offset & _WQEBB_MASK), u32(low >> _32))
                if size == 16:
                    offset += _4
                    ptx.st_u32(slot(record, base + (offset >> _WQEBB_SHIFT)) + (offset & _WQEBB_MASK), u32(high & _ONES_32))
                    offset += _4
                    ptx.st_u32(slot(record, base + (offset >> _WQEBB_SHIFT)) + (offset & _WQEBB_MASK), u32(high >> _32))

        @device
        def p(addr, array, value, pe, qp):
            """Neighbouring elements of a group become one WQE, which a NOP completes if it has several WQEBBs.

            That is if all groups that are here send neighbours.
            """
            low, high = element_words(array, value)
            record = record_of(pe, qp)
            here, mask, rank, count = group(record)
            first = of_first(here, mask, addr)
            together = ptx.vote_all(here, u32(ptx.popc(here) > 1 and addr == first + u64(rank) * nbytes)) != 0
            total = u64(count) * nbytes
            ds_together = (_INLINE + total + _ROUND_UP) // _OCTOWORD
            blocks = (ds_together + _3) // _4
            n = (blocks if blocks == _1 else blocks + _1) if together else u64(count)
            here, base = reserve(op, record, here, mask, rank, n)
            if base != _NOWHERE:
                if together:
                    if rank == 0:
                        at = slot(record, base)
                        store_ctrl(at, record, base, _WRITE, ds_together, _ALWAYS if blocks == _1 else _0)
                        store_raddr(at + _RADDR, remote(addr, pe), queue.rkey_of_heap(pe))
                        ptx.st_u32(at + _DATA, ptx.swap_u32(u32(_INLINE_SEG | total)))
                        if blocks != _1:
                            store_nop(record, base + blocks)
                    write_part(record, base, _INLINE + u64(rank) * nbytes, low, high)
                else:
                    at = slot(record, base + u64(rank))
                    store_ctrl(at, record, base + u64(rank), _WRITE, ds, _ALWAYS if rank == count - 1 else _0)
                    store_raddr(at + _RADDR, remote(addr, pe), queue.rkey_of_heap(pe))
                    if size == 16:
                        ptx.st_octoword(at + _DATA, header | (low << _32) & _ONES, low >> _32 | (high << _32) & _ONES)
                        ptx.st_octoword(at + _ATOMIC_DATA, high >> _32, _0)
                    else:
                        ptx.st_octoword(at + _DATA, header | (low << _32) & _ONES, low >> _32)
            submit(op, record, here, rank, base, n)

        return p

    def g(dtype: Any) -> Any:
        return _g(element_size(dtype))

    @functools.cache
    def _g(size: int) -> Any:
        op, nbytes = constant(operation.number("g")), constant(size)

        @device
        def g(addr, array, pe, qp):
            """Neighbouring elements are read at once if the lanes are one group, else by a READ each, into one landing cell."""
            record = record_of(pe, qp)
            here, mask, rank, count = group(record)
            first = of_first(here, mask, addr)
            together = ptx.vote_all(here, u32(mask == here and addr == first + u64(rank) * nbytes)) != 0
            n = _1 if together else u64(count)
            deadline = ptx.globaltimer() + state.timeout_ns()
            value = ptx.ld_element(queue.fixed(_CELLS), array)  # of the right type, if the job is poisoned
            trying = True
            while trying:
                cell = try_cell(op, deadline, here)
                trying = cell == _BUSY
                if cell > _BUSY:
                    mine = cell + place(here) * nbytes
                    here, base = reserve(op, record, here, mask, rank, n)
                    if base != _NOWHERE and (rank == 0 or not together):
                        index = base if together else base + u64(rank)
                        size_read = u64(count) * nbytes if together else nbytes
                        ce = _ALWAYS if index + _1 == base + n else _0
                        rkey, lkey = queue.rkey_of_heap(pe), queue.fixed(_CELL_LKEY)
                        store_copy(record, index, _READ, remote(addr, pe), rkey, mine, lkey, size_read, ce)
                    submit(op, record, here, rank, base, n)
                    if base != _NOWHERE:
                        poll(op, record, base + n)
                        value = ptx.ld_element(mine, array)
                    release_cell(cell)
            return value

        return g

    @functools.cache
    def change(name: str, update: Update, size: int, *, fetch: bool) -> Any:
        """Make ``change(addr, word, compare, pe)`` of words; see nic_amo."""
        form, perform = atomic_wqe.form(update, size), fetch_atomic if fetch else post_atomic
        op, nbytes, opcode, wide, operands = constant(operation.number(name)), constant(size), form.opcode, form.wide, form.operands

        @device
        def change(addr, word, compare, pe):
            first, second, mask = operands(word, compare)
            return perform(op, record_of(pe, 0), opcode, wide, remote(addr, pe), queue.rkey_of_heap(pe), first, second, mask, nbytes)

        return change

    @functools.cache
    def atomic(name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
        return nic_amo.atomic(name, update, dtype, g, change, fetch=fetch)

    @device
    def quiet():
        """Complete: every WQE is done, what it wrote is in the target's memory and what it read is here."""
        complete_all(_QUIET)

    @device
    def quiet_pe(pe):
        """Complete what goes to and comes from one PE."""
        complete_pe(_QUIET_PE, pe)

    @device
    def flush():
        """Sources are reusable: of a WQE nothing is known before it is done."""
        complete_all(_FLUSH)

    return SimpleNamespace(
        put=put, get=get, put_signal=put_signal, p=p, g=g, signal=signal, flag=flag, atomic=atomic, quiet=quiet, fence=quiet,
        strided=strided, quiet_pe=quiet_pe, flush=flush,
    )  # fmt: skip
