"""Every command of the card, accepted, and refused with the status and syndrome of the failed check."""

import itertools
import os
import random
from dataclasses import replace

import pytest
import rig
import wqes as wqe
from rig import HEAP, QP, QUEUES, pair

from pgas.base.backend import SIMULATOR
from pgas.base.errors import TransportError
from pgas.transports.memory.memfd import HostMemory
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5 import commands, fields
from pgas.transports.mlx5.capabilities import CAP_SIZE, AtomicOperations, AtomicSize, CapType, cap_op_mod
from pgas.transports.mlx5.commands import Command, CommandError, Status
from pgas.transports.mlx5.contexts import ANY_QPN, Access, OptPar, QpState
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.nic import indirect_key
from pgas.transports.nic.indirect_key import Piece
from pgas.transports.softhca import layout
from pgas.transports.softhca.firmware.commands import QUERY_QP_EXT_OUT, Firmware
from pgas.transports.softhca.firmware.objects import Objects, RequestRefused
from pgas.transports.softhca.syndromes import CommandSyndrome as Why
from pgas.transports.softhca.tables import Tables

card, pes, observer = rig.card, rig.pes, rig.observer

EXECUTED = {
    Command.QUERY_HCA_CAP, Command.CREATE_MKEY, Command.DESTROY_MKEY, Command.CREATE_CQ, Command.DESTROY_CQ, Command.CREATE_QP,
    Command.DESTROY_QP, Command.RST2INIT_QP, Command.INIT2RTR_QP, Command.RTR2RTS_QP, Command.TO_ERR_QP, Command.TO_RST_QP,
    Command.QUERY_QP, Command.QUERY_HCA_VPORT_CONTEXT, Command.INIT2INIT_QP, Command.RTS2RTS_QP,
}  # fmt: skip


def raw(pe, inbox, outlen=16):
    """Execute a command given as bytes; return (status, name of the syndrome) and the whole output."""
    outbox = pe.hca.command(inbox, outlen)
    output = fields.decode(commands.OUTPUT, outbox.ljust(16, b"\0"))
    return (output["status"], Why(output["syndrome"]).name), outbox


# ------------------------------------------------------------------------------------------------------------------------ envelope


@pytest.mark.parametrize("opcode", [*sorted(set(Command) - EXECUTED), 0x0, 0xFFFF])
def test_commands_that_the_card_does_not_execute(pes, opcode):
    assert raw(pes[0], opcode.to_bytes(2, "big") + bytes(0x10E))[0] == (Status.BAD_OP, "OPCODE")


@pytest.mark.parametrize("command", sorted(EXECUTED))
def test_lengths_and_op_mod(pes, command):
    source, outlen = commands.LAYOUTS[command].input, commands.output_size(command)
    inbox = commands.build(command, op_mod=1 if command == Command.QUERY_HCA_CAP else 0)
    assert raw(pes[0], inbox[:-1], outlen)[0] == (Status.BAD_INP_LEN, "INPUT_LENGTH")
    short = 15 if command == Command.QUERY_HCA_CAP else outlen - 1  # capabilities are cut to the length of the output
    assert raw(pes[0], inbox, short)[0] == (Status.BAD_OUTP_LEN, "OUTPUT_LENGTH")
    assert raw(pes[0], fields.fill(source, {"opcode": command, "op_mod": 0x1FE}), outlen)[0] == (Status.BAD_PARAM, "OP_MOD")


def test_an_output_has_the_requested_length(pes):
    assert raw(pes[0], b"", 16)[0] == (Status.BAD_OP, "OPCODE")
    assert len(raw(pes[0], b"\x01\x00", 3)[1]) == 3
    (status, _), outbox = raw(pes[0], commands.build(Command.QUERY_HCA_CAP, op_mod=1), 0x1800)
    assert (status, len(outbox), outbox[0x1010:]) == (Status.OK, 0x1800, bytes(0x7F0))


# -------------------------------------------------------------------------------------------------------------------- capabilities


def test_capabilities_suffice_for_ibgda(pes):
    general = pes[0].command(Command.QUERY_HCA_CAP, op_mod=cap_op_mod(CapType.GENERAL))["capability"]
    wanted = {"cqe_version": 1, "cq_oi": 1, "atomic": 1, "bf": 1, "log_bf_reg_size": 9, "log_max_msg": 30, "num_ports": 1, "uar_4k": 1}
    assert wanted.items() <= general.items()
    assert (general["log_max_qp_sz"], general["log_max_ra_req_qp"], general["max_wqe_sz_sq"]) == (15, 4, 1008)
    atomic = pes[0].command(Command.QUERY_HCA_CAP, op_mod=cap_op_mod(CapType.ATOMIC))["capability"]
    assert atomic["atomic_operations"] == sum(AtomicOperations)
    assert atomic["atomic_size_qp"] == sum(AtomicSize)
    assert (atomic["atomic_req_8B_endianness_mode"], atomic["supported_atomic_req_8B_endianness_mode_1"]) == (1, 1)


@pytest.mark.parametrize("kind", [CapType.CAP_2, CapType.ODP, CapType.ROCE])
def test_kinds_of_capabilities_that_the_card_lacks(pes, kind):
    """Drivers query them only if a bit of the general capabilities says so: hca_cap_2, pg, roce."""
    (status, why), outbox = raw(pes[0], commands.build(Command.QUERY_HCA_CAP, op_mod=cap_op_mod(kind)), 0x10 + CAP_SIZE)
    assert (status, why, outbox[8:]) == (Status.BAD_PARAM, "OP_MOD", bytes(0x8 + CAP_SIZE))


def test_capabilities_are_cut_to_the_output(pes):
    """rdma-core's DevX tests rely on it."""
    inbox = commands.build(Command.QUERY_HCA_CAP, op_mod=cap_op_mod(CapType.GENERAL))
    assert raw(pes[0], inbox, 0x810)[1] == raw(pes[0], inbox, 0x1010)[1][:0x810]


def test_the_port(pes):
    assert pes[0].command(Command.QUERY_HCA_VPORT_CONTEXT, port_num=1)["hca_vport_context"]["lid"] == pes[0].hca.query_port().lid
    assert pes[0].refused(Command.QUERY_HCA_VPORT_CONTEXT, port_num=2) == (Status.BAD_PARAM, "PORT")
    assert pes[0].refused(Command.QUERY_HCA_VPORT_CONTEXT, other_vport=1) == (Status.BAD_PARAM, "PORT")


def test_current_and_maximal_capabilities_are_the_same(pes):
    both = [raw(pes[0], commands.build(Command.QUERY_HCA_CAP, op_mod=CapType.GENERAL << 1 | current), 0x1010) for current in (0, 1)]
    assert both[0] == both[1]


# ----------------------------------------------------------------------------------------------------------------------------- CQ


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"cqc": {"log_cq_size": 23}}, Status.BAD_PARAM, "CQ_SIZE"),
        ({"cqc": {"cqe_sz": 1}}, Status.BAD_PARAM, "CQE_SIZE"),
        ({"cqc": {"oi": 0, "cc": 1}}, Status.BAD_PARAM, "CQ_OVERRUN"),
        ({"cqc": {"st": 9}}, Status.BAD_PARAM, "CQ_STATE"),
        ({"cqc": {"c_eqn": 3}}, Status.BAD_RES, "EQ"),
        ({"cqc": {"uar_page": 0}}, Status.BAD_RES, "UAR"),
        ({"cq_umem_valid": 0}, Status.BAD_PARAM, "UMEM_INVALID"),
        ({"cq_umem_id": 1}, Status.BAD_RES, "UMEM"),
        ({"cq_umem_offset": QUEUES}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"cq_umem_offset": 2048}, Status.BAD_PARAM, "UMEM_PAGE"),
        ({"cqc": {"log_cq_size": 16}}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"cqc": {"dbr_umem_valid": 0}}, Status.BAD_PARAM, "UMEM_INVALID"),
        ({"cqc": {"dbr_umem_id": 1}}, Status.BAD_RES, "UMEM"),
        ({"cqc": {"dbr_addr": QUEUES - 4}}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"cqc": {"dbr_addr": 4}}, Status.BAD_PARAM, "ALIGNMENT"),
    ],
)
def test_create_cq_refused(pes, observer, change, status, why):
    values = QP(pes[0]).cq_values(**change.pop("cqc", {}))
    assert pes[0].refused(Command.CREATE_CQ, **{**values, **change}) == (status, why)
    assert len(observer.counters()["cqs"]) == 1


def test_a_cq_is_found_behind_page_offset(pes):
    qp = QP(pes[0])
    values = qp.cq_values(page_offset=3)
    values["cq_umem_offset"] -= values["cq_umem_offset"] % 4096
    cqn = pes[0].command(Command.CREATE_CQ, **values)["cqn"]
    assert cqn != qp.cqn
    pes[0].command(Command.DESTROY_CQ, cqn=cqn)


def test_a_cq_is_destroyed_after_its_qps(pes):
    first = QP(pes[0])
    second = QP(pes[0], cq=first)
    for qp in (first, second):
        assert pes[0].refused(Command.DESTROY_CQ, cqn=first.cqn) == (Status.RES_BUSY, "CQ_BUSY")
        qp.destroy()
    pes[0].command(Command.DESTROY_CQ, cqn=first.cqn)
    assert pes[0].refused(Command.DESTROY_CQ, cqn=first.cqn) == (Status.BAD_RES, "CQ")


# ----------------------------------------------------------------------------------------------------------------------------- QP


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"qpc": {"st": 5}}, Status.BAD_PARAM, "SERVICE_TYPE"),
        ({"qpc": {"state": 1}}, Status.BAD_PARAM, "QP_STATE"),
        ({"qpc": {"state": 7}}, Status.BAD_PARAM, "QP_STATE"),
        ({"qpc": {"pm_state": 0}}, Status.BAD_PARAM, "PM_STATE"),
        ({"qpc": {"pm_state": 2}}, Status.BAD_PARAM, "PM_STATE"),
        ({"qpc": {"ts_format": 2}}, Status.BAD_PARAM, "TS_FORMAT"),
        ({"qpc": {"ts_format": 3}}, Status.BAD_PARAM, "TS_FORMAT"),
        ({"qpc": {"rq_type": 1}}, Status.BAD_PARAM, "RQ_TYPE"),
        ({"qpc": {"no_sq": 1}}, Status.BAD_PARAM, "SQ_MISSING"),
        ({"qpc": {"send_dbr_mode": 1}}, Status.BAD_PARAM, "DBR_MODE"),
        ({"qpc": {"pd": 1}}, Status.BAD_RES, "PD"),
        ({"qpc": {"cqn_snd": 1}}, Status.BAD_RES, "CQ"),
        ({"qpc": {"uar_page": 0}}, Status.BAD_RES, "UAR"),
        ({"wq_umem_valid": 0}, Status.BAD_PARAM, "UMEM_INVALID"),
        ({"wq_umem_id": 1}, Status.BAD_RES, "UMEM"),
        ({"wq_umem_offset": QUEUES - 4096}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"wq_umem_offset": 64}, Status.BAD_PARAM, "UMEM_PAGE"),
        ({"qpc": {"log_sq_size": 15}}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"qpc": {"dbr_umem_valid": 0}}, Status.BAD_PARAM, "UMEM_INVALID"),
        ({"qpc": {"dbr_umem_id": 1}}, Status.BAD_RES, "UMEM"),
        ({"qpc": {"dbr_addr": QUEUES}}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"qpc": {"dbr_addr": 12}}, Status.BAD_PARAM, "ALIGNMENT"),
    ],
)
def test_create_qp_refused(pes, observer, change, status, why):
    qp = QP(pes[0])
    values = qp.qp_values(7, 0, pes[0].pdn)
    values["qpc"]["uar_page"] = pes[0].hca.alloc_uar().page_id
    values["wq_umem_offset"] = 1 << 20
    values["qpc"].update(change.pop("qpc", {}))
    assert pes[0].refused(Command.CREATE_QP, **{**values, **change}) == (status, why)
    assert [entry["qpn"] for entry in observer.counters()["qps"]] == [qp.qpn]


@pytest.mark.skipif(SIMULATOR and os.environ.get("PGAS_ENGINE", "cpu") == "cpu", reason="of the cuda engine")
def test_a_register_serves_one_qp(pes):
    qp = QP(pes[0])
    assert pes[0].refused(Command.CREATE_QP, **qp.qp_values(7, 0, pes[0].pdn)) == (Status.BAD_RES_STATE, "UAR_SHARED")
    qp.destroy()
    pes[0].command(Command.CREATE_QP, **qp.qp_values(7, 0, pes[0].pdn))


def test_a_wq_serves_one_qp(pes):
    """Also if two WQs overlap: the second begins on the second page of a deeper one."""
    deep = QP(pes[0], 8)
    values = deep.qp_values(1, 0, pes[0].pdn)
    values["qpc"]["uar_page"] = pes[0].hca.alloc_uar().page_id
    for offset in (deep.sq, deep.sq + 4096, deep.sq + 3 * 4096):
        values["wq_umem_offset"] = offset
        assert pes[0].refused(Command.CREATE_QP, **values) == (Status.BAD_RES_STATE, "WQ_SHARED")
    values["wq_umem_offset"] = deep.sq + 4 * 4096
    pes[0].command(Command.CREATE_QP, **values)


def test_query_qp_returns_the_attributes(pes):
    qp, peer = QP(pes[0], user_index=0xABCDE), QP(pes[1])
    qp.init(rre=0).rtr(peer, mtu=3, log_msg_max=20, next_rcv_psn=0x123456).rts(next_send_psn=0x654321, retry_count=5)
    got = pes[0].command(Command.QUERY_QP, qpn=qp.qpn)["qpc"]
    wanted = {
        "state": QpState.RTS, "rre": 0, "rwe": 1, "rae": 1, "mtu": 3, "log_msg_max": 20, "remote_qpn": peer.qpn, "retry_count": 5,
        "next_rcv_psn": 0x123456, "next_send_psn": 0x654321, "user_index": 0xABCDE, "pd": pes[0].pdn, "cqn_snd": qp.cqn,
        "log_sq_size": 7, "uar_page": qp.uar.page_id, "dbr_addr": qp.dbr, "hw_sq_wqebb_counter": 0,
    }  # fmt: skip
    assert {name: got[name] for name in wanted} == wanted


def test_query_qp_ext_returns_the_first_error(pes):
    qp = pair(pes)[0]
    assert qp.fail(wqe.write, pes[1].heap, 0xDEAD00, pes[0].heap, pes[0].key, 8)[0] == 0x13
    outbox = pes[0].hca.command(commands.build(Command.QUERY_QP, qpn=qp.qpn, qpc_ext=1), QUERY_QP_EXT_OUT.size)
    output = fields.decode(QUERY_QP_EXT_OUT, outbox)
    assert (output["qpc"]["state"], output["cqe_syndrome"], output["vendor_error_syndrome"]) == (QpState.ERR, 0x13, 0x40)


@pytest.mark.parametrize(
    ("step", "values", "why"),
    [
        ("init", {"primary_address_path": {"vhca_port_num": 2}}, "PORT"),
        ("init", {"atomic_mode": 0}, "ATOMIC_MODE"),
        ("rtr", {"mtu": 0}, "MTU"),
        ("rtr", {"mtu": 6}, "MTU"),
        ("rtr", {"log_msg_max": 31}, "LOG_MSG_MAX"),
        ("rtr", {"log_rra_max": 5}, "RD_ATOMIC"),
        ("rtr", {"remote_qpn": 0}, "REMOTE_QPN"),
        ("rtr", {"primary_address_path": {}}, "ADDRESS_PATH"),
        ("rtr", {"primary_address_path": {"rlid": 1, "vhca_port_num": 2}}, "PORT"),
        ("rts", {"log_sra_max": 5}, "RD_ATOMIC"),
    ],
)
def test_a_transition_refused_for_a_value_changes_nothing(pes, step, values, why):
    qp = QP(pes[0])
    steps = {"init": qp.init, "rtr": lambda **changed: qp.rtr(7, **changed), "rts": qp.rts}
    for name, take in steps.items():
        before = qp.state()
        if name == step:
            with pytest.raises(commands.CommandError) as caught:
                take(**values)
            assert (caught.value.status, Why(caught.value.syndrome).name) == (Status.BAD_PARAM, why)
            assert qp.state() == before
        take()
    assert qp.state() == QpState.RTS


#: The optional parameters of each transition that a card without LAG and alternate paths takes (opt_mask of Linux's mlx5_ib).
RIGHTS = OptPar.RRE | OptPar.RWE | OptPar.RAE
OPTIONAL = {
    Command.RST2INIT_QP: OptPar(0),
    Command.INIT2INIT_QP: RIGHTS | OptPar.PKEY_INDEX | OptPar.PRI_PORT,
    Command.INIT2RTR_QP: RIGHTS | OptPar.PKEY_INDEX,
    Command.RTR2RTS_QP: RIGHTS | OptPar.PM_STATE | OptPar.RNR_TIMEOUT,
    Command.RTS2RTS_QP: RIGHTS | OptPar.PM_STATE | OptPar.RNR_TIMEOUT,
}


def test_opt_param_mask(pes):
    """Every bit in every transition is accepted or refused, and only attributes with their bit set change."""
    qp = QP(pes[0])
    path = {"vhca_port_num": 1, "rlid": 1, "pkey_index": 5}
    given = {"pm_state": 3, "rre": 1, "rwe": 1, "rae": 1, "atomic_mode": 3, "mtu": 5, "log_msg_max": 30, "remote_qpn": 7, "min_rnr_nak": 9}
    for command, allowed in OPTIONAL.items():
        for bit in range(32):
            if not allowed >> bit & 1:
                values = {"opt_param_mask": 1 << bit, "qpc": {**given, "primary_address_path": path}}
                assert pes[0].refused(command, qpn=qp.qpn, **values) == (Status.BAD_PARAM, "OPT_PARAM")
        rights = 0 if command == Command.RST2INIT_QP else 1
        now = given | {"rre": rights, "rwe": rights, "rae": rights, "primary_address_path": path}
        pes[0].command(command, qpn=qp.qpn, opt_param_mask=int(allowed), qpc=now)
        got = pes[0].command(Command.QUERY_QP, qpn=qp.qpn)["qpc"]
        assert (got["rre"], got["rwe"], got["rae"]) == (rights,) * 3
    assert (qp.state(), got["primary_address_path"]["pkey_index"], got["min_rnr_nak"]) == (QpState.RTS, 5, 9)
    before = got
    pes[0].command(Command.RTS2RTS_QP, qpn=qp.qpn, qpc={"rre": 0, "min_rnr_nak": 1, "mtu": 1})
    assert pes[0].command(Command.QUERY_QP, qpn=qp.qpn)["qpc"] == before
    for wrong, why in (({"pm_state": 0}, "PM_STATE"), ({"rae": 1, "atomic_mode": 0}, "ATOMIC_MODE")):
        mask = OptPar.PM_STATE if why == "PM_STATE" else OptPar.RAE
        assert pes[0].refused(Command.RTS2RTS_QP, qpn=qp.qpn, opt_param_mask=int(mask), qpc=wrong) == (Status.BAD_PARAM, why)


def test_rights_that_rts2rts_takes_away(pes):
    a, b = pair(pes)
    a.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
    pes[1].command(Command.RTS2RTS_QP, qpn=b.qpn, opt_param_mask=int(OptPar.RWE), qpc={"rwe": 0})
    assert a.fail(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8) == (0x12, 0x45)


def test_init2init_and_its_states(pes):
    qp, peer = QP(pes[0]), QP(pes[1])
    for step in (lambda: None, lambda: qp.rtr(peer), qp.rts):
        step()
        if qp.state() == QpState.RST:
            assert pes[0].refused(Command.INIT2INIT_QP, qpn=qp.qpn) == (Status.BAD_QP_STATE, "TRANSITION")
            qp.init(rwe=0)
            pes[0].command(Command.INIT2INIT_QP, qpn=qp.qpn, opt_param_mask=int(OptPar.RWE), qpc={"rwe": 1})
            assert pes[0].command(Command.QUERY_QP, qpn=qp.qpn)["qpc"]["rwe"] == 1
        else:
            assert pes[0].refused(Command.INIT2INIT_QP, qpn=qp.qpn) == (Status.BAD_QP_STATE, "TRANSITION")


# -------------------------------------------------------------------------------------------------------------------------- mkeys


def mkey_values(pe, **changed):
    mkc = {"access_mode_1_0": 1, "lr": 1, "lw": 1, "rw": 1, "rr": 1, "a": 1, "qpn": ANY_QPN, "pd": pe.pdn, "start_addr": 0, "len": 4096}
    values = {"mkey_umem_valid": 1, "mkey_umem_id": pe.umem, "mkey_umem_offset": 0}
    mkc.update(changed.pop("mkc", {}))
    return {"mkc": mkc, **values, **changed}


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"mkc": {"access_mode_1_0": 3}}, Status.BAD_PARAM, "MKEY_MODE"),
        ({"mkc": {"access_mode_4_2": 1}}, Status.BAD_PARAM, "MKEY_MODE"),
        ({"mkc": {"qpn": 5}}, Status.BAD_PARAM, "MKEY_MODE"),
        ({"mkc": {"length64": 1}}, Status.BAD_PARAM, "MKEY_MODE"),
        ({"mkc": {"pd": 1}}, Status.BAD_RES, "PD"),
        ({"mkc": {"len": 0}}, Status.BAD_PARAM, "MKEY_LENGTH"),
        ({"mkc": {"start_addr": (1 << 64) - 4095}}, Status.BAD_PARAM, "MKEY_LENGTH"),
        ({"mkc": {"lw": 0}}, Status.BAD_PARAM, "MKEY_ACCESS"),
        ({"mkey_umem_valid": 0}, Status.BAD_PARAM, "UMEM_INVALID"),
        ({"mkey_umem_id": 1}, Status.BAD_RES, "UMEM"),
        ({"mkey_umem_offset": QUEUES - 4095}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"mkey_umem_offset": 2048}, Status.BAD_PARAM, "UMEM_PAGE"),
    ],
)
def test_create_mkey_refused(pes, observer, change, status, why):
    assert pes[0].refused(Command.CREATE_MKEY, **mkey_values(pes[0], **change)) == (status, why)
    assert len(observer.counters()["keys"]) == 2  # of the heaps


def test_a_key_with_addresses_of_its_own(pes):
    """start_addr 0, as NCCL registers: remote addresses are offsets in the UMEM."""
    umem = pes[1].hca.register_umem(pes[1].heap, HEAP)
    values = mkey_values(pes[1], mkey_umem_id=umem, mkey_umem_offset=8192, mkc={"mkey_7_0": 0x5A})
    index = pes[1].command(Command.CREATE_MKEY, **values)["mkey_index"]
    qp = pair(pes)[0]
    qp.run(wqe.write_inline, 40, index << 8 | 0x5A, b"by offset")
    assert pes[1].read(pes[1].heap + 8192 + 40, 9) == b"by offset"
    assert qp.fail(wqe.write_inline, 40, index << 8 | 0x5B, b"variant")[1] == 0x40  # mkey_7_0 is part of the key
    with pytest.raises(TransportError, match="in use by 1"):
        pes[1].hca.deregister_umem(umem)
    pes[1].command(Command.DESTROY_MKEY, mkey_index=index)
    assert pes[1].refused(Command.DESTROY_MKEY, mkey_index=index) == (Status.BAD_RES, "MKEY")
    pes[1].hca.deregister_umem(umem)


ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


def in_pieces(pe, *sizes, access=ACCESS):
    """Register adjacent pieces from the heap's beginning on."""
    ends = itertools.accumulate(sizes, initial=pe.heap)
    return [Piece(end, n, pe.hca.register_mr(end, n, pe.pdn, access)[0]) for end, n in zip(ends, sizes, strict=False)]


def test_an_indirect_key(pes):
    """It reaches all pieces, also across their boundaries, for both sides of a WQE and for atomics, and nothing else."""
    near, far = (indirect_key.over(pe.hca, pe.pdn, ACCESS, in_pieces(pe, 4096, 8192, 4096)) for pe in pes)
    data, a, b = random.Random(1).randbytes(16384), pes[0].heap, pes[1].heap
    pes[0].write(a, data)
    qp = pair(pes)[0]
    qp.run(wqe.write, b + 100, far, a, near, 16284)
    assert pes[1].read(b + 100, 16284) == data[:16284]
    qp.run(wqe.read, b + 4000, far, a + 4090, near, 8500)
    assert pes[0].read(a + 4090, 8500) == data[3900:12400]
    pes[1].word(4096, 40)
    qp.run(wqe.fetch_add, b + 4096, far, a + 12288, near, 2)
    assert (pes[1].word(4096), pes[0].word(12288)) == (42, 40)
    assert qp.fail(wqe.write, b + 16380, far, a, near, 8)[0] == Syndrome.REMOTE_ACCESS_ERR
    assert pair(pes)[0].fail(wqe.write, b, far, a + 16380, near, 8)[0] == Syndrome.LOCAL_PROT_ERR


def test_an_indirect_key_has_the_rights_of_its_pieces(pes):
    far = indirect_key.over(pes[1].hca, pes[1].pdn, ACCESS, in_pieces(pes[1], 4096, 4096, access=Access.REMOTE_READ | Access.LOCAL_WRITE))
    qp = pair(pes)[0]
    qp.run(wqe.read, pes[1].heap, far, pes[0].heap, pes[0].key, 8192)
    assert qp.fail(wqe.write, pes[1].heap, far, pes[0].heap, pes[0].key, 8)[0] == Syndrome.REMOTE_ACCESS_ERR


def test_pieces_outlive_their_indirect_key(pes, observer):
    pe, before = pes[0], len(observer.counters()["keys"])
    pieces = in_pieces(pe, 4096, 4096)
    key = indirect_key.over(pe.hca, pe.pdn, ACCESS, pieces)
    for piece in pieces:
        with pytest.raises(TransportError, match="in use by 1 object"):
            pe.hca.deregister_mr(piece.lkey)
        assert pe.refused(Command.DESTROY_MKEY, mkey_index=piece.lkey >> 8) == (Status.RES_BUSY, "MKEY_BUSY")
    indirect_key.destroy(pe.hca, key)
    for piece in pieces:
        pe.hca.deregister_mr(piece.lkey)
    assert len(observer.counters()["keys"]) == before


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        (lambda pieces: pieces[::-1], Status.BAD_PARAM, "KLM_APART"),
        (lambda pieces: [pieces[0], pieces[0]], Status.BAD_PARAM, "KLM_APART"),
        (lambda pieces: [replace(pieces[0], nbytes=4097), pieces[1]], Status.BAD_PARAM, "KLM_BOUNDS"),
        (lambda pieces: [replace(pieces[0], address=pieces[0].address - 8), pieces[1]], Status.BAD_PARAM, "KLM_BOUNDS"),
        (lambda pieces: [pieces[0], replace(pieces[1], lkey=0xBAD00)], Status.BAD_RES, "MKEY"),
    ],
)
def test_an_indirect_key_refused(pes, change, status, why):
    pe = pes[0]
    with pytest.raises(CommandError) as caught:
        indirect_key.over(pe.hca, pe.pdn, ACCESS, change(in_pieces(pe, 4096, 4096)))
    assert (caught.value.status, Why(caught.value.syndrome).name) == (status, why)


def test_an_indirect_key_of_another_length_or_without_pieces(pes):
    pe = pes[0]
    mkc = {"access_mode_1_0": 2, "lr": 1, "qpn": ANY_QPN, "pd": pe.pdn, "start_addr": pe.heap, "len": 4096, "translations_octword_size": 4}
    klm = commands.build_klms([{"byte_count": 8192, "mkey": pe.key, "address": pe.heap}])
    assert pe.refused(Command.CREATE_MKEY, mkc=mkc, translations_octword_actual_size=4) == (Status.BAD_PARAM, "KLM_COUNT")
    for words, why in ((0, "KLM_COUNT"), (4, "KLM_LENGTH")):
        outbox = pe.hca.command(commands.build(Command.CREATE_MKEY, mkc=mkc, translations_octword_actual_size=words) + klm, 16)
        assert Why(fields.decode(commands.OUTPUT, outbox)["syndrome"]).name == why


def test_a_destroyed_key_may_match_a_new_one(pes):
    """A card reuses indices: if both keys have the same mkey_7_0, the old key writes into the new memory."""
    keys = []
    for offset in (0, 4096):
        umem = pes[1].hca.register_umem(pes[1].heap + offset, 4096)
        index = pes[1].command(Command.CREATE_MKEY, **mkey_values(pes[1], mkey_umem_id=umem, mkc={"mkey_7_0": 0x5A}))["mkey_index"]
        keys.append(index << 8 | 0x5A)
        if offset == 0:
            pes[1].command(Command.DESTROY_MKEY, mkey_index=index)
    assert keys[0] == keys[1]
    pair(pes)[0].run(wqe.write_inline, 0, keys[0], b"stale key")
    assert pes[1].read(pes[1].heap, 4096 + 9) == bytes(4096) + b"stale key"


def test_keys_of_memory_regions_differ_for_255_uses_of_an_index(pes):
    """The kernel increments mkey_7_0 (assign_mkey_variant of mlx5_ib)."""
    pe, keys = pes[0], []
    for _ in range(256):
        keys.append(pe.hca.register_mr(pe.heap, 64, pe.pdn, 0)[0])
        pe.hca.deregister_mr(keys[-1])
    assert len({key >> 8 for key in keys}) == 1
    assert len(set(keys)) == 255
    assert keys[255] == keys[0]


# -------------------------------------------------------------------------------------------------------------------- pages of UMEMs


@pytest.mark.parametrize("page_size", [4096, 16384, 1 << 21])
def test_objects_in_a_umem_begin_on_its_pages(pes, page_size):
    """Except doorbell records. The syndrome is a ConnectX's."""
    pe, qp = pes[0], QP(pes[0])
    umem = pe.hca.register_umem(pe.heap, HEAP, page_size)
    assert Why.UMEM_PAGE == 0x357275

    def calls(offset):
        cq, wq = qp.cq_values(dbr_umem_id=umem, dbr_addr=offset + 8), qp.qp_values(7, 0, pe.pdn)
        wq["qpc"]["uar_page"] = pe.hca.alloc_uar().page_id
        yield Command.CREATE_CQ, {**cq, "cq_umem_id": umem, "cq_umem_offset": offset}
        yield Command.CREATE_QP, {**wq, "wq_umem_id": umem, "wq_umem_offset": offset}
        yield Command.CREATE_MKEY, mkey_values(pe, mkey_umem_id=umem, mkey_umem_offset=offset)

    for command, values in calls(page_size // 2):
        assert pe.refused(command, **values) == (Status.BAD_PARAM, "UMEM_PAGE")
    for command, values in calls(page_size):
        pe.command(command, **values)


@pytest.mark.parametrize("page_size", [0, 2048, 4097, 12288])
def test_pages_that_a_umem_cannot_have(pes, page_size):
    with pytest.raises(TransportError, match=f"page_size must be a power of two of at least 4096, not {page_size}"):
        pes[0].hca.register_umem(pes[0].heap, HEAP, page_size)


# ---------------------------------------------------------------------------------------------------------- other PEs, old numbers


def test_objects_of_another_pe_do_not_exist(pes):
    mine, other = QP(pes[0]), pes[1]
    index = pes[0].command(Command.CREATE_MKEY, **mkey_values(pes[0]))["mkey_index"]
    for command in (Command.QUERY_QP, Command.DESTROY_QP, Command.TO_ERR_QP, Command.TO_RST_QP, Command.RST2INIT_QP):
        assert other.refused(command, qpn=mine.qpn) == (Status.BAD_RES, "QP")
    assert other.refused(Command.DESTROY_CQ, cqn=mine.cqn) == (Status.BAD_RES, "CQ")
    assert other.refused(Command.DESTROY_MKEY, mkey_index=index) == (Status.BAD_RES, "MKEY")
    assert other.refused(Command.CREATE_MKEY, **mkey_values(other, mkey_umem_id=pes[0].umem)) == (Status.BAD_RES, "UMEM")
    assert other.refused(Command.CREATE_CQ, **mine.cq_values()) == (Status.BAD_RES, "UAR")
    theirs = QP(other)
    for name, value, why in (("pd", pes[0].pdn, "PD"), ("cqn_snd", mine.cqn, "CQ"), ("uar_page", mine.uar.page_id, "UAR")):
        values = theirs.qp_values(7, 0, other.pdn)
        values["qpc"][name] = value
        assert other.refused(Command.CREATE_QP, **values) == (Status.BAD_RES, why)
    for call, number in (("dealloc_pd", pes[0].pdn), ("deregister_umem", pes[0].umem), ("deregister_mr", pes[0].key)):
        with pytest.raises(TransportError, match=f"PE 1 has no .*{number:#x}"):
            getattr(other.hca, call)(number)
    with pytest.raises(TransportError, match="PE 1 has no UAR"):
        other.hca.dealloc_uar(mine.uar.page_id)
    with pytest.raises(TransportError, match="register_mr: PE 1 has no protection domain"):
        other.hca.register_mr(other.heap, 64, pes[0].pdn, 0)
    with pytest.raises(TransportError, match="BAD_RES, QP: no such QP of this PE"):
        other.hca.set_index(mine.qpn, 7)
    assert other.hca.diagnose(mine.qpn) is None
    assert mine.state() == QpState.RST


def test_numbers_of_destroyed_objects_are_invalid(pes):
    pe = pes[0]
    first = QP(pe)
    first.destroy()
    pe.command(Command.DESTROY_CQ, cqn=first.cqn)
    key = pe.hca.register_mr(pe.heap, 64, pe.pdn, 0)[0]
    pe.hca.deregister_mr(key)
    second = QP(pe)
    again = pe.hca.register_mr(pe.heap, 64, pe.pdn, 0)[0]
    low = (1 << layout.LOG_MAX_QP) - 1
    assert first.qpn & low == second.qpn & low  # the same row of the table,
    assert (first.qpn, first.cqn, key) != (second.qpn, second.cqn, again)  # under another number
    assert pe.refused(Command.QUERY_QP, qpn=first.qpn) == (Status.BAD_RES, "QP")
    assert pe.refused(Command.DESTROY_CQ, cqn=first.cqn) == (Status.BAD_RES, "CQ")
    with pytest.raises(TransportError, match="no memory region"):
        pe.hca.deregister_mr(key)


@pytest.mark.slow  # 8,000 requests
def test_limits_of_qps_and_cqs(pes):
    pe, qp = pes[0], QP(pes[0])
    cqs = [pe.command(Command.CREATE_CQ, **qp.cq_values())["cqn"] for _ in range((1 << layout.LOG_MAX_CQ) - 1)]
    assert pe.refused(Command.CREATE_CQ, **qp.cq_values()) == (Status.LIM, "NO_CQ")
    pe.command(Command.DESTROY_CQ, cqn=cqs.pop())
    pe.command(Command.CREATE_CQ, **qp.cq_values())
    values = qp.qp_values(1, 0, pe.pdn)
    values["wq_umem_id"] = pe.hca.register_umem(pe.heap, HEAP)
    for number in range((1 << layout.LOG_MAX_QP) - 1):
        values["qpc"]["uar_page"] = pe.hca.alloc_uar().page_id
        values["wq_umem_offset"] = 4096 * number
        pe.command(Command.CREATE_QP, **values)
    values["qpc"]["uar_page"] = pe.hca.alloc_uar().page_id
    values["wq_umem_offset"] += 4096
    assert pe.refused(Command.CREATE_QP, **values) == (Status.LIM, "NO_QP")
    qp.destroy()
    pe.command(Command.CREATE_QP, **values)


@pytest.mark.slow  # 8,000 requests
def test_limit_of_uars(pes):
    uars = [pes[0].hca.alloc_uar().page_id for _ in range((1 << layout.LOG_MAX_UAR) - 1)]
    assert len(set(uars)) == len(uars)
    with pytest.raises(TransportError, match="all 8191 UARs are in use"):
        pes[0].hca.alloc_uar()
    pes[0].hca.dealloc_uar(uars[100])
    assert pes[0].hca.alloc_uar().page_id == uars[100]


def test_limit_of_keys():
    """Without process and engine, as 16383 requests would take seconds."""
    card = Tables()
    objects = Objects(card, HostMemory())
    objects.share(0, 0x1000, 4096)
    pdn, umem = objects.alloc_pd(0), objects.register_umem(0, 0x1000, 4096)
    keys = {objects.register_mr(0, 0x1000, 4096, pdn, 0) for _ in range((1 << layout.LOG_MAX_MKEY) - 1)}  # row 0 is unused
    assert len(keys) == (1 << layout.LOG_MAX_MKEY) - 1
    with pytest.raises(RequestRefused, match="all 16383 memory keys are in use"):
        objects.register_mr(0, 0x1000, 4096, pdn, 0)
    mkc = {"access_mode_1_0": 1, "qpn": ANY_QPN, "pd": pdn, "len": 64}
    inbox = commands.build(Command.CREATE_MKEY, mkey_umem_valid=1, mkey_umem_id=umem, mkc=mkc)
    assert fields.decode(commands.OUTPUT, Firmware(card, objects).execute(0, inbox, 16)) == {"status": Status.LIM, "syndrome": Why.NO_MKEY}


# --------------------------------------------------------------------------------------------------------- calls that are no commands


def test_memory_that_is_not_the_pe_s_is_refused(pes):
    pe = pes[0]
    for address, nbytes in ((pe.heap, HEAP + 1), (pe.heap - 1, 2), (pes[1].heap, 64), (0, 64), (pe.heap, 0), (pe.heap + HEAP, 1)):
        with pytest.raises(TransportError, match="not memory of PE 0"):
            pe.hca.register_umem(address, nbytes)
        with pytest.raises(TransportError, match="not memory of PE 0"):
            pe.hca.register_mr(address, nbytes, pe.pdn, 0)


def test_memory_that_is_shared_piece_by_piece(pes):
    """Adjacent pieces are one range. It can be unshared in the same pieces, if nothing is registered in it."""
    pe = pes[0]
    address, nbytes = pe.heap + HEAP, 2 << 20
    fd = pe.memory.create(address, Segment(0, nbytes, host=True))
    for _ in range(2):
        with pytest.raises(TransportError, match="not memory of PE 0"):
            pe.hca.register_mr(pe.heap, HEAP + nbytes, pe.pdn, 0)
        pe.hca.share(address, nbytes, fd)
        with pytest.raises(TransportError, match="not memory of PE 0"):
            pe.hca.register_mr(pe.heap, HEAP + nbytes + 1, pe.pdn, 0)
        key, umem = pe.hca.register_mr(pe.heap, HEAP + nbytes, pe.pdn, 0)[0], pe.hca.register_umem(address + nbytes - 64, 64)
        for users in (2, 1):
            with pytest.raises(TransportError, match=rf"{nbytes} bytes at {address:#x} are in use by {users} object\(s\)"):
                pe.hca.unshare(address, nbytes)
            if users == 2:
                pe.hca.deregister_mr(key)
        pe.hca.deregister_umem(umem)
        for wrong in ((address, nbytes - 1), (address + 4096, nbytes - 4096)):
            with pytest.raises(TransportError, match="PE 0 has not shared"):
                pe.hca.unshare(*wrong)
        pe.hca.unshare(address, nbytes)
    pe.memory.discard(address)
    with pytest.raises(TransportError, match="PE 0 has not shared"):
        pe.hca.unshare(address, nbytes)


def test_access_of_a_memory_region(pes):
    pe = pes[0]
    with pytest.raises(TransportError, match="bits outside"):
        pe.hca.register_mr(pe.heap, 64, pe.pdn, 1 << 9)
    for access in (Access.REMOTE_WRITE, Access.REMOTE_ATOMIC):
        with pytest.raises(TransportError, match="require LOCAL_WRITE"):
            pe.hca.register_mr(pe.heap, 64, pe.pdn, access)
    lkey, rkey = pe.hca.register_mr(pe.heap, 64, pe.pdn, Access.REMOTE_READ | Access.RELAXED_ORDERING)
    assert lkey == rkey


def test_objects_in_use_cannot_be_destroyed(pes):
    pe = pes[0]
    qp = QP(pe)
    for give_back, what in (
        (lambda: pe.hca.dealloc_pd(pe.pdn), "protection domain .* in use by 2"),
        (lambda: pe.hca.deregister_umem(pe.umem), "umem .* in use by 4"),
        (lambda: pe.hca.dealloc_uar(qp.uar.page_id), "UAR .* in use by 2"),
    ):
        with pytest.raises(TransportError, match=what):
            give_back()
    qp.destroy()
    pe.command(Command.DESTROY_CQ, cqn=qp.cqn)
    pe.hca.deregister_mr(pe.key)
    pe.hca.dealloc_pd(pe.pdn)
    pe.hca.deregister_umem(pe.umem)
    pe.hca.dealloc_uar(qp.uar.page_id)
    for give_back in (lambda: pe.hca.dealloc_pd(pe.pdn), lambda: pe.hca.dealloc_uar(qp.uar.page_id)):
        with pytest.raises(TransportError, match="PE 0 has no"):
            give_back()


def test_port_and_event_queue(pes):
    port = pes[0].hca.query_port()
    assert (port.port_num, port.link_layer, port.active_mtu, len(port.gid)) == (1, "InfiniBand", 5, 16)
    assert pes[0].hca.query_eqn() == pes[1].hca.query_eqn() > 0


def test_a_stopped_engine_is_an_internal_error():
    card = Tables()
    objects, stuck = Objects(card, HostMemory()), TimeoutError("no engine here")
    firmware = Firmware(card, objects)

    def alive():
        raise stuck

    card.alive = alive
    objects.share(0, 0x1000, 4096)
    pdn = objects.alloc_pd(0)
    key = objects.register_mr(0, 0x1000, 4096, pdn, 0)
    outbox = firmware.execute(0, commands.build(Command.DESTROY_MKEY, mkey_index=key >> 8), 16)
    assert fields.decode(commands.OUTPUT, outbox) == {"status": Status.INT_ERR, "syndrome": Why.ENGINE}


def test_pes_leave_together_in_one_grace_period():
    card, waits = Tables(), []
    card.wait_for_engine = lambda: waits.append(1)
    objects = Objects(card, HostMemory())
    for pe in range(8):
        objects.share(pe, 4096 * (pe + 1), 4096)
        objects.register_mr(pe, 4096 * (pe + 1), 4096, objects.alloc_pd(pe), 0)
    Firmware(card, objects).leave(set(range(1, 8)))
    assert len(waits) == 1
    assert {key.pe for key in objects.keys.values()} == objects.segments.keys() == {0}
