"""The host API: starting and ending a job, symmetric arrays, and small exchanges among PEs."""

import pickle
from typing import Any

import numpy as np

from pgas.api.host_only import host_only
from pgas.api.values import check_value
from pgas.base.backend import SIMULATOR
from pgas.base.errors import BootstrapError
from pgas.base.version import __version__
from pgas.job import meeting, recovery, runtime
from pgas.job.array import SymmetricArray, dtype_of
from pgas.job.heap import ALIGNMENT

__all__ = [
    "allgather_object", "array", "broadcast_object", "empty", "empty_like", "finalize", "free", "full", "full_like", "info", "init",
    "reset", "synchronize", "unique_id", "zeros", "zeros_like",
]  # fmt: skip


@host_only
def init(
    comm: Any = None, *, unique_id: bytes | None = None, rank: int | None = None, size: int | None = None, process_group: Any = None
) -> runtime.Job:
    """Start pgas: form the job, bind a GPU, map the symmetric heap. Collective (OpenSHMEM 1.5, section 9.1 shmem_init).

    Calls may be nested: the job ends at the finalize() of the first. After that, init() may start another with the same
    configuration. The environment variables that ``python -m pgas info`` lists are read here.

    Without arguments the launcher's variables say who the PEs are: those of ``python -m pgas.run``, torchrun, srun, mpirun, in this order;
    a process that no launcher started is a job of one PE. mpi4py is imported only under mpirun, or where comm is given.

    A child that is forked afterwards (os.fork, multiprocessing's fork) is no PE: it is refused every call, launch and use of arrays with a
    PgasError, and its end is nothing to the job. But memory is shared: in the simulator a NumPy view of an array that the parent made
    before still reaches the job's heap. A program that imports mpi4py.MPI before pgas.init() ends such children by os._exit, as
    multiprocessing does: mpi4py finalizes MPI at the end of every process otherwise.

    This and every other collective call of the host waits as long as it takes. When that is longer than PGAS_TIMEOUT, one of the PEs that
    wait prints once which PEs have not come, in which call, and whether their processes are stopped.

    Args:
        comm: an mpi4py intracommunicator whose processes are the PEs, by rank. In a nested call: one of the job's processes in their
            order, or nothing.
        unique_id: what unique_id() returned on one PE; with rank and size.
        rank: of this PE.
        size: number of PEs.
        process_group: a torch.distributed process group whose processes are the PEs, by rank.

    Returns:
        The job, a context manager: the end of its block frees the arrays that are left, and finalizes.

    Raises:
        ValueError: an environment variable has a value that is not allowed, or two contradict each other; comm is not that of the job
            that is active; arguments that exclude each other, or a unique_id that is none.
        BootstrapError: MPI is missing or another one than mpirun's; the store of a job without MPI is not reached within PGAS_TIMEOUT, or
            refuses this process; PEs were started differently; another PE failed.
        TransportError: PGAS_TRANSPORT names one that cannot connect these PEs; PEs share a GPU without MPS.
        HeapError: the heaps of a machine's or a GPU's PEs are larger than its memory, or there is too little left of it.
        PgasError: an earlier job of this process had another configuration.

    Warns:
        PgasWarning: on PE 0, nothing reads a PGAS_ variable that is set, or PGAS_HCA names no device of this machine; a PE and the software
            card's kernel share a GPU without MPS.
    """
    if sum(given is not None for given in (comm, unique_id, process_group)) > 1:
        raise ValueError("pgas.init: one of comm, unique_id and process_group may be given")
    if len({unique_id is None, rank is None, size is None}) > 1:
        raise ValueError("pgas.init: unique_id, rank and size are given together")
    given = None
    if process_group is not None:
        given = meeting.of_process_group(process_group) if not runtime.active() else None
    elif unique_id is not None:
        if not isinstance(rank, (int, np.integer)) or not isinstance(size, (int, np.integer)) or not 0 <= rank < size:
            raise ValueError(f"pgas.init: rank must be an integer from 0 to size - 1, not rank={rank!r} with size={size!r}")
        given = meeting.Given(unique_id, int(rank), int(size))
    return runtime.init(comm, given)


@host_only
def unique_id(host: str | None = None) -> bytes:
    """Return 128 bytes by which processes form a job, whatever started them: one calls this, all pass it to pgas.init(unique_id=).

    The process that calls it serves the store at which the PEs meet, until it ends; it need not be a PE. The bytes hold the job's secret:
    who has them may join. NVSHMEM: nvshmemx_get_uniqueid.

    Args:
        host: address or name of this machine at which the others reach it; None: the address of the interface of the default route.

    Raises:
        BootstrapError: host is no address of this machine.
    """
    return meeting.unique_id(host)


@host_only
def finalize() -> None:
    """End pgas: complete all operations, wait for all PEs, release the heap. Collective (OpenSHMEM 1.5, section 9.1 shmem_finalize).

    Arrays must not be used afterwards. A program that ends without it is finalized then, and at the end of ``with pgas.init():``, also by
    SystemExit with status 0. Another exit status is the job's; PEs that have not come to their ends within seconds are ended. So are all
    PEs by an exception that nobody catches, and by the death of a PE: why is said once on each machine.

    Warns:
        PgasWarning: on PE 0, symmetric arrays were never freed: a line for each, with the line that allocated it. At the end of
            ``with pgas.init()`` under PGAS_DEBUG=check only.

    Raises:
        DeviceError: a kernel of this PE found an error.
    """
    runtime.finalize()


@host_only
def reset() -> None:
    """Make the job usable again after a DeviceError or CompletionError. Collective: all PEs call it, whether an error was theirs or not.

    Until then every launch and every collective call of the PE that made the error raises it again. A PE that calls something else
    meanwhile gets a BootstrapError there, and is waited for here.

    Waits of kernels that still run end, as after an error, and the kernels are waited for. Operations that were not complete on some PE
    may be performed in part or not at all: what they were to write, also at other PEs, is undefined, signals and atomics included. All
    else on the heap keeps its values, arrays and registered memory stay. Barriers in kernels count from the beginning, and nothing is
    outstanding on the NIC.

    Raises:
        PgasError: on every PE: the job cannot be made usable again, and why: a PE or the software card has ended, a GPU's context is lost
            (a CUDA error), an exception made a PE leave a collective call, a kernel does not end within PGAS_TIMEOUT, or a NIC refuses.
    """
    recovery.reset(runtime.current())


@host_only
def synchronize(stream: Any = None) -> None:
    """Wait until this PE's kernels have ended, and raise what they found wrong.

    Polls, so that Ctrl-C and the death of a peer are noticed.

    Args:
        stream: whose kernels; None for all of them.

    Raises:
        DeviceError: a kernel poisoned the device state: a wait past its deadline, a bad PE or address.
        PgasError: a peer died.
    """
    runtime.current().synchronize(stream)


@host_only
def empty(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array whose elements are not set. Collective: all PEs ask for the same (OpenSHMEM 1.5, shmem_malloc).

    Where it does not fit, the heap grows behind its end, by PGAS_CUMEM_GRANULARITY or a multiple, to PGAS_MAX_MEMORY_PER_GPU at most;
    no array moves. Kernels that are launched afterwards can use what was added, those that run meanwhile cannot. It is the heap's until
    finalize(), also when the arrays in it are freed.

    Args:
        shape: int or tuple of ints; may hold zeros.
        dtype: NumPy dtype of plain numbers, or records of them, or its name; bfloat16 is that of ml_dtypes.
        alignment: in bytes, a power of two; at least 512 are given.

    Raises:
        ValueError, TypeError: bad shape, dtype or alignment.
        HeapError: the heap is exhausted and may not or cannot grow (the text names the PE that has no memory), or PEs ask for different
            arrays; on every PE, the heap is as before.
    """
    return runtime.current().allocate(shape, dtype, "pgas.empty", None, alignment)


@host_only
def zeros(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array of zeros; every PE's instance is zeroed before any PE returns. As empty() (shmem_calloc)."""
    job = runtime.current()
    return job.allocate(shape, dtype, "pgas.zeros", lambda a: job.memory.fill(job.address(a), a.nbytes, 0), alignment)


@host_only
def full(shape: Any, value: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array filled with a value, of its dtype if none is given. As empty().

    Raises:
        TypeError, ValueError: an element cannot hold the value; as empty().
    """
    dtype = np.asarray(value).dtype if dtype is None else dtype
    return runtime.current().allocate(shape, dtype, "pgas.full", lambda a: a.copy_to_device(_filled(a, value)), alignment)


def _filled(array: SymmetricArray, value: Any) -> np.ndarray:
    """Return what full() copies to a new array."""
    if isinstance(value, (str, bytes)) or (np.ndim(value) == 0 and array.dtype.kind in "iu"):
        check_value("full", "value", value, array.dtype)
    with np.errstate(over="ignore"):  # a float that is too large for the elements is infinite in them
        return np.full(array.shape, value, array.dtype)


@host_only
def array(values: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array that holds a copy of this PE's values; shape and dtype are the same on all PEs. As empty()."""
    try:
        host = np.ascontiguousarray(values, None if dtype is None else dtype_of(dtype)).reshape(np.shape(values))
    except OverflowError as error:
        raise ValueError(f"pgas.array: values must be numbers that elements of type {dtype_of(dtype)} can hold: {error}") from None
    return runtime.current().allocate(host.shape, host.dtype, "pgas.array", lambda a: a.copy_to_device(host), alignment)


@host_only
def empty_like(prototype: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return empty() with the shape and dtype of an array; in C order, as all symmetric arrays.

    Args:
        prototype: array of NumPy, the heap or another library: whatever has a shape and a dtype.
        dtype: instead of the prototype's.
        shape: instead of the prototype's.
        alignment: as empty().

    Raises:
        TypeError: prototype has no shape or no dtype, or a dtype that cannot live on the heap.
        ValueError, HeapError: as empty().
    """
    return empty(*_like("empty_like", prototype, shape, dtype), alignment=alignment)


@host_only
def zeros_like(prototype: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return zeros() with the shape and dtype of an array. As empty_like()."""
    return zeros(*_like("zeros_like", prototype, shape, dtype), alignment=alignment)


@host_only
def full_like(prototype: Any, value: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return full() with the shape and dtype of an array. As empty_like()."""
    shape, dtype = _like("full_like", prototype, shape, dtype)
    return full(shape, value, dtype, alignment=alignment)


def _like(function: str, prototype: Any, shape: Any, dtype: Any) -> tuple[Any, Any]:
    """Return shape and dtype, those of the prototype where none is given."""
    if not hasattr(prototype, "shape") or not hasattr(prototype, "dtype"):
        raise TypeError(f"pgas.{function}: prototype must have a shape and a dtype, as arrays do, not {type(prototype).__name__}")
    return prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype


@host_only
def free(array: SymmetricArray) -> None:
    """Give a symmetric array back. Collective; waits for this PE's kernels first (OpenSHMEM 1.5, shmem_free).

    Every later use of the array or of a view of it is refused. ``with pgas.zeros(4) as a:`` frees at the end of the block, unless an
    exception leaves it: other PEs may not come to that point, so that the array stays until the job ends.

    Args:
        array: what empty(), zeros(), full() or array() returned, not a view of another shape, dtype or of a part.

    Raises:
        ValueError: no symmetric array, or a view.
        HeapError: freed before, or PEs free different arrays, or the call failed on another PE.
    """
    runtime.current().free(array)


SymmetricArray._free = free


@host_only
def allgather_object(value: Any) -> list[Any]:
    """Return the (picklable, small) values of all PEs, by PE. Collective.

    Raises:
        BootstrapError: on every PE: the value of one of them cannot be pickled, or PEs make different collective calls. On the PEs where
            that fails: a value cannot be unpickled.
    """
    return _exchange("allgather_object", value)


@host_only
def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return PE root's (picklable, small) value; those of other PEs are ignored. Collective. Raises as allgather_object()."""
    job = runtime.current()
    job.check_pe("broadcast_object", root, "root")
    return _exchange("broadcast_object", value if job.my_pe == root else None, f"root={int(root)}")[root]


def _exchange(function: str, value: Any, arguments: str = "") -> list[Any]:
    data, failure = b"", None
    try:
        data = pickle.dumps(value)
    except Exception as error:
        failure = BootstrapError(f"pgas.{function}: value cannot be pickled: {type(error).__name__}: {error}")
        failure.__cause__ = error
    met = runtime.current().agree(f"pgas.{function}({arguments})", value=data, failure=failure)
    return [_unpickled(function, pe, data) for pe, data in enumerate(met)]


def _unpickled(function: str, pe: int, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise BootstrapError(f"pgas.{function}: the value of PE {pe} cannot be unpickled: {type(error).__name__}: {error}") from error


@host_only
def info() -> dict[str, Any]:
    """Return what a benchmark should say of where it ran: machine, GPU, transport, adapter, engine, number of PEs, versions."""
    import importlib.metadata
    import platform

    job = runtime.current()
    packages = ("numba", "numba-cuda", "numpy", "cuda-bindings", "mpi4py")
    versions = {"pgas": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    gpu = None if SIMULATOR else job.pes[0].gpu_name
    adapter, engine = (None, None) if job.nic is None else (job.nic.name, job.nic.engine)
    return {
        "machine": gpu or f"simulator on {platform.machine()} ({platform.processor() or platform.system()})",
        "gpu": gpu,
        "gpus": len({pe.gpu for pe in job.pes}),
        "transport": job.transport,
        "adapter": adapter,
        "engine": engine,
        "npes": job.n_pes,
        "versions": versions,
    }
