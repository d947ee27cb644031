"""The driver of one QP: its commands to an adapter, its own refusals, and that it leaves nothing behind."""

import dataclasses
import itertools

import pytest
import rig
from poster import PORT, Poster, Wrapped, join, make, objects, write

from pgas.base.errors import TransportError
from pgas.transports.mlx5 import commands, cqe, fields, wqe
from pgas.transports.mlx5.capabilities import TsFormatCap
from pgas.transports.mlx5.commands import Command, CommandError, Status
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.nic import queue_pair
from pgas.transports.nic.adapter import AddressPath, PortAddress, Uar
from pgas.transports.nic.queue_pair import QueuePair, Queues, check_caps, returns_big_endian
from pgas.transports.softhca.syndromes import CommandSyndrome as Why
from pgas.transports.softhca.syndromes import command_text

card, pes, observer = rig.card, rig.pes, rig.observer

RST, INIT, RTR, RTS, ERR = QpState

#: (state, command): the next state; all other pairs are forbidden (IBTA 10.3.1).
TRANSITIONS = {
    (RST, Command.RST2INIT_QP): INIT,
    (INIT, Command.INIT2RTR_QP): RTR,
    (RTR, Command.RTR2RTS_QP): RTS,
    **{(state, Command.TO_ERR_QP): ERR for state in QpState},
    **{(state, Command.TO_RST_QP): RST for state in QpState},
}
COMMANDS = (Command.RST2INIT_QP, Command.INIT2RTR_QP, Command.RTR2RTS_QP, Command.TO_ERR_QP, Command.TO_RST_QP)


class Paper:
    """An adapter without a card: it accepts every command and records it."""

    name = "paper0"

    def __init__(self, **outputs):
        self.outputs, self.sent, self.asked = outputs, [], []

    def command(self, inbox, outlen):
        command, values = commands.parse(inbox)
        self.sent.append((command, nonzero(values)))
        outbox = commands.build_output(command, self.outputs.get(command.name), op_mod=values["op_mod"])
        assert len(outbox) == outlen
        return outbox

    def alloc_uar(self):
        return Uar(0x77, 0xF800)

    def dealloc_uar(self, page_id):
        assert page_id == 0x77

    def query_eqn(self):
        return 9

    def destination_mac(self, pdn, remote, path):
        self.asked.append((pdn, remote, path))
        return b"\x02\x03\x04\x05\x06\x07"

    def syndrome_words(self, syndrome):
        return ""


def nonzero(values):
    """Return the fields of an input that are not zero, except opcode and op_mod."""
    kept = {name: nonzero(v) if isinstance(v, dict) else v for name, v in values.items() if name not in ("opcode", "op_mod")}
    return {name: v for name, v in kept.items() if v}


FAR = PortAddress(2, "InfiniBand", 4, 0x22, bytes(range(8)) + bytes(range(24, 32)), 400.0)
GENERAL_CAPS = {"log_max_ra_req_qp": 4, "log_max_ra_res_qp": 5}


def on_paper(path=None, **outputs):
    caps = {"capability": GENERAL_CAPS}
    numbers = {"CREATE_CQ": {"cqn": 0x55}, "CREATE_QP": {"qpn": 0x66}}
    adapter = Paper(QUERY_HCA_CAP=caps, **numbers, **outputs)
    return adapter, QueuePair(adapter, 0x33, 0x44, Queues(0x2000, 0x4000, 0x4040), 256, 0xABCDEF, path)


# -------------------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize("depth", [128, 1024, 32768])
def test_layout(depth):
    """QPs side by side on pages of the card; nothing overlaps, and each DBR has its own cache line."""
    n_qps, offset = 5, 3 * 4096
    taken = []
    for i, queues in enumerate(Queues.layout(depth, n_qps, offset)):
        assert queues.cq == offset + i * Queues.nbytes(depth)
        assert queues.cq + 64 * depth <= queues.wq + 64 * depth, "room for depth entries"
        assert (queues.wq % 4096, queues.cq % 4096, queues.dbr % 64) == (0, 0, 0)
        taken += [(queues.wq, 64 * depth), (queues.cq, 64), (queues.dbr, 64)]
    taken.sort()
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(taken))
    assert taken[-1][0] + taken[-1][1] <= offset + n_qps * Queues.nbytes(depth)
    assert Queues.layout(depth, 0) == []


@pytest.mark.parametrize("depth", [0, -128, 64, 127, 129, 1000, 65536])
def test_depth_is_named(pes, depth):
    words = rf"^depth must be a power of two from 128 to 32768 WQEBBs, not {depth}$"
    adapter = Wrapped(pes[0].hca)
    for call in (
        lambda: Queues.nbytes(depth),
        lambda: Queues.layout(depth, 1),
        lambda: QueuePair(adapter, pes[0].umem, pes[0].pdn, Queues(0, 4096, 4160), depth),
        lambda: check_caps(adapter, 1, 1, depth),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    assert adapter.sent == []


def test_offset_is_named():
    with pytest.raises(ValueError, match=r"^offset must be a multiple of 4096 bytes, not 64$"):
        Queues.layout(128, 1, 64)


# ------------------------------------------------------------------------------------------------------------ commands to the card


def test_fields_of_the_commands():
    """The fields that NVSHMEM sets, over InfiniBand; all others are zero."""
    adapter, qp = on_paper()
    qp.connect(0x99, PORT, FAR)
    assert qp.query() == RST  # this adapter's answer
    dbr = {"dbr_umem_valid": 1, "dbr_umem_id": 0x33}
    cqc = {**dbr, "cc": 1, "oi": 1, "uar_page": 0x77, "c_eqn": 9, "dbr_addr": 0x4048}
    qpc = {"pm_state": 3, "pd": 0x44, "log_sq_size": 8, "uar_page": 0x77, "user_index": 0xABCDEF, "cqn_snd": 0x55, "rq_type": 3}
    init = {"pm_state": 3, "rre": 1, "rwe": 1, "rae": 1, "atomic_mode": 3, "primary_address_path": {"vhca_port_num": 1}}
    path = {"vhca_port_num": 1, "rlid": 0x22}
    rtr = {"mtu": 4, "log_msg_max": 30, "remote_qpn": 0x99, "min_rnr_nak": 12, "log_rra_max": 4, "primary_address_path": path}
    rts = {"retry_count": 7, "rnr_retry": 7, "log_sra_max": 4, "primary_address_path": {"ack_timeout": 20}}
    assert adapter.sent == [
        (Command.QUERY_HCA_CAP, {}),
        (Command.CREATE_CQ, {"cqc": cqc, "cq_umem_id": 0x33, "cq_umem_valid": 1, "cq_umem_offset": 0x4000}),
        (Command.CREATE_QP, {"qpc": {**qpc, **dbr, "dbr_addr": 0x4040}, "wq_umem_id": 0x33, "wq_umem_valid": 1, "wq_umem_offset": 0x2000}),
        (Command.RST2INIT_QP, {"qpn": 0x66, "qpc": init}),
        (Command.INIT2RTR_QP, {"qpn": 0x66, "qpc": rtr}),
        (Command.RTR2RTS_QP, {"qpn": 0x66, "qpc": rts}),
        (Command.QUERY_QP, {"qpn": 0x66}),
    ]


def test_a_card_that_refuses_a_cq_of_one_entry(pes, observer):
    """The queue pair gets one of the WQ's depth and works: the last of its UMEM, which ends with it."""
    pe = pes[0]
    offset = -(-pe.queue_memory(2 * Queues.nbytes(128) + 4096) // 4096) * 4096
    observer.set_faults("refuse=cq_of_one")
    qps = []
    for i, queues in enumerate(Queues.layout(128, 2, offset)):
        pe.write(pe.slot + queues.cq, rig.EMPTY)
        qps.append(QueuePair(pe.hca, pe.umem, pe.pdn, queues, 128, i))
    join(*qps)
    pe.word(0, 77)
    poster = Poster(pe, qps[0])
    for _ in range(300):  # more than twice round the WQ
        assert poster.run(*write(pes, 0, 0)).user_index == 0
    assert pe.word(64) == 77
    observer.set_faults("")


@pytest.mark.parametrize(("version", "sport"), [(0, {}), (2, {"udp_sport": 0xC000})])
def test_the_address_path_of_roce(version, sport):
    """rdma-core: "UDP sport must be reserved for roce v1 and v1.5"."""
    adapter, qp = on_paper(AddressPath(gid_index=5), QUERY_ROCE_ADDRESS={"roce_address": {"roce_version": version}})
    near, far = (dataclasses.replace(port, link_layer="Ethernet") for port in (PORT, FAR))
    qp.connect(0x99, near, far)
    assert adapter.asked == [(0x44, far, AddressPath(gid_index=5))]
    assert (Command.QUERY_ROCE_ADDRESS, {"vhca_port_num": 1, "roce_address_index": 5}) in adapter.sent
    assert dict(adapter.sent)[Command.INIT2RTR_QP]["qpc"]["primary_address_path"] == {
        "vhca_port_num": 1,
        "src_addr_index": 5,
        "rgid_rip": int.from_bytes(far.gid, "big"),
        "rmac_47_32": 0x0203,
        "rmac_31_0": 0x04050607,
        "hop_limit": 255,
        **sport,
    }


def test_variables_for_the_path():
    """PGAS_IB_SL, _TRAFFIC_CLASS, _TIMEOUT, _RETRY_COUNT, in the fields for InfiniBand and for Ethernet."""
    path = AddressPath(sl=6, traffic_class=0x6B, timeout=14, retry_count=3)
    for link_layer, fields_ in (
        ("InfiniBand", {"sl": 6, "tclass": 0x6B, "eth_prio": 0, "dscp": 0}),
        ("Ethernet", {"eth_prio": 6, "dscp": 0x1A}),
    ):
        adapter, qp = on_paper(path=path)
        qp.connect(0x99, *(dataclasses.replace(port, link_layer=link_layer) for port in (PORT, FAR)))
        sent = dict(adapter.sent)
        ads = sent[Command.INIT2RTR_QP]["qpc"]["primary_address_path"]
        assert {name: ads.get(name, 0) for name in fields_} == fields_
        rts = sent[Command.RTR2RTS_QP]["qpc"]
        assert (rts["retry_count"], rts["primary_address_path"]) == (3, {"ack_timeout": 14})


def test_another_subnet_of_infiniband():
    """Its packets have a GRH."""
    adapter, qp = on_paper(path=AddressPath(gid_index=2, traffic_class=0x20))
    far = dataclasses.replace(FAR, gid=bytes(range(16, 32)))
    qp.connect(0x99, PORT, far)
    assert dict(adapter.sent)[Command.INIT2RTR_QP]["qpc"]["primary_address_path"] == {
        "vhca_port_num": 1,
        "rlid": 0x22,
        "grh": 1,
        "tclass": 0x20,
        "src_addr_index": 2,
        "rgid_rip": int.from_bytes(far.gid, "big"),
        "hop_limit": 255,
    }


def test_a_priority_that_ethernet_does_not_have():
    _, qp = on_paper(path=AddressPath(sl=8))
    near, far = (dataclasses.replace(port, link_layer="Ethernet") for port in (PORT, FAR))
    with pytest.raises(TransportError, match=r"^PGAS_IB_SL=8: an Ethernet port has priorities 0 to 7$"):
        qp.connect(0x99, near, far)


def test_a_doorbell_record_in_memory_of_its_own():
    """If a CPU rings, the DBR is in host memory; WQ and CQ need not be."""
    adapter, _ = on_paper()
    adapter.sent.clear()
    QueuePair(adapter, 0x33, 0x44, Queues(0x2000, 0x4000, 0x80, 0x99), 256)
    sent = dict(adapter.sent)
    cq, qp = sent[Command.CREATE_CQ], sent[Command.CREATE_QP]
    assert (cq["cq_umem_id"], cq["cqc"]["dbr_umem_id"], cq["cqc"]["dbr_addr"]) == (0x33, 0x99, 0x88)
    assert (qp["wq_umem_id"], qp["qpc"]["dbr_umem_id"], qp["qpc"]["dbr_addr"]) == (0x33, 0x99, 0x80)


def test_ports_of_different_link_layers():
    adapter, qp = on_paper()
    far = dataclasses.replace(FAR, link_layer="Ethernet")
    with pytest.raises(TransportError, match=r"^QP 0x66: port 1 of paper0 is InfiniBand, the peer's is Ethernet$"):
        qp.connect(0x99, PORT, far)
    assert (qp.state, adapter.sent[-1][0]) == (INIT, Command.RST2INIT_QP)


@pytest.mark.parametrize(("req", "res", "used"), [(4, 6, 4), (6, 4, 4), (0, 4, 0), (60, 60, 7)])
def test_outstanding_reads_and_atomics_stay_within_the_caps(monkeypatch, req, res, used):
    monkeypatch.setitem(GENERAL_CAPS, "log_max_ra_req_qp", req)
    monkeypatch.setitem(GENERAL_CAPS, "log_max_ra_res_qp", res)
    adapter, qp = on_paper()
    qp.connect(0x99, PORT, FAR)
    sent = dict(adapter.sent)
    assert sent[Command.INIT2RTR_QP]["qpc"].get("log_rra_max", 0) == used
    assert sent[Command.RTR2RTS_QP]["qpc"].get("log_sra_max", 0) == used


@pytest.mark.parametrize("clocks", TsFormatCap)
def test_the_clock_of_timestamps(monkeypatch, clocks):
    """A card set to real time only has no free-running clock, so DEFAULT is used."""
    monkeypatch.setitem(GENERAL_CAPS, "sq_ts_format", clocks)
    adapter, _ = on_paper()
    assert dict(adapter.sent)[Command.CREATE_QP]["qpc"].get("ts_format", 0) == (1 if clocks else 0)


@pytest.mark.parametrize(("peers", "used"), [(0, 0), (3, 3), (5, 4)])
def test_a_peer_that_answers_fewer_reads_and_atomics(peers, used):
    """At most the peer's log_rra_max are outstanding; this side answers as many as it can."""
    adapter, qp = on_paper()
    qp.connect(0x99, PORT, FAR, peers)
    sent = dict(adapter.sent)
    assert sent[Command.INIT2RTR_QP]["qpc"]["log_rra_max"] == 4
    assert sent[Command.RTR2RTS_QP]["qpc"].get("log_sra_max", 0) == used


# ------------------------------------------------------------------------------------------------------------------------- traffic


def test_two_pes_are_connected_and_write(pes):
    a, b = make(pes[0], 128, user_index=0x1234), make(pes[1], 256)
    assert (a.state, b.state, a.depth, b.depth) == (RST, RST, 128, 256)
    ports = [pe.hca.query_port() for pe in pes]
    a.connect(b.qpn, ports[0], ports[1])
    b.connect(a.qpn, ports[1], ports[0])
    assert (a.state, a.query(), b.query()) == (RTS, RTS, RTS)
    pes[0].write(pes[0].heap, b"hello world, hello card!")
    done = Poster(pes[0], a).run(*write(pes))
    assert pes[1].read(pes[1].heap + 60, 32) == bytes(4) + b"hello world, hello card!" + bytes(4)
    assert (done.opcode, done.s_wqe_opcode, done.qpn, done.wqe_counter) == (cqe.CqeOpcode.REQ, wqe.Opcode.RDMA_WRITE, a.qpn, 0)
    assert done.user_index == 0x1234
    pes[1].write(pes[1].heap, b"and back from PE 1 to 0.")
    Poster(pes[1], b).run(*write(pes, 1, 0))
    assert pes[0].read(pes[0].heap + 64, 24) == b"and back from PE 1 to 0."


def test_queues_of_layout_work_side_by_side(pes):
    """Several QPs in one UMEM, at offsets, each with its own CQE."""
    pe, n_qps = pes[0], 6
    offset = -(-pe.queue_memory(n_qps * Queues.nbytes(128) + 4096) // 4096) * 4096
    qps = []
    for i, queues in enumerate(Queues.layout(128, n_qps, offset)):
        pe.write(pe.slot + queues.cq, rig.EMPTY)
        qps.append(QueuePair(pe.hca, pe.umem, pe.pdn, queues, 128, i))
    assert len({qp.uar.register_address for qp in qps}) == n_qps
    for a, b in zip(qps[::2], qps[1::2], strict=True):
        join(a, b)
    for i, qp in enumerate(qps):
        pe.word(0, i + 1)
        assert Poster(pe, qp).run(*write(pes, 0, 0)).user_index == i
        assert pe.word(64) == i + 1


def test_a_qp_that_the_card_moved_to_err_starts_again(pes):
    """The driver queries the state. After reset, with its memory prepared again, the QP starts at index 0."""
    a, b = join(make(pes[0]), make(pes[1]))
    poster = Poster(pes[0], a)
    syndrome, _ = poster.fail(wqe.write, pes[1].heap, 0xBAD00, pes[0].heap, pes[0].key, 8)
    assert syndrome == Syndrome.REMOTE_ACCESS_ERR
    assert (a.state, a.query(), a.state) == (RTS, ERR, ERR)
    for pe, qp in ((pes[0], a), (pes[1], b)):
        qp.reset()
        assert (qp.state, qp.query()) == (RST, RST)
        pe.write(pe.slot + qp.queues.wq, bytes(64 * qp.depth))
        pe.write(pe.slot + qp.queues.cq, rig.EMPTY)
        pe.write(pe.slot + qp.queues.dbr, bytes(8))
    join(a, b)
    pes[0].word(0, 99)
    assert Poster(pes[0], a).run(*write(pes)).wqe_counter == 0
    assert pes[1].word(64) == 99


def test_to_error_flushes(pes, observer):
    a, _ = join(make(pes[0]), make(pes[1]))
    poster = Poster(pes[0], a)
    observer.pause()
    index = poster.post(*write(pes), fm_ce_se=rig.SIGNAL)
    poster.ring()
    a.to_error()
    observer.resume()
    assert poster.poll(index).syndrome == Syndrome.WR_FLUSH_ERR
    assert (a.state, a.query()) == (ERR, ERR)


# --------------------------------------------------------------------------------------------------------------------- transitions


def move(qp, command, peer):
    """Execute one command of the driver."""
    steps = {
        Command.RST2INIT_QP: lambda: qp.rst2init(PORT),
        Command.INIT2RTR_QP: lambda: qp.init2rtr(peer.qpn, PORT, PORT),
        Command.RTR2RTS_QP: qp.rtr2rts,
        Command.TO_ERR_QP: qp.to_error,
        Command.TO_RST_QP: qp.reset,
    }
    steps[command]()


def bring_to(state, qp, peer):
    if state == ERR:
        qp.to_error()
    for reached, command in ((INIT, Command.RST2INIT_QP), (RTR, Command.INIT2RTR_QP), (RTS, Command.RTR2RTS_QP)):
        if reached <= state <= RTS:
            move(qp, command, peer)
    assert qp.state == qp.query() == state
    return qp


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
@pytest.mark.parametrize("state", list(QpState), ids=lambda state: state.name)
def test_driver_and_card_allow_the_same_transitions(pes, monkeypatch, state, command):
    """The driver does not send a forbidden command. If it is sent anyway, the card refuses it, and nothing changes."""
    adapter = Wrapped(pes[0].hca)
    peer = make(pes[1])
    qp = bring_to(state, make(pes[0], adapter=adapter), peer)
    if (state, command) in TRANSITIONS:
        move(qp, command, peer)
        assert qp.state == TRANSITIONS[state, command] == qp.query()
        return
    before = list(adapter.sent)
    name = commands.command_name(command)
    with pytest.raises(TransportError, match=rf"^QP {qp.qpn:#x}: {name} of a QP in {state.name}: \w+") as caught:
        move(qp, command, peer)
    assert not isinstance(caught.value, CommandError)
    assert (adapter.sent, qp.state) == (before, state)
    monkeypatch.setattr(queue_pair, "transition", lambda command, state: ERR)
    with pytest.raises(CommandError) as refused:
        move(qp, command, peer)
    assert (refused.value.opcode, refused.value.status) == (command, Status.BAD_QP_STATE)
    assert Why(refused.value.syndrome) == Why.TRANSITION
    assert str(refused.value) == f"{name} failed: BAD_QP_STATE (bad QP state), syndrome 0x420: the QP's state does not allow the command"
    assert qp.state == qp.query() == state


def test_connect_stops_at_a_refused_transition(pes):
    """The error has the card's message, and the driver knows the state that was reached."""
    qp = make(pes[0])
    with pytest.raises(CommandError, match=r"^INIT2RTR_QP failed: BAD_PARAM \(bad parameter\), syndrome 0x421: remote_qpn must not be 0$"):
        qp.connect(0, PORT, PORT)
    assert (qp.state, qp.query()) == (INIT, INIT)
    qp.reset()
    qp.connect(qp.qpn, PORT, PORT)


def test_a_state_without_a_command():
    """For example SQER: real cards have states to which no command here leads."""
    _, qp = on_paper(QUERY_QP={"qpc": {"state": 4}})
    with pytest.raises(TransportError, match=r"^QP 0x66: QUERY_QP returns state 0x4, to which no command of this driver leads$"):
        qp.query()
    assert qp.state == RST


# ------------------------------------------------------------------------------------------------------------- making, destroying


@pytest.mark.parametrize(
    ("wrong", "command", "why"),
    [
        ({"umem_id": 0xBAD}, Command.CREATE_CQ, Why.UMEM),
        ({"queues": Queues(0, rig.QUEUES, 64)}, Command.CREATE_CQ, Why.UMEM_BOUNDS),
        ({"queues": Queues(0, 16384, rig.QUEUES - 8)}, Command.CREATE_CQ, Why.UMEM_BOUNDS),
        ({"queues": Queues(0, 16384, 60)}, Command.CREATE_CQ, Why.ALIGNMENT),
        ({"queues": Queues(0, 16384 + 64, 64)}, Command.CREATE_CQ, Why.UMEM_PAGE),
        ({"pdn": 0xBAD}, Command.CREATE_QP, Why.PD),
        ({"queues": Queues(rig.QUEUES - 4096, 0, 64)}, Command.CREATE_QP, Why.UMEM_BOUNDS),
        ({"queues": Queues(2048, 16384, 16448)}, Command.CREATE_QP, Why.UMEM_PAGE),
    ],
    ids=lambda value: value.name if isinstance(value, Command | Why) else None,
)
def test_a_constructor_that_the_card_refuses_leaves_nothing(pes, observer, wrong, command, why):
    before = objects(observer)
    with pytest.raises(CommandError) as refused:
        make(pes[0], **wrong)
    assert (refused.value.opcode, Why(refused.value.syndrome)) == (command, why)
    assert str(refused.value).startswith(f"{command.name} failed: ")
    assert str(refused.value).endswith(f", syndrome {why:#x}: {command_text(why)}")
    assert objects(observer) == before
    assert make(pes[0]).query() == RST


@pytest.mark.parametrize("call", ["alloc_uar", "query_eqn", "command"])
def test_a_constructor_whose_adapter_breaks_leaves_nothing(pes, observer, monkeypatch, call):
    def gone(*arguments):
        raise TransportError("the software NIC is gone")

    before = objects(observer)
    adapter = Wrapped(pes[0].hca)
    setattr(adapter, call, gone)
    with pytest.raises(TransportError, match="is gone"):
        make(pes[0], adapter=adapter)
    assert objects(observer) == before


@pytest.mark.parametrize("state", list(QpState), ids=lambda state: state.name)
def test_destroyed_in_every_state(pes, observer, state):
    peer = make(pes[1])
    before = objects(observer)
    bring_to(state, make(pes[0]), peer).destroy()
    assert objects(observer) == before


def test_a_destroyed_qp_refuses_calls(pes):
    adapter = Wrapped(pes[0].hca)
    qp = make(pes[0], adapter=adapter)
    qp.destroy()
    sent = list(adapter.sent)
    assert sent[-2:] == [Command.DESTROY_QP, Command.DESTROY_CQ]
    calls = {
        "DESTROY_QP": qp.destroy,
        "QUERY_QP": qp.query,
        "2ERR_QP": qp.to_error,
        "2RST_QP": qp.reset,
        "RST2INIT_QP": lambda: qp.connect(1, PORT, PORT),
        "INIT2RTR_QP": lambda: qp.init2rtr(1, PORT, PORT),
        "RTR2RTS_QP": qp.rtr2rts,
    }
    for name, call in calls.items():
        with pytest.raises(TransportError, match=rf"^QP {qp.qpn:#x} is destroyed, so {name} cannot be executed$"):
            call()
    assert adapter.sent == sent


def test_destroy_tries_everything_and_raises_the_first_error(pes, observer):
    """A CQ in use also keeps its UAR, but the QP is destroyed; the rest is destroyed with the PE."""
    qp = make(pes[0])
    guest = rig.QP(pes[0], cq=Poster(pes[0], qp))  # another QP completes to the same CQ
    with pytest.raises(CommandError, match=r"^DESTROY_CQ failed: RES_BUSY \(resource busy\), syndrome 0x403: a QP completes to the CQ$"):
        qp.destroy()
    assert [entry["qpn"] for entry in observer.counters()["qps"]] == [guest.qpn]
    with pytest.raises(TransportError, match="is destroyed"):
        qp.destroy()


# -------------------------------------------------------------------------------------------------------------------- capabilities


def editing(**edits):
    """Return an edit of QUERY_HCA_CAP's output that sets capabilities."""

    def edit(command, values, outbox):
        if command != Command.QUERY_HCA_CAP:
            return outbox
        table = commands.output_table(command, values["op_mod"])
        here = {name: value for name, value in edits.items() if name in table["capability"].table.fields}
        return fields.fill(table, {"capability": here}, bytearray(outbox))

    return edit


@pytest.mark.parametrize(
    ("depth", "edits", "text"),
    [
        (128, {"cqe_version": 0}, "cqe_version is 0, but must be 1: CQEs that carry qpc.user_index"),
        (128, {"cq_oi": 0}, "cq_oi is 0, but must be 1: CQs that ignore overrun, because no consumer index is reported"),
        (1024, {"log_max_qp_sz": 9}, "log_max_qp_sz is 9, but must be 10 for PGAS_QP_DEPTH=1024"),
        (128, {"log_max_msg": 29}, "log_max_msg is 29, but must be 30 for WQEs of up to 1073741824 bytes"),
        (128, {"atomic": 0}, "atomic is 0, but must be 1: atomics"),
        (128, {"atomic_operations": 7}, "atomic_operations is 7, but must be 15: CAS, FA, and both masked forms"),
        (128, {"atomic_size_qp": 8}, "atomic_size_qp is 8, but must be 12: operands of 4 and 8 bytes"),
        (128, {"atomic_size_qp": 4}, "atomic_size_qp is 4, but must be 12: operands of 4 and 8 bytes"),
        (
            128,
            {"atomic_req_8B_endianness_mode": 2},
            "atomic_req_8B_endianness_mode is 2, but must be 0 or 1: old values of 8 bytes are big-endian or host-endian",
        ),
        (
            128,
            {"cqe_version": 0, "atomic_operations": 3},
            "cqe_version is 0, but must be 1: CQEs that carry qpc.user_index; atomic_operations is 3, but must be 15: CAS, FA, and both "
            "masked forms",
        ),
    ],
)
def test_caps_that_do_not_suffice(pes, depth, edits, text):
    with pytest.raises(TransportError) as caught:
        check_caps(Wrapped(pes[0].hca, editing(**edits)), 2, 2, depth)
    assert str(caught.value) == f"softhca lacks capabilities: {text}"


@pytest.mark.parametrize(
    ("sharing", "n_pes", "num_rc", "edits", "wanted", "there"),
    [(9, 9, 64, {}, 5184, 4096), (3, 3, 1, {"log_max_qp": 3}, 9, 8), (1, 72, 64, {}, 4608, 4096)],
)
def test_more_qps_than_the_caps_allow(pes, sharing, n_pes, num_rc, edits, wanted, there):
    """QPs of PEs that share a card are counted together. Of a real device, only this PE's: 400 PEs have one each."""
    with pytest.raises(TransportError) as caught:
        check_caps(Wrapped(pes[0].hca, editing(**edits)), n_pes, num_rc, 128, sharing)
    assert str(caught.value) == (
        f"PGAS_IBGDA_NUM_RC_PER_PE={num_rc} is {wanted} queue pairs from {sharing} to {n_pes} PEs, but softhca has {there}"
    )


@pytest.mark.parametrize(
    "edits",
    [
        {"log_max_qp": 3},
        {"log_max_qp_sz": 7},
        {"atomic_size_qp": 0xFF},
        {"atomic_operations": 0xFFFF},
        {"atomic_req_8B_endianness_mode": 0},
        {"log_max_msg": 31},
    ],
)
def test_caps_that_just_suffice(pes, edits):
    check_caps(Wrapped(pes[0].hca, editing(**edits)), 2, 2, 128)


@pytest.mark.parametrize(("mode", "swapped"), [(0, True), (1, False)])
def test_the_order_of_old_values(pes, mode, swapped):
    assert returns_big_endian(Wrapped(pes[0].hca, editing(atomic_req_8B_endianness_mode=mode))) == swapped


def test_caps_that_cannot_be_queried(pes):
    def refuse(command, values, outbox):
        return commands.build_output(command, status=Status.BAD_OP, syndrome=0x123, op_mod=values["op_mod"])  # not the soft HCA's code

    with pytest.raises(CommandError, match=r"^QUERY_HCA_CAP failed: BAD_OP \(bad operation\), syndrome 0x123$"):
        check_caps(Wrapped(pes[0].hca, refuse), 2, 2, 128)
