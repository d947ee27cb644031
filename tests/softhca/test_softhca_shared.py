"""QPs that share a doorbell register, and WAIT, by which one QP waits for another's CQE. DOCA uses both."""

import os
import random
import time

import pytest
import rig
import wqes as wqe
from rig import CQ, QP, SIGNAL, connect, pair

from pgas.base.backend import SIMULATOR
from pgas.transports.mlx5 import doorbell
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca.syndromes import Vendor

card, pes, observer = rig.card, rig.pes, rig.observer

pytestmark = pytest.mark.skipif(not SIMULATOR or os.environ.get("PGAS_ENGINE", "cpu") != "cpu", reason="of the cpu engine")

# ------------------------------------------------------------------------------------------------------------- one doorbell register


def add(qp, pes, word, **options):
    return qp.post(wqe.fetch_add, pes[1].heap + 8 * word, pes[1].key, pes[0].heap + 4096, pes[0].key, 1, **options)


@pytest.mark.parametrize("by_wqe", [False, True])
def test_qps_that_share_a_register(pes, by_wqe):
    """A later doorbell overwrites an earlier one, but all rung WQEs are executed, once."""
    first = QP(pes[0])
    qps = [first, *(QP(pes[0], uar=first.uar) for _ in range(3))]
    for qp in qps:
        connect(qp, QP(pes[1]))
    choose, last, counts = random.Random(3), [0] * 4, [0] * 4
    for _ in range(100):
        rung = choose.sample(range(4), choose.randint(1, 4))
        for i in rung:
            for _ in range(choose.randint(1, 8)):
                last[i] = add(qps[i], pes, i, fm_ce_se=SIGNAL)
                counts[i] += 1
        for i in rung:
            qps[i].ring(by_wqe=by_wqe)
        for i in rung:
            qps[i].poll(last[i])
    assert [pes[1].word(8 * i) for i in range(4)] == counts
    assert [qp.counters()["foreign_doorbells"] for qp in qps] == [0] * 4


def test_a_register_that_becomes_shared_while_it_is_rung(pes, observer):
    """A pending doorbell is not lost."""
    first = QP(pes[0])
    connect(first, QP(pes[1]))
    observer.pause()
    index = add(first, pes, 0, fm_ce_se=SIGNAL)
    first.ring()
    second = QP(pes[0], uar=first.uar)
    connect(second, QP(pes[1]))
    observer.resume()
    first.poll(index)
    second.poll(_rung(second, pes))
    assert pes[1].word(0) == 2


def _rung(qp, pes):
    index = add(qp, pes, 0, fm_ce_se=SIGNAL)
    qp.ring()
    return index


def test_a_record_too_far_ahead_of_a_shared_register(pes):
    first = QP(pes[0])
    qps = first, QP(pes[0], uar=first.uar)
    for qp in qps:
        connect(qp, QP(pes[1]))
    qps[1].posted += 1000
    qps[1].record()
    qps[1].uar_word(doorbell.next_empty(qps[1].posted, qps[1].qpn))
    rig.wait_until(lambda: qps[1].state() == QpState.ERR, "the QP is not in ERR")
    assert (qps[0].state(), qps[1].counters()["vendor_error"]) == (QpState.RTS, Vendor.OVERRUN)
    first.poll(_rung(first, pes))


# ---------------------------------------------------------------------------------------------------------------------------- WAIT


def nothing_happens(*qps):
    before = [qp.counters()["wqes"] for qp in qps]
    time.sleep(0.02)
    assert [qp.counters()["wqes"] for qp in qps] == before


def test_wqes_behind_a_wait_start_after_the_cqe(pes):
    """As DOCA counts completed puts: the companion QP waits for the CQE of the main QP's last WQE, by number, then adds to a counter."""
    main, companion = pair(pes, collapsed=0, log_cq=5)[0], pair(pes)[0]
    companion.post(wqe.wait, main.cqn, 1, fm_ce_se=SIGNAL)
    counted = add(companion, pes, 0, fm_ce_se=SIGNAL)
    companion.ring()
    nothing_happens(companion)
    for number in range(2):
        assert pes[1].word(0) == 0
        add(main, pes, 1, fm_ce_se=SIGNAL)
        main.ring()
        if number == 0:
            rig.wait_until(lambda: main.counters()["cqes"] == 1, "no CQE")
            nothing_happens(companion)
    companion.poll(counted)
    assert (pes[1].word(0), pes[1].word(8)) == (1, 2)
    assert companion.counters()["cqes"] == 2  # including the WAIT's
    companion.run(wqe.wait, main.cqn, 0)  # an existing CQE ends a WAIT at once


def test_other_qps_go_on_while_one_waits(pes):
    main, companion, other = pair(pes)[0], pair(pes)[0], pair(pes)[0]
    waiting = companion.post(wqe.wait, main.cqn, 0, fm_ce_se=SIGNAL)
    companion.ring()
    for _ in range(10):
        other.poll(_rung(other, pes))
    main.run(wqe.nop)
    companion.poll(waiting)


def test_a_wait_that_is_flushed(pes):
    companion, cq = pair(pes)[0], CQ(pes[0])
    index = companion.post(wqe.wait, cq.cqn, 0)
    companion.ring()
    nothing_happens(companion)
    pes[0].command(Command.TO_ERR_QP, qpn=companion.qpn)
    assert companion.poll(index).syndrome == Syndrome.WR_FLUSH_ERR
    waiting = pair(pes)[0]
    waiting.post(wqe.wait, cq.cqn, 0)
    waiting.ring()
    waiting.destroy()
    pes[0].command(Command.DESTROY_CQ, cqn=cq.cqn)


def test_a_wait_for_a_missing_cq(pes):
    theirs, gone = CQ(pes[1]), CQ(pes[0])
    pes[0].command(Command.DESTROY_CQ, cqn=gone.cqn)
    for cqn in (theirs.cqn, gone.cqn, 0, 0xFFFFFFFF):
        assert pair(pes)[0].fail(wqe.wait, cqn, 0) == (Syndrome.LOCAL_QP_OP_ERR, Vendor.WAIT_CQ)


def test_a_wait_of_another_size(pes):
    qp = pair(pes)[0]
    assert qp.fail(lambda index, qpn: wqe.wait(index, qpn, qp.cqn, 0)[:7] + b"\x01" + bytes(8))[1] == Vendor.WQE_DS
