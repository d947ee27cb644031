"""A machine, as doctor and topo examine it: a file tree, and the answers of drivers, limits, and packages. Tests construct any machine."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pgas.transports.devices import ROOT, Device, devices, read

_NVIDIA, _MELLANOX = "0x10de", "0x15b3"
_DISPLAY_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers. An NVIDIA card also has other functions, such as audio and USB.


@dataclass(frozen=True)
class Gpu:
    """A GPU that is visible to this process."""

    ordinal: int
    name: str
    uuid: str
    pci: str  #: bus address in the notation of sysfs
    memory: int  #: bytes
    compute_mode: str = "DEFAULT"  #: or EXCLUSIVE_PROCESS, PROHIBITED
    dma_buf: bool = True  #: CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
    vmm: bool = True  #: CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    writes_ordering: int = 200  #: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: 0 none, 100 for the GPU itself, 200 for all
    mps: bool = False  #: CU_DEVICE_ATTRIBUTE_MPS_ENABLED: this process is a client of an MPS server

    @property
    def label(self) -> str:
        """E.g. ``GPU0``."""
        return f"GPU{self.ordinal}"


@dataclass(frozen=True)
class Nic:
    """The answers of an RDMA device."""

    file: str = ""  #: why its file in /dev/infiniband cannot be opened, "" if it can
    error: str = ""  #: why libibverbs does not open it
    devx: str = ""  #: why ibgda cannot use it: no DevX context, or a missing capability
    queue_pair: str | None = None  #: the step of a queue pair connected to itself that failed, "" if none did; None: not tested
    atomics: bool = True  #: ibv_device_attr.atomic_cap is not IBV_ATOMIC_NONE
    pci_atomics: bool = True  #: ibv_device_attr_ex.pci_atomic_caps has 8-byte fetch-and-add


@dataclass(frozen=True)
class Verbs:
    """rdma-core's Python bindings."""

    origin: str = ""  #: directory of the package
    release: str = ""  #: of rdma-core, whose libibverbs it loaded
    error: str = ""  #: why it does not import
    names: tuple[str, ...] = ()  #: devices that libibverbs finds


@dataclass(frozen=True)
class Mpi:
    """MPI: the library that mpi4py loads, and mpirun."""

    library: str = ""  #: first line of MPI_Get_library_version
    error: str = ""  #: why mpi4py does not load
    mpirun: str = ""  #: path, "" if there is none on PATH
    launcher: str = ""  #: output of ``mpirun --version``


@dataclass(frozen=True)
class Machine:
    """A machine as this process sees it."""

    root: Path = ROOT
    host: str = ""
    simulator: bool = True  #: whether kernels of this process run in the simulator
    simulator_asked: bool = False  #: whether it does because the user set NUMBA_ENABLE_CUDASIM
    launcher: str = ""  #: launcher that started this process: pgas.run, torchrun, srun, or mpirun; "" if none did
    cuda: int = 0  #: CUDA version of the driver (cuDriverGetVersion), such as 13000; 0 without a driver
    cuda_error: str = ""  #: why CUDA did not start
    gpus: tuple[Gpu, ...] = ()
    access: tuple[tuple[bool, ...], ...] = ()  #: access[a][b]: GPU a can map GPU b's memory
    nvlinks: tuple[tuple[int, ...], ...] = ()  #: NVLinks between GPU a and GPU b, directly or through switches
    nvml_error: str = ""  #: why the NVLinks are unknown
    nics: Mapping[str, Nic] = field(default_factory=dict)  #: by name; only devices that answered
    verbs: Verbs = Verbs()
    mpi: Mpi = Mpi()
    versions: Mapping[str, str] = field(default_factory=dict)  #: versions of installed packages and tools
    required: Mapping[str, str] = field(default_factory=dict)  #: versions of packages that pgas requires, e.g. ">=2.4,<2.5"
    memlock: int = -1  #: RLIMIT_MEMLOCK in bytes; -1: unlimited
    capabilities: frozenset[str] = frozenset()  #: those of IPC_LOCK and SYS_ADMIN that the process has
    settings: Mapping[str, Any] = field(default_factory=dict)  #: values of the PGAS_* variables
    bad_settings: tuple[str, ...] = ()  #: errors of variables whose values are not valid
    visible: str | None = None  #: CUDA_VISIBLE_DEVICES
    mps_pipes: str = "/tmp/nvidia-mps"  #: CUDA_MPS_PIPE_DIRECTORY
    wire: str = ""  #: address, interface, and MTU of the software NIC's port in a job on several machines
    wire_error: str = ""  #: why it has no port there

    # ------------------------------------------------------------------------------------------------ from the file tree

    @property
    def devices(self) -> list[Device]:
        return devices(self.root)

    @property
    def kernel(self) -> str:
        """Release of Linux, e.g. ``6.8.0-45-generic``; "" if unknown."""
        return self.text("proc/sys/kernel/osrelease")

    @property
    def driver(self) -> str:
        """Release of NVIDIA's kernel modules, e.g. ``580.65.06``; "" if none is loaded."""
        found = re.search(r"\b(\d{3}(?:\.\d+)+)\b", self.text("proc/driver/nvidia/version"))
        return found[1] if found else ""

    @property
    def open_modules(self) -> bool:
        """Whether they are the open ones."""
        return "Open Kernel Module" in self.text("proc/driver/nvidia/version")

    @property
    def pci_gpus(self) -> list[str]:
        """Bus addresses of NVIDIA's GPUs, with or without a driver."""
        return self._pci(_NVIDIA, _DISPLAY_CLASSES)

    @property
    def pci_nics(self) -> list[str]:
        """Bus addresses of NVIDIA's (Mellanox's) network cards, with or without a driver."""
        return self._pci(_MELLANOX, ("0x0200", "0x0207"))

    @property
    def cpus(self) -> str:
        """Online processors, e.g. ``0-63``."""
        return self.text("sys/devices/system/cpu/online")

    def text(self, path: str) -> str:
        """Return the text of a file, "" if it cannot be read."""
        return read(self.root / path) or ""

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def _pci(self, vendor: str, classes: tuple[str, ...]) -> list[str]:
        places = sorted((self.root / "sys/bus/pci/devices").glob("*"))
        return [p.name for p in places if read(p / "vendor") == vendor and (read(p / "class") or "").startswith(classes)]


def number(text: str) -> tuple[int, int]:
    """Return the first two numbers of a version such as ``13.4.92`` or ``6.8.0-45-generic``; (0, 0) if it has none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
