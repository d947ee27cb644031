"""WQEs that fail: every syndrome of the card, the states of both QPs, and the flush of later WQEs."""

import re
import struct

import pytest
import rig
import wqes as wqe
from rig import ALL, HEAP, QP, SIGNAL, connect, pair

from pgas.transports.mlx5 import cqe, doorbell
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import Access, QpState
from pgas.transports.mlx5.cqe import CqeOpcode, Syndrome, syndrome_words
from pgas.transports.mlx5.wqe import Opcode
from pgas.transports.softhca.syndromes import Vendor, vendor_text

card, pes, observer = rig.card, rig.pes, rig.observer

LENGTH, QP_OP, PROT = Syndrome.LOCAL_LENGTH_ERR, Syndrome.LOCAL_QP_OP_ERR, Syndrome.LOCAL_PROT_ERR
INVALID, ACCESS, RETRY = Syndrome.REMOTE_INVAL_REQ_ERR, Syndrome.REMOTE_ACCESS_ERR, Syndrome.TRANSPORT_RETRY_EXC_ERR


class Setting:
    """A connected pair, and the keys and addresses for its WQEs."""

    def __init__(self, pes):
        self.a, self.b = pes
        self.qp, self.peer = pair(pes)
        self.source, self.target = self.a.heap + 1024, self.b.heap + 1024

    def key(self, pe, access, address=None, nbytes=HEAP, pdn=None):
        return pe.hca.register_mr(pe.heap if address is None else address, nbytes, pe.pdn if pdn is None else pdn, access)[0]

    def write(self, **changed):
        return self.data(wqe.write, 8, **changed)

    def read(self, **changed):
        return self.data(wqe.read, 8, **changed)

    def data(self, build, nbytes, raddr=None, rkey=None, addr=None, lkey=None):
        return (build, *self.remote(raddr, rkey), *self.local(addr, lkey), nbytes)

    def fetch_add(self, raddr=None, rkey=None, addr=None, lkey=None):
        return (wqe.fetch_add, *self.remote(raddr, rkey), *self.local(addr, lkey), 1)

    def remote(self, raddr, rkey):
        return (self.target if raddr is None else raddr, self.b.key if rkey is None else rkey)

    def local(self, addr, lkey):
        return (self.source if addr is None else addr, self.a.key if lkey is None else lkey)


def patched(call, changes=(), extra=b""):
    """Return a call of a builder, with some bytes of its WQE replaced and some appended."""
    build, *args = call

    def altered(index, qpn, **kwargs):
        data = bytearray(build(index, qpn, *args, **kwargs) + extra)
        for offset, new in dict(changes).items():
            data[offset : offset + len(new)] = new
        return bytes(data)

    return (altered,)


def opcode_of(opcode, opmod=0, ds=3):
    def build(index, qpn, fm_ce_se=0):
        return struct.pack(">IIII", opmod << 24 | (index & 0xFFFF) << 8 | opcode, qpn << 8 | ds, fm_ce_se, 0) + bytes(16 * (ds - 1))

    return (build,)


def other_pd(pe):
    return pe.hca.alloc_pd()


def destroyed(setting):
    key = setting.key(setting.b, ALL)
    setting.b.hca.deregister_mr(key)
    return key


def masked_fa(setting, changes):
    call = (wqe.masked_fetch_add, *setting.remote(None, None), *setting.local(None, None), 8, 1)
    return patched(call, changes)


def misaligned_4(setting):
    return (wqe.masked_fetch_add, *setting.remote(setting.target + 2, None), *setting.local(None, None), 4, 1)


def too_long(setting):
    """Return a WRITE of 8 bytes on a QP that allows 2^2."""
    setting.qp, setting.peer = connect(QP(setting.a), QP(setting.b), log_msg_max=2)
    return setting.write()


# Errors at the requester, which the peer does not notice. Each maps a Setting to the call of a builder.
LOCAL = [
    ("index", QP_OP, Vendor.WQE_INDEX, lambda s: patched(s.write(), {1: b"\x12\x34"})),
    ("qpn", QP_OP, Vendor.WQE_QPN, lambda s: patched(s.write(), {4: b"\0\0\x07"})),
    ("ds 0", QP_OP, Vendor.WQE_DS, lambda s: patched(s.write(), {7: b"\0"})),
    ("ds beyond the ring's doorbell", QP_OP, Vendor.WQE_DS, lambda s: patched(s.write(), {7: b"\x05"})),
    ("WRITE without raddr", QP_OP, Vendor.WQE_DS, lambda s: patched(s.write(), {7: b"\x01"})),
    ("FA without data", QP_OP, Vendor.WQE_DS, lambda s: patched(s.fetch_add(), {7: b"\x03"})),
    ("FA with two data segments", QP_OP, Vendor.WQE_DS, lambda s: patched(s.fetch_add(), {7: b"\x05"}, extra=bytes(16))),
    ("DUMP without data", QP_OP, Vendor.WQE_DS, lambda s: patched((wqe.dump, *s.local(None, None)), {7: b"\x01"})),
    ("opmod of WRITE", QP_OP, Vendor.WQE_OPMOD, lambda s: patched(s.write(), {0: b"\x08"})),
    ("opmod of FA", QP_OP, Vendor.WQE_OPMOD, lambda s: patched(s.fetch_add(), {0: b"\x09"})),
    ("opmod of masked FA", QP_OP, Vendor.WQE_OPMOD, lambda s: opcode_of(Opcode.ATOMIC_MASKED_FA, 0, 4)),
    ("opmod of masked CS", QP_OP, Vendor.WQE_OPMOD, lambda s: opcode_of(Opcode.ATOMIC_MASKED_CS, 7, 4)),
    *((f"fm {fm}", QP_OP, Vendor.WQE_FENCE, lambda s, fm=fm: patched(s.write(), {11: bytes([fm << 5])})) for fm in (5, 6, 7)),
    ("READ inline", QP_OP, Vendor.WQE_INLINE, lambda s: patched(s.read(), {32: b"\x80"})),
    ("inline beyond ds", QP_OP, Vendor.WQE_INLINE, lambda s: patched((wqe.write_inline, *s.remote(None, None), b"x" * 12), {35: b"\x0d"})),
    ("FA of 4 bytes", LENGTH, Vendor.LENGTH_ATOMIC, lambda s: patched(s.fetch_add(), {51: b"\x04"})),
    ("masked FA of 8 bytes into 4", LENGTH, Vendor.LENGTH_ATOMIC, lambda s: masked_fa(s, {51: b"\x04"})),
    ("longer than log_msg_max", LENGTH, Vendor.LENGTH_MESSAGE, too_long),
    ("unknown lkey", PROT, Vendor.LKEY_UNKNOWN, lambda s: s.write(lkey=0xBAD00)),
    ("lkey 0", PROT, Vendor.LKEY_UNKNOWN, lambda s: s.write(lkey=0)),
    ("lkey of another variant", PROT, Vendor.LKEY_UNKNOWN, lambda s: s.write(lkey=s.a.key ^ 1)),
    ("lkey of another PE", PROT, Vendor.LKEY_PD, lambda s: s.write(lkey=s.b.key)),
    ("lkey of another PD", PROT, Vendor.LKEY_PD, lambda s: s.write(lkey=s.key(s.a, ALL, pdn=other_pd(s.a)))),
    ("source before the region", PROT, Vendor.LKEY_BOUNDS, lambda s: s.write(addr=s.a.heap - 1)),
    ("source ends behind the region", PROT, Vendor.LKEY_BOUNDS, lambda s: s.write(addr=s.a.heap + HEAP - 7)),
    ("source at the end of memory", PROT, Vendor.LKEY_BOUNDS, lambda s: s.write(addr=(1 << 64) - 4)),
    ("0 bytes mean 2 GiB", PROT, Vendor.LKEY_BOUNDS, lambda s: patched(s.write(), {32: bytes(4)})),
    ("DUMP beyond the region", PROT, Vendor.LKEY_BOUNDS, lambda s: (wqe.dump, s.a.heap + HEAP, s.a.key)),
    ("READ into what may not be written", PROT, Vendor.LKEY_ACCESS, lambda s: s.read(lkey=s.key(s.a, 0))),
    ("FA into what may not be written", PROT, Vendor.LKEY_ACCESS, lambda s: s.fetch_add(lkey=s.key(s.a, Access.REMOTE_READ))),
]
# Opcodes of other kinds of queues and of other cards.
ABSENT = sorted(
    set(range(0x30))
    - {Opcode.NOP, Opcode.DUMP, Opcode.RDMA_WRITE, Opcode.RDMA_READ}
    - {Opcode.ATOMIC_CS, Opcode.ATOMIC_FA, Opcode.ATOMIC_MASKED_CS, Opcode.ATOMIC_MASKED_FA}
    - {Opcode.SEND, Opcode.SEND_IMM, Opcode.RDMA_WRITE_IMM, Opcode.WAIT}
)
LOCAL += [(f"opcode {opcode:#x}", QP_OP, Vendor.WQE_OPCODE, lambda s, o=opcode: opcode_of(o)) for opcode in ABSENT]

# Refusals of the responder, whose QP enters ERR, too.
REFUSED = [
    ("unknown rkey", ACCESS, Vendor.RKEY_UNKNOWN, lambda s: s.write(rkey=0xBAD00)),
    ("rkey 0", ACCESS, Vendor.RKEY_UNKNOWN, lambda s: s.read(rkey=0)),
    ("destroyed rkey", ACCESS, Vendor.RKEY_UNKNOWN, lambda s: s.write(rkey=destroyed(s))),
    ("rkey of this PE", ACCESS, Vendor.RKEY_PD, lambda s: s.write(raddr=s.a.heap, rkey=s.a.key)),
    ("rkey of another PD", ACCESS, Vendor.RKEY_PD, lambda s: s.write(rkey=s.key(s.b, ALL, pdn=other_pd(s.b)))),
    ("target before the region", ACCESS, Vendor.RKEY_BOUNDS, lambda s: s.write(raddr=s.b.heap - 1)),
    ("target ends behind the region", ACCESS, Vendor.RKEY_BOUNDS, lambda s: s.write(raddr=s.b.heap + HEAP - 7)),
    ("target at the end of memory", ACCESS, Vendor.RKEY_BOUNDS, lambda s: s.fetch_add(raddr=(1 << 64) - 8)),
    ("target before a small region", ACCESS, Vendor.RKEY_BOUNDS, lambda s: s.write(rkey=s.key(s.b, ALL, s.target + 1, 64))),
    ("WRITE to what may be read", ACCESS, Vendor.RKEY_ACCESS, lambda s: s.write(rkey=s.key(s.b, ALL ^ Access.REMOTE_WRITE))),
    ("READ of what may be written", ACCESS, Vendor.RKEY_ACCESS, lambda s: s.read(rkey=s.key(s.b, ALL ^ Access.REMOTE_READ))),
    ("FA to what allows none", ACCESS, Vendor.RKEY_ACCESS, lambda s: s.fetch_add(rkey=s.key(s.b, ALL ^ Access.REMOTE_ATOMIC))),
    ("misaligned FA", INVALID, Vendor.MISALIGNED, lambda s: s.fetch_add(raddr=s.target + 4)),
    ("misaligned masked FA of 4", INVALID, Vendor.MISALIGNED, misaligned_4),
]


@pytest.mark.parametrize(("what", "syndrome", "vendor", "make"), LOCAL, ids=[case[0] for case in LOCAL])
def test_a_wqe_that_the_requester_refuses(pes, what, syndrome, vendor, make):
    setting = Setting(pes)
    call = make(setting)
    before = pes[0].read(pes[0].heap, 8192), pes[1].read(pes[1].heap, 8192)
    assert setting.qp.fail(*call) == (syndrome, vendor)
    assert (setting.qp.state(), setting.peer.state()) == (QpState.ERR, QpState.RTS)
    assert setting.qp.counters()["consumer"] == setting.qp.posted
    assert (pes[0].read(pes[0].heap, 8192), pes[1].read(pes[1].heap, 8192)) == before
    first = pes[0].hca.diagnose(setting.qp.qpn)
    assert (first.syndrome, first.vendor_err_synd, first.words) == (syndrome, vendor, vendor_text(vendor))
    assert syndrome_words(syndrome) in str(first)


@pytest.mark.parametrize(("what", "syndrome", "vendor", "make"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_wqe_that_the_peer_refuses(pes, what, syndrome, vendor, make):
    setting = Setting(pes)
    call = make(setting)
    before = pes[0].read(pes[0].heap, 8192), pes[1].read(pes[1].heap, 8192)
    assert setting.qp.fail(*call) == (syndrome, rig.told(vendor))
    assert (setting.qp.state(), setting.peer.state()) == (QpState.ERR, QpState.ERR)
    assert (pes[0].read(pes[0].heap, 8192), pes[1].read(pes[1].heap, 8192)) == before
    assert (setting.qp.counters()["errors"], setting.peer.counters()["errors"]) == (1, 1)
    assert setting.peer.entry() == rig.EMPTY  # no CQE at the peer


@pytest.mark.parametrize(
    ("allowed", "names"), [("rwe", ["read", "fetch_add"]), ("rre", ["write", "fetch_add"]), ("rae", ["write", "read"])]
)
def test_operations_that_the_peer_s_qp_does_not_allow(pes, allowed, names):
    for name in names:
        setting = Setting(pes)
        setting.qp, setting.peer = QP(pes[0]), QP(pes[1])
        setting.peer.init(**{other: int(other == allowed) for other in ("rwe", "rre", "rae")}).rtr(setting.qp)
        setting.qp.init().rtr(setting.peer).rts()
        assert setting.qp.fail(*getattr(setting, name)()) == (INVALID, rig.told(Vendor.OP_DISABLED))
        assert setting.peer.state() == QpState.ERR


# -------------------------------------------------------------------------------------------------- requests that the peer drops


def no_responder(pes):
    return QP(pes[0]).init().rtr(0x123456).rts()


def responder_state(pes):
    qp, peer = pair(pes)
    pes[1].command(Command.TO_RST_QP, qpn=peer.qpn)
    return qp


def responder_peer(pes):
    peer = pair(pes)[1]
    return QP(pes[0]).init().rtr(peer).rts()


def responder_psn(pes):
    qp, peer = QP(pes[0]), QP(pes[1])
    peer.init().rtr(qp, next_rcv_psn=5)
    return qp.init().rtr(peer).rts(next_send_psn=6)


DROPPED = {
    Vendor.NO_RESPONDER: no_responder,
    Vendor.RESPONDER_STATE: responder_state,
    Vendor.RESPONDER_PEER: responder_peer,
    Vendor.RESPONDER_PSN: responder_psn,
}


@rig.no_packets
@pytest.mark.parametrize("vendor", DROPPED, ids=lambda vendor: vendor.name)
def test_a_wqe_that_the_peer_drops(pes, vendor):
    qp = DROPPED[vendor](pes)
    assert qp.fail(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8) == (RETRY, vendor)
    assert pes[1].word(0) == 0
    assert qp.state() == QpState.ERR


def test_psns_that_agree(pes):
    qp, peer = QP(pes[0]), QP(pes[1])
    peer.init().rtr(qp, next_rcv_psn=0xABCDEF)
    qp.init().rtr(peer).rts(next_send_psn=0xABCDEF)
    assert qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8).byte_cnt == 8


@pytest.mark.parametrize("ahead", [129, 1000, 0x10000 - 129, -128, -1])
def test_a_doorbell_beyond_the_depth_of_the_queue(pes, ahead):
    """It is an error of the QP, unless it is an old doorbell, which goes back by at most the depth of the queue."""
    qp = pair(pes)[0]
    for _ in range(qp.depth):
        last = qp.post(wqe.nop, fm_ce_se=rig.SIGNAL)
    qp.ring()
    qp.poll(last)
    qp.uar_word(doorbell.next_empty(qp.posted + ahead, qp.qpn))
    if ahead < 0:
        rig.wait_until(lambda: qp.counters()["stale_doorbells"] == 1, "the doorbell is not counted")
        assert (qp.state(), qp.counters()["wqes"]) == (QpState.RTS, qp.depth)
        return
    rig.wait_until(lambda: qp.state() == QpState.ERR, "the QP is not in ERR")
    assert (qp.counters()["first_error"], qp.counters()["vendor_error"]) == (QP_OP, Vendor.OVERRUN)
    rig.wait_until(lambda: qp.counters()["consumer"] == qp.counters()["producer"], "not all is flushed")


@pytest.mark.parametrize("beyond", [0, 1, 100])
def test_a_doorbell_that_overruns_the_queue(pes, observer, beyond):
    """The producer did not wait for the oldest WQEs. A delayed engine notices it. A full queue is no overrun."""
    qp = pair(pes)[0]
    observer.set_faults("delay=0.9999,hold=1000")
    for _ in range(qp.depth):
        qp.post(wqe.nop)
    qp.ring(by_wqe=True)  # another word than the next one: a GPU takes a CPU's doorbell for a new one if its word changed
    rig.wait_until(lambda: qp.counters()["doorbells"] == 1, "the doorbell is not taken")
    qp.uar_word(doorbell.next_empty(qp.depth + beyond, qp.qpn))
    rig.wait_until(lambda: qp.counters()["doorbells"] == 2, "the doorbell is not taken")
    observer.set_faults("")
    wanted = {"consumer": qp.depth + beyond, "wqes": 0 if beyond else qp.depth}  # the engine writes the counts back one by one
    rig.wait_until(lambda: wanted.items() <= qp.counters().items(), "not all is executed or flushed", 30)
    counted = qp.counters()
    assert (counted["first_error"], counted["vendor_error"]) == ((QP_OP, Vendor.OVERRUN) if beyond else (0, Vendor.NONE))
    assert counted["wqes"] == (0 if beyond else qp.depth)


def test_every_vendor_syndrome_is_provoked_in_these_files():
    here = {vendor for _, _, vendor, _ in LOCAL + REFUSED} | set(DROPPED) | {Vendor.OVERRUN, Vendor.OP_DISABLED}
    receive = {Vendor.NO_RECEIVE_QUEUE, Vendor.NOT_READY, Vendor.RECEIVE_OVERRUN, Vendor.RECEIVE_LENGTH, Vendor.RECEIVE_LKEY}
    here |= receive | {Vendor.CQ_OVERRUN, Vendor.WAIT_CQ}  # test_softhca_receive, test_softhca_shared
    here |= {Vendor.NO_ANSWER, Vendor.REFUSED_REMOTELY}  # test_wire_rc
    assert here | {Vendor.NONE, Vendor.INJECTED} == set(Vendor)  # flush: test_softhca_states and below; injected: test_softhca_faults
    assert vendor_text(0xEE) == "vendor syndrome 0xee"


# -------------------------------------------------------------------------------------------------------------------------- flush


@pytest.mark.parametrize("signal", [0, SIGNAL])
def test_an_error_flushes_everything_behind_it(pes, signal):
    """In an ordinary CQ: CQEs of signalled WQEs before, the error, then a flush CQE for each later WQE, signalled or not."""
    qp, peer = pair(pes, collapsed=0, log_cq=4)
    write = (wqe.write, pes[1].heap + 64, pes[1].key, pes[0].heap + 64, pes[0].key, 8)
    pes[0].word(64, 1)
    first = qp.post(*write, fm_ce_se=SIGNAL)
    quiet = qp.post(*write)
    bad = qp.post(wqe.write, pes[1].heap, 0xBAD00, pes[0].heap, pes[0].key, 8, fm_ce_se=signal)
    long = qp.post(wqe.write_inline, pes[1].heap + 128, pes[1].key, b"z" * 100, fm_ce_se=signal)
    atomic = qp.post(wqe.fetch_add, pes[1].heap + 256, pes[1].key, pes[0].heap, pes[0].key, 1)
    qp.ring()
    rig.wait_until(lambda: qp.entry(3) != rig.EMPTY, "CQEs are missing")
    entries = [cqe.decode(qp.entry(slot)) for slot in range(4)]
    assert [entry.wqe_counter for entry in entries] == [first, bad, long, atomic]
    assert quiet not in [entry.wqe_counter for entry in entries]
    assert [entry.opcode for entry in entries] == [CqeOpcode.REQ] + [CqeOpcode.REQ_ERR] * 3
    assert [entry.syndrome for entry in entries] == [0, ACCESS, Syndrome.WR_FLUSH_ERR, Syndrome.WR_FLUSH_ERR]
    assert [entry.s_wqe_opcode for entry in entries] == [Opcode.RDMA_WRITE] * 3 + [Opcode.ATOMIC_FA]
    assert qp.entry(4) == rig.EMPTY
    assert (pes[1].word(64), pes[1].word(128), pes[1].word(256)) == (1, 0, 0)
    assert peer.state() == QpState.ERR
    counted = qp.counters()
    assert (counted["wqes"], counted["errors"], counted["flushed"], counted["consumer"]) == (2, 1, 2, qp.posted)


def test_the_first_error_is_kept_when_flush_cqes_overwrite_it(pes):
    """In a collapsed CQ only the last flush CQE remains, but the adapter still knows the first error."""
    qp = pair(pes)[0]
    qp.post(wqe.write, pes[1].heap, 0xBAD00, pes[0].heap + 40, pes[0].key, 8)
    last = qp.post(wqe.nop)
    qp.ring()
    done = qp.poll(last)
    assert (done.syndrome, done.vendor_err_synd) == (Syndrome.WR_FLUSH_ERR, Vendor.NONE)
    first = pes[0].hca.diagnose(qp.qpn)
    assert (first.wqe_idx, first.syndrome, first.vendor_err_synd) == (0, Syndrome.REMOTE_ACCESS_ERR, rig.told(Vendor.RKEY_UNKNOWN))
    assert first.wqe == qp.log[0][1]
    text = str(first)
    vendor = rig.told(Vendor.RKEY_UNKNOWN)
    assert text.startswith(f"WQE 0: remote access error (0x13), vendor_err_synd {vendor:#x}, {vendor_text(vendor)}; RDMA_WRITE")
    for word in (f"raddr {pes[1].heap:#x}", "rkey 0xbad00", f"8 bytes at {pes[0].heap + 40:#x}"):
        assert word in text
    assert "cannot be decoded" not in text


def test_diagnose_of_an_unknown_wqe(pes):
    qp = pair(pes)[0]
    assert pes[0].hca.diagnose(qp.qpn) is None
    qp.fail(*opcode_of(Opcode.SEND_INVAL))
    text = str(pes[0].hca.diagnose(qp.qpn))
    assert "the software NIC does not support the opcode" in text
    assert re.search(r"a WQE that cannot be decoded \(ctrl.opcode: .*\): 00000001 ", text)
    assert pes[0].hca.diagnose(0x7FFFFF) is None


def test_qps_beside_the_one_that_failed_go_on(pes):
    bad, good = pair(pes)[0], pair(pes)[0]
    bad.fail(wqe.write, pes[1].heap, 0xBAD00, pes[0].heap, pes[0].key, 8)
    pes[0].word(0, 3)
    good.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
    assert pes[1].word(0) == 3
