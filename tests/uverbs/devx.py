"""Methods of mlx5_ib: DevX commands and objects, UMEMs, UARs (<rdma/mlx5_user_ioctl_cmds.h>, <rdma/mlx5_user_ioctl_verbs.h>).

Commands that create, modify, query or destroy an object must go through its DevX object and name that object; the others go through
DEVICE's method OTHER. For a status other than OK the kernel returns -EREMOTEIO and the output; older kernels return only an errno
(drivers/infiniband/hw/mlx5/devx.c).
"""

import errno
import os
from dataclasses import dataclass
from enum import IntEnum

from pgas.base.errors import TransportError
from pgas.transports.mlx5 import commands, fields
from pgas.transports.mlx5.capabilities import CMD_HCA_CAP, CapType, PortType
from pgas.transports.mlx5.commands import Command, Status
from pgas.transports.mlx5.contexts import LEGAL
from pgas.transports.softhca.layout import UMEM_PAGE_SIZE
from uverbs import cards
from uverbs.devices import machine
from uverbs.process import Attributes, Errno, File, method
from uverbs.verbs import card_refuses, mapped

_NS = 0x1000  # 1 << UVERBS_ID_NS_SHIFT: where a driver's own numbers begin


class Object(IntEnum):
    """enum mlx5_ib_objects."""

    DEVX = _NS
    DEVX_OBJ = _NS + 1
    DEVX_UMEM = _NS + 2
    UAR = _NS + 8


#: enum mlx5_ib_devx_methods, mlx5_ib_devx_obj_methods, mlx5_ib_devx_umem_methods and mlx5_ib_uar_obj_methods.
OTHER, QUERY_EQN = _NS, _NS + 2
OBJ_CREATE, OBJ_DESTROY, OBJ_MODIFY, OBJ_QUERY = range(_NS, _NS + 4)
UMEM_REG, UMEM_DEREG = _NS, _NS + 1
UAR_ALLOC, UAR_DESTROY = _NS, _NS + 1

#: MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF and _NC, and the kernel's errno for unknown types.
UAR_BF, UAR_NC = 0, 1

#: By command that creates an object: the command that destroys it, and the field with its number in both (commands.LAYOUTS).
_DESTROY = {
    Command.CREATE_CQ: (Command.DESTROY_CQ, "cqn"),
    Command.CREATE_QP: (Command.DESTROY_QP, "qpn"),
    Command.CREATE_MKEY: (Command.DESTROY_MKEY, "mkey_index"),
}

_MODIFY = tuple(command for command in Command if commands.command_name(command) in LEGAL.values())
_QUERY = (Command.QUERY_QP,)

#: The errno of older kernels for a status (cmd_status_to_err of mlx5_core).
_ERRNO = {
    Status.BAD_OP: errno.EINVAL, Status.BAD_PARAM: errno.EINVAL, Status.BAD_SYS_STATE: errno.EIO, Status.BAD_RES: errno.EINVAL,
    Status.RES_BUSY: errno.EBUSY, Status.LIM: errno.ENOMEM, Status.BAD_RES_STATE: errno.EINVAL, Status.IX: errno.EINVAL,
    Status.NO_RES: errno.EAGAIN, Status.BAD_QP_STATE: errno.EINVAL, Status.BAD_INP_LEN: errno.EIO, Status.BAD_OUTP_LEN: errno.EIO,
}  # fmt: skip


@dataclass
class DevxObject:
    name: str
    number: int
    destroy: Command


@dataclass
class Umem:
    id: int


@dataclass
class Uar:
    page: int


# --- commands --------------------------------------------------------------------------------------------------------------------


def _opcode(inbox: bytes) -> int:
    return int.from_bytes(inbox[:2], "big")


def execute(file: File, inbox: bytes, outlen: int) -> bytes:
    """Execute a command on the card, adapted to the device's kind of port."""
    opcode = _opcode(inbox)
    if opcode in machine.refused:
        status, syndrome = machine.refused[opcode]
        return fields.fill(commands.OUTPUT, {"status": status, "syndrome": syndrome}).ljust(outlen, b"\0")
    if file.device.ethernet and opcode == Command.QUERY_ROCE_ADDRESS:
        return _roce_address(file, inbox, outlen)
    outbox = file.card.command(inbox, outlen)
    if file.device.ethernet and opcode == Command.QUERY_HCA_CAP:
        return _ethernet(inbox, outbox)
    return outbox


def _roce_address(file: File, inbox: bytes, outlen: int) -> bytes:
    """QUERY_ROCE_ADDRESS: an entry of the GID table, with the port's MAC."""
    index = commands.parse(inbox)[1]["roce_address_index"]
    if index >= len(file.device.gids):
        return commands.build_output(Command.QUERY_ROCE_ADDRESS, status=Status.BAD_PARAM, syndrome=0x5E0E).ljust(outlen, b"\0")
    gid, mac = file.device.gids[index], file.device.mac
    address = {
        "source_l3_address": int.from_bytes(gid.gid, "big"),
        "source_mac_47_32": int.from_bytes(mac[:2], "big"),
        "source_mac_31_0": int.from_bytes(mac[2:], "big"),
        "roce_version": 2 if gid.type == "RoCE v2" else 0,
    }
    return commands.build_output(Command.QUERY_ROCE_ADDRESS, {"roce_address": address}).ljust(outlen, b"\0")


def _ethernet(inbox: bytes, outbox: bytes) -> bytes:
    """QUERY_HCA_CAP of a card with an Ethernet port."""
    op_mod = commands.parse(inbox)[1]["op_mod"]
    if op_mod >> 1 == CapType.ROCE:
        return bytes(len(outbox))
    if op_mod >> 1 != CapType.GENERAL or outbox[0] != Status.OK:
        return outbox
    changed = bytearray(outbox)
    fields.fill(CMD_HCA_CAP, {"port_type": PortType.ETHERNET, "roce": 1}, changed, commands.OUTPUT.size)
    return bytes(changed)


def _answer(attributes: Attributes, number: int, outbox: bytes) -> None:
    """Return an output as the kernel does."""
    status = outbox[0]
    if status and machine.old_kernel:
        raise Errno(_ERRNO.get(status, errno.EIO))
    attributes.set(number, outbox)
    if status:
        raise Errno(errno.EREMOTEIO)


def _permitted(file: File) -> None:
    if not file.devx:
        raise Errno(errno.EPERM, "the context was not opened for DevX")


@method(Object.DEVX, OTHER)
def other(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_OTHER: a command without an object."""
    _permitted(file)
    inbox = attributes.data(_NS)
    if _opcode(inbox) not in (Command.QUERY_HCA_CAP, Command.QUERY_HCA_VPORT_CONTEXT, Command.QUERY_ROCE_ADDRESS):
        raise Errno(errno.EINVAL, f"{commands.command_name(_opcode(inbox))} is no general command")
    _answer(attributes, _NS + 1, execute(file, inbox, attributes.nbytes(_NS + 1)))


@method(Object.DEVX, QUERY_EQN)
def query_eqn(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_QUERY_EQN."""
    if attributes.integer(_NS) != 0:
        raise Errno(errno.EINVAL, "there is one completion vector")
    attributes.set(_NS + 1, file.card.query_eqn())


@method(Object.DEVX_OBJ, OBJ_CREATE)
def obj_create(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_OBJ_CREATE."""
    _permitted(file)
    inbox = attributes.data(_NS + 1)
    opcode = _opcode(inbox)
    if opcode not in _DESTROY:
        raise Errno(errno.EINVAL, f"{commands.command_name(opcode)} makes no object")
    outbox = execute(file, inbox, attributes.nbytes(_NS + 2))
    destroy, name = _DESTROY[Command(opcode)]
    if not outbox[0]:
        number = commands.parse_output(Command(opcode), outbox)[name]
        attributes.set_handle(_NS, file.add(DevxObject(name, number, destroy)))
    _answer(attributes, _NS + 2, outbox)


def _names(file: File, attributes: Attributes, allowed: tuple[Command, ...]) -> bytes:
    """Return the input of a command, which must name the object that it goes through."""
    thing, inbox = file.find(attributes.handle(_NS), DevxObject), attributes.data(_NS + 1)
    if _opcode(inbox) not in allowed or commands.parse(inbox)[1].get(thing.name) != thing.number:
        raise Errno(errno.EINVAL, f"{commands.command_name(_opcode(inbox))} does not name {thing}")
    return inbox


@method(Object.DEVX_OBJ, OBJ_MODIFY)
def obj_modify(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_OBJ_MODIFY."""
    inbox = _names(file, attributes, _MODIFY)
    _answer(attributes, _NS + 2, execute(file, inbox, attributes.nbytes(_NS + 2)))


@method(Object.DEVX_OBJ, OBJ_QUERY)
def obj_query(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_OBJ_QUERY."""
    inbox = _names(file, attributes, _QUERY)
    _answer(attributes, _NS + 2, execute(file, inbox, attributes.nbytes(_NS + 2)))


@method(Object.DEVX_OBJ, OBJ_DESTROY)
def obj_destroy(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_OBJ_DESTROY: the kernel builds the command."""
    handle = attributes.handle(_NS)
    thing = file.find(handle, DevxObject)
    inbox = commands.build(thing.destroy, **{thing.name: thing.number})
    status = execute(file, inbox, commands.output_size(thing.destroy))[0]
    if status:
        raise Errno(_ERRNO.get(status, errno.EIO))
    del file.objects[handle]


# --- memory and registers --------------------------------------------------------------------------------------------------------


def _best_page_size(address: int, nbytes: int, allowed: int) -> int:
    """Return the kernel's page size for a UMEM whose memory is contiguous for the card, as GPU memory is; 0 if none fits.

    As devx_umem_find_best_pgsize of mlx5_ib: the largest allowed size up to the UMEM's length, halved until address and length are
    multiples of it, but not below the CPU's page size.
    """
    cpu = os.sysconf("SC_PAGE_SIZE")
    largest = max((nbytes - 1).bit_length(), cpu.bit_length() - 1)
    allowed &= (2 << largest) - UMEM_PAGE_SIZE
    if not allowed:
        return 0
    size = 1 << allowed.bit_length() - 1
    while (address % size or nbytes % size) and size > cpu:
        size //= 2
    return size


@method(Object.DEVX_UMEM, UMEM_REG)
def umem_reg(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_UMEM_REG: address, length, access, id, page sizes, and maybe a dma-buf, in which the address is an offset."""
    _permitted(file)
    address, nbytes = attributes.integer(_NS + 1), attributes.integer(_NS + 2)
    if not machine.umem:
        raise Errno(errno.EFAULT, "memory that cannot be pinned")
    if _NS + 6 in attributes:
        if not machine.dmabuf:
            raise Errno(errno.EOPNOTSUPP, "dma-bufs")
        address += mapped(attributes.handle(_NS + 6))
    # A caller that leaves the choice to the kernel must use offset 0 only.
    page_size = _best_page_size(address, nbytes, attributes.integer(_NS + 5, (1 << 64) - UMEM_PAGE_SIZE))
    if not page_size:
        raise Errno(errno.EINVAL, "no page size that is allowed fits")
    try:
        umem_id = file.card.register_umem(address, nbytes, page_size)
    except (TransportError, cards.Fault) as error:
        raise card_refuses(error) from error
    attributes.set_handle(_NS, file.add(Umem(umem_id)))
    attributes.set(_NS + 4, umem_id)


@method(Object.DEVX_UMEM, UMEM_DEREG)
def umem_dereg(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_DEVX_UMEM_DEREG."""
    file.remove(attributes.handle(_NS), Umem, lambda umem: file.card.deregister_umem(umem.id))


@method(Object.UAR, UAR_ALLOC)
def uar_alloc(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_UAR_OBJ_ALLOC: type, mmap offset and length, page id."""
    kind = attributes.integer(_NS + 1)
    if kind not in (UAR_BF, UAR_NC) or (kind == UAR_BF and not machine.blueflame):
        raise Errno(errno.EOPNOTSUPP, "a type of UAR")
    try:
        page = file.card.alloc_uar(kind)
    except TransportError as error:
        raise Errno(errno.ENOMEM, str(error)) from error
    attributes.set_handle(_NS, file.add(Uar(page)))
    attributes.set(_NS + 2, page << 12, 8)
    attributes.set(_NS + 3, 4096)
    attributes.set(_NS + 4, page)


@method(Object.UAR, UAR_DESTROY)
def uar_destroy(file: File, attributes: Attributes) -> None:
    """MLX5_IB_METHOD_UAR_OBJ_DESTROY."""
    file.remove(attributes.handle(_NS), Uar, lambda uar: file.card.dealloc_uar(uar.page))
