"""Commands: sizes, golden inputs and outputs both ways, messages for statuses, refused values."""

import pickle

import pytest

from pgas.base.errors import PgasError, TransportError
from pgas.transports.mlx5 import commands
from pgas.transports.mlx5.capabilities import CAPS, CapType, cap_op_mod
from pgas.transports.mlx5.commands import (
    Command,
    CommandError,
    Status,
    build,
    build_klms,
    build_output,
    check,
    parse,
    parse_klms,
    parse_output,
)
from pgas.transports.mlx5.contexts import PmState, RqType

CQC = {"dbr_umem_valid": 1, "cc": 1, "oi": 1, "dbr_umem_id": 0x11, "log_cq_size": 10, "uar_page": 5, "c_eqn": 7, "log_page_size": 4}
CREATE_CQ = {"cqc": CQC, "cq_umem_id": 0x22, "cq_umem_valid": 1}
QPC = {"pm_state": PmState.MIGRATED, "pd": 0x12, "log_sq_size": 10, "uar_page": 5, "user_index": 3, "cqn_snd": 0x44}
QPC |= {"rq_type": RqType.ZERO_SIZE_RQ, "dbr_addr": 0x40, "dbr_umem_valid": 1, "dbr_umem_id": 0x11}
CREATE_QP = {"qpc": QPC, "wq_umem_id": 0x33, "wq_umem_valid": 1}
ADS = {"rlid": 0xBEEF, "vhca_port_num": 1, "rmac_47_32": 0x0102, "rmac_31_0": 0x03040506}
RTR = {"mtu": 5, "log_msg_max": 30, "remote_qpn": 0x123456, "primary_address_path": ADS, "min_rnr_nak": 12, "log_rra_max": 4}
INIT2RTR = {"qpn": 0xABCDEF, "qpc": RTR}

#: The lines of the input that are not zero, in the form of the kernel driver's dumps; written by hand from mlx5_ifc.h.
GOLDEN = {
    Command.CREATE_CQ: (
        CREATE_CQ,
        """
        000: 04000000 00000000 00000000 00000000
        010: 02120000 00000011 00000000 0a000005
        020: 00000000 00000007 04000000 00000000
        050: 00000000 00000000 00000022 80000000""",
    ),
    Command.CREATE_QP: (
        CREATE_QP,
        """
        000: 05000000 00000000 00000000 00000000
        010: 00000000 00000000 00001800 00000012
        020: 00005000 00000005 00000003 00000000
        090: 00000000 00000044 00000000 00000000
        0b0: 00000000 00000000 00000000 00000040
        0c0: 00000000 03000000 00000000 00000000
        0e0: 00000000 00000000 10000000 00000000
        0f0: 00000000 00000000 00000000 00000011
        100: 00000000 00000000 00000033 80000000""",
    ),
    Command.INIT2RTR_QP: (
        INIT2RTR,
        """
        000: 05030000 00000000 00abcdef 00000000
        020: be000000 00000000 00000000 00123456
        030: 00000000 0000beef 00000000 00000000
        050: 00000000 00010102 03040506 00000000
        0a0: 00000000 00000000 00800000 0c000000""",
    ),
    Command.QUERY_HCA_CAP: ({"op_mod": 7}, "\n000: 01000000 00000007 00000000 00000000"),
    Command.TO_ERR_QP: ({"qpn": 0xABCDEF}, "\n000: 05070000 00000000 00abcdef 00000000"),
    Command.TO_RST_QP: ({"qpn": 0xABCDEF}, "\n000: 050a0000 00000000 00abcdef 00000000"),
    Command.DESTROY_QP: ({"qpn": 0xABCDEF}, "\n000: 05010000 00000000 00abcdef 00000000"),
    Command.DESTROY_CQ: ({"cqn": 0x44}, "\n000: 04010000 00000000 00000044 00000000"),
    Command.ALLOC_PD: ({}, "\n000: 08000000 00000000 00000000 00000000"),
    Command.ALLOC_UAR: ({}, "\n000: 08020000 00000000 00000000 00000000"),
    Command.DESTROY_MKEY: ({"mkey_index": 0x123456}, "\n000: 02020000 00000000 00123456 00000000"),
    Command.QUERY_QP: ({"qpn": 0xABCDEF}, "\n000: 050b0000 00000000 00abcdef 00000000"),
    Command.QUERY_ROCE_ADDRESS: ({"roce_address_index": 3, "vhca_port_num": 1}, "\n000: 07600000 00000000 00030001 00000000"),
    Command.QUERY_HCA_VPORT_CONTEXT: ({"port_num": 1, "vport_number": 2}, "\n000: 07620000 00000000 00010002 00000000"),
    Command.DEALLOC_PD: ({"pd": 0x12}, "\n000: 08010000 00000000 00000012 00000000"),
    Command.DEALLOC_UAR: ({"uar": 5}, "\n000: 08030000 00000000 00000005 00000000"),
    Command.CREATE_UMEM: (
        {"umem": {"log_page_size": 4, "page_offset": 0x40, "num_of_mtt": 3}},
        """
        000: 0a080000 00000000 00000000 00000000
        020: 00000004 00000040 00000000 00000003""",
    ),
    Command.DESTROY_UMEM: ({"umem_id": 0x33}, "\n000: 0a0a0000 00000000 00000033 00000000"),
}

#: Commands whose output is only a status.
NO_ANSWER = (Command.RST2INIT_QP, Command.DESTROY_MKEY, Command.DEALLOC_PD, Command.DEALLOC_UAR, Command.DESTROY_UMEM)


def from_dump(text, size):
    data = bytearray(size)
    for line in text.split("\n")[1:]:
        offset, words = line.split(":")
        data[int(offset, 16) : int(offset, 16) + 16] = bytes.fromhex(words)
    return bytes(data)


def contains(whole, part):
    """Whether whole has the values of part's fields, and its other fields are zero."""
    return all(
        contains(value, part.get(name, {})) if isinstance(value, dict) else value == part.get(name, 0) for name, value in whole.items()
    )


@pytest.mark.parametrize("command", GOLDEN)
def test_golden_input(command):
    values, text = GOLDEN[command]
    data = from_dump(text, commands.LAYOUTS[command].input.size)
    assert build(command, **values) == data
    opcode, parsed = parse(data)
    assert (opcode, parsed.pop("opcode")) == (command, command)
    assert contains(parsed, values)


@pytest.mark.parametrize(
    ("command", "values", "text"),
    [
        (Command.CREATE_QP, {"qpn": 0xABCDEF}, "00000000 00000000 00abcdef 00000000"),
        (Command.CREATE_CQ, {"cqn": 0x44}, "00000000 00000000 00000044 00000000"),
        (Command.CREATE_MKEY, {"mkey_index": 0x123456}, "00000000 00000000 00123456 00000000"),
        (Command.ALLOC_PD, {"pd": 0x12}, "00000000 00000000 00000012 00000000"),
        (Command.ALLOC_UAR, {"uar": 5}, "00000000 00000000 00000005 00000000"),
        (Command.CREATE_UMEM, {"umem_id": 0x33}, "00000000 00000000 00000033 00000000"),
        *((command, {}, "00000000 00000000 00000000 00000000") for command in NO_ANSWER),
    ],
)
def test_golden_output(command, values, text):
    data = bytes.fromhex(text)
    assert build_output(command, values) == data
    assert parse_output(command, data) == {"status": 0, "syndrome": 0, **values}
    check(command, data)


def test_golden_query_qp():
    """The context is in the output as in CREATE_QP's input; its word at 0xcc has the executed and the rung index."""
    values = {"opt_param_mask": 0x10, "qpc": {"state": 3, "hw_sq_wqebb_counter": 0x1234, "sw_sq_wqebb_counter": 0x1236}}
    lines = "\n010: 00000010 00000000 30000000 00000000\n0c0: 00000000 00000000 00000000 12341236"
    data = from_dump(lines, 0x110)
    assert build_output(Command.QUERY_QP, values) == data
    assert contains(parse_output(Command.QUERY_QP, data), values)


def test_golden_roce_address():
    """GID ::ffff:c0a8:1, VLAN 0x123, MAC 02:03:04:05:06:07; no field is zero."""
    address = {"source_l3_address": 0xFFFF_C0A80001, "vlan_valid": 1, "vlan_id": 0x123, "source_mac_47_32": 0x0203}
    address |= {"source_mac_31_0": 0x04050607, "roce_l3_type": 1, "roce_version": 2}
    data = bytes(16) + bytes.fromhex("00000000 00000000 0000ffff c0a80001 11230203 04050607 00000102 00000000")
    assert build_output(Command.QUERY_ROCE_ADDRESS, {"roce_address": address}) == data
    assert parse_output(Command.QUERY_ROCE_ADDRESS, data) == {"status": 0, "syndrome": 0, "roce_address": address}


def test_sizes():
    """From mlx5_ifc.h: sizes of inputs with a context, of outputs, and of outputs of queries."""
    inputs = dict.fromkeys(("CREATE_MKEY", "CREATE_CQ", "CREATE_QP", "RST2INIT_QP", "INIT2INIT_QP", "INIT2RTR_QP"), 0x110)
    inputs |= dict.fromkeys(("RTR2RTS_QP", "RTS2RTS_QP"), 0x110)
    inputs["CREATE_UMEM"] = 0x30
    outputs = {"QUERY_HCA_CAP": 0x1010, "QUERY_QP": 0x110, "QUERY_ROCE_ADDRESS": 0x30, "QUERY_HCA_VPORT_CONTEXT": 0x210}
    for command, layout in commands.LAYOUTS.items():
        assert layout.input.size == inputs.get(command.name, 0x10), command
        assert layout.output.size == commands.output_size(command) == outputs.get(command.name, 0x10), command


@pytest.mark.parametrize("kind", CAPS)
def test_capabilities(kind):
    table = CAPS[kind]
    ones = {name: (1 << field.width) - 1 for name, field in table.fields.items()}
    op_mod = cap_op_mod(kind)
    data = build_output(Command.QUERY_HCA_CAP, {"capability": ones}, op_mod=op_mod)
    assert len(data) == 0x1010
    assert data[:16] == bytes(16)
    assert parse_output(Command.QUERY_HCA_CAP, data, op_mod=op_mod)["capability"] == ones
    assert parse_output(Command.QUERY_HCA_CAP, data) == {"status": 0, "syndrome": 0}


def test_golden_klms():
    """16 bytes each: byte_count, mkey, address; a multiple of four of them."""
    pieces = [{"byte_count": 0x80000000, "mkey": 0x01020304, "address": 0x600100001000}, {"byte_count": 8, "mkey": 5, "address": 6}]
    data = build_klms(pieces)
    assert data.hex(" ", 4) == ("80000000 01020304 00006001 00001000 00000008 00000005 00000000 00000006" + 8 * " 00000000")
    inbox = build(Command.CREATE_MKEY) + data
    assert parse_klms(inbox) == pieces
    assert parse_klms(build(Command.CREATE_MKEY)) == []


def test_golden_capabilities():
    """The atomics of the software card."""
    values = {"atomic_req_8B_endianness_mode": 1, "supported_atomic_req_8B_endianness_mode_1": 1, "atomic_operations": 0xF}
    data = build_output(Command.QUERY_HCA_CAP, {"capability": values | {"atomic_size_qp": 0xC}}, op_mod=7)
    words = data[0x10:0x30].hex(" ", -4)
    assert words == "00000000 00000000 42000000 00000000 0000000f 0000000c 00000000 00000000"


def test_op_mod():
    assert [cap_op_mod(kind) for kind in (CapType.GENERAL, CapType.ATOMIC, CapType.CAP_2)] == [1, 7, 0x41]


# --- status ---


def test_check():
    data = build_output(Command.CREATE_QP, status=Status.BAD_PARAM, syndrome=0x6F3AE9)
    assert data.hex() == "03000000006f3ae9" + "00" * 8
    with pytest.raises(CommandError, match=r"^CREATE_QP failed: BAD_PARAM \(bad parameter\), syndrome 0x6f3ae9$") as caught:
        check(Command.CREATE_QP, data)
    assert (caught.value.opcode, caught.value.status, caught.value.syndrome) == (0x500, 3, 0x6F3AE9)
    assert isinstance(caught.value, TransportError)
    assert isinstance(caught.value, PgasError)


@pytest.mark.parametrize("status", set(Status) - {Status.OK})
def test_every_status_has_a_message(status):
    with pytest.raises(CommandError, match=rf"2ERR_QP failed: {status.name} \({status.text}\), syndrome 0x0"):
        check(Command.TO_ERR_QP, build_output(Command.TO_ERR_QP, status=status))


def test_unknown_status_and_command():
    assert str(CommandError(0x999, 0x7F, 1)) == "command 0x999 failed: status 0x7f, syndrome 0x1"


def test_a_syndrome_with_a_known_meaning():
    data = build_output(Command.CREATE_CQ, status=Status.BAD_RES, syndrome=6)
    with pytest.raises(CommandError, match=r"^CREATE_CQ failed: BAD_RES \(bad resource\), syndrome 0x6: the 6th$"):
        check(Command.CREATE_CQ, data, lambda syndrome: f"the {syndrome}th")


@pytest.mark.parametrize("words", ["", "no such UAR"])
def test_error_travels_between_processes(words):
    error = pickle.loads(pickle.dumps(CommandError(0x400, 5, 6, words)))
    assert (error.opcode, error.status, error.syndrome, error.words) == (0x400, 5, 6, words)
    assert str(error) == "CREATE_CQ failed: BAD_RES (bad resource), syndrome 0x6" + (f": {words}" if words else "")


# --- refusals ---


def test_refused_values():
    with pytest.raises(ValueError, match="create_cq_in has no field 'cqe_sz'"):
        build(Command.CREATE_CQ, cqe_sz=0)
    with pytest.raises(ValueError, match=r"create_qp_in\.qpc\.log_sq_size: 0x10 does not fit in 4 bits"):
        build(Command.CREATE_QP, qpc={"log_sq_size": 16})
    with pytest.raises(ValueError, match=r"init2rtr_qp_in\.qpc\.primary_address_path\.sl: 0x10 does not fit in 4 bits"):
        build(Command.INIT2RTR_QP, qpc={"primary_address_path": {"sl": 16}})


@pytest.mark.parametrize("command", set(Command) - commands.LAYOUTS.keys())
def test_commands_without_a_layout(command):
    for use in (lambda: build(command), lambda: parse(int(command).to_bytes(2, "big").ljust(16, b"\0")), lambda: build_output(command)):
        with pytest.raises(ValueError, match=f"of {command.name} is not defined in pgas"):
            use()


def test_unknown_opcode():
    with pytest.raises(ValueError, match="the input of command 0xfff is not defined in pgas"):
        parse(bytes.fromhex("0fff").ljust(16, b"\0"))


def test_short():
    with pytest.raises(ValueError, match="create_qp_in: 272 bytes at offset 0 of a buffer of 271 bytes"):
        parse(build(Command.CREATE_QP)[:-1])
    with pytest.raises(ValueError, match="out: 16 bytes at offset 0 of a buffer of 8 bytes"):
        check(Command.CREATE_QP, bytes(8))


def test_numbers():
    """Opcodes and statuses, from mlx5_ifc.h."""
    assert [int(command) for command in Command] == [
        *(0x100, 0x200, 0x202, 0x301, 0x400, 0x401, 0x402, 0x403, 0x500, 0x501, 0x502, 0x503, 0x504, 0x505, 0x507, 0x50A, 0x50B),
        *(0x50E, 0x710, 0x711, 0x760, 0x762, 0x800, 0x801, 0x802, 0x803, 0x805, 0xA08, 0xA0A),
    ]
    assert [int(status) for status in Status] == [0, 1, 2, 3, 4, 5, 6, 8, 9, 0xA, 0xF, 0x10, 0x50, 0x51]
