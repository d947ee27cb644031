"""The public API, with its docstrings. ``__all__`` is the stable API; ``pgas`` exports the same names."""

from pgas.api import bound, host_collectives, host_ops, host_waits
from pgas.api.amo import *
from pgas.api.collective import *
from pgas.api.host import *
from pgas.api.jit import jit, launch
from pgas.api.lock import *
from pgas.api.query import *
from pgas.api.reduction import *
from pgas.api.registration import *
from pgas.api.rma import *
from pgas.api.signal import *
from pgas.api.sync import *
from pgas.api.team import *
from pgas.api.wait import *
from pgas.base import tracebacks
from pgas.base.backend import SIMULATOR
from pgas.base.errors import *
from pgas.base.version import __version__
from pgas.job.health import inquiry
from pgas.job.memory.array import SymmetricArray
from pgas.kernels.compiler import cuda
from pgas.kernels.compiler.binding import BINDER, WRAPPERS
from pgas.kernels.ops import traced

host_ops.bind()
host_waits.bind()
host_collectives.bind()
BINDER.append(bound.bind)
WRAPPERS.append(traced.of_call)
tracebacks.hide_from_pytest()
inquiry.survive()

# Written out, because mypy does not follow lists of other modules.
__all__ = [
    "AND", "BootstrapError", "CompletionError", "DeadlockError", "DeviceError", "EQ", "GE", "GT", "HeapError", "LE", "LT", "MAX", "MIN",
    "NE", "OR", "PROD", "PgasError", "PgasWarning", "SIGNAL_ADD", "SIGNAL_SET", "SIMULATOR", "SUM", "SymmetricArray", "TEAM_NODE",
    "TEAM_SAME_LOCAL", "TEAM_SHARED", "TEAM_WORLD", "Team", "TransportError", "XOR", "__version__", "allgather_object", "alltoall",
    "alltoall_block", "alltoall_warp", "alltoallv", "alltoallv_block", "alltoallv_warp", "array", "atomic_add", "atomic_and",
    "atomic_compare_swap", "atomic_fetch", "atomic_fetch_add", "atomic_fetch_and", "atomic_fetch_inc", "atomic_fetch_max",
    "atomic_fetch_min", "atomic_fetch_or", "atomic_fetch_xor", "atomic_inc", "atomic_max", "atomic_min", "atomic_or", "atomic_set",
    "atomic_swap", "atomic_xor", "barrier", "barrier_all", "barrier_all_block", "barrier_all_warp", "barrier_block", "barrier_warp",
    "broadcast", "broadcast_block", "broadcast_object", "broadcast_warp", "clear_lock", "collect", "collect_block", "collect_warp", "cuda",
    "empty", "empty_like", "exscan", "exscan_block", "exscan_warp", "fcollect", "fcollect_block", "fcollect_warp", "fence", "finalize",
    "flush", "free", "full", "full_like", "g", "get", "get_block", "get_nbi", "get_nbi_block", "get_nbi_warp", "get_warp", "give_smem",
    "give_smem_block", "give_smem_warp", "iget", "iget_block", "iget_warp", "info", "init", "inscan", "inscan_block", "inscan_warp", "iput",
    "iput_block", "iput_warp", "jit", "launch", "maxloc", "maxloc_block", "maxloc_warp", "minloc", "minloc_block", "minloc_warp", "my_pe",
    "n_pes", "ones", "p", "ptr", "put", "put_block", "put_nbi", "put_nbi_block", "put_nbi_warp", "put_signal", "put_signal_block",
    "put_signal_nbi", "put_signal_nbi_block", "put_signal_nbi_warp", "put_signal_warp", "put_warp", "quiet", "quiet_pe", "reduce",
    "reduce_block", "reduce_warp", "reducescatter", "reducescatter_block", "reducescatter_warp", "register", "reset", "set_lock",
    "signal_fetch", "signal_op", "signal_wait_until", "sync_all", "sync_all_block", "sync_all_warp", "synchronize", "team_create",
    "team_destroy", "team_my_pe", "team_n_pes", "team_split_2d", "team_split_strided", "team_sync", "team_sync_block", "team_sync_warp",
    "team_translate_pe", "test", "test_all", "test_all_vector", "test_any", "test_any_vector", "test_lock", "test_some", "test_some_vector",
    "unique_id", "unregister", "wait_until", "wait_until_all", "wait_until_all_vector", "wait_until_any", "wait_until_any_vector",
    "wait_until_some", "wait_until_some_vector", "zeros", "zeros_like",
]  # fmt: skip
