"""The NIC of this PE: a device of the machine, chosen by PGAS_HCA, or the software card."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pgas.base import config
from pgas.transports import devices, registry, selection
from pgas.transports.selection import AUTO, SOFTHCA, Choice

if TYPE_CHECKING:
    from pgas.job.gpu import GPU

__all__ = ["LOCAL", "choose"]

#: Variables that may differ from PE to PE: names and numbers of devices and GIDs differ by machine, the launchers' variables by PE.
LOCAL = frozenset({"PGAS_HCA", "PGAS_HCA_LIST", "PGAS_IB_GID_INDEX", *config.SECRETS})


def choose(requested: Mapping[str, Any], gpu: "GPU | None", turn: int, warn: Callable[[str], None]) -> Choice | None:
    """Return the NIC of this PE, None if the requested transport uses none.

    Args:
        requested: the values of the PGAS_* variables.
        gpu: this PE's GPU.
        turn: number of this PE on its node.
        warn: shows the user a warning; called on the node's first PE only.

    Raises:
        TransportError: the requested device does not exist, or cannot carry the transport; the text lists the devices.
    """
    transport = registry.get(requested["PGAS_TRANSPORT"])
    if transport.maps_peers:
        if turn == 0 and (remark := _misnamed(requested["PGAS_HCA"])):
            warn(f"{remark}; transport {transport.name} uses none")
        return None
    pci = None if gpu is None else gpu.pci
    return selection.choose(requested["PGAS_HCA"], requested["PGAS_HCA_LIST"], devices.devices(), pci, transport.why_not, turn=turn)


def _misnamed(name: str) -> str | None:
    """Return a warning if PGAS_HCA names a device that this machine does not have, else None."""
    there = sorted(device.name for device in devices.devices())
    if name in (AUTO, SOFTHCA) or name.split(":")[0] in there:
        return None
    have = f"has {', '.join(there)}" if there else "has no RDMA device"
    return f"PGAS_HCA={name}: this machine {have}"
