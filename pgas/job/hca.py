"""The NIC of this PE: chosen by PGAS_HCA among the devices of the machine, or the software card; and what init makes of the choice."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgas.base.errors import TransportError
from pgas.job import card, topology
from pgas.transports import devices, selection
from pgas.transports.adapter import Adapter, Path
from pgas.transports.ibgda import devx
from pgas.transports.memory.protocol import Memory
from pgas.transports.nic import NIC
from pgas.transports.selection import Choice
from pgas.transports.verbs.queue_pair import why_not

if TYPE_CHECKING:
    from pgas.job.gpu import GPU

__all__ = ["LOCAL", "choose", "nic_of", "options_of"]

#: Variables that may differ from PE to PE: machines name and number their devices and GIDs as they like.
LOCAL = frozenset({"PGAS_HCA", "PGAS_HCA_LIST", "PGAS_IB_GID_INDEX"})


def choose(requested: Mapping[str, Any], gpu: "GPU | None", turn: int, warn: Callable[[str], None]) -> Choice | None:
    """Return the NIC of this PE, None if the transport that was asked for uses none.

    Args:
        requested: the variables.
        gpu: of this PE.
        turn: number of this PE on its node.
        warn: called with what the first one there is to be warned of.

    Raises:
        TransportError: the device asked for is not there, or cannot carry the transport; the text says what there is.
    """
    transport = requested["PGAS_TRANSPORT"]
    if transport not in ("ibgda", "ibrc"):
        if turn == 0 and (remark := _misnamed(requested["PGAS_HCA"])):
            warn(remark)
        return None
    suits = why_not if transport == "ibrc" else devx.why_not
    return selection.choose(
        requested["PGAS_HCA"], requested["PGAS_HCA_LIST"], devices.devices(), None if gpu is None else gpu.pci, suits, turn=turn
    )


def _misnamed(name: str) -> str | None:
    """Return what to warn of where no NIC is used: that PGAS_HCA names one which this machine has not."""
    there = sorted(device.name for device in devices.devices())
    if name in ("auto", "softhca") or name.split(":")[0] in there:
        return None
    have = f"has {', '.join(there)}" if there else "has no RDMA device"
    return f"PGAS_HCA={name}: this machine {have}; transport p2p uses none"


def nic_of(transport: str, choice: Choice) -> type[NIC]:
    """Return the host's side of a transport over a NIC."""
    if transport == "ibgda":
        return NIC
    if choice.device is None:
        from pgas.transports.ibrc.nic import ProxiedNIC

        return ProxiedNIC
    from pgas.transports.ibrc.verbs import VerbsNIC

    return VerbsNIC


def options_of(
    nic_type: type[NIC],
    choice: Choice,
    requested: Mapping[str, Any],
    gpu: "GPU | None",
    pes: Sequence[topology.PE],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Return what the NIC of a choice is made with, beside what all have. Arguments are card.starter's.

    Raises:
        TransportError: the port has no such GID.
    """
    if choice.device is None or choice.port is None:
        by_cpu = nic_type is NIC and requested["PGAS_IBGDA_NIC_HANDLER"] == "cpu"
        return {"start": card.starter(requested, gpu, pes, warn, on_host=nic_type.on_host or by_cpu), "by_cpu": by_cpu}
    gid, index = None, 0
    if choice.port.link_layer == "Ethernet" or choice.port.gids or requested["PGAS_IB_GID_INDEX"] >= 0:
        try:
            gid = selection.choose_gid(choice.port, requested["PGAS_IB_GID_INDEX"])
        except TransportError as error:
            raise TransportError(f"{choice.name}: {error}") from error
        index = gid.index
    path = Path(
        index,
        requested["PGAS_IB_SL"],
        requested["PGAS_IB_TRAFFIC_CLASS"],
        requested["PGAS_IB_TIMEOUT"],
        requested["PGAS_IB_RETRY_COUNT"],
    )
    if nic_type is NIC:
        return {"device": _opener(choice, gid, gpu, requested["PGAS_IBGDA_NIC_HANDLER"], warn), "path": path}
    return {"device": choice.device.name, "port": choice.port.number, "gid": gid, "path": path}


def _opener(
    choice: Choice, gid: devices.Gid | None, gpu: "GPU | None", handler: str, warn: Callable[[str], None]
) -> Callable[[Memory], Adapter]:
    """Return what opens the device of a choice for ibgda, and warns if a CPU has to ring it."""
    device, port = choice.device, choice.port

    def open_device(memory: Memory) -> Adapter:
        if device is None or port is None or gid is None:
            raise TransportError(f"{choice.name}: the port has no GID, by which ibgda addresses it")
        if gpu is None:
            return devx.DevX(device.name, port, gid, handler=handler)
        from pgas.transports.memory.gpudirect import GPUDirect

        reach = GPUDirect(memory)  # type: ignore[arg-type]  # a PE with a GPU has a GPUMemory
        adapter = devx.DevX(device.name, port, gid, gpu=reach, handler=handler)
        if adapter.why_by_cpu:
            warn(f"a CPU thread rings {choice.name} for kernels, which is slower: {adapter.why_by_cpu}")
        return adapter

    return open_device


def doorbells_on_host(transport: str, choice: Choice, requested: Mapping[str, Any], gpu: "GPU | None") -> bool:
    """Whether a CPU rings for kernels, or may have to: only the attempt tells whether a GPU may store to a card's registers."""
    handler = requested["PGAS_IBGDA_NIC_HANDLER"]
    return transport == "ibgda" and (handler == "cpu" or (handler == "auto" and choice.device is not None and gpu is not None))
