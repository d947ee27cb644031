"""The ibgda transport: kernels post to the NIC themselves (GPUDirect Async, kernel-initiated)."""

from collections.abc import Mapping
from typing import Any

from pgas.base.errors import TransportError
from pgas.kernels import window
from pgas.transports import registry, selection
from pgas.transports.devices import Device, Port
from pgas.transports.ibgda import devx, doorbells
from pgas.transports.ibgda.nic import DirectNIC
from pgas.transports.memory.protocol import Memory, Segment
from pgas.transports.nic.adapter import Adapter, path_of
from pgas.transports.nic.protocol import Part
from pgas.transports.registry import Setting


class IBGDA:
    """The transport by kernels that drive the NIC (registry.Transport)."""

    name = "ibgda"
    maps_peers = False
    path = "pgas.kernels.paths.ibgda"
    needs = frozenset({"nic", "devx"})
    simulated = "over the software NIC", "over an RDMA device"

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        return registry.of_queues(requested)

    def why_not(self, device: Device, port: Port) -> str | None:
        return devx.why_not(device, port)

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        queues = DirectNIC.segment(n_pes, constants)
        if not _may_need_cpu(setting):
            return (queues,)
        return queues, Segment(window.DOORBELL_OFFSET, doorbells.segment_bytes(n_pes * constants.num_qps), host=True)

    def connect(self, part: Part, setting: Setting) -> DirectNIC:
        if setting.choice is None or setting.choice.device is None:
            by_cpu = setting.requested["PGAS_IBGDA_NIC_HANDLER"] == "cpu"
            return DirectNIC(part, opener=setting.software_card(by_cpu), packets=path_of(setting.requested))
        gid = selection.gid_of(setting.choice, setting.requested["PGAS_IB_GID_INDEX"])
        packets = path_of(setting.requested, 0 if gid is None else gid.index)
        return DirectNIC(part, opener=_Device(setting, part.me), packets=packets)


def _may_need_cpu(setting: Setting) -> bool:
    """Whether a CPU rings for kernels or may have to, because only an attempt shows whether the GPU can store to a NIC's registers."""
    handler, choice = setting.requested["PGAS_IBGDA_NIC_HANDLER"], setting.choice
    return handler == "cpu" or (handler == "auto" and setting.on_gpu and choice is not None and choice.device is not None)


class _Device:
    """Opens the chosen mlx5 device (adapter.Opener), and warns if a CPU must ring its doorbells."""

    def __init__(self, setting: Setting, me: int) -> None:
        self._setting, self.sharing = setting, (me,)

    def begin(self) -> tuple[str, int]:
        """Do nothing, because a device need not be started."""
        return "", 0

    def open(self, name: str, memory: Memory, shared: list[tuple[int, int, int]]) -> Adapter:
        setting, choice = self._setting, self._setting.choice
        handler = setting.requested["PGAS_IBGDA_NIC_HANDLER"]
        if choice is None or choice.device is None or choice.port is None:
            raise TransportError("ibgda: no RDMA device was chosen")
        gid = selection.gid_of(choice, setting.requested["PGAS_IB_GID_INDEX"])
        if gid is None:
            raise TransportError(f"{choice.name}: the port has no GID; ibgda addresses ports by GID")
        reach = None
        if setting.on_gpu:
            from pgas.transports.memory.gpudirect import GPUDirect

            reach = GPUDirect(memory)  # type: ignore[arg-type]  # a PE with a GPU has a GPUMemory
        adapter = devx.DevX(choice.device.name, choice.port, gid, gpu=reach, handler=handler)
        if adapter.why_by_cpu:
            setting.warn(f"a CPU thread rings the doorbells of {choice.name}, which is slower: {adapter.why_by_cpu}")
        return adapter

    def end(self) -> None:
        """Do nothing; see begin()."""
