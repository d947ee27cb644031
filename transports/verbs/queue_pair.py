"""RC queue pairs through pyverbs: creation, connection, and their addresses for compiled code."""

import contextlib
import secrets
import struct
from dataclasses import dataclass
from typing import Any

from pgas.base.errors import TransportError
from pgas.transports import devices
from pgas.transports.devices import Gid
from pgas.transports.mlx5.contexts import Access, QpState
from pgas.transports.nic.adapter import HOP_LIMIT, AddressPath
from pgas.transports.verbs import abi, structs
from pgas.transports.verbs.abi import QpAttrMask
from pgas.transports.verbs.device import OpenDevice, pyverbs, reason

#: Number of bytes of inline data to request: the longest STORE request.
INLINE_MAX = 16

#: Values of ibv_rc_pingpong. There are no receives, and therefore no RNR NAKs.
_MIN_RNR_TIMER, _RNR_RETRY = 12, 7

#: Number of completions per poll.
_POLLED = 16


@dataclass(frozen=True)
class End:
    """A port's address and limits, for the queue pairs of peers."""

    gid: bytes  #: 16 bytes; all zero if an InfiniBand port has none
    lid: int
    ethernet: bool
    mtu: int  #: IBV_MTU_*
    max_dest_rd_atomic: int


class VerbsQueuePair:
    """An RC queue pair with its own CQ, in RESET. At most depth work requests are outstanding, so that the CQ never overruns.

    Args:
        device: the device.
        depth: work requests in the send queue.

    Raises:
        TransportError: the device refuses.
    """

    def __init__(self, device: OpenDevice, depth: int) -> None:
        self._device = device
        self._made = contextlib.ExitStack()
        cq, qp = pyverbs("cq"), pyverbs("qp")
        try:
            self._cq = self._made.enter_context(contextlib.closing(cq.CQ(device.context, depth)))
            self._qp, self.inline = self._create(qp, depth)
            self._made.callback(self._qp.close)
            self.qpn: int = self._qp.qp_num
            #: Addresses of struct ibv_qp and struct ibv_cq, and of the functions that post and poll.
            self.address = _address(self._qp)
            self.cq_address = structs.word(self.address + abi.QP_SEND_CQ)
            context = structs.word(self.address + abi.QP_CONTEXT)
            self.post_send, self.poll_cq = structs.word(context + abi.CONTEXT_POST_SEND), structs.word(context + abi.CONTEXT_POLL_CQ)
        except BaseException as error:
            self._made.close()
            if isinstance(error, pyverbs("pyverbs_error").PyverbsError):
                raise TransportError(
                    f"RDMA device {device} does not create a queue pair of {depth} work requests: {reason(error)}"
                ) from error
            raise
        self.psn = secrets.randbelow(1 << 24)

    def _create(self, qp: Any, depth: int) -> tuple[Any, bool]:
        """Create the queue pair, with inline data if the device supports it; return the queue pair and whether it has inline data."""

        def create(inline: int) -> Any:
            cap = qp.QPCap(max_send_wr=depth, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=inline)
            init = qp.QPInitAttr(qp_type=abi.QPT_RC, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0)
            return qp.QP(self._device.pd, init)

        try:
            return create(INLINE_MAX), True
        except pyverbs("pyverbs_error").PyverbsError:
            return create(0), False

    def connect(self, qpn: int, psn: int, own: End, peer: End, path: AddressPath) -> None:
        """Move the queue pair to RTS.

        Args:
            qpn: number of the peer's queue pair.
            psn: the peer's first PSN.
            own: this end.
            peer: the other end; may be this one.
            path: service level, traffic class, and retries of packets.

        Raises:
            TransportError: the device refuses a transition.
        """
        attributes, port = pyverbs("qp").QPAttr, self._device.port
        access = permitted(self._device)
        init = attributes(qp_state=QpState.INIT)
        init.pkey_index, init.port_num, init.qp_access_flags = 0, port, int(access)
        rtr = attributes(qp_state=QpState.RTR)
        rtr.path_mtu, rtr.dest_qp_num, rtr.rq_psn = min(own.mtu, peer.mtu), qpn, psn
        rtr.max_dest_rd_atomic, rtr.min_rnr_timer = own.max_dest_rd_atomic, _MIN_RNR_TIMER
        rtr.ah_attr = self._address_vector(own, peer, path)
        rts = attributes(qp_state=QpState.RTS)
        rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.sq_psn = path.timeout, path.retry_count, _RNR_RETRY, self.psn
        rts.max_rd_atomic = min(self._device.capabilities.max_init_rd_atomic, peer.max_dest_rd_atomic)
        mask = QpAttrMask
        to_init = mask.PKEY_INDEX | mask.PORT | mask.ACCESS_FLAGS
        to_rtr = mask.AV | mask.PATH_MTU | mask.DEST_QPN | mask.RQ_PSN | mask.MAX_DEST_RD_ATOMIC | mask.MIN_RNR_TIMER
        to_rts = mask.TIMEOUT | mask.RETRY_CNT | mask.RNR_RETRY | mask.SQ_PSN | mask.MAX_QP_RD_ATOMIC
        for state, attribute, what in (("INIT", init, to_init), ("RTR", rtr, to_rtr), ("RTS", rts, to_rts)):
            try:
                self._qp.modify(attribute, int(mask.STATE | what))
            except pyverbs("pyverbs_error").PyverbsError as error:
                raise TransportError(f"RDMA device {self._device} cannot move QP {self.qpn:#x} to {state}: {reason(error)}") from error

    def _address_vector(self, own: End, peer: End, path: AddressPath) -> Any:
        """Return the address vector: with a GRH on Ethernet and between InfiniBand subnets, otherwise only the LID."""
        addr = pyverbs("addr")
        if not peer.ethernet and peer.lid and own.gid[:8] == peer.gid[:8]:
            return addr.AHAttr(port_num=self._device.port, is_global=0, dlid=peer.lid, sl=path.sl)
        gid = addr.GID(peer.gid.hex(":", 2))
        route = addr.GlobalRoute(dgid=gid, sgid_index=path.gid_index, hop_limit=HOP_LIMIT, traffic_class=path.traffic_class)
        return addr.AHAttr(port_num=self._device.port, is_global=1, gr=route, dlid=peer.lid, sl=path.sl)

    def reset(self) -> None:
        """Move the queue pair from any state to RESET and discard its completions. connect() may follow; the PSN is a new one.

        Raises:
            TransportError: the device refuses.
        """
        try:
            self._qp.modify(pyverbs("qp").QPAttr(qp_state=QpState.RST), int(QpAttrMask.STATE))
            while self._cq.poll(_POLLED)[0]:
                pass
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise TransportError(f"RDMA device {self._device} cannot move QP {self.qpn:#x} to RESET: {reason(error)}") from error
        self.psn = secrets.randbelow(1 << 24)

    def state(self) -> str:
        """Return the queue pair's state as the device reports it, such as "RTS"; "" if the query fails."""
        try:
            return QpState(self._qp.query(int(QpAttrMask.STATE))[0].qp_state).name
        except (pyverbs("pyverbs_error").PyverbsError, ValueError):
            return ""

    def destroy(self) -> None:
        """Destroy queue pair and CQ. Posting and polling must have ended. Further calls do nothing."""
        self._made.close()


def permitted(device: OpenDevice) -> Access:
    """Return the access rights of peers, for regions and queue pairs. A device without atomics rejects REMOTE_ATOMIC."""
    atomic = Access.REMOTE_ATOMIC if device.capabilities.atomics else Access(0)
    return Access.REMOTE_WRITE | Access.REMOTE_READ | atomic


def why_not(device: devices.Device, port: devices.Port) -> str | None:
    """Return why a device and port do not support ibrc, None if they do (transports.selection.Suits). Attempts to make an RC queue pair."""
    if device.node_type != devices.CHANNEL_ADAPTER:
        return f"is an {device.node_type}: RC queue pairs without a connection manager need a channel adapter (InfiniBand or RoCE)"
    try:
        with contextlib.closing(OpenDevice(device.name, port.number)) as opened:
            VerbsQueuePair(opened, 1).destroy()
    except TransportError as error:
        return str(error)
    return None


def end_of(device: OpenDevice, gid: Gid | None) -> End:
    """Return the End of this port."""
    caps = device.capabilities
    return End(gid.raw if gid is not None else bytes(16), caps.lid, caps.ethernet, caps.active_mtu, caps.max_dest_rd_atomic)


def _address(qp: Any) -> int:
    """Return the address of the struct ibv_qp behind a pyverbs QP, recognized by number, type, and a common CQ for send and receive."""

    def matches(address: int) -> bool:
        found = structs.read(address, abi.QP_END)
        if len(found) < abi.QP_END:
            return False
        number, kind = (struct.unpack_from("<I", found, offset)[0] for offset in (abi.QP_NUM, abi.QP_TYPE))
        send, receive = (struct.unpack_from("<Q", found, offset)[0] for offset in (abi.QP_SEND_CQ, abi.QP_RECV_CQ))
        return (number, kind) == (qp.qp_num, abi.QPT_RC) and send == receive != 0

    return structs.behind(qp, matches)
