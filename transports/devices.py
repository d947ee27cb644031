"""RDMA devices with their ports and GIDs, and the distance of PCI devices, all from sysfs. No device is opened.

All functions take the root of a file tree, so that a test can model a machine in a directory. Sources: Linux's
Documentation/ABI/stable/sysfs-class-infiniband, and the legend of ``nvidia-smi topo -m`` for the names of distances.
"""

import os
import re
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address
from pathlib import Path

#: Directory that contains sysfs; libibverbs looks for sysfs in SYSFS_PATH if set, otherwise in /sys.
ROOT = Path(os.environ.get("SYSFS_PATH", "/sys")).parent

#: Node type of InfiniBand and RoCE devices.
CHANNEL_ADAPTER = "CA"

ROCE_V1, ROCE_V2 = "IB/RoCE v1", "RoCE v2"

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


class Distance(IntEnum):
    """The path between two PCI devices, nearest first, with the names of ``nvidia-smi topo -m``."""

    SELF = 0  #: X: the same device
    PIX = 1  #: at most a single PCIe bridge (one switch; functions of one card)
    PXB = 2  #: several PCIe bridges, but no host bridge
    PHB = 3  #: a PCIe host bridge, typically the CPU
    NODE = 4  #: the interconnect between the host bridges of one NUMA node
    SYS = 5  #: the interconnect between NUMA nodes

    def __str__(self) -> str:
        return "X" if self is Distance.SELF else self.name


@dataclass(frozen=True)
class Gid:
    """A used entry of a port's GID table."""

    index: int
    raw: bytes  #: 16 bytes, as on the wire
    kind: str  #: "IB/RoCE v1" or "RoCE v2", "" if the kernel does not report it
    netdev: str  #: its network interface; "" on InfiniBand, or in another network namespace

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address of a mapped GID (``::ffff:a.b.c.d``), None for other GIDs."""
        mapped = IPv6Address(self.raw).ipv4_mapped
        return None if mapped is None else str(mapped)

    @property
    def link_local(self) -> bool:
        """Whether its prefix is fe80::/64, the default GID of a port, which is not routable."""
        return self.raw[:8] == b"\xfe\x80" + bytes(6)

    def __str__(self) -> str:
        return f"{self.index} ({self.ipv4 or IPv6Address(self.raw)}{f', {self.kind}' if self.kind else ''})"


@dataclass(frozen=True)
class Port:
    """A port of an RDMA device."""

    number: int  #: starting at 1
    state: str  #: logical: "ACTIVE", "INIT", "ARMED", "DOWN"; "" if the kernel does not report it
    physical_state: str  #: "LinkUp", "Polling", "Disabled", ...
    link_layer: str  #: "InfiniBand" or "Ethernet"
    rate_gbps: float  #: 10^9 bits per second, 0 if unknown
    lid: int  #: 0 on Ethernet
    gids: tuple[Gid, ...]  #: entries in use, by index

    @property
    def active(self) -> bool:
        """Whether the port can carry traffic."""
        return self.state == "ACTIVE"

    @property
    def down(self) -> str:
        """Text about the state of a port that is not active, otherwise ""."""
        return "" if self.active else f"{self.state or 'in an unknown state'} (physical state {self.physical_state or 'unknown'})"


@dataclass(frozen=True)
class Device:
    """An RDMA device (HCA)."""

    name: str  #: e.g. "mlx5_0", "rxe0"
    driver: str  #: the driver of its PCI device, e.g. "mlx5_core"; "rxe" for Soft-RoCE; "" if unknown
    pci: str | None  #: bus address, e.g. "0000:3b:00.0"; None for a software device
    numa_node: int  #: -1 if unknown or none
    ports: tuple[Port, ...]
    uverbs: str  #: its file in /dev/infiniband, such as "uverbs0"; "" if ib_uverbs is not loaded
    firmware: str  #: e.g. "28.39.1002", "" if it has none
    node_type: str = CHANNEL_ADAPTER  #: "RNIC" for iWARP; others are vendor-specific

    def port(self, number: int) -> Port | None:
        return next((port for port in self.ports if port.number == number), None)


def read(path: Path) -> str | None:
    """Return the stripped text of a small file, None if it does not exist or cannot be read (an unused GID gives EINVAL)."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def pci_address(text: str) -> str:
    """Convert a PCI bus address, e.g. NVML's ``00000000:3B:00.0`` or CUDA's ``0000:3B:00``, to the form of sysfs.

    Raises:
        ValueError: text is not a PCI bus address.
    """
    match = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI bus address (domain:bus:device.function)")
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4] or '0'}"


def devices(root: Path = ROOT) -> list[Device]:
    """Return the RDMA devices of the machine in the order of their names; none if the kernel has no InfiniBand subsystem."""
    return [_device(path, root) for path in _entries(root / "sys/class/infiniband")]


def distance(a: str, b: str, root: Path = ROOT) -> Distance:
    """Return the distance of two PCI devices.

    Args:
        a, b: bus addresses as sysfs writes them.
        root: root of the file tree.

    Raises:
        ValueError: the machine has no such device.
    """
    if a == b:
        return Distance.SELF
    path_a, path_b = _path(a, root), _path(b, root)
    shared = next((i for i, (x, y) in enumerate(zip(path_a, path_b, strict=False)) if x != y), min(len(path_a), len(path_b)))
    if shared == 0:
        node_a, node_b = numa_node(a, root), numa_node(b, root)
        nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
        return Distance.NODE if nodes <= 1 or (node_a == node_b and node_a >= 0) else Distance.SYS
    if shared == 1:
        return Distance.PHB
    # Two devices below the same switch differ in the switch's port and the device; functions of one card differ only in the device.
    return Distance.PIX if max(len(path_a), len(path_b)) - shared <= 2 else Distance.PXB


def nearest(pci: str, candidates: list[Device], root: Path = ROOT) -> list[tuple[Distance, Device]]:
    """Return devices with their distance from a PCI device, nearest first, otherwise in the given order; software devices come last.

    Raises:
        ValueError: the machine has no PCI device of that address.
    """
    _path(pci, root)
    found = [(Distance.SYS if device.pci is None else distance(pci, device.pci, root), device) for device in candidates]
    return sorted(found, key=lambda pair: (pair[0], pair[1].pci is None))


def numa_node(pci: str, root: Path = ROOT) -> int:
    """Return the NUMA node of a PCI device, -1 if unknown or none."""
    return _integer(read(root / "sys/bus/pci/devices" / pci / "numa_node"), -1)


def _path(pci: str, root: Path) -> list[str]:
    """Return the path of a PCI device in /sys/devices: host bridge, bridges, the device itself."""
    link = root / "sys/bus/pci/devices" / pci
    if not link.exists():
        raise ValueError(f"there is no PCI device {pci} on this machine")
    parts = link.resolve().parts
    bridge = max((i for i, part in enumerate(parts) if _HOST_BRIDGE.fullmatch(part)), default=len(parts) - 1)
    return list(parts[bridge:])


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a directory, with numbers in names in numeric order; [] if there is no directory."""
    if not folder.is_dir():
        return []
    return sorted(folder.iterdir(), key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])


def _device(path: Path, root: Path) -> Device:
    parent = None if (path / "parent").exists() else _pci_parent(path / "device")
    if parent is not None:
        pci, driver = parent.name, (parent / "driver").resolve().name if (parent / "driver").exists() else ""
    else:
        pci, driver = None, "rxe" if (path / "parent").exists() else ""  # only rxe has this file, which names its network interface
    verbs = next((entry.name for entry in _entries(root / "sys/class/infiniband_verbs") if read(entry / "ibdev") == path.name), "")
    return Device(
        name=path.name,
        driver=driver,
        pci=pci,
        numa_node=-1 if pci is None else numa_node(pci, root),
        ports=tuple(_port(entry) for entry in _entries(path / "ports") if entry.name.isdigit()),
        uverbs=verbs,
        firmware=read(path / "fw_ver") or "",
        node_type=_word(read(path / "node_type")) or CHANNEL_ADAPTER,
    )


def _pci_parent(device: Path) -> Path | None:
    """Return the PCI device of an RDMA device: its device, or the one above it if that is a subfunction."""
    if not device.exists():
        return None
    resolved = device.resolve()
    return next((place for place in (resolved, *resolved.parents) if _PCI.fullmatch(place.name)), None)


def _port(path: Path) -> Port:
    rate = re.match(r"[\d.]+", read(path / "rate") or "")
    return Port(
        number=int(path.name),
        state=_word(read(path / "state")),
        physical_state=_word(read(path / "phys_state")),
        link_layer=read(path / "link_layer") or "",
        rate_gbps=float(rate[0]) if rate else 0.0,
        lid=_integer(read(path / "lid"), 0),
        gids=tuple(gid for entry in _entries(path / "gids") if (gid := _gid(path, entry)) is not None),
    )


def _gid(port: Path, entry: Path) -> Gid | None:
    text = read(entry)
    raw = bytes.fromhex(text.replace(":", "")) if text and re.fullmatch(r"([0-9a-f]{4}:){7}[0-9a-f]{4}", text) else bytes(16)
    if not any(raw):
        return None
    attributes = port / "gid_attrs"
    return Gid(int(entry.name), raw, read(attributes / "types" / entry.name) or "", read(attributes / "ndevs" / entry.name) or "")


def _word(text: str | None) -> str:
    """Return the word after the number in text such as ``4: ACTIVE``."""
    return (text or "").partition(":")[2].strip()


def _integer(text: str | None, otherwise: int) -> int:
    try:
        return int(text or "", 0)
    except ValueError:
        return otherwise
