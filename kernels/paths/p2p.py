"""The p2p path: loads, stores, and atomics of the SM through the window (NVLink or PCIe, GPUDirect P2P).

Stores are asynchronous, so that a put and its non-blocking form are the same instructions; quiet is a fence.
"""

import functools
from typing import Any

from pgas.kernels.codes import Update
from pgas.kernels.combine import combine
from pgas.kernels.compiler import constant, device, element_size, element_words, ptx, types, u64
from pgas.kernels.scope import Scope
from pgas.kernels.window import remote


@functools.cache
def copy(unit: int, scope: Scope, *, get: bool = False) -> Any:
    """Make ``copy(dst, src, nbytes, first, step, deferred)``, where thread ``first`` of ``step`` copies its part; all u64.

    Both addresses and nbytes are multiples of ``unit``, a power of two up to 16 that follows from the dtype. If the addresses agree modulo
    16, accesses are 16 bytes wide, except for a head up to the first boundary and a tail. Otherwise they are ``unit`` bytes wide, or 4
    bytes if the addresses of smaller elements agree modulo 4.
    """
    runs = (ptx.get_run if get else ptx.put_run)[scope.suffix]
    if unit == 16:
        return _plain(16, runs)
    return _prefer(16, unit, runs, _plain(unit, runs) if unit >= 4 else _prefer(4, unit, runs, _plain(unit, runs)))


def _plain(unit: int, runs: dict[int, Any]) -> Any:
    run, _unit = runs[unit], constant(unit)

    @device
    def copy(dst, src, nbytes, first, step, deferred):
        run(dst, src, first, nbytes // _unit, step, deferred)

    return copy


def _prefer(width: int, unit: int, runs: dict[int, Any], otherwise: Any) -> Any:
    """Copy with accesses of ``width`` bytes if the addresses agree modulo width; otherwise call ``otherwise``."""
    run_unit, run_wide = runs[unit], runs[width]
    _0, _unit, _width, _mask = constant(0), constant(unit), constant(width), constant(width - 1)

    @device
    def copy(dst, src, nbytes, first, step, deferred):
        if (dst ^ src) & _mask == _0:
            head = min((_0 - dst) & _mask, nbytes)
            wide = (nbytes - head) // _width
            tail = head + wide * _width
            if head != _0:
                run_unit(dst, src, first, head // _unit, step, deferred)
            run_wide(dst + head, src + head, first, wide, step, deferred)
            if tail != nbytes:
                run_unit(dst + tail, src + tail, first, (nbytes - tail) // _unit, step, deferred)
        else:
            otherwise(dst, src, nbytes, first, step, deferred)

    return copy


@functools.cache
def copy_apart(itemsize: int, unit: int, *, get: bool = False) -> Any:
    """Make ``copy(dst, dst_step, src, src_step, nelems, first, step)``: elements that lie dst_step and src_step bytes apart.

    Thread ``first`` of ``step`` copies its part in accesses of ``unit`` bytes; neighboring threads make neighboring accesses.
    """
    single = (ptx.get_single if get else ptx.put_single)[unit]
    _parts, _unit = constant(itemsize // unit), constant(unit)

    @device
    def copy(dst, dst_step, src, src_step, nelems, first, step):
        i, end = first, nelems * _parts
        while i < end:
            element, offset = i // _parts, i % _parts * _unit
            single(dst + element * dst_step + offset, src + element * src_step + offset)
            i += step

    return copy


def put(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put(to, source, nbytes, pe, qp)``, called by all threads of the scope."""
    move, rank, size, sync = copy(unit, scope), scope.rank, scope.size, scope.sync

    @device
    def put(to, source, nbytes, pe, qp):
        move(remote(to, pe), source, nbytes, u64(rank()), u64(size()), nbi)
        if not nbi:
            sync()

    return put


def get(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``get(dest, origin, nbytes, pe, qp)``, called by all threads of the scope."""
    move, rank, size, sync = copy(unit, scope, get=True), scope.rank, scope.size, scope.sync

    @device
    def get(dest, origin, nbytes, pe, qp):
        move(dest, remote(origin, pe), nbytes, u64(rank()), u64(size()), nbi)
        if not nbi:
            sync()

    return get


def strided(name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
    """Make ``strided(raddr, raddr_step, laddr, laddr_step, nelems, pe)``, called by all threads of the scope.

    raddr is the address of the first element on PE pe, laddr that of the first local element. Steps are the distances of elements in bytes.
    """
    move, rank, size, sync = copy_apart(itemsize, unit, get=get), scope.rank, scope.size, scope.sync

    @device
    def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
        if get:
            move(laddr, laddr_step, raddr, raddr_step, nelems, u64(rank()), u64(size()))
        else:
            move(raddr, raddr_step, laddr, laddr_step, nelems, u64(rank()), u64(size()))
        sync()

    return strided


def put_signal(name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
    """Make ``put_signal(to, source, nbytes, word, value, add, pe)``, called by all threads of the scope."""
    move, rank, size, sync = copy(unit, scope), scope.rank, scope.size, scope.sync

    @device
    def put_signal(to, source, nbytes, word, value, add, pe):
        move(remote(to, pe), source, nbytes, u64(rank()), u64(size()), nbi)
        # Because of the barrier, the stores of all threads happen before the fence, which covers them (PTX ISA, causality order).
        sync()
        if rank() == 0:
            fence()
            signal(word, value, add, pe)

    return put_signal


def p(dtype: Any) -> Any:
    """Make ``p(addr, array, value, pe, qp)``: store one element of array's dtype."""
    return _p


@device
def _p(addr, array, value, pe, qp):
    ptx.st_element(remote(addr, pe), array, value)


def g(dtype: Any) -> Any:
    """Make ``g(addr, array, pe, qp)``: load one element of array's dtype."""
    return _g


@device
def _g(addr, array, pe, qp):
    return ptx.ld_element(remote(addr, pe), array)


def atomic(name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
    """Make ``atomic(addr, array, value, compare, pe)``, atomic with respect to every SM that can access the element.

    It returns the old value if ``fetch``, otherwise None. Aligned loads and stores are also atomic. For 2 bytes, PTX has only
    compare-and-swap and the addition of floats.
    """
    if update is Update.KEEP:

        @device
        def atomic(addr, array, value, compare, pe):
            return ptx.ld_element(remote(addr, pe), array)

    elif update is Update.COMPARE_SWAP:

        @device
        def atomic(addr, array, value, compare, pe):
            return ptx.atom_cas_element(remote(addr, pe), array, compare, value)

    elif (
        element_size(dtype) == 2
        and not (update is Update.ADD and not isinstance(dtype, types.Integer))
        and (fetch or update is not Update.SWAP)
    ):
        new = combine(update, dtype)

        @device
        def swapped(addr, array, value):
            old = ptx.ld_element(addr, array)
            while True:
                seen = ptx.atom_cas_element(addr, array, old, new(old, value))
                if element_words(array, seen)[0] == element_words(array, old)[0]:
                    return old
                old = seen

        if fetch:

            @device
            def atomic(addr, array, value, compare, pe):
                return swapped(remote(addr, pe), array, value)

        else:

            @device
            def atomic(addr, array, value, compare, pe):
                swapped(remote(addr, pe), array, value)

    else:
        change = _FETCHING[update] if fetch else _CHANGING[update]

        @device
        def atomic(addr, array, value, compare, pe):
            return change(remote(addr, pe), array, value)

    return atomic


_NAMES = {
    Update.ADD: "add", Update.SWAP: "exch", Update.AND: "and", Update.OR: "or", Update.XOR: "xor", Update.MIN: "min", Update.MAX: "max",
}  # fmt: skip
_FETCHING = {update: ptx.atom_element[name] for update, name in _NAMES.items()}
_CHANGING = {update: ptx.st_element if update is Update.SWAP else ptx.red_element[name] for update, name in _NAMES.items()}


@device
def signal(addr, value, add, pe):
    """Set or increase a signal word."""
    if add:
        ptx.red_add_sys_u64(remote(addr, pe), value)
    else:
        ptx.st_relaxed_sys_u64(remote(addr, pe), value)


@device
def flag(addr, value, pe):
    """Store a flag in PE pe's team memory, unordered: callers that need order must fence first."""
    ptx.st_relaxed_sys_u64(remote(addr, pe), value)


#: Complete: all stores of this thread, and all that happen before, are performed at their targets. The fence is sequentially consistent:
#: a later get cannot be served before it (store-buffer litmus).
quiet = ptx.fence_sc_sys


@device
def quiet_pe(pe):
    """Complete operations to PE pe. A fence covers all PEs, so this is quiet."""
    quiet()


#: No wait on a GPU, because the value of a store is loaded before the store is issued, so that sources are reusable.
flush = ptx.sources_read

#: Order stores: earlier ones are visible wherever a later one is.
fence = ptx.fence_sys


@device
def settle(op):
    """Do nothing, because stores of SMs are observed in order by any thread that acquires."""
