"""An RDMA device opened through pyverbs, with its capabilities, those of its port, and a protection domain."""

import contextlib
import importlib
from dataclasses import dataclass
from typing import Any

from pgas.base.errors import TransportError
from pgas.base.remedies import mend
from pgas.transports import devices
from pgas.transports.verbs import abi


@dataclass(frozen=True)
class Capabilities:
    """Results of ibv_query_device and ibv_query_port."""

    max_qp: int
    max_qp_wr: int  #: work requests in a send queue
    max_cqe: int  #: completions in a CQ
    atomics: bool  #: atomic_cap is not ATOMIC_NONE
    max_init_rd_atomic: int  #: outstanding READs and atomics of a QP
    max_dest_rd_atomic: int  #: outstanding READs and atomics of a peer that a QP answers
    max_msg_sz: int  #: bytes of one message
    active_mtu: int  #: IBV_MTU_*: 1 to 5 for 256 to 4096 bytes
    active: bool  #: the port's state is ACTIVE
    lid: int  #: 0 on Ethernet
    ethernet: bool  #: the port's link layer


def pyverbs(module: str) -> Any:
    """Import a module of pyverbs. Raises TransportError if pyverbs is not installed, or not for this Python."""
    try:
        return importlib.import_module(f"pyverbs.{module}")
    except ImportError as error:
        remedy = mend("other pyverbs" if "IBVERBS_" in str(error) else "no pyverbs")
        raise TransportError(f"RDMA devices need pyverbs, which this Python lacks ({error}): {remedy}") from error


def reason(error: Exception) -> str:
    """Return the first line of an error of pyverbs."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class OpenDevice:
    """An open device and one of its ports.

    Args:
        name: name of the device, as rdma link lists it.
        port: number of the port.

    Raises:
        TransportError: the device cannot be opened or queried.
    """

    def __init__(self, name: str, port: int) -> None:
        self.name, self.port = name, port
        self._made = contextlib.ExitStack()
        try:
            self.context = self._made.enter_context(contextlib.closing(pyverbs("device").Context(name=name)))
            self.pd = self._made.enter_context(contextlib.closing(pyverbs("pd").PD(self.context)))
        except pyverbs("pyverbs_error").PyverbsError as error:
            self._made.close()
            raise TransportError(f"RDMA device {name} cannot be opened: {reason(error)} ({_remedy(name)})") from error
        try:
            self.capabilities = self.query()
        except BaseException:
            self._made.close()
            raise

    def __str__(self) -> str:
        return f"{self.name}:{self.port}"

    def query(self) -> Capabilities:
        try:
            device, port = self.context.query_device(), self.context.query_port(self.port)
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise TransportError(f"RDMA device {self} cannot be queried: {reason(error)}") from error
        return Capabilities(
            max_qp=device.max_qp,
            max_qp_wr=device.max_qp_wr,
            max_cqe=device.max_cqe,
            atomics=device.atomic_caps != abi.ATOMIC_NONE,
            max_init_rd_atomic=device.max_qp_init_rd_atom,
            max_dest_rd_atomic=device.max_qp_rd_atom,
            max_msg_sz=port.max_msg_sz,
            active_mtu=port.active_mtu,
            active=port.state == abi.PORT_ACTIVE,
            lid=port.lid,
            ethernet=port.link_layer == abi.LINK_LAYER_ETHERNET,
        )

    def close(self) -> None:
        """Close the device. Its objects must have been closed before. Further calls do nothing."""
        self._made.close()


def _remedy(name: str) -> str:
    device = next((device for device in devices.devices() if device.name == name), None)
    if device is None or not device.uverbs:
        return "check that the kernel module ib_uverbs is loaded"
    return (
        f"check that this process may read and write /dev/infiniband/{device.uverbs}, and that the device's provider library is installed "
        "(ibverbs-providers)"
    )
