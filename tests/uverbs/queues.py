"""CQs and QPs of plain verbs: libmlx5 allocates the queues, and mlx5_ib turns attributes into commands.

Methods of ib_uverbs (<rdma/ib_user_ioctl_cmds.h>, <rdma/ib_user_verbs.h>) and mlx5_ib's additions (<rdma/mlx5-abi.h>). The kernel passes
lists of pages to the card; here a UMEM stands for each list, as the card accepts nothing else. RC only; no SRQ, XRC, completion channel.
"""

import ctypes
import errno
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from pgas.base.errors import TransportError
from pgas.transports.mlx5 import commands
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import Access, AtomicMode, PmState, QpState, QpType, RqType
from pgas.transports.mlx5.cqe import CQE_SIZE
from pgas.transports.mlx5.doorbell import DBR_SIZE
from pgas.transports.mlx5.wqe import OCTOWORD, WQEBB
from pgas.transports.verbs.abi import QPT_RC, QpAttrMask
from uverbs import cards
from uverbs.devx import execute
from uverbs.process import Attributes, Errno, File, method
from uverbs.verbs import PD, UHW_IN, UHW_OUT, Object, Struct, card_refuses, u8, u16, u32, u64, write_command

CREATE, DESTROY = 0, 1

#: enum ib_uverbs_write_cmds, and IB_USER_VERBS_CMD_FLAG_EXTENDED.
QUERY_QP, MODIFY_QP, _EXTENDED = 25, 26, 0x8000_0000


class CqAttribute(IntEnum):
    """enum uverbs_attrs_create_cq_cmd_attr_ids."""

    HANDLE, CQE, USER_HANDLE, COMP_CHANNEL, COMP_VECTOR, FLAGS, RESP_CQE, EVENT_FD = range(8)


class QpAttribute(IntEnum):
    """enum uverbs_attrs_create_qp_cmd_attr_ids."""

    HANDLE, XRCD, PD, SRQ, SEND_CQ, RECV_CQ, IND_TABLE, USER_HANDLE, CAP, TYPE, FLAGS, SOURCE_QPN, EVENT_FD, RESP_CAP, RESP_QP_NUM = range(
        15
    )


#: IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN; IB_UVERBS_QP_CREATE_SQ_SIG_ALL, which concerns libmlx5 only.
CQ_IGNORE_OVERRUN, QP_SQ_SIG_ALL = 1 << 1, 1 << 12


class CreateCq(Struct):
    """struct mlx5_ib_create_cq."""

    _fields_ = [
        ("buf_addr", u64), ("db_addr", u64), ("cqe_size", u32), ("cqe_comp_en", u8), ("cqe_comp_res_format", u8), ("flags", u16),
        ("uar_page_index", u16), ("reserved0", u16), ("reserved1", u32),
    ]  # fmt: skip


CREATE_CQ_UAR_PAGE_INDEX = 1 << 1  # MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX


class CreateQp(Struct):
    """struct mlx5_ib_create_qp, to its bfreg_index."""

    _fields_ = [
        ("buf_addr", u64), ("db_addr", u64), ("sq_wqe_count", u32), ("rq_wqe_count", u32), ("rq_wqe_shift", u32), ("flags", u32),
        ("uidx", u32), ("bfreg_index", u32),
    ]  # fmt: skip


#: MLX5_QP_FLAG_*: accepted flags. SCATTER_CQE only permits something, which the card does not do.
QP_SCATTER_CQE, QP_UAR_PAGE_INDEX = 1 << 1, 1 << 10


class Cap(Struct):
    """struct ib_uverbs_qp_cap."""

    _fields_ = [(name, u32) for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")]


class Destination(Struct):
    """struct ib_uverbs_qp_dest."""

    _fields_ = [
        ("dgid", u8 * 16), ("flow_label", u32), ("dlid", u16), ("reserved", u16),
        *((name, u8) for name in ("sgid_index", "hop_limit", "traffic_class", "sl", "src_path_bits", "static_rate", "is_global")),
        ("port_num", u8),
    ]  # fmt: skip


#: Fields that both ModifyQp and QueryQpResp have.
_WORDS = ("qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags")


class ModifyQp(Struct):
    """struct ib_uverbs_modify_qp."""

    _fields_ = [
        ("dest", Destination), ("alt_dest", Destination), ("qp_handle", u32), ("attr_mask", u32), *((name, u32) for name in _WORDS),
        ("pkey_index", u16), ("alt_pkey_index", u16),
        *((name, u8) for name in ("qp_state", "cur_qp_state", "path_mtu", "path_mig_state", "en_sqd_async_notify", "max_rd_atomic")),
        *((name, u8) for name in ("max_dest_rd_atomic", "min_rnr_timer", "port_num", "timeout", "retry_cnt", "rnr_retry")),
        ("alt_port_num", u8), ("alt_timeout", u8), ("reserved", u8 * 2),
    ]  # fmt: skip


class QueryQpResp(Struct):
    """struct ib_uverbs_query_qp_resp."""

    _fields_ = [
        ("dest", Destination), ("alt_dest", Destination),
        *((name, u32) for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data", *_WORDS)),
        ("pkey_index", u16), ("alt_pkey_index", u16),
        *((name, u8) for name in ("qp_state", "cur_qp_state", "path_mtu", "path_mig_state", "sq_draining", "max_rd_atomic")),
        *((name, u8) for name in ("max_dest_rd_atomic", "min_rnr_timer", "port_num", "timeout", "retry_cnt", "rnr_retry")),
        ("alt_port_num", u8), ("alt_timeout", u8), ("sq_sig_all", u8), ("reserved", u8 * 5),
    ]  # fmt: skip


#: Required attributes of each transition of an RC QP (ib_modify_qp_is_ok): fields of ModifyQp, named like the flags.
REQUIRED = {
    QpState.INIT: ("pkey_index", "port_num", "qp_access_flags"),
    QpState.RTR: ("dest", "path_mtu", "dest_qp_num", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer"),
    QpState.RTS: ("timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"),
}  # fmt: skip

#: Flags whose field has another name.
_FIELDS = {
    "ACCESS_FLAGS": "qp_access_flags",
    "PORT": "port_num",
    "AV": "dest",
    "MAX_QP_RD_ATOMIC": "max_rd_atomic",
    "DEST_QPN": "dest_qp_num",
}


@dataclass
class CompletionQueue:
    """A CQ of plain verbs."""

    cqn: int
    umems: list[int]


@dataclass
class QueuePair:
    """A QP of plain verbs and its attributes."""

    qpn: int
    umems: list[int]
    cap: Cap
    signal_all: bool
    known: dict[str, Any] = field(default_factory=dict)


def _run(file: File, command: Command, **values: Any) -> dict[str, Any]:
    """Execute a command that the kernel builds; a refusal becomes EINVAL or EBUSY."""
    outbox = execute(file, commands.build(command, **values), commands.output_size(command))
    if outbox[0]:
        raise Errno(errno.EBUSY if outbox[0] == commands.Status.RES_BUSY else errno.EINVAL, commands.status_words(outbox[0]))
    return commands.parse_output(command, outbox)


class _Umems:
    """UMEMs over memory of the process; released on failure."""

    def __init__(self, file: File) -> None:
        self._file, self.ids = file, list[int]()

    def __enter__(self) -> "_Umems":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            _forget(self._file, self.ids)

    def add(self, address: int, nbytes: int) -> int:
        try:
            self.ids.append(self._file.card.register_umem(address, nbytes))
        except (TransportError, cards.Fault) as error:
            raise card_refuses(error) from error
        return self.ids[-1]


def _forget(file: File, umems: list[int]) -> None:
    for umem_id in umems:
        file.card.deregister_umem(umem_id)


def _unsupported(attributes: Attributes, *numbers: int) -> None:
    for number in numbers:
        if number in attributes:
            raise Errno(errno.EOPNOTSUPP, f"attribute {number}")


def _log2(count: int, what: str) -> int:
    if count < 1 or count & count - 1:
        raise Errno(errno.EINVAL, f"{what}: {count} is no power of two")
    return count.bit_length() - 1


# --- CQs -------------------------------------------------------------------------------------------------------------------------


@method(Object.CQ, CREATE)
def cq_create(file: File, attributes: Attributes) -> None:
    request = CreateCq.of(attributes.data(UHW_IN))
    _unsupported(attributes, CqAttribute.COMP_CHANNEL)
    flags = attributes.integer(CqAttribute.FLAGS, 0)
    if flags & ~CQ_IGNORE_OVERRUN or request.cqe_comp_en or request.flags & ~CREATE_CQ_UAR_PAGE_INDEX or request.cqe_size != CQE_SIZE:
        raise Errno(errno.EOPNOTSUPP, "time stamps, or CQEs that are compressed, padded or of another size")
    if attributes.integer(CqAttribute.COMP_VECTOR, 0) != 0:
        raise Errno(errno.EINVAL, "there is one completion vector")
    if not request.flags:
        raise Errno(errno.EINVAL, "static UARs")
    log_size = _log2(attributes.integer(CqAttribute.CQE) + 1, "CQEs")
    with _Umems(file) as umems:
        cqc = {
            "oi": int(bool(flags & CQ_IGNORE_OVERRUN)), "log_cq_size": log_size, "uar_page": request.uar_page_index, "dbr_umem_valid": 1,
            "c_eqn": file.card.query_eqn(), "dbr_umem_id": umems.add(request.db_addr, DBR_SIZE),
        }  # fmt: skip
        buffer = umems.add(request.buf_addr, CQE_SIZE << log_size)
        cqn = _run(file, Command.CREATE_CQ, cqc=cqc, cq_umem_id=buffer, cq_umem_valid=1)["cqn"]
    attributes.set_handle(CqAttribute.HANDLE, file.add(CompletionQueue(cqn, umems.ids)))
    attributes.set(CqAttribute.RESP_CQE, attributes.integer(CqAttribute.CQE))
    attributes.set(UHW_OUT, cqn)


@method(Object.CQ, DESTROY)
def cq_destroy(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_CQ_DESTROY; there were no events."""
    cq = file.find(attributes.handle(0), CompletionQueue)
    _run(file, Command.DESTROY_CQ, cqn=cq.cqn)
    _forget(file, cq.umems)
    del file.objects[attributes.handle(0)]
    attributes.set(1, b"")


# --- QPs -------------------------------------------------------------------------------------------------------------------------


@method(Object.QP, CREATE)
def qp_create(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_QP_CREATE: the receive queue lies before the send queue."""
    request, cap = CreateQp.of(attributes.data(UHW_IN)), Cap.of(attributes.data(QpAttribute.CAP))
    _unsupported(attributes, QpAttribute.XRCD, QpAttribute.SRQ, QpAttribute.IND_TABLE, QpAttribute.SOURCE_QPN)
    flags = attributes.integer(QpAttribute.FLAGS, 0)
    if attributes.integer(QpAttribute.TYPE) != QPT_RC or flags & ~QP_SQ_SIG_ALL:
        raise Errno(errno.EOPNOTSUPP, "QPs other than RC")
    if request.flags & ~(QP_SCATTER_CQE | QP_UAR_PAGE_INDEX):
        raise Errno(errno.EOPNOTSUPP, f"flags {request.flags:#x} of the driver")
    if not request.flags & QP_UAR_PAGE_INDEX:
        raise Errno(errno.EINVAL, "static UARs")
    pd = file.find(attributes.handle(QpAttribute.PD), PD)
    send, receive = (file.find(attributes.handle(number), CompletionQueue) for number in (QpAttribute.SEND_CQ, QpAttribute.RECV_CQ))
    receives = request.rq_wqe_count << request.rq_wqe_shift if request.rq_wqe_count else 0
    qpc = {
        "st": QpType.RC, "pm_state": PmState.MIGRATED, "pd": pd.pdn, "uar_page": request.bfreg_index, "user_index": request.uidx,
        "log_sq_size": _log2(request.sq_wqe_count, "WQEBBs"), "cqn_snd": send.cqn, "rq_type": RqType.ZERO_SIZE_RQ, "dbr_umem_valid": 1,
    }  # fmt: skip
    if receives:
        stride = (1 << request.rq_wqe_shift) // OCTOWORD
        qpc |= {"rq_type": RqType.REGULAR, "log_rq_size": _log2(request.rq_wqe_count, "receive WQEs"), "cqn_rcv": receive.cqn}
        qpc["log_rq_stride"] = _log2(stride, "octowords of a receive WQE")
    with _Umems(file) as umems:
        qpc["dbr_umem_id"] = umems.add(request.db_addr, DBR_SIZE)
        buffer = umems.add(request.buf_addr, receives + request.sq_wqe_count * WQEBB)
        qpn = _run(file, Command.CREATE_QP, qpc=qpc, wq_umem_id=buffer, wq_umem_valid=1)["qpn"]
    handle = file.add(QueuePair(qpn, umems.ids, cap, bool(flags & QP_SQ_SIG_ALL)))
    attributes.set_handle(QpAttribute.HANDLE, handle)
    attributes.set(QpAttribute.RESP_CAP, cap)
    attributes.set(QpAttribute.RESP_QP_NUM, qpn)
    attributes.set(UHW_OUT, b"")


@method(Object.QP, DESTROY)
def qp_destroy(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_QP_DESTROY; there were no events."""
    qp = file.find(attributes.handle(0), QueuePair)
    _run(file, Command.DESTROY_QP, qpn=qp.qpn)
    _forget(file, qp.umems)
    del file.objects[attributes.handle(0)]
    attributes.set(1, 0)


def _qpc(after: QpState, known: dict[str, Any]) -> dict[str, Any]:
    """Return the QP context of a transition, from the attributes set so far."""
    if after == QpState.INIT:
        access = Access(known["qp_access_flags"] & sum(Access))
        return {
            "pm_state": PmState.MIGRATED, "rwe": bool(access & Access.REMOTE_WRITE), "rre": bool(access & Access.REMOTE_READ),
            "rae": bool(access & Access.REMOTE_ATOMIC), "atomic_mode": AtomicMode.UP_TO_64 if access & Access.REMOTE_ATOMIC else 0,
            "primary_address_path": {"vhca_port_num": known["port_num"], "pkey_index": known["pkey_index"]},
        }  # fmt: skip
    if after == QpState.RTR:
        to = known["dest"]
        path = {
            "rlid": to.dlid, "sl": to.sl & 15, "grh": to.is_global, "hop_limit": to.hop_limit, "tclass": to.traffic_class,
            "src_addr_index": to.sgid_index, "rgid_rip": int.from_bytes(bytes(to.dgid), "big"), "flow_label": to.flow_label & 0xFFFFF,
            "vhca_port_num": to.port_num, "stat_rate": to.static_rate & 15,
        }  # fmt: skip
        return {
            "mtu": known["path_mtu"], "log_msg_max": 30, "remote_qpn": known["dest_qp_num"], "next_rcv_psn": known["rq_psn"],
            "min_rnr_nak": known["min_rnr_timer"], "log_rra_max": _log(known["max_dest_rd_atomic"]), "primary_address_path": path,
        }  # fmt: skip
    return {
        "retry_count": known["retry_cnt"], "rnr_retry": known["rnr_retry"], "next_send_psn": known["sq_psn"],
        "log_sra_max": _log(known["max_rd_atomic"]), "primary_address_path": {"ack_timeout": known["timeout"]},
    }  # fmt: skip


def _log(count: int) -> int:
    """Return log2 of the number of outstanding READs and atomics, rounded up."""
    return max(0, count - 1).bit_length()


_COMMANDS = {
    QpState.INIT: Command.RST2INIT_QP, QpState.RTR: Command.INIT2RTR_QP, QpState.RTS: Command.RTR2RTS_QP,
    QpState.ERR: Command.TO_ERR_QP, QpState.RST: Command.TO_RST_QP,
}  # fmt: skip


@write_command(_EXTENDED | MODIFY_QP)
@write_command(MODIFY_QP)
def modify_qp(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_MODIFY_QP, also extended: one transition with its required attributes."""
    request = ModifyQp.of(core)
    qp, mask = file.find(request.qp_handle, QueuePair), request.attr_mask
    if mask & ~sum(QpAttrMask) or not mask & QpAttrMask.STATE or request.qp_state not in list(QpState):
        raise Errno(errno.EOPNOTSUPP, f"attributes {mask:#x}, state {request.qp_state}")
    after = QpState(request.qp_state)
    names = (_FIELDS.get(flag.name, flag.name.lower()) for flag in QpAttrMask if mask & flag & ~QpAttrMask.STATE)
    told = {name: getattr(request, name) for name in names}
    if missing := set(REQUIRED.get(after, ())) - told.keys():
        raise Errno(errno.EINVAL, f"to {after.name} without {', '.join(sorted(missing))}")
    values = {"qpc": _qpc(after, qp.known | told)} if after in REQUIRED else {}
    _run(file, _COMMANDS[after], qpn=qp.qpn, **values)
    qp.known = {} if after == QpState.RST else qp.known | told
    attributes.set(UHW_OUT, b"")
    return bytes(ctypes.sizeof(u32) * 2)


@write_command(QUERY_QP)
def query_qp(file: File, core: bytes, attributes: Attributes) -> QueryQpResp:
    """IB_USER_VERBS_CMD_QUERY_QP: the card's attributes of the QP, and those that only the kernel keeps."""
    qp = file.find(int.from_bytes(core[8:12], "little"), QueuePair)
    qpc = _run(file, Command.QUERY_QP, qpn=qp.qpn)["qpc"]
    known = {name: value for name, value in qp.known.items() if name != "dest"}
    cap = {name: getattr(qp.cap, name) for name, _ in Cap._fields_}
    response = QueryQpResp(qp_state=qpc["state"], cur_qp_state=qpc["state"], sq_sig_all=qp.signal_all, **cap)
    for name, value in (
        known | ({"rnr_retry": qpc["rnr_retry"], "retry_cnt": qpc["retry_count"]} if qpc["state"] == QpState.RTS else {})
    ).items():
        setattr(response, name, value)
    if "dest" in qp.known:
        response.dest = qp.known["dest"]
    return response
