"""Two transports in one job: p2p between PEs that map each other's memory, a NIC between all others.

Every function first checks whether the PE's memory is mapped (state.near) and then uses one of the paths. All threads of a scope pass the
same PE. Functions without a PE (quiet, flush, fence) act on both paths.

Atomics of a NIC are not atomic with respect to those of an SM. Therefore, the NIC performs all atomics, including adding signals, even on
near PEs and on this PE itself; with PGAS_AMO=peer, SMs perform those on near PEs. A signal that sets its word takes the path of its data,
because it is a store of 8 bytes, which neither an SM nor a NIC tears.
"""

import functools
from collections.abc import Callable
from typing import Any

from pgas.kernels import window
from pgas.kernels.codes import Update
from pgas.kernels.compiler import device
from pgas.kernels.paths.transport import Path
from pgas.kernels.scope import Scope
from pgas.kernels.state import near


class TwoPaths:
    """The path of a job with two transports (transport.Path)."""

    def __init__(self, mapped: Path, nic: Path) -> None:
        self._mapped, self._nic = mapped, nic
        self._by_peers = window.constants().atomics_by_peers
        self.signal, self.flag = self._signals()
        self.quiet, self.quiet_pe, self.flush, self.fence = self._orders()
        self.settle = nic.settle

    def put(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        by_stores, by_nic = (path.put(name, scope, unit, nbi=nbi) for path in (self._mapped, self._nic))

        @device
        def put(to, source, nbytes, pe, qp):
            if near(pe):
                by_stores(to, source, nbytes, pe, qp)
            else:
                by_nic(to, source, nbytes, pe, qp)

        return put

    def get(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        by_loads, by_nic = (path.get(name, scope, unit, nbi=nbi) for path in (self._mapped, self._nic))

        @device
        def get(dest, origin, nbytes, pe, qp):
            if near(pe):
                by_loads(dest, origin, nbytes, pe, qp)
            else:
                by_nic(dest, origin, nbytes, pe, qp)

        return get

    def strided(self, name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
        by_stores, by_nic = (path.strided(name, scope, itemsize, unit, get=get) for path in (self._mapped, self._nic))

        @device
        def strided(raddr, raddr_step, laddr, laddr_step, nelems, pe):
            if near(pe):
                by_stores(raddr, raddr_step, laddr, laddr_step, nelems, pe)
            else:
                by_nic(raddr, raddr_step, laddr, laddr_step, nelems, pe)

        return strided

    def put_signal(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        """Data and signal must take the same path: if the NIC performs the signal, it also moves the data."""
        by_stores, by_nic = (path.put_signal(name, scope, unit, nbi=nbi) for path in (self._mapped, self._nic))
        stored = self._stored()

        @device
        def put_signal(to, source, nbytes, word, value, add, pe):
            if stored(add, pe):
                by_stores(to, source, nbytes, word, value, add, pe)
            else:
                by_nic(to, source, nbytes, word, value, add, pe)

        return put_signal

    def p(self, dtype: Any) -> Any:
        by_stores, by_nic = self._mapped.p(dtype), self._nic.p(dtype)

        @device
        def p(addr, array, value, pe, qp):
            if near(pe):
                by_stores(addr, array, value, pe, qp)
            else:
                by_nic(addr, array, value, pe, qp)

        return p

    def g(self, dtype: Any) -> Any:
        by_loads, by_nic = self._mapped.g(dtype), self._nic.g(dtype)

        @device
        def g(addr, array, pe, qp):
            if near(pe):
                return by_loads(addr, array, pe, qp)
            return by_nic(addr, array, pe, qp)

        return g

    def atomic(self, name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
        by_nic = self._nic.atomic(name, update, dtype, fetch=fetch)
        if not self._by_peers:
            return by_nic
        by_peers = self._mapped.atomic(name, update, dtype, fetch=fetch)

        @device
        def atomic(addr, array, value, compare, pe):
            if near(pe):
                return by_peers(addr, array, value, compare, pe)
            return by_nic(addr, array, value, compare, pe)

        return atomic

    def _stored(self) -> Any:
        """Make ``stored(add, pe)``: whether the SM performs a signal by a store or an atomic."""
        by_peers = self._by_peers

        @device
        def stored(add, pe):
            return (by_peers or not add) and near(pe)

        return stored

    def _signals(self) -> tuple[Any, Any]:
        stored = self._stored()
        near_signal, far_signal, near_flag, far_flag = self._mapped.signal, self._nic.signal, self._mapped.flag, self._nic.flag

        @device
        def signal(addr, value, add, pe):
            if stored(add, pe):
                near_signal(addr, value, add, pe)
            else:
                far_signal(addr, value, add, pe)

        @device
        def flag(addr, value, pe):
            if near(pe):
                near_flag(addr, value, pe)
            else:
                far_flag(addr, value, pe)

        return signal, flag

    def _orders(self) -> tuple[Any, Any, Any, Any]:
        """Make quiet(), quiet_pe(), flush(), and fence(): first the stores, then the NIC."""
        near_quiet, far_quiet, far_quiet_pe = self._mapped.quiet, self._nic.quiet, self._nic.quiet_pe
        near_flush, far_flush, near_fence, far_fence = self._mapped.flush, self._nic.flush, self._mapped.fence, self._nic.fence

        @device
        def quiet():
            near_quiet()
            far_quiet()

        @device
        def quiet_pe(pe):
            """The NIC also performs atomics on near PEs."""
            near_quiet()
            far_quiet_pe(pe)

        @device
        def flush():
            near_flush()
            far_flush()

        @device
        def fence():
            near_fence()
            far_fence()

        return quiet, quiet_pe, flush, fence


@functools.cache
def of(mapped: str, nic: str, load: Callable[[str], Path]) -> TwoPaths:
    """Return the path of a job with these two. load: returns the path of a module."""
    return TwoPaths(load(mapped), load(nic))
