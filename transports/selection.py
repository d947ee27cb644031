"""The choice of a PE's RDMA device, port, and GID: ``PGAS_HCA``, ``PGAS_HCA_LIST``, ``PGAS_IB_GID_INDEX``. devices.py reads the devices."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgas.base.errors import TransportError
from pgas.base.remedies import mend
from pgas.transports.devices import ROCE_V1, ROCE_V2, ROOT, Device, Distance, Gid, Port, nearest

#: Function that returns why a transport cannot use a device and port, None if it can. It may open the device to find out.
Suits = Callable[[Device, Port], str | None]

AUTO, SOFTHCA = "auto", "softhca"


@dataclass(frozen=True)
class Choice:
    """The NIC of a PE."""

    device: Device | None  #: None for the software NIC
    port: Port | None  #: None for the software NIC
    reason: str  #: for messages: why this NIC was chosen, and why not a nearer one

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"

    @property
    def name(self) -> str:
        """The name, such as ``mlx5_0:1`` or ``softhca``."""
        return SOFTHCA if self.device is None or self.port is None else f"{self.device.name}:{self.port.number}"


def choose(
    requested: str, listed: str, devices: Sequence[Device], gpu_pci: str | None, suits: Suits, root: Path = ROOT, turn: int = 0
) -> Choice:
    """Return the NIC of a PE.

    Args:
        requested: value of PGAS_HCA: auto, softhca, or a device with or without a port (``mlx5_0:1``).
        listed: value of PGAS_HCA_LIST: names, with or without ports, from which auto chooses, or with a leading ``^`` those that it
            excludes. If empty, auto chooses from all.
        devices: the devices of this machine.
        gpu_pci: bus address of the PE's GPU; None in the simulator, where auto means the software NIC.
        suits: function by which the transport tests a device.
        root: root of the file tree, for distances.
        turn: rank of this PE on its node; equally near devices are assigned to PEs in rotation.

    Raises:
        TransportError: the requested device does not exist or cannot be used, or no device is listed. The text lists the devices.
    """
    if requested == SOFTHCA:
        return Choice(None, None, "asked for")
    if requested != AUTO:
        return _named(requested, devices, suits, gpu_pci)
    if gpu_pci is None:
        return Choice(None, None, "kernels run in the simulator")
    allowed = _listed(listed, devices)
    if not allowed:
        return Choice(None, None, "this machine has no RDMA device" if not devices else f"PGAS_HCA_LIST={listed} leaves no RDMA device")
    usable: list[tuple[Distance, Device, Port]] = []
    refused: list[str] = []
    for far, device in nearest(gpu_pci, [device for device in devices if device in {pair[0] for pair in allowed}], root):
        if usable and far > usable[0][0]:
            break  # do not test devices farther away than a usable one, because suits() may open a device
        for port in (port for owner, port in allowed if owner is device):
            if (why := _refusal(device, port, suits, gpu_pci)) is None:
                usable.append((far, device, port))
            else:
                refused.append(f"{device.name}:{port.number} {why}")
    rest = f"; passed over: {', '.join(refused)}" if refused else ""
    if not usable:
        return Choice(None, None, f"no RDMA device can be used: {'; '.join(refused)}")
    far, device, port = usable[turn % len(usable)]
    among = f", one of {len(usable)} equally near" if len(usable) > 1 else ""
    return Choice(device, port, f"the nearest device with an active port, {far} from the GPU at {gpu_pci}{among}{rest}")


def choose_gid(port: Port, requested: int = -1) -> Gid:
    """Return the GID that addresses a port.

    Args:
        port: the port.
        requested: value of PGAS_IB_GID_INDEX. If it is -1: on Ethernet, RoCE v2 before v1, then IPv4 before routable IPv6 before link-local
            addresses; on InfiniBand, the first.

    Raises:
        TransportError: there is no such entry; the text lists those in use.
    """
    table = f"GIDs in use on port {port.number}: {', '.join(map(str, port.gids)) or 'none'}"
    if requested >= 0:
        for gid in port.gids:
            if gid.index == requested:
                return gid
        raise TransportError(f"PGAS_IB_GID_INDEX={requested}: no such GID; {table}")
    if not port.gids:
        raise TransportError(f"{table}; {mend('gid')}")
    if port.link_layer != "Ethernet":
        return port.gids[0]
    kinds = {ROCE_V2: 0, ROCE_V1: 1}
    return min(port.gids, key=lambda gid: (kinds.get(gid.kind, 2), gid.ipv4 is None, gid.link_local, gid.netdev == "", gid.index))


def gid_of(choice: Choice, requested: int = -1) -> Gid | None:
    """Return the GID that addresses the chosen port, None for an InfiniBand port without one. requested: see choose_gid().

    Raises:
        TransportError: the port has no such GID, or is an Ethernet port and has none.
    """
    port = choice.port
    if port is None or not (port.link_layer == "Ethernet" or port.gids or requested >= 0):
        return None
    try:
        return choose_gid(port, requested)
    except TransportError as error:
        raise TransportError(f"{choice.name}: {error}") from error


def _named(requested: str, devices: Sequence[Device], suits: Suits, gpu_pci: str | None) -> Choice:
    name, _, number = requested.partition(":")
    here = f"RDMA devices here: {', '.join(map(_summary, devices)) or 'none'}"
    device = next((device for device in devices if device.name == name), None)
    if device is None:
        raise TransportError(f"PGAS_HCA={requested}: this machine has no such device; {here}")
    ports = [port for port in device.ports if not number or str(port.number) == number]
    if not ports:
        raise TransportError(f"PGAS_HCA={requested}: {name} has no such port; {here}")
    refused = []
    for port in ports:
        if (why := _refusal(device, port, suits, gpu_pci)) is None:
            return Choice(device, port, "asked for")
        refused.append(f"port {port.number} {why}")
    remedy = "" if any(port.active for port in ports) else f"; {mend('link down')}"
    raise TransportError(f"PGAS_HCA={requested}: {'; '.join(refused)}; {here}{remedy}")


def _refusal(device: Device, port: Port, suits: Suits, gpu_pci: str | None) -> str | None:
    if not port.active:
        return f"is {port.down}"
    if gpu_pci is not None and device.pci is None:
        return "belongs to a software device, which cannot access GPU memory"
    return suits(device, port)


def _listed(listed: str, devices: Sequence[Device]) -> list[tuple[Device, Port]]:
    text = listed.strip()
    excluded = text.startswith("^")
    names = {name.strip() for name in text.removeprefix("^").split(",")} - {""}
    everything = [(device, port) for device in devices for port in device.ports]
    if not names:
        return everything
    found = [(d, p) for d, p in everything if (d.name in names or f"{d.name}:{p.number}" in names) != excluded]
    if not found and not excluded:
        here = ", ".join(map(_summary, devices)) or "none"
        raise TransportError(f"PGAS_HCA_LIST={listed}: this machine has none of these; RDMA devices here: {here}")
    return found


def _summary(device: Device) -> str:
    ports = ", ".join(f"port {port.number} {port.state or 'unknown'}" for port in device.ports)
    return f"{device.name} ({ports or 'no ports'})"
