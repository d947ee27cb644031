"""The GPU of this PE as the platform of its kernels (platform.py): its choice, its properties, and its access to other GPUs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import FrameType
from typing import Any
from uuid import UUID

from cuda.bindings import driver
from cuda.core import Device

from pgas.base.backend import cuda_device_count
from pgas.base.errors import PgasError
from pgas.base.remedies import explain
from pgas.base.waits import until
from pgas.job.paths import gpu_streams
from pgas.kernels.compiler import compiler, launches
from pgas.transports.devices import pci_address
from pgas.transports.memory.vmm import GPUMemory, check

#: 32 x 1024 threads saturate NVLink (docs/figures.md).
COPY_BLOCKS, COPY_THREADS, COLLECTIVE_THREADS = 32, 1024, 512
configured, repeatable, bound = gpu_streams.Configured, gpu_streams.CooperativeLaunches, gpu_streams.Bound
resident, argument = gpu_streams.resident, launches.Argument
core_stream, handle_of, capturing = gpu_streams.core_stream, gpu_streams.handle_of, gpu_streams.capturing
copying = gpu_streams.copying

_Attribute = driver.CUdevice_attribute
_NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY
_ORDERED_FOR_OWNER = int(driver.CUGPUDirectRDMAWritesOrdering.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)


@dataclass(frozen=True)
class GPU:
    """The device that a PE runs its kernels on."""

    ordinal: int
    uuid: str
    name: str
    memory: int
    mps: bool
    pci: str  #: bus address in the notation of sysfs, such as "0000:3b:00.0"
    in_order: bool  #: whether it observes NIC writes to its memory in order

    def access(self, peer_uuid: str) -> str | None:
        """Return None if this GPU can load from and store to the peer's memory; otherwise the reason why it cannot."""
        if peer_uuid == self.uuid:
            return None
        for ordinal in range(int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))):
            if uuid(ordinal) == peer_uuid:
                if int(check(driver.cuDeviceCanAccessPeer(self.ordinal, ordinal), "cuDeviceCanAccessPeer")):
                    return None
                return f"the GPUs ({self.name}) have no peer access (see nvidia-smi topo -p2p r)"
        return None  # It is not visible here (CUDA_VISIBLE_DEVICES). Mapping its memory will raise an error if it has no peer access.


def bind(node_rank: int) -> GPU:
    """Make a GPU current in this process and return it.

    The GPU that the process already made current is kept (``torch.cuda.set_device``, ``cuda.select_device``); otherwise PEs of a
    node take the visible GPUs in turn.

    Args:
        node_rank: number of this PE among those of its node.

    Raises:
        PgasError: if no GPU is visible, or the GPU cannot be used.
    """
    count = cuda_device_count()
    if count == 0:
        raise PgasError("no CUDA device is visible to this process (CUDA_VISIBLE_DEVICES, NUMBA_ENABLE_CUDASIM=0)")
    current = check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
    ordinal = int(check(driver.cuCtxGetDevice(), "cuCtxGetDevice")) if int(current) else node_rank % count
    _enter(ordinal)
    gpu_streams.home = int(check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent"))
    vmm = _attribute(_Attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal)
    if not vmm:
        raise PgasError("this GPU has no virtual memory management (cuMemMap), which the symmetric heap needs")
    name = check(driver.cuDeviceGetName(128, ordinal), "cuDeviceGetName").split(b"\0")[0].decode()
    memory = int(check(driver.cuDeviceTotalMem(ordinal), "cuDeviceTotalMem"))
    bus = check(driver.cuDeviceGetPCIBusId(32, ordinal), "cuDeviceGetPCIBusId").split(b"\0")[0].decode()
    order = _attribute(_Attribute.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, ordinal)
    return GPU(ordinal, uuid(ordinal), name, memory, _under_mps(ordinal), pci_address(bus), order >= _ORDERED_FOR_OWNER)


def _enter(ordinal: int) -> None:
    """Make the primary context of a GPU current.

    Raises:
        PgasError: if there is none for this process; the message gives the reason, if it is known.
    """
    mps = " from its MPS server" if _under_mps(ordinal) else ""
    try:
        check(driver.cuDevicePrimaryCtxRetain(ordinal), f"no context on GPU {ordinal}{mps}")
    except PgasError as error:
        known = explain(str(error))[:1]
        raise PgasError("; ".join([str(error), *(f"{entry.cause}; {entry.remedy}" for entry in known)])) from error
    try:
        compiler.select_device(ordinal)  # This also retains it.
    finally:
        driver.cuDevicePrimaryCtxRelease(ordinal)


def memory(gpu: GPU) -> GPUMemory:
    return GPUMemory(gpu.ordinal)


def host_array(array: Any) -> None:
    return None


def wait(stream: Any, call: str, poll: Callable[[], None], guarded: Callable[[], AbstractContextManager[None]]) -> None:
    with guarded():
        if not int(check(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")):  # as in a new thread of the program
            compiler.enter_device()
            Device().set_current()  # So that cuda.core also uses it.
        # The driver's own calls, because cuda.core takes 10 us for the object of a stream.
        event = check(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
        try:
            check(driver.cuEventRecord(event, handle_of(stream)), "cuEventRecord")
            until(lambda: _is_over(event), poll)
        finally:
            driver.cuEventDestroy(event)
        if stream is None:
            check(driver.cuCtxSynchronize(), "cuCtxSynchronize")  # Not cuda.core's sync(), because that starts the CUDA runtime.


def _is_over(event: Any) -> bool:
    (status,) = driver.cuEventQuery(event)
    return status != _NOT_READY and check((status, True), "cuEventQuery")


def read_again() -> None:
    """Do nothing, because a kernel reads such words into a cache that it does not share with later ones."""


def forbid(why: str) -> None:
    """Do nothing, because a forked child cannot use the parent's GPU."""


def host_frame(frame: FrameType | None) -> FrameType | None:
    return frame


def report() -> str:
    return ""


def _attribute(attribute: Any, ordinal: int) -> int:
    return int(check(driver.cuDeviceGetAttribute(attribute, ordinal), "cuDeviceGetAttribute"))


def _under_mps(ordinal: int) -> bool:
    """Whether this process is a client of an MPS server on a GPU."""
    return bool(_attribute(_Attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED, ordinal))


def uuid(ordinal: int) -> str:
    """Return the UUID of a GPU, by which every process on the node knows it."""
    raw = check(driver.cuDeviceGetUuid(ordinal), "cuDeviceGetUuid").bytes
    return f"GPU-{UUID(bytes=bytes(b & 0xFF for b in raw))}"


def place_engine(gpu: GPU, used: set[str | None], device: int | None, sms: int) -> tuple[int, int, int]:
    """Return where the kernel of the software NIC runs: GPU, SMs (0: all that it gets), percentage of SMs for MPS (0: no limit).

    Args:
        gpu: GPU of the PE that starts it.
        used: UUIDs of the GPUs of all PEs.
        device, sms: PGAS_SOFTHCA_DEVICE and PGAS_SOFTHCA_SMS.

    Raises:
        PgasError: if there is no such GPU.
    """
    count = int(check(driver.cuDeviceGetCount(), "cuDeviceGetCount"))
    if device is None:
        device = next((ordinal for ordinal in range(count) if uuid(ordinal) not in used), gpu.ordinal)
    if device >= count:
        raise PgasError(f"PGAS_SOFTHCA_DEVICE={device}: {count} GPU(s) are visible to PE 0, 0 to {count - 1}")
    if uuid(device) not in used and not _under_mps(device):  # Otherwise, software NICs and PEs of other jobs may use it.
        return device, sms, 0
    total = _attribute(_Attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)
    share = min(sms or total // 4, total)
    return device, share, -(-100 * share // total)
