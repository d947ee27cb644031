"""Two queue pairs of two cards without processes or sockets, joined by a link in memory that loses, repeats, delays, and corrupts packets.

Time is virtual: a step of the link takes STEP_NS. Everything is deterministic for a seed.
"""

import ctypes
import random
import struct
from typing import NamedTuple

import numpy as np
import wqes as wqe

from pgas.transports.hostloop.compiled import kernel
from pgas.transports.mlx5 import cqe, doorbell, send_queue
from pgas.transports.mlx5.contexts import Access
from pgas.transports.softhca import tables as t
from pgas.transports.softhca import wire
from pgas.transports.softhca.engine.ops import load, store
from pgas.transports.softhca.wire import records as r
from pgas.transports.softhca.wire.inbound import admit
from pgas.transports.softhca.wire.loop import visit_any
from pgas.transports.softhca.wire.responder import acknowledge_due

STEP_NS = 100_000
KEY, PD, ROW, CQN = 0x1234_0100, 7, 1, 1
ALL = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC) | t.LOCAL_READ
MEMORY, DEPTH, CQ_SIZE, RQ_SIZE, STRIDE = 1 << 20, 256, 4096, 64, 32
LIMIT = 1 << 16

#: Words of the block of step(): the control record, the number of packets, and their first frame; each packet is 16 bytes: length, sender.
HCA, NUMBER, FRAMES, PACKETS = 0, 8, 16, 24


def _make(stamp):
    def step(block):
        """Make one pass of a card: take packets, and visit the queue pairs."""
        hca = load(block + HCA)
        port, work = load(hca + t.CTL_WIRE), load(hca + t.CTL_WORK)
        for i in range(load(block + NUMBER)):
            packet, bth = block + PACKETS + 16 * i, load(block + FRAMES) + i * r.FRAME_ROW + r.FRAME_BTH
            admit(hca, port, work, bth, load(packet), load(packet + 8))
        acknowledge_due(port)
        for row in range(load(hca + t.CTL_QP_LIMIT)):
            visit_any(hca, load(hca + t.CTL_QPS) + row * t.QP_ROW, work)
        store(block + NUMBER, 0)
        return stamp

    return step


step = kernel(_make, *wire.SOURCES, __file__)


def sockaddr(address):
    """Return a struct sockaddr_in with port 4791."""
    return struct.pack("<H", 2) + struct.pack(">H", 4791) + bytes(map(int, address.split("."))) + bytes(8)


class Faults(NamedTuple):
    """What the link does to packets: probabilities, the maximum delay in steps, and the steps during which it is down."""

    loss: float = 0
    repeat: float = 0
    reorder: float = 0
    corrupt: float = 0
    delay: int = 0
    down: range = range(0)


class Node:
    """A card with one queue pair, row 1, whose memory, queues, and keys are arrays of this process."""

    def __init__(
        self, address, *, mtu=1024, psns=(0, 0), timeout_ns=50_000_000, retries=7, rnr_retry=7, reads_max=16, receives=True, software=False
    ):
        self.tables = t.Tables(receives=True)
        self.records = r.Records(self.tables)
        self.memory = t.zeroed(MEMORY, np.dtype(np.uint8))
        self.heap = int(self.memory.ctypes.data)
        self.sq, self.cq, self.rq = (t.zeroed(n, np.dtype(np.uint8)) for n in (DEPTH * 64, CQ_SIZE * 64, RQ_SIZE * STRIDE))
        self.words = t.zeroed(16, np.dtype("<i8"))  # doorbell records and the register
        self.block, self.inbound = (
            t.zeroed(PACKETS + 16 * r.IN_FRAMES, np.dtype(np.uint8)),
            t.zeroed(r.IN_FRAMES * r.FRAME_ROW, np.dtype(np.uint8)),
        )
        self.address, self.mtu, self.posted, self.consumed, self.received = address, mtu, 0, 0, 0
        self.senders, self.udp = {}, 4791 if software else 0
        self.messages = []  #: all that it has sent, as lists of packets
        port = self.records.port[0]
        port["v4"], port["udp"], port["segments"] = 1, 4791, r.SEGMENTS_MAX
        self.records.port.view(np.uint8)[r.PORT_GID : r.PORT_GID + 4] = [int(part) for part in address.split(".")]
        self._key()
        self._contexts(rnr_retry, receives=receives)
        self.options = {"timeout_ns": timeout_ns, "retries": retries, "reads_max": reads_max}
        self.psns = psns

    def _key(self, nbytes=MEMORY):
        row = KEY >> 8 & t.MKEY_ROWS_MASK
        record = self.tables.mkeys[row]
        record["pd"], record["access"], record["start"], record["address"], record["nbytes"] = PD, ALL, self.heap, self.heap, nbytes
        self.tables.publish_key(row, KEY)
        return record

    @property
    def key(self):
        return self.tables.mkeys[KEY >> 8 & t.MKEY_ROWS_MASK]

    def _contexts(self, rnr_retry, *, receives):
        tables, base = self.tables, int(self.words.ctypes.data)
        for n, queue in ((CQN, self.cq), (CQN + 1, None)):
            queue = queue if queue is not None else t.zeroed(CQ_SIZE * 64, np.dtype(np.uint8))
            cq = tables.cqs[n]
            cq["address"], cq["log_size"], cq["cqn"] = queue.ctypes.data, CQ_SIZE.bit_length() - 1, n
            queue[:] = cqe.EMPTY
            self.receive_cq = queue
        qp, rq = tables.qps[ROW], tables.rqs[ROW]
        qp["qpn"], qp["pd"], qp["sq"], qp["mask"] = self.qpn, PD, self.sq.ctypes.data, DEPTH - 1
        qp["dbr"], qp["register"] = base + 4, base + 8
        qp["cq"], qp["log_msg_max"], qp["access"] = tables.row_address(tables.cqs, CQN), 30, t.OP_READ | t.OP_WRITE | t.OP_ATOMIC
        if receives:
            rq["address"], rq["mask"], rq["stride"], rq["dbr"] = self.rq.ctypes.data, RQ_SIZE - 1, STRIDE, base
            rq["cq"] = tables.row_address(tables.cqs, CQN + 1)
        rq["rnr_retry"] = rnr_retry
        tables.set(t.CTL_QP_LIMIT, ROW + 1)

    @property
    def qpn(self):
        return 5 << 12 | ROW

    @property
    def qp(self):
        return self.tables.qps[ROW]

    @property
    def connection(self):
        return self.records.connections[ROW]

    def connect(self, peer):
        send, receive = self.psns
        gid = bytes(map(int, peer.address.split(".")))
        rtr = {"mtu": min(self.mtu, peer.mtu), "log_msg_max": 30, "rnr_timer": 1, "receive_psn": receive, "udp": self.udp}
        self.records.connect(ROW, gid, sockaddr(peer.address), **rtr)
        self.records.start(ROW, send_psn=send, cursor=0, **self.options)
        self.qp["remote_qpn"], self.qp["send_psn"], self.qp["recv_psn"] = peer.qpn, send, receive
        self.tables.set_wire(ROW, self.records.connection(ROW))
        self.tables.move(ROW, t.RTS)

    # ------------------------------------------------------------------------------------------------------------ work requests

    def post(self, build, *args, signal=True, **kwargs):
        """Store a WQE and ring for it; return its index."""
        index = self.posted
        data = build(index, self.qpn, *args, fm_ce_se=kwargs.pop("fm", 0) | (wqe.Ce.ALWAYS if signal else 0), **kwargs)
        send_queue.store((ctypes.c_char * self.sq.nbytes).from_address(self.sq.ctypes.data), index, data)
        self.posted += wqe.wqebbs(-(-len(data) // 16))
        ctypes.memmove(self.words.ctypes.data + 4, doorbell.dbr(self.posted), 4)
        ctypes.memmove(self.words.ctypes.data + 8, doorbell.next_empty(self.posted, self.qpn), 8)
        return index

    def post_receive(self, address, nbytes):
        data = wqe.receive((address, KEY, nbytes), stride=STRIDE)
        start = self.received % RQ_SIZE * STRIDE
        self.rq[start : start + STRIDE] = np.frombuffer(data, np.uint8)
        self.received += 1
        ctypes.memmove(self.words.ctypes.data, doorbell.dbr(self.received), 4)

    def completions(self):
        """Return the CQEs of the send queue, and number them on."""
        found = self._entries(self.cq, self.consumed)
        self.consumed += len(found)
        return found

    def receptions(self):
        """Return all CQEs of the receive queue."""
        return self._entries(self.receive_cq, 0)

    @staticmethod
    def _entries(queue, start):
        found = []
        while cqe.valid(queue[start % CQ_SIZE * 64 + 63], start, CQ_SIZE):
            found.append(cqe.decode(queue[start % CQ_SIZE * 64 : start % CQ_SIZE * 64 + 64].tobytes()))
            start += 1
        return found

    # -------------------------------------------------------------------------------------------------------------------- packets

    def turn(self, packets, now):
        """Make a pass with packets that have come, as (sender, bytes), and return those that it sends."""
        block = self.block.view("<i8")
        block[HCA // 8], block[NUMBER // 8], block[FRAMES // 8] = self.tables.address, len(packets), self.inbound.ctypes.data
        for i, (sender, data) in enumerate(packets):
            start = i * r.FRAME_ROW + r.FRAME_BTH
            self.inbound[start : start + len(data)] = np.frombuffer(data, np.uint8)
            name = self.senders.setdefault(sender, np.frombuffer(sockaddr(sender).ljust(32, b"\0"), np.uint8).copy())
            block[PACKETS // 8 + 2 * i], block[PACKETS // 8 + 2 * i + 1] = len(data), name.ctypes.data
        port = self.records.port[0]
        port["now"] = now
        step(int(self.block.ctypes.data))
        sent = []
        for header in self.records.out.view("<i8").reshape(-1, r.MMSG_BYTES // 8)[: int(port["messages"])]:
            iovs = (ctypes.c_int64 * 2 * int(header[r.MMSG_IOVLEN // 8])).from_address(int(header[r.MMSG_IOV // 8]))
            sent.append([ctypes.string_at(*iov) for iov in iovs])
        self.messages += sent
        packets = [packet for message in sent for packet in message]
        assert len(packets) == port["out_count"]
        port["out_count"] = port["messages"] = 0
        return packets


class Link:
    """Joins two nodes."""

    def __init__(self, a, b, faults=None, seed=0, watch=None):
        self.nodes, self.faults, self.random, self.watch = (a, b), faults or Faults(), random.Random(seed), watch
        self.waiting = ([], [])  # packets on their way to a node: (step, number, bytes)
        self.steps = self.number = 0
        a.connect(b)
        b.connect(a)

    def _carry(self, to, data):
        """Put a packet on its way, or lose it."""
        faults, chance = self.faults, self.random.random
        if self.watch is not None:
            self.watch(self.nodes[1 - to], self.nodes[to], data)
        if self.steps in faults.down or chance() < faults.loss:
            return
        if chance() < faults.corrupt:
            bit = self.random.randrange(8 * len(data))
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            data = bytes(changed)
        for _ in range(2 if chance() < faults.repeat else 1):
            late = self.random.randrange(2, 12) if chance() < faults.reorder else 0
            self.number += 1
            self.waiting[to].append((self.steps + 1 + faults.delay + late, self.number, data))

    def run(self, steps=1):
        """Let both nodes make passes."""
        for _ in range(steps):
            self.steps += 1
            for me, node in enumerate(self.nodes):
                arrived = sorted(packet for packet in self.waiting[me] if packet[0] <= self.steps)[: r.IN_FRAMES]
                for packet in arrived:
                    self.waiting[me].remove(packet)
                sender = self.nodes[1 - me].address
                for data in node.turn([(sender, data) for _, _, data in arrived], 10**9 + self.steps * STEP_NS):
                    self._carry(1 - me, data)

    def until(self, done, limit=LIMIT):
        """Run until a function of no arguments is true."""
        begin = self.steps
        while not done():
            assert self.steps - begin < limit, [node.records.counters() for node in self.nodes]
            self.run()

    def completed(self, node, number, limit=LIMIT):
        """Return the next completions of a node."""
        found = []

        def enough():
            found.extend(node.completions())
            return len(found) >= number

        self.until(enough, limit)
        return found


def pair(*, faults=None, seed=0, watch=None, **options):
    """Return two connected nodes and their link. PSNs wrap soon."""
    first = (0xFFFFF0, 0xFFF)
    a, b = Node("10.0.0.1", psns=first, **options), Node("10.0.0.2", psns=first[::-1], **options)
    return a, b, Link(a, b, faults, seed, watch)
