"""Starting and ending a job, its PEs, versions, and enumerations (nvshmem4py's init_fini, direct, and nvshmem_types)."""

from collections import namedtuple
from enum import IntEnum
from typing import Any

import numpy as np

from pgas import api
from pgas.base.launcher import launched
from pgas.job import runtime
from pgas.nvshmem.core import memory, teams
from pgas.nvshmem.core.device.numba import SmemAmount

__all__ = [
    "BufferTypes", "ComparisonType", "InitStatus", "NvshmemError", "NvshmemInvalid", "SignalOp", "SmemAmount", "ThreadSupport", "UniqueID",
    "Version", "finalize", "get_name", "get_unique_id", "get_version", "init", "init_status", "my_pe", "n_pes", "query_thread",
]  # fmt: skip

#: The release of nvshmem4py whose names these are.
NAMES_OF = "0.4.1"

NvshmemError, NvshmemInvalid = api.PgasError, ValueError
my_pe, n_pes = api.my_pe, api.n_pes
BufferTypes = IntEnum("BufferTypes", ["NORMAL", "PEER", "MULTIMEM", "EXTERNAL"], start=0)
ComparisonType = IntEnum("ComparisonType", ["CMP_EQ", "CMP_NE", "CMP_GT", "CMP_LE", "CMP_LT", "CMP_GE"], start=0)
InitStatus = IntEnum("InitStatus", ["STATUS_NOT_INITIALIZED", "STATUS_IS_BOOTSTRAPPED", "STATUS_IS_INITIALIZED"], start=0)
SignalOp = IntEnum("SignalOp", {"SIGNAL_SET": int(api.SIGNAL_SET), "SIGNAL_ADD": int(api.SIGNAL_ADD)})
ThreadSupport = IntEnum("ThreadSupport", ["THREAD_SINGLE", "THREAD_FUNNELED", "THREAD_SERIALIZED", "THREAD_MULTIPLE"], start=0)
Version = namedtuple("Version", "openshmem_spec_version nvshmem4py_version libnvshmem_version")


class UniqueID:
    """The 128 bytes of pgas.unique_id(); programs send ``_data`` to other processes."""

    def __init__(self) -> None:
        self._data: Any = np.zeros(1, [("version", np.int32), ("internal", np.int8, (124,))]).view(np.recarray)


def get_unique_id(empty: bool = False) -> UniqueID:
    """Return an ID with which processes form a job, or an empty one."""
    made = UniqueID()
    if not empty:
        made._data.view(np.uint8)[:] = np.frombuffer(api.unique_id(), np.uint8)
    return made


def init(
    device: Any = None, uid: Any = None, rank: int | None = None, nranks: int | None = None, mpi_comm: Any = None,
    initializer_method: str = "", process_group: Any = None,
) -> None:  # fmt: skip
    """Start pgas with an MPI communicator, a unique ID, or a torch.distributed process group. Collective.

    Without mpi_comm, the methods mpi and emulated_mpi take the PEs of the launcher: mpirun, pgas.run, torchrun, or srun.
    """
    if initializer_method not in ("mpi", "emulated_mpi", "uid", "process_group"):
        raise ValueError(
            f"nvshmem.core.init: initializer_method must be mpi, emulated_mpi, uid, or process_group, not {initializer_method!r}"
        )
    if device is not None:
        device.set_current()
    if initializer_method == "uid":
        api.init(unique_id=None if uid is None else uid._data.tobytes(), rank=rank, size=nranks)
        return
    if initializer_method == "process_group":
        api.init(process_group=process_group)
        return
    job = launched()
    if mpi_comm is not None and job is not None and job.launcher == "pgas.run" and mpi_comm.Get_size() != job.size:
        raise ValueError(
            f"nvshmem.core.init: mpi_comm has {mpi_comm.Get_size()} process, but pgas.run started {job.size}; start a program that uses "
            f"MPI with mpirun -n {job.size} python -m pgas.run --as-nvshmem PROGRAM"
        )
    api.init(mpi_comm)


def finalize() -> None:
    """End pgas. Collective."""
    api.finalize()
    if not runtime.active():
        memory.forget()
        teams.forget()


def init_status() -> InitStatus:
    """Return whether pgas is initialized."""
    return InitStatus.STATUS_IS_INITIALIZED if runtime.active() else InitStatus.STATUS_NOT_INITIALIZED


def query_thread() -> ThreadSupport:
    """Return how threads may call pgas: one at a time."""
    return ThreadSupport.THREAD_SERIALIZED


def get_version() -> Version:
    """Return the versions of OpenSHMEM, of the names, and of pgas."""
    return Version("1.5", NAMES_OF, api.__version__)


def get_name() -> str:
    """Return the library's name."""
    return "pgas"
