"""Contexts of the NIC's objects: CQ, QP, address path, memory key, UMEM, RoCE address; and the states of a QP.

Tables are named as in mlx5_ifc.h and have only the fields that are used: those of an RC QP, a collapsed CQ, and a memory key over user
memory.
"""

from enum import IntEnum, IntFlag

from pgas.transports.mlx5.fields import Field, Table


class QpState(IntEnum):
    """``qpc.state``: the states that QPs of pgas enter, with the values of IBV_QPS_*. SQD and SQER are omitted."""

    RST = 0
    INIT = 1
    RTR = 2
    RTS = 3
    ERR = 6


class QpType(IntEnum):
    """``qpc.st``."""

    RC = 0
    DCI = 5


class PmState(IntEnum):
    """``qpc.pm_state``; every stack sets MIGRATED. The others are for QPs with an alternate path."""

    ARMED = 0
    REARM = 1
    MIGRATED = 3


class TsFormat(IntEnum):
    """``qpc.ts_format``: the clock of its CQEs' timestamps (``MLX5_QPC_TIMESTAMP_FORMAT_*``)."""

    FREE_RUNNING = 0
    DEFAULT = 1
    REAL_TIME = 2


class Mtu(IntEnum):
    """``qpc.mtu``, with the values of IBV_MTU_*."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5


class RqType(IntEnum):
    """``qpc.rq_type``."""

    REGULAR = 0
    SRQ = 1
    ZERO_SIZE_RQ = 3  # no receive queue, SRQ, or receive CQ; used by DOCA and pgas


#: Value of rnr_retry for endless retries (IBTA, Modify QP).
RNR_RETRY_FOR_EVER = 7


def rnr_timer_ns(min_rnr_nak: int) -> int:
    """Return the time that a requester waits after an RNR NAK, from qpc.min_rnr_nak of the responder's QP.

    1 is 10 µs, 2 is 20 µs, then alternately 3/2 and 4/3 of the previous one, up to 491.52 ms; 0 is the step after 31 (IBTA, RNR NAK timer).

    Raises:
        ValueError: the code has more than 5 bits.
    """
    if not 0 <= min_rnr_nak < 32:
        raise ValueError(f"min_rnr_nak: {min_rnr_nak} does not fit in 5 bits")
    code = min_rnr_nak or 32
    return 10_000 if code == 1 else (15_000 if code & 1 else 10_000) << code // 2


class AtomicMode(IntEnum):
    """``qpc.atomic_mode``."""

    UP_TO_64 = 3


class SendDbrMode(IntEnum):
    """``qpc.send_dbr_mode``; the others need ConnectX-8 (CAP_2)."""

    VALID = 0
    NO_DBR_EXT = 1
    NO_DBR_INT = 2


class OptPar(IntFlag):
    """``opt_param_mask``: the optional fields that a transition changes (``MLX5_QP_OPTPAR_*``)."""

    ALT_ADDR_PATH = 1 << 0
    RRE = 1 << 1
    RAE = 1 << 2
    RWE = 1 << 3
    PKEY_INDEX = 1 << 4
    RNR_TIMEOUT = 1 << 6
    PM_STATE = 1 << 10
    LAG_TX_AFF = 1 << 15
    PRI_PORT = 1 << 16


class AccessMode(IntEnum):
    """``mkc.access_mode_1_0``: how a key's addresses are translated."""

    MTT = 1
    KLM = 2


class Access(IntFlag):
    """``IBV_ACCESS_*``: what a memory region allows in addition to local reads."""

    LOCAL_WRITE = 1 << 0
    REMOTE_WRITE = 1 << 1
    REMOTE_READ = 1 << 2
    REMOTE_ATOMIC = 1 << 3
    RELAXED_ORDERING = 1 << 20


# --- completion queue ------------------------------------------------------------------------------------------------------------

CQC = Table(
    "cqc",
    0x40,
    Field("dbr_umem_valid", 0x06, 1),
    Field("cqe_sz", 0x08, 3),  # 0: 64 bytes
    Field("cc", 0x0B, 1),  # collapsed: every CQE is entry 0
    Field("oi", 0x0E, 1),  # overrun ignored: no consumer index is reported
    Field("cqe_comp_en", 0x11, 1),
    Field("st", 0x14, 4),
    Field("dbr_umem_id", 0x20, 32),
    Field("page_offset", 0x54, 6),
    Field("log_cq_size", 0x63, 5),
    Field("uar_page", 0x68, 24),
    Field("cq_period", 0x84, 12),
    Field("cq_max_count", 0x90, 16),
    Field("c_eqn", 0xB8, 8),
    Field("log_page_size", 0xC3, 5),
    Field("consumer_counter", 0x148, 24),
    Field("producer_counter", 0x168, 24),
    Field("dbr_addr", 0x1C0, 64),  # offset in the DBR's UMEM
)

# --- queue pair ------------------------------------------------------------------------------------------------------------------

ADS = Table(
    "ads",  # an address path
    0x2C,
    Field("free_ar", 0x01, 1),
    Field("pkey_index", 0x10, 16),
    Field("grh", 0x28, 1),
    Field("mlid", 0x29, 7),
    Field("rlid", 0x30, 16),
    Field("ack_timeout", 0x40, 5),
    Field("src_addr_index", 0x48, 8),
    Field("stat_rate", 0x54, 4),
    Field("hop_limit", 0x58, 8),
    Field("tclass", 0x64, 8),
    Field("flow_label", 0x6C, 20),
    Field("rgid_rip", 0x80, 128),
    Field("dscp", 0x10A, 6),
    Field("udp_sport", 0x110, 16),
    Field("eth_prio", 0x121, 3),
    Field("sl", 0x124, 4),
    Field("vhca_port_num", 0x128, 8),
    Field("rmac_47_32", 0x130, 16),
    Field("rmac_31_0", 0x140, 32),
)

QPC = Table(
    "qpc",
    0xE8,
    Field("state", 0x00, 4, QpState),
    Field("st", 0x08, 8, QpType),
    Field("pm_state", 0x13, 2, PmState),
    Field("pd", 0x28, 24),
    Field("mtu", 0x40, 3, Mtu),
    Field("log_msg_max", 0x43, 5),
    Field("log_rq_size", 0x49, 4),
    Field("log_rq_stride", 0x4D, 3),
    Field("no_sq", 0x50, 1),
    Field("log_sq_size", 0x51, 4),  # log2 of its WQEBBs
    Field("ts_format", 0x58, 2, TsFormat),
    Field("uar_page", 0x68, 24),
    Field("send_dbr_mode", 0x80, 2, SendDbrMode),
    Field("user_index", 0x88, 24),  # returned in a CQE's srqn_uidx
    Field("log_page_size", 0xA3, 5),
    Field("remote_qpn", 0xA8, 24),
    Field("primary_address_path", 0xC0, 8 * ADS.size, table=ADS),
    Field("log_ack_req_freq", 0x380, 4),
    Field("log_sra_max", 0x388, 3),  # log2 of the maximum number of outstanding READs and atomics
    Field("retry_count", 0x38D, 3),
    Field("rnr_retry", 0x390, 3),
    Field("fre", 0x394, 1),
    Field("next_send_psn", 0x3C8, 24),
    Field("cqn_snd", 0x3E8, 24),
    Field("log_rra_max", 0x488, 3),  # log2 of those that it answers; more than the caps allow corrupts atomics
    Field("atomic_mode", 0x48C, 4, AtomicMode),
    Field("rre", 0x490, 1),  # peers may READ
    Field("rwe", 0x491, 1),  # WRITE
    Field("rae", 0x492, 1),  # and use atomics
    Field("page_offset", 0x494, 6),
    Field("cd_slave_receive", 0x49D, 1),
    Field("cd_slave_send", 0x49E, 1),
    Field("cd_master", 0x49F, 1),
    Field("min_rnr_nak", 0x4A3, 5),
    Field("next_rcv_psn", 0x4A8, 24),
    Field("cqn_rcv", 0x4E8, 24),
    Field("dbr_addr", 0x500, 64),  # offset in the DBR's UMEM
    Field("q_key", 0x540, 32),
    Field("rq_type", 0x565, 3, RqType),
    Field("srqn_rmpn_xrqn", 0x568, 24),
    Field("hw_sq_wqebb_counter", 0x5A0, 16),  # QUERY_QP: index up to which the NIC has executed
    Field("sw_sq_wqebb_counter", 0x5B0, 16),  # index up to which the doorbell was rung
    Field("cs_req", 0x630, 8),
    Field("cs_res", 0x638, 8),
    Field("dc_access_key", 0x640, 64),
    Field("dbr_umem_valid", 0x683, 1),
    Field("dbr_umem_id", 0x720, 32),
)

# --- memory key and UMEM ---------------------------------------------------------------------------------------------------------

MKC = Table(
    "mkc",
    0x40,
    Field("access_mode_4_2", 0x03, 3),
    Field("relaxed_ordering_write", 0x0D, 1),
    Field("umr_en", 0x10, 1),
    Field("a", 0x11, 1),  # remote atomics
    Field("rw", 0x12, 1),  # remote write
    Field("rr", 0x13, 1),  # remote read
    Field("lw", 0x14, 1),  # local write
    Field("lr", 0x15, 1),  # local read
    Field("access_mode_1_0", 0x16, 2, AccessMode),
    Field("qpn", 0x20, 24),  # 0xffffff: any QP
    Field("mkey_7_0", 0x38, 8),
    Field("length64", 0x60, 1),
    Field("pd", 0x68, 24),
    Field("start_addr", 0x80, 64),
    Field("len", 0xC0, 64),
    Field("translations_octword_size", 0x1A0, 32),
    Field("relaxed_ordering_read", 0x1D9, 1),
    Field("log_page_size", 0x1DB, 5),
)
ANY_QPN = 0xFFFFFF

#: Piece of an indirect key (access_mode KLM): byte_count bytes from an address of another key. Pieces follow CREATE_MKEY's input.
KLM = Table("klm", 0x10, Field("byte_count", 0x00, 32), Field("mkey", 0x20, 32), Field("address", 0x40, 64))
KLM_MAX = 1 << 31  #: maximum number of bytes of a piece

#: Only the fixed part; mtt[] follows.
UMEM = Table("umem", 0x20, Field("log_page_size", 0x9B, 5), Field("page_offset", 0xA0, 32), Field("num_of_mtt", 0xC0, 64))


def mkey(mkey_index: int, mkey_7_0: int = 0) -> int:
    """Return the lkey of a memory key; the rkey is the same.

    Raises:
        ValueError: mkey_index has more than 24 bits, or mkey_7_0 more than 8.
    """
    if not 0 <= mkey_index < 1 << 24:
        raise ValueError(f"mkey_index: {mkey_index:#x} does not fit in 24 bits")
    if not 0 <= mkey_7_0 < 1 << 8:
        raise ValueError(f"mkey_7_0: {mkey_7_0:#x} does not fit in 8 bits")
    return mkey_index << 8 | mkey_7_0


def mkc_access(access: int) -> dict[str, int]:
    """Return the access bits of an mkc for flags of Access. Raises ValueError if access has other bits."""
    if access & ~sum(Access):
        raise ValueError(f"access: {access:#x} has bits outside {sum(Access):#x}")
    bits = {"lr": 1, "lw": access & Access.LOCAL_WRITE, "rw": access & Access.REMOTE_WRITE, "rr": access & Access.REMOTE_READ}
    relaxed = access & Access.RELAXED_ORDERING
    bits |= {"a": access & Access.REMOTE_ATOMIC, "relaxed_ordering_write": relaxed, "relaxed_ordering_read": relaxed}
    return {name: int(bool(bit)) for name, bit in bits.items()}


# --- RoCE address (mlx5_ifc.h (rdma-core 59)) ------------------------------------------------------------------------------------

ROCE_ADDR_LAYOUT = Table(
    "roce_addr_layout",
    0x20,
    Field("source_l3_address", 0x00, 128),  # the GID
    Field("vlan_valid", 0x83, 1),
    Field("vlan_id", 0x84, 12),
    Field("source_mac_47_32", 0x90, 16),
    Field("source_mac_31_0", 0xA0, 32),
    Field("roce_l3_type", 0xD4, 4),
    Field("roce_version", 0xD8, 8),
)

#: Port of an InfiniBand NIC; only the field in use (mlx5_ifc.h, rdma-core 44).
HCA_VPORT_CONTEXT = Table("hca_vport_context", 0x200, Field("lid", 0x300, 16))

# --- states of a QP --------------------------------------------------------------------------------------------------------------
# Every pair of states is in one of these two tables. 2ERR_QP and 2RST_QP are legal in every state, as in optab of Linux's mlx5_ib.

RST, INIT, RTR, RTS, ERR = QpState

#: Command for each transition (from, to).
LEGAL = {
    (RST, INIT): "RST2INIT_QP",
    (INIT, INIT): "INIT2INIT_QP",
    (INIT, RTR): "INIT2RTR_QP",
    (RTR, RTS): "RTR2RTS_QP",
    (RTS, RTS): "RTS2RTS_QP",
    **{(state, RST): "2RST_QP" for state in QpState},
    **{(state, ERR): "2ERR_QP" for state in QpState},
}

#: Reason why there is no command for a transition (from, to).
FORBIDDEN = {
    (RST, RTR): "a QP in RST has no port and no access rights; RST2INIT_QP must come first",
    (RST, RTS): "a QP in RST has no peer; RST2INIT_QP and INIT2RTR_QP must come first",
    (INIT, RTS): "a QP in INIT has no peer; INIT2RTR_QP must come first",
    (RTR, INIT): "a QP with a peer can return to INIT only through RST",
    (RTR, RTR): "the QP already has a peer; 2RST_QP must come before INIT2RTR_QP sets another one",
    **dict.fromkeys(((RTS, INIT), (RTS, RTR)), "a QP that may send can return to earlier states only through RST"),
    **dict.fromkeys(((ERR, INIT), (ERR, RTR), (ERR, RTS)), "only 2RST_QP takes a QP out of ERR"),
}

#: Optional fields of each transition of an RC QP (opt_mask of Linux's mlx5_ib); other transitions have none.
_RIGHTS = OptPar.RRE | OptPar.RWE | OptPar.RAE
OPTIONAL = {
    "INIT2INIT_QP": _RIGHTS | OptPar.PKEY_INDEX | OptPar.PRI_PORT | OptPar.LAG_TX_AFF,
    "INIT2RTR_QP": _RIGHTS | OptPar.PKEY_INDEX | OptPar.ALT_ADDR_PATH | OptPar.LAG_TX_AFF,
    "RTR2RTS_QP": _RIGHTS | OptPar.ALT_ADDR_PATH | OptPar.PM_STATE | OptPar.RNR_TIMEOUT,
    "RTS2RTS_QP": _RIGHTS | OptPar.ALT_ADDR_PATH | OptPar.PM_STATE | OptPar.RNR_TIMEOUT,
}

_TARGET = {command: end for (_, end), command in LEGAL.items()}


def transition(command: str, state: QpState) -> QpState:
    """Return the state into which a command moves a QP; commands are named as in LEGAL.

    Raises:
        ValueError: the command does not move a QP, or not from this state; the text has the reason.
    """
    if command not in _TARGET:
        raise ValueError(f"{command} does not change the state of a QP; the commands that do are {', '.join(_TARGET)}")
    pair = (state, _TARGET[command])
    if LEGAL.get(pair) == command:
        return pair[1]
    why = FORBIDDEN[pair] if pair in FORBIDDEN else f"the command from {state.name} to {pair[1].name} is {LEGAL[pair]}"
    raise ValueError(f"{command} of a QP in {state.name}: {why}")
