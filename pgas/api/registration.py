"""Registration of memory from other libraries, as local operands of put and get through a NIC (NVSHMEM's nvshmemx_buffer_register)."""

from typing import Any

from pgas.api.host_only import host_only
from pgas.api.operands import Operand, on_heap
from pgas.job import runtime

__all__ = ["register", "unregister"]


@host_only
def register(array: Any) -> None:
    """Register ``array``, of another library, as a local operand: the source of a put, the dest of a get.

    Through a NIC, kernels launched afterwards can use it. Under p2p any GPU memory may be a local operand, and this only checks the
    argument. Not collective. The array is kept alive until unregister() or finalize().

    The memory from the array's first to its last byte is registered; views of it may be operands too.

    Over the software card on GPUs, the array must be in memory of cudaMalloc, which CUDA shares between processes: of Numba, CuPy's default
    pool or PyTorch's, not of cudaMallocAsync or PyTorch's expandable_segments. The card holds the memory to the end of the job, even if it
    is freed. cudaMalloc puts small allocations into blocks of 2 MiB, and a job can register only one allocation of a block: register one
    large array and use views of it, or arrays of a pool.

    In the simulator, the array is a NumPy array or a device array of Numba in plain memory. Its pages, with other data on its first and
    last page, are replaced by pages that the card can map; no thread outside Python may write to them meanwhile. A NumPy array can be an
    operand on the host only: as an argument of a kernel Numba copies it, and the copy is not registered.

    Args:
        array: with ``__cuda_array_interface__`` (PyTorch, CuPy, Numba); any dtype and strides.

    Raises:
        TypeError: it is not an array in GPU memory.
        ValueError: it is empty, on the symmetric heap, or registered already.
        TransportError: the NIC cannot reach it, or 256 arrays are registered.

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
        raise ValueError("pgas.register: array is on the symmetric heap, which every transport reaches")
    if job.local.find(start) is not None:
        raise ValueError("pgas.register: an array at this address is registered already")
    job.local.add(start, end, array)


@host_only
def unregister(array: Any) -> None:
    """Undo register(). Waits for this PE's kernels first. Not collective.

    Args:
        array: the registered array, or a view that begins at its first byte.

    Raises:
        ValueError: it is not registered.
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
