"""Methods of ib_uverbs: context, device, port, protection domains and memory regions.

Numbers and structures are from <rdma/ib_user_ioctl_cmds.h>, <rdma/ib_user_verbs.h>, <rdma/ib_user_ioctl_verbs.h> and, for mlx5_ib's
additions, <rdma/mlx5-abi.h>.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pgas.base.errors import TransportError
from uverbs import cards
from uverbs.devices import Region, mac_toward, machine
from uverbs.process import Attributes, Errno, File, map_registers, method

u8, u16, u32, u64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class Object(IntEnum):
    """enum uverbs_default_objects."""

    DEVICE = 0
    PD = 1
    CQ = 3
    QP = 4
    AH = 6
    MR = 7
    ASYNC_EVENT = 16


class DeviceMethod(IntEnum):
    """enum uverbs_methods_device."""

    INVOKE_WRITE = 0
    QUERY_PORT = 2
    GET_CONTEXT = 3
    QUERY_GID_TABLE = 5
    QUERY_GID_ENTRY = 6


class WriteCommand(IntEnum):
    """enum ib_uverbs_write_cmds."""

    QUERY_DEVICE = 1
    ALLOC_PD = 3
    DEALLOC_PD = 4
    CREATE_AH = 5
    DESTROY_AH = 8
    REG_MR = 9
    DEREG_MR = 13


#: UVERBS_METHOD_*_DESTROY of PD, AH and MR, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_METHOD_ASYNC_EVENT_ALLOC.
PD_DESTROY, AH_DESTROY, MR_DESTROY, REG_DMABUF_MR, ASYNC_EVENT_ALLOC = 0, 0, 1, 4, 0

#: UVERBS_ATTR_CORE_IN, _CORE_OUT, _WRITE_CMD; UVERBS_ATTR_UHW_IN, _UHW_OUT: the driver's additions.
CORE_IN, CORE_OUT, WRITE_CMD = 0, 1, 2
UHW_IN, UHW_OUT = 0x1000, 0x1001

#: IB_USER_VERBS_CMD_FLAG_EXTENDED.
_EXTENDED = 0x8000_0000


class Struct(ctypes.Structure):
    """A structure of the kernel's headers."""

    @classmethod
    def of(cls, data: bytes) -> Any:
        """Return the structure at the start of data; missing bytes are zero, as with copy_from_user."""
        return cls.from_buffer_copy(data[: ctypes.sizeof(cls)].ljust(ctypes.sizeof(cls), b"\0"))


class AllocUcontextReq(Struct):
    """struct mlx5_ib_alloc_ucontext_req_v2, to its flags."""

    _fields_ = [("total_num_bfregs", u32), ("num_low_latency_bfregs", u32), ("flags", u32), ("comp_mask", u32)]


ALLOC_UCTX_DEVX = 1  # MLX5_IB_ALLOC_UCTX_DEVX


class AllocUcontextResp(Struct):
    """struct mlx5_ib_alloc_ucontext_resp."""

    _fields_ = [
        ("qp_tab_size", u32), ("bf_reg_size", u32), ("tot_bfregs", u32), ("cache_line_size", u32),
        ("max_sq_desc_sz", u16), ("max_rq_desc_sz", u16), ("max_send_wqebb", u32), ("max_recv_wr", u32), ("max_srq_recv_wr", u32),
        ("num_ports", u16), ("flow_action_flags", u16), ("comp_mask", u32), ("response_length", u32),
        ("cqe_version", u8), ("cmds_supp_uhw", u8), ("eth_min_inline", u8), ("clock_info_versions", u8),
        ("hca_core_clock_offset", u64), ("log_uar_size", u32), ("num_uars_per_page", u32), ("num_dyn_bfregs", u32),
        ("dump_fill_mkey", u32),
    ]  # fmt: skip


_DEVICE_COUNTS = (
    "vendor_id", "vendor_part_id", "hw_ver", "max_qp", "max_qp_wr", "device_cap_flags", "max_sge", "max_sge_rd", "max_cq",
    "max_cqe", "max_mr", "max_pd", "max_qp_rd_atom", "max_ee_rd_atom", "max_res_rd_atom", "max_qp_init_rd_atom",
    "max_ee_init_rd_atom", "atomic_cap", "max_ee", "max_rdd", "max_mw", "max_raw_ipv6_qp", "max_raw_ethy_qp", "max_mcast_grp",
    "max_mcast_qp_attach", "max_total_mcast_qp_attach", "max_ah", "max_fmr", "max_map_per_fmr", "max_srq", "max_srq_wr",
    "max_srq_sge",
)  # fmt: skip


class QueryDeviceResp(Struct):
    """struct ib_uverbs_query_device_resp."""

    _fields_ = [
        *((name, u64) for name in ("fw_ver", "node_guid", "sys_image_guid", "max_mr_size", "page_size_cap")),
        *((name, u32) for name in _DEVICE_COUNTS),
        ("max_pkeys", u16), ("local_ca_ack_delay", u8), ("phys_port_cnt", u8), ("reserved", u8 * 4),
    ]  # fmt: skip


class QueryPortResp(Struct):
    """struct ib_uverbs_query_port_resp."""

    _fields_ = [
        *((name, u32) for name in ("port_cap_flags", "max_msg_sz", "bad_pkey_cntr", "qkey_viol_cntr", "gid_tbl_len")),
        *((name, u16) for name in ("pkey_tbl_len", "lid", "sm_lid")),
        *((name, u8) for name in ("state", "max_mtu", "active_mtu", "lmc", "max_vl_num", "sm_sl", "subnet_timeout", "init_type_reply")),
        *((name, u8) for name in ("active_width", "active_speed", "phys_state", "link_layer", "flags", "reserved")),
    ]


#: enum ibv_port_state; width 2: 4 lanes; speed 32: EDR, 25 Gb/s each; phys_state 5: link up, 3: disabled.
PORT_DOWN, PORT_ACTIVE = 1, 4
_MTU_4096, _WIDTH_4X, _SPEED_EDR, _DISABLED, _LINK_UP = 5, 2, 32, 3, 5


class GidEntry(Struct):
    """struct ib_uverbs_gid_entry."""

    _fields_ = [("gid", u8 * 16), ("gid_index", u32), ("port_num", u32), ("gid_type", u32), ("netdev_ifindex", u32)]


class CreateAh(Struct):
    """struct ib_uverbs_create_ah, with its struct ib_uverbs_ah_attr and the struct ib_uverbs_global_route in that."""

    _fields_ = [
        ("response", u64), ("user_handle", u64), ("pd_handle", u32), ("reserved", u32),
        ("dgid", u8 * 16), ("flow_label", u32), *((name, u8) for name in ("sgid_index", "hop_limit", "traffic_class", "reserved1")),
        ("dlid", u16), *((name, u8) for name in ("sl", "src_path_bits", "static_rate", "is_global", "port_num", "reserved2")),
    ]  # fmt: skip


class CreateAhResp(Struct):
    """struct mlx5_ib_create_ah_resp."""

    _fields_ = [("response_length", u32), ("dmac", u8 * 6), ("reserved", u8 * 6)]


class RegMr(Struct):
    """struct ib_uverbs_reg_mr."""

    _fields_ = [("response", u64), ("start", u64), ("length", u64), ("hca_va", u64), ("pd_handle", u32), ("access_flags", u32)]


class RegMrResp(Struct):
    """struct ib_uverbs_reg_mr_resp."""

    _fields_ = [("mr_handle", u32), ("lkey", u32), ("rkey", u32)]


#: IBV_ACCESS_LOCAL_WRITE, _REMOTE_WRITE, _REMOTE_READ, _REMOTE_ATOMIC; other flags, such as relaxed ordering, are ignored.
_ACCESS = 0xF


@dataclass
class PD:
    pdn: int


@dataclass
class AH:
    """An address handle."""


@dataclass
class MR:
    key: int


def card_refuses(error: Exception) -> Errno:
    """Return the kernel's error for a refusal of the card."""
    return Errno(cards.errno_of(error), str(error))


# --- context and device ----------------------------------------------------------------------------------------------------------


@method(Object.DEVICE, DeviceMethod.GET_CONTEXT)
def get_context(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_GET_CONTEXT with mlx5_ib's request and response: no static UARs, CQEs of version 1."""
    request = AllocUcontextReq.of(attributes.data(UHW_IN))
    if request.flags & ALLOC_UCTX_DEVX:
        if not machine.devx:
            raise Errno(errno.EPERM, "DevX is not permitted")
        file.devx = True
    map_registers(file)
    attributes.set(0, 1)  # UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS
    attributes.set(1, 0, 8)  # UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT
    response = AllocUcontextResp(
        qp_tab_size=1 << 18, bf_reg_size=512, cache_line_size=64, max_sq_desc_sz=1024, max_rq_desc_sz=512, max_send_wqebb=32768,
        max_recv_wr=32768, max_srq_recv_wr=32767, num_ports=1, cqe_version=1, cmds_supp_uhw=3, log_uar_size=12, num_uars_per_page=1,
    )  # fmt: skip
    response.response_length = ctypes.sizeof(AllocUcontextResp)
    attributes.set(UHW_OUT, response)


@method(Object.ASYNC_EVENT, ASYNC_EVENT_ALLOC)
def async_event_alloc(file: File, attributes: Attributes) -> None:
    """A descriptor of asynchronous events, which never occur."""
    attributes.set_handle(0, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))


@method(Object.DEVICE, DeviceMethod.QUERY_PORT)
def query_port(file: File, attributes: Attributes) -> None:
    device = file.device
    if attributes.integer(0) != 1:
        raise Errno(errno.EINVAL, "there is one port")
    state, physical = (PORT_ACTIVE, _LINK_UP) if machine.port_active else (PORT_DOWN, _DISABLED)
    response = QueryPortResp(
        max_msg_sz=1 << 30, gid_tbl_len=len(device.gids), pkey_tbl_len=1, lid=device.lid, sm_lid=device.lid, state=state, max_mtu=_MTU_4096,
        active_mtu=_MTU_4096, max_vl_num=1, active_width=_WIDTH_4X, active_speed=_SPEED_EDR, phys_state=physical,
        link_layer=2 if device.ethernet else 1,
    )  # fmt: skip
    attributes.set(1, response)


#: enum ib_uverbs_gid_type.
_GID_TYPES = {"InfiniBand": 0, "IB/RoCE v1": 1, "RoCE v2": 2}


def _gid_entry(file: File, index: int) -> GidEntry:
    gid = file.device.gids[index]
    kind = gid.type if file.device.ethernet else "InfiniBand"
    return GidEntry((u8 * 16)(*gid.gid), index, 1, _GID_TYPES[kind], 0)


@method(Object.DEVICE, DeviceMethod.QUERY_GID_ENTRY)
def query_gid_entry(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_QUERY_GID_ENTRY: port, index, flags, entry."""
    if attributes.integer(0) != 1 or attributes.integer(1) >= len(file.device.gids):
        raise Errno(errno.EINVAL, "no such entry")
    attributes.set(3, _gid_entry(file, attributes.integer(1)))


@method(Object.DEVICE, DeviceMethod.QUERY_GID_TABLE)
def query_gid_table(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_QUERY_GID_TABLE: size of an entry, flags, entries, number of entries."""
    if attributes.integer(0) != ctypes.sizeof(GidEntry):
        raise Errno(errno.EOPNOTSUPP, "entries of another size")
    if attributes.nbytes(2) < len(file.device.gids) * ctypes.sizeof(GidEntry):
        raise Errno(errno.EINVAL, "more entries than there is room for")
    entries = b"".join(bytes(_gid_entry(file, index)) for index in range(len(file.device.gids)))
    attributes.set(2, entries)
    attributes.set(3, len(file.device.gids), 8)


# --- write commands --------------------------------------------------------------------------------------------------------------

#: The implementation of a write command: (file, core, attributes) -> core response.
Write = Callable[[File, bytes, Attributes], bytes | ctypes.Structure]

_writes: dict[int, Write] = {}


def write_command(number: int) -> Callable[[Write], Write]:
    """Register the implementation of an old write(2) command, which comes through UVERBS_METHOD_INVOKE_WRITE."""

    def register(function: Write) -> Write:
        _writes[number] = function
        return function

    return register


@method(Object.DEVICE, DeviceMethod.INVOKE_WRITE)
def invoke_write(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_INVOKE_WRITE: the command's number, its core structure, and the driver's additions."""
    if WRITE_CMD not in attributes:
        raise Errno(errno.ENOSPC, "libibverbs's probe for this method")
    number = attributes.integer(WRITE_CMD)
    answer = _writes.get(number)
    if answer is None:
        raise Errno(errno.EOPNOTSUPP, f"write command {number:#x}")
    attributes.set(CORE_OUT, bytes(answer(file, attributes.data(CORE_IN) if CORE_IN in attributes else b"", attributes)))


@write_command(WriteCommand.QUERY_DEVICE)
@write_command(_EXTENDED | WriteCommand.QUERY_DEVICE)
def query_device(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_QUERY_DEVICE, also extended, without any extension."""
    attributes.set(UHW_OUT, b"")
    guid = int.from_bytes(file.device.guid, "little")  # big-endian, as it is
    return bytes(
        QueryDeviceResp(
            fw_ver=22 << 32 | 99 << 16, node_guid=guid, sys_image_guid=guid, max_mr_size=1 << 56, page_size_cap=0xFFFF_F000,
            vendor_id=0x2C9, vendor_part_id=0x101B, max_qp=1024, max_qp_wr=32768, max_sge=30, max_sge_rd=30, max_cq=1024,
            max_cqe=(1 << 22) - 1, max_mr=1 << 14, max_pd=1 << 16, max_qp_rd_atom=16, max_res_rd_atom=1 << 14, max_qp_init_rd_atom=16,
            atomic_cap=1, max_ah=1 << 16, max_pkeys=1, phys_port_cnt=1,
        )
    )  # fmt: skip


@write_command(WriteCommand.ALLOC_PD)
def alloc_pd(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_ALLOC_PD; mlx5_ib adds the number (struct mlx5_ib_alloc_pd_resp)."""
    pdn = file.card.alloc_pd()
    attributes.set(UHW_OUT, pdn)
    return file.add(PD(pdn)).to_bytes(4, "little")


def _dealloc_pd(file: File, handle: int) -> None:
    file.remove(handle, PD, lambda pd: file.card.dealloc_pd(pd.pdn))


@write_command(WriteCommand.DEALLOC_PD)
def dealloc_pd(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_DEALLOC_PD."""
    _dealloc_pd(file, int.from_bytes(core[:4], "little"))
    return b""


@method(Object.PD, PD_DESTROY)
def pd_destroy(file: File, attributes: Attributes) -> None:
    _dealloc_pd(file, attributes.handle(0))


# --- address handles -------------------------------------------------------------------------------------------------------------


@write_command(WriteCommand.CREATE_AH)
def create_ah(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_CREATE_AH: on Ethernet the kernel resolves the MAC, which mlx5_ib adds."""
    request = CreateAh.of(core)
    file.find(request.pd_handle, PD)
    if request.port_num != 1 or (request.is_global and request.sgid_index >= len(file.device.gids)):
        raise Errno(errno.EINVAL, "no such port or GID")
    response = CreateAhResp(response_length=ctypes.sizeof(CreateAhResp))
    if file.device.ethernet:
        mac = mac_toward(bytes(request.dgid)) if request.is_global else None
        if mac is None:
            raise Errno(errno.ENETUNREACH, "no route")
        response.dmac = (u8 * 6)(*mac)
    attributes.set(UHW_OUT, response)
    return file.add(AH()).to_bytes(4, "little")


@write_command(WriteCommand.DESTROY_AH)
def destroy_ah(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_DESTROY_AH."""
    file.remove(int.from_bytes(core[:4], "little"), AH, lambda ah: None)
    return b""


@method(Object.AH, AH_DESTROY)
def ah_destroy(file: File, attributes: Attributes) -> None:
    file.remove(attributes.handle(0), AH, lambda ah: None)


# --- memory regions --------------------------------------------------------------------------------------------------------------


def _add_mr(file: File, address: int, nbytes: int, pd_handle: int, access: int) -> tuple[int, int]:
    """Return (handle, key) of a new memory region."""
    pd = file.find(pd_handle, PD)
    try:
        key = file.card.register_mr(address, nbytes, pd.pdn, access & _ACCESS)
    except (TransportError, cards.Fault) as error:
        raise card_refuses(error) from error
    return file.add(MR(key)), key


@write_command(WriteCommand.REG_MR)
def reg_mr(file: File, core: bytes, attributes: Attributes) -> RegMrResp:
    """IB_USER_VERBS_CMD_REG_MR; addresses in WQEs are the process's own."""
    request = RegMr.of(core)
    if request.hca_va != request.start:
        raise Errno(errno.EOPNOTSUPP, "an address of its own for a memory region")
    handle, key = _add_mr(file, request.start, request.length, request.pd_handle, request.access_flags)
    return RegMrResp(handle, key, key)


@method(Object.MR, REG_DMABUF_MR)
def reg_dmabuf_mr(file: File, attributes: Attributes) -> None:
    """UVERBS_METHOD_REG_DMABUF_MR: handle, PD, offset, length, iova, descriptor, access flags; lkey and rkey. A memfd is a dma-buf here."""
    if not machine.dmabuf:
        raise Errno(errno.EOPNOTSUPP, "dma-bufs")
    pd, offset, length, iova, fd = attributes.handle(1), *(attributes.integer(n) for n in (2, 3, 4)), attributes.handle(5)
    machine.regions.append(Region(offset, length, iova))
    if (offset ^ iova) % os.sysconf("SC_PAGE_SIZE"):
        raise Errno(errno.EINVAL, "an offset and an address of different places in a page")
    address = mapped(fd) + offset
    if iova != address:
        raise Errno(errno.EOPNOTSUPP, "an address of its own for a memory region")
    handle, key = _add_mr(file, address, length, pd, attributes.integer(6))
    attributes.set_handle(0, handle)
    attributes.set(7, key)
    attributes.set(8, key)


def mapped(fd: int) -> int:
    """Return where the memory of a descriptor is mapped in this process."""
    try:
        return cards.address_of(fd)
    except cards.Fault as error:
        raise card_refuses(error) from error


def _dereg_mr(file: File, handle: int) -> None:
    file.remove(handle, MR, lambda mr: file.card.deregister_mr(mr.key))


@write_command(WriteCommand.DEREG_MR)
def dereg_mr(file: File, core: bytes, attributes: Attributes) -> bytes:
    """IB_USER_VERBS_CMD_DEREG_MR."""
    _dereg_mr(file, int.from_bytes(core[:4], "little"))
    return b""


@method(Object.MR, MR_DESTROY)
def mr_destroy(file: File, attributes: Attributes) -> None:
    _dereg_mr(file, attributes.handle(0))
