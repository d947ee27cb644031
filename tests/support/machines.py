"""Fake machines in a folder: the files of /sys, /proc and /dev that describe GPUs and NICs."""

import os
from pathlib import Path

from pgas.base import config
from pgas.doctor import machine as machine_facts
from pgas.doctor.machine import Gpu, Mpi, Nic, Verbs

ZERO_GID = ":".join(["0000"] * 8)


def ipv4_gid(address):
    high, low = (address[i] << 8 | address[i + 1] for i in (0, 2))
    return f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"


#: (GID, kind, network interface) by index, for an interface with one IPv4 address.
ROCE_GIDS = [
    ("fe80:0000:0000:0000:0202:c9ff:fe00:0001", "IB/RoCE v1", "eth0"),
    ("fe80:0000:0000:0000:0202:c9ff:fe00:0001", "RoCE v2", "eth0"),
    (ipv4_gid((192, 168, 1, 7)), "IB/RoCE v1", "eth0"),
    (ipv4_gid((192, 168, 1, 7)), "RoCE v2", "eth0"),
]


class Machine:
    """A file tree under ``root``; links are relative, as in sysfs."""

    def __init__(self, root, numa_nodes=1, kernel="6.8.0-45-generic"):
        self.root = Path(root)
        for node in range(numa_nodes):
            (self.root / f"sys/devices/system/node/node{node}").mkdir(parents=True)
        self.write("proc/sys/kernel/osrelease", kernel)

    def write(self, path, text="", mode=0o644):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        target.chmod(mode)
        return target

    def link(self, path, target):
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self.root / target, place.parent))

    def pci(self, path, driver="", numa_node=0, **files):
        """Add a PCI device, e.g. ``pci0000:00/0000:00:01.0/0000:01:00.0``; return its path below the root."""
        place, address = f"sys/devices/{path}", path.rsplit("/", maxsplit=1)[-1]
        self.write(f"{place}/numa_node", numa_node)
        for name, text in files.items():
            self.write(f"{place}/{name}", text)
        if driver:
            (self.root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{place}/driver", f"sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/devices/{address}", place)
        return place

    def gpu(self, path, numa_node=0):
        self.pci(path, "nvidia", numa_node, vendor="0x10de")
        self.write(f"sys/devices/{path}/class", "0x030200")
        return path.rsplit("/", maxsplit=1)[-1]

    def nic(self, name, path=None, ports=({},), driver="mlx5_core", numa_node=0, firmware="28.39.1002", uverbs=True, below=""):
        """Add an RDMA device. path None: Soft-RoCE. below: an auxiliary device between PCI and RDMA device, as for a subfunction."""
        if path is None:
            place = f"sys/devices/virtual/infiniband/{name}"
            self.write(f"{place}/parent", "eth0")
        else:
            parent = self.pci(path, driver, numa_node) + below
            place = f"{parent}/infiniband/{name}"
            (self.root / place).mkdir(parents=True)
            self.link(f"{place}/device", parent)
            self.write(f"{place}/fw_ver", firmware)
        self.link(f"sys/class/infiniband/{name}", place)
        if uverbs:
            number = len(list((self.root / "sys/class/infiniband_verbs").glob("uverbs*")))
            self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", name)
            self.write(f"dev/infiniband/uverbs{number}", mode=0o666)
        for i, port in enumerate(ports, 1):
            self.port(f"{place}/ports/{i}", **port)

    def port(
        self, place, state="4: ACTIVE", phys_state="5: LinkUp", layer="Ethernet", rate="200 Gb/sec (4X HDR)", lid="0x0", gids=ROCE_GIDS
    ):
        for name, text in (("state", state), ("phys_state", phys_state), ("link_layer", layer), ("rate", rate), ("lid", lid)):
            self.write(f"{place}/{name}", text)
        for index in range(max(len(gids), 4)):
            gid, kind, netdev = gids[index] if index < len(gids) else (ZERO_GID, None, None)
            self.write(f"{place}/gids/{index}", gid)
            if kind is not None:  # reading an unused entry fails
                self.write(f"{place}/gid_attrs/types/{index}", kind)
            if netdev:
                self.write(f"{place}/gid_attrs/ndevs/{index}", netdev)


DOWN = {"state": "1: DOWN", "phys_state": "3: Disabled", "gids": ROCE_GIDS[:2]}
INFINIBAND = {
    "layer": "InfiniBand",
    "rate": "400 Gb/sec (4X NDR)",
    "lid": "0x1a",
    "gids": [("fe80:0000:0000:0000:b8ce:f603:00aa:bb01", "IB/RoCE v1", "")],
}


def dgx(root, ports=({},), per_node=2):
    """Return (machine, GPUs): GPUs and NICs on two NUMA nodes; a switch below each root port has one of each."""
    machine = Machine(root, numa_nodes=2)
    gpus = []
    for i in range(2 * per_node):
        node = i // per_node
        bus, first = ("00", "80")[node], 0x10 * (i + 1)
        switch = f"pci0000:{bus}/0000:{bus}:0{i % per_node + 1}.0/0000:{first:02x}:00.0"
        places = [f"{switch}/0000:{first + 1:02x}:0{port}.0/0000:{first + 2 + port:02x}:00.0" for port in range(2)]
        gpus.append(machine.gpu(places[0], node))
        machine.nic(f"mlx5_{i}", places[1], ports, numa_node=node)
        for place in places:
            machine.write(f"sys/devices/{place}/local_cpulist", ("0-31", "32-63")[node])
    return machine, gpus


GIB = 1 << 30
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)"
CLOSED_DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:00:00 UTC 2025"
REQUIRED = {
    "numba-cuda": "==0.30.4",
    "numba": ">=0.68,<0.69",
    "numpy": "<2.5,>=2.2",
    "cuda-bindings": "<14,>=12.9.10",
    "cuda-core": "<2,>=1.2",
}
VERSIONS = {
    "numba-cuda": "0.30.4",
    "numba": "0.68.0",
    "numpy": "2.4.6",
    "cuda-bindings": "13.5.0",
    "cuda-core": "1.2.0",
    "libnvvm": "13.4.92",
    "nvJitLink": "13.5.37",
    "ptxas": "13.4",
}


def sound(root, gpus, **fields):
    """Return the probes' answers for a machine without faults: all GPUs reach each other over 18 NVLinks, all NICs open."""
    count = len(gpus)
    names = [path.name for path in sorted((Path(root) / "sys/class/infiniband").glob("*"))]
    answers = {
        "root": Path(root),
        "host": "alpha",
        "simulator": not gpus,
        "cuda": 13000 if gpus else 0,
        "gpus": tuple(Gpu(i, "NVIDIA H100 80GB HBM3", f"GPU-{i}", pci, 80 * GIB) for i, pci in enumerate(gpus)),
        "access": tuple((True,) * count for _ in gpus),
        "nvlinks": tuple(tuple(0 if a == b else 18 for b in range(count)) for a in range(count)),
        "nics": {name: Nic() for name in names},
        "verbs": Verbs("/usr/lib/python3/dist-packages/pyverbs", "44.0", names=tuple(names)),
        "mpi": Mpi("MPICH Version: 5.0.2", mpirun="/opt/venv/bin/mpirun", launcher="HYDRA build details:\n Version: 5.0.2"),
        "versions": VERSIONS,
        "required": REQUIRED,
        "settings": {name: variable.parse(variable.default) for name, variable in config.VARIABLES.items()},
    }
    return machine_facts.Machine(**answers | fields)


def cluster(root, per_node=2, **fields):
    """Return the machine of dgx() with driver, peer mapping and no fault."""
    machine, gpus = dgx(root, per_node=per_node)
    machine.write("proc/driver/nvidia/version", DRIVER)
    machine.write("proc/driver/nvidia/params", 'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"')
    machine.write("sys/devices/system/cpu/online", "0-63")
    return machine, sound(root, gpus, **fields)
