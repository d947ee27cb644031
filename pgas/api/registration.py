"""Local memory made elsewhere, as operands of put and get through a NIC (NVSHMEM's nvshmemx_buffer_register)."""

from typing import Any

from pgas.api.host_only import host_only
from pgas.api.operands import Operand, on_heap
from pgas.job import runtime

__all__ = ["register", "unregister"]


@host_only
def register(array: Any) -> None:
    """Let ``array``, made elsewhere, be the local operand of put, get and their like: the source of a put, the dest of a get.

    Under p2p any memory of the GPU may be that, and nothing but the check of the argument is done. Through a NIC it is made known to it,
    for kernels that are launched afterwards. Not collective. The array is kept alive until unregister() or finalize().

    What is registered is the memory from the array's first to its last byte; views of it may be operands too. Over the software card on
    GPUs it must be memory that CUDA shares between processes: of cudaMalloc, as Numba, CuPy's default pool and PyTorch's allocate it, not
    of cudaMallocAsync or PyTorch's expandable_segments; the card holds it to the end of the job, even if it is freed. cudaMalloc makes
    small allocations of blocks of 2 MiB, and of each block only one can be registered in a job: register one large array and use views of
    it, or arrays of a pool. In the simulator it is a NumPy array or a device array of Numba in plain memory; its pages, and so what else
    lies on its first and last one, are exchanged for pages that the card can map: meanwhile no thread outside Python may write to them.
    A NumPy array serves calls on the host only: of one that is an argument of a kernel Numba makes a copy, which is not registered.

    Args:
        array: with ``__cuda_array_interface__`` (PyTorch, CuPy, Numba); any dtype and strides.

    Raises:
        TypeError: it is no array in the GPU's memory.
        ValueError: it is empty, on the symmetric heap, or registered already.
        TransportError: the NIC cannot reach it, or 256 arrays are registered.
    """
    job = runtime.current()
    operand = Operand.of("register", "array", array, contiguous=False)
    start, end = operand.extent
    if start == end:
        raise ValueError("pgas.register: array is empty")
    if on_heap(job, start, end):
        raise ValueError("pgas.register: array is on the symmetric heap, which every transport reaches")
    if job.local.find(start) is not None:
        raise ValueError("pgas.register: array, or another one that begins where it does, is registered already")
    job.local.add(start, end, array)


@host_only
def unregister(array: Any) -> None:
    """Undo register(). Waits for this PE's kernels first. Not collective.

    Args:
        array: what was registered, or a view that begins at its first byte.

    Raises:
        ValueError: it is not registered.
        DeviceError: a kernel of this PE found an error.
    """
    job = runtime.current()
    start, _ = Operand.of("unregister", "array", array, contiguous=False).extent
    number = job.local.find(start)
    if number is None:
        raise ValueError("pgas.unregister: array is not registered")
    job.complete()
    job.local.remove(number)
