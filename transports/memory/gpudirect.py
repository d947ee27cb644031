"""CUDA driver calls for GPUDirect: dma-bufs of GPU memory for the NIC, and the NIC's registers mapped into the GPU.

Implemented but untested, because no machine had both a GPU and a ConnectX.
"""

import os

from cuda.bindings import driver

from pgas.base.errors import TransportError
from pgas.base.remedies import mend
from pgas.transports.memory.vmm import CudaError, GPUMemory, check

#: Number of mapped bytes of a doorbell register: the word that a doorbell stores.
_REGISTER_BYTES = 8

_NOT_PERMITTED = driver.CUresult.CUDA_ERROR_NOT_PERMITTED

#: Page size of the host, because cuMemGetHandleForAddressRange exports whole pages.
_PAGE = os.sysconf("SC_PAGE_SIZE")


def dmabuf(address: int, nbytes: int) -> tuple[int, int]:
    """Export the pages that contain a range of GPU memory. The memory region made from the descriptor sets the bounds for the NIC.

    Args:
        address, nbytes: a range of GPU memory.

    Returns:
        A descriptor, which the caller closes, and the offset of the range in it: less than a page.

    Raises:
        CudaError: the driver has no dma-bufs, or none of this memory.
    """
    start, end = address // _PAGE * _PAGE, -(-(address + nbytes) // _PAGE) * _PAGE
    kind = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    try:
        fd = check(driver.cuMemGetHandleForAddressRange(start, end - start, kind, 0), "cuMemGetHandleForAddressRange")
    except CudaError as error:
        raise CudaError(f"{error}{_beyond(start, end, address)}") from error
    return int(fd), address - start


def _beyond(start: int, end: int, address: int) -> str:
    """Return text if pages extend beyond the allocation at an address, otherwise "". Small allocations of cudaMalloc share pages."""
    status, base, size = driver.cuMemGetAddressRange(address)
    if status != driver.CUresult.CUDA_SUCCESS or (int(base) <= start and end <= int(base) + size):
        return ""
    return (
        f"; its pages of {_PAGE} bytes, {start:#x} to {end:#x}, reach beyond the allocation of {size} bytes at {int(base):#x}: register "
        "memory whose allocation fills its pages, such as an array from CuPy's or PyTorch's pool"
    )


class GPUDirect:
    """Access between this process's GPU, that of the current context, and a NIC. memory: memory of that GPU."""

    def __init__(self, memory: GPUMemory) -> None:
        self._memory = memory

    def on_gpu(self, address: int) -> bool:
        """Whether an address is in GPU memory."""
        return not self._memory.is_on_host(address)

    dmabuf = staticmethod(dmabuf)

    def map_register(self, address: int) -> int:
        """Map a register into the GPU; address is for the CPU, the result for the GPU.

        Raises:
            TransportError: CUDA does not permit it; the text names the setting that would.
        """
        flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP | driver.CU_MEMHOSTREGISTER_IOMEMORY
        (status,) = driver.cuMemHostRegister(address, _REGISTER_BYTES, flags)
        if status == _NOT_PERMITTED:
            raise TransportError(
                f"the GPU may not store to a doorbell register of the NIC (cuMemHostRegister, error {int(status)}): {mend('peer mapping')}"
            )
        try:
            check((status,), "cuMemHostRegister of a doorbell register")
            return int(check(driver.cuMemHostGetDevicePointer(address, 0), "cuMemHostGetDevicePointer"))
        except CudaError as error:
            raise TransportError(f"the GPU cannot store to a doorbell register of the NIC: {error}") from error

    def unmap_register(self, address: int) -> None:
        """Undo map_register(). Errors are ignored, because the context may be gone."""
        driver.cuMemHostUnregister(address)
