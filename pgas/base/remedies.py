"""Known failures of machines, with cause and remedy: one table for the runtime's errors, ``python -m pgas doctor``, and its ``--explain``.

An entry is looked up by name if pgas has detected the condition itself, otherwise by an error message. The messages are those of pgas,
CUDA, rdma-core, NVSHMEM, and libraries on top of NVSHMEM, because users also search for these.
"""

import re
from dataclasses import dataclass

START_MPS = (
    "export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog; "
    "mkdir -p $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY; nvidia-cuda-mps-control -d"
)

_PEER_MEMORY = (
    "sudo modprobe nvidia-peermem (with the NIC's driver loaded first); "
    "or use dma-buf: NVIDIA's open kernel modules and Linux 5.12 or newer"
)
_OPEN_MODULES = "install NVIDIA's open kernel modules (e.g. nvidia-open, or nvidia-driver-580-open)"


def _code(number: int) -> str:
    """Return a pattern for an error of CUDA by its number alone, such as "error 803", "[803]", or "CUDA error: 803"."""
    return rf"^\W*{number}\W*$|\[{number}\]|\b(cuda|error)( code)?\W{{1,4}}{number}\b"


@dataclass(frozen=True)
class Remedy:
    """A known failure."""

    name: str
    messages: tuple[str, ...]  #: regular expressions of its messages
    cause: str
    remedy: str


_TABLE = (
    # ------------------------------------------------------------------------------------------------------- GPU and driver
    Remedy("no driver",
        (r"libcuda\.so\.1: cannot open", r'"cuda" is an NVIDIA driver library', r"no CUDA-capable device", r"no CUDA device is visible",
         r"CUDA_ERROR_NO_DEVICE", _code(100)),
        "no NVIDIA driver is loaded, or no GPU is visible to this process",
        "install a driver of release 580 or newer (nvidia-smi must list the GPUs); start a container with --gpus all; check "
        "CUDA_VISIBLE_DEVICES"),
    Remedy("simulator", (r"no CUDA device here.*kernels run in the simulator",),
        "this machine has no GPU, so kernels run on the CPU; this is a note, not an error",
        "nothing needs to be done; set NUMBA_ENABLE_CUDASIM=1 to suppress this note"),
    Remedy("old driver",
        (r"CUDA driver version is insufficient", r"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", r"unsupported display driver",
         r"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", r"CUDA_ERROR_INVALID_IMAGE.*version", _code(35), _code(803), _code(804)),
        "the driver is older than the CUDA packages of this environment, or its kernel module and its library are of different releases",
        "install a driver of release 580 or newer, and reboot (or reload the modules); or, for a driver from 525 on, pip install "
        "'pgas[cu12]' in an environment of its own"),
    Remedy("fabric manager",
        (r"CUDA_ERROR_SYSTEM_NOT_READY", r"system not yet initialized", _code(802)),
        "the NVSwitches of this machine have not been set up",
        "sudo systemctl enable --now nvidia-fabricmanager, of exactly the driver's release"),
    Remedy("compute mode",
        (r"CUDA_ERROR_DEVICE_UNAVAILABLE", r"all CUDA-capable devices are busy or unavailable", r"CUDA-capable device\(s\) is/are busy"),
        "the GPU's compute mode allows no process, or only one process, to use it",
        "sudo nvidia-smi -c DEFAULT (with -i N: of one GPU); or, where it must stay EXCLUSIVE_PROCESS, run the PEs under MPS"),
    Remedy("no mapping",
        (r"no virtual memory management", r"CUDA_ERROR_NOT_SUPPORTED.*cuMem(Create|Map|AddressReserve)"),
        "this GPU, or this virtual GPU, cannot map memory at a given address (cuMemMap), which the symmetric heap needs",
        "use a GPU of the Volta generation or newer, passed through whole; run in the simulator with NUMBA_ENABLE_CUDASIM=1"),
    Remedy("peer access",
        (r"no peer access", r"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", r"cannot map a peer's GPU memory"),
        "the driver does not allow one GPU to access another GPU's memory",
        "nvidia-smi topo -p2p r shows why; in a virtual machine the IOMMU and ACS must allow it (bare metal: intel_iommu=off or "
        "amd_iommu=off, ACS off on the switches); otherwise set PGAS_TRANSPORT=ibgda or ibrc"),
    Remedy("mps",
        (r"share one GPU .* without MPS", r"share one GPU \(.*time-slices"),
        "several processes share a GPU without MPS, so the GPU would time-slice their kernels in intervals of milliseconds",
        f"give every PE a GPU of its own, or start MPS first: {START_MPS}"),
    Remedy("mps server",
        (r"no context on GPU \d+ from its MPS server", r"CUDA_ERROR_MPS_(SERVER_NOT_READY|CLIENT_TERMINATED|RPC_FAILURE)"),
        "a process that shared the GPU died while its kernel ran, or its kernel failed; the MPS server then ends its other clients, and "
        "restarts when all clients are gone",
        "start the job again; if that does not help, restart MPS: echo quit | nvidia-cuda-mps-control; then nvidia-cuda-mps-control -d"),
    Remedy("registers",
        (r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", r"too many resources requested for launch", _code(701)),
        "the threads of a block together need more than the 65,536 registers of an SM",
        "launch smaller blocks, or give the compiler their size with @pgas.jit(launch_bounds=1024)"),
    Remedy("illegal address",
        (r"CUDA_ERROR_(ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE)", r"illegal memory access", r"misaligned address",
         *map(_code, (700, 716, 717))),
        "a kernel read or wrote memory that is not mapped, such as an element outside an array, a freed array, or another PE's memory that "
        "only a NIC can access",
        "run the program in the simulator (NUMBA_ENABLE_CUDASIM=1) or with PGAS_DEBUG=check, to find the line or the operand; for other "
        "accesses, use compute-sanitizer python prog.py. If another PE ended first, its message is the cause"),
    Remedy("kernel failed",
        (r"CUDA_ERROR_(LAUNCH_FAILED|ILLEGAL_INSTRUCTION|ASSERT|HARDWARE_STACK_ERROR|INVALID_PC)", r"unspecified launch failure",
         r"device-side assert", *map(_code, (710, 714, 715, 718, 719))),
        "a kernel ended with an error of its own, or the MPS server ended it because another process's kernel had failed",
        "read the first message of any PE; run in the simulator (NUMBA_ENABLE_CUDASIM=1), then with compute-sanitizer"),
    Remedy("launch timeout",
        (r"CUDA_ERROR_LAUNCH_TIMEOUT", r"launch timed out and was terminated", _code(702)),
        "a display uses this GPU, and the driver ends kernels that run for seconds; kernels that wait for other PEs may",
        'use a GPU without a display, or switch the limit off (Option "Interactive" "0" in xorg.conf)'),
    Remedy("gpu memory",
        (r"CUDA_ERROR_OUT_OF_MEMORY", r"CUDA\w* .*out of memory", r"^\W*out of memory", r"are free on this GPU"),
        "the GPU has too little free memory for the symmetric heap, for arrays of other libraries, or for kernels' stacks",
        "nvidia-smi names the processes that hold memory; choose a smaller PGAS_SYMMETRIC_SIZE, fewer PEs per GPU, or a limit for the "
        "other library (PyTorch: torch.cuda.set_per_process_memory_fraction)"),
    Remedy("device ordinal",
        (r"CUDA_ERROR_INVALID_DEVICE", r"invalid device ordinal", _code(101)),
        "the program or a variable names a GPU that is not visible to this process; CUDA numbers those in CUDA_VISIBLE_DEVICES from 0",
        "leave the choice to pgas.init(), which gives each PE of a node a GPU; check CUDA_VISIBLE_DEVICES, PGAS_SOFTHCA_DEVICE, and "
        "nvidia-smi -L"),
    Remedy("unknown cuda error",
        (r"CUDA_ERROR_UNKNOWN", r"CUDA\w* .*unknown error", r"^\W*unknown error", _code(999)),
        "the driver failed internally, often because a module was not loaded again after sleep or an update, a container lacks device "
        "files, or a GPU fell off the bus",
        "sudo dmesg | grep -i xid names errors of the GPU; sudo modprobe -r nvidia_uvm and sudo modprobe nvidia_uvm, or reboot; start a "
        "container with --gpus all"),
    Remedy("other architecture",
        (r"CUDA_ERROR_(NO_BINARY_FOR_GPU|INVALID_SOURCE)", r"no kernel image is available", *map(_code, (209, 300))),
        "the code was compiled for another kind of GPU than the one that runs it",
        "update numba-cuda and the CUDA packages (pip install --upgrade 'pgas[cu13]' or 'pgas[cu12]'); libraries such as PyTorch need a "
        "build for this GPU"),
    Remedy("grid too large",
        (r"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", r"too many blocks in cooperative launch",
         r"blocks? of \S+ threads cannot run concurrently", _code(720)),
        "kernels with grid barriers need all blocks on the GPU concurrently, but these blocks do not fit",
        "launch fewer or smaller blocks; the message of pgas.launch gives the maximum; python -m pgas compile prints registers"),
    Remedy("cuda arguments",
        (r"CUDA_ERROR_(INVALID_VALUE|INVALID_HANDLE|INVALID_CONTEXT|CONTEXT_IS_DESTROYED|NOT_INITIALIZED|DEINITIALIZED)",
         r"invalid argument.*cu[A-Z]|cu[A-Z]\w+.*invalid argument", r"invalid (resource handle|device context)",
         *map(_code, (201, 400, 709))),
        "CUDA received an object that no longer exists or belongs to another context: a stream, event, or array from before a fork, from "
        "another GPU, or used after the job ended",
        "use streams and arrays in the process and job that made them, free them before pgas.finalize(), and start workers with spawn, not "
        "fork"),
    Remedy("capture",
        (r"CUDA_ERROR_STREAM_CAPTURE_\w+", r"(being captured|operation not permitted when stream is capturing)", r"cannot be captured",
         *map(_code, range(900, 909))),
        "a call that waits, or that CUDA does not allow there, was made while a stream was being captured into a graph",
        "make calls that return a value, allocate, or synchronize outside the capture; put the operation into a kernel"),
    Remedy("ecc",
        (r"CUDA_ERROR_(ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|CONTAINED|UNCONTAINED)\w*", r"uncorrectable (ECC|NVLink) error",
         *map(_code, (214, 220))),
        "the GPU's memory or an NVLink has a hardware error",
        "sudo nvidia-smi -r (or reboot); nvidia-smi -q -d ECC,ROW_REMAPPER; if it comes back, replace the GPU"),
    # ---------------------------------------------------------------------------------------------------- GPU memory and NIC
    Remedy("peer mapping",
        (r"cudaHostRegister with IoMemory failed with error=800", r"ibgda_nic_mem_gpu_map failed", r"GPU cannot map UAR of device",
         r"cuMemHostRegister.*(CUDA_ERROR_NOT_PERMITTED|error.?800)"),
        "the driver does not allow an unprivileged process to map the NIC's doorbell register into the GPU",
        "echo 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' | "
        "sudo tee /etc/modprobe.d/nvidia-pgas.conf; sudo update-initramfs -u (Red Hat: dracut -f); reboot. "
        "Until then, set PGAS_IBGDA_NIC_HANDLER=cpu to have a CPU thread ring the NIC's doorbell"),
    Remedy("peer memory",
        (r"neither nv_peer_mem,? or nvidia_peermem detected", r"cannot allocate buffer on the specified memory type",
         r"cannot use .* of the GPU: "),
        "the NIC cannot access GPU memory: the driver offers no dma-buf, and no peer memory module is loaded",
        _PEER_MEMORY),
    Remedy("old kernel",
        (r"(?<!by address \()mlx5dv_devx_umem_reg_ex[^;]*(errno 14|errno=14|EFAULT|Bad address)",
         r"(ibv_)?reg_dmabuf_mr.*(EFAULT|Bad address|EOPNOTSUPP|not supported)"),
        "the kernel is too old to register GPU memory with the NIC as dma-buf (this needs Linux 5.12)",
        "sudo modprobe nvidia-peermem; or a newer kernel, or MLNX_OFED / DOCA-OFED, which bring dma-buf to older ones"),
    Remedy("inbox driver",
        (r"(mlx5dv_devx_umem_reg\b(?!_ex)|by address \(mlx5dv_devx_umem_reg_ex).*(errno 14|errno=14|EFAULT|Bad address)",
         r"ibv_reg_mr.*(EFAULT|Bad address)"),
        "GPU memory was registered as peer memory, which the kernel's own InfiniBand driver does not support (MLNX_OFED's does)",
        f"use dma-buf: {_OPEN_MODULES} and Linux 5.12 or newer; or install MLNX_OFED / DOCA-OFED and load nvidia-peermem"),
    Remedy("old peer memory", (r"mlx5dv_devx_umem_reg\b.*(failed|nv_peer_mem)(?!.*(EFAULT|Bad address|errno.14))",),
        "the module nv_peer_mem cannot give the NIC queues in GPU memory (UMEM)",
        "sudo rmmod nv_peer_mem; sudo modprobe nvidia-peermem, which comes with the GPU's driver"),
    Remedy("closed modules",
        (r"CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED.*0", r"cuMemGetHandleForAddressRange.*CUDA_ERROR_NOT_SUPPORTED"),
        "the GPU's driver does not export its memory as dma-buf: its kernel modules are the closed ones, or the kernel is older than 5.12",
        f"{_OPEN_MODULES}; or sudo modprobe nvidia-peermem"),
    Remedy("pci atomics",
        (r"does not support all necessary atomic operations", r"PCI_ATOMIC_MODE", r"lacks capabilities:.*\batomic(_\w+)? is"),
        "the NIC's firmware is not set up to perform every atomic operation on memory behind PCIe",
        "sudo mlxconfig -y -d DEVICE set PCI_ATOMIC_MODE=4, then reboot (mlxfwreset -d DEVICE reset)"),
    Remedy("no atomics",
        (r"RDMA device \S+ has no(ne| atomic)", r"IBV_ATOMIC_NONE", r"atomic_cap is ATOMIC_NONE"),
        "the RDMA device does not support atomic operations (iWARP devices and siw never do)",
        "choose another device with PGAS_HCA; Soft-RoCE and all ConnectX devices support them"),
    Remedy("cqe version",
        (r"hca_cap\.cqe_version != 1", r"cqe_version (is 0|.*is not supported)"),
        "the NIC writes completions in an older format than the one that kernels read",
        "use a ConnectX-4 or newer, with its current firmware (sudo mlxfwmanager -d DEVICE --online -u)"),
    # ------------------------------------------------------------------------------------------------------- NIC, port, GID
    Remedy("no verbs",
        (r"Failed to get devices list", r"ib_uverbs", r"no RDMA device(s)? (here|found)?"),
        "the kernel shows user space no RDMA device",
        "sudo modprobe ib_uverbs mlx5_ib (Soft-RoCE: sudo modprobe rdma_rxe; sudo rdma link add rxe0 type rxe netdev eth0)"),
    Remedy("uverbs permission",
        (r"/dev/infiniband/uverbs\d+.*(Permission denied|EACCES|No such file|ENOENT)", r"(Permission denied|EACCES).*uverbs",
         r"RDMA device \S+ cannot be opened"),
        "this process may not open the device's file in /dev/infiniband",
        "sudo chmod a+rw /dev/infiniband/uverbs* (rdma-core's udev rules do it); in a container: --device=/dev/infiniband "
        "--cap-add=IPC_LOCK --ulimit memlock=-1"),
    Remedy("devx",
        (r"cannot be opened for DevX", r"(open|create).*DEVX.*(failed|not supported|EOPNOTSUPP)", r"MLX5DV_CONTEXT_FLAGS_DEVX",
         r"no DevX context"),
        "the device can be opened, but not with DevX, which ibgda needs for the kernels' queues",
        "sudo mlxconfig -y -d DEVICE set UCTX_EN=1, then reboot; a virtual function needs it allowed by the host; Linux 4.19 or newer"),
    Remedy("memlock",
        (r"(reg_mr|reg_dmabuf_mr|umem_reg|create_cq|create_qp|regist\w+).*(ENOMEM|Cannot allocate memory|errno.?12)", r"RLIMIT_MEMLOCK",
         r"max locked memory"),
        "this process may not lock as much memory as it registers with the NIC",
        "ulimit -l unlimited (/etc/security/limits.d/rdma.conf: '* - memlock unlimited', then log in again); in a container: --ulimit "
        "memlock=-1 --cap-add=IPC_LOCK; systemd: LimitMEMLOCK=infinity; Slurm: PropagateResourceLimitsExcept=MEMLOCK"),
    Remedy("link down",
        (r"port \d+ is DOWN", r"the port is not active", r"IBV_PORT_DOWN", r"(Polling|Disabled)\)"),
        "the port has no link: a cable, the other end, or an interface that is switched off",
        "sudo ip link set DEV up (rdma link names DEV); look at cable and switch with ibstat and ethtool DEV"),
    Remedy("subnet manager",
        (r"port \d+ is (INIT|ARMED)", r"IBV_PORT_(INIT|ARMED)"),
        "the InfiniBand port has a link, but no subnet manager has given it an address",
        "start one on the fabric (sudo systemctl start opensm), or on the switch"),
    Remedy("gid",
        (r"Unable to create ah", r"finds no route from GID", r"GID[_ ]INDEX.*no such GID",
         r"modify.*RTR.*(EINVAL|Invalid argument|ENETUNREACH|ETIMEDOUT|No route)"),
        "RoCE packets have no route: the port's GID is missing, belongs to a different network than the peer's, or cannot be resolved to a "
        "MAC address",
        "give the interface of the port an IPv4 address in the peers' network (ip addr add 192.168.1.1/24 dev DEV), check with ping, and "
        "leave PGAS_IB_GID_INDEX at -1, or set it to a RoCE v2 entry of that network (show_gids)"),
    Remedy("no answer",
        (r"IBV_WC_RETRY_EXC_ERR", r"(transport )?retry (counter )?exce", r"(TRANSPORT|RNR)_RETRY_EXC_ERR", r"PE \d+ does not answer"),
        "the peer did not acknowledge: its process died, or packets are being lost",
        "read the other PEs' messages first; then check the link (ping, rping, ethtool -S), equal MTUs, and for RoCE that the switch is "
        "lossless for PGAS_IB_TRAFFIC_CLASS; increase PGAS_IB_TIMEOUT and PGAS_IB_RETRY_COUNT to wait longer"),
    Remedy("refused", (r"\b[A-Z0-9_]+ failed: [A-Z_]+ \(.*\), syndrome 0x",),
        "the NIC's firmware refuses a command, or behaves differently from pgas's description of it",
        "sudo dmesg | grep mlx5 shows the command; bring the firmware up to date (sudo mlxfwmanager -d DEVICE --online -u), and report it "
        "with the syndrome: docs/rdma.md"),
    # ------------------------------------------------------------------------------------------------------------ processes
    Remedy("descriptors", (r"cannot pass memory between processes",),
        "the PEs of a node cannot pass file descriptors to each other through Unix sockets",
        "allow more open files (ulimit -n); start all PEs of a node in one container, because sockets do not reach into another"),
    Remedy("open files",
        (r"Too many open files", r"\bEMFILE\b"),
        "the process may not open as many files as it needs: a PE needs some of its own and, while it maps the heap, one for every peer",
        "ulimit -n 4096 in the shell that starts the job (ulimit -Hn shows the maximum); in a container --ulimit nofile=4096"),
    Remedy("no mpi",
        (r"mpi4py finds no MPI library", r"cannot load MPI library", r"libmpi\.so.*cannot open shared object",
         r"No module named 'mpi4py'"),
        "mpi4py found no MPI library to load",
        "install that of your mpirun, or pip install 'pgas[mpich]' and use its mpirun (.venv/bin/mpirun)"),
    Remedy("another mpi",
        (r"each is alone in its job", r"belong to different MPIs"),
        "mpirun and the library that mpi4py loaded belong to different MPIs, so that every process is alone in its job",
        "use the mpirun that belongs to that library; the one from pip is in the same directory as python (.venv/bin/mpirun)"),
    # ------------------------------------------------------------------------------------------------------------- versions
    Remedy("numpy",
        (r"Numba needs NumPy 2\.4 or less", r"numpy.*2\.5", r"numpy.*has no attribute 'row_stack'"),
        "with numpy 2.5, numba 0.68.0 does not load, and numba-cuda 0.30.4 does not compile",
        "pip install 'numpy>=2.2,<2.5'"),
    Remedy("ptxas",
        (r"Unsupported \.version [\d.]+; current version is", r"PTX .version .* does not support", r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        "the PTX consumer (ptxas, nvJitLink, or the driver) is older than the libnvvm that generated the PTX",
        "pip install --upgrade 'pgas[cu13]' or 'pgas[cu12]' (developers: pgas[dev]), which bring them of one release; unset CUDA_HOME and "
        "CUDA_PATH if they name another toolkit"),
    Remedy("versions",
        (r"No module named '(numba_cuda|numba|cuda)", r"libnvvm.*(not found|cannot open)", r"NVVM library .* could not be found"),
        "a package for compiling kernels is missing, or its release has not been tested with pgas",
        "pip install --upgrade 'pgas[cu13]' ('pgas[cu12]' for a driver of CUDA 12), in an environment of its own"),
    Remedy("no matplotlib", (r"pictures need matplotlib", r"No module named 'matplotlib'"),
        "matplotlib, which draws the pictures of --plot, is not in this environment",
        "pip install 'pgas[plot]'"),
    Remedy("no pyverbs", (r"No module named 'pyverbs'",),
        "rdma-core's Python bindings are not in this environment",
        "sudo apt install python3-pyverbs ibverbs-providers, and for a virtual environment of the same Python version: ln -s "
        "/usr/lib/python3/dist-packages/pyverbs .venv/lib/python3.*/site-packages/"),
    Remedy("other pyverbs",
        (r"IBVERBS_PRIVATE_\d+", r"libibverbs.*(cannot open shared object|version .* not found)",
         r"pyverbs.*(undefined symbol|cannot open)"),
        "pyverbs and libibverbs belong to different releases of rdma-core, and their private interface differs from release to release",
        "use both from one source: the distribution's python3-pyverbs with its libibverbs1 and ibverbs-providers"),
    Remedy("no provider",
        (r"couldn't load driver '?lib\w+-rdmav", r"no userspace device-specific driver", r"pyverbs sees no device"),
        "libibverbs finds no user-space driver for the device, or pyverbs brought a libibverbs of its own, which finds none",
        "sudo apt install ibverbs-providers; use the distribution's python3-pyverbs, not a wheel with its own libibverbs"),
)  # fmt: skip

REMEDIES: dict[str, Remedy] = {entry.name: entry for entry in _TABLE}


def mend(name: str) -> str:
    """Return the remedy of a known failure, for the end of an error's text."""
    return REMEDIES[name].remedy


def explain(message: str) -> list[Remedy]:
    """Return the entries that match a message."""
    text = " ".join(message.split())
    return [entry for entry in _TABLE if any(re.search(pattern, text, re.IGNORECASE) for pattern in entry.messages)]
