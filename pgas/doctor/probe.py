"""Queries of this machine for doctor and topo: CUDA and NVML, verbs, MPI, limits, packages. No CUDA context is made.

A failed query is recorded with its reason, and never raises an error, because doctor must work on machines on which nothing else works.
"""

import contextlib
import importlib
import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import UUID

from pgas.base import config
from pgas.base.backend import SIMULATOR
from pgas.base.errors import PgasError, TransportError
from pgas.base.launcher import environment, launched
from pgas.doctor.machine import Gpu, Machine, Mpi, Nic, Verbs, number
from pgas.doctor.trial import try_queue_pair
from pgas.job.bootstrap.own_addresses import own_host
from pgas.transports import registry
from pgas.transports.devices import Device, Gid, Port, devices, pci_address
from pgas.transports.ibgda import devx
from pgas.transports.nic import adapter as seam
from pgas.transports.nic.queue_pair import check_caps
from pgas.transports.selection import choose_gid
from pgas.transports.verbs.device import OpenDevice

#: Bits of CapEff (capabilities(7)).
_CAPABILITIES = {14: "IPC_LOCK", 21: "SYS_ADMIN"}

_NVLINK_MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS


def observe() -> Machine:
    """Return this machine as this process sees it."""
    gpus = _gpus()
    verbs = _verbs()
    started = launched()
    settings = _settings()
    return Machine(
        host=socket.gethostname(),
        simulator=SIMULATOR,
        simulator_asked=SIMULATOR and "NUMBA_ENABLE_CUDASIM" in environment(),
        launcher=started.launcher if started else "",
        **gpus,
        **_nvlinks([gpu.pci for gpu in gpus["gpus"]]),
        verbs=verbs,
        nics={device.name: _nic(device, verbs) for device in devices()},
        mpi=_mpi(),
        versions=_versions(),
        required=_required(),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        capabilities=_capabilities(),
        **settings,
        **_wire(settings["settings"].get("PGAS_SOFTHCA_NET", "")),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        mps_pipes=os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
    )


def _because(error: BaseException) -> str:
    """Return the first line of an exception, or its type if it has no text."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


# ---------------------------------------------------------------------------------------------------------------- GPUs


def _gpus() -> dict[str, Any]:
    nothing: dict[str, Any] = {"cuda": 0, "gpus": (), "access": ()}
    try:
        driver = importlib.import_module("cuda.bindings.driver")
        _call(driver, "cuInit", 0)
        version = int(_call(driver, "cuDriverGetVersion"))
        count = int(_call(driver, "cuDeviceGetCount"))
        return {
            "cuda": version,
            "gpus": tuple(_gpu(driver, ordinal) for ordinal in range(count)),
            "access": tuple(
                tuple(a == b or bool(_call(driver, "cuDeviceCanAccessPeer", a, b)) for b in range(count)) for a in range(count)
            ),
        }
    except Exception as error:  # There is no library, driver, or device. The reason becomes a finding.
        return nothing | {"cuda_error": _because(error)}


def _call(driver: Any, name: str, *arguments: Any) -> Any:
    status, *values = getattr(driver, name)(*arguments)
    if int(status) != 0:
        _, text = driver.cuGetErrorString(status)
        raise RuntimeError(f"{name}: {status.name} ({(text or b'unknown').decode()})")
    return values[0] if values else None


def _gpu(driver: Any, ordinal: int) -> Gpu:
    attribute = driver.CUdevice_attribute

    def asked(name: str) -> int:
        return int(_call(driver, "cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), ordinal))

    raw = _call(driver, "cuDeviceGetUuid", ordinal).bytes
    return Gpu(
        ordinal=ordinal,
        name=_call(driver, "cuDeviceGetName", 128, ordinal).split(b"\0")[0].decode(),
        uuid=f"GPU-{UUID(bytes=bytes(b & 0xFF for b in raw))}",
        pci=pci_address(_call(driver, "cuDeviceGetPCIBusId", 32, ordinal).split(b"\0")[0].decode()),
        memory=int(_call(driver, "cuDeviceTotalMem", ordinal)),
        compute_mode=driver.CUcomputemode(asked("COMPUTE_MODE")).name.removeprefix("CU_COMPUTEMODE_"),
        dma_buf=bool(asked("DMA_BUF_SUPPORTED")),
        vmm=bool(asked("VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED")),
        writes_ordering=asked("GPU_DIRECT_RDMA_WRITES_ORDERING"),
        mps=bool(asked("MPS_ENABLED")),
    )


def _nvlinks(addresses: list[str]) -> dict[str, Any]:
    if not addresses:
        return {"nvlinks": ()}
    try:
        nvml = importlib.import_module("cuda.bindings.nvml")
        nvml.init_v2()
        try:
            return {"nvlinks": count_nvlinks(nvml, addresses)}
        finally:
            nvml.shutdown()
    except Exception as error:  # There is no NVML, which the rest of the report does not need.
        return {"nvlinks": (), "nvml_error": _because(error)}


def count_nvlinks(nvml: Any, addresses: list[str]) -> tuple[tuple[int, ...], ...]:
    """Return the number of NVLinks between each two GPUs: direct ones, or those to switches if both are on NVSwitches.

    Args:
        nvml: the module cuda.bindings.nvml, initialized.
        addresses: PCI bus addresses of the GPUs.
    """
    direct = [dict.fromkeys(addresses, 0) for _ in addresses]
    switched = [0] * len(addresses)
    for i, address in enumerate(addresses):
        handle = nvml.device_get_handle_by_pci_bus_id_v2(address)
        for link in range(_NVLINK_MAX_LINKS):
            try:
                if not nvml.device_get_nvlink_state(handle, link):
                    continue
                if nvml.device_get_nvlink_remote_device_type(handle, link) == nvml.IntNvLinkDeviceType.SWITCH:
                    switched[i] += 1
                    continue
                remote = pci_address(_text(nvml.device_get_nvlink_remote_pci_info_v2(handle, link).bus_id))
            except nvml.NvmlError:  # This GPU has no such link.
                continue
            if remote in direct[i]:
                direct[i][remote] += 1
    return tuple(
        tuple(0 if a == b else direct[a][there] or min(switched[a], switched[b]) for b, there in enumerate(addresses))
        for a in range(len(addresses))
    )


def _text(value: str | bytes) -> str:
    return value.split(b"\0")[0].decode() if isinstance(value, bytes) else value.split("\0", maxsplit=1)[0]


# --------------------------------------------------------------------------------------------------------------- verbs


def _verbs() -> Verbs:
    try:
        pyverbs = importlib.import_module("pyverbs.device")
    except Exception as error:  # It is not installed, or belongs to another release than libibverbs.
        return Verbs(error=_because(error))
    origin = str(Path(pyverbs.__file__ or "").resolve().parent)
    library = re.search(r"/libibverbs\.so\.[\d.]+?\.(\d+\.\d+)$", Path("/proc/self/maps").read_text(errors="replace"), re.M)
    release = library[1] if library else ""  # For example, libibverbs.so.1.14.44.0 belongs to rdma-core 44.0.
    try:
        return Verbs(origin, release, names=tuple(device.name.decode() for device in pyverbs.get_device_list()))
    except Exception:  # The kernel has no InfiniBand subsystem.
        return Verbs(origin, release)


def _nic(device: Device, verbs: Verbs) -> Nic:
    try:
        os.close(os.open(f"/dev/infiniband/{device.uverbs}", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return Nic(file=error.strerror or type(error).__name__)
    if device.name not in verbs.names:
        return Nic(error="" if verbs.error else "libibverbs does not list it")
    try:
        port = device.ports[0]
        with contextlib.closing(OpenDevice(device.name, port.number)) as opened:
            operands = _tried(lambda: int(opened.context.query_device_ex().pci_atomic_caps.fetch_add))
            devx, queue_pair = _ibgda(device, port)
            pci_atomics = bool((operands or 0) & _PCI_8_BYTES)
            return Nic(atomics=opened.capabilities.atomics, pci_atomics=pci_atomics, devx=devx, queue_pair=queue_pair)
    except Exception as error:
        return Nic(error=_because(error))


_PCI_8_BYTES = 2  # IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP


def _ibgda(device: Device, port: Port) -> tuple[str, str | None]:
    """Return Nic.devx and Nic.queue_pair: DevX and capabilities for the queue pairs of two PEs, and a queue pair connected to itself."""
    try:
        gid = choose_gid(port) if port.gids else Gid(0, bytes(16), "", "")
        with contextlib.closing(devx.DevX(device.name, port, gid, handler="cpu")) as adapter:
            check_caps(adapter, 2, registry.queue_pairs(config.read("PGAS_IBGDA_NUM_RC_PER_PE")), config.read("PGAS_QP_DEPTH"))
            return "", try_queue_pair(adapter, seam.AddressPath(gid.index)) if port.active else None
    except (PgasError, ValueError) as error:
        # Doctor prints the prerequisites itself.
        return _because(error).removeprefix(f"{device.name}: ").partition(" (IBGDA needs ")[0], None


def _tried(ask: Callable[[], Any]) -> Any:
    """Return the answer to a query, None if the device does not support it."""
    try:
        return ask()
    except Exception:
        return None


# ----------------------------------------------------------------------------------------------------------------- MPI


def _mpi() -> Mpi:
    mpirun = shutil.which("mpirun") or shutil.which("mpiexec") or ""
    launcher = _printed(mpirun, "--version") if mpirun else ""
    try:
        rc = importlib.import_module("mpi4py").rc
        initialize, rc.initialize = rc.initialize, False  # Do not start MPI, because a broken one may hang.
        try:
            library = importlib.import_module("mpi4py.MPI").Get_library_version()
        finally:
            rc.initialize = initialize
    except Exception as error:
        return Mpi(error=_because(error), mpirun=mpirun, launcher=launcher)
    return Mpi(library.strip("\0").splitlines()[0], mpirun=mpirun, launcher=launcher)


def _printed(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


# ------------------------------------------------------------------------------------------------- limits and packages


def _capabilities() -> frozenset[str]:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.M)
    mask = int(found[1], 16) if found else 0
    return frozenset(name for bit, name in _CAPABILITIES.items() if mask >> bit & 1)


def _settings() -> dict[str, Any]:
    settings, bad = {}, []
    for name in config.VARIABLES:
        try:
            settings[name] = config.read(name)
        except ValueError as error:
            bad.append(str(error))
    return {"settings": settings, "bad_settings": tuple(bad)}


def _wire(net: str) -> dict[str, Any]:
    """Find the port that a software NIC would have in a job on several machines. net: PGAS_SOFTHCA_NET."""
    try:
        port = importlib.import_module("pgas.transports.softhca.wire.port")
        interface, address = port.find_address(net or own_host())
        return {"wire": f"{address} ({interface}), MTU {port.mtu_nbytes(port.mtu_of(interface, v4=address.version == 4))}"}
    except (ImportError, OSError, TransportError) as error:
        return {"wire_error": _because(error)}


#: Packages that kernels depend on.
_PACKAGES = ("numba-cuda", "numba", "numpy", "cuda-bindings", "cuda-core", "mpi4py", "pyverbs")

#: By CUDA release, the packages with libnvvm and nvJitLink.
_COMPILERS = {
    12: {"libnvvm": "nvidia-cuda-nvcc-cu12", "nvJitLink": "nvidia-nvjitlink-cu12"},
    13: {"libnvvm": "nvidia-nvvm", "nvJitLink": "nvidia-nvjitlink"},
}


def _versions() -> dict[str, str]:
    found = _installed({name: name for name in _PACKAGES})
    release, _ = number(found.get("cuda-bindings", ""))
    found |= _installed(_COMPILERS.get(release, {}))
    if ptxas := _ptxas():
        found["ptxas"] = ptxas
    return found


def _installed(packages: dict[str, str]) -> dict[str, str]:
    """Return name -> version of the packages, given as name -> package, that are installed."""
    found = {}
    for name, package in packages.items():
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(package)
    return found


def _ptxas() -> str:
    """Return the release of the ptxas that cuda.pathfinder finds, "" if there is none."""
    path = _tried(lambda: importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility("ptxas")) or shutil.which("ptxas")
    found = re.search(r"release ([\d.]+)", _printed(path, "--version")) if path else None
    return found[1] if found else ""


def _required() -> dict[str, str]:
    """Return the requirements of the installed pgas, without those of its extras."""
    try:
        lines = metadata.requires("pgas") or []
    except metadata.PackageNotFoundError:
        return {}
    matches = [re.fullmatch(r"([\w.-]+)\s*([<>=!~][^;]*)", line.strip()) for line in lines]
    return {match[1]: match[2].replace(" ", "") for match in matches if match}
