"""Copies through shared memory that a kernel lends (give_smem): cp.async.bulk in both directions, issued by one thread.

A thread that loads and stores is limited by the loads that its registers hold. A bulk copy needs one instruction for kilobytes, so that one
thread keeps tens of kilobytes in flight, as many as the shared memory holds (PTX ISA, "Asynchronous Data Copies").

The memory has a head, with an mbarrier for each stage and their phases, and the stages. A stage is loaded, which its mbarrier reports, and
then stored. It is loaded again when its store has read it. The order of ordinary accesses and of bulk copies (generic and async proxy):

- fence.proxy.async.global comes before the first load, so that the copy reads what this thread, or others before a barrier, stored.
- fence.proxy.async.shared::cta in give_smem keeps the program's earlier accesses to the array before the first load. After that, threads
  do not access the stages, so that no fence is needed between a load, its store, and the next load.
- The copy waits until all stores are complete. They are then ordered like this thread's own stores, by its fences or a barrier.
"""

import functools
from typing import Any

from pgas.kernels import layout, state
from pgas.kernels.codes import Comparison
from pgas.kernels.compiler import constant, device, ptx, u32, u64
from pgas.kernels.paths import p2p
from pgas.kernels.refusals import kind_of
from pgas.kernels.scope import BLOCK, THREAD, WARP, Scope

#: Number of stages: with more, of fewer bytes each, the issue of loads and stores limits a warp (1 MiB: 40 us with eight, 26 with four).
_STAGES = 4
#: Bytes of the head: an mbarrier for each stage, the bit of each one's phase, and a mark that tells given memory from other memory.
_HEAD, _PHASES, _MARK = constant(128), constant(layout.WORD * _STAGES), constant(layout.WORD * (_STAGES + 1))
_GIVEN = constant(0x70676173_736D656D)
#: Minimum number of bytes of an array: with the head aligned to 128 bytes, each stage has 128 bytes or more.
_LEAST = constant(2048)
#: Minimum number of bytes of a copy, by the scope that calls; ordinary accesses take less time for fewer.
_FROM = {THREAD: constant(512), WARP: constant(16 << 10), BLOCK: constant(64 << 10)}
#: Minimum number of bytes of a load, because each load and its store take about 0.1 us of the thread.
_PIECE = constant(2 << 10)

_0, _1, _2, _15 = (constant(c) for c in (0, 1, 2, 15))
_WORD, _BELOW_GRAIN = constant(layout.WORD), constant(127)  # stages begin at multiples of 128 bytes
_IN_ALL, _LAST, _SHIFT = constant(_STAGES), constant(_STAGES - 1), constant(_STAGES.bit_length() - 1)
_load, _store = ptx.ld_plain[8], ptx.st_plain[8]
_TIMED_OUT, _EQ = constant(state.TIMED_OUT), constant(Comparison.EQ)
_NO_SMEM, _NOT_GIVEN = constant(kind_of("no shared memory")), constant(kind_of("not given"))


@device
def _head_of(addr):
    return (addr + _BELOW_GRAIN) & ~_BELOW_GRAIN


@device
def _stage_of(addr, size):
    """Return the number of bytes of a stage of an array."""
    return (addr + size - _head_of(addr) - _HEAD) >> _SHIFT & ~_BELOW_GRAIN


def give(scope: Scope, op: int) -> Any:
    """Make ``give(addr, size)``: prepare an array in shared memory, called by all threads of the scope."""
    rank, sync, _op = scope.rank, scope.sync, constant(op)

    @device
    def give(addr, size):
        if rank() == 0:
            if size < _LEAST or ptx.is_shared(addr) == 0:
                state.fail(_NO_SMEM, _op, u64(state.my_pe()), addr, _LEAST, size, _0)
            else:
                at, i = _head_of(addr), _0
                while i < _IN_ALL:
                    ptx.mbarrier_init(at + i * _WORD)
                    i += _1
                _store(at + _PHASES, _0)
                _store(at + _MARK, _GIVEN)
                ptx.fence_mbarrier_init()
                ptx.fence_proxy_shared()
        sync()

    return give


@device
def _await(op, barrier, phase, at):
    """Wait until a load has landed; at: its source, for the report if it does not."""
    polls, deadline = u32(0), _0
    while ptx.bulk_landed(barrier, u32(phase)) == 0:
        polls = u32(polls + u32(1))
        if polls & state.POLLS_MASK == 0:
            if deadline == _0:
                deadline = ptx.globaltimer() + state.timeout_ns()
            if state.given_up(_TIMED_OUT, op, at, _EQ, _1, _0, deadline):
                break


@device
def _through(op, dst, src, nbytes, head, stage):
    """Copy nbytes, a multiple of 16 between multiples of 16, by one thread."""
    stages, phases = head + _HEAD, _load(head + _PHASES)
    piece = min(max((nbytes >> _2) + _BELOW_GRAIN & ~_BELOW_GRAIN, _PIECE), stage)  # at least four pieces of a message overlap
    ptx.fence_proxy_global()
    ahead, i = _0, _0
    while i < _IN_ALL and ahead < nbytes:
        size = min(piece, nbytes - ahead)
        ptx.bulk_load(stages + i * stage, src + ahead, u32(size), head + i * _WORD)
        ahead += size
        i += _1
    done, i = _0, _0
    while done < nbytes:
        _await(op, head + i * _WORD, phases >> i & _1, src + done)
        phases ^= _1 << i
        size = min(piece, nbytes - done)
        ptx.bulk_store(dst + done, stages + i * stage, u32(size))
        if done != _0 and ahead < nbytes:
            ptx.bulk_wait_read()  # then the stage before this one is free
            size, before = min(piece, nbytes - ahead), i + _LAST & _LAST
            ptx.bulk_load(stages + before * stage, src + ahead, u32(size), head + before * _WORD)
            ahead += size
        done += piece
        i = i + _1 & _LAST
    ptx.bulk_wait_all()
    _store(head + _PHASES, phases)


@functools.cache
def copy(scope: Scope, unit: int, op: int, *, get: bool, check: bool) -> Any:
    """Make ``copy(dst, src, nbytes, addr, size)``, called by all threads of the scope: like p2p.copy(), through the array at addr.

    Operands that do not agree modulo 16, small ones, and local ones that are not in global memory are copied by ordinary accesses.
    """
    plain, rank, size_of, _op, least = p2p.copy(unit, scope, get=get), scope.rank, scope.size, constant(op), _FROM[scope]

    @device
    def copy(dst, src, nbytes, addr, size):
        if check:
            if _load(_head_of(addr) + _MARK) != _GIVEN:
                state.fail(_NOT_GIVEN, _op, u64(state.my_pe()), addr, _0, _0, _0)
                return
        first, step = u64(rank()), u64(size_of())
        if nbytes >= least and (dst ^ src) & _15 == _0 and ptx.is_global(dst if get else src) != 0:
            start = (_0 - dst) & _15
            middle = nbytes - start & ~_15
            if rank() == 0:
                _through(_op, dst + start, src + start, middle, _head_of(addr), _stage_of(addr, size))
            plain(dst, src, start, first, step, False)
            plain(dst + start + middle, src + start + middle, nbytes - start - middle, first, step, False)
        else:
            plain(dst, src, nbytes, first, step, False)

    return copy
