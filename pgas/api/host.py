"""The host API: starting and ending a job, symmetric arrays, and small exchanges among PEs."""

import pickle
from typing import Any

import numpy as np

from pgas.api.host_only import host_only
from pgas.api.values import check_value
from pgas.base.backend import SIMULATOR
from pgas.base.errors import BootstrapError
from pgas.base.version import __version__
from pgas.job import recovery, runtime
from pgas.job.bootstrap import rendezvous
from pgas.job.memory.array import SymmetricArray, dtype_of
from pgas.job.memory.heap import ALIGNMENT
from pgas.job.paths import streams

__all__ = [
    "allgather_object", "array", "broadcast_object", "empty", "empty_like", "finalize", "free", "full", "full_like", "info", "init",
    "ones", "reset", "synchronize", "unique_id", "zeros", "zeros_like",
]  # fmt: skip


@host_only
def init(
    comm: Any = None, *, unique_id: bytes | None = None, rank: int | None = None, size: int | None = None, process_group: Any = None
) -> runtime.Job:
    """Start pgas: form the job, bind a GPU, map the symmetric heap. Collective (OpenSHMEM 1.5, "SHMEM_INIT").

    Calls may be nested: the job ends at the finalize() that matches the first init(). After that, init() may start another with the same
    configuration. It reads the environment variables that ``python -m pgas info`` lists.

    Without arguments the launcher's variables define the PEs: those of ``python -m pgas.run``, torchrun, srun, mpirun, in this order. A
    process without a launcher is a job of one PE. mpi4py is imported only under mpirun, or with comm.

    A child forked afterwards (os.fork, multiprocessing's fork) is not a PE. Every call, launch and array access in it raises PgasError, and
    the job does not notice its end. In the simulator the child shares the heap: a NumPy view that the parent made of an array before the
    fork still accesses it. A program that imports mpi4py.MPI before pgas.init() must end such children by os._exit, as multiprocessing
    does; otherwise mpi4py finalizes MPI at the end of each child.

    This and every other collective call of the host waits for PEs without limit. After PGAS_TIMEOUT seconds, one of the waiting PEs prints
    once which PEs have not arrived, in which call, and whether their processes are stopped.

    Args:
        comm: an mpi4py intracommunicator whose processes are the PEs, by rank. In a nested call: a communicator of the job's processes in
            the same order, or nothing.
        unique_id: the result of unique_id() on one PE; with rank and size.
        rank: number of this PE.
        size: number of PEs.
        process_group: a torch.distributed process group whose processes are the PEs, by rank. It carries the job's secret, so you must
            trust its network.

    Returns:
        The job, a context manager: the end of its block frees the remaining arrays and finalizes the job.

    Raises:
        ValueError: an environment variable has a value that is not allowed, or two variables contradict each other; comm is not that of
            the active job; arguments exclude each other, or unique_id is not a result of unique_id().
        BootstrapError: MPI is missing or not that of mpirun; the store of a job without MPI is not reached within PGAS_TIMEOUT, or
            refuses this process; PEs were started differently; another PE failed.
        TransportError: the transport of PGAS_TRANSPORT cannot connect these PEs; PEs share a GPU without MPS.
        HeapError: the heaps of the PEs on a machine or GPU exceed its memory, or too little of it is free.
        PgasError: an earlier job of this process had another configuration.

    Warns:
        PgasWarning: on PE 0, a PGAS_ variable is set that pgas does not know, or PGAS_HCA names no device of this machine; a PE and the
            software card's kernel share a GPU without MPS.

    Example:
        >>> with pgas.init() as job:  # nested calls are allowed
        ...     0 <= job.my_pe < job.n_pes
        True
    """
    if sum(given is not None for given in (comm, unique_id, process_group)) > 1:
        raise ValueError("pgas.init: one of comm, unique_id and process_group may be given")
    if len({unique_id is None, rank is None, size is None}) > 1:
        raise ValueError("pgas.init: unique_id, rank and size are given together")
    given = None
    if process_group is not None:
        given = rendezvous.of_process_group(process_group) if not runtime.active() else None
    elif unique_id is not None:
        if not isinstance(rank, (int, np.integer)) or not isinstance(size, (int, np.integer)) or not 0 <= rank < size:
            raise ValueError(f"pgas.init: rank must be an integer from 0 to size - 1, not rank={rank!r} with size={size!r}")
        given = rendezvous.Given(unique_id, int(rank), int(size))
    return runtime.init(comm, given)


@host_only
def unique_id(host: str | None = None) -> bytes:
    """Return 128 bytes with which processes form a job without a launcher: one calls this, all pass the bytes to pgas.init(unique_id=).

    The calling process, which need not be a PE, serves the store at which the PEs meet, until it ends. The bytes contain the job's secret:
    every process that has them may join. NVSHMEM: nvshmemx_get_uniqueid.

    Args:
        host: address or name of this machine for the others; None: the address of the interface of the default route.

    Raises:
        BootstrapError: host is no address of this machine.

    Example:
        >>> token = pgas.unique_id("127.0.0.1")  # on one process, which sends it to the others
        >>> len(token)  # all of them call pgas.init(unique_id=token, rank=..., size=...)
        128
    """
    return rendezvous.unique_id(host)


@host_only
def finalize() -> None:
    """End pgas: complete all operations, wait for all PEs, release the heap. Collective (OpenSHMEM 1.5, "SHMEM_FINALIZE").

    Arrays must not be used afterwards. The end of ``with pgas.init():`` and the end of the program finalize too, also by SystemExit with
    status 0. Another exit status becomes the job's, and PEs that do not end within seconds are killed. An uncaught exception and the death
    of a PE also end all PEs; the reason is printed once on each machine.

    Other threads of this process that are inside calls of pgas must leave them within PGAS_TIMEOUT. The heap stays mapped while a thread is
    inside.

    Warns:
        PgasWarning: symmetric arrays were not freed (PE 0 warns), or teams not destroyed (their first member warns): a line for each
            line of the program that made some. At the end of ``with pgas.init()`` only under PGAS_DEBUG=check.

    Raises:
        DeviceError: a kernel of this PE found an error.
        PgasError: on every PE: a thread did not leave a call of pgas within PGAS_TIMEOUT; the text names thread and line.

    Example:
        >>> job = pgas.init()
        >>> pgas.finalize()  # once for each init()
    """
    runtime.finalize()


@host_only
def reset() -> None:
    """Make the job usable again after a DeviceError or CompletionError. Collective: all PEs call it, also those without an error.

    Until then, every launch and every collective call of the PE with the error raises the error again. Another PE that makes a collective
    call meanwhile gets a BootstrapError; reset() waits for it.

    The waits of running kernels end, as after an error, and reset() waits for these kernels. Incomplete operations may be performed in part
    or not at all: their destinations are undefined, also at other PEs, signals and atomics included. The rest of the heap keeps its values;
    arrays and registered memory stay. Barriers in kernels start anew, and nothing is outstanding on the NIC.

    Raises:
        PgasError: on every PE: the job cannot be made usable again. The text gives the reason: a PE or the software card has ended, a GPU's
            context is lost (a CUDA error), an exception made a PE leave a collective call, a kernel does not end within PGAS_TIMEOUT, or a
            NIC refuses.

    Example:
        >>> try:
        ...     pgas.barrier_all()  # a DeviceError on a PE whose kernel failed, then a BootstrapError on the others
        ... except pgas.PgasError:
        ...     pgas.reset()  # so all PEs call it
    """
    recovery.reset(runtime.current())


@host_only
def synchronize(stream: Any = None) -> None:
    """Wait until this PE's kernels have ended, and raise their error if there is one.

    Polls, so that Ctrl-C and the death of a peer end the wait.

    Args:
        stream: the stream of the kernels; None for all kernels.

    Raises:
        DeviceError: a kernel found an error: a wait past its deadline, a bad PE or address.
        PgasError: a peer died.

    Example:
        >>> data = pgas.zeros(1)
        >>> @pgas.jit
        ... def fill(data):
        ...     data[0] = 1.5
        >>> fill[1, 1](data)  # returns while the kernel runs
        >>> pgas.synchronize()
        >>> float(data[0])
        1.5
    """
    if stream is not None:
        streams.core_stream(stream)  # refuses other objects, which the simulator would not look at
    runtime.current().synchronize(stream)


@host_only
def empty(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array with undefined elements. Collective: all PEs pass the same arguments (OpenSHMEM 1.5, shmem_malloc).

    If the array does not fit, the heap grows by a multiple of PGAS_CUMEM_GRANULARITY, up to PGAS_MAX_MEMORY_PER_GPU. No array moves.
    Kernels launched afterwards can use the added memory; kernels already running cannot. The heap keeps it until finalize(), also when
    its arrays are freed.

    Args:
        shape: int or tuple of ints; may contain zeros.
        dtype: NumPy dtype of plain numbers that Numba has, or records of them, or its name; bfloat16 and the float8 types, such as
            float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them. ``array.view(np.uint8)`` has their bits.
        alignment: in bytes, a power of two; the actual alignment is at least 512.

    Raises:
        ValueError, TypeError: bad shape, dtype or alignment.
        HeapError: on every PE: the heap is exhausted and cannot grow (the text names the PE without memory), or PEs ask for different
            arrays. The heap is as before.

    Example:
        >>> a = pgas.empty((2, 3), np.float32)
        >>> a.shape, a.dtype
        ((2, 3), dtype('float32'))
        >>> pgas.free(a)
    """
    return runtime.current().allocate(shape, dtype, "pgas.empty", None, alignment)


@host_only
def zeros(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array of zeros; every PE's instance is zeroed before any PE returns. As empty() (shmem_calloc).

    Example:
        >>> pgas.zeros(3, np.int32).copy_to_host().tolist()
        [0, 0, 0]
    """
    return _zeros("zeros", shape, dtype, alignment)


def _zeros(function: str, shape: Any, dtype: Any, alignment: int) -> SymmetricArray:
    job = runtime.current()
    return job.allocate(shape, dtype, f"pgas.{function}", lambda a: job.memory.fill(job.address(a), a.nbytes, 0), alignment)


@host_only
def ones(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array of ones; every PE's instance is filled before any PE returns. Arguments and errors are those of empty().

    Example:
        >>> pgas.ones(3, np.int32).copy_to_host().tolist()
        [1, 1, 1]
    """
    return _full("ones", shape, 1, dtype, alignment)


@host_only
def full(shape: Any, value: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array filled with a value; dtype is the value's by default. As empty().

    Raises:
        TypeError, ValueError: an element cannot hold the value; as empty().

    Example:
        >>> pgas.full((2, 2), 0.5).copy_to_host().tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    return _full("full", shape, value, np.asarray(value).dtype if dtype is None else dtype, alignment)


def _full(function: str, shape: Any, value: Any, dtype: Any, alignment: int) -> SymmetricArray:
    def fill(array: SymmetricArray) -> None:
        if isinstance(value, (str, bytes)) or (np.ndim(value) == 0 and array.dtype.kind in "iu"):
            check_value(function, "value", value, array.dtype)
        with np.errstate(over="ignore"):  # a float beyond the range of a float dtype becomes infinite
            array.copy_to_device(np.full(array.shape, value, array.dtype))

    return runtime.current().allocate(shape, dtype, f"pgas.{function}", fill, alignment)


@host_only
def array(values: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array with a copy of this PE's values; shape and dtype must be the same on all PEs. As empty().

    Example:
        >>> pgas.array([1, 2, 3], np.int16).copy_to_host().tolist()
        [1, 2, 3]
    """
    try:
        host = np.ascontiguousarray(values, None if dtype is None else dtype_of(dtype)).reshape(np.shape(values))
    except OverflowError as error:
        raise ValueError(f"pgas.array: values must be numbers that elements of type {dtype_of(dtype)} can hold: {error}") from None
    return runtime.current().allocate(host.shape, host.dtype, "pgas.array", lambda a: a.copy_to_device(host), alignment)


@host_only
def empty_like(prototype: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return empty() with the shape and dtype of an array; in C order, as all symmetric arrays.

    Args:
        prototype: any object with a shape and a dtype, such as an array of NumPy, pgas or another library.
        dtype: instead of the prototype's.
        shape: instead of the prototype's.
        alignment: as empty().

    Raises:
        TypeError: prototype has no shape or no dtype, or a dtype that is not allowed on the heap.
        ValueError, HeapError: as empty().

    Example:
        >>> pgas.empty_like(np.ones((2, 3), np.float32), shape=5).shape
        (5,)
    """
    return runtime.current().allocate(*_like("empty_like", prototype, shape, dtype), "pgas.empty_like", None, alignment)


@host_only
def zeros_like(prototype: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return zeros() with the shape and dtype of an array. As empty_like().

    Example:
        >>> pgas.zeros_like(np.ones(3, np.int32)).copy_to_host().tolist()
        [0, 0, 0]
    """
    return _zeros("zeros_like", *_like("zeros_like", prototype, shape, dtype), alignment)


@host_only
def full_like(prototype: Any, value: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return full() with the shape and dtype of an array. As empty_like().

    Example:
        >>> pgas.full_like(np.ones(3, np.int32), 7).copy_to_host().tolist()
        [7, 7, 7]
    """
    shape, dtype = _like("full_like", prototype, shape, dtype)
    return _full("full_like", shape, value, dtype, alignment)


def _like(function: str, prototype: Any, shape: Any, dtype: Any) -> tuple[Any, Any]:
    """Return shape and dtype; the prototype's where none is given."""
    if not hasattr(prototype, "shape") or not hasattr(prototype, "dtype"):
        raise TypeError(f"pgas.{function}: prototype must have a shape and a dtype, as arrays do, not {type(prototype).__name__}")
    return prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype


@host_only
def free(array: SymmetricArray) -> None:
    """Free a symmetric array. Collective; waits for this PE's kernels first (OpenSHMEM 1.5, shmem_free).

    Every later use of the array or of a view of it is refused. ``with pgas.zeros(4) as a:`` frees the array at the end of the block. If an
    exception leaves the block, the array stays until the job ends, as other PEs may not get there.

    Args:
        array: a result of empty(), zeros(), full() or array(), not a view with another shape or dtype or of a part.

    Raises:
        ValueError: array is not a symmetric array, or is a view.
        HeapError: array was freed before, PEs free different arrays, or the call failed on another PE.

    Example:
        >>> a = pgas.zeros(4)
        >>> pgas.free(a)
        >>> with pgas.zeros(4) as b:  # freed at the end of the block
        ...     b[0] = 1
    """
    runtime.current().free(array)


SymmetricArray._free = free


@host_only
def allgather_object(value: Any) -> list[Any]:
    """Return the values of all PEs, in the order of PEs. Collective. Values are small and picklable.

    Unpickling a value can run code that its sender chose, so every PE must trust all PEs of the job. Nobody else can send a value: PEs that
    meet at a store authenticate each message by the job's secret before they unpickle it. Under mpirun, MPI carries the values, so you must
    also trust the network. At a store, the values of all PEs together take at most 256 MiB.

    Raises:
        BootstrapError: on every PE: a PE's value cannot be pickled or is too large, or PEs make different collective calls. On the PE
            concerned: a value cannot be unpickled.

    Example:
        >>> pgas.allgather_object(f"PE {pgas.my_pe()}")[:2]
        ['PE 0', 'PE 1']
    """
    return [_unpickled("allgather_object", pe, data) for pe, data in enumerate(_exchange("allgather_object", value))]


@host_only
def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return PE root's small, picklable value; other PEs' values are ignored. Collective. Raises as allgather_object().

    Unpickling a value can run code that its sender chose, so every PE must trust PE root. Nobody else can send a value: PEs that meet at a
    store authenticate each message by the job's secret before they unpickle it. Under mpirun, MPI carries the value, so you must also trust
    the network.

    Example:
        >>> pgas.broadcast_object({"seed": 3} if pgas.my_pe() == 0 else None)
        {'seed': 3}
    """
    job = runtime.current()
    job.check_pe("broadcast_object", root, "root")
    told = _exchange("broadcast_object", value if job.my_pe == root else None, f"root={int(root)}")
    return _unpickled("broadcast_object", root, told[root])


def _exchange(function: str, value: Any, arguments: str = "") -> list[bytes]:
    """Return the pickles of all PEs' values, in the order of PEs. Collective."""
    data, failure = b"", None
    try:
        data = pickle.dumps(value)
    except Exception as error:
        failure = BootstrapError(f"pgas.{function}: value cannot be pickled: {type(error).__name__}: {error}")
        failure.__cause__ = error
    return runtime.current().agree(f"pgas.{function}({arguments})", value=data, failure=failure)


def _unpickled(function: str, pe: int, data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise BootstrapError(f"pgas.{function}: the value of PE {pe} cannot be unpickled: {type(error).__name__}: {error}") from error


@host_only
def info() -> dict[str, Any]:
    """Return a description of the job for benchmark reports: machine, GPU, transport, adapter, engine, number of PEs, versions.

    Example:
        >>> pgas.info()["npes"] == pgas.n_pes()
        True
    """
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
