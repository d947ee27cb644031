"""The dma engine, whose kernel reads and writes the PEs' memory. `make check-all` runs all tests of WQEs on it (PGAS_ENGINE=dma).

Its queue pairs use packets on one card as well, by which it sends them to itself.
"""

import pytest
import rig
import wqes as wqe
from rig import QP, SIGNAL, connect, pair

from pgas.base.backend import SIMULATOR
from pgas.base.errors import TransportError
from pgas.transports.mlx5 import cqe, doorbell
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.softhca import tables
from pgas.transports.softhca.engine import dma
from pgas.transports.softhca.process import client
from pgas.transports.softhca.syndromes import Vendor

pytestmark = pytest.mark.skipif(not SIMULATOR, reason="on a GPU, check_gpu runs the tests of WQEs on it (PGAS_ENGINE=dma)")

pes, observer = rig.pes, rig.observer


@pytest.fixture(scope="module")
def card():
    process = client.start(1 << 15, engine="dma")
    yield process
    process.end()


@pytest.mark.parametrize("nbytes", [1, dma.INLINE_BYTES, 5000, 3 * dma.STAGE_BYTES + 5])
def test_write_and_read(pes, nbytes):
    """Data in a command, in one packet, and longer than the stage; at odd addresses."""
    qp, data = pair(pes)[0], bytes(i * 7 % 251 for i in range(nbytes))
    pes[0].write(pes[0].heap + 3, data)
    qp.run(wqe.write, pes[1].heap + 1, pes[1].key, pes[0].heap + 3, pes[0].key, nbytes)
    assert pes[1].read(pes[1].heap, nbytes + 2) == b"\0" + data + b"\0"
    qp.run(wqe.read, pes[1].heap + 1, pes[1].key, pes[0].heap + nbytes + 5, pes[0].key, nbytes)
    assert pes[0].read(pes[0].heap + nbytes + 5, nbytes) == data


def test_wqes_beyond_the_doorbell(pes):
    """The doorbell announces the first of them, the doorbell record all. The queue wraps in between."""
    a, b = QP(pes[0], 3).begin(6), QP(pes[1], 3)
    connect(a, b)
    for value in range(5):
        pes[0].word(8 * value, value + 1)
        last = a.post(wqe.write, pes[1].heap + 8 * value, pes[1].key, pes[0].heap + 8 * value, pes[0].key, 8, fm_ce_se=SIGNAL)
    a.record()
    a.uar_word(doorbell.next_empty(7, a.qpn))
    a.poll(last)
    assert [pes[1].word(8 * value) for value in range(5)] == [1, 2, 3, 4, 5]


def test_data_is_read_when_its_wqe_is_executed(pes):
    """Not earlier, together with that of an earlier WQE whose data is before it."""
    qp = pair(pes)[0]
    for value in range(20):
        for offset in (0, 4096):
            pes[0].word(offset, 1000 * value + offset)
            qp.run(wqe.write, pes[1].heap + offset, pes[1].key, pes[0].heap + offset, pes[0].key, 4096)
            assert pes[1].word(offset) == 1000 * value + offset


def test_atomics_and_errors(pes):
    qp = pair(pes)[0]
    pes[1].word(0, 5)
    qp.run(wqe.fetch_add, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 3)
    assert (pes[0].word(0), pes[1].word(0)) == (5, 8)
    qp.run(wqe.masked_compare_swap, pes[1].heap, pes[1].key, pes[0].heap, pes[0].key, 8, 0, 0xFF00, 0, 0xFF00)
    assert (pes[0].word(0), pes[1].word(0)) == (8, 0xFF08)
    bad = (wqe.write, pes[1].heap, 0xBAD00, pes[0].heap, pes[0].key, 8)
    assert qp.fail(*bad) == (Syndrome.REMOTE_ACCESS_ERR, Vendor.REFUSED_REMOTELY)
    qp.post(wqe.nop)
    qp.ring()
    rig.wait_until(lambda: cqe.decode(qp.entry()).syndrome == Syndrome.WR_FLUSH_ERR, "the next WQE is not flushed")


def test_fields_behind_the_records_have_room():
    assert tables.QP.itemsize >= tables.QP_RING + 8
    assert tables.CONTROL.itemsize >= tables.CTL_DMA + 8


def test_faults_that_it_does_not_have(observer):
    for fault in ("late=0.5", "atomics=split"):
        with pytest.raises(TransportError, match="dma engine"):
            observer.set_faults(fault)
