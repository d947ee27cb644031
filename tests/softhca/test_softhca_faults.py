"""What a real card hides: faults on purpose, pause and resume, counters, traces."""

import time

import pytest
import rig
import wqes as wqe
from rig import QP, SIGNAL, connect, pair

from pgas.base.backend import SIMULATOR
from pgas.base.config import CQE_SYNDROMES, Faults
from pgas.base.errors import TransportError
from pgas.transports.mlx5 import cqe
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca.syndromes import Vendor
from pgas.transports.softhca.tables import TRACE_RECORDS

card, pes, observer = rig.card, rig.pes, rig.observer

MEGABYTE = 1 << 20


# ---------------------------------------------------------------------------------------------------------------------- the variable


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", Faults()),
        (" seed=0x10 , delay=0.25 ", Faults(seed=16, delay=0.25)),
        ("delay=0.1,hold=4096", Faults(delay=0.1, hold=4096)),
        ("late=0.5", Faults(late=0.5)),
        ("fail=3:0x13", Faults(fail=3, syndrome=0x13)),
        ("fail=1:5,fail_qpn=0x400", Faults(fail=1, syndrome=5, fail_qpn=0x400)),
        ("stop=7,atomics=split", Faults(stop=7, split_atomics=True)),
        ("atomics=big_endian", Faults(big_endian_atomics=True)),
        ("refuse=cq_of_one", Faults(refuse_cq_of_one=True)),
        ("refuse=mr_of_chunks", Faults(refuse_mr_of_chunks=True)),
        (f"stop={2**63 - 1},seed={2**64 - 1}", Faults(stop=2**63 - 1, seed=2**64 - 1)),
    ],
)
def test_faults_as_text(text, faults):
    assert Faults.parse(text) == faults


def test_every_syndrome_of_a_cqe_can_be_asked_for():
    assert list(CQE_SYNDROMES) == [syndrome.value for syndrome in Syndrome]


@pytest.mark.parametrize(
    "text",
    [
        "delay=1",
        "late=1.1",
        "delay=-0.1",
        "delay=x",
        "hold=65536",
        "fail=-1:5",
        "fail=3",
        "fail=3:0x99",
        "stop=-1",
        "atomics=no",
        "refuse=x",
        "crash",
    ],
)
def test_text_that_names_no_fault(observer, text):
    with pytest.raises(TransportError, match=text.partition("=")[0]):
        observer.set_faults(text)


# ----------------------------------------------------------------------------------------------------------------------------- fail


@pytest.mark.parametrize("syndrome", [s for s in Syndrome if s != Syndrome.WR_FLUSH_ERR], ids=lambda syndrome: syndrome.name)
def test_the_nth_wqe_fails_with_any_syndrome(pes, observer, syndrome):
    qp, peer = pair(pes)
    observer.set_faults(f"fail=3:{syndrome:#x}")
    for offset in (0, 8):
        qp.run(wqe.write_inline, pes[1].heap + offset, pes[1].key, b"executed")
    assert qp.fail(wqe.write_inline, pes[1].heap + 16, pes[1].key, b"refused!") == (syndrome, Vendor.INJECTED)
    assert pes[1].read(pes[1].heap, 24) == b"executed" * 2 + bytes(8)
    assert (qp.state(), peer.state()) == (QpState.ERR, QpState.RTS)
    first = pes[0].hca.diagnose(qp.qpn)
    assert (first.wqe_idx, first.syndrome, first.words) == (2, syndrome, "an injected fault")
    pair(pes)[0].run(wqe.nop)  # the fault has happened, and does not again


def test_a_fault_of_one_qp_only(pes, observer):
    spared, hit = pair(pes)[0], pair(pes)[0]
    observer.set_faults(f"fail=2:0x13,fail_qpn={hit.qpn:#x}")
    for _ in range(5):
        spared.run(wqe.nop)
    hit.run(wqe.nop)
    assert hit.fail(wqe.nop) == (Syndrome.REMOTE_ACCESS_ERR, Vendor.INJECTED)


def test_faults_can_be_withdrawn(pes, observer):
    qp = pair(pes)[0]
    observer.set_faults("fail=1:0x13,stop=1,delay=0.999,hold=65535")
    observer.set_faults("")
    for _ in range(3):
        qp.run(wqe.nop)
    counted = qp.counters()
    assert (counted["wqes"], counted["cqes"], counted["errors"]) == (3, 3, 0)
    assert not observer.counters()["hca"]["paused"]


# -------------------------------------------------------------------------------------------------------------------- stop and pause


def test_the_engine_stops_behind_the_nth_wqe(pes, observer):
    """A card that hangs: what was executed is complete, nothing else happens; commands still work."""
    qp = pair(pes)[0]
    observer.set_faults("stop=3")
    for offset in range(0, 40, 8):
        last = qp.post(wqe.write_inline, pes[1].heap + offset, pes[1].key, b"executed", fm_ce_se=SIGNAL)
    qp.ring()
    rig.wait_until(lambda: observer.counters()["hca"]["paused"], "the engine goes on")
    assert (qp.counters()["wqes"], qp.counters()["producer"]) == (3, 5)
    assert cqe.decode(qp.entry()).wqe_counter == 2
    time.sleep(5e-3)
    assert pes[1].read(pes[1].heap, 40) == b"executed" * 3 + bytes(16)
    assert qp.state() == QpState.RTS
    observer.resume()
    assert not qp.poll(last).is_error


def test_a_paused_engine_does_nothing_and_a_resumed_one_forgets_nothing(pes, observer):
    qp, other = pair(pes)[0], QP(pes[0])
    observer.pause()
    observer.pause()
    assert observer.counters()["hca"]["paused"]
    for value in (5, 6):
        pes[0].word(0, value)
        last = qp.post(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8, fm_ce_se=SIGNAL)
        qp.ring()
    time.sleep(5e-3)
    assert (pes[1].word(0), qp.entry(), qp.counters()["doorbells"]) == (0, rig.EMPTY, 0)
    other.init()  # commands work: they wait for the engine's passes, which are empty
    other.destroy()
    observer.resume()
    assert not qp.poll(last).is_error
    assert pes[1].word(0) == 6
    assert not observer.counters()["hca"]["paused"]


# ----------------------------------------------------------------------------------------------------------------- delay and reorder


def schedule(pes, observer, faults):
    """Execute signalled NOPs of four QPs under faults, all handed over before the engine starts; return the order of their CQEs."""
    qps = [pair(pes)[0] for _ in range(4)]
    observer.pause()
    for qp in qps:
        for _ in range(10):
            qp.post(wqe.nop, fm_ce_se=SIGNAL)
        qp.ring()
    observer.set_faults(faults)
    observer.trace(["cqe"])
    observer.resume()
    for qp in qps:
        qp.poll(9)
    numbers = {qp.qpn: number for number, qp in enumerate(qps)}
    order = []
    for entry in observer.trace([]):
        words = entry.split()
        order.append((numbers[int(words[4], 16)], int(words[6].rstrip(":"))))
    for qp in qps:
        qp.destroy()
    return order


def test_delays_reorder_the_completions_of_qps_and_not_those_of_one(pes, observer):
    """What RC allows: any interleaving of QPs, and the order of posting in each; the same seed gives the same one."""
    plain, first = schedule(pes, observer, ""), schedule(pes, observer, "seed=1,delay=0.3")
    assert first != plain
    for order in (plain, first):
        for number in range(4):
            assert [index for qp, index in order if qp == number] == list(range(10))
    if SIMULATOR:  # the cuda engine on a GPU looks at QPs in no certain order
        assert plain == [(number, index) for number in range(4) for index in range(10)]
        assert schedule(pes, observer, "seed=1,delay=0.3") == first
        assert schedule(pes, observer, "seed=2,delay=0.3") != first


def test_a_long_write_arrives_last_byte_first(pes, observer):
    """RC orders messages, not the bytes of one: who polls the last byte of a WRITE must not believe the first."""
    observer.set_faults("delay=0.999")
    qp = pair(pes)[0]
    first, last = pes[1].heap, pes[1].heap + MEGABYTE - 1
    pes[0].write(pes[0].heap, b"\x11" * MEGABYTE)
    early = 0
    for _ in range(50):
        pes[1].write(pes[1].heap, bytes(MEGABYTE))
        index = qp.post(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, MEGABYTE, fm_ce_se=SIGNAL)
        qp.ring()
        while pes[1].read(last, 1) == b"\0":
            time.sleep(0)
        early += pes[1].read(first, 1) == b"\0"
        assert not qp.poll(index).is_error
        assert pes[1].read(pes[1].heap, MEGABYTE) == b"\x11" * MEGABYTE
        if early:
            break
    assert early


def test_delayed_streams_give_the_same_memory(pes, observer):
    observer.set_faults("seed=3,delay=0.2")
    qps = [connect(QP(pes[0]), QP(pes[1]))[0] for _ in range(3)]
    for round_ in range(1, 21):
        last = []
        for number, qp in enumerate(qps):
            offset = 64 * number
            pes[0].word(offset, round_)
            qp.post(wqe.write, pes[1].heap + offset, pes[1].key, pes[0].heap + offset, pes[0].key, 8)
            qp.post(wqe.fetch_add, pes[1].heap + offset, pes[1].key, pes[0].heap + offset + 8, pes[0].key, 1000)
            last.append(qp.post(wqe.read, pes[1].heap + offset, pes[1].key, pes[0].heap + offset + 16, pes[0].key, 8, fm_ce_se=SIGNAL))
            qp.ring()
        for number, (qp, index) in enumerate(zip(qps, last, strict=True)):
            assert not qp.poll(index).is_error
            assert [pes[0].word(64 * number + 8 * i) for i in range(3)] == [round_, round_, round_ + 1000]


# ------------------------------------------------------------------------------------------------------------------------ late data

#: Until something pushes it.
LATE = "late=1,hold=0"

late = pytest.mark.skipif(not SIMULATOR, reason="a kernel on a GPU delays no data")


def written_late(pes, qp, nbytes=8):
    """PE 0 writes bytes to PE 1 that are still late when the CQE is there; they are all that is late."""
    data = bytes(range(1, 256)) * 5
    pes[0].write(pes[0].heap, data)
    qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, nbytes)
    first = (nbytes - 256 + 15) // 16 * 16 if nbytes > 256 else 0
    assert pes[1].read(pes[1].heap, nbytes) == data[:first] + bytes(nbytes - first)
    return data[:nbytes]


@late
@pytest.mark.parametrize("nbytes", [1, 8, 256, 1000])
def test_the_end_of_a_write_is_late_until_a_dump_of_the_target(pes, observer, nbytes):
    """The target's own DUMP, on any QP of it; the writer's pushes nothing ahead there."""
    qp, peer = pair(pes)
    observer.set_faults(LATE)
    data = written_late(pes, qp, nbytes)
    qp.run(wqe.dump, pes[0].heap, pes[0].key)
    assert pes[1].read(pes[1].heap, nbytes) != data
    peer.run(wqe.dump, pes[1].heap + 2048, pes[1].key)
    assert pes[1].read(pes[1].heap, nbytes + 1) == data + b"\0"


@late
def test_a_signal_is_seen_before_its_data(pes, observer):
    """An atomic is visible at once, and updates what was late."""
    qp = pair(pes)[0]
    observer.set_faults(LATE)
    written_late(pes, qp)
    qp.run(wqe.fetch_add, pes[1].heap + 64, pes[1].key, pes[0].heap + 512, pes[0].key, 5)
    assert (pes[1].word(0), pes[1].word(64)) == (0, 5)
    qp.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap + 512, pes[0].key, 1)
    assert pes[1].word(0) == 0x0807060504030201 + 1


@late
@pytest.mark.parametrize("fm", list(wqe.Fm))
def test_what_read_and_atomic_fetch_is_late_until_a_fenced_dump(pes, observer, fm):
    """A DUMP without a fence (NVSHMEM's has one) does not wait for them, and does not make their data visible."""
    qp = pair(pes)[0]
    pes[1].word(0, 77)
    pes[1].word(8, 5)
    observer.set_faults(LATE)
    qp.post(wqe.read, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
    qp.run(wqe.fetch_add, pes[1].heap + 8, pes[1].key, pes[0].heap + 8, pes[0].key, 1)
    assert (pes[0].word(0), pes[0].word(8)) == (0, 0)
    qp.run(wqe.dump, pes[0].heap, pes[0].key, fm=fm)
    assert (pes[0].word(0), pes[0].word(8)) == ((77, 5) if fm >= wqe.Fm.FENCE else (0, 0))


@late
def test_a_read_of_the_target_pushes_late_data_ahead(pes, observer):
    """What ibrc does: a READ of own memory, by a QP that is connected to itself."""
    qp = pair(pes)[0]
    own = connect(*[QP(pes[1])] * 2)[0]
    observer.set_faults(LATE)
    written_late(pes, qp)
    own.run(wqe.read, pes[1].heap + 1024, pes[1].key, pes[1].heap + 2048, pes[1].key, 8)
    assert pes[1].word(0) == 0x0807060504030201


@late
def test_later_writes_find_late_ones_in_place(pes, observer):
    """The same bytes again: the newest value stays, whatever was late; and what a WRITE takes from there is not old."""
    qp, peer = pair(pes)
    observer.set_faults("seed=4,late=0.5,hold=2000")
    for value in range(1, 200):
        pes[0].word(0, value)
        qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
        peer.run(wqe.write, pes[0].heap + 64, pes[0].key, pes[1].heap, pes[1].key, 8)
        peer.run(wqe.fetch_add, pes[0].heap + 64, pes[0].key, pes[1].heap + 64, pes[1].key, 0)
        assert pes[0].word(64) == value
    rig.wait_until(lambda: pes[1].word(0) == 199, "the last one is late for ever")


@late
def test_late_data_is_placed_in_the_end(pes, observer):
    """After its delay; if there is no room for more; and before memory is deregistered or a QP reset, which may end the memory's life."""
    qp, peer = pair(pes)
    observer.set_faults("late=1,hold=1000")
    pes[0].word(0, 7)
    qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
    rig.wait_until(lambda: pes[1].word(0) == 7, "the data is late for ever")
    observer.set_faults(LATE)
    for number in range(100):
        qp.run(wqe.write_inline, pes[1].heap + 64 + 8 * number, pes[1].key, b"executed")
    assert pes[1].read(pes[1].heap + 64, 800).count(b"executed") == 36
    pes[1].hca.deregister_mr(pes[1].hca.register_mr(pes[1].heap, 64, pes[1].pdn, rig.ALL)[0])
    assert pes[1].read(pes[1].heap + 64, 800) == b"executed" * 100
    qp.run(wqe.write_inline, pes[1].heap, pes[1].key, b"executed")
    pes[1].command(Command.TO_RST_QP, qpn=peer.qpn)
    assert pes[1].read(pes[1].heap, 8) == b"executed"


# ---------------------------------------------------------------------------------------------------------------- trace and counters


def test_a_trace_shows_bytes_and_what_they_say(pes, observer):
    qp = pair(pes)[0]
    observer.trace(["wqe", "cqe", "cmd"])
    index = qp.post(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8, fm_ce_se=SIGNAL)
    qp.ring()
    qp.poll(index)
    qp.destroy()
    pes[0].refused(Command.QUERY_QP, qpn=qp.qpn)
    executed, completed, command, refused = observer.trace([])
    head, *dump = executed.splitlines()
    assert head.startswith(f"wqe PE 0 qpn {qp.qpn:#08x} index 0: RDMA_WRITE wqe_idx 0x0000")
    assert f"raddr {pes[1].heap:#x} rkey {pes[1].key:#x}, 8 bytes at {pes[0].heap:#x}" in head
    assert "".join("".join(line.split()[1:]) for line in dump) == qp.log[0][1].hex()
    head, *dump = completed.splitlines()
    assert head == f"cqe PE 0 qpn {qp.qpn:#08x} index 0: {cqe.decode(qp.entry())}"
    assert "".join("".join(line.split()[1:]) for line in dump) == qp.entry().hex()
    assert command.startswith("cmd PE 0 DESTROY_QP: OK")
    assert f"destroy_qp_in.qpn = {qp.qpn:#x}" in command
    assert refused.startswith("cmd PE 0 QUERY_QP: BAD_RES (bad resource), syndrome 0x208 QP")
    assert observer.trace() == []


def test_a_trace_that_is_not_taken_loses_the_newest_and_says_so(pes, observer):
    qp = pair(pes, 11)[0]
    observer.pause()
    observer.trace(["wqe"])
    for _ in range(TRACE_RECORDS + 24):
        last = qp.post(wqe.nop)
    data = bytearray(qp.log[-1][1])
    data[11] |= SIGNAL
    rig.send_queue.store(qp.ring_memory(), last, bytes(data))
    qp.ring()
    observer.resume()
    qp.poll(last)
    entries = observer.trace([])
    assert (len(entries), entries[-1]) == (TRACE_RECORDS + 1, f"trace: 24 entries lost, the ring holds {TRACE_RECORDS}")
    assert f" index {TRACE_RECORDS - 1}:" in entries[-2]


def test_a_trace_of_something_else_is_refused(observer):
    with pytest.raises(TransportError, match="unknown: bell; must be one or more of wqe, cqe, cmd"):
        observer.trace(["bell"])


def test_counters_show_every_object(card, pes, observer):
    qp, peer = pair(pes, user_index=9)
    qp.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 100)
    seen = observer.counters()
    assert (seen["name"], seen["pid"], seen["hca"]["pes"]) == (card.name, card.pid, [0, 1])
    shown = next(entry for entry in seen["qps"] if entry["qpn"] == qp.qpn)
    wanted = {
        "pe": 0, "state": "RTS", "depth": 128, "remote_qpn": peer.qpn, "user_index": 9, "uar": qp.uar.page_id, "pd": pes[0].pdn,
        "wqes": 1, "nbytes": 100, "writes": 1, "cqes": 1, "doorbells": 1, "errors": 0, "first_error": 0, "consumer": 1, "producer": 1,
    }  # fmt: skip
    assert {name: shown[name] for name in wanted} == wanted
    assert {"cqn": qp.cqn, "pe": 0, "size": 1, "collapsed": True, "overrun": False, "cqes": 1} in seen["cqs"]
    assert {"page": qp.uar.page_id, "pe": 0, "qpns": [qp.qpn]} in seen["uars"]
    key = next(entry for entry in seen["keys"] if entry["key"] == pes[1].key)
    assert (key["pe"], key["start"], key["nbytes"], key["pd"]) == (1, pes[1].heap, rig.HEAP, pes[1].pdn)
    assert key["access"] == ["LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC"]
