"""Commands on CQs and QPs: creation, the state machine, and destruction."""

import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pgas.transports.mlx5 import contexts
from pgas.transports.mlx5.commands import Command, Status, command_name
from pgas.transports.mlx5.contexts import OPTIONAL, AtomicMode, Mtu, OptPar, PmState, QpState, QpType, RqType, SendDbrMode, TsFormat
from pgas.transports.mlx5.cqe import CQE_SIZE
from pgas.transports.mlx5.doorbell import DBR_SIZE, DBR_SND_OFFSET
from pgas.transports.mlx5.wqe import OCTOWORD, WQEBB
from pgas.transports.softhca import layout, tables
from pgas.transports.softhca.firmware.objects import EQN, Numbers, Objects, Owned, UarPage, Umem
from pgas.transports.softhca.syndromes import CommandSyndrome as Why
from pgas.transports.softhca.tables import FREE, OP_ATOMIC, OP_READ, OP_WRITE, RST, SHARED, Tables
from pgas.transports.softhca.wire.port import WirePort

_Owned = TypeVar("_Owned", bound=Owned)

#: Commands that change a QP's state.
TRANSITIONS = tuple(command for command in Command if command_name(command) in contexts.LEGAL.values())

#: Valid values of ts_format if the capability sq_ts_format is FREE_RUNNING.
_TS_FORMATS = (TsFormat.FREE_RUNNING, TsFormat.DEFAULT)

#: Fields that a transition always sets, and those of an optional parameter; path: fields of primary_address_path.
_SET: dict[int, tuple[str, ...]] = {
    Command.RST2INIT_QP: ("rre", "rwe", "rae", "atomic_mode", "pm_state", "primary_address_path"),
    Command.INIT2RTR_QP: ("mtu", "log_msg_max", "log_rra_max", "remote_qpn", "next_rcv_psn", "min_rnr_nak", "primary_address_path"),
    Command.RTR2RTS_QP: ("log_sra_max", "next_send_psn", "retry_count", "rnr_retry", "log_ack_req_freq"),
}
_SET_OPTIONAL = {OptPar.RRE: ("rre",), OptPar.RWE: ("rwe",), OptPar.RAE: ("rae", "atomic_mode"), OptPar.RNR_TIMEOUT: ("min_rnr_nak",)}
_SET_OF_PATH = {OptPar.PRI_PORT: "vhca_port_num", OptPar.PKEY_INDEX: "pkey_index"}

#: Optional parameters without a capability on the software NIC: alternate path and LAG.
_LACKING = OptPar.ALT_ADDR_PATH | OptPar.LAG_TX_AFF

_QP_GENERATION_BITS = 24 - layout.LOG_MAX_QP
_CQ_GENERATION_BITS = 24 - layout.LOG_MAX_CQ

#: Fields that 2RST_QP clears: indices, delays by faults, counters, and the first error.
_ERROR = ("error_syndrome", "error_vendor", "error_index", "error_nbytes")
_VOLATILE_RQ = ("consumer", "naks", "naked_until", "receives", "flushed")
_VOLATILE = ("broken", "consumer", "producer", "rung", "stalled_until", "held", *tables.COUNTERS, *_ERROR)


class Refused(Exception):
    """A command is refused with a status and a syndrome."""

    def __init__(self, status: Status, why: Why) -> None:
        super().__init__(status, why)
        self.status, self.why = status, why


@dataclass
class CompletionQueue(Owned):
    """A CQ."""

    row: int = 0
    uses: tuple[Owned, ...] = ()
    worker: int | None = None  #: worker of the engine that serves the QPs that use this CQ


@dataclass
class EmulatedQueuePair(Owned):
    """A QP; qpc has the fields set by CREATE_QP and the transitions, for QUERY_QP."""

    row: int = 0
    uses: tuple[Owned, ...] = ()
    uar: UarPage | None = None
    page: int = 0
    qpc: dict[str, Any] = field(default_factory=dict)
    wq: range = range(0)  #: addresses of its queues
    connection: int = 0  #: address of its connection; 0 if its peer is on this card


def require(condition: object, status: Status, why: Why) -> None:
    """Refuse the command unless a condition holds."""
    if not condition:
        raise Refused(status, why)


def owned(objects: Mapping[int, _Owned], pe: int, number: int, why: Why) -> _Owned:
    """Return a PE's object; the command is refused if the PE has no such object."""
    found = objects.get(number)
    if found is None or found.pe != pe:
        raise Refused(Status.BAD_RES, why)
    return found


class QueuePairs:
    """The CQs and QPs of one software NIC."""

    def __init__(self, card: Tables, objects: Objects, port: WirePort | None = None) -> None:
        self.tables, self.objects, self._port = card, objects, port
        self.cqs: dict[int, CompletionQueue] = {}
        self.qps: dict[int, EmulatedQueuePair] = {}
        self._cq_rows, self._qp_rows = Numbers(1 << layout.LOG_MAX_CQ), Numbers(1 << layout.LOG_MAX_QP)
        self._turns: dict[tuple[int, int], Iterator[int]] = {}
        self.least_cq = 0  #: the minimum log_cq_size; a fault raises it
        #: Counters of QPs that were destroyed or reset.
        self.retired = dict.fromkeys(tables.COUNTERS, 0)

    # ------------------------------------------------------------------------------------------------------------- what they name

    def _umem(self, pe: int, valid: int, umem_id: int, offset: int, nbytes: int, alignment: int) -> tuple[Umem, int]:
        require(valid, Status.BAD_PARAM, Why.UMEM_INVALID)
        umem = owned(self.objects.umems, pe, umem_id, Why.UMEM)
        require(offset + nbytes <= umem.nbytes, Status.BAD_PARAM, Why.UMEM_BOUNDS)
        address = umem.address + offset
        require(address % alignment == 0, Status.BAD_PARAM, Why.ALIGNMENT)
        return umem, address

    def _queue(self, pe: int, valid: int, umem_id: int, offset: int, page_offset: int, nbytes: int, alignment: int) -> tuple[Umem, int]:
        """Return the UMEM and the address of a queue, which begins page_offset * 64 bytes after a page boundary of the UMEM."""
        umem, address = self._umem(pe, valid, umem_id, offset + (page_offset << 6), nbytes, alignment)
        require(offset % umem.page_size == 0, Status.BAD_PARAM, Why.UMEM_PAGE)
        return umem, address

    def _uar(self, pe: int, page: int) -> UarPage:
        return owned(self.objects.uars, pe, page, Why.UAR)

    def pd(self, pe: int, pdn: int) -> Owned:
        return owned(self.objects.pds, pe, pdn, Why.PD)

    def cq(self, pe: int, cqn: int) -> CompletionQueue:
        return owned(self.cqs, pe, cqn, Why.CQ)

    def qp(self, pe: int, qpn: int) -> EmulatedQueuePair:
        return owned(self.qps, pe, qpn, Why.QP)

    def state(self, qp: EmulatedQueuePair) -> QpState:
        self.tables.fetch_qps(qp.row, qp.row + 1)
        record = self.tables.qps[qp.row]
        state = QpState(int(record["state"]))
        return QpState.ERR if record["broken"] and state in (QpState.RTR, QpState.RTS) else state

    # ---------------------------------------------------------------------------------------------------------------------- CQs

    def create_cq(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        cqc = values["cqc"]
        require(self.least_cq <= cqc["log_cq_size"] <= layout.LOG_MAX_CQ_SZ, Status.BAD_PARAM, Why.CQ_SIZE)
        require(cqc["cqe_sz"] == 0, Status.BAD_PARAM, Why.CQE_SIZE)
        require(cqc["st"] == 0, Status.BAD_PARAM, Why.CQ_STATE)
        require(cqc["oi"] or (self.tables.receives and not cqc["cc"]), Status.BAD_PARAM, Why.CQ_OVERRUN)
        require(cqc["c_eqn"] == EQN, Status.BAD_RES, Why.EQ)
        uar = self._uar(pe, cqc["uar_page"])
        nbytes = CQE_SIZE << cqc["log_cq_size"]
        umem, address = self._queue(
            pe, values["cq_umem_valid"], values["cq_umem_id"], values["cq_umem_offset"], cqc["page_offset"], nbytes, CQE_SIZE
        )
        dbr_umem, dbr = self._umem(pe, cqc["dbr_umem_valid"], cqc["dbr_umem_id"], cqc["dbr_addr"], DBR_SIZE, DBR_SIZE)
        row = self._cq_rows.take()
        if row is None:
            raise Refused(Status.LIM, Why.NO_CQ)
        cqn = self._cq_rows.generation(row, _CQ_GENERATION_BITS) << layout.LOG_MAX_CQ | row
        record = self.tables.cqs[row]
        record["pe"], record["address"], record["log_size"], record["collapsed"] = pe, address, cqc["log_cq_size"], cqc["cc"]
        record["dbr"] = 0 if cqc["oi"] else dbr
        record["producer"] = record["cqes"] = record["overrun"] = 0
        record["cqn"] = cqn
        self.tables.publish_cq(row)
        self.cqs[cqn] = CompletionQueue(pe, 0, row, _use(umem, dbr_umem, uar))
        return {"cqn": cqn}

    def destroy_cq(self, pe: int, cqn: int) -> None:
        """DESTROY_CQ. No QP uses the CQ, and the engine stopped using it when the last QP was destroyed."""
        cq = self.cq(pe, cqn)
        require(not cq.users, Status.RES_BUSY, Why.CQ_BUSY)
        self._drop_cq(cqn)

    def _drop_cq(self, cqn: int) -> None:
        cq = self.cqs.pop(cqn)
        self.tables.cqs[cq.row]["cqn"] = 0
        self._cq_rows.free.append(cq.row)
        _release(cq.uses)

    # ---------------------------------------------------------------------------------------------------------------------- QPs

    def create_qp(self, pe: int, values: dict[str, Any]) -> dict[str, Any]:
        """CREATE_QP: RC, with a send queue, and, if rq_type requests it, a receive queue before it in the same memory."""
        qpc = values["qpc"]
        require(qpc["st"] == QpType.RC, Status.BAD_PARAM, Why.SERVICE_TYPE)
        require(qpc["state"] == QpState.RST, Status.BAD_PARAM, Why.QP_STATE)
        require(qpc["pm_state"] == PmState.MIGRATED, Status.BAD_PARAM, Why.PM_STATE)
        require(qpc["ts_format"] in _TS_FORMATS, Status.BAD_PARAM, Why.TS_FORMAT)
        require(qpc["rq_type"] in (RqType.REGULAR, RqType.ZERO_SIZE_RQ), Status.BAD_PARAM, Why.RQ_TYPE)
        require(not qpc["no_sq"], Status.BAD_PARAM, Why.SQ_MISSING)
        require(qpc["send_dbr_mode"] == SendDbrMode.VALID, Status.BAD_PARAM, Why.DBR_MODE)
        pd, cq, uar = self.pd(pe, qpc["pd"]), self.cq(pe, qpc["cqn_snd"]), self._uar(pe, qpc["uar_page"])
        require(not uar.full(shared=self.tables.receives), Status.BAD_RES_STATE, Why.UAR_SHARED)
        stride, nbytes, cqs = 0, 0, [cq]
        if qpc["rq_type"] == RqType.REGULAR:
            require(self.tables.receives, Status.BAD_PARAM, Why.RQ_ENGINE)
            stride = OCTOWORD << qpc["log_rq_stride"]
            require(stride <= layout.MAX_WQE_SZ_RQ, Status.BAD_PARAM, Why.RQ_STRIDE)
            nbytes = stride << qpc["log_rq_size"]
            cqs.append(self.cq(pe, qpc["cqn_rcv"]))
        whole = nbytes + (WQEBB << qpc["log_sq_size"])
        umem, ring = self._queue(
            pe, values["wq_umem_valid"], values["wq_umem_id"], values["wq_umem_offset"], qpc["page_offset"], whole, WQEBB
        )
        require(nbytes % WQEBB == 0, Status.BAD_PARAM, Why.ALIGNMENT)
        others = (other.wq for other in self.qps.values() if other.pe == pe)
        require(not any(wq.start < ring + whole and ring < wq.stop for wq in others), Status.BAD_RES_STATE, Why.WQ_SHARED)
        dbr_umem, dbr = self._umem(pe, qpc["dbr_umem_valid"], qpc["dbr_umem_id"], qpc["dbr_addr"], DBR_SIZE, DBR_SIZE)
        row = self._qp_rows.take()
        if row is None:
            raise Refused(Status.LIM, Why.NO_QP)
        qpn = self._qp_rows.generation(row, _QP_GENERATION_BITS) << layout.LOG_MAX_QP | row
        record = self.tables.qps[row]
        for name in (*_VOLATILE, "access", "remote_qpn", "send_psn", "recv_psn", "log_msg_max"):
            record[name] = 0
        record["qpn"], record["pe"], record["pd"] = qpn, pe, qpc["pd"]
        record["worker"] = (cq.worker or 0) % self.tables.workers
        record["uar"], record["user_index"] = qpc["uar_page"], qpc["user_index"]
        record["sq"] = self.tables.place_queue(row, ring + nbytes, WQEBB << qpc["log_sq_size"])
        record["mask"], record["dbr"] = (1 << qpc["log_sq_size"]) - 1, dbr + DBR_SND_OFFSET
        record["register"], record["on_host"] = self.objects.register(qpc["uar_page"]), int(self.objects.on_host)
        record["buffers"] = uar.buffers
        for other in uar.qpns if uar.buffers == SHARED else ():
            self.tables.qps[self.qps[other].row]["buffers"] = SHARED
            self.tables.publish_qp(self.qps[other].row, whole=False)
        self.tables.set_wire(row, 0)
        receive = self.tables.rqs[row]
        for name in tables.RQ.names or ():
            receive[name] = 0
        if stride:
            receive["address"], receive["mask"], receive["stride"] = ring, (1 << qpc["log_rq_size"]) - 1, stride
            receive["dbr"], receive["cq"] = dbr, self.tables.row_address(self.tables.cqs, cqs[-1].row)
        record["cq"] = self.tables.row_address(self.tables.cqs, cq.row)
        self.objects.clear_register(qpc["uar_page"], qpn)
        self.tables.publish_qp(row, whole=True)
        self.tables.move(row, RST)
        self.tables.set(tables.CTL_QP_LIMIT, self._qp_rows.high)
        uar.qpns.append(qpn)
        uses = _use(pd, *cqs, uar, umem, dbr_umem)
        self.qps[qpn] = EmulatedQueuePair(pe, 0, row, uses, uar, qpc["uar_page"], dict(qpc), range(ring, ring + whole))
        return {"qpn": qpn}

    def transition(self, pe: int, opcode: int, values: dict[str, Any]) -> None:
        """Execute any command of contexts.LEGAL. The engine may move the QP to ERR at any moment."""
        qp = self.qp(pe, values["qpn"])
        command = command_name(opcode)
        try:
            after = contexts.transition(command, self.state(qp))
        except ValueError as error:
            raise Refused(Status.BAD_QP_STATE, Why.TRANSITION) from error
        if after not in (QpState.RST, QpState.ERR):
            self._set(qp, opcode, values["qpc"], values["opt_param_mask"])
            self.tables.publish_qp(qp.row, whole=False)
        self.tables.move(qp.row, after)
        if after == QpState.RST:
            self._reset(qp)

    def _set(self, qp: EmulatedQueuePair, opcode: int, qpc: dict[str, Any], mask: int) -> None:
        """Check and set the fields of a transition. Of these, the engine reads only access before the new state."""
        record, receive = self.tables.qps[qp.row], self.tables.rqs[qp.row]
        after = _with_optional(command_name(opcode), qp.qpc | {name: qpc[name] for name in _SET.get(opcode, ())}, qpc, mask)
        path = after["primary_address_path"]
        require(path["vhca_port_num"] in (0, 1), Status.BAD_PARAM, Why.PORT)
        require(not after["rae"] or after["atomic_mode"] == AtomicMode.UP_TO_64, Status.BAD_PARAM, Why.ATOMIC_MODE)
        if opcode == Command.INIT2RTR_QP:
            require(qpc["mtu"] in list(Mtu), Status.BAD_PARAM, Why.MTU)
            require(qpc["log_msg_max"] <= layout.LOG_MAX_MSG, Status.BAD_PARAM, Why.LOG_MSG_MAX)
            require(qpc["log_rra_max"] <= layout.LOG_MAX_RA, Status.BAD_PARAM, Why.RD_ATOMIC)
            require(qpc["remote_qpn"], Status.BAD_PARAM, Why.REMOTE_QPN)
            require(path["rlid"] or path["rgid_rip"], Status.BAD_PARAM, Why.ADDRESS_PATH)
            record["remote_qpn"], record["recv_psn"], record["log_msg_max"] = qpc["remote_qpn"], qpc["next_rcv_psn"], qpc["log_msg_max"]
            record["worker"] = self._worker(qp, qpc["remote_qpn"])
            if self._port is not None:
                gid = path["rgid_rip"].to_bytes(16, "big")
                require(self._port.reachable(gid), Status.BAD_PARAM, Why.GID_KIND)
                qp.connection = self._port.connect(qp.row, gid, qpc)
                self.tables.set_wire(qp.row, qp.connection)
        elif opcode == Command.RTR2RTS_QP:
            require(qpc["log_sra_max"] <= layout.LOG_MAX_RA, Status.BAD_PARAM, Why.RD_ATOMIC)
            record["send_psn"], receive["rnr_retry"] = qpc["next_send_psn"], qpc["rnr_retry"]
            if self._port is not None and qp.connection:
                self._port.start(qp.row, qpc, int(record["consumer"]))
            self.objects.clear_register(qp.page, int(record["qpn"]))  # a doorbell before RTS is lost
        qp.qpc = after
        record["access"] = OP_READ * after["rre"] | OP_WRITE * after["rwe"] | OP_ATOMIC * after["rae"]
        receive["rnr_ns"] = contexts.rnr_timer_ns(after["min_rnr_nak"])

    def _worker(self, qp: EmulatedQueuePair, remote_qpn: int) -> int:
        """Return the worker of a QP: QPs from one PE to another are assigned round-robin."""
        cq = next(used for used in qp.uses if isinstance(used, CompletionQueue))
        if cq.worker is None:
            peer = self.qps.get(remote_qpn)
            pair = qp.pe, -1 if peer is None else peer.pe
            cq.worker = next(self._turns.setdefault(pair, itertools.count(sum(c.worker is not None for c in self.cqs.values()))))
        return cq.worker % self.tables.workers

    def _reset(self, qp: EmulatedQueuePair) -> None:
        self.tables.wait_for_engine()
        self._retire(qp)
        record = self.tables.qps[qp.row]
        for name in _VOLATILE:
            record[name] = 0
        for name in _VOLATILE_RQ:
            self.tables.rqs[qp.row][name] = 0
        self.tables.set_wire(qp.row, 0)
        self.tables.publish_qp(qp.row, whole=True)
        self.objects.clear_register(qp.page, int(record["qpn"]))

    def _retire(self, qp: EmulatedQueuePair) -> None:
        self.tables.fetch_qps(qp.row, qp.row + 1)
        for name in tables.COUNTERS:
            self.retired[name] += int(self.tables.qps[qp.row][name])

    def query_qp(self, pe: int, qpn: int) -> dict[str, Any]:
        """QUERY_QP: the set fields, the state, and the software NIC's indices."""
        qp = self.qp(pe, qpn)
        state = int(self.state(qp))
        record = self.tables.qps[qp.row]
        counters = {"hw_sq_wqebb_counter": int(record["consumer"]) & 0xFFFF, "sw_sq_wqebb_counter": int(record["producer"]) & 0xFFFF}
        return {"qpc": {**qp.qpc, "state": state, **counters}}

    def set_index(self, pe: int, qpn: int, index: int, receive_idx: int = 0) -> None:
        """Set the first indices of a QP that does not send yet, for tests of wrap-around; this is not a PRM command."""
        qp = self.qp(pe, qpn)
        require(self.state(qp) in (QpState.RST, QpState.INIT, QpState.RTR), Status.BAD_QP_STATE, Why.TRANSITION)
        self.tables.qps[qp.row]["consumer"] = self.tables.qps[qp.row]["producer"] = index
        self.tables.rqs[qp.row]["consumer"] = receive_idx
        self.tables.publish_qp(qp.row, whole=True)

    def destroy_qps(self, numbers: list[int]) -> None:
        """DESTROY_QP of several QPs in one grace period: executing WQEs complete, waiting ones are dropped."""
        for qpn in numbers:
            self.tables.move(self.qps[qpn].row, FREE)
        if numbers:
            self.tables.wait_for_engine()
        for qpn in numbers:
            qp = self.qps.pop(qpn)
            self._retire(qp)
            self.tables.qps[qp.row]["qpn"] = 0
            self.tables.publish_qp(qp.row, whole=False)
            self._qp_rows.free.append(qp.row)
            if qp.uar is not None:
                qp.uar.qpns.remove(qpn)
            _release(qp.uses)

    def leave(self, pes: Set[int]) -> None:
        """Destroy all QPs and CQs of some PEs."""
        self.destroy_qps([qpn for qpn, qp in self.qps.items() if qp.pe in pes])
        for cqn in [cqn for cqn, cq in self.cqs.items() if cq.pe in pes]:
            self._drop_cq(cqn)


def _with_optional(command: str, after: dict[str, Any], qpc: dict[str, Any], mask: int) -> dict[str, Any]:
    """Return a QP's context with the fields that opt_param_mask selects for a transition."""
    allowed = int(OPTIONAL.get(command, OptPar(0)) & ~_LACKING)
    require(not mask & ~allowed, Status.BAD_PARAM, Why.OPT_PARAM)
    require(not mask & OptPar.PM_STATE or qpc["pm_state"] == PmState.MIGRATED, Status.BAD_PARAM, Why.PM_STATE)
    changed = {name: qpc[name] for bit, names in _SET_OPTIONAL.items() if mask & bit for name in names}
    path = {name: qpc["primary_address_path"][name] for bit, name in _SET_OF_PATH.items() if mask & bit}
    return {**after, **changed, "primary_address_path": {**after["primary_address_path"], **path}}


def _use(*objects: Owned) -> tuple[Owned, ...]:
    for used in objects:
        used.users += 1
    return objects


def _release(objects: tuple[Owned, ...]) -> None:
    for used in objects:
        used.users -= 1
