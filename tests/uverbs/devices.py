"""The emulated devices: a tree of sysfs files for libibverbs, and properties that tests change."""

from dataclasses import dataclass, field
from pathlib import Path

#: The PCI modalias of a ConnectX-6, for which libibverbs loads libmlx5.
_MODALIAS = "pci:v000015B3d0000101Bsv000015B3sd00000001bc02sc07i00"

#: The device number of /dev/zero, which the shim opens instead.
_DEV_ZERO = "1:5"


@dataclass(frozen=True)
class Gid:
    """An entry of a port's GID table."""

    gid: bytes
    type: str  #: in sysfs's words: "IB/RoCE v1" or "RoCE v2"

    @property
    def text(self) -> str:
        """The GID in the form of sysfs."""
        return ":".join(self.gid[i : i + 2].hex() for i in range(0, 16, 2))


@dataclass(frozen=True)
class Device:
    name: str
    node: str
    link_layer: str  #: "InfiniBand" or "Ethernet"
    gids: tuple[Gid, ...]
    mac: bytes = bytes(6)
    lid: int = 1

    @property
    def guid(self) -> bytes:
        return bytes.fromhex("020000fffe00") + (DEVICES.index(self) + 1).to_bytes(2, "big")

    @property
    def ethernet(self) -> bool:
        """Whether it is a RoCE device."""
        return self.link_layer == "Ethernet"


_V1, _V2 = "IB/RoCE v1", "RoCE v2"
_LINK_LOCAL = bytes.fromhex("fe80000000000000020000fffe000002")
_IPV4 = bytes(10) + b"\xff\xff" + bytes([192, 168, 7, 2])

DEVICES = (
    Device("mlx5_0", "uverbs0", "InfiniBand", (Gid(bytes.fromhex("fe80000000000000020000fffe000001"), _V1),)),
    Device(
        "mlx5_1",
        "uverbs1",
        "Ethernet",
        (Gid(_LINK_LOCAL, _V1), Gid(_LINK_LOCAL, _V2), Gid(_IPV4, _V1), Gid(_IPV4, _V2)),
        bytes.fromhex("020000000002"),
        0,
    ),
)


@dataclass(frozen=True)
class Region:
    """The arguments of a memory region over a dma-buf, in bytes."""

    offset: int  #: offset of its memory in the dma-buf
    nbytes: int
    iova: int  #: the address of its first byte in WQEs


@dataclass
class Machine:
    """Properties of the machine, for tests that change them."""

    access: bool = True  #: whether the device files may be opened
    devx: bool = True  #: whether contexts may be opened for DevX
    blueflame: bool = True  #: whether there are UARs of this type
    umem: bool = True  #: whether memory may be registered for queues
    dmabuf: bool = True  #: whether dma-bufs may be registered
    old_kernel: bool = False  #: whether the kernel hides the status of a refused command
    port_active: bool = True
    routed: bool = True  #: whether there is a route to every GID
    gateway: bytes = b""  #: MAC of the router on all routes; empty: peers are on this network
    refused: dict[int, tuple[int, int]] = field(default_factory=dict)  #: by opcode, (status, syndrome) of refused commands
    regions: list[Region] = field(default_factory=list)  #: registered over dma-bufs


machine = Machine()


def mac_toward(gid: bytes) -> bytes | None:
    """Return the MAC for packets to a GID, None without a route; the kernel resolves it by route and neighbor."""
    if not machine.routed:
        return None
    owners = (device.mac for device in DEVICES if device.ethernet and gid in [entry.gid for entry in device.gids])
    return machine.gateway or next(owners, None)


def by_node(node: str) -> Device | None:
    """Return the device of a file in /dev/infiniband."""
    return next((device for device in DEVICES if device.node == node), None)


def write_tree(root: Path) -> None:
    """Write the files that libibverbs reads below SYSFS_PATH (ibverbs_get_device_list without netlink)."""

    def write(path: str, text: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{text}\n")

    verbs, infiniband = "class/infiniband_verbs", "class/infiniband"
    write(f"{verbs}/abi_version", "6")
    for device in DEVICES:
        node, port = f"{verbs}/{device.node}", f"{infiniband}/{device.name}/ports/1"
        write(f"{node}/ibdev", device.name)
        write(f"{node}/dev", _DEV_ZERO)
        write(f"{node}/abi_version", "1")
        for name, text in (
            ("node_type", "1: CA"),
            ("node_guid", device.guid.hex(":", 2)),
            ("sys_image_guid", device.guid.hex(":", 2)),
            ("fw_ver", "22.99.0"),
            ("hca_type", "MT4123"),
            ("device/modalias", _MODALIAS),
            ("device/vendor", "0x15b3"),
            ("device/device", "0x101b"),
            ("device/numa_node", "-1"),
        ):
            write(f"{infiniband}/{device.name}/{name}", text)
        for name, text in (
            ("state", "4: ACTIVE"),
            ("phys_state", "5: LinkUp"),
            ("link_layer", device.link_layer),
            ("lid", f"{device.lid:#x}"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("pkeys/0", "0xffff"),
        ):
            write(f"{port}/{name}", text)
        for index, gid in enumerate(device.gids):
            write(f"{port}/gids/{index}", gid.text)
            write(f"{port}/gid_attrs/types/{index}", gid.type)
