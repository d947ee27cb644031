"""Commands: opcodes, statuses, and the layout of every input and output (names of mlx5_ifc.h).

A command takes bytes and returns bytes. The driver builds the input with ``build``, and reads the status of the output with ``check`` and
the rest with ``parse_output``; the software NIC uses ``parse`` and ``build_output``. PDs, UARs, and UMEMs come from verbs on a physical
NIC, and from these commands or adapter calls on the software NIC.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pgas.base.errors import TransportError
from pgas.transports.mlx5 import fields
from pgas.transports.mlx5.capabilities import CAP_SIZE, CAPS, cap_op_mod
from pgas.transports.mlx5.contexts import CQC, HCA_VPORT_CONTEXT, KLM, MKC, QPC, ROCE_ADDR_LAYOUT, UMEM
from pgas.transports.mlx5.fields import Buffer, Explained, Field, Table, explanation


class Command(IntEnum):
    """``MLX5_CMD_OP_*``. A name in Python cannot begin with a digit: command_name() returns 2ERR_QP and 2RST_QP."""

    QUERY_HCA_CAP = 0x100
    CREATE_MKEY = 0x200
    DESTROY_MKEY = 0x202
    CREATE_EQ = 0x301
    CREATE_CQ = 0x400
    DESTROY_CQ = 0x401
    QUERY_CQ = 0x402
    MODIFY_CQ = 0x403
    CREATE_QP = 0x500
    DESTROY_QP = 0x501
    RST2INIT_QP = 0x502
    INIT2RTR_QP = 0x503
    RTR2RTS_QP = 0x504
    RTS2RTS_QP = 0x505
    TO_ERR_QP = 0x507
    TO_RST_QP = 0x50A
    QUERY_QP = 0x50B
    INIT2INIT_QP = 0x50E
    CREATE_DCT = 0x710
    DESTROY_DCT = 0x711
    QUERY_ROCE_ADDRESS = 0x760
    QUERY_HCA_VPORT_CONTEXT = 0x762
    ALLOC_PD = 0x800
    DEALLOC_PD = 0x801
    ALLOC_UAR = 0x802
    DEALLOC_UAR = 0x803
    ACCESS_REG = 0x805
    CREATE_UMEM = 0xA08
    DESTROY_UMEM = 0xA0A


_NAMES = {Command.TO_ERR_QP: "2ERR_QP", Command.TO_RST_QP: "2RST_QP"}


def command_name(opcode: int) -> str:
    """Return the PRM's name of a command."""
    if opcode not in Command.__members__.values():
        return f"command {opcode:#x}"
    return _NAMES.get(Command(opcode), Command(opcode).name)


class Status(Explained):
    """``MLX5_CMD_STAT_*``: how a command ended."""

    OK = 0x00, "OK"
    INT_ERR = 0x01, "internal error"
    BAD_OP = 0x02, "bad operation"
    BAD_PARAM = 0x03, "bad parameter"
    BAD_SYS_STATE = 0x04, "bad system state"
    BAD_RES = 0x05, "bad resource"
    RES_BUSY = 0x06, "resource busy"
    LIM = 0x08, "limits exceeded"
    BAD_RES_STATE = 0x09, "bad resource state"
    IX = 0x0A, "bad index"
    NO_RES = 0x0F, "no resources"
    BAD_QP_STATE = 0x10, "bad QP state"
    BAD_INP_LEN = 0x50, "bad input length"
    BAD_OUTP_LEN = 0x51, "bad output length"


def status_words(status: int) -> str:
    """Return the name of a status, and its meaning."""
    text = explanation(Status, status)
    return f"{Status(status).name} ({text})" if text else f"status {status:#x}"


class CommandError(TransportError):
    """The NIC refused a command. The syndrome is the firmware's own number for the reason; words is its meaning, "" if unknown."""

    def __init__(self, opcode: int, status: int, syndrome: int, words: str = "") -> None:
        super().__init__(opcode, status, syndrome, words)
        self.opcode, self.status, self.syndrome, self.words = opcode, status, syndrome, words

    def __str__(self) -> str:
        text = f"{command_name(self.opcode)} failed: {status_words(self.status)}, syndrome {self.syndrome:#x}"
        return f"{text}: {self.words}" if self.words else text


# --- layouts, from mlx5_ifc.h (rdma-core 59) -------------------------------------------------------------------------------------

#: Size of an input in bytes, without and with a context.
_SHORT, _LONG = 0x10, 0x110

INPUT = Table("in", _SHORT, Field("opcode", 0x00, 16, Command), Field("uid", 0x10, 16), Field("op_mod", 0x30, 16))
OUTPUT = Table("out", 0x10, Field("status", 0x00, 8, Status), Field("syndrome", 0x20, 32))


@dataclass(frozen=True)
class Layout:
    """Input and output of a command."""

    input: Table
    output: Table


def _in(name: str, size: int, *more: Field) -> Table:
    return Table(f"{name}_in", size, *INPUT.fields.values(), *more)


def _out(name: str, *more: Field, size: int = OUTPUT.size) -> Table:
    return Table(f"{name}_out", size, *OUTPUT.fields.values(), *more)


def _number(name: str) -> Field:
    """The 24-bit number of an object, at its position in inputs and outputs."""
    return Field(name, 0x48, 24)


def _qp(name: str, *more: Field) -> Layout:
    """Layout of a command that names a QP and returns a status."""
    return Layout(_in(name, _LONG if more else _SHORT, _number("qpn"), *more), _out(name))


_OPT_PARAM_MASK = Field("opt_param_mask", 0x80, 32)
_QPC = Field("qpc", 0xC0, 8 * QPC.size, table=QPC)

#: Commands that pgas does not use (QUERY_CQ, CREATE_EQ, CREATE_DCT, ...) have no layout.
LAYOUTS = {
    Command.QUERY_HCA_CAP: Layout(_in("query_hca_cap", _SHORT), _out("query_hca_cap", size=0x10 + CAP_SIZE)),
    Command.CREATE_MKEY: Layout(
        _in(
            "create_mkey",
            _LONG,
            Field("pg_access", 0x60, 1),
            Field("mkey_umem_valid", 0x61, 1),
            Field("mkc", 0x80, 8 * MKC.size, table=MKC),
            Field("translations_octword_actual_size", 0x300, 32),
            Field("mkey_umem_id", 0x320, 32),
            Field("mkey_umem_offset", 0x340, 64),
        ),
        _out("create_mkey", _number("mkey_index")),
    ),
    Command.DESTROY_MKEY: Layout(_in("destroy_mkey", _SHORT, _number("mkey_index")), _out("destroy_mkey")),  # mlx5_ifc.h (rdma-core 59)
    Command.CREATE_CQ: Layout(
        _in(
            "create_cq",
            _LONG,
            Field("cqc", 0x80, 8 * CQC.size, table=CQC),
            Field("cq_umem_offset", 0x280, 64),
            Field("cq_umem_id", 0x2C0, 32),
            Field("cq_umem_valid", 0x2E0, 1),
        ),
        _out("create_cq", _number("cqn")),
    ),
    Command.DESTROY_CQ: Layout(_in("destroy_cq", _SHORT, _number("cqn")), _out("destroy_cq")),
    Command.CREATE_QP: Layout(
        _in(
            "create_qp",
            _LONG,
            _OPT_PARAM_MASK,
            _QPC,
            Field("wq_umem_offset", 0x800, 64),
            Field("wq_umem_id", 0x840, 32),
            Field("wq_umem_valid", 0x860, 1),
        ),
        _out("create_qp", _number("qpn")),
    ),
    Command.DESTROY_QP: _qp("destroy_qp"),
    Command.RST2INIT_QP: _qp("rst2init_qp", _OPT_PARAM_MASK, _QPC),
    Command.INIT2RTR_QP: _qp("init2rtr_qp", _OPT_PARAM_MASK, _QPC),
    Command.RTR2RTS_QP: _qp("rtr2rts_qp", _OPT_PARAM_MASK, _QPC),
    Command.RTS2RTS_QP: _qp("rts2rts_qp", _OPT_PARAM_MASK, _QPC),
    Command.INIT2INIT_QP: _qp("init2init_qp", _OPT_PARAM_MASK, _QPC),
    Command.TO_ERR_QP: _qp("2err_qp"),
    Command.TO_RST_QP: _qp("2rst_qp"),
    Command.QUERY_QP: Layout(  # mlx5_ifc.h (rdma-core 59), except qpc_ext, from Linux; pas[] may follow in the output
        _in("query_qp", _SHORT, Field("qpc_ext", 0x40, 1), _number("qpn")),
        _out("query_qp", _OPT_PARAM_MASK, _QPC, size=_LONG),
    ),
    Command.QUERY_ROCE_ADDRESS: Layout(  # mlx5_ifc.h (rdma-core 59)
        _in("query_roce_address", _SHORT, Field("roce_address_index", 0x40, 16), Field("vhca_port_num", 0x5C, 4)),
        _out(
            "query_roce_address",
            Field("roce_address", 0x80, 8 * ROCE_ADDR_LAYOUT.size, table=ROCE_ADDR_LAYOUT),
            size=OUTPUT.size + ROCE_ADDR_LAYOUT.size,
        ),
    ),
    Command.QUERY_HCA_VPORT_CONTEXT: Layout(  # mlx5_ifc.h (rdma-core 44)
        _in("query_hca_vport_context", _SHORT, Field("other_vport", 0x40, 1), Field("port_num", 0x4C, 4), Field("vport_number", 0x50, 16)),
        _out(
            "query_hca_vport_context",
            Field("hca_vport_context", 0x80, 8 * HCA_VPORT_CONTEXT.size, table=HCA_VPORT_CONTEXT),
            size=OUTPUT.size + HCA_VPORT_CONTEXT.size,
        ),
    ),
    Command.ALLOC_PD: Layout(_in("alloc_pd", _SHORT), _out("alloc_pd", _number("pd"))),
    Command.DEALLOC_PD: Layout(_in("dealloc_pd", _SHORT, _number("pd")), _out("dealloc_pd")),  # mlx5_ifc.h (rdma-core 59)
    Command.ALLOC_UAR: Layout(_in("alloc_uar", _SHORT), _out("alloc_uar", _number("uar"))),
    Command.DEALLOC_UAR: Layout(_in("dealloc_uar", _SHORT, _number("uar")), _out("dealloc_uar")),  # mlx5_ifc.h (rdma-core 59)
    Command.CREATE_UMEM: Layout(  # input: mlx5_ifc.h (rdma-core 59); mtt[] follows it
        _in("create_umem", INPUT.size + UMEM.size, Field("umem", 0x80, 8 * UMEM.size, table=UMEM)),
        _out("create_umem", _number("umem_id")),
    ),
    Command.DESTROY_UMEM: Layout(_in("destroy_umem", _SHORT, _number("umem_id")), _out("destroy_umem")),  # mlx5_ifc.h (rdma-core 59)
}

_CAP_OUTPUTS = {
    cap_op_mod(kind): _out("query_hca_cap", Field("capability", 0x80, 8 * CAP_SIZE, table=table), size=0x10 + CAP_SIZE)
    for kind, table in CAPS.items()
}


def _input(opcode: int) -> Table:
    if opcode not in LAYOUTS:
        raise ValueError(f"opcode: the input of {command_name(opcode)} is not defined in pgas")
    return LAYOUTS[Command(opcode)].input


def output_table(opcode: int, op_mod: int) -> Table:
    """Return the layout of a command's output; the input's op_mod selects the layout of QUERY_HCA_CAP's ``capability``.

    Raises:
        ValueError: the command is not defined here.
    """
    if opcode not in LAYOUTS:
        raise ValueError(f"opcode: the output of {command_name(opcode)} is not defined in pgas")
    table = LAYOUTS[Command(opcode)].output
    return _CAP_OUTPUTS.get(op_mod, table) if opcode == Command.QUERY_HCA_CAP else table


def output_size(command: int) -> int:
    """Return the size of a command's output in bytes."""
    return output_table(command, 0).size


# --- build and parse -------------------------------------------------------------------------------------------------------------


def build(command: Command, **values: Any) -> bytes:
    """Return the input of a command with the given fields; the value of a context is a mapping of its fields.

    Raises:
        ValueError: the command is not defined here, has no such field, or a value does not fit.
    """
    return fields.fill(_input(command), {"opcode": int(command), **values})


def build_klms(pieces: Iterable[Mapping[str, int]]) -> bytes:
    """Return the bytes after the input of CREATE_MKEY for an indirect key: one KLM per piece, zero-padded to a multiple of four KLMs."""
    data = b"".join(fields.fill(KLM, piece) for piece in pieces)
    return data.ljust(-(-len(data) // (4 * KLM.size)) * 4 * KLM.size, b"\0")


def parse_klms(data: Buffer) -> list[dict[str, Any]]:
    """Return the pieces that follow an input of CREATE_MKEY, without empty ones."""
    offsets = range(LAYOUTS[Command.CREATE_MKEY].input.size, len(data) - KLM.size + 1, KLM.size)
    return [klm for klm in (fields.decode(KLM, data, offset) for offset in offsets) if klm["byte_count"]]


def parse(data: Buffer) -> tuple[Command, dict[str, Any]]:
    """Return the command of an input, and its fields.

    Raises:
        ValueError: the command is not defined here, or the input is too short for it.
    """
    opcode = fields.decode(INPUT, data)["opcode"]
    table = _input(opcode)
    return Command(opcode), fields.decode(table, data)


def build_output(
    command: Command, values: Mapping[str, Any] | None = None, *, status: int = Status.OK, syndrome: int = 0, op_mod: int = 0
) -> bytes:
    """Return the output of a command. The input's op_mod selects the layout of QUERY_HCA_CAP's ``capability``.

    Raises:
        ValueError: the command is not defined here, has no such field, or a value does not fit.
    """
    return fields.fill(output_table(command, op_mod), {"status": status, "syndrome": syndrome, **(values or {})})


def parse_output(command: Command, data: Buffer, *, op_mod: int = 0) -> dict[str, Any]:
    """Return the fields of a command's output; check() reads the status.

    Raises:
        ValueError: the command is not defined here, or the output is too short.
    """
    return fields.decode(output_table(command, op_mod), data)


def check(command: int, data: Buffer, words: Callable[[int], str] | None = None) -> None:
    """Read the status of an output. words: function that returns the meaning of a syndrome, "" if unknown.

    Raises:
        CommandError: the NIC refused the command.
    """
    output = fields.decode(OUTPUT, data)
    if output["status"] != Status.OK:
        raise CommandError(command, output["status"], output["syndrome"], words(output["syndrome"]) if words else "")
