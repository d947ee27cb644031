"""pgas: an NVSHMEM-style symmetric heap in GPU memory, with put, get and atomics for Numba CUDA kernels.

Start with README.md. ``__all__`` is what the library promises to keep.
"""

from pgas.backend import SIMULATOR

if SIMULATOR:
    from pgas.sim import engine

    engine.install()

from pgas import host_ops
from pgas._version import __version__
from pgas.amo import atomic_add, atomic_fetch_add
from pgas.array import SymmetricArray
from pgas.errors import BootstrapError, CompletionError, DeadlockError, DeviceError, HeapError, PgasError, PgasWarning, TransportError
from pgas.host import allgather_object, array, broadcast_object, empty, finalize, free, full, info, init, synchronize, zeros
from pgas.jit import jit, launch
from pgas.query import my_pe, n_pes, ptr
from pgas.registration import register, unregister
from pgas.rma import (
    g,
    get,
    get_block,
    get_nbi,
    get_nbi_block,
    get_nbi_warp,
    get_warp,
    iget,
    iget_block,
    iget_warp,
    iput,
    iput_block,
    iput_warp,
    p,
    put,
    put_block,
    put_nbi,
    put_nbi_block,
    put_nbi_warp,
    put_warp,
)
from pgas.signal import (
    SIGNAL_ADD,
    SIGNAL_SET,
    put_signal,
    put_signal_block,
    put_signal_nbi,
    put_signal_nbi_block,
    put_signal_nbi_warp,
    put_signal_warp,
    signal_op,
    signal_wait_until,
)
from pgas.sync import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    barrier_all,
    barrier_all_block,
    barrier_all_warp,
    fence,
    flush,
    quiet,
    quiet_pe,
    sync_all,
    sync_all_block,
    sync_all_warp,
    wait_until,
)

host_ops.bind()

__all__ = [
    "EQ",
    "GE",
    "GT",
    "LE",
    "LT",
    "NE",
    "SIGNAL_ADD",
    "SIGNAL_SET",
    "SIMULATOR",
    "BootstrapError",
    "CompletionError",
    "DeadlockError",
    "DeviceError",
    "HeapError",
    "PgasError",
    "PgasWarning",
    "SymmetricArray",
    "TransportError",
    "__version__",
    "allgather_object",
    "array",
    "atomic_add",
    "atomic_fetch_add",
    "barrier_all",
    "barrier_all_block",
    "barrier_all_warp",
    "broadcast_object",
    "empty",
    "fence",
    "finalize",
    "flush",
    "free",
    "full",
    "g",
    "get",
    "get_block",
    "get_nbi",
    "get_nbi_block",
    "get_nbi_warp",
    "get_warp",
    "iget",
    "iget_block",
    "iget_warp",
    "info",
    "init",
    "iput",
    "iput_block",
    "iput_warp",
    "jit",
    "launch",
    "my_pe",
    "n_pes",
    "p",
    "ptr",
    "put",
    "put_block",
    "put_nbi",
    "put_nbi_block",
    "put_nbi_warp",
    "put_signal",
    "put_signal_block",
    "put_signal_nbi",
    "put_signal_nbi_block",
    "put_signal_nbi_warp",
    "put_signal_warp",
    "put_warp",
    "quiet",
    "quiet_pe",
    "register",
    "signal_op",
    "signal_wait_until",
    "sync_all",
    "sync_all_block",
    "sync_all_warp",
    "synchronize",
    "unregister",
    "wait_until",
    "zeros",
]  # fmt: skip
