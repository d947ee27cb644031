"""Registration of memory of other libraries, as local operands of put and get through a NIC (NVSHMEM: nvshmemx_buffer_register)."""

from typing import Any

from pgas.api.host_only import host_only
from pgas.api.operands import Operand, on_heap
from pgas.job import runtime

__all__ = ["register", "unregister"]


@host_only
def register(array: Any) -> None:
    """Register an array of another library so that it can be a local operand: the source of a put or the dest of a get.

    Kernels launched afterward can then use it through a NIC. Over p2p, any GPU memory may be a local operand, and the call only checks the
    argument. Not collective. The array is kept alive until unregister() or finalize(). NVSHMEM: nvshmemx_buffer_register.

    The memory from the array's first to its last byte is registered, so views of the array may also be operands.

    Over the software NIC on GPUs, the array must be in memory of cudaMalloc, which CUDA shares between processes: that of Numba, CuPy's
    default pool, or PyTorch's, not that of cudaMallocAsync or PyTorch's expandable_segments. The software NIC holds the memory until the
    end of the job, even if it is freed. cudaMalloc puts small allocations into blocks of 2 MiB, and a job can register only one allocation
    per block: register one large array and use views of it, or use arrays of a pool.

    In the simulator, the array must be a NumPy array, or a Numba device array, in ordinary process memory. Its pages, including other data
    on the first and last page, are replaced by pages that the software NIC can map; no thread outside Python may write to them meanwhile. A
    NumPy array can be an operand only on the host, because Numba copies it as an argument of a kernel, and the copy is not registered.

    Args:
        array: object with ``__cuda_array_interface__`` (PyTorch, CuPy, Numba), of any dtype and strides.

    Raises:
        TypeError: array is not an array in GPU memory.
        ValueError: array is empty, on the symmetric heap, or already registered.
        TransportError: the NIC cannot access the array, or 256 arrays are registered.

    Example:
        >>> right = (pgas.my_pe() + 1) % pgas.n_pes()
        >>> dest, source = pgas.zeros(4), cuda.to_device(np.full(4, 2.5))
        >>> pgas.register(source)  # the NIC reaches it from now on
        >>> pgas.put(dest, source, right)
        >>> pgas.barrier_all()
        >>> pgas.unregister(source)
        >>> dest.copy_to_host().tolist()
        [2.5, 2.5, 2.5, 2.5]
    """
    job = runtime.current()
    operand = Operand.of("register", "array", array, contiguous=False)
    start, end = operand.extent
    if start == end:
        raise ValueError("pgas.register: array is empty")
    if on_heap(job, start, end):
        raise ValueError("pgas.register: array is on the symmetric heap, which every transport can access")
    if job.local.find(start) is not None:
        raise ValueError("pgas.register: an array at this address is already registered")
    job.local.add(start, end, array)


@host_only
def unregister(array: Any) -> None:
    """Undo register(). First waits for this PE's kernels. Not collective (NVSHMEM: nvshmemx_buffer_unregister).

    Args:
        array: the registered array, or a view that begins at its first byte.

    Raises:
        TypeError: array is not an array in GPU memory.
        ValueError: array is not registered.
        DeviceError: a kernel of this PE found an error.

    Example:
        >>> local = cuda.to_device(np.zeros(4))
        >>> pgas.register(local)
        >>> pgas.unregister(local)  # after that, its memory may be freed
    """
    job = runtime.current()
    start, _ = Operand.of("unregister", "array", array, contiguous=False).extent
    number = job.local.find(start)
    if number is None:
        raise ValueError("pgas.unregister: array is not registered")
    job.complete("pgas.unregister")
    job.local.remove(number)
