"""The ibrc transport: kernels write requests into a ring, and a proxy thread posts them."""

from collections.abc import Mapping
from typing import Any

from pgas.kernels import window
from pgas.transports import registry, selection
from pgas.transports.devices import Device, Port
from pgas.transports.ibrc.thread import RingNIC
from pgas.transports.memory.protocol import Segment
from pgas.transports.nic.adapter import path_of
from pgas.transports.nic.protocol import Part
from pgas.transports.registry import Setting
from pgas.transports.verbs.queue_pair import why_not


class IBRC:
    """The transport by a proxy thread (registry.Transport)."""

    name = "ibrc"
    maps_peers = False
    path = "pgas.kernels.paths.ibrc"
    needs = frozenset({"nic"})
    simulated = "over the software NIC", "over an RDMA device"

    def constants(self, requested: Mapping[str, Any]) -> dict[str, Any]:
        return {**registry.of_queues(requested), "ring": requested["PGAS_IBRC_RING_SIZE"]}

    def why_not(self, device: Device, port: Port) -> str | None:
        return why_not(device, port)

    def segments(self, n_pes: int, constants: window.Constants, setting: Setting) -> tuple[Segment, ...]:
        return (self._nic(setting).segment(n_pes, constants),)

    def _nic(self, setting: Setting) -> type[RingNIC]:
        """Return the class of NIC: mlx5 queues on the software NIC, libibverbs on an RDMA device."""
        if setting.choice is None or setting.choice.device is None:
            from pgas.transports.ibrc.nic import ProxiedNIC

            return ProxiedNIC
        from pgas.transports.ibrc.verbs import VerbsNIC

        return VerbsNIC

    def connect(self, part: Part, setting: Setting) -> RingNIC:
        nic, choice = self._nic(setting), setting.choice
        if choice is None or choice.device is None or choice.port is None:
            return nic(part, opener=setting.software_card(True), packets=path_of(setting.requested))
        gid = selection.gid_of(choice, setting.requested["PGAS_IB_GID_INDEX"])
        path = path_of(setting.requested, 0 if gid is None else gid.index)
        return nic(part, device=choice.device.name, port=choice.port.number, gid=gid, path=path)
