"""The devices without pgas: two or more processes connect RC queue pairs through pyverbs. If this fails, the set-up is at fault."""

import os
import time
from dataclasses import dataclass

import numpy as np
import pytest

from rxe.link import DEVICE as DEVICE_ON_LINK
from rxe.link import link_down, port_state

pytest.importorskip("pyverbs", reason="capability missing: pyverbs")
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

try:
    import pyverbs.libibverbs_enums as e
except ImportError:
    import pyverbs.enums as e  # before rdma-core 54

HAS_DEVICES = all(os.path.exists(f"/sys/class/infiniband/{name}") for name in ("rxe0", DEVICE_ON_LINK))
LAUNCHED = any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK"))
pytestmark = [
    pytest.mark.skipif(not HAS_DEVICES, reason="capability missing: the guest's RDMA devices (make check-rxe)"),
    pytest.mark.skipif(not LAUNCHED, reason="capability missing: a second process (mpirun)"),
    pytest.mark.timeout(60),
]

HEAP_BYTES = 8192
GID_INDEX = 1  # RoCE v2 with the interface's IPv4 address; 0 is the link-local IPv6 one
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
ATOMICS = (e.IBV_WR_ATOMIC_FETCH_AND_ADD, e.IBV_WR_ATOMIC_CMP_AND_SWP)
TIMEOUT, RETRIES = 10, 3  # 4.096 us * 2^10, 4 times: 17 ms


@dataclass
class Peer:
    """A process's description of itself for the others."""

    gid: str
    address: int
    rkey: int
    qpns: list[int]  # one for each process


class Node:
    """One device: registered memory, and a queue pair to every process of the job."""

    def __init__(self, comm, device):
        self.me, self.n = comm.rank, comm.size
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.heap = np.zeros(HEAP_BYTES, np.uint8)
        self.words = self.heap.view(np.uint64)
        self.mr = MR(self.pd, HEAP_BYTES, ACCESS, address=self.heap.ctypes.data)
        self.cq = CQ(self.context, 64)
        capacity = QPCap(max_send_wr=32, max_recv_wr=1, max_send_sge=1, max_recv_sge=1)
        attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=capacity, sq_sig_all=0)
        self.qps = [QP(self.pd, attributes) for _ in range(self.n)]
        gid = self.context.query_gid(1, GID_INDEX).gid
        self.peers = comm.allgather(Peer(gid, self.heap.ctypes.data, self.mr.rkey, [qp.qp_num for qp in self.qps]))
        for qp, peer in zip(self.qps, self.peers):
            self._connect(qp, peer)
        comm.Barrier()

    def _connect(self, qp, peer):
        """Bring a queue pair from RESET through INIT and RTR to RTS."""
        init = QPAttr(qp_state=e.IBV_QPS_INIT)
        init.pkey_index, init.port_num, init.qp_access_flags = 0, 1, ACCESS
        qp.modify(init, e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS)
        route = GlobalRoute(dgid=GID(peer.gid), sgid_index=GID_INDEX)
        route.hop_limit = 64
        rtr = QPAttr(qp_state=e.IBV_QPS_RTR)
        rtr.path_mtu = self.context.query_port(1).active_mtu
        rtr.dest_qp_num, rtr.rq_psn = peer.qpns[self.me], 0
        rtr.max_dest_rd_atomic, rtr.min_rnr_timer = 4, 12
        rtr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=0)
        path = e.IBV_QP_AV | e.IBV_QP_PATH_MTU | e.IBV_QP_DEST_QPN | e.IBV_QP_RQ_PSN
        qp.modify(rtr, e.IBV_QP_STATE | path | e.IBV_QP_MAX_DEST_RD_ATOMIC | e.IBV_QP_MIN_RNR_TIMER)
        rts = QPAttr(qp_state=e.IBV_QPS_RTS)
        rts.timeout, rts.retry_cnt, rts.rnr_retry, rts.sq_psn, rts.max_rd_atomic = TIMEOUT, RETRIES, RETRIES, 0, 4
        retries = e.IBV_QP_TIMEOUT | e.IBV_QP_RETRY_CNT | e.IBV_QP_RNR_RETRY
        qp.modify(rts, e.IBV_QP_STATE | retries | e.IBV_QP_SQ_PSN | e.IBV_QP_MAX_QP_RD_ATOMIC)

    def post(self, opcode, pe, offset, remote, nbytes=8, *, operands=(0, 0), rkey=None, signaled=True):
        """Post one work request of nbytes between this heap at offset and a PE's heap at remote."""
        peer = self.peers[pe]
        rkey = peer.rkey if rkey is None else rkey
        sge = SGE(self.heap.ctypes.data + offset, nbytes, self.mr.lkey)
        wr = SendWR(opcode=opcode, num_sge=1, sg=[sge], send_flags=e.IBV_SEND_SIGNALED if signaled else 0)
        if opcode in ATOMICS:
            wr.set_wr_atomic(rkey, peer.address + remote, *operands)
        else:
            wr.set_wr_rdma(rkey, peer.address + remote)
        self.qps[pe].post_send(wr)

    def status(self):
        """Wait for a completion and return its status."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            count, completions = self.cq.poll(1)
            if count:
                return completions[0].status
        raise TimeoutError("no completion within 20 s")

    def do(self, *args, **kwargs):
        """post() and wait until it has succeeded."""
        self.post(*args, **kwargs)
        assert self.status() == e.IBV_WC_SUCCESS

    def close(self):
        for resource in (*self.qps, self.cq, self.mr, self.pd, self.context):
            resource.close()


@pytest.fixture
def comm():
    from mpi4py import MPI

    yield MPI.COMM_WORLD
    MPI.COMM_WORLD.Barrier()


@pytest.fixture
def device():
    return "rxe0"


@pytest.fixture
def node(comm, device):
    node = Node(comm, device)
    yield node
    comm.Barrier()
    node.close()


@pytest.mark.parametrize("device", ["rxe0", DEVICE_ON_LINK])
def test_write_and_read(node, comm):
    right, left = (node.me + 1) % node.n, (node.me - 1) % node.n
    node.heap[:4096] = np.arange(4096) % 251 + node.me
    node.do(e.IBV_WR_RDMA_WRITE, right, 0, 4096, 4096)
    comm.Barrier()
    assert np.array_equal(node.heap[4096:], np.arange(4096) % 251 + left)
    node.heap[:4096] = 0
    node.do(e.IBV_WR_RDMA_READ, right, 0, 4096, 4096)
    assert np.array_equal(node.heap[:4096], np.arange(4096) % 251 + node.me)


def test_atomics(node, comm):
    rounds = 20
    seen = []
    for _ in range(rounds):
        node.do(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 0, operands=(3, 0))
        seen.append(int(node.words[1]))
    everyone = sorted(value for values in comm.allgather(seen) for value in values)
    assert everyone == [3 * i for i in range(rounds * node.n)]
    total = 3 * rounds * node.n
    right = (node.me + 1) % node.n
    node.words[2] = total
    comm.Barrier()
    for expected, new, found in ((total, 7, total), (total, 9, 7)):  # one that matches, one that does not
        node.do(e.IBV_WR_ATOMIC_CMP_AND_SWP, right, 8, 16, operands=(expected, new))
        assert int(node.words[1]) == found
    comm.Barrier()
    assert int(node.words[2]) == 7


def test_a_write_arrives_before_the_atomic_behind_it(node):
    right = (node.me + 1) % node.n
    node.heap[1024:4096] = 0xA5
    node.post(e.IBV_WR_RDMA_WRITE, right, 1024, 4096, 3072, signaled=False)
    node.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, right, 8, 0, operands=(1, 0))
    deadline = time.monotonic() + 20
    while node.words[0] == 0 and time.monotonic() < deadline:
        pass
    assert node.words[0] == 1
    assert (node.heap[4096:7168] == 0xA5).all()
    assert node.status() == e.IBV_WC_SUCCESS


def test_a_wrong_rkey_is_an_error(node):
    if node.me == 0:  # the answer breaks the other side's queue pair, too
        node.post(e.IBV_WR_RDMA_WRITE, 1, 0, 0, rkey=node.peers[1].rkey ^ 0xFF)
        assert node.status() == e.IBV_WC_REM_ACCESS_ERR


def test_a_peer_that_does_not_answer_is_an_error(node, comm):
    right = (node.me + 1) % node.n
    if node.me == 0:
        comm.recv(source=right)  # its queue pair is gone
        node.post(e.IBV_WR_RDMA_WRITE, right, 0, 4096)
        assert node.status() == e.IBV_WC_RETRY_EXC_ERR
    elif node.me == 1:
        node.qps[0].close()
        comm.send(None, dest=0)


@pytest.mark.parametrize("device", [DEVICE_ON_LINK])
def test_a_link_that_goes_down_is_an_error_and_comes_back(node, comm, device):
    """rxe finds no route over the interface and fails at once; a card would send and time out with IBV_WC_RETRY_EXC_ERR."""
    right = (node.me + 1) % node.n
    if node.me == 0:
        with link_down():
            node.post(e.IBV_WR_RDMA_WRITE, right, 0, 4096)
            assert node.status() == e.IBV_WC_LOC_QP_OP_ERR
    comm.Barrier()
    assert port_state() == "ACTIVE"
    again = Node(comm, device)
    again.do(e.IBV_WR_RDMA_WRITE, right, 0, 4096)
    comm.Barrier()
    again.close()
