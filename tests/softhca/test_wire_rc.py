"""RC between two cards over a link in memory: data, order of completions, errors at both ends, and all of it on a bad link."""

import random
import struct
import zlib

import numpy as np
import pytest
import wqes as wqe

from pgas.base.backend import SIMULATOR

if not SIMULATOR:
    pytest.skip("the wire is part of the cpu engine", allow_module_level=True)

from wire_link import KEY, Faults, Node, pair

from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.syndromes import Vendor

LINKS = {
    "good": Faults(),
    "loss": Faults(loss=0.05),
    "reorder": Faults(reorder=0.2),
    "repeat": Faults(repeat=0.3),
    "corrupt": Faults(corrupt=0.05),
    "late": Faults(delay=200, loss=0.01),
    "all": Faults(loss=0.03, reorder=0.1, repeat=0.1, corrupt=0.03, delay=3),
}


def fill(node, start, nbytes, seed):
    node.memory[start : start + nbytes] = np.frombuffer(random.Random(seed).randbytes(nbytes), np.uint8)


def word(node, offset):
    return int(node.memory[offset : offset + 8].view("<u8")[0])


@pytest.mark.parametrize("mtu", [1024, 4096])
@pytest.mark.parametrize("faults", LINKS.values(), ids=LINKS)
def test_writes_and_reads_of_any_length(faults, mtu):
    a, b, link = pair(faults=faults, mtu=mtu, timeout_ns=10**9)
    sizes = [1, 3, 8, mtu - 1, mtu, mtu + 1, 5 * mtu + 7, 40 * mtu]
    fill(a, 0, 1 << 18, 1)
    fill(b, 1 << 19, 1 << 18, 2)
    at, indices = 0, []
    for nbytes in sizes:
        indices.append(a.post(wqe.write, b.heap + at, KEY, a.heap + at, KEY, nbytes))
        indices.append(a.post(wqe.read, b.heap + (1 << 19) + at, KEY, a.heap + (1 << 19) + at, KEY, nbytes))
        at += nbytes + at % 8
    done = link.completed(a, len(indices))
    assert [(found.wqe_counter, found.is_error) for found in done] == [(index, False) for index in indices]
    at = 0
    for nbytes in sizes:
        assert (b.memory[at : at + nbytes] == a.memory[at : at + nbytes]).all(), nbytes
        start = (1 << 19) + at
        assert (a.memory[start : start + nbytes] == b.memory[start : start + nbytes]).all(), nbytes
        at += nbytes + at % 8


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("faults", LINKS.values(), ids=LINKS)
def test_nothing_is_applied_twice(faults, seed):
    """Both sides add to each other; every old value is seen once, in order, and the sums are exact."""
    a, b, link = pair(faults=faults, seed=seed, timeout_ns=10**9)
    nodes, number = ((a, b), (b, a)), 300
    draw = random.Random(seed)
    seen = {a: [], b: []}
    wanted = {a: [], b: []}
    for start in range(0, number, 50):
        for node, peer in nodes:
            total = sum(wanted[node])
            for k in range(50):
                value = draw.randrange(1, 1000)
                wanted[node].append(value)
                build, extra = (wqe.fetch_add, (value,)) if k % 3 else (wqe.masked_fetch_add, (8, value))
                node.post(build, peer.heap + 64, KEY, node.heap + 4096 + 8 * k, KEY, *extra)
                seen[node].append(total)
                total += value
        for node, _ in nodes:
            done = link.completed(node, 50)
            assert not any(found.is_error for found in done)
            assert [word(node, 4096 + 8 * k) for k in range(50)] == seen[node][start : start + 50]
    assert word(b, 64) == sum(wanted[a])
    assert word(a, 64) == sum(wanted[b])
    counted = [node.records.counters() for node in (a, b)]
    if faults.loss >= 0.03:
        assert all(counters["retransmissions"] for counters in counted)
    if faults.repeat:
        assert all(counters["duplicates"] for counters in counted)
    if faults.corrupt:
        assert all(counters["bad_icrc"] for counters in counted)


@pytest.mark.parametrize("faults", LINKS.values(), ids=LINKS)
def test_order_of_data_and_flag(faults):
    """A WRITE with its flag in the next WQE, an atomic, or a fenced WRITE of what a READ fetched."""
    a, b, link = pair(faults=faults, timeout_ns=10**9)
    for turn in range(1, 30):
        fill(a, 0, 5000, turn)
        a.post(wqe.write, b.heap, KEY, a.heap, KEY, 5000, signal=False)
        a.post(wqe.fetch_add, b.heap + 8192, KEY, a.heap + 8192, KEY, 1, signal=False)
        a.post(wqe.read, b.heap, KEY, a.heap + 16384, KEY, 5000, signal=False)
        a.post(wqe.write, b.heap + 32768, KEY, a.heap + 16384, KEY, 5000, fm=int(wqe.Fm.FENCE))
        saw = []

        def flag(turn=turn, saw=saw):
            if word(b, 8192) == turn and not saw:
                saw.append(b.memory[:5000].copy())
            return bool(a.completions())

        link.until(flag)
        assert (saw[0] == a.memory[:5000]).all()
        assert (b.memory[32768:37768] == a.memory[:5000]).all()


def write_imm(index, qpn, raddr, addr, nbytes, imm, *, fm_ce_se):
    """Build a WRITE with immediate data."""
    data = bytearray(wqe.write(index, qpn, raddr, KEY, addr, KEY, nbytes, fm_ce_se=fm_ce_se))
    data[3], data[12:16] = wqe.Opcode.RDMA_WRITE_IMM, imm.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("faults", LINKS.values(), ids=LINKS)
def test_sends_and_writes_with_immediate_data(faults):
    a, b, link = pair(faults=faults, timeout_ns=10**9)
    fill(a, 0, 1 << 16, 5)
    sizes = [0, 1, 1023, 1024, 1025, 8000] * 3
    for k in range(len(sizes)):
        b.post_receive(b.heap + (k << 13), 1 << 13)
    for k, nbytes in enumerate(sizes):
        if k % 3 == 0:
            a.post(write_imm, b.heap + (k << 13), a.heap + k, max(1, nbytes), 100 + k)
        else:
            a.post(wqe.send, a.heap + k, KEY, nbytes, imm=None if k % 3 == 1 else 100 + k)
    done = link.completed(a, len(sizes))
    assert not any(found.is_error for found in done)
    came = b.receptions()
    kinds = [CqeOpcode.RESP_WR_IMM, CqeOpcode.RESP_SEND, CqeOpcode.RESP_SEND_IMM] * 6
    assert [(found.opcode, found.byte_cnt) for found in came] == list(
        zip(kinds, [max(n, k % 3 == 0) for k, n in enumerate(sizes)], strict=True)
    )
    assert [found.imm for found in came] == [0 if k % 3 == 1 else 100 + k for k in range(len(sizes))]
    for k, nbytes in enumerate(sizes):
        assert (b.memory[k << 13 : (k << 13) + nbytes] == a.memory[k : k + nbytes]).all()


def test_the_fields_of_the_wire_are_in_the_rows():
    """They are not among those that the cuda engine copies."""
    assert t.QP_WIRE + 8 <= t.QP_ROW
    assert t.CONTROL.itemsize >= t.CTL_WIRE + 8
    assert 8 * len(t.QP.names) <= t.QP_WIRE


def ended(node):
    """Return the syndrome and vendor syndrome of a node's first error, and the node's state."""
    state = int(node.qp["state"])
    return int(node.qp["error_syndrome"]), int(node.qp["error_vendor"]), t.ERR if node.qp["broken"] else state


@pytest.mark.parametrize("faults", [LINKS["good"], LINKS["loss"]], ids=["good", "loss"])
@pytest.mark.parametrize(
    ("spoil", "syndrome"),
    [
        (lambda b: b.tables.publish_key(KEY >> 8 & t.MKEY_ROWS_MASK, 0), Syndrome.REMOTE_ACCESS_ERR),
        (lambda b: b.key.__setitem__("nbytes", 4096), Syndrome.REMOTE_ACCESS_ERR),
        (lambda b: b.key.__setitem__("pd", 8), Syndrome.REMOTE_ACCESS_ERR),
        (lambda b: b.qp.__setitem__("access", t.OP_READ), Syndrome.REMOTE_INVAL_REQ_ERR),
    ],
    ids=["no key", "bounds", "domain", "not permitted"],
)
def test_remote_errors(faults, spoil, syndrome):
    """The same at both ends as on one card: earlier WQEs complete, this one fails, later ones are flushed, and the peer is in ERR, too."""
    a, b, link = pair(faults=faults, timeout_ns=10**9)
    good = [a.post(wqe.read, b.heap, KEY, a.heap + 4096, KEY, 8) for _ in range(3)]
    assert [found.is_error for found in link.completed(a, len(good))] == [False] * 3
    spoil(b)
    bad = a.post(wqe.write, b.heap + 4096, KEY, a.heap, KEY, 3000, signal=False)
    later = [a.post(wqe.write, b.heap, KEY, a.heap, KEY, 8, signal=False) for _ in range(3)]
    done = link.completed(a, 4)
    assert [found.wqe_counter for found in done] == [bad, *later]
    assert (done[0].syndrome, done[0].vendor_err_synd) == (syndrome, Vendor.REFUSED_REMOTELY)
    assert [found.syndrome for found in done[1:]] == [Syndrome.WR_FLUSH_ERR] * 3
    assert ended(a) == (syndrome, Vendor.REFUSED_REMOTELY, t.ERR)
    assert ended(b)[2] == t.ERR
    assert int(b.qp["errors"]) == 1


@pytest.mark.parametrize(
    ("build", "extra", "syndrome"),
    [
        (wqe.read, (8,), Syndrome.REMOTE_ACCESS_ERR),
        (wqe.read, (40000,), Syndrome.REMOTE_ACCESS_ERR),
        (wqe.fetch_add, (1,), Syndrome.REMOTE_ACCESS_ERR),
        (wqe.masked_fetch_add, (4, 1), Syndrome.REMOTE_ACCESS_ERR),
    ],
)
def test_remote_errors_of_requests_for_data(build, extra, syndrome):
    a, b, link = pair()
    a.post(build, b.heap, KEY + 0x100, a.heap, KEY, *extra)
    assert link.completed(a, 1)[0].syndrome == syndrome
    assert ended(b)[2] == t.ERR


def test_misaligned_atomics_are_invalid():
    a, b, link = pair()
    a.post(wqe.fetch_add, b.heap + 4, KEY, a.heap, KEY, 1)
    assert link.completed(a, 1)[0].syndrome == Syndrome.REMOTE_INVAL_REQ_ERR


def test_a_key_that_is_destroyed_while_its_memory_is_sent():
    """The WQE fails where it is, and nothing of that memory is read anymore."""
    a, b, link = pair(faults=Faults(delay=20))
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 300_000)
    link.run(30)
    a.tables.publish_key(KEY >> 8 & t.MKEY_ROWS_MASK, 0)
    done = link.completed(a, 1)[0]
    assert done.syndrome == Syndrome.LOCAL_PROT_ERR


def test_masked_atomics():
    """Those of 4 and 8 bytes, with the old value in the format of the card."""
    a, b, link = pair()
    b.memory[:8].view("<u8")[0] = 0x1122334455667788
    a.post(wqe.masked_compare_swap, b.heap, KEY, a.heap + 64, KEY, 8, 0x88, 0xABCD, 0xFF, 0xFFFF)
    a.post(wqe.masked_compare_swap, b.heap + 4, KEY, a.heap + 72, KEY, 4, 0, 0xEE, 0, 0xFF)
    a.post(wqe.masked_fetch_add, b.heap + 4, KEY, a.heap + 76, KEY, 4, 1, 0xFFFFFFFF)
    assert not any(found.is_error for found in link.completed(a, 3))
    assert word(b, 0) == 0x112233EF5566ABCD
    assert word(a, 64) == 0x1122334455667788
    assert [int(value) for value in a.memory[72:80].view(">u4")] == [0x11223344, 0x112233EE]


def test_many_segments_and_inline_data():
    a, b, link = pair(mtu=1024)
    fill(a, 0, 1 << 14, 9)
    segments = [(a.heap + 100 * k, KEY, 90 + k) for k in range(30)]

    def gathered(index, qpn, *, fm_ce_se):
        head = bytearray(wqe.write(index, qpn, b.heap, KEY, 0, 0, 1, fm_ce_se=fm_ce_se)[:32])
        head[7] = 2 + len(segments)
        return bytes(head) + b"".join(wqe.receive(segment) for segment in segments)

    a.post(gathered)
    a.post(wqe.write_inline, b.heap + 8192, KEY, bytes(range(200)))
    assert not any(found.is_error for found in link.completed(a, 2))
    expected = b"".join(a.memory[100 * k : 100 * k + 90 + k].tobytes() for k in range(30))
    assert b.memory[: len(expected)].tobytes() == expected
    assert b.memory[8192:8392].tobytes() == bytes(range(200))


def test_a_peer_that_does_not_answer():
    a, b, link = pair(faults=Faults(down=range(20, 1 << 30)), timeout_ns=50_000_000, retries=3)
    assert not link.completed(a, a.post(wqe.write, b.heap, KEY, a.heap, KEY, 8) + 1)[0].is_error
    link.run(20)
    begin = link.steps
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 8)
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 8)
    done = link.completed(a, 2)
    assert [found.syndrome for found in done] == [Syndrome.TRANSPORT_RETRY_EXC_ERR, Syndrome.WR_FLUSH_ERR]
    assert done[0].vendor_err_synd == Vendor.NO_ANSWER
    assert 0.2 <= (link.steps - begin) * 1e-4 < 0.3
    assert ended(b)[2] == t.RTS


def test_a_link_that_comes_back():
    a, b, link = pair(faults=Faults(down=range(30, 2000)), timeout_ns=100_000_000)
    fill(a, 0, 1 << 18, 3)
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 1 << 18)
    assert not link.completed(a, 1)[0].is_error
    assert (b.memory[: 1 << 18] == a.memory[: 1 << 18]).all()


def test_a_receiver_that_is_not_ready():
    a, b, link = pair(rnr_retry=7)
    a.post(wqe.send, a.heap, KEY, 3000)
    link.run(500)
    assert a.completions() == []
    assert b.records.counters()["rnr_naks"] > 10
    b.post_receive(b.heap, 4096)
    assert not link.completed(a, 1)[0].is_error
    a, b, link = pair(rnr_retry=3)
    a.post(wqe.send, a.heap, KEY, 8)
    done = link.completed(a, 1)[0]
    assert (done.syndrome, done.vendor_err_synd) == (Syndrome.RNR_RETRY_EXC_ERR, Vendor.NOT_READY)
    assert b.records.counters()["rnr_naks"] == 4
    assert ended(b)[2] == t.RTS


def test_a_receive_wqe_that_is_too_short():
    a, b, link = pair()
    b.post_receive(b.heap, 2000)
    a.post(wqe.send, a.heap, KEY, 3000)
    done = link.completed(a, 1)[0]
    assert done.syndrome == Syndrome.REMOTE_INVAL_REQ_ERR
    came = b.receptions()
    assert [(found.opcode, found.syndrome) for found in came] == [(CqeOpcode.RESP_ERR, Syndrome.LOCAL_LENGTH_ERR)]


def test_a_local_error_waits_for_earlier_wqes():
    a, b, link = pair(faults=Faults(delay=50))
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 30000)
    a.post(wqe.write, b.heap, KEY, a.heap, KEY + 1, 8)
    a.post(wqe.nop)
    done = link.completed(a, 3)
    assert [found.syndrome if found.is_error else 0 for found in done] == [0, Syndrome.LOCAL_PROT_ERR, Syndrome.WR_FLUSH_ERR]
    assert ended(b)[2] == t.RTS


def test_packets_are_valid_for_scapy():
    """Every packet of a job on a bad link has the fields and the ICRC that scapy computes."""
    pytest.importorskip("scapy", reason="capability missing: scapy")
    from scapy.all import IP, UDP
    from scapy.contrib import roce

    packets = []
    a, b, link = pair(
        faults=LINKS["all"], watch=lambda sender, to, data: packets.append((sender.address, to.address, data)), timeout_ns=10**9
    )
    b.post_receive(b.heap, 8192)
    a.post(wqe.send, a.heap, KEY, 5001, imm=5)
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 3001)
    a.post(wqe.read, b.heap, KEY, a.heap, KEY, 7003)
    a.post(wqe.compare_swap, b.heap, KEY, a.heap, KEY, 1, 2)
    link.completed(a, 4)
    kinds = set()
    for source, dest, data in packets:
        bth = roce.BTH(data)
        kinds.add(bth.opcode)
        assert (bth.version, bth.pkey, bth.migreq, bth.dqpn, bth.resv6) == (0, 0xFFFF, 1, b.qpn, 0)
        bth.icrc = None
        assert bytes(IP(src=source, dst=dest, id=0, flags="DF") / UDP(sport=4791, dport=4791) / bth)[-4:] == data[-4:]
    assert kinds >= {0, 1, 3, 6, 7, 8, 12, 13, 14, 15, 17, 18, 19}


def numbered(data, source, dest, identification):
    """Return a packet with the ICRC that an IPv4 identification gives it."""
    from scapy.all import IP, UDP
    from scapy.contrib import roce

    bth = roce.BTH(data)
    bth.icrc = None
    return bytes(IP(src=source, dst=dest, id=identification, flags="DF") / UDP(sport=4791, dport=4791) / bth)[28:]


def test_peers_with_identifications():
    """Packets of a peer that numbers its IP packets, like the kernel's Soft-RoCE, count, but not after unnumbered ones."""
    pytest.importorskip("scapy", reason="capability missing: scapy")
    packets = []
    a, b, link = pair(watch=lambda _, to, data: packets.append((to, data)))
    a.post(wqe.fetch_add, b.heap, KEY, a.heap, KEY, 1)
    link.completed(a, 1)
    request = next(data for to, data in packets if to is b)
    now = 10**9 + link.steps * 100_000
    for identification in (7, 0, 65535, 0, 0):
        assert len(b.turn([(a.address, numbered(request, a.address, b.address, identification))], now)) == 1
    assert b.turn([(a.address, numbered(request, a.address, b.address, 9))], now) == []
    counted = b.records.counters()
    assert (counted["duplicates"], counted["bad_icrc"], word(b, 0)) == (5, 1, 1)


@pytest.mark.parametrize("faults", ["good", "all"])
def test_packets_of_a_message_are_numbered(faults):
    """Two software NICs: packets of one length share a message, and have its identifications, on a good link and on a bad one."""
    pytest.importorskip("scapy", reason="capability missing: scapy")
    a, b, link = pair(faults=LINKS[faults], software=True, timeout_ns=10**9)
    a.memory[:200_000] = np.frombuffer(random.Random(3).randbytes(200_000), np.uint8)
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 200_000)
    a.post(wqe.write, b.heap + (1 << 18), KEY, a.heap, KEY, 8)
    link.completed(a, 2)
    assert (b.memory[:200_000] == a.memory[:200_000]).all()
    for message in a.messages:
        number = len(message)
        assert len({len(data) for data in message[:-1]} | {max(map(len, message))}) == 1, "only the last packet may be shorter"
        for i in {0, 1, number // 2, number - 1} & set(range(number)):
            assert numbered(message[i], a.address, b.address, i)[-4:] == message[i][-4:]
    assert 16 < max(map(len, a.messages)) <= 62, "61 packets of 1,040 bytes and a shorter one are below 65,507 bytes"
    assert b.records.counters()["bad_icrc"] == 0 or LINKS[faults].corrupt


def test_packets_to_other_peers_share_no_message():
    """Other devices see every packet by itself, with identification 0."""
    a, b, link = pair()
    a.post(wqe.write, b.heap, KEY, a.heap, KEY, 100_000)
    link.completed(a, 1)
    assert {len(message) for message in a.messages} == {1}


def test_identifications_of_a_software_nic():
    """Its packets have those of messages, which begin at 0 and may be lost; others do not count."""
    pytest.importorskip("scapy", reason="capability missing: scapy")
    packets = []
    a, b, link = pair(software=True, watch=lambda _, to, data: packets.append((to, data)))
    a.post(wqe.fetch_add, b.heap, KEY, a.heap, KEY, 1)
    link.completed(a, 1)
    request = next(data for to, data in packets if to is b)
    now = 10**9 + link.steps * 100_000
    for identification in (0, 1, 2, 0, 7, 8, 0, 63):
        assert len(b.turn([(a.address, numbered(request, a.address, b.address, identification))], now)) == 1
    for identification in (64, 1000, 65535):
        assert b.turn([(a.address, numbered(request, a.address, b.address, identification))], now) == []
    counted = b.records.counters()
    assert (counted["duplicates"], counted["bad_icrc"], word(b, 0)) == (8, 3, 1)


def test_strangers():
    """Packets of others, with a wrong PSN, or that are not packets, change nothing and are counted."""
    packets = []
    a, b, link = pair(watch=lambda _, to, data: packets.append((to, data)))
    a.post(wqe.fetch_add, b.heap, KEY, a.heap, KEY, 1)
    link.completed(a, 1)
    request = next(data for to, data in packets if to is b)
    before = b.memory.copy()
    stranger = Node("10.0.0.3")
    now = 10**9 + (link.steps + 1) * 100_000
    assert b.turn([(stranger.address, request)], now) == []
    assert b.turn([(a.address, request[:-1] + bytes([request[-1] ^ 1]))], now) == []
    assert b.turn([(a.address, b""), (a.address, b"x" * 40), (a.address, request[:10])], now) == []
    assert b.turn([(a.address, request[:5] + bytes(3) + request[8:])], now) == []
    counted = b.records.counters()
    assert [counted[name] for name in ("bad_source", "bad_icrc", "bad_format", "bad_qp")] == [1, 1, 3, 1]
    assert (b.memory == before).all()
    assert word(b, 0) == 1
    assert len(b.turn([(a.address, request)], now)) == 1, "a duplicate of an atomic gets the value that was kept"
    assert word(b, 0) == 1
    for udp, answers in ((4791, 1), (4792, 0)):  # of a software NIC, all packets come from one port
        b.connection["udp"] = udp
        assert len(b.turn([(a.address, request)], now)) == answers
    assert b.records.counters()["bad_source"] == 2


@pytest.mark.parametrize("turns", [300, pytest.param(20_000, marks=pytest.mark.slow)], ids=["15 thousand", "1 million"])
def test_random_packets_change_nothing(turns):
    """Damaged and random packets of the peer: none is applied."""
    packets = []
    a, b, link = pair(watch=lambda _, to, data: packets.append((to, data)))
    for build, extra in ((wqe.write, (3000,)), (wqe.read, (3000,)), (wqe.fetch_add, (1,))):
        a.post(build, b.heap, KEY, a.heap, KEY, *extra)
    link.completed(a, 3)
    draw, before = random.Random(11), b.memory.copy()
    valid = [data for to, data in packets if to is b]
    for turn in range(turns):
        inbound = []
        for _ in range(50):
            if draw.random() < 0.2:
                inbound.append((a.address, draw.randbytes(draw.randrange(100))))
                continue
            data = bytearray(draw.choice(valid))
            for _ in range(draw.randrange(1, 6)):
                data[draw.randrange(len(data))] = draw.getrandbits(8)
            inbound.append((a.address, bytes(data[: draw.randrange(len(data) + 1)] if draw.random() < 0.3 else data)))
        b.turn(inbound, 10**9 + (link.steps + turn) * 100_000)
    assert (b.memory == before).all()
    assert b.records.counters()["bad_icrc"] > 1000


@pytest.mark.parametrize("turns", [300, pytest.param(20_000, marks=pytest.mark.slow)], ids=["15 thousand", "1 million"])
def test_packets_that_are_well_formed_and_wrong(turns):
    """Requests of the peer with random fields and a right ICRC reach no memory outside what its keys permit, and no card ends."""
    packets = []
    a, b, link = pair(watch=lambda _, to, data: packets.append((to, data)))
    for build, extra in ((wqe.write, (3000,)), (wqe.read, (3000,)), (wqe.fetch_add, (1,)), (wqe.masked_fetch_add, (8, 1))):
        a.post(build, b.heap, KEY, a.heap, KEY, *extra)
    link.completed(a, 4)
    valid = [data for to, data in packets if to is b]
    begin, end = 1 << 18, 1 << 19
    b.key["start"], b.key["address"], b.key["nbytes"] = b.heap + begin, b.heap + begin, end - begin
    draw, before = random.Random(12), b.memory.copy()
    answers = executed = 0
    for turn in range(turns):
        inbound, expected = [], int(b.connection["resp_expected"])
        for k in range(50):
            data = bytearray(draw.choice(valid)[:-4])
            for _ in range(draw.randrange(3)):
                data[draw.randrange(12, len(data))] = draw.getrandbits(8)
            data[0] = draw.choice((data[0], draw.getrandbits(8), draw.randrange(0x18)))
            data[9:12] = ((expected + k * draw.choice((0, 1)) + draw.choice((0, 0, 0, -1, 1))) & 0xFFFFFF).to_bytes(3, "big")
            if len(data) >= 28 and draw.random() < 0.8:
                data[12:20] = (b.heap + draw.randrange(1 << 20)).to_bytes(8, "big")
            inbound.append((a.address, signed(a.address, b.address, bytes(data))))
        answers += len(b.turn(inbound, 10**9 + (link.steps + turn) * 100_000))
        executed += int(b.connection["resp_expected"]) != expected
        if b.qp["broken"]:  # an error of class C; go on with a new connection
            b.qp["broken"] = 0
            b.connection["resp_fatal"] = b.connection["resp_message"] = 0
    assert answers > turns
    assert executed > turns // 50
    assert (b.memory[:begin] == before[:begin]).all()
    assert (b.memory[end:] == before[end:]).all()


def signed(source, dest, payload):
    """Return a packet with its ICRC, without scapy, which takes a millisecond for one."""
    udp = struct.pack(">HHHH", 4791, 4791, len(payload) + 12, 0xFFFF)
    ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, len(payload) + 32, 0, 0x4000, 0xFF, 17, 0xFFFF)
    ip += bytes(map(int, source.split("."))) + bytes(map(int, dest.split(".")))
    covered = b"\xff" * 8 + ip + udp + payload[:4] + b"\xff" + payload[5:]
    return payload + zlib.crc32(covered).to_bytes(4, "little")
