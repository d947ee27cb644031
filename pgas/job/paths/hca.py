"""The NIC of this PE: a device of the node, chosen by PGAS_HCA, or the software NIC."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgas.base import config
from pgas.job.paths import card, topology
from pgas.transports import devices, registry, selection
from pgas.transports.selection import AUTO, SOFTHCA, Choice

if TYPE_CHECKING:
    from pgas.job.paths.gpu import GPU

#: Variables that may differ from PE to PE: names and numbers of devices and GIDs differ by node, the launchers' variables by PE.
LOCAL = frozenset({"PGAS_HCA", "PGAS_HCA_LIST", "PGAS_IB_GID_INDEX", "PGAS_SOFTHCA_NET", *config.SECRETS})


def choose(transport: str, requested: Mapping[str, Any], gpu: "GPU | None", turn: int) -> Choice:
    """Return the NIC of this PE for a transport over NICs.

    Args:
        turn: number of this PE among those of its node.

    Raises:
        TransportError: if the requested device does not exist, or cannot carry the transport; the message lists the devices.
    """
    pci, suits = None if gpu is None else gpu.pci, registry.get(transport).why_not
    return selection.choose(requested["PGAS_HCA"], requested["PGAS_HCA_LIST"], devices.devices(), pci, suits, turn=turn)


def ordering(requested: Mapping[str, Any], gpu: "GPU | None", choice: Choice | None) -> str:
    """Return PGAS_NIC_ORDERING or, for "auto", what CUDA reports for this PE's GPU. The software NIC writes in order."""
    wanted: str = requested["PGAS_NIC_ORDERING"]
    if wanted != "auto":
        return wanted
    by_device = choice is not None and choice.device is not None
    return "none" if by_device and gpu is not None and not gpu.in_order else "owner"


def queue_pairs(requested: Mapping[str, Any], pes: Sequence[topology.PE]) -> int:
    """Return PGAS_IBGDA_NUM_RC_PER_PE or, for "auto", the usual number, or what the software NIC has for each pair of PEs that share it.

    Args:
        pes: all PEs, with their NICs; none if the job uses no NIC.
    """
    wanted: int | str = requested["PGAS_IBGDA_NUM_RC_PER_PE"]
    usual = registry.queue_pairs(wanted)
    if wanted != "auto" or all(pe.nic != SOFTHCA for pe in pes):
        return usual
    return max(1, min(usual, card.queue_pairs() // len(pes) ** 2))


def unused(requested: Mapping[str, Any]) -> str | None:
    """Return a warning if PGAS_HCA, which the job does not use, names a device that this machine does not have; None otherwise."""
    name = requested["PGAS_HCA"]
    there = sorted(device.name for device in devices.devices())
    if name in (AUTO, SOFTHCA) or name.split(":")[0] in there:
        return None
    have = f"has {', '.join(there)}" if there else "has no RDMA device"
    return f"PGAS_HCA={name}: this machine {have}"
