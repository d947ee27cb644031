"""Receive queues: SEND, immediate data, receivers that are not ready; shared CQs with an owner bit, and their overrun.

No transport of pgas posts a receive. Apart from tests of the software NIC and its emulated devices, only rdma-core's own tests do
(test_rdma_core.py).
"""

import os
import time

import numpy as np
import pytest
import rig
import wqes as wqe
from rig import ALL, CQ, QP, SIGNAL, connect

from pgas.base.backend import SIMULATOR
from pgas.transports.mlx5 import cqe, doorbell
from pgas.transports.mlx5.commands import Command, Status
from pgas.transports.mlx5.contexts import QpState, rnr_timer_ns
from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

RECEIVES = SIMULATOR and os.environ.get("PGAS_ENGINE", "cpu") == "cpu"
needs_receives = pytest.mark.skipif(not RECEIVES, reason="the cuda engine serves no receive queues")

#: RNR timers: 164 ms, so that a receive is posted before the next try, also on a busy machine; 10 ms, so that tests can count tries; 40 us.
IN_TIME, SLOW, FAST = 28, 20, 4


def sender_and_receiver(pes, *, log_size=2, stride=16, log_cq=5, rnr_retry=7, min_rnr_nak=FAST, begin=None, **options):
    """Return a QP of PE 0 with a collapsed CQ, and its peer on PE 1, which has its own CQ for receives."""
    there = CQ(pes[1], log_cq)
    a, b = QP(pes[0], **options), QP(pes[1], receive=log_size, stride=stride, receive_cq=there, user_index=0x99)
    if begin is not None:
        b.begin(0, begin)
    a.init().rtr(b)
    b.init().rtr(a, min_rnr_nak=min_rnr_nak)
    a.rts(rnr_retry=rnr_retry)
    b.rts()
    return a, b, there


def data(nbytes, seed=0):
    return bytes((seed + 7 * i) & 0xFF for i in range(nbytes))


def local(pe, offset, nbytes):
    return pe.heap + offset, pe.key, nbytes


# ----------------------------------------------------------------------------------------------------------------------- messages


@needs_receives
@pytest.mark.parametrize("imm", [None, 0x12345678, 0xFEDCBA98])
@pytest.mark.parametrize("nbytes", [0, 1, 8, 29, 1000, 70000])
def test_send(pes, nbytes, imm):
    a, b, there = sender_and_receiver(pes)
    pes[0].write(pes[0].heap, data(nbytes))
    pes[1].write(pes[1].heap, b"\xa5" * (nbytes + 64))
    index = b.post_receive(local(pes[1], 32, nbytes + 1))
    done = a.run(wqe.send, *local(pes[0], 0, nbytes), imm=imm)
    assert (done.opcode, done.s_wqe_opcode) == (CqeOpcode.REQ, Opcode.SEND if imm is None else Opcode.SEND_IMM)
    entry = there.peek()
    assert pes[1].read(pes[1].heap, nbytes + 64) == b"\xa5" * 32 + data(nbytes) + b"\xa5" * 32
    opcode = CqeOpcode.RESP_SEND if imm is None else CqeOpcode.RESP_SEND_IMM
    assert entry == cqe.received(b.qpn, opcode, index, nbytes, imm or 0, user_index=0x99)
    there.poll()
    assert there.peek() is None
    assert (a.counters()["wqes"], a.counters()["nbytes"], b.counters()["receives"]) == (1, nbytes, 1)


@needs_receives
@pytest.mark.parametrize("nbytes", [1, 12, 44, 200])
def test_send_inline(pes, nbytes):
    a, b, there = sender_and_receiver(pes)
    b.post_receive(local(pes[1], 0, 4096))
    a.run(wqe.send_inline, data(nbytes), imm=3)
    done = there.poll()
    assert (done.opcode, done.byte_cnt, done.imm) == (CqeOpcode.RESP_SEND_IMM, nbytes, 3)
    assert pes[1].read(pes[1].heap, nbytes) == data(nbytes)


@needs_receives
def test_gathered_and_scattered(pes):
    """Segments have different lengths on both sides. Segments after the message, or after the terminator, are not used."""
    a, b, there = sender_and_receiver(pes, stride=128)
    sizes, rooms = [5, 64, 1, 300], [40, 200, 7, 123, 4096]
    for i, nbytes in enumerate(sizes):
        pes[0].write(pes[0].heap + 1000 * i, data(nbytes, i))
    whole = b"".join(data(nbytes, i) for i, nbytes in enumerate(sizes))
    parts = [local(pes[1], 1000 * i, room) for i, room in enumerate(rooms)]
    b.post_receive(*parts, (0, 0xBAD00, 8))
    segments = b"".join(wqe.receive(local(pes[0], 1000 * i, nbytes)) for i, nbytes in enumerate(sizes))
    pes[1].write(pes[1].heap, bytes(8192))
    a.run(lambda index, qpn, fm_ce_se: with_segments(wqe.send(index, qpn, 0, 0, 0, fm_ce_se=fm_ce_se), segments))
    assert there.poll().byte_cnt == len(whole)
    received, at = b"", 0
    for i, room in enumerate(rooms):
        used = min(room, len(whole) - at)
        received += pes[1].read(pes[1].heap + 1000 * i, used)
        assert pes[1].read(pes[1].heap + 1000 * i + used, 8) == bytes(8)
        at += used
    assert received == whole


def with_segments(head, segments):
    """Return a WQE with more data segments and its ds updated."""
    wqe_ = bytearray(head + segments)
    wqe_[7] = len(wqe_) // 16
    return bytes(wqe_)


@needs_receives
@pytest.mark.parametrize("nbytes", [0, 8, 5000])
def test_write_with_immediate(pes, nbytes):
    """The data goes to the WRITE's address. The receive WQE completes, and its segments are not used."""
    a, b, there = sender_and_receiver(pes)
    pes[0].write(pes[0].heap, data(nbytes))
    pes[1].write(pes[1].heap, bytes(8192))
    index = b.post_receive((0, 0xBAD00, 8))

    def write_imm(index, qpn, fm_ce_se):
        if nbytes:
            return wqe.write(index, qpn, pes[1].heap + 64, pes[1].key, *local(pes[0], 0, nbytes), fm_ce_se=fm_ce_se, imm=0xABCD)
        return with_segments(wqe.write(index, qpn, 0, 0, 0, 0, 1, fm_ce_se=fm_ce_se, imm=0xABCD)[:32], b"")

    assert a.run(write_imm).s_wqe_opcode == Opcode.RDMA_WRITE_IMM
    assert there.peek() == cqe.received(b.qpn, CqeOpcode.RESP_WR_IMM, index, nbytes, 0xABCD, user_index=0x99)
    assert pes[1].read(pes[1].heap, nbytes + 128) == bytes(64) + data(nbytes) + bytes(64)
    assert a.counters()["writes"] == 1


@needs_receives
def test_a_message_follows_the_writes_before_it(pes):
    a, b, there = sender_and_receiver(pes, log_size=6)
    for round_ in range(1, 200):
        b.post_receive(local(pes[1], 64, 8))
        pes[0].word(0, round_)
        for offset in (8, 4096, 1 << 20):
            a.post(wqe.write, pes[1].heap + offset, pes[1].key, *local(pes[0], 0, 8))
        a.post(wqe.send, *local(pes[0], 0, 8), fm_ce_se=0)
        a.ring()
        there.poll()
        assert [pes[1].word(offset) for offset in (8, 64, 4096, 1 << 20)] == [round_] * 4


@needs_receives
def test_a_qp_sends_to_itself(pes):
    cq = CQ(pes[0])
    qp = QP(pes[0], receive=2, cq=cq, receive_cq=cq)
    connect(qp, qp)
    pes[0].write(pes[0].heap, b"to myself")
    qp.post_receive(local(pes[0], 256, 64))
    qp.post(wqe.send, *local(pes[0], 0, 9), fm_ce_se=SIGNAL)
    qp.ring()
    assert [cq.poll().opcode for _ in range(2)] == [CqeOpcode.RESP_SEND, CqeOpcode.REQ]
    assert pes[0].read(pes[0].heap + 256, 9) == b"to myself"


# -------------------------------------------------------------------------------------------------------------------------- rings


@needs_receives
@pytest.mark.parametrize("begin", [0, (1 << 16) - 5, (1 << 32) - 5])
@pytest.mark.parametrize("stride", [16, 64, 512])
def test_receive_indices_and_ring_wrap(pes, begin, stride):
    a, b, there = sender_and_receiver(pes, log_size=2, stride=stride, begin=begin)
    for i in range(23):
        index = b.post_receive(local(pes[1], 64 * (i % 8), 64))
        a.post(wqe.send_inline, data(20, i), fm_ce_se=SIGNAL)
        a.ring()
        done = there.poll()
        assert (done.wqe_counter, done.owner) == (index & 0xFFFF, there.consumer - 1 >> 5 & 1)
        assert pes[1].read(pes[1].heap + 64 * (i % 8), 20) == data(20, i)


@needs_receives
def test_the_longest_receive_queue(pes):
    """2^15 receive WQEs at once: 16-bit indices distinguish a full queue from an empty one, also when they wrap."""
    begin = (1 << 16) - 500
    a, b, there = sender_and_receiver(pes, log_size=15, log_cq=10, log_depth=9, begin=begin)
    heap = np.frombuffer(wqe.receive(local(pes[1], 0, 8)), np.uint8)
    pes[1].write(pes[1].slot + b.rq, np.tile(heap, 1 << 15).tobytes())
    received = begin
    for _ in range(4):
        b.posted_receives = received + (1 << 15)
        b.ring_receives()
        for _ in range(500):
            last = a.post(wqe.send, 0, 0, 0, fm_ce_se=0)
        a.post(wqe.nop, fm_ce_se=SIGNAL)
        a.ring()
        a.poll(last + 1)
        for _ in range(500):
            received += 1
            assert there.poll(tell=False).wqe_counter == received - 1 & 0xFFFF
        there.tell()
    assert b.counters()["receives"] == 2000


# ---------------------------------------------------------------------------------------------------------------------- not ready


@needs_receives
@pytest.mark.parametrize("rnr_retry", [0, 1, 3])
def test_a_receiver_that_is_never_ready(pes, rnr_retry):
    """rnr_retry more tries, min_rnr_nak apart; then the sender is in ERR, and the receiver is unchanged."""
    a, b, _ = sender_and_receiver(pes, rnr_retry=rnr_retry, min_rnr_nak=SLOW)
    begin = time.monotonic()
    failed = a.fail(wqe.send, *local(pes[0], 0, 8))
    assert failed == (Syndrome.RNR_RETRY_EXC_ERR, Vendor.NOT_READY)
    assert rnr_retry * rnr_timer_ns(SLOW) / 1e9 <= time.monotonic() - begin < rnr_retry * rnr_timer_ns(SLOW) / 1e9 + 10
    assert (a.state(), b.state()) == (QpState.ERR, QpState.RTS)


@needs_receives
@pytest.mark.parametrize("rnr_retry", [6, 7])
def test_a_receiver_that_is_ready_later(pes, rnr_retry):
    """The sender and its later WQEs wait; other QPs go on."""
    a, b, there = sender_and_receiver(pes, rnr_retry=rnr_retry, min_rnr_nak=IN_TIME if rnr_retry == 6 else FAST)
    other, _ = rig.pair(pes)
    pes[0].word(0, 5)
    pes[1].word(64, 0)
    first = a.post(wqe.send, *local(pes[0], 0, 8), fm_ce_se=SIGNAL)
    a.post(wqe.write, pes[1].heap + 64, pes[1].key, *local(pes[0], 0, 8), fm_ce_se=SIGNAL)
    a.ring()
    other.run(wqe.write, pes[1].heap + 72, pes[1].key, *local(pes[0], 0, 8))
    time.sleep(30e-3)
    assert (a.entry(), pes[1].word(64), a.counters()["wqes"]) == (rig.EMPTY, 0, 0)
    b.post_receive(local(pes[1], 0, 8))
    a.poll(first + 1)
    assert (there.poll().byte_cnt, pes[1].word(0), pes[1].word(64)) == (8, 5, 5)
    assert a.counters()["wqes"] == 2


@needs_receives
def test_tries_are_counted_for_each_message(pes):
    a, b, there = sender_and_receiver(pes, rnr_retry=1, min_rnr_nak=IN_TIME)
    for _ in range(3):
        index = a.post(wqe.send, *local(pes[0], 0, 8), fm_ce_se=SIGNAL)
        a.ring()
        time.sleep(3e-3)
        b.post_receive(local(pes[1], 0, 8))
        assert not a.poll(index).is_error
        there.poll()


@needs_receives
@pytest.mark.parametrize("leave", ["destroy", "error"])
def test_a_receiver_that_is_destroyed_while_the_sender_waits(pes, leave):
    a, b, _ = sender_and_receiver(pes)
    index = a.post(wqe.send, *local(pes[0], 0, 8))
    a.ring()
    time.sleep(5e-3)
    if leave == "destroy":
        b.destroy()
    else:
        pes[1].command(Command.TO_ERR_QP, qpn=b.qpn)
    done = a.poll(index)
    assert done.syndrome == Syndrome.TRANSPORT_RETRY_EXC_ERR
    assert done.vendor_err_synd in (Vendor.NO_RESPONDER, Vendor.RESPONDER_STATE)


@needs_receives
def test_a_sender_that_waits_is_flushed_and_reset(pes):
    a, b, _ = sender_and_receiver(pes)
    for _ in range(2):
        index = a.post(wqe.send, *local(pes[0], 0, 8))
        a.ring()
        time.sleep(5e-3)
        pes[0].command(Command.TO_ERR_QP, qpn=a.qpn)
        assert a.poll(index).syndrome == Syndrome.WR_FLUSH_ERR
        pes[0].command(Command.TO_RST_QP, qpn=a.qpn)
        a.posted = 0
        pes[0].write(pes[0].slot + a.cq, rig.EMPTY)
        a.init().rtr(b).rts()
    b.post_receive(local(pes[1], 0, 8))
    a.run(wqe.send, *local(pes[0], 0, 8))


# ------------------------------------------------------------------------------------------------------------------------- errors


def test_a_peer_without_a_receive_queue(pes):
    """The sender does not wait. The cuda engine has no SEND."""
    expected = (Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.NO_RECEIVE_QUEUE) if SIMULATOR else (Syndrome.LOCAL_QP_OP_ERR, Vendor.WQE_OPCODE)
    a, b = rig.pair(pes)
    assert a.fail(wqe.send, *local(pes[0], 0, 8)) == expected
    assert b.state() == (QpState.ERR if SIMULATOR else QpState.RTS)
    a = rig.pair(pes)[0]
    assert a.fail(wqe.write, pes[1].heap, pes[1].key, *local(pes[0], 0, 8), imm=1) == expected


@needs_receives
def test_a_receive_wqe_that_is_too_short(pes):
    """Nothing is written; the receiver gets a length error, the sender an invalid-request error."""
    a, b, there = sender_and_receiver(pes, stride=64)
    pes[1].write(pes[1].heap, bytes(64))
    index = b.post_receive(local(pes[1], 0, 4), local(pes[1], 32, 3))
    b.post_receive(local(pes[1], 0, 8))
    pes[0].write(pes[0].heap, b"too long")
    assert a.fail(wqe.send, *local(pes[0], 0, 8)) == (Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.RECEIVE_LENGTH)
    assert there.peek() == cqe.error(
        b.qpn, 0, index, Syndrome.LOCAL_LENGTH_ERR, Vendor.RECEIVE_LENGTH, user_index=0x99, opcode=CqeOpcode.RESP_ERR
    )
    there.poll()
    done = there.poll()
    assert (done.opcode, done.syndrome, done.wqe_counter) == (CqeOpcode.RESP_ERR, Syndrome.WR_FLUSH_ERR, index + 1)
    assert (a.state(), b.state()) == (QpState.ERR, QpState.ERR)
    assert pes[1].read(pes[1].heap, 64) == bytes(64)
    assert "longer than the receive WQE" in str(pes[1].hca.diagnose(b.qpn))


@needs_receives
@pytest.mark.parametrize("wrong", ["unknown", "pd", "bounds", "access"])
def test_a_receive_wqe_that_names_the_wrong_memory(pes, wrong):
    a, b, there = sender_and_receiver(pes, stride=64)
    pe = pes[1]
    pe.write(pe.heap, bytes(64))
    segment = {
        "unknown": lambda: (pe.heap, 0xBAD00, 8),
        "pd": lambda: (pe.heap, pe.hca.register_mr(pe.heap, 64, pe.hca.alloc_pd(), ALL)[0], 8),
        "bounds": lambda: (pe.heap + rig.HEAP - 3, pe.key, 8),
        "access": lambda: (pe.heap, pe.hca.register_mr(pe.heap, 64, pe.pdn, 0)[0], 8),
    }[wrong]()
    b.post_receive(local(pe, 32, 4), segment)
    assert a.fail(wqe.send, *local(pes[0], 0, 8)) == (Syndrome.REMOTE_OP_ERR, Vendor.RECEIVE_LKEY)
    done = there.poll()
    assert (done.opcode, done.syndrome, done.vendor_err_synd) == (CqeOpcode.RESP_ERR, Syndrome.LOCAL_PROT_ERR, Vendor.RECEIVE_LKEY)
    assert pe.read(pe.heap, 64) == bytes(64)


@needs_receives
def test_a_receive_counter_beyond_the_queue(pes):
    a, b, _ = sender_and_receiver(pes, log_size=2)
    b.posted_receives = 5
    b.ring_receives()
    assert a.fail(wqe.send, *local(pes[0], 0, 8)) == (Syndrome.REMOTE_OP_ERR, Vendor.RECEIVE_OVERRUN)


@needs_receives
@pytest.mark.parametrize("rwe", [0, 1])
def test_immediate_data_needs_the_rights_of_a_write(pes, rwe):
    """A QP without remote write access still receives SENDs; a refused WRITE consumes no receive WQE."""
    there = CQ(pes[1])
    a, b = QP(pes[0]), QP(pes[1], receive=2, receive_cq=there)
    a.init().rtr(b).rts()
    b.init(rwe=rwe).rtr(a).rts()
    for _ in range(2):
        b.post_receive(local(pes[1], 0, 8))
    a.run(wqe.send, *local(pes[0], 0, 8))
    assert there.poll().opcode == CqeOpcode.RESP_SEND
    write = (wqe.write, pes[1].heap, pes[1].key if rwe == 0 else 0xBAD00, *local(pes[0], 0, 8))
    expected = (Syndrome.REMOTE_ACCESS_ERR, Vendor.RKEY_UNKNOWN) if rwe else (Syndrome.REMOTE_INVAL_REQ_ERR, Vendor.OP_DISABLED)
    assert a.fail(*write, imm=1) == expected
    assert there.poll().syndrome == Syndrome.WR_FLUSH_ERR


@needs_receives
def test_receives_are_flushed_in_err(pes):
    """Those posted before and those posted later (IBTA); also on a QP in RTR."""
    there = CQ(pes[1])
    a, b = QP(pes[0]), QP(pes[1], receive=3, receive_cq=there)
    a.init()
    b.init().rtr(a)
    before = [b.post_receive(local(pes[1], 0, 8)) for _ in range(3)]
    pes[1].command(Command.TO_ERR_QP, qpn=b.qpn)
    got = [there.poll() for _ in before]
    got.append((b.post_receive(local(pes[1], 0, 8)), there.poll())[1])
    assert [(done.opcode, done.syndrome, done.wqe_counter) for done in got] == [
        (CqeOpcode.RESP_ERR, Syndrome.WR_FLUSH_ERR, index) for index in range(4)
    ]
    pes[1].command(Command.TO_RST_QP, qpn=b.qpn)
    b.posted_receives = 0
    b.ring_receives()
    connect(a2 := QP(pes[0]), b)
    assert b.post_receive(local(pes[1], 0, 8)) == 0
    a2.run(wqe.send, *local(pes[0], 0, 8))
    assert there.poll().wqe_counter == 0


# ---------------------------------------------------------------------------------------------------------------------------- CQs


@needs_receives
def test_many_queues_on_one_cq(pes):
    """Send and receive queues of four QPs complete to one CQ that is polled slowly: nothing is lost, and each queue keeps its order."""
    cq = CQ(pes[0], 6)
    pairs = []
    for i in range(2):
        a, b = (QP(pes[0], receive=4, cq=cq, receive_cq=cq, user_index=2 * i + side) for side in (0, 1))
        pairs.append(connect(a, b))
    seen = {(i, kind): [] for i in range(4) for kind in (CqeOpcode.REQ, CqeOpcode.RESP_SEND)}
    for round_ in range(30):
        for i, pair in enumerate(pairs):
            for sender, receiver in (pair, pair[::-1]):
                for _ in range(2):
                    receiver.post_receive(local(pes[0], 64 * i, 8))
                    sender.post(wqe.send, *local(pes[0], 0, 8), fm_ce_se=SIGNAL)
                sender.ring(by_wqe=bool(round_ & 1))
        for _ in range(16):
            done = cq.poll()
            seen[done.user_index, done.opcode].append(done.wqe_counter)
    assert cq.peek() is None
    assert all(counters == list(range(60)) for counters in seen.values())


@needs_receives
@pytest.mark.parametrize("lost", ["send", "receive"])
def test_a_cq_that_overruns(pes, lost):
    """A CQE without room moves its QP to ERR (IBTA), and later every QP that needs the CQ; others go on."""
    full, other = CQ(pes[0], 2), CQ(pes[0], 6)
    a = QP(pes[0], receive=3, cq=full if lost == "send" else other, receive_cq=full if lost == "receive" else other)
    b = QP(pes[0], receive=3, cq=other, receive_cq=other)
    connect(a, b)
    sender, receiver = (a, b) if lost == "send" else (b, a)
    for _ in range(5):
        receiver.post_receive(local(pes[0], 0, 8))
        sender.post(wqe.send, *local(pes[0], 0, 8), fm_ce_se=SIGNAL)
    sender.ring()
    rig.wait_until(lambda: a.state() == QpState.ERR, "the QP is not in ERR")
    assert [full.poll(tell=False).wqe_counter for _ in range(4)] == [0, 1, 2, 3]
    assert full.peek() is None
    first = pes[0].hca.diagnose(a.qpn)
    assert (first.syndrome, first.vendor_err_synd, first.wqe_idx) == (Syndrome.LOCAL_QP_OP_ERR, Vendor.CQ_OVERRUN, 4)
    assert "the CQ is or was full" in str(first)
    full.tell()  # too late
    late = QP(pes[0], cq=full)
    connect(late, late)
    late.post(wqe.nop, fm_ce_se=SIGNAL)
    late.ring()
    rig.wait_until(lambda: late.state() == QpState.ERR, "a QP of a CQ that overran is not in ERR")
    assert full.peek() is None
    assert next(c for c in pes[0].hca.counters()["cqs"] if c["cqn"] == full.cqn)["overrun"]


def test_a_cq_that_ignores_overrun(pes):
    cq = CQ(pes[0], 2, oi=1)
    qp = QP(pes[0], cq=cq)
    connect(qp, qp)
    for _ in range(11):
        qp.post(wqe.nop, fm_ce_se=SIGNAL)
    qp.ring()
    rig.wait_until(lambda: qp.counters()["cqes"] == 11, "CQEs are missing")
    assert qp.state() == QpState.RTS
    assert [cqe.decode(pes[0].read(pes[0].slot + cq.cq + 64 * i, 64)).wqe_counter for i in range(4)] == [8, 9, 10, 7]


# ------------------------------------------------------------------------------------------------------------------- doorbells, set-up


@needs_receives
def test_commands_refuse_receive_queues_that_cannot_be(pes):
    qp, cq = QP(pes[0]), CQ(pes[0])
    uar = pes[0].hca.alloc_uar().page_id
    values = qp.qp_values(3, 0, pes[0].pdn)
    values["wq_umem_offset"] = 1 << 20
    regular = {**values["qpc"], "rq_type": 0, "uar_page": uar, "cqn_rcv": cq.cqn}
    for change, status, why in (
        ({"log_rq_stride": 6}, Status.BAD_PARAM, "RQ_STRIDE"),
        ({"cqn_rcv": 1}, Status.BAD_RES, "CQ"),
        ({"log_rq_size": 15, "log_rq_stride": 5}, Status.BAD_PARAM, "UMEM_BOUNDS"),
        ({"log_rq_size": 1}, Status.BAD_PARAM, "ALIGNMENT"),  # the send queue would not begin at a WQEBB
    ):
        assert pes[0].refused(Command.CREATE_QP, **{**values, "qpc": {**regular, **change}}) == (status, why)
    pes[0].command(Command.CREATE_QP, **{**values, "qpc": {**regular, "log_rq_size": 2}})
    assert pes[0].refused(Command.DESTROY_CQ, cqn=cq.cqn) == (Status.RES_BUSY, "CQ_BUSY")


@pytest.mark.skipif(RECEIVES, reason="of the cuda engine")
def test_the_cuda_engine_refuses_receive_queues(pes):
    qp = QP(pes[0])
    values = qp.qp_values(3, 0, pes[0].pdn)
    values["qpc"] |= {"rq_type": 0, "log_rq_size": 2, "cqn_rcv": qp.cqn, "uar_page": pes[0].hca.alloc_uar().page_id}
    assert pes[0].refused(Command.CREATE_QP, **values) == (Status.BAD_PARAM, "RQ_ENGINE")
    assert pes[0].refused(Command.CREATE_CQ, **qp.cq_values(oi=0, cc=0)) == (Status.BAD_PARAM, "CQ_OVERRUN")


@needs_receives
def test_a_blueflame_register_is_rung_in_turns(pes):
    """libmlx5 writes the whole WQE, alternating between the two buffers of a register; a page has registers for two QPs."""
    first = QP(pes[0], uar=UarType.BF)
    qps = first, QP(pes[0], uar=first.uar)
    for qp in qps:
        connect(qp, QP(pes[1]))
    for i in range(200):
        pes[0].word(0, i)
        lasts = []
        for number, qp in enumerate(qps):
            lasts.append(qp.post(wqe.write, pes[1].heap + 8 * number, pes[1].key, *local(pes[0], 0, 8), fm_ce_se=SIGNAL))
            qp.record()
            buffer = qp.uar.register_address + (2 * number + i % 2) * doorbell.UAR_BF_BUFFER_SIZE
            pes[0].write(buffer + 8, qp.log[-1][1][8:])
            rig.mem.store_release_u64(buffer, int.from_bytes(doorbell.wqe_start(qp.log[-1][1]), "little"))
        if i % 3 == 0 or i == 199:
            for qp, last in zip(qps, lasts, strict=True):
                qp.poll(last)
    assert [pes[1].word(0), pes[1].word(8)] == [199, 199]
    assert [qp.counters()[name] for qp in qps for name in ("stale_doorbells", "foreign_doorbells")] == [0] * 4
    values = first.qp_values(3, 0, pes[0].pdn)
    values["wq_umem_offset"] = 1 << 20
    assert pes[0].refused(Command.CREATE_QP, **values) == (Status.BAD_RES_STATE, "UAR_SHARED")
    qps[1].destroy()
    pes[0].command(Command.CREATE_QP, **values)
