"""Device functions of the job's transport: its path, which is a module such as p2p.py.

Every path is a module with the functions of Path; a job with two transports has an object with these functions (two.py). They make device
functions for one scope, element size, or dtype, which the operations (kernels/ops) call.
"""

from importlib import import_module
from typing import Any, Protocol, cast

from pgas.kernels import window
from pgas.kernels.codes import Update
from pgas.kernels.scope import Scope

_P2P = "pgas.kernels.paths.p2p"


class Path(Protocol):
    """What a path provides to the operations."""

    def put(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        """Make ``put(to, source, nbytes, pe, qp)``; unit: common divisor of both addresses and nbytes."""

    def get(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        """Make ``get(dest, origin, nbytes, pe, qp)``."""

    def strided(self, name: str, scope: Scope, itemsize: int, unit: int, *, get: bool) -> Any:
        """Make ``strided(raddr, raddr_step, laddr, laddr_step, nelems, pe)``."""

    def put_signal(self, name: str, scope: Scope, unit: int, *, nbi: bool) -> Any:
        """Make ``put_signal(to, source, nbytes, word, value, add, pe)``."""

    def p(self, dtype: Any) -> Any:
        """Make ``p(addr, array, value, pe, qp)``."""

    def g(self, dtype: Any) -> Any:
        """Make ``g(addr, array, pe, qp)``."""

    def atomic(self, name: str, update: Update, dtype: Any, *, fetch: bool) -> Any:
        """Make ``atomic(addr, array, value, compare, pe)``."""

    #: Device functions: ``signal(addr, value, add, pe)``, ``flag(addr, value, pe)`` of the barrier, ``quiet_pe(pe)``; quiet, flush, and
    #: fence have no arguments; for settle(op), see settle().
    signal: Any
    flag: Any
    quiet: Any
    quiet_pe: Any
    flush: Any
    fence: Any
    settle: Any


def current() -> Path:
    """Return the path of the job's transport, imported only now, so that a job does not import the others."""
    constants = window.constants()
    if not two_paths():
        return _module(constants.path)
    from pgas.kernels.paths import two

    return two.of(constants.path, constants.far_path, _module)


def _module(name: str) -> Path:
    return cast(Path, import_module(name))


def settle() -> Any:
    """Return ``settle(op)``, called at the end of a wait for a word that a NIC writes.

    Some GPUs, such as the A100, may observe NIC writes out of order: a signal before its data, or a completion before the fetched data. If
    the NIC reads GPU memory, its earlier writes become visible first. Therefore, settle() posts such a read and waits for it. On GPUs that
    observe the writes in order (window.SETTLES is False), it does nothing.
    """
    return (current() if window.constants().settles else _module(_P2P)).settle


def maps_peers() -> bool:
    """Whether kernels access other PEs' memory by address; in a job with two transports, only that of near PEs (state.near)."""
    return window.constants().maps_peers


def two_paths() -> bool:
    """Whether the path of an operation depends on its PE."""
    return window.constants().far_path != ""


def queue_pairs() -> int | None:
    """Return the number of queue pairs of a NIC transport from each PE to each PE; None without a NIC."""
    return window.constants().num_qps or None
