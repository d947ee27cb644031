"""The wire of the software NIC against the kernel's Soft-RoCE, driven by rdma-core: requests of every kind, in both directions.

In the guest: make check-rxe-wire. The kernel's device is on one end of a veth pair. The software NIC is in a network namespace with the
other end, because Soft-RoCE takes UDP port 4791 of its own namespace. All packets between them are also decoded by scapy.
"""

import ctypes
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from rxe.link import ip

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists("/sys/class/infiniband/rxe0"), reason="capability missing: the guest's RDMA devices (make check-rxe-wire)"
    ),
    pytest.mark.timeout(1200),
]

DEVICE, THERE, HERE = "rxe9", "10.79.0.1", "10.79.0.2"
PSNS = 0xFFFFFC, 0x1234  # of the kernel and of pgas
CLONE_NEWNET, ETH_P_ALL = 0x40000000, 3
ROOM = 1 << 16


@pytest.fixture(scope="module")
def network():
    """Make the pair, and move this thread to the namespace of the software NIC after the kernel's device was opened."""
    other = subprocess.Popen(["unshare", "--net", "sleep", "1200"])
    while os.readlink(f"/proc/{other.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.05)
    ip("link", "add", "wire0", "type", "veth", "peer", "name", "wire1", "netns", str(other.pid))
    ip("address", "add", f"{THERE}/24", "dev", "wire0")
    ip("link", "set", "wire0", "up")
    inside = ["nsenter", "--target", str(other.pid), "--net"]
    for command in (["link", "set", "lo", "up"], ["address", "add", f"{HERE}/24", "dev", "wire1"], ["link", "set", "wire1", "up"]):
        subprocess.run([*inside, "ip", *command], check=True)
    subprocess.run(["rdma", "link", "add", DEVICE, "type", "rxe", "netdev", "wire0"], check=True)
    yield other.pid
    other.kill()
    other.wait()


def gid_text(address):
    """Return the GID of an IPv4 address as sysfs writes it."""
    return "0000:0000:0000:0000:0000:ffff:" + ":".join(socket.inet_aton(address).hex()[i : i + 4] for i in (0, 4))


class Kernel:
    """A queue pair of the kernel's device, by rdma-core."""

    def __init__(self, context, gid_index):
        from pyverbs import enums as e
        from pyverbs.cq import CQ
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

        self.e, self.gid_index = e, gid_index
        self.pd = PD(context)
        flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        self.mr, self.cq = MR(self.pd, ROOM, flags), CQ(context, 64)
        cap = QPCap(max_send_wr=32, max_recv_wr=32, max_send_sge=1, max_recv_sge=1)
        self.attr = QPAttr(port_num=1)
        self.attr.qp_access_flags = flags
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap), self.attr)

    def connect(self, qpn, *, psns=PSNS, rnr_retry=7, timeout=14, retries=7):
        from pyverbs.addr import GID, AHAttr, GlobalRoute

        attr, e = self.attr, self.e
        route = GlobalRoute(dgid=GID(gid_text(HERE)), sgid_index=self.gid_index, hop_limit=64)
        attr.ah_attr = AHAttr(gr=route, port_num=1, is_global=1)
        attr.dest_qp_num, attr.path_mtu, attr.rq_psn, attr.sq_psn = qpn, e.IBV_MTU_1024, psns[1], psns[0]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 1, timeout, retries, rnr_retry
        self.qp.to_rts(attr)

    def run(self, opcode, nbytes, *, at=0, imm=None, remote=None, add=0, swap=0):
        """Post a request, and return the status of its completion."""
        from pyverbs.wr import SGE, SendWR

        request = SendWR(opcode=opcode, num_sge=1, sg=[SGE(self.mr.buf + at, nbytes, self.mr.lkey)], imm_data=imm or 0)
        if remote is not None:
            request.set_wr_rdma(remote[1], remote[0])
        if opcode in (self.e.IBV_WR_ATOMIC_FETCH_AND_ADD, self.e.IBV_WR_ATOMIC_CMP_AND_SWP):
            request.set_wr_atomic(remote[1], remote[0], add, swap)
        self.qp.post_send(request)
        return self.poll().status

    def receive(self, at, nbytes):
        from pyverbs.wr import SGE, RecvWR

        self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf + at, nbytes, self.mr.lkey)]))

    def poll(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            number, found = self.cq.poll(1)
            if number:
                return found[0]
        raise AssertionError("no completion")

    def put(self, at, data):
        ctypes.memmove(self.mr.buf + at, data, len(data))

    def data(self, at, nbytes):
        return ctypes.string_at(self.mr.buf + at, nbytes)


class Pair:
    """Connected queue pairs of the kernel and of pgas."""

    def __init__(self, context, gid_index, pe, *, psns=PSNS, **options):
        import rig

        self.kernel, self.pe = Kernel(context, gid_index), pe
        there = rig.CQ(pe)
        self.qp, self.receives = rig.QP(pe, receive=3, receive_cq=there), there
        gid = int.from_bytes(bytes(10) + b"\xff\xff" + socket.inet_aton(THERE), "big")
        path = {"vhca_port_num": 1, "rgid_rip": gid}
        self.qp.init().rtr(self.kernel.qp.qp_num, mtu=3, next_rcv_psn=PSNS[0], min_rnr_nak=1, log_rra_max=2, primary_address_path=path)
        self.qp.rts(next_send_psn=psns[1], log_sra_max=2, rnr_retry=2, retry_count=2, primary_address_path={"ack_timeout": 16})
        self.kernel.connect(self.qp.qpn, **options)

    @property
    def remote(self):
        """Address and key of the kernel's memory."""
        return self.kernel.mr.buf, self.kernel.mr.rkey


@pytest.fixture(scope="module")
def pairs(network):
    """Return a function that makes pairs, and the frames that the software NIC's interface has seen."""
    import rig
    from pyverbs.device import Context

    from pgas.transports.softhca.process import client

    context = Context(name=DEVICE)
    table = Path(f"/sys/class/infiniband/{DEVICE}/ports/1/gids")
    index = next(int(entry.name) for entry in table.iterdir() if entry.read_text().strip() == gid_text(THERE))
    with open(f"/proc/{network}/ns/net", encoding="ascii") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    frames.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
    frames.bind(("wire1", 0))
    process = client.start(1 << 15, net=HERE)
    pe = rig.PE(process.name, 0)
    yield lambda **options: Pair(context, index, pe, **options), frames, process
    frames.close()
    pe.close()
    process.end()


def pattern(seed, nbytes):
    return bytes((seed + 7 * i + i // 251) & 0xFF for i in range(nbytes))


def test_pgas_requests(pairs):
    """WRITE, READ, atomics, and SEND of pgas, with data of several packets."""
    import wqes as wqe

    pair = pairs[0]()
    pe, kernel, (address, key) = pair.pe, pair.kernel, pair.remote
    for nbytes in (1, 8, 1024, 1025, 5003):
        pe.write(pe.heap, pattern(nbytes, nbytes))
        pair.qp.run(wqe.write, address, key, pe.heap, pe.key, nbytes)
        assert kernel.data(0, nbytes) == pattern(nbytes, nbytes)
        kernel.put(8192, pattern(nbytes + 1, nbytes))
        pair.qp.run(wqe.read, address + 8192, key, pe.heap + 8192, pe.key, nbytes)
        assert pe.read(pe.heap + 8192, nbytes) == pattern(nbytes + 1, nbytes)
    kernel.put(0, (40).to_bytes(8, "little"))
    pair.qp.run(wqe.fetch_add, address, key, pe.heap, pe.key, 2)
    assert (pe.word(0), kernel.data(0, 8)) == (40, (42).to_bytes(8, "little"))
    pair.qp.run(wqe.compare_swap, address, key, pe.heap, pe.key, 42, 99)
    pair.qp.run(wqe.compare_swap, address, key, pe.heap + 8, pe.key, 42, 77)
    assert (pe.word(0), pe.word(8), kernel.data(0, 8)) == (42, 99, (99).to_bytes(8, "little"))
    for imm in (None, 0x12345678):
        kernel.receive(16384, 8192)
        pe.write(pe.heap, pattern(3, 3001))
        pair.qp.run(wqe.send, pe.heap, pe.key, 3001, imm=imm)
        came = kernel.poll()
        assert (came.status, came.byte_len) == (0, 3001)
        assert kernel.data(16384, 3001) == pattern(3, 3001)


def test_requests_of_the_kernel(pairs):
    """SEND, WRITE, WRITE with immediate data, READ, FETCH_ADD, and CMP_SWAP of the kernel."""
    pair = pairs[0]()
    pe, kernel, e = pair.pe, pair.kernel, pair.kernel.e
    remote = pe.heap, pe.key
    for nbytes in (1, 8, 1024, 1025, 5003):
        kernel.put(0, pattern(nbytes, nbytes))
        assert kernel.run(e.IBV_WR_RDMA_WRITE, nbytes, remote=remote) == 0
        assert pe.read(pe.heap, nbytes) == pattern(nbytes, nbytes)
        pe.write(pe.heap + 8192, pattern(nbytes + 1, nbytes))
        assert kernel.run(e.IBV_WR_RDMA_READ, nbytes, at=8192, remote=(pe.heap + 8192, pe.key)) == 0
        assert kernel.data(8192, nbytes) == pattern(nbytes + 1, nbytes)
    pe.word(0, 40)
    assert kernel.run(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote=remote, add=2) == 0
    assert (pe.word(0), kernel.data(0, 8)) == (42, (40).to_bytes(8, "little"))
    assert kernel.run(e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, remote=remote, add=42, swap=99) == 0
    assert (pe.word(0), kernel.data(0, 8)) == (99, (42).to_bytes(8, "little"))
    for opcode, nbytes in ((e.IBV_WR_SEND, 3001), (e.IBV_WR_SEND_WITH_IMM, 8), (e.IBV_WR_RDMA_WRITE_WITH_IMM, 2048)):
        pair.qp.post_receive((pe.heap + 16384, pe.key, 8192))
        kernel.put(0, pattern(5, nbytes))
        where = (pe.heap + 16384, pe.key) if opcode == e.IBV_WR_RDMA_WRITE_WITH_IMM else None
        assert kernel.run(opcode, nbytes, imm=0x01020304, remote=where) == 0
        came = pair.receives.poll()
        assert (came.is_error, came.byte_cnt) == (False, nbytes)
        assert pe.read(pe.heap + 16384, nbytes) == pattern(5, nbytes)


def test_errors(pairs):
    """Wrong keys, receivers that are not ready, and wrong PSNs, in both directions: both ends agree."""
    import wqes as wqe

    from pgas.transports.mlx5.cqe import Syndrome

    pair = pairs[0]()
    pe, (address, key) = pair.pe, pair.remote
    assert pair.qp.fail(wqe.write, address, key ^ 0x100, pe.heap, pe.key, 8)[0] == Syndrome.REMOTE_ACCESS_ERR
    pair = pairs[0]()
    e = pair.kernel.e
    assert pair.kernel.run(e.IBV_WR_RDMA_WRITE, 8, remote=(pe.heap, pe.key ^ 0x100)) == e.IBV_WC_REM_ACCESS_ERR
    assert pair.qp.state().name == "ERR"
    pair = pairs[0]()
    assert pair.qp.fail(wqe.send, pe.heap, pe.key, 8)[0] == Syndrome.RNR_RETRY_EXC_ERR
    pair = pairs[0](rnr_retry=2)
    assert pair.kernel.run(e.IBV_WR_SEND, 8) == e.IBV_WC_RNR_RETRY_EXC_ERR
    pair = pairs[0](psns=(0, 0x99999))  # pgas sends from another PSN than the kernel expects
    assert pair.qp.fail(wqe.write, *pair.remote, pe.heap, pe.key, 8)[0] == Syndrome.TRANSPORT_RETRY_EXC_ERR


def test_the_packets(pairs):
    """scapy finds no malformed packet among those of the tests above, and computes the same ICRC for each."""
    from scapy.contrib import roce
    from scapy.layers.inet import IP
    from scapy.layers.l2 import Ether

    frames, kinds = pairs[1], {THERE: set(), HERE: set()}
    frames.setblocking(False)
    while True:
        try:
            frame = frames.recv(1 << 14)
        except BlockingIOError:
            break
        packet = Ether(frame)
        if roce.BTH not in packet:
            continue
        kinds[packet[IP].src].add(packet[roce.BTH].opcode)
        expected = packet[roce.BTH].icrc
        packet[roce.BTH].icrc = None
        assert Ether(packet.build())[roce.BTH].icrc == expected, packet.summary()
    requests = {0, 1, 3, 4, 6, 7, 8, 10, 12, 19, 20}
    assert kinds[HERE] >= requests - {3, 4} | {13, 14, 15, 16, 17, 18}, kinds
    assert kinds[THERE] >= requests - {3} | {13, 14, 15, 16, 17, 18}, kinds
