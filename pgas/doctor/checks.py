"""Doctor's checks. A check is a function of a Machine that yields findings; a finding may block transports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from pgas.base.config import size_text
from pgas.base.errors import TransportError
from pgas.base.remedies import REMEDIES, START_MPS, explain
from pgas.doctor.machine import Machine, number
from pgas.transports import registry
from pgas.transports.devices import Device, Port
from pgas.transports.selection import SOFTHCA, choose_gid

#: Names for which doctor gives a verdict. ibgda and ibrc are over an RDMA device, softhca is both of them over the software NIC, on GPUs.
PATHS = ("simulator", *registry.names(), SOFTHCA)

NONE: frozenset[str] = frozenset()
ALL = frozenset(PATHS)
NIC = registry.needing("nic")
ON_GPUS = registry.needing("gpu") | {SOFTHCA}  # The NIC transports also run in the simulator.
IBGDA = registry.needing("devx")

#: Linux with dma-buf memory regions (ibv_reg_dmabuf_mr).
_DMA_BUF_KERNEL = 5, 12
_ORDERED_FOR_GPU = 100  # CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
#: Bytes of queues and doorbell records that a PE locks. In the simulator, a PE also locks its heap, which is in host memory.
_QUEUES = 64 << 20


class Status(Enum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "-"  #: neither good nor bad
    WARN = "warn"  #: works, but slower than it could or not for every user
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    check: str
    status: Status
    text: str
    remedy: str = ""
    blocks: frozenset[str] = NONE  #: members of PATHS that cannot run because of it
    device: str = ""  #: the RDMA device, or device and port (mlx5_0:1), that it is about; it blocks only this one


Check = Callable[[Machine], Iterator[Finding]]


def examine(machine: Machine) -> list[Finding]:
    """Return the findings of all checks, in the order of the report."""
    return [finding for check in CHECKS for finding in check(machine)]


def _of(name: str, device: str = "") -> str:
    """Return the remedy of a known failure, for one device."""
    return REMEDIES[name].remedy.replace("DEVICE", device or "DEVICE")


def _for(message: str, device: str = "") -> str:
    """Return the remedies of a message, "" if it is unknown."""
    return "; or ".join(dict.fromkeys(_of(entry.name, device) for entry in explain(message)))


# ------------------------------------------------------------------------------------------------------ GPU and driver

_GPU = "GPU and driver"


def check_driver(machine: Machine) -> Iterator[Finding]:
    """Check that there are GPUs, and that a driver as new as this environment's CUDA packages shows them to this process."""
    if not machine.pci_gpus and not machine.gpus:
        yield Finding(_GPU, "GPU", Status.NOTE, "no GPU: kernels run in the simulator", blocks=ON_GPUS)
        return
    if not machine.gpus:
        there = f"{len(machine.pci_gpus)} GPU(s) on the PCI bus, none usable: {machine.cuda_error or 'CUDA shows none'}"
        yield Finding(_GPU, "driver", Status.FAIL, there, _for(machine.cuda_error) or _of("no driver"), ON_GPUS)
        return
    modules = "" if not machine.driver else f"{machine.driver} ({'open' if machine.open_modules else 'closed'} kernel modules), "
    text = f"{modules}CUDA {machine.cuda // 1000}.{machine.cuda % 1000 // 10}"
    needed, _ = number(machine.versions.get("cuda-bindings", ""))
    if machine.cuda // 1000 < needed:
        words = f"{text}; the packages of this environment need CUDA {needed}"
        yield Finding(_GPU, "driver", Status.FAIL, words, _of("old driver"), ALL - {"simulator"})
    else:
        yield Finding(_GPU, "driver", Status.OK, text)
    if machine.simulator:
        yield Finding(_GPU, "kernels", Status.NOTE, "run in the simulator even though GPUs are present (NUMBA_ENABLE_CUDASIM)")


def check_gpus(machine: Machine) -> Iterator[Finding]:
    """Check that processes may use the GPUs. A GPU that cannot be used lets a job fail only if there is no other."""
    usable = [gpu.ordinal for gpu in machine.gpus if gpu.vmm and gpu.compute_mode != "PROHIBITED"]
    status, blocks = (Status.WARN, NONE) if usable else (Status.FAIL, ALL - {"simulator"})
    without = f"; or leave it out: CUDA_VISIBLE_DEVICES={','.join(map(str, usable))}" if usable and machine.visible is None else ""
    for gpu in machine.gpus:
        text = f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, at {gpu.pci}"
        if not gpu.vmm:
            yield Finding(_GPU, gpu.label, status, f"{text}: no virtual memory management", _of("no mapping") + without, blocks)
        elif gpu.compute_mode == "PROHIBITED":
            yield Finding(_GPU, gpu.label, status, f"{text}: compute mode PROHIBITED", _of("compute mode") + without, blocks)
        elif gpu.compute_mode != "DEFAULT" and not gpu.mps:
            words = f"{text}: compute mode {gpu.compute_mode}, so two PEs cannot share it"
            yield Finding(_GPU, gpu.label, Status.WARN, words, _of("compute mode"))
        else:
            yield Finding(_GPU, gpu.label, Status.OK, text)
    hidden = len(machine.pci_gpus) - len(machine.gpus)
    if machine.gpus and hidden > 0:
        why = f"CUDA_VISIBLE_DEVICES={machine.visible}" if machine.visible is not None else "not given to this container"
        yield Finding(_GPU, "others", Status.NOTE, f"{hidden} more on the PCI bus are not visible ({why})")


def check_peer_access(machine: Machine) -> Iterator[Finding]:
    """Check that each GPU can map the memory of each other GPU."""
    count = len(machine.gpus)
    if count < 2:
        if count:
            yield Finding(_GPU, "peer access", Status.NOTE, "one GPU: its PEs share its memory")
        return
    apart = [f"GPU{a}-GPU{b}" for a in range(count) for b in range(a) if not (machine.access[a][b] and machine.access[b][a])]
    if not apart:
        yield Finding(_GPU, "peer access", Status.OK, f"all {count} GPUs can access each other's memory")
        return
    everyone = len(apart) == count * (count - 1) // 2
    text = "no GPU can access another GPU's memory" if everyone else f"none between {', '.join(apart)}"
    status, blocks = (Status.FAIL, registry.needing("peer access")) if everyone else (Status.WARN, NONE)
    yield Finding(_GPU, "peer access", status, text, _of("peer access"), blocks)


def check_mps(machine: Machine) -> Iterator[Finding]:
    """Check that two PEs can share a GPU."""
    if not machine.gpus:
        return
    if any(gpu.mps for gpu in machine.gpus):
        yield Finding(_GPU, "MPS", Status.OK, "running: several PEs can share a GPU")
    elif machine.has(f"{machine.mps_pipes.lstrip('/')}/control"):
        text = f"its pipes exist in {machine.mps_pipes}, but this process is not connected to it as a client"
        yield Finding(_GPU, "MPS", Status.WARN, text, f"start it again: echo quit | nvidia-cuda-mps-control; then {START_MPS}")
    elif len(machine.gpus) == 1:
        text = "not running: only one PE can run, because this process sees one GPU (and a cuda engine that shares this GPU is slow)"
        yield Finding(_GPU, "MPS", Status.WARN, text, _of("mps"))
    else:
        yield Finding(_GPU, "MPS", Status.NOTE, f"not running: at most {len(machine.gpus)} PEs, one per GPU")


# ------------------------------------------------------------------------------------------------------- NIC, port, GID

_NIC = "NIC and port"


def check_nics(machine: Machine) -> Iterator[Finding]:
    """Check that there are RDMA devices, and that they have a link."""
    if not machine.devices:
        if machine.pci_nics:
            text = f"the NICs at {', '.join(machine.pci_nics)} expose no RDMA device"
            yield Finding(_NIC, "NIC", Status.FAIL, text, _of("no verbs"), NIC)
        else:
            yield Finding(_NIC, "NIC", Status.NOTE, "no RDMA device: ibgda and ibrc run over the software NIC", blocks=NIC)
        return
    for device in machine.devices:
        what = [device.driver or "unknown driver", *([f"at {device.pci}"] if device.pci else ["software"])]
        what += [f"firmware {device.firmware}"] if device.firmware.strip("0.") else []
        ports = ", ".join(map(_port, device.ports))
        text = f"{', '.join(what)}; {ports or 'no port'}"
        if any(port.active for port in device.ports):
            yield Finding(_NIC, device.name, Status.OK, text)
        else:
            mends = dict.fromkeys(_of("link down" if port.state == "DOWN" else "subnet manager") for port in device.ports)
            yield Finding(_NIC, device.name, Status.WARN, text, "; ".join(mends), NIC, device.name)


def _port(port: Port) -> str:
    return f"port {port.number} {port.link_layer} {f'{port.rate_gbps:g} Gb/s ' if port.active else ''}{port.down or port.state}"


def check_wire(machine: Machine) -> Iterator[Finding]:
    """Check where the software NIC has its port in jobs on several machines."""
    if machine.devices:
        return
    asked = bool(machine.settings.get("PGAS_SOFTHCA_NET"))
    if machine.wire:
        text = f"in jobs on several machines, the software NIC sends RoCE v2 over UDP from {machine.wire}"
        yield Finding(_NIC, "wire", Status.OK, text if asked else f"{text}; PGAS_SOFTHCA_NET selects another address")
    elif machine.wire_error:
        text = f"the software NIC cannot connect several machines: {machine.wire_error}"
        mend = "name an address of this machine, or an interface, in PGAS_SOFTHCA_NET"
        yield Finding(_NIC, "wire", Status.WARN if asked else Status.NOTE, text, mend)


def check_gids(machine: Machine) -> Iterator[Finding]:
    """Check that each active port has a GID with a route."""
    for device in machine.devices:
        for port in device.ports:
            if port.active:
                yield _check_gid(machine, device, port)


def _check_gid(machine: Machine, device: Device, port: Port) -> Finding:
    name = f"GID {device.name}:{port.number}"
    try:
        gid = choose_gid(port, machine.settings.get("PGAS_IB_GID_INDEX", -1))
    except TransportError as error:
        blocks = NIC if port.link_layer == "Ethernet" else IBGDA  # Because ibrc addresses an InfiniBand port by its LID.
        return Finding(_NIC, name, Status.FAIL, str(error), _of("gid"), blocks, f"{device.name}:{port.number}")
    text = f"index {gid}" + (f" of {gid.netdev}" if gid.netdev else "")
    if port.link_layer != "Ethernet":
        return Finding(_NIC, name, Status.OK, f"{text}, LID {port.lid}")
    if gid.kind != "RoCE v2" or gid.link_local:
        text += ": no RoCE v2 GID with an IP address" if gid.kind != "RoCE v2" else ": link-local, reaches peers on the same switch only"
        return Finding(_NIC, name, Status.WARN, text, _of("gid"))
    if not gid.netdev:
        return Finding(_NIC, name, Status.WARN, f"{text}: its interface is not in this network namespace", _of("gid"))
    return Finding(_NIC, name, Status.OK, text)


# --------------------------------------------------------------------------------------------------------------- verbs

_VERBS = "Verbs and DevX"


def check_pyverbs(machine: Machine) -> Iterator[Finding]:
    """Check that rdma-core's Python bindings load, and that they list the kernel's devices."""
    verbs = machine.verbs
    there = [device.name for device in machine.devices]
    if verbs.error:
        entry = "other pyverbs" if "No module named" not in verbs.error else "no pyverbs"
        status = Status.FAIL if there else Status.NOTE
        yield Finding(_VERBS, "pyverbs", status, verbs.error, _of(entry) if there else "", NIC)
        return
    version = machine.versions.get("pyverbs") or ("the distribution's" if "dist-packages" in verbs.origin else "of unknown release")
    if there and not verbs.names:
        text = f"{verbs.origin}: pyverbs sees no device, the kernel shows {', '.join(there)}"
        yield Finding(_VERBS, "pyverbs", Status.FAIL, text, _of("no provider"), NIC)
    else:
        yield Finding(_VERBS, "pyverbs", Status.OK, f"{version}, in {verbs.origin}; libibverbs {verbs.release or 'of unknown release'}")


def check_verbs(machine: Machine) -> Iterator[Finding]:
    """Check that this process may open each device with DevX, that the device has atomics, and that a queue pair to itself works."""
    for device in machine.devices:
        nic = machine.nics.get(device.name)
        if not device.uverbs:
            yield Finding(_VERBS, device.name, Status.FAIL, "has no device file in /dev/infiniband", _of("no verbs"), NIC, device.name)
        elif nic is None:
            continue
        elif nic.file:
            text = f"/dev/infiniband/{device.uverbs}: {nic.file}"
            yield Finding(_VERBS, device.name, Status.FAIL, text, _of("uverbs permission"), NIC, device.name)
        elif nic.error:
            yield Finding(_VERBS, device.name, Status.FAIL, f"does not open: {nic.error}", _for(nic.error), NIC, device.name)
        elif not nic.atomics and nic.devx:
            text = "does not support atomic operations: ibrc can move data, but atomics and signals raise an error"
            yield Finding(_VERBS, device.name, Status.WARN, text, _of("no atomics"), IBGDA, device.name)
        elif nic.devx:
            mlx5 = device.driver.startswith("mlx5")
            remedy = (_for(nic.devx, device.name) or _of("devx", device.name)) if mlx5 else ""
            status, text = Status.FAIL if mlx5 else Status.NOTE, f"{nic.devx} (ibrc can use it)"
            yield Finding(_VERBS, device.name, status, text, remedy, IBGDA, device.name)
        elif nic.queue_pair:
            text = f"opens with DevX; test of a queue pair to itself, in the host's memory: {nic.queue_pair}"
            remedy = _for(nic.queue_pair, device.name) or _of("refused", device.name)
            yield Finding(_VERBS, device.name, Status.FAIL, text, remedy, IBGDA, device.name)
        elif not nic.atomics:
            text = "opens with DevX, and ibgda performs atomics; libibverbs reports none, so they and signals raise an error over ibrc"
            yield Finding(_VERBS, device.name, Status.WARN, text, "PGAS_TRANSPORT=ibgda, or p2p,ibgda")
        elif not nic.pci_atomics and machine.gpus:
            text = "opens with DevX; its atomics are atomic with respect to each other, but not to those of CPUs and other NICs"
            yield Finding(_VERBS, device.name, Status.WARN, text, _of("pci atomics", device.name))
        else:
            tried = "" if nic.queue_pair is None else "; a queue pair to itself works, in the host's memory"
            yield Finding(_VERBS, device.name, Status.OK, f"opens, with DevX and atomics{tried}")


# ------------------------------------------------------------------------------------------------ GPU memory for the NIC

_MEMORY = "GPU memory for the NIC"


def check_gpu_memory(machine: Machine) -> Iterator[Finding]:
    """Check that a NIC can access GPU memory, by dma-buf or by a peer memory module."""
    if not machine.gpus or machine.simulator:
        return
    for device in machine.devices:
        if device.pci is None:
            text = "a software device cannot access GPU memory; use it in the simulator (NUMBA_ENABLE_CUDASIM=1)"
            yield Finding(_MEMORY, device.name, Status.NOTE, text, blocks=NIC, device=device.name)
    if not any(device.pci for device in machine.devices):
        return
    exported, kernel = all(gpu.dma_buf for gpu in machine.gpus), number(machine.kernel) >= _DMA_BUF_KERNEL
    old_module = machine.has("sys/kernel/mm/memory_peers/nv_mem") or machine.has("sys/module/nv_peer_mem")
    loaded = machine.has("sys/module/nvidia_peermem")
    known = machine.has("sys/kernel/mm/memory_peers/nvidia-peermem") or (loaded and machine.has("sys/kernel/mm/memory_peers"))
    missing = "the driver exports none" if kernel else f"Linux {machine.kernel} is older than 5.12"
    if exported and kernel:
        yield Finding(_MEMORY, "registration", Status.OK, f"by dma-buf (Linux {machine.kernel})")
    elif known:
        yield Finding(_MEMORY, "registration", Status.OK, f"by nvidia-peermem; no dma-buf: {missing}")
    elif loaded:
        text = f"nvidia-peermem is loaded, but this InfiniBand driver has no peer memory; no dma-buf: {missing}"
        yield Finding(_MEMORY, "registration", Status.FAIL, text, _of("inbox driver"), NIC)
    elif old_module:
        text = f"nv_peer_mem can register data but not queues; no dma-buf: {missing}"
        yield Finding(_MEMORY, "registration", Status.FAIL, text, _of("old peer memory"), IBGDA)
    else:
        entry = "peer memory" if not (exported or kernel) else "closed modules" if kernel else "old kernel"
        yield Finding(_MEMORY, "registration", Status.FAIL, f"no dma-buf: {missing}; no nvidia-peermem", _of(entry), NIC)


def check_ordering(machine: Machine) -> Iterator[Finding]:
    """Check that each GPU observes NIC writes in order. Otherwise, kernels order them by DUMPs, which take time (PGAS_NIC_ORDERING)."""
    if machine.simulator or not any(device.pci for device in machine.devices):
        return
    for gpu in machine.gpus:
        if gpu.writes_ordering < _ORDERED_FOR_GPU:
            text = f"{gpu.label} may observe NIC writes out of order: get, g, fetching atomics, and waits take longer through a NIC"
            yield Finding(_MEMORY, "ordering", Status.NOTE, text)


def check_peer_mapping(machine: Machine) -> Iterator[Finding]:
    """Check that the GPU itself may ring a NIC's doorbell register."""
    parameters = machine.text("proc/driver/nvidia/params")
    if not machine.gpus or machine.simulator or not parameters or not any(d.driver.startswith("mlx5") for d in machine.devices):
        return
    handler = machine.settings.get("PGAS_IBGDA_NIC_HANDLER", "auto")
    dwords = next((line for line in parameters.splitlines() if line.startswith("RegistryDwords:")), "")
    if "PeerMappingOverride=1" in dwords:
        yield Finding(_MEMORY, "doorbell", Status.OK, "PeerMappingOverride=1: kernels ring the NIC's doorbell")
    elif "SYS_ADMIN" in machine.capabilities:
        text = "PeerMappingOverride is not set: only kernels of processes with CAP_SYS_ADMIN can ring the NIC's doorbell"
        yield Finding(_MEMORY, "doorbell", Status.WARN, text, _of("peer mapping"))
    elif handler == "gpu":
        text = "PeerMappingOverride is not set, and PGAS_IBGDA_NIC_HANDLER=gpu"
        yield Finding(_MEMORY, "doorbell", Status.FAIL, text, _of("peer mapping"), IBGDA)
    else:
        text = "PeerMappingOverride is not set: ibgda uses a CPU thread to ring the NIC's doorbell, which is slower"
        yield Finding(_MEMORY, "doorbell", Status.WARN, text, _of("peer mapping"))


# -------------------------------------------------------------------------------------------------------------- limits

_LIMITS = "Limits"


def check_memlock(machine: Machine) -> Iterator[Finding]:
    """Check that this process may lock the memory that it registers with a NIC."""
    if machine.memlock < 0:
        yield Finding(_LIMITS, "memlock", Status.OK, "unlimited")
        return
    on_host = machine.simulator or not machine.gpus
    needed = _QUEUES + (machine.settings.get("PGAS_SYMMETRIC_SIZE", 1 << 30) if on_host else 0)
    text = f"at most {size_text(machine.memlock)} of memory can be locked (ulimit -l); a PE locks up to {size_text(needed)} for a NIC"
    if "IPC_LOCK" in machine.capabilities:
        yield Finding(_LIMITS, "memlock", Status.OK, f"{text}; not enforced for this process (CAP_IPC_LOCK)")
    elif machine.memlock >= needed:
        yield Finding(_LIMITS, "memlock", Status.OK, text)
    else:
        yield Finding(
            _LIMITS, "memlock", Status.FAIL if machine.devices else Status.NOTE, text, _of("memlock") if machine.devices else "", NIC
        )


# ----------------------------------------------------------------------------------------------------- MPI and versions

_SOFTWARE = "Software"


def check_mpi(machine: Machine) -> Iterator[Finding]:
    """Check that mpi4py finds a library, and that mpirun belongs to the same MPI. Only a job that mpirun starts needs it."""
    mpi, needed = machine.mpi, machine.launcher == "mpirun"
    status, blocks = (Status.FAIL, ALL) if needed else (Status.WARN, NONE)
    library, launcher = _family(mpi.library), _family(mpi.launcher)
    others = "python -m pgas.run, torchrun, and srun start jobs without MPI"
    if mpi.error and not (needed or mpi.mpirun):
        yield Finding(_SOFTWARE, "MPI", Status.NOTE, f"none ({mpi.error}); {others}")
    elif mpi.error:
        yield Finding(_SOFTWARE, "MPI", status, f"mpi4py does not load: {mpi.error}; {others}", _of("no mpi"), blocks)
    elif not (needed or mpi.mpirun):
        yield Finding(_SOFTWARE, "MPI", Status.NOTE, f"{mpi.library}; no mpirun on PATH; {others}")
    elif library and launcher and library != launcher:
        text = f"mpi4py loads {library} ({mpi.library}), but {mpi.mpirun} belongs to {launcher}; {others}"
        yield Finding(_SOFTWARE, "MPI", status, text, _of("another mpi"), blocks)
    else:
        yield Finding(_SOFTWARE, "MPI", Status.OK, f"{' '.join(mpi.library.split())}, {mpi.mpirun}")


def _family(text: str) -> str:
    """Return the MPI that a text names. The descendants of MPICH can start each other's processes."""
    families = {"Open MPI": ("open mpi", "open-mpi", "openrte", "prrte"), "MPICH": ("mpich", "hydra", "intel", "mvapich", "cray")}
    return next((family for family, words in families.items() if any(word in text.lower() for word in words)), "")


def check_versions(machine: Machine) -> Iterator[Finding]:
    """Check that the packages are installed in releases that pgas supports."""
    shown = ("numba-cuda", "numba", "numpy", "cuda-bindings", "cuda-core")
    wrong = [
        f"{name} {machine.versions.get(name, 'is missing')}, but {machine.required[name]} is required"
        for name in shown
        if name in machine.required and not _satisfies(machine.versions.get(name, ""), machine.required[name])
    ]
    numpy = any(text.startswith("numpy") for text in wrong)
    if wrong:
        mends = [*([_of("numpy")] if numpy else []), *([_of("versions")] if len(wrong) > numpy else [])]
        yield Finding(_SOFTWARE, "packages", Status.FAIL, "; ".join(wrong), "; ".join(mends), ALL)
    else:
        yield Finding(_SOFTWARE, "packages", Status.OK, ", ".join(f"{name} {machine.versions.get(name, '?')}" for name in shown))


def _satisfies(version: str, specifiers: str) -> bool:
    """Whether a version satisfies specifiers such as ``>=2.4,<2.5``."""
    numbers = tuple(int(part) for part in version.split(".") if part.isdigit())
    for specifier in specifiers.split(","):
        sign = specifier.rstrip("0123456789.")
        bound = tuple(int(part) for part in specifier[len(sign) :].split("."))
        padded = numbers + (0,) * (len(bound) - len(numbers))
        if not {">=": padded >= bound, "<": padded[: len(bound)] < bound, "==": padded[: len(bound)] == bound}.get(sign, True):
            return False
    return bool(numbers)


def check_compiler(machine: Machine) -> Iterator[Finding]:
    """Check that nvJitLink and ptxas can read the PTX of this libnvvm."""
    versions = machine.versions
    nvvm = versions.get("libnvvm", "")
    if not nvvm:
        text = "libnvvm: not installed as a wheel; kernels are compiled with the CUDA toolkit's"
        yield Finding(_SOFTWARE, "compiler", Status.NOTE, text)
        return
    text = ", ".join(f"{name} {versions[name]}" for name in ("libnvvm", "nvJitLink", "ptxas") if name in versions)
    older = [name for name in ("nvJitLink", "ptxas") if name in versions and number(versions[name]) < number(nvvm)]
    if not older:
        yield Finding(_SOFTWARE, "compiler", Status.OK, text)
    elif "nvJitLink" in older:
        yield Finding(_SOFTWARE, "compiler", Status.FAIL, f"{text}: nvJitLink is older than libnvvm", _of("ptxas"), ALL - {"simulator"})
    else:
        words = f"{text}: ptxas is older than libnvvm (needed by python -m pgas compile only)"
        yield Finding(_SOFTWARE, "compiler", Status.WARN, words, "pip install --upgrade 'pgas[cu13]' brings one that is as new as libnvvm")


def check_settings(machine: Machine) -> Iterator[Finding]:
    """Check that the PGAS_* variables have valid values."""
    for text in machine.bad_settings:
        yield Finding(_SOFTWARE, "variables", Status.FAIL, text, "python -m pgas info lists the variables", ALL)


CHECKS: tuple[Check, ...] = (
    check_driver, check_gpus, check_peer_access, check_mps, check_nics, check_wire, check_gids, check_pyverbs, check_verbs,
    check_gpu_memory, check_ordering, check_peer_mapping, check_memlock, check_mpi, check_versions, check_compiler, check_settings,
)  # fmt: skip
