"""GPU memory behind the window, by CUDA virtual memory management (cuMemCreate, cuMemMap), shared as POSIX file descriptors.

The same calls allocate segments in host memory (CU_MEM_LOCATION_TYPE_HOST_NUMA), which CPU and GPU then access at the same address.
"""

import contextlib
import ctypes
import os
from typing import Any

from cuda.bindings import driver

from pgas.base.config import size_text
from pgas.base.errors import HeapError, PgasError, TransportError
from pgas.kernels import layout, window
from pgas.transports.memory.memfd import map_at, unmap
from pgas.transports.memory.protocol import Loan, Segment

_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_PINNED = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
_Location = driver.CUmemLocationType
_READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
_Attribute = driver.CUdevice_attribute


class CudaError(PgasError):
    """A driver call failed."""


def check(result: tuple[Any, ...], what: str) -> Any:
    """Return the values of a driver call without its status.

    Raises:
        CudaError: the call failed; the text has ``what`` was attempted, and the driver's name and sentence for the error.
    """
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise CudaError(f"{what}: {name.decode()} ({text.decode()})")
    return values[0] if len(values) == 1 else tuple(values)


class GPUMemory:
    """Implements Memory on the GPU of the current context."""

    on_gpu = True

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._context = check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        node = int(check(driver.cuDeviceGetAttribute(_Attribute.CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, ordinal), "cuDeviceGetAttribute"))
        self._location = _location(_Location.CU_MEM_LOCATION_TYPE_DEVICE, ordinal)
        self._host = _location(_Location.CU_MEM_LOCATION_TYPE_HOST_NUMA, max(node, 0))
        self._borrowed: dict[bytes, int] = {}
        self._reserved: list[tuple[int, int]] = []
        self._mapped: dict[int, tuple[int, Any]] = {}  # bytes and handle, by address
        self._on_host: list[range] = []
        self._registered: dict[int, int] = {}  # bytes of mapped files, by address
        self.host_words = 0
        self._closed = False
        self._fds: dict[int, int] = {}  # descriptors of own segments, by address
        # A separate stream, because the host reads and writes the state page while kernels spin on other streams.
        self._stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cuStreamCreate")

    def create(self, address: int, segment: Segment) -> int:
        """Allocate a segment, also for NICs if the GPU allows it, and export it."""
        handle = self._allocate(segment.size, host=segment.host)
        try:
            fd = int(check(driver.cuMemExportToShareableHandle(handle, _FD, 0), "cuMemExportToShareableHandle"))
        except CudaError as error:
            driver.cuMemRelease(handle)
            raise HeapError(f"this GPU's memory cannot be shared with other processes: {error}") from error
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, fd)
            self._map(address, segment.size, handle, host=segment.host)
            undo.callback(self.discard, address)
            self.fill(address, segment.size, 0)
            undo.pop_all()
        self._fds[address] = fd
        return fd

    def _allocate(self, nbytes: int, *, host: bool = False) -> Any:
        properties = driver.CUmemAllocationProp()
        properties.type, properties.requestedHandleTypes = _PINNED, _FD
        properties.location = self._host if host else self._location
        rdma = _Attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
        if not host:
            capable = int(check(driver.cuDeviceGetAttribute(rdma, self._ordinal), "cuDeviceGetAttribute"))
            properties.allocFlags.gpuDirectRDMACapable = capable
        try:
            return check(driver.cuMemCreate(nbytes, properties, 0), "cuMemCreate")
        except CudaError as error:
            if host:
                raise HeapError(f"cannot allocate {size_text(nbytes)} of the host's memory for CPU and GPU: {error}") from error
            free, total = check(driver.cuMemGetInfo(), "cuMemGetInfo")
            raise HeapError(
                f"cannot allocate {size_text(nbytes)} of symmetric heap: {size_text(free)} of {size_text(total)} are free on this GPU "
                f"({error})"
            ) from error

    def attach(self, address: int, segment: Segment, fd: int) -> None:
        """Import and map a peer's segment; the two GPUs must be able to access each other (GPUDirect P2P)."""
        try:
            handle = check(driver.cuMemImportFromShareableHandle(fd, _FD), "cuMemImportFromShareableHandle")
            self._map(address, segment.size, handle, host=segment.host)
        except (CudaError, HeapError) as error:
            raise TransportError(f"cannot map a peer's GPU memory: {error}") from error

    def discard(self, address: int) -> None:
        """Unmap and release a segment, if it is mapped. Errors are ignored, because the context may be gone after a failed kernel."""
        if address in self._mapped:
            nbytes, handle = self._mapped.pop(address)
            driver.cuMemUnmap(address, nbytes)
            driver.cuMemRelease(handle)
        if address in self._fds:
            os.close(self._fds.pop(address))

    def create_private(self, nbytes: int = window.STATE_SIZE) -> None:
        """Reserve the private gigabyte and map the state page at its beginning."""
        self._map(window.STATE, nbytes, self._allocate(nbytes))
        self.fill(window.STATE, nbytes, 0)
        size, flags = layout.HOST_WORDS_SIZE, driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        self.host_words = int(check(driver.cuMemHostAlloc(size, flags), "cuMemHostAlloc"))
        self._on_host.append(range(self.host_words, self.host_words + size))
        self.fill(self.host_words, size, 0)

    def map_file(self, address: int, nbytes: int, fd: int) -> None:
        """Map the file on the host, and register these pages with CUDA, which pins them; the kernel's address is the host's."""
        if refusal := map_at(address, nbytes, fd):
            raise TransportError(f"cannot map a file at {address:#x}: {refusal}")
        try:
            flags = driver.CU_MEMHOSTREGISTER_PORTABLE | driver.CU_MEMHOSTREGISTER_DEVICEMAP
            check(driver.cuMemHostRegister(address, nbytes, flags), "cuMemHostRegister")
            self._registered[address] = nbytes
            seen = int(check(driver.cuMemHostGetDevicePointer(address, 0), "cuMemHostGetDevicePointer"))
        except CudaError as error:
            self._unregister(address, nbytes)
            raise TransportError(f"the GPU cannot write into the mapping of a file: {error}") from error
        if seen != address:
            self._unregister(address, nbytes)
            raise TransportError(f"the GPU has the mapping of a file at {seen:#x}, the host at {address:#x}")
        self._on_host.append(range(address, address + nbytes))

    def _unregister(self, address: int, nbytes: int) -> None:
        if self._registered.pop(address, None) is not None:
            driver.cuMemHostUnregister(address)
        unmap(address, nbytes)

    def _reserve(self, address: int, nbytes: int) -> None:
        got = int(check(driver.cuMemAddressReserve(nbytes, 0, address, 0), f"reserving {nbytes} bytes of address space"))
        if got != address:
            driver.cuMemAddressFree(got, nbytes)
            raise HeapError(
                f"the address range at {address:#x} is already in use in this process; initialize pgas before any other code that uses "
                "this range"
            )
        self._reserved.append((address, nbytes))

    def _map(self, address: int, nbytes: int, handle: Any, *, host: bool = False) -> None:
        # The driver ignores the address hint of small reservations and honors it from 64 MiB on. Therefore, the first segment of a slot
        # reserves the whole slot, and the first private segment the whole private range.
        if address >= window.BASE:
            size = 1 << window.STRIDE_SHIFT
            region = window.BASE + (address - window.BASE) // size * size, size
        else:
            region = window.PRIVATE, window.PRIVATE_SIZE
        with contextlib.ExitStack() as undo:
            undo.callback(driver.cuMemRelease, handle)
            if region not in self._reserved:
                self._reserve(*region)
            check(driver.cuMemMap(address, nbytes, 0, handle, 0), "cuMemMap")
            undo.callback(driver.cuMemUnmap, address, nbytes)
            self._allow(address, nbytes, self._location)
            if host:
                self._allow(address, nbytes, self._host)
            undo.pop_all()
        self._mapped[address] = nbytes, handle
        if host:
            self._on_host.append(range(address, address + nbytes))

    @staticmethod
    def _allow(address: int, nbytes: int, location: Any) -> None:
        access = driver.CUmemAccessDesc()
        access.location, access.flags = location, _READ_WRITE
        check(driver.cuMemSetAccess(address, nbytes, [access], 1), "cuMemSetAccess")

    def is_on_host(self, address: int) -> bool:
        """Whether an address is in a host segment of this PE."""
        return any(address in mapped for mapped in self._on_host)

    def lend(self, address: int, nbytes: int) -> Loan:
        """Share the allocation that contains the memory by CUDA IPC: of cudaMalloc, Numba, and the pools of CuPy and PyTorch."""
        base, size = check(driver.cuMemGetAddressRange(address), f"{address:#x} is not CUDA memory")
        try:
            handle = check(driver.cuIpcGetMemHandle(base), "cuIpcGetMemHandle")
        except CudaError as error:
            raise TransportError(
                f"the memory at {address:#x} cannot be shared with the software NIC's process: memory of cudaMalloc can, that of "
                "cuMemCreate, cudaMallocAsync and cudaMallocManaged cannot (PyTorch: use neither expandable_segments nor cudaMallocAsync; "
                f"CuPy: the default pool) ({error})"
            ) from error
        return Loan(int(base), int(size), handle=bytes(byte & 0xFF for byte in handle.reserved))

    def take_back(self, loan: Loan) -> None:
        """Do nothing: the software NIC keeps the mapping until the end of the job, because unmapping would wait for its kernel."""

    def borrow(self, loan: Loan) -> int:
        """Map an allocation of another process, or return the existing mapping."""
        if loan.handle not in self._borrowed:
            handle = driver.CUipcMemHandle()
            handle.reserved = loan.handle
            lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            try:
                self._borrowed[loan.handle] = int(check(driver.cuIpcOpenMemHandle(handle, lazily.value), "cuIpcOpenMemHandle"))
            except CudaError as error:
                raise TransportError(f"cannot map another process's GPU memory: {error}{_shared_block(error)}") from error
        return self._borrowed[loan.handle]

    def give_back(self, loan: Loan, address: int) -> None:
        """Do nothing; see take_back()."""

    def enter(self) -> None:
        """Make the creator's context current in the calling thread (a PE's is the primary context, Numba's)."""
        check(driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")

    def read(self, address: int, nbytes: int) -> bytes:
        """Copy to the host on this object's stream."""
        if self.is_on_host(address):
            return ctypes.string_at(address, nbytes)
        data = bytearray(nbytes)
        check(driver.cuMemcpyDtoHAsync(data, address, nbytes, self._stream), "cuMemcpyDtoH")
        check(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")
        return bytes(data)

    def write(self, address: int, data: bytes) -> None:
        """Copy to the GPU on this object's stream."""
        if self.is_on_host(address):
            ctypes.memmove(address, data, len(data))
            return
        check(driver.cuMemcpyHtoDAsync(address, data, len(data), self._stream), "cuMemcpyHtoD")
        check(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        if self.is_on_host(address):
            ctypes.memset(address, byte, nbytes)
            return
        check(driver.cuMemsetD8Async(address, byte, nbytes, self._stream), "cuMemsetD8")
        check(driver.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def close(self) -> None:
        """Unmap and release everything. Ignore errors, because a failed kernel may have ended the context. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        for address in list(self._mapped):
            self.discard(address)
        for address, nbytes in list(self._registered.items()):
            self._unregister(address, nbytes)
        for address, nbytes in self._reserved:
            driver.cuMemAddressFree(address, nbytes)
        words, self.host_words = self.host_words, 0
        self._on_host.clear()
        if words:
            driver.cuMemFreeHost(words)
        driver.cuStreamDestroy(self._stream)


def _shared_block(error: CudaError) -> str:
    """Explain cuIpcOpenMemHandle's ALREADY_MAPPED: another allocation of the same block was lent before. "" for other errors."""
    if "ALREADY_MAPPED" not in str(error):
        return ""
    return ": CUDA keeps small allocations in blocks of 2 MiB, and another one of this block is or was registered: register one large array"


def _location(kind: Any, number: int) -> Any:
    location = driver.CUmemLocation()
    location.type, location.id = kind, number
    return location
