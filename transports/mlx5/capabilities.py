"""The reports of QUERY_HCA_CAP: kinds of capabilities and their layouts (names of mlx5_ifc.h)."""

from enum import IntEnum

from pgas.transports.mlx5.fields import Field, Table


class CapType(IntEnum):
    """The kind of capabilities that QUERY_HCA_CAP returns; op_mod holds it (cap_op_mod)."""

    GENERAL = 0x00
    ODP = 0x02
    ATOMIC = 0x03
    ROCE = 0x04
    CAP_2 = 0x20


def cap_op_mod(cap_type: int) -> int:
    """Return the op_mod that requests the current (not the maximum) capabilities of a kind."""
    return cap_type << 1 | 1


class PortType(IntEnum):
    """``port_type`` of the general capabilities."""

    IB = 0
    ETHERNET = 1


class TsFormatCap(IntEnum):
    """``sq_ts_format`` of the general capabilities: the clocks that a NIC has for timestamps."""

    FREE_RUNNING = 0
    REAL_TIME = 1
    FREE_RUNNING_AND_REAL_TIME = 2


class AtomicOperations(IntEnum):
    """Bits of ``atomic_operations``; the runtime needs all four."""

    CAS = 1 << 0
    FA = 1 << 1
    MASKED_CAS = 1 << 2
    MASKED_FA = 1 << 3


class AtomicSize(IntEnum):
    """Bits of ``atomic_size_qp`` and ``atomic_size_dc``: the operand's bytes."""

    BYTES_4 = 4
    BYTES_8 = 8


CAP_SIZE = 0x1000

CMD_HCA_CAP = Table(
    "cmd_hca_cap",
    CAP_SIZE,
    Field("hca_cap_2", 0x20, 1),  # CAP_2 may be queried
    Field("log_max_qp_sz", 0x88, 8),
    Field("log_max_qp", 0x9B, 5),
    Field("log_max_cq_sz", 0xC8, 8),
    Field("log_max_mkey", 0xEA, 6),
    Field("log_max_ra_req_qp", 0x14A, 6),
    Field("log_max_ra_res_qp", 0x15A, 6),
    Field("port_type", 0x1B6, 2, PortType),
    Field("num_ports", 0x1B8, 8),
    Field("log_max_msg", 0x1C3, 5),
    Field("cqe_version", 0x1FC, 4),  # must be 1: a CQE carries qpc.user_index
    Field("compact_address_vector", 0x200, 1),
    Field("dct", 0x21A, 1),
    Field("roce", 0x21D, 1),
    Field("atomic", 0x21E, 1),
    Field("cq_oi", 0x220, 1),  # cqc.oi may be set
    Field("uar_4k", 0x240, 1),
    Field("bf", 0x260, 1),
    Field("log_bf_reg_size", 0x26B, 5),
    Field("max_wqe_sz_sq", 0x290, 16),  # bytes
    Field("max_wqe_sz_rq", 0x2B0, 16),
    Field("sq_ts_format", 0x440, 2, TsFormatCap),
    Field("log_uar_page_sz", 0x490, 16),
    Field("num_of_uars_per_page", 0x520, 32),
)
CMD_HCA_CAP_2 = Table(
    "cmd_hca_cap_2",
    CAP_SIZE,
    Field("send_dbr_mode_no_dbr_int", 0x2E0, 1),
    Field("send_dbr_mode_no_dbr_ext", 0x2E1, 1),
    Field("log_max_send_dbr_less_qp_sq", 0x2E3, 5),
)
ATOMIC_CAP = Table(
    "atomic_caps",
    CAP_SIZE,
    Field("atomic_req_8B_endianness_mode", 0x40, 2),  # byte order of old values of 8 bytes; 0: big-endian; 1: that of the host
    Field("supported_atomic_req_8B_endianness_mode_1", 0x46, 1),
    Field("atomic_operations", 0x90, 16),
    Field("atomic_size_qp", 0xB0, 16),
    Field("atomic_size_dc", 0xD0, 16),
)
CAPS = {CapType.GENERAL: CMD_HCA_CAP, CapType.ATOMIC: ATOMIC_CAP, CapType.CAP_2: CMD_HCA_CAP_2}
