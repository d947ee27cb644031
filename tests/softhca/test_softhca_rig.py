"""The shortest complete run of the software card, and what a PE leaves behind."""

import os

import pytest
import rig
from rig import EMPTY, PE, QP, connect, pair, wait_until

from pgas.base.backend import SIMULATOR
from pgas.kernels import window
from pgas.transports.mlx5 import cqe, wqe
from pgas.transports.mlx5.capabilities import cap_op_mod
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import ANY_QPN, QpState
from pgas.transports.softhca.process import client

card, pes, observer = rig.card, rig.pes, rig.observer


# ------------------------------------------------------------------------------------------------------------------------ bring-up


def test_bring_up_and_one_write(pes):
    """The shortest complete run: caps, CQ, QP, three transitions, a WRITE, its CQE."""
    caps = pes[0].command(Command.QUERY_HCA_CAP, op_mod=cap_op_mod(0))["capability"]
    assert (caps["cqe_version"], caps["cq_oi"], caps["num_ports"]) == (1, 1, 1)
    a, b = QP(pes[0], user_index=0x1234), QP(pes[1])
    assert a.state() == QpState.RST
    connect(a, b)
    assert a.state() == b.state() == QpState.RTS
    pes[0].write(pes[0].heap, b"hello world, hello card!")
    done = a.run(wqe.write, pes[1].heap + 64, pes[1].key, pes[0].heap, pes[0].key, 24)
    assert pes[1].read(pes[1].heap + 60, 32) == bytes(4) + b"hello world, hello card!" + bytes(4)
    assert (done.opcode, done.s_wqe_opcode, done.qpn, done.wqe_counter) == (cqe.CqeOpcode.REQ, wqe.Opcode.RDMA_WRITE, a.qpn, 0)
    assert (done.user_index, done.byte_cnt, done.owner) == (0x1234, 24, 0)
    counted = a.counters()
    assert [counted[n] for n in ("wqes", "nbytes", "doorbells", "cqes", "errors", "writes")] == [1, 24, 1, 1, 0, 1]
    context = pes[0].command(Command.QUERY_QP, qpn=a.qpn)["qpc"]
    assert (context["hw_sq_wqebb_counter"], context["sw_sq_wqebb_counter"], context["remote_qpn"]) == (1, 1, b.qpn)


@pytest.mark.skipif(not SIMULATOR, reason="on GPUs all these tests run so")
def test_a_register_that_a_cpu_rings():
    """CPU and GPU have no common atomics, so the engine cannot exchange the register's value. A doorbell is a changed value, also after a
    reset.
    """
    process = client.start(2, engine=os.environ.get("PGAS_ENGINE", "cpu"), on_host=True)
    pes = [PE(process.name, number) for number in (0, 1)]
    a, b = pair(pes)
    for value in range(1, 4):
        pes[0].word(0, value)
        a.run(wqe.write, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8)
        assert (pes[1].word(0), a.counters()["doorbells"]) == (value, value)
    for qp in (a, b):
        pes[qp is b].command(Command.TO_RST_QP, qpn=qp.qpn)
        qp.posted = 0
        pes[qp is b].write(qp.pe.slot + qp.cq, EMPTY)
    connect(a, b)
    for value in range(1, 4):  # the third doorbell has the last value before the reset
        pes[0].word(0, value)
        a.run(wqe.write, pes[1].heap + 8, pes[1].key, pes[0].heap, pes[0].key, 8)
        assert (pes[1].word(8), a.counters()["doorbells"]) == (value, value)
    for pe in pes:
        pe.close()
    process.close()


def test_a_pe_that_leaves_leaves_nothing(card, pes, observer):
    pair(pes)
    pes[0].command(
        Command.CREATE_MKEY,
        mkey_umem_valid=1,
        mkey_umem_id=pes[0].umem,
        mkc={"access_mode_1_0": 1, "lr": 1, "qpn": ANY_QPN, "pd": pes[0].pdn, "len": 4096},
    )
    for pe in pes:
        pe.close()
    wait_until(lambda: not observer.counters()["hca"]["pes"], "PEs remain")
    left = observer.counters()
    assert (left["qps"], left["cqs"], left["keys"], left["uars"]) == ([], [], [], [])
    with open(f"/proc/{card.pid}/maps", encoding="ascii") as file:
        assert not [line for line in file if int(line.split("-")[0], 16) >> 38 == window.BASE >> 38]
    assert os.path.exists(f"/proc/{card.pid}")
