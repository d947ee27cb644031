"""CQs and QPs of plain verbs over the software card, both ends in this process, with the real pyverbs, libibverbs and libmlx5."""

import os
import random
import time

import pytest

from pgas.transports.mlx5.contexts import QpState
from uverbs import cards, local

pytestmark = pytest.mark.skipif(
    os.environ.get(cards.CARD) != cards.LOCAL,
    reason="capability missing: a card in this process (python -m uverbs --local; test_rdma_core.py)",
)

ACCESS = 0xF
SIZE = 1 << 16


@pytest.fixture(scope="module")
def verbs():
    """Return pyverbs, which is imported only under ``python -m uverbs``."""
    from types import SimpleNamespace

    from pyverbs import addr, cq, device, mr, pd, pyverbs_error, qp, wr
    from pyverbs import enums as e

    return SimpleNamespace(addr=addr, cq=cq, device=device, mr=mr, pd=pd, qp=qp, wr=wr, e=e, Error=pyverbs_error.PyverbsRDMAError)


class Side:
    """A context with a CQ, a memory region and QPs."""

    def __init__(self, verbs, *, cqes=64, sends=16, receives=16, inline=64, n_qps=1):
        self.v = verbs
        self.context = verbs.device.Context(name="mlx5_0")
        self.pd = verbs.pd.PD(self.context)
        self.cq = verbs.cq.CQ(self.context, cqes, None, None, 0)
        self.mr = verbs.mr.MR(self.pd, SIZE, ACCESS)
        cap = verbs.qp.QPCap(max_send_wr=sends, max_recv_wr=receives, max_send_sge=2, max_recv_sge=2, max_inline_data=inline)
        init = verbs.qp.QPInitAttr(qp_type=verbs.e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap)
        self.qps = [verbs.qp.QP(self.pd, init) for _ in range(n_qps)]

    @property
    def qp(self):
        return self.qps[0]

    def attributes(self, peer_qpn, **more):
        attr = self.v.qp.QPAttr(port_num=1)
        attr.qp_access_flags = ACCESS
        attr.path_mtu = self.v.e.IBV_MTU_1024
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 16
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = peer_qpn, 0, 0
        gid = self.context.query_gid(1, 0)
        route = self.v.addr.GlobalRoute(dgid=gid, sgid_index=0)
        attr.ah_attr = self.v.addr.AHAttr(port_num=1, is_global=1, gr=route, dlid=1)
        for name, value in more.items():
            setattr(attr, name, value)
        return attr

    def sge(self, offset, nbytes):
        return self.v.wr.SGE(self.mr.buf + offset, nbytes, self.mr.lkey)

    def send(self, opcode, *segments, flags=0, remote=None, wr_id=0, imm=0, atomic=None, qp=None):
        send = self.v.wr.SendWR(
            wr_id, num_sge=len(segments), sg=list(segments), opcode=opcode, send_flags=self.v.e.IBV_SEND_SIGNALED | flags, imm_data=imm
        )
        if atomic is not None:
            send.set_wr_atomic(*remote[::-1], *atomic)
        elif remote is not None:
            send.set_wr_rdma(*remote[::-1])
        (qp or self.qp).post_send(send)

    def receive(self, offset, nbytes, qp=None, wr_id=0):
        (qp or self.qp).post_recv(self.v.wr.RecvWR(wr_id, num_sge=1, sg=[self.sge(offset, nbytes)]))

    def poll(self, count=1, timeout_s=10):
        found, deadline = [], time.monotonic() + timeout_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} completions"
            found += self.cq.poll(count - len(found))[1]
        return found

    def state(self, qp=None):
        return QpState((qp or self.qp).query(self.v.e.IBV_QP_STATE)[0].qp_state)

    def close(self):
        self.context.close()


@pytest.fixture
def sides(verbs):
    """Makes connected pairs of sides, and checks that they leave nothing on the card."""
    made = []

    def make(to=(), **options):
        pair = Side(verbs, **options), Side(verbs, **options)
        made.extend(pair)
        for me, other in (pair, pair[::-1]):
            for qp, peer in zip(me.qps, other.qps, strict=True):
                qp.to_rts(me.attributes(peer.qp_num, **dict(to)))
        return pair

    yield make
    for side in made:
        side.close()
    card = local._card()
    assert [len(objects) for objects in (card.objects.umems, card.objects.keys, card.objects.pds, card.objects.uars)] == [0] * 4
    assert (card.firmware.queues.qps, card.firmware.queues.cqs) == ({}, {})


def test_writes_and_reads_wrap_the_queue(verbs, sides):
    """200 work requests with one segment, two, or inline data through a queue of 16; some WQEs end at the end of the ring."""
    a, b = sides()
    choose, model = random.Random(5), bytearray(SIZE // 2)
    for i in range(200):
        nbytes, at = choose.choice([1, 8, 40, 64, 700]), choose.randrange(SIZE // 2 - 1400)
        data = choose.randbytes(nbytes).hex()[:nbytes]
        a.mr.write(data, nbytes, SIZE // 2)
        segments = [a.sge(SIZE // 2, nbytes)]
        if nbytes == 700:
            segments = [a.sge(SIZE // 2, 300), a.sge(SIZE // 2 + 300, 400)]
        flags = verbs.e.IBV_SEND_INLINE if nbytes <= 64 and i % 2 else 0
        a.send(verbs.e.IBV_WR_RDMA_WRITE, *segments, flags=flags, remote=(b.mr.buf + at, b.mr.rkey), wr_id=i)
        done = a.poll()[0]
        assert (done.status, done.wr_id) == (verbs.e.IBV_WC_SUCCESS, i)
        model[at : at + nbytes] = data.encode()
    a.send(verbs.e.IBV_WR_RDMA_READ, a.sge(0, SIZE // 2), remote=(b.mr.buf, b.mr.rkey))
    done = a.poll()[0]
    assert (done.status, done.opcode, done.byte_len) == (verbs.e.IBV_WC_SUCCESS, verbs.e.IBV_WC_RDMA_READ, SIZE // 2)
    assert a.mr.read(SIZE // 2, 0) == b.mr.read(SIZE // 2, 0) == bytes(model)


def test_atomics(verbs, sides):
    a, b = sides()
    b.mr.write((40).to_bytes(8, "little").decode("latin-1"), 8, 0)
    word = b.mr.buf, b.mr.rkey
    a.send(verbs.e.IBV_WR_ATOMIC_FETCH_AND_ADD, a.sge(0, 8), remote=word, atomic=(2, 0))
    a.send(verbs.e.IBV_WR_ATOMIC_CMP_AND_SWP, a.sge(8, 8), remote=word, atomic=(42, 7))
    a.send(verbs.e.IBV_WR_ATOMIC_CMP_AND_SWP, a.sge(16, 8), remote=word, atomic=(42, 9))
    assert [done.status for done in a.poll(3)] == [verbs.e.IBV_WC_SUCCESS] * 3
    olds = a.mr.read(24, 0)
    assert [int.from_bytes(olds[i : i + 8], "little") for i in (0, 8, 16)] == [40, 42, 7]
    assert int.from_bytes(b.mr.read(8, 0), "little") == 7


def test_errors_of_both_ends_and_flushes(verbs, sides):
    """A receive is too short; the other work requests are flushed; after RESET everything works again."""
    a, b = sides()
    b.receive(0, 4, wr_id=1)
    b.receive(0, 64, wr_id=2)
    a.send(verbs.e.IBV_WR_SEND, a.sge(0, 8), wr_id=3)
    a.send(verbs.e.IBV_WR_SEND, a.sge(0, 8), wr_id=4)
    flushed, e = verbs.e.IBV_WC_WR_FLUSH_ERR, verbs.e
    assert [(done.wr_id, done.status) for done in a.poll(2)] == [(3, e.IBV_WC_REM_INV_REQ_ERR), (4, flushed)]
    assert [(done.wr_id, done.status) for done in b.poll(2)] == [(1, e.IBV_WC_LOC_LEN_ERR), (2, flushed)]
    for side, other in ((a, b), (b, a)):
        side.qp.modify(verbs.qp.QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        assert side.state() == QpState.RST
        side.qp.to_rts(side.attributes(other.qp.qp_num))
    b.receive(0, 64, wr_id=5)
    a.send(verbs.e.IBV_WR_SEND, a.sge(0, 8), wr_id=6)
    assert (a.poll()[0].wr_id, b.poll()[0].wr_id) == (6, 5)
