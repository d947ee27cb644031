"""The host API: starting and ending a job, symmetric arrays, and small exchanges between PEs."""

import pickle
from typing import Any

import numpy as np

from pgas.api.host_only import host_only
from pgas.api.values import check_value
from pgas.base.errors import BootstrapError
from pgas.base.parameters import is_integer
from pgas.base.version import __version__
from pgas.job import recovery, runtime
from pgas.job.bootstrap import rendezvous
from pgas.job.memory.array import SymmetricArray, dtype_of
from pgas.job.memory.heap import ALIGNMENT
from pgas.job.paths.platform import platform

__all__ = [
    "allgather_object", "array", "broadcast_object", "empty", "empty_like", "finalize", "free", "full", "full_like", "info", "init",
    "ones", "reset", "synchronize", "unique_id", "zeros", "zeros_like",
]  # fmt: skip


@host_only
def init(
    comm: Any = None, *, unique_id: bytes | None = None, rank: int | None = None, size: int | None = None, process_group: Any = None
) -> runtime.Job:
    """Start pgas: form the job, bind a GPU, and map the symmetric heap. Collective (OpenSHMEM 1.5, "SHMEM_INIT").

    Calls may be nested: the job ends at the finalize() that matches the first init(). After that, init() may start another job with the
    same configuration. It reads the environment variables that ``python -m pgas info`` lists.

    Without arguments, the launcher's variables define the PEs: those of ``python -m pgas.run``, torchrun, srun, or mpirun. If there are
    variables of several, those of the launcher that started this process count. A process without a launcher is a job of one PE. mpi4py is
    imported only under mpirun or with comm.

    A child that is forked afterward (os.fork, multiprocessing's fork) is not a PE. Every call, launch, and array access in the child raises
    PgasError, and the job does not notice its end. In the simulator the child shares the heap: a NumPy view that the parent made of an
    array before the fork still accesses it. A program that imports mpi4py.MPI before pgas.init() must end such children by os._exit
    (multiprocessing does this); otherwise mpi4py finalizes MPI at the end of each child.

    This and every other collective host call waits for the other PEs without a time limit. After PGAS_TIMEOUT seconds, one of the waiting
    PEs prints once which PEs have not arrived, in which call, and whether their processes are stopped. Only one thread of a PE at a time
    may make calls that wait on the host: init, finalize, reset, launch, allocations and free, those that make and destroy teams, calls with
    objects, and barrier_all and sync_all without a stream. A second thread's call raises a PgasError that names the first one's, and has no
    effect.

    Args:
        comm: an mpi4py intracommunicator whose processes are the PEs, by rank. In a nested call: a communicator of the job's processes in
            the same order, or nothing.
        unique_id: the result of unique_id() on one PE; requires rank and size.
        rank: number of this PE; requires unique_id.
        size: number of PEs; requires unique_id.
        process_group: a torch.distributed process group whose processes are the PEs, by rank. It carries the job's secret, so its network
            must be trusted.

    Returns:
        The job, a context manager. The end of its block frees the remaining arrays and finalizes the job.

    Raises:
        ValueError: an environment variable has a value that is not allowed, or two variables contradict each other; comm is not that of the
            active job; arguments exclude each other; or unique_id is not a result of unique_id().
        BootstrapError: MPI is missing or is not that of mpirun; the store of a job without MPI cannot be reached within PGAS_TIMEOUT
            seconds or rejects this process; PEs were started differently; or another PE failed.
        TransportError: the transport of PGAS_TRANSPORT cannot connect these PEs, or PEs share a GPU without MPS.
        HeapError: the heaps of the PEs on a node or GPU exceed its memory, or too little of it is free.
        PgasError: an earlier job of this process had another configuration.

    Warns:
        PgasWarning: on PE 0, if a PGAS_ variable is set that pgas does not know, or PGAS_HCA names no device of this node; also if a PE and
            the software NIC's kernel share a GPU without MPS.

    Example:
        >>> with pgas.init() as job:  # nested calls are allowed
        ...     0 <= job.my_pe < job.n_pes
        True
    """
    if sum(given is not None for given in (comm, unique_id, process_group)) > 1:
        raise ValueError("pgas.init: at most one of comm, unique_id, and process_group may be given")
    if len({unique_id is None, rank is None, size is None}) > 1:
        raise ValueError("pgas.init: unique_id, rank, and size must be given together")
    given = None
    if process_group is not None:
        given = rendezvous.of_process_group(process_group) if not runtime.active() else None
    elif unique_id is not None:
        if not is_integer(rank) or not is_integer(size) or not 0 <= rank < size:
            raise ValueError(f"pgas.init: rank must be an integer from 0 to size - 1, not rank={rank!r} with size={size!r}")
        given = rendezvous.Given(unique_id, int(rank), int(size))
    return runtime.init(comm, given)


@host_only
def unique_id(host: str | None = None) -> bytes:
    """Return a 128-byte ID with which processes form a job without a launcher.

    One process calls this, and all pass the ID to pgas.init(unique_id=). The calling process, which need not be a PE, serves the store at
    which the PEs find each other, until that process ends. The ID contains the job's secret, so every process that has it may join.
    NVSHMEM: nvshmemx_get_uniqueid.

    Args:
        host: address or name of this node that the other PEs can reach. Default: the address of the interface of the default route.

    Returns:
        The ID, as 128 bytes.

    Raises:
        BootstrapError: host is not an address of this node.

    Example:
        >>> token = pgas.unique_id("127.0.0.1")  # on one process, which sends it to the others
        >>> len(token)  # all of them call pgas.init(unique_id=token, rank=..., size=...)
        128
    """
    return rendezvous.unique_id(host)


@host_only
def finalize() -> None:
    """End pgas: complete all operations, wait for all PEs, and release the heap. Collective (OpenSHMEM 1.5, "SHMEM_FINALIZE").

    Arrays must not be used afterward. The end of ``with pgas.init():`` and the end of the program also finalize, as does SystemExit with
    status 0. Another exit status becomes the job's, even if threads of the program live on, and PEs that do not end within seconds are
    killed. An uncaught exception and the failure of a PE's process also end all PEs; the reason is printed once on each node.

    Other threads of this process that are inside calls of pgas must leave them within PGAS_TIMEOUT seconds. The heap stays mapped while a
    thread is inside.

    Warns:
        PgasWarning: symmetric arrays were not freed (PE 0 warns), or teams were not destroyed (their first member warns): one line per
            program line that made some. At the end of ``with pgas.init()`` only with PGAS_DEBUG=check.

    Raises:
        DeviceError: a kernel of this PE found an error.
        PgasError: raised on every PE, if a thread did not leave a call of pgas within PGAS_TIMEOUT seconds; the message names the thread
            and the line.

    Example:
        >>> job = pgas.init()
        >>> pgas.finalize()  # once for each init()
    """
    runtime.finalize()


@host_only
def reset() -> None:
    """Make the job usable again after a DeviceError or CompletionError. Collective: all PEs, even those without an error, must call it.

    Until then, every launch and every collective call of the PE with the error raises the error again. Another PE that makes a collective
    call meanwhile gets a BootstrapError that names this error; reset() waits for that PE. Collectives of teams and calls on a stream are
    kernels, which wait for the PE with the error until PGAS_TIMEOUT.

    The waits of running kernels end in the same way as after an error, and reset() waits for these kernels. Incomplete operations may be
    performed partly or not at all: their destinations, signals and atomics included, are undefined on all PEs. The rest of the heap keeps
    its values, and arrays and registered memory stay valid. Barriers in kernels start anew, and no operation is outstanding on the NIC.

    Raises:
        PgasError: raised on every PE, if the job cannot be made usable again. The message gives the reason: a PE or the software NIC has
            ended, a GPU's context is lost (a CUDA error), an exception made a PE leave a collective call, a kernel does not end within
            PGAS_TIMEOUT seconds, or a NIC rejects the reset.

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

    The host polls, so that Ctrl-C or the failure of another PE ends the wait.

    Args:
        stream: CUDA stream of Numba, cuda.core, CuPy, or PyTorch whose kernels to wait for. Default: all kernels of this PE.

    Raises:
        DeviceError: a kernel found an error, such as a wait that exceeded PGAS_TIMEOUT seconds, or an invalid PE or address.
        CompletionError: a NIC completed an operation in error.
        PgasError: another PE failed.

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
        platform.core_stream(stream)  # Rejects other objects, because the simulator ignores the stream.
    runtime.current().synchronize(stream)


@host_only
def empty(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array with undefined elements. Collective.

    All PEs must pass the same shape, dtype, and alignment. If the array does not fit, the heap grows by a multiple of
    PGAS_CUMEM_GRANULARITY, up to PGAS_MAX_MEMORY_PER_GPU. No array moves. Kernels launched afterward can use the added memory; kernels
    already running cannot. The heap keeps it until finalize(), even after its arrays are freed. OpenSHMEM 1.5: shmem_malloc.

    Args:
        shape: int or tuple of ints; may contain zeros.
        dtype: NumPy dtype or its name: a numeric dtype that Numba supports, or a record of such dtypes; bfloat16 and the float8 types, such
            as float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them. ``array.view(np.uint8)`` gives access to their bits.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: shape, dtype, or alignment is invalid.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> a = pgas.empty((2, 3), np.float32)
        >>> a.shape, a.dtype
        ((2, 3), dtype('float32'))
        >>> pgas.free(a)
    """
    return runtime.current().allocate(shape, dtype, "pgas.empty", None, alignment)


@host_only
def zeros(shape: Any, dtype: Any = np.float64, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array of zeros. Collective.

    All PEs must pass the same shape, dtype, and alignment. Every PE's instance is zeroed before any PE returns. OpenSHMEM 1.5:
    shmem_calloc.

    Args:
        shape: int or tuple of ints; may contain zeros.
        dtype: NumPy dtype or its name: a numeric dtype that Numba supports, or a record of such dtypes; bfloat16 and the float8 types, such
            as float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: shape, dtype, or alignment is invalid.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

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
    """Return a symmetric array of ones. Collective.

    All PEs must pass the same shape, dtype, and alignment. Every PE's instance is filled before any PE returns.

    Args:
        shape: int or tuple of ints; may contain zeros.
        dtype: NumPy dtype or its name: a numeric dtype that Numba supports, or a record of such dtypes; bfloat16 and the float8 types, such
            as float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: shape, dtype, or alignment is invalid, or an element cannot hold the value.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> pgas.ones(3, np.int32).copy_to_host().tolist()
        [1, 1, 1]
    """
    return _full("ones", shape, 1, dtype, alignment)


@host_only
def full(shape: Any, value: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array filled with a value. Collective.

    All PEs must pass the same shape, dtype, and alignment. Every PE's instance is filled, with that PE's value, before any PE returns.

    Args:
        shape: int or tuple of ints; may contain zeros.
        value: number, or array that NumPy can broadcast to the shape.
        dtype: NumPy dtype or its name: a numeric dtype that Numba supports, or a record of such dtypes; bfloat16 and the float8 types, such
            as float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them. Default: the value's dtype.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: shape, dtype, or alignment is invalid, or an element cannot hold the value.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> pgas.full((2, 2), 0.5).copy_to_host().tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    return _full("full", shape, value, np.asarray(value).dtype if dtype is None else dtype, alignment)


def _full(function: str, shape: Any, value: Any, dtype: Any, alignment: int) -> SymmetricArray:
    def fill(array: SymmetricArray) -> None:
        if isinstance(value, (str, bytes)) or (np.ndim(value) == 0 and array.dtype.kind in "iu"):
            check_value(function, "value", value, array.dtype)
        with np.errstate(over="ignore"):  # A float outside the range of a float dtype becomes infinite.
            array.copy_to_device(np.full(array.shape, value, array.dtype))

    return runtime.current().allocate(shape, dtype, f"pgas.{function}", fill, alignment)


@host_only
def array(values: Any, dtype: Any = None, *, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array with a copy of this PE's values. Collective: shape and dtype must be the same on all PEs.

    Every PE's instance is filled before any PE returns.

    Args:
        values: array, nested sequence, or number, as for numpy.array; may differ between PEs.
        dtype: NumPy dtype or its name: a numeric dtype that Numba supports, or a record of such dtypes; bfloat16 and the float8 types, such
            as float8_e4m3fn, are those of ml_dtypes. Elements of float8 types can only be copied: kernels, reductions, and atomics do not
            compute with them. Default: the values' dtype.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: shape, dtype, or alignment is invalid, or an element cannot hold the value.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

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
    """Return a symmetric array with undefined elements and another array's shape and dtype. Collective.

    All PEs must pass the same shape, dtype, and alignment. The array is in C order, like all symmetric arrays.

    Args:
        prototype: any object with a shape and a dtype, such as an array of NumPy, pgas, or another library.
        dtype: NumPy dtype of the new array. Default: the prototype's.
        shape: int or tuple of ints. Default: the prototype's.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: prototype has no shape or no dtype, its dtype is not allowed on the heap, or another argument is invalid.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> pgas.empty_like(np.ones((2, 3), np.float32), shape=5).shape
        (5,)
    """
    return runtime.current().allocate(*_like("empty_like", prototype, shape, dtype), "pgas.empty_like", None, alignment)


@host_only
def zeros_like(prototype: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array of zeros with another array's shape and dtype. Collective.

    All PEs must pass the same shape, dtype, and alignment. Every PE's instance is zeroed before any PE returns. The array is in C order,
    like all symmetric arrays.

    Args:
        prototype: any object with a shape and a dtype, such as an array of NumPy, pgas, or another library.
        dtype: NumPy dtype of the new array. Default: the prototype's.
        shape: int or tuple of ints. Default: the prototype's.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: prototype has no shape or no dtype, its dtype is not allowed on the heap, or another argument is invalid.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> pgas.zeros_like(np.ones(3, np.int32)).copy_to_host().tolist()
        [0, 0, 0]
    """
    return _zeros("zeros_like", *_like("zeros_like", prototype, shape, dtype), alignment)


@host_only
def full_like(prototype: Any, value: Any, dtype: Any = None, *, shape: Any = None, alignment: int = ALIGNMENT) -> SymmetricArray:
    """Return a symmetric array filled with a value, with another array's shape and dtype. Collective.

    All PEs must pass the same shape, dtype, and alignment. Every PE's instance is filled before any PE returns. The array is in C order,
    like all symmetric arrays.

    Args:
        prototype: any object with a shape and a dtype, such as an array of NumPy, pgas, or another library.
        value: number, or array that NumPy can broadcast to the shape.
        dtype: NumPy dtype of the new array. Default: the prototype's.
        shape: int or tuple of ints. Default: the prototype's.
        alignment: alignment in bytes, a power of two; the actual alignment is at least 512. Default: 512.

    Raises:
        TypeError, ValueError: prototype has no shape or no dtype, its dtype is not allowed on the heap, an element cannot hold the value,
            or another argument is invalid.
        HeapError: raised on every PE, if the heap is exhausted and cannot grow (the message names the PE that has no memory), or PEs
            request different arrays. The heap is unchanged.

    Example:
        >>> pgas.full_like(np.ones(3, np.int32), 7).copy_to_host().tolist()
        [7, 7, 7]
    """
    shape, dtype = _like("full_like", prototype, shape, dtype)
    return _full("full_like", shape, value, dtype, alignment)


def _like(function: str, prototype: Any, shape: Any, dtype: Any) -> tuple[Any, Any]:
    """Return shape and dtype; the prototype's unless others are given."""
    if not hasattr(prototype, "shape") or not hasattr(prototype, "dtype"):
        raise TypeError(f"pgas.{function}: prototype must have a shape and a dtype, like arrays, not {type(prototype).__name__}")
    return prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype


@host_only
def free(array: SymmetricArray) -> None:
    """Free a symmetric array. Collective; first waits for this PE's kernels (OpenSHMEM 1.5: shmem_free).

    Every later use of the array or of a view of it raises an error. ``with pgas.zeros(4) as a:`` frees the array at the end of the block.
    If an exception leaves the block, the array stays until the job ends, because other PEs may not reach that line.

    Args:
        array: an array returned by empty(), zeros(), ones(), full(), array(), or a _like form, or a view of the whole array with its
            shape and dtype, such as array[:].

    Raises:
        ValueError: array is not a symmetric array, or is a view with another shape, dtype, or first element.
        HeapError: array was freed before, PEs free different arrays, or the call failed on another PE.

    Example:
        >>> a = pgas.zeros(4)
        >>> pgas.free(a)
        >>> with pgas.zeros(4) as b:  # freed at the end of the block
        ...     b[0] = 1
    """
    runtime.current().free(array)


SymmetricArray._free = free
SymmetricArray._check_free = lambda array: runtime.current().check_freeable(array)


@host_only
def allgather_object(value: Any) -> list[Any]:
    """Return a list of the values of all PEs, in PE order. Collective. Values should be small and must be picklable.

    Unpickling a value can run code that its sender chose, so every PE must trust all PEs of the job. No other process can send a value,
    because PEs that use a store authenticate each message with the job's secret before they unpickle it. Under mpirun, MPI carries the
    values, so the network must also be trusted. With a store, the values of all PEs together take at most 256 MiB.

    Args:
        value: any picklable object; may differ between PEs.

    Raises:
        BootstrapError: raised on every PE, if a PE's value cannot be pickled or is too large, or PEs make different collective calls; on
            one PE, if that PE cannot unpickle a value.

    Example:
        >>> pgas.allgather_object(f"PE {pgas.my_pe()}")[:2]
        ['PE 0', 'PE 1']
    """
    return [_unpickled("allgather_object", pe, data) for pe, data in enumerate(_exchange("allgather_object", value))]


@host_only
def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return PE root's value on every PE; other PEs' values are ignored. Collective.

    The value should be small and must be picklable. Unpickling a value can run code that its sender chose, so every PE must trust PE root.
    No other process can send a value, because PEs that use a store authenticate each message with the job's secret before they unpickle it.
    Under mpirun, MPI carries the values, so the network must also be trusted.

    Args:
        value: on PE root, any picklable object; ignored on other PEs.
        root: number of the PE whose value is returned. Default: 0.

    Raises:
        ValueError: root is not the number of a PE.
        BootstrapError: raised on every PE, if the value cannot be pickled or is too large, or PEs make different collective calls; on one
            PE, if that PE cannot unpickle the value.

    Example:
        >>> pgas.broadcast_object({"seed": 3} if pgas.my_pe() == 0 else None)
        {'seed': 3}
    """
    job = runtime.current()
    job.check_pe("broadcast_object", root, "root")
    told = _exchange("broadcast_object", value if job.my_pe == root else None, f"root={int(root)}")
    return _unpickled("broadcast_object", root, told[root])


def _exchange(function: str, value: Any, arguments: str = "") -> list[bytes]:
    """Return the pickles of all PEs' values, in PE order. Collective."""
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
    """Return a description of the job for benchmark reports: machine, GPUs, transport, NIC, engine, number of PEs, and versions.

    Returns:
        A dictionary with the keys machine, gpu, gpus, transport, adapter, engine, npes, and versions.

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
    gpu = job.pes[0].gpu_name or None
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
