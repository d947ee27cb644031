"""The shortest complete run of the software card, and what a PE leaves behind."""

import os

import pytest
import rig
from rig import EMPTY, PE, connect, pair, wait_until

from pgas.base.backend import SIMULATOR
from pgas.kernels import window
from pgas.transports.mlx5 import wqe
from pgas.transports.mlx5.commands import Command
from pgas.transports.mlx5.contexts import ANY_QPN
from pgas.transports.softhca.process import client

card, pes, observer = rig.card, rig.pes, rig.observer


# ------------------------------------------------------------------------------------------------------------------------ bring-up


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
    process.end()


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
