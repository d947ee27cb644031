"""The control path of one RC QP with its collapsed CQ, over an Adapter.

Both IBGDA and IBRC use it. The queues are in a UMEM in GPU or host memory. The poster, an SM or a proxy thread, needs only ``queues``,
``depth``, ``qpn``, and ``uar`` of a ``QueuePair``. This module does not access memory. The caller must prepare it before a QP leaves RST:
WQ and DBR zeroed, the CQ entry filled with ``mlx5.cqe.EMPTY`` (0xff), which pollers read as "index -1 is complete".
"""

import contextlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pgas.base.errors import TransportError
from pgas.transports.mlx5.capabilities import AtomicOperations, AtomicSize, CapType, cap_op_mod
from pgas.transports.mlx5.commands import Command, CommandError, command_name
from pgas.transports.mlx5.contexts import AtomicMode, PmState, QpState, QpType, RqType, TsFormat, transition
from pgas.transports.mlx5.cqe import CQE_SIZE
from pgas.transports.mlx5.doorbell import DBR_SIZE
from pgas.transports.mlx5.wqe import DEPTH_MAX, DEPTH_MIN, MESSAGE_MAX, WQEBB
from pgas.transports.nic.adapter import HOP_LIMIT, Adapter, AddressPath, PortAddress, execute

#: The NIC's smallest page size (log_page_size 0). If QPs share a UMEM, every WQ and CQ has whole pages of it.
_PAGE = 4096


#: qpc.log_msg_max.
_LOG_MSG_MAX = MESSAGE_MAX.bit_length() - 1

#: Maximum of qpc.log_sra_max and log_rra_max, which have 3 bits.
_LOG_RD_ATOMIC_MAX = 7

#: Number of bits of a PSN.
_PSN_BITS = 24

#: NVSHMEM's values: an RNR timer of 0.64 ms, and endless RNR retries.
_MIN_RNR_NAK, _RNR_RETRY = 12, 7

#: Value of ads.udp_sport for RoCE; in RoCE before v2 the port is reserved (rdma-core, tests/mlx5_base.py).
_UDP_SPORT, _ROCE_V2 = 0xC000, 2

#: Maximum priority of Ethernet (ads.eth_prio, 3 bits).
_PRIORITY_MAX = 7

#: Capability that tells in which byte order an atomic returns an old value of 8 bytes, and its values.
_ORDER, _BIG_ENDIAN, _OF_THE_HOST = "atomic_req_8B_endianness_mode", 0, 1

#: Number of bits of the traffic class below the DSCP: ECN, which the NIC sets.
_DSCP_SHIFT = 2


def _check_depth(depth: int) -> None:
    if not DEPTH_MIN <= depth <= DEPTH_MAX or depth & depth - 1:
        raise ValueError(f"depth must be a power of two from {DEPTH_MIN} to {DEPTH_MAX} WQEBBs, not {depth}")


@dataclass(frozen=True)
class Queues:
    """The locations of one QP's queues, as byte offsets in a UMEM."""

    wq: int  #: depth WQEBBs of 64 bytes
    cq: int  #: the entry of 64 bytes that a collapsed CQ uses; room for depth entries from here on
    dbr: int  #: the QP's DBR of 8 bytes, then the CQ's, which is never written, in a separate 64-byte line
    dbr_umem: int | None = None  #: UMEM of dbr; None for that of the queues

    @classmethod
    def nbytes(cls, depth: int) -> int:
        """Return the number of bytes of a QP with depth WQEBBs: a page for CQ entry and DBR, and its WQ.

        Raises:
            ValueError: depth is not a power of two from 128 to 32768.
        """
        _check_depth(depth)
        return depth * WQEBB + _PAGE

    @classmethod
    def layout(cls, depth: int, n_qps: int, offset: int = 0) -> list["Queues"]:
        """Return the locations of n_qps QPs, one after another, each at a multiple of 4096 bytes.

        Args:
            depth: WQEBBs in each WQ.
            n_qps: number of QPs.
            offset: offset of the first QP in the UMEM, in bytes; the last one ends at ``offset + n_qps * nbytes(depth)``.

        Raises:
            ValueError: depth is not a power of two from 128 to 32768, or offset is not a multiple of 4096.
        """
        step = cls.nbytes(depth)
        if offset % _PAGE:
            raise ValueError(f"offset must be a multiple of {_PAGE} bytes, not {offset}")
        starts = range(offset, offset + n_qps * step, step)
        # The CQ is first, so that the WQ provides the room if a NIC requires it for all entries, of which a collapsed CQ writes one.
        return [cls(wq=start + _PAGE, cq=start, dbr=start + CQE_SIZE) for start in starts]


class QueuePair:
    """An RC QP without receive queue, its CQ, and its UAR, in RST.

    ``connect`` moves it to RTS, by three commands that are also methods. The driver tracks the legal transitions (mlx5.contexts.LEGAL) and
    does not send a command that the QP's state forbids. Not thread-safe.

    Args:
        adapter: the NIC.
        umem_id: the UMEM of the queues; the caller prepares its memory (see the module).
        pdn: the protection domain.
        queues: locations of WQ, CQ, and DBR in the UMEM.
        depth: WQEBBs in the WQ.
        user_index: 24 bits, returned in every CQE.
        path: GID, service level, and retries of packets.

    Raises:
        ValueError: depth is not a power of two from 128 to 32768, or user_index does not fit.
        TransportError: the adapter refuses; objects made before are destroyed. A refused command raises a CommandError.
    """

    def __init__(
        self, adapter: Adapter, umem_id: int, pdn: int, queues: Queues, depth: int, user_index: int = 0, path: AddressPath | None = None
    ) -> None:
        _check_depth(depth)
        self._adapter, self._pdn, self.queues, self.depth, self._path = adapter, pdn, queues, depth, path or AddressPath()
        self._dbr_umem = umem_id if queues.dbr_umem is None else queues.dbr_umem
        caps = _query_caps(adapter, CapType.GENERAL)
        #: log2 of the maximum number of outstanding READs and atomics, the same for those that it sends and those that it answers.
        self.log_rd_atomic = min(caps["log_max_ra_req_qp"], caps["log_max_ra_res_qp"], _LOG_RD_ATOMIC_MAX)
        #: The default format, even on a NIC whose clock is set to real time and which has no other. The kernel's QPs also have it
        #: (mlx5_get_qp_default_ts).
        self._ts_format = TsFormat.DEFAULT if caps["sq_ts_format"] else TsFormat.FREE_RUNNING
        #: The state known to the driver. The NIC itself may move a QP to ERR, which query() detects.
        self.state = QpState.RST
        self._undo: list[Callable[[], object]] = []
        try:
            #: A separate UAR, because a doorbell overwrites an earlier one in the same register.
            self.uar = adapter.alloc_uar()
            self._undo.append(lambda: adapter.dealloc_uar(self.uar.page_id))
            self.cqn: int = self._create_cq(umem_id)
            self._undo.append(lambda: execute(adapter, Command.DESTROY_CQ, cqn=self.cqn))
            self.qpn: int = self._create_qp(umem_id, user_index)
            self._undo.append(lambda: execute(adapter, Command.DESTROY_QP, qpn=self.qpn))
        except BaseException:
            with contextlib.suppress(TransportError):  # because the first error is more informative
                self._give_back()
            raise

    def _create_cq(self, umem_id: int) -> int:
        """Send CREATE_CQ: the CQ is collapsed and never armed, so that its DBR stays zero and it needs no doorbell.

        A collapsed CQ uses one entry, so the first attempt has log_cq_size 0. The second attempt passes that of the WQ's depth, like
        NVSHMEM and DOCA.
        """
        try:
            return self._create_cq_of(umem_id, 0)
        except CommandError:
            return self._create_cq_of(umem_id, self.depth.bit_length() - 1)

    def _create_cq_of(self, umem_id: int, log_size: int) -> int:
        cqc = {
            "cc": 1,
            "oi": 1,
            "log_cq_size": log_size,
            "uar_page": self.uar.page_id,
            "c_eqn": self._adapter.query_eqn(),
            "dbr_umem_valid": 1,
            "dbr_umem_id": self._dbr_umem,
            "dbr_addr": self.queues.dbr + DBR_SIZE,
        }
        umem: dict[str, Any] = {"cq_umem_valid": 1, "cq_umem_id": umem_id, "cq_umem_offset": self.queues.cq}
        return execute(self._adapter, Command.CREATE_CQ, cqc=cqc, **umem)["cqn"]

    def _create_qp(self, umem_id: int, user_index: int) -> int:
        """Send CREATE_QP like NVSHMEM, except rq_type: no receive queue, SRQ, or receive CQ, like DOCA."""
        qpc = {
            "st": QpType.RC,
            "pm_state": PmState.MIGRATED,
            "pd": self._pdn,
            "log_sq_size": self.depth.bit_length() - 1,
            "ts_format": self._ts_format,
            "uar_page": self.uar.page_id,
            "user_index": user_index,
            "cqn_snd": self.cqn,
            "rq_type": RqType.ZERO_SIZE_RQ,
            "dbr_umem_valid": 1,
            "dbr_umem_id": self._dbr_umem,
            "dbr_addr": self.queues.dbr,
        }
        umem: dict[str, Any] = {"wq_umem_valid": 1, "wq_umem_id": umem_id, "wq_umem_offset": self.queues.wq}
        return execute(self._adapter, Command.CREATE_QP, qpc=qpc, **umem)["qpn"]

    # -------------------------------------------------------------------------------------------------------------------- states

    def connect(
        self,
        remote_qpn: int,
        port: PortAddress,
        remote: PortAddress,
        log_rd_atomic: int = _LOG_RD_ATOMIC_MAX,
        psns: tuple[int, int] = (0, 0),
    ) -> None:
        """Take the QP from RST to RTS, connected to a peer, or to itself with its own number and port (self-loopback).

        The QP answers its peer when this returns. It may send when the peer's connect has also returned, so synchronize in between. If a
        command is refused, the QP stays in the state reached; call reset() before another attempt.

        Args:
            remote_qpn: number of the peer's QP.
            port: the port of this adapter.
            remote: the port of the peer's adapter. On InfiniBand a path to another subnet has a GRH.
            log_rd_atomic: the peer's log_rd_atomic.
            psns: first PSN that this QP sends, and first PSN that the peer sends.

        Raises:
            TransportError: the QP is not in RST, the ports cannot communicate, or the adapter refuses.
        """
        self.rst2init(port)
        self.init2rtr(remote_qpn, port, remote, psns[1])
        self.rtr2rts(log_rd_atomic, psns[0])

    def rst2init(self, port: PortAddress) -> None:
        """Send RST2INIT_QP: bind the QP to a port and allow its peer WRITEs, READs, and atomics of up to 64 bits."""
        path = {"vhca_port_num": port.port_num}
        rights = {"rre": 1, "rwe": 1, "rae": 1, "atomic_mode": AtomicMode.UP_TO_64}
        self._move(Command.RST2INIT_QP, pm_state=PmState.MIGRATED, primary_address_path=path, **rights)

    def init2rtr(self, remote_qpn: int, port: PortAddress, remote: PortAddress, receive_psn: int = 0) -> None:
        """Send INIT2RTR_QP: set the peer and answer it from then on. Arguments and errors are those of connect."""
        self._check(Command.INIT2RTR_QP)  # before the address path queries the adapter
        self._move(
            Command.INIT2RTR_QP,
            mtu=min(port.active_mtu, remote.active_mtu),
            log_msg_max=_LOG_MSG_MAX,
            remote_qpn=remote_qpn,
            min_rnr_nak=_MIN_RNR_NAK,
            log_rra_max=self.log_rd_atomic,
            next_rcv_psn=receive_psn,
            primary_address_path=self._address_path(port, remote),
        )

    def rtr2rts(self, log_rd_atomic: int = _LOG_RD_ATOMIC_MAX, send_psn: int = 0) -> None:
        """Send RTR2RTS_QP: let the QP send. Arguments and errors are those of connect."""
        self._move(
            Command.RTR2RTS_QP,
            retry_count=self._path.retry_count,
            rnr_retry=_RNR_RETRY,
            log_sra_max=min(self.log_rd_atomic, log_rd_atomic),
            next_send_psn=send_psn,
            primary_address_path={"ack_timeout": self._path.timeout},
        )

    def to_error(self) -> None:
        """Send 2ERR_QP, in any state: WQEs posted but not executed complete with "WR flushed"."""
        self._move(Command.TO_ERR_QP)

    def reset(self) -> None:
        """Send 2RST_QP, in any state: the NIC drops the peer and starts at index 0 again. The caller must prepare the memory again."""
        self._move(Command.TO_RST_QP)

    def query(self) -> QpState:
        """Return the NIC's state of the QP (QUERY_QP), and update self.state.

        Raises:
            TransportError: the adapter refuses, or returns a state that no command of this driver leads to.
        """
        self._check_alive(Command.QUERY_QP)
        value = execute(self._adapter, Command.QUERY_QP, qpn=self.qpn)["qpc"]["state"]
        if value not in QpState.__members__.values():
            raise TransportError(f"QP {self.qpn:#x}: QUERY_QP returns state {value:#x}, to which no command of this driver leads")
        self.state = QpState(value)
        return self.state

    def destroy(self) -> None:
        """Send DESTROY_QP and DESTROY_CQ, then release the UAR. Afterwards the NIC does not use the memory anymore.

        All three are attempted. The adapter destroys remaining objects when it is closed.

        Raises:
            TransportError: the adapter refuses, or this was called before.
        """
        self._check_alive(Command.DESTROY_QP)
        self._give_back()

    def _give_back(self) -> None:
        """Destroy the objects in reverse order. Raise the first error, because later ones follow from it."""
        first: TransportError | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except TransportError as error:
                first = first or error
        if first is not None:
            raise first

    def _check_alive(self, command: Command) -> None:
        if not self._undo:
            raise TransportError(f"QP {self.qpn:#x} is destroyed, so {command_name(command)} cannot be executed")

    def _check(self, command: Command) -> QpState:
        """Return the state after a command; raise if the known state forbids the command."""
        self._check_alive(command)
        try:
            return transition(command_name(command), self.state)
        except ValueError as error:
            raise TransportError(f"QP {self.qpn:#x}: {error}") from None

    def _move(self, command: Command, **qpc: Any) -> None:
        after = self._check(command)
        context: dict[str, Any] = {"qpc": qpc} if qpc else {}
        execute(self._adapter, command, qpn=self.qpn, **context)
        self.state = after

    def _address_path(self, port: PortAddress, remote: PortAddress) -> dict[str, int]:
        """Return the ads for a peer's port."""
        if port.link_layer != remote.link_layer:
            raise TransportError(
                f"QP {self.qpn:#x}: port {port.port_num} of {self._adapter.name} is {port.link_layer}, the peer's is {remote.link_layer}"
            )
        global_address = {"src_addr_index": self._path.gid_index, "rgid_rip": int.from_bytes(remote.gid, "big"), "hop_limit": HOP_LIMIT}
        if port.link_layer != "Ethernet":
            local = {"vhca_port_num": port.port_num, "rlid": remote.lid, "sl": self._path.sl, "tclass": self._path.traffic_class}
            return local if port.gid[:8] == remote.gid[:8] else {**local, **global_address, "grh": 1}  # the subnet prefix
        if self._path.sl > _PRIORITY_MAX:
            raise TransportError(f"PGAS_IB_SL={self._path.sl}: an Ethernet port has priorities 0 to {_PRIORITY_MAX}")
        version = query_roce_address(self._adapter, port.port_num, self._path.gid_index)["roce_version"]
        mac = self._adapter.destination_mac(self._pdn, remote, self._path)
        return {
            **global_address,
            "vhca_port_num": port.port_num,
            "rmac_47_32": int.from_bytes(mac[:2], "big"),
            "rmac_31_0": int.from_bytes(mac[2:], "big"),
            "eth_prio": self._path.sl,
            "dscp": self._path.traffic_class >> _DSCP_SHIFT,
            "udp_sport": _UDP_SPORT if version >= _ROCE_V2 else 0,
        }


def first_psn(port: PortAddress) -> int:
    """Return the first PSN that a QP of a port sends: random on Ethernet, where others can send packets, otherwise 0, like in NVSHMEM."""
    return secrets.randbits(_PSN_BITS) if port.link_layer == "Ethernet" else 0


def query_roce_address(adapter: Adapter, port_num: int, index: int) -> dict[str, int]:
    """Return an entry of a port's GID table, with GID, MAC, and RoCE version: QUERY_ROCE_ADDRESS's roce_address.

    Raises:
        CommandError: there is no such entry, or the port is not an Ethernet port.
    """
    return execute(adapter, Command.QUERY_ROCE_ADDRESS, roce_address_index=index, vhca_port_num=port_num)["roce_address"]


def check_caps(adapter: Adapter, n_pes: int, num_rc: int, depth: int, sharing: int = 1) -> None:
    """Check an adapter's capabilities before making objects on it (QUERY_HCA_CAP).

    Args:
        adapter: the NIC.
        n_pes: number of PEs in the job.
        num_rc: number of QPs from each PE to each PE (PGAS_IBGDA_NUM_RC_PER_PE).
        depth: number of WQEBBs in each QP (PGAS_QP_DEPTH).
        sharing: number of PEs known to use this adapter. Because there may be other users, a QP may still be refused later.

    Raises:
        ValueError: depth is not a power of two from 128 to 32768.
        TransportError: the adapter lacks capabilities; the text gives the value and the required value of each. Or the job needs more QPs
            than the adapter has.
    """
    _check_depth(depth)
    caps = _query_caps(adapter, CapType.GENERAL)
    sizes, operations = sum(AtomicSize), sum(AtomicOperations)
    # By name: whether the value suffices, and the required value.
    needed = {
        "cqe_version": (caps["cqe_version"] == 1, "1: CQEs that carry qpc.user_index"),
        "cq_oi": (caps["cq_oi"] == 1, "1: CQs that ignore overrun, because no consumer index is reported"),
        "log_max_qp_sz": (depth <= 1 << caps["log_max_qp_sz"], f"{depth.bit_length() - 1} for PGAS_QP_DEPTH={depth}"),
        "log_max_msg": (caps["log_max_msg"] >= _LOG_MSG_MAX, f"{_LOG_MSG_MAX} for WQEs of up to {MESSAGE_MAX} bytes"),
        "atomic": (caps["atomic"] == 1, "1: atomics"),
    }
    if caps["atomic"]:
        caps |= _query_caps(adapter, CapType.ATOMIC)
        needed |= {
            "atomic_operations": (caps["atomic_operations"] & operations == operations, f"{operations}: CAS, FA, and both masked forms"),
            "atomic_size_qp": (caps["atomic_size_qp"] & sizes == sizes, f"{sizes}: operands of 4 and 8 bytes"),
            _ORDER: (caps[_ORDER] in (_BIG_ENDIAN, _OF_THE_HOST), "0 or 1: old values of 8 bytes are big-endian or host-endian"),
        }
    if lacking := [f"{name} is {caps[name]}, but must be {what}" for name, (enough, what) in needed.items() if not enough]:
        raise TransportError(f"{adapter.name} lacks capabilities: {'; '.join(lacking)}")
    wanted, there = sharing * n_pes * num_rc, 1 << caps["log_max_qp"]
    if wanted > there:
        raise TransportError(
            f"PGAS_IBGDA_NUM_RC_PER_PE={num_rc} is {wanted} queue pairs from {sharing} to {n_pes} PEs, but {adapter.name} has {there}"
        )


def returns_big_endian(adapter: Adapter) -> bool:
    """Whether atomics of an adapter return old values of 8 bytes big-endian, like those of 4 bytes.

    In both modes, operands in WQEs are big-endian and memory is in host byte order. The kernel driver sets host mode if a NIC has it
    (SET_HCA_CAP, which DevX must not send), so this concerns NICs that lack it.
    """
    return _query_caps(adapter, CapType.ATOMIC)[_ORDER] == _BIG_ENDIAN


def _query_caps(adapter: Adapter, kind: CapType) -> dict[str, int]:
    return execute(adapter, Command.QUERY_HCA_CAP, cap_op_mod(kind))["capability"]
