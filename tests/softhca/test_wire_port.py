"""Two software NICs of one machine with ports on two loopback addresses: commands, sockets, and data between their processes."""

import os
import random
import socket
import time

import pytest
import rig
import wqes as wqe
from rig import QP, connect, wait_until

from pgas.base.backend import SIMULATOR
from pgas.base.errors import TransportError
from pgas.transports.mlx5.capabilities import CapType, PortType, cap_op_mod
from pgas.transports.mlx5.commands import Command, CommandError
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca.process import client
from pgas.transports.softhca.process.messages import RequestKind
from pgas.transports.softhca.syndromes import Vendor

if not SIMULATOR:
    pytest.skip("the wire is part of the cpu engine", allow_module_level=True)

#: Of this process: other processes of pytest have ports at the same time.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
ADDRESSES = f"127.0.{WORKER}.77", f"127.0.{WORKER}.78"


@pytest.fixture(scope="module")
def cards():
    """Two cards."""
    processes = [client.start(1 << 15, net=address) for address in ADDRESSES]
    yield processes
    for process in processes:
        process.end()


@pytest.fixture
def pes(cards):
    """One PE of each card."""
    made = [rig.PE(card.name, number) for number, card in enumerate(cards)]
    for _ in range(256):  # registers of both cards are mapped in this process, at addresses that depend on their numbers only
        made[1].hca._connection.ask(RequestKind.ALLOC_UAR, [0])
    yield made
    for pe in made:
        pe.close()


def gid(pe):
    return int.from_bytes(pe.hca.query_port().gid, "big")


def joined(pes, psns=(0xFFFFFE, 77), **qpc):
    """Return a connected QP of each PE."""
    a, b = QP(pes[0]), QP(pes[1])
    for qp, peer, receive in ((a, b, psns[1]), (b, a, psns[0])):
        path = {"vhca_port_num": 1, "rgid_rip": gid(peer.pe)}
        qp.init().rtr(peer, next_rcv_psn=receive, primary_address_path=path)
    for qp, send in zip((a, b), psns, strict=True):
        qp.rts(next_send_psn=send, **qpc)
    return a, b


def port_of(card):
    observer = client.Observer(card.name)
    try:
        return observer.counters()["port"]
    finally:
        observer.close()


def test_the_port_is_a_roce_port(pes):
    port = pes[0].hca.query_port()
    assert (port.link_layer, port.active_mtu, port.gid) == ("Ethernet", 5, bytes(10) + b"\xff\xff" + socket.inet_aton(ADDRESSES[0]))
    address = pes[0].command(Command.QUERY_ROCE_ADDRESS, roce_address_index=0, vhca_port_num=1)["roce_address"]
    assert (address["source_l3_address"], address["roce_version"], address["roce_l3_type"]) == (int.from_bytes(port.gid, "big"), 2, 0)
    assert pes[0].refused(Command.QUERY_ROCE_ADDRESS, roce_address_index=1, vhca_port_num=1)[1] == "GID_INDEX"
    assert pes[0].command(Command.QUERY_HCA_CAP, cap_op_mod(CapType.GENERAL))["capability"]["port_type"] == PortType.ETHERNET
    qp = QP(pes[0]).init()
    with pytest.raises(CommandError, match="syndrome 0x42a"):
        qp.rtr(5, primary_address_path={"vhca_port_num": 1, "rgid_rip": 1 << 120})


def test_keys_are_random(pes):
    keys = [pes[0].hca.register_mr(pes[0].heap, 4096, pes[0].pdn, rig.ALL)[0] for _ in range(16)]
    assert len({key >> 8 & 0x3FFF for key in keys}) > 12
    assert len({key >> 22 for key in keys}) > 8
    for key in keys:
        pes[0].hca.deregister_mr(key)


def test_writes_reads_and_atomics(pes, cards):
    a, b = joined(pes)
    data = random.Random(1).randbytes(1 << 20)
    pes[0].write(pes[0].heap, data)
    pes[1].write(pes[1].heap, bytes(len(data)))
    a.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, len(data))
    assert pes[1].read(pes[1].heap, len(data)) == data
    pes[0].write(pes[0].heap, bytes(len(data)))
    a.run(wqe.read, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, len(data))
    assert pes[0].read(pes[0].heap, len(data)) == data
    pes[1].word(0, 40)
    a.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap + 8, pes[0].key, 2)
    assert (pes[1].word(0), pes[0].word(8)) == (42, 40)
    b.run(wqe.write_inline, pes[0].heap, pes[0].key, b"inline")
    assert pes[0].read(pes[0].heap, 6) == b"inline"
    assert a.counters()["errors"] == b.counters()["errors"] == 0
    port = port_of(cards[0])
    assert port["address"] == ADDRESSES[0]
    assert port["sent_packets"] >= 257
    assert port["bad_icrc"] == port["bad_psn"] == 0


def test_a_peer_on_the_same_card_takes_the_short_way(pes, cards):
    path = {"primary_address_path": {"vhca_port_num": 1, "rgid_rip": gid(pes[0])}}
    before = port_of(cards[0])["sent_packets"]
    a, _ = connect(QP(pes[0]), QP(pes[0]), **path)
    pes[0].word(0, 7)
    a.run(wqe.write, pes[0].heap + 64, pes[0].key, pes[0].heap, pes[0].key, 8)
    assert pes[0].word(64) == 7
    assert port_of(cards[0])["sent_packets"] == before


@pytest.mark.parametrize("psns", [(1, 1), (0, 0)], ids=["wrong PSN", "right PSN"])
def test_a_wrong_psn_ends_like_on_one_card(pes, psns):
    a, b = QP(pes[0]), QP(pes[1])
    for qp, peer in ((a, b), (b, a)):
        path = {"vhca_port_num": 1, "rgid_rip": gid(peer.pe)}
        qp.init().rtr(peer, next_rcv_psn=0x40_0000 * psns[0], primary_address_path=path)
    for qp in (a, b):
        qp.rts(next_send_psn=0, retry_count=1, primary_address_path={"ack_timeout": 14})
    args = (wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
    if psns[0]:
        assert a.fail(*args) == (Syndrome.TRANSPORT_RETRY_EXC_ERR, Vendor.NO_ANSWER)
    else:
        a.run(*args)


def test_remote_errors_move_both_ends(pes):
    a, b = joined(pes)
    assert a.fail(wqe.write, pes[1].heap, pes[1].key ^ 0x100, pes[0].heap, pes[0].key, 8) == (
        Syndrome.REMOTE_ACCESS_ERR,
        Vendor.REFUSED_REMOTELY,
    )
    assert (a.state().name, b.state().name) == ("ERR", "ERR")


def test_a_destroyed_peer_does_not_answer(pes):
    a, b = joined(pes, retry_count=1, primary_address_path={"ack_timeout": 14})
    b.destroy()
    began = time.monotonic()
    assert a.fail(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)[0] == Syndrome.TRANSPORT_RETRY_EXC_ERR
    assert time.monotonic() - began < 5


def test_strangers_are_dropped_and_counted(pes, cards):
    joined(pes)
    draw, before = random.Random(5), pes[1].read(pes[1].heap, 1 << 16)
    port = port_of(cards[1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(1000):
            stranger.sendto(draw.randbytes(draw.randrange(200)), (ADDRESSES[1], 4791))
    wait_until(lambda: port_of(cards[1])["received_packets"] > port["received_packets"], "nothing came")
    time.sleep(0.1)
    now = port_of(cards[1])
    dropped = sum(now[name] - port[name] for name in now if name.startswith("bad_"))
    assert dropped == now["received_packets"] - port["received_packets"] > 0
    assert pes[1].read(pes[1].heap, 1 << 16) == before


def test_addresses_that_are_not_there(cards):
    for net, why in (
        ("192.0.2.1", "does not have this address; it has .*lo 127.0.0.1"),
        ("nowhere0", "no such interface with an address"),
    ):
        with pytest.raises(TransportError, match=why):
            client.start(1, net=net)
    with pytest.raises(TransportError, match="cuda engine of the software NIC has no wire"):
        client.start(1, net="lo", engine="cuda")


def test_a_second_job_with_the_same_addresses(cards):
    """Its cards have other UDP ports, which their peers learn."""
    others = [client.start(1 << 15, net=address) for address in ADDRESSES]
    pes = [rig.PE(card.name, number) for number, card in enumerate(others)]
    try:
        for _ in range(512):
            pes[1].hca._connection.ask(RequestKind.ALLOC_UAR, [0])
        ports = [port_of(card)["udp_port"] for card in others]
        assert 4791 not in ports
        assert [port_of(card)["udp_port"] for card in cards] == [4791, 4791]
        a, b = QP(pes[0]), QP(pes[1])
        for qp, peer in ((a, b), (b, a)):
            mac = qp.pe.hca.destination_mac(0, peer.pe.hca.query_port(), None)
            path = {"vhca_port_num": 1, "rgid_rip": gid(peer.pe), "rmac_47_32": 0x0200, "rmac_31_0": int.from_bytes(mac[2:], "big")}
            qp.init().rtr(peer, primary_address_path=path)
        for qp in (a, b):
            qp.rts()
        pes[0].word(0, 5)
        a.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
        b.run(wqe.fetch_add, pes[0].heap, pes[0].key, pes[1].heap + 8, pes[1].key, 1)
        assert (pes[1].word(0), pes[0].word(0)) == (5, 6)
    finally:
        for pe in pes:
            pe.close()
        for card in others:
            card.end()


def test_an_idle_card_costs_little(cards):
    """It sleeps in the kernel between its looks at doorbells."""

    def cpu_s(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    time.sleep(1)
    before = cpu_s(cards[0].pid)
    time.sleep(2)
    assert cpu_s(cards[0].pid) - before < 0.5
