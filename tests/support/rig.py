"""Two PEs in one process that drive QPs of a software card byte by byte; for tests of the card and of its drivers.

Those assign the fixtures (``pes = rig.pes``), as a conftest would import the card for every test of the project.

On a GPU (NUMBA_ENABLE_CUDASIM=0, make check-gpu) the engine is the kernel of the perf tests, and the PEs' memory is host memory that CPU
and GPU reach. So the tests check the machine code that the perf tests measure; its hash is printed.
"""

import atexit
import ctypes
import functools
import os
import struct
import time

import pytest
import wqes as wqe

from pgas.base.backend import SIMULATOR
from pgas.kernels import window
from pgas.native import atomics as mem
from pgas.transports.memory.memfd import HostMemory
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5 import commands, cqe, doorbell, send_queue
from pgas.transports.mlx5.commands import Command, CommandError
from pgas.transports.mlx5.contexts import Access, QpState, RqType
from pgas.transports.mlx5.doorbell import UarType
from pgas.transports.softhca import layout
from pgas.transports.softhca.process import client
from pgas.transports.softhca.syndromes import CommandSyndrome as Why
from pgas.transports.softhca.syndromes import Vendor

ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
SIGNAL = wqe.Ce.ALWAYS
QUEUES = 2 << 20
HEAP = 16 << 20
EMPTY = bytes([cqe.EMPTY]) * 64

#: Whether the card sends packets to itself. They do not carry vendor syndromes, and RC lets a WRITE overtake an earlier READ.
PACKETS = os.environ.get("PGAS_ENGINE") == "dma"
no_packets = pytest.mark.skipif(PACKETS, reason="of cards that send no packets to themselves")


def told(vendor):
    """Return the vendor syndrome with which the requester learns of an error of the responder."""
    return Vendor.REFUSED_REMOTELY if PACKETS else vendor


def host_memory():
    """Return memory that this process and the engine reach."""
    if SIMULATOR:
        return HostMemory()
    from numba import cuda

    from pgas.transports.memory import vmm

    cuda.select_device(0)
    return vmm.GPUMemory(0)


def start(engine=None, **limits):
    """Start a card that does not end by itself, as PEs come and go with the tests."""
    if SIMULATOR:
        return client.start(1 << 15, engine=engine or os.environ.get("PGAS_ENGINE", "cpu"), **limits)
    if engine == "cpu":
        pytest.skip("the cpu engine runs in the simulator")
    return client.start(1 << 15, engine=os.environ.get("PGAS_ENGINE", "cuda"), sms=8, on_host=True, **limits)


class PE:
    """One PE: its slot in this process, and its adapter."""

    def __init__(self, name, number):
        self.number = number
        self.slot = window.slot(number)
        self.heap = self.slot + window.HEAP_OFFSET
        self.memory = host_memory()
        segments = [(self.slot, QUEUES), (self.heap, HEAP)]
        shared = [(a, n, self.memory.create(a, Segment(0, n, host=True))) for a, n in segments]
        self.hca = self.open(name, shared)
        self.pdn = self.hca.alloc_pd()
        self.umem = self.hca.register_umem(self.slot, QUEUES)
        self.key = self.hca.register_mr(self.heap, HEAP, self.pdn, ALL)[0]
        self.free = 0
        self.recycled = []

    def open(self, name, shared):
        """Return the adapter; overridden in tests/uverbs."""
        return client.SoftHCA(name, self.number, shared, None if SIMULATOR else self.map_registers)

    def map_registers(self, fd):
        if self.number == 0:  # the other PE's in this process are the same
            self.memory.attach(layout.BAR, Segment(0, layout.BAR_SIZE, host=True), fd)

    def queue_memory(self, nbytes, alignment=layout.UMEM_PAGE_SIZE):
        """Allocate bytes of the queue segment; return their offset. `pes` frees all before each test."""
        offset = -(-self.free // alignment) * alignment
        self.free = offset + nbytes
        assert self.free <= QUEUES
        return offset

    def path(self):
        """Return the address path to the card itself: by GID if it has a port for packets."""
        port = self.hca.query_port()
        if port.link_layer != "Ethernet":
            return {"vhca_port_num": 1, "rlid": layout.LID}
        mac = int.from_bytes(layout.MAC_PREFIX + port.lid.to_bytes(2, "big"), "big")
        gid = int.from_bytes(port.gid, "big")
        return {"vhca_port_num": 1, "rgid_rip": gid, "rmac_47_32": mac >> 32, "rmac_31_0": mac & 0xFFFF_FFFF}

    def command(self, command, op_mod=0, **values):
        """Execute a command and return its output's fields; a refusal is a CommandError."""
        outlen = commands.output_size(command)
        outbox = self.hca.command(commands.build(command, op_mod=op_mod, **values), outlen)
        assert len(outbox) == outlen
        commands.check(command, outbox)
        return commands.parse_output(command, outbox, op_mod=op_mod)

    def refused(self, command, **values):
        """Execute a command that the card refuses; return (status, name of the syndrome)."""
        with pytest.raises(CommandError) as caught:
            self.command(command, **values)
        return caught.value.status, Why(caught.value.syndrome).name

    def read(self, address, nbytes):
        return ctypes.string_at(address, nbytes)

    def write(self, address, data):
        ctypes.memmove(address, bytes(data), len(data))

    def word(self, offset, value=None, nbytes=8):
        """Load or store a host-order integer of the heap."""
        if value is None:
            return int.from_bytes(self.read(self.heap + offset, nbytes), "little")
        self.write(self.heap + offset, value.to_bytes(nbytes, "little"))
        return value

    def close(self):
        self.hca.close()
        self.memory.close()


class CQ:
    """An ordinary CQ, polled as by verbs libraries: with the owner bit, and the consumer index in the doorbell record."""

    def __init__(self, pe, log_size=5, *, oi=0):
        self.pe, self.size, self.consumer = pe, 1 << log_size, 0
        self.cq, self.dbr = pe.queue_memory(64 << log_size), pe.queue_memory(64, 64)
        pe.write(pe.slot + self.cq, EMPTY * self.size)
        cqc = {
            "oi": oi, "log_cq_size": log_size, "uar_page": pe.hca.alloc_uar().page_id, "c_eqn": pe.hca.query_eqn(),
            "dbr_umem_valid": 1, "dbr_umem_id": pe.umem, "dbr_addr": self.dbr,
        }  # fmt: skip
        self.cqn = pe.command(Command.CREATE_CQ, cqc=cqc, cq_umem_id=pe.umem, cq_umem_valid=1, cq_umem_offset=self.cq)["cqn"]

    def peek(self):
        """Return the entry at the consumer index, None if the card has not written it."""
        entry = self.pe.slot + self.cq + 64 * (self.consumer % self.size)
        tail = mem.load_acquire_u64(entry + cqe.CQE_TAIL).to_bytes(8, "little")
        return self.pe.read(entry, 64) if cqe.valid(tail[7], self.consumer, self.size) else None

    def poll(self, timeout_s=10, *, tell=True):
        """Wait for a CQE, consume it, and update the doorbell record."""
        deadline = time.monotonic() + timeout_s
        while (entry := self.peek()) is None:
            assert time.monotonic() < deadline, f"no CQE {self.consumer}"
            time.sleep(0)
        self.consumer += 1
        if tell:
            self.tell()
        return cqe.decode(entry)

    def tell(self):
        mem.store_release_u32(self.pe.slot + self.dbr, int.from_bytes((self.consumer & 0xFFFFFF).to_bytes(4, "big"), "little"))


class QP:
    """A QP in RESET, with its own CQ or with one or two given ones.

    receive: log2 of the number of receive WQEs, of stride bytes; None: no receive queue.
    """

    def __init__(
        self, pe, log_depth=7, *, collapsed=1, log_cq=0, user_index=0, cq=None, pdn=None, uar=UarType.NC, receive=None, stride=16,
        receive_cq=None, **qpc,
    ):  # fmt: skip
        self.pe, self.depth, self.collapsed, self.log_cq = pe, 1 << log_depth, collapsed, log_cq
        self.uar = pe.hca.alloc_uar(uar) if isinstance(uar, UarType) else uar
        self.stride, self.receives, self.posted_receives = stride, 0 if receive is None else 1 << receive, 0
        self.rq = pe.queue_memory(self.receives * stride + (64 << log_depth))
        self.sq = self.rq + self.receives * stride
        self.dbr = pe.queue_memory(64, 64)
        if cq is None:
            self.cq = pe.queue_memory(64 << log_cq)
            pe.write(pe.slot + self.cq, EMPTY * (1 << log_cq))
            self.cqn = pe.command(Command.CREATE_CQ, **self.cq_values())["cqn"]
        else:
            self.cq, self.cqn = cq.cq, cq.cqn
        values = self.qp_values(log_depth, user_index, pe.pdn if pdn is None else pdn)
        if receive is not None:
            regular = {"rq_type": RqType.REGULAR, "log_rq_size": receive, "log_rq_stride": (stride // 16).bit_length() - 1}
            values["qpc"].update(regular, cqn_rcv=(receive_cq or self).cqn)
        values["qpc"].update(qpc)
        self.qpn = pe.command(Command.CREATE_QP, **values)["qpn"]
        self.posted = 0
        self.log = []

    def cq_values(self, **cqc):
        values = {
            "cc": self.collapsed, "oi": 1, "log_cq_size": self.log_cq, "uar_page": self.uar.page_id, "c_eqn": self.pe.hca.query_eqn(),
            "dbr_umem_valid": 1, "dbr_umem_id": self.pe.umem, "dbr_addr": self.dbr + 8,
        }  # fmt: skip
        return {"cqc": {**values, **cqc}, "cq_umem_id": self.pe.umem, "cq_umem_valid": 1, "cq_umem_offset": self.cq}

    def qp_values(self, log_depth, user_index, pdn):
        qpc = {
            "st": 0, "pm_state": 3, "pd": pdn, "log_sq_size": log_depth, "uar_page": self.uar.page_id, "user_index": user_index,
            "cqn_snd": self.cqn, "rq_type": RqType.ZERO_SIZE_RQ, "dbr_umem_valid": 1, "dbr_umem_id": self.pe.umem, "dbr_addr": self.dbr,
        }  # fmt: skip
        return {"qpc": qpc, "wq_umem_id": self.pe.umem, "wq_umem_valid": 1, "wq_umem_offset": self.rq}

    # --------------------------------------------------------------------------------------------------------- states

    def init(self, **qpc):
        path = {"vhca_port_num": 1}
        values = {"rre": 1, "rwe": 1, "rae": 1, "atomic_mode": 3, "pm_state": 3, "primary_address_path": path, **qpc}
        self.pe.command(Command.RST2INIT_QP, qpn=self.qpn, qpc=values)
        return self

    def rtr(self, peer, **qpc):
        values = {
            "mtu": 5,
            "log_msg_max": 30,
            "remote_qpn": peer if isinstance(peer, int) else peer.qpn,
            "min_rnr_nak": 12,
            "log_rra_max": 4,
            "primary_address_path": self.pe.path(),
        }
        self.pe.command(Command.INIT2RTR_QP, qpn=self.qpn, qpc={**values, **qpc})
        return self

    def rts(self, **qpc):
        values = {"retry_count": 7, "rnr_retry": 7, "log_sra_max": 4, "primary_address_path": {"ack_timeout": 20}}
        self.pe.command(Command.RTR2RTS_QP, qpn=self.qpn, qpc={**values, **qpc})
        return self

    def begin(self, index, receive_idx=0):
        """Set the first indices of the queues, before RTS."""
        self.pe.hca.set_index(self.qpn, index, receive_idx)
        self.posted, self.posted_receives = index, receive_idx
        return self

    def state(self):
        return QpState(self.pe.command(Command.QUERY_QP, qpn=self.qpn)["qpc"]["state"])

    def destroy(self):
        self.pe.command(Command.DESTROY_QP, qpn=self.qpn)

    # -------------------------------------------------------------------------------------------------------- traffic

    def ring_memory(self):
        return (ctypes.c_char * (64 * self.depth)).from_address(self.pe.slot + self.sq)

    def post(self, build, *args, **kwargs):
        """Store a WQE made by a builder of the data sheet (or bytes made by a function of index and qpn); return its index."""
        index = self.posted
        data = build(index, self.qpn, *args, **kwargs)
        send_queue.store(self.ring_memory(), index, data)
        self.posted += wqe.wqebbs(-(-len(data) // 16))
        self.log.append((index, data))
        return index

    def record(self):
        mem.store_release_u32(self.pe.slot + self.dbr + doorbell.DBR_SND_OFFSET, int.from_bytes(doorbell.dbr(self.posted), "little"))

    def post_receive(self, *segments, ring=True):
        """Store a receive WQE of (addr, lkey, nbytes), update the doorbell record, and return its index."""
        index, self.posted_receives = self.posted_receives, self.posted_receives + 1
        self.pe.write(self.pe.slot + self.rq + index % self.receives * self.stride, wqe.receive(*segments, stride=self.stride))
        if ring:
            self.ring_receives()
        return index

    def ring_receives(self):
        """Update the receive counter of the doorbell record, which is all that the card reads."""
        mem.store_release_u32(self.pe.slot + self.dbr, int.from_bytes(doorbell.dbr(self.posted_receives), "little"))

    def uar_word(self, data):
        mem.store_release_u64(self.uar.register_address, int.from_bytes(data, "little"))

    def ring(self, *, by_wqe=False):
        """Ring for the posted WQEs, in either convention of the UAR word."""
        self.record()
        self.uar_word(doorbell.wqe_start(self.log[-1][1]) if by_wqe else doorbell.next_empty(self.posted, self.qpn))

    def entry(self, slot=0):
        return self.pe.read(self.pe.slot + self.cq + 64 * slot, 64)

    def poll(self, index, timeout_s=10):
        """Wait for the CQE of the WQE at an index (collapsed CQ) and return it."""
        deadline = time.monotonic() + timeout_s
        while True:
            tail = mem.load_acquire_u64(self.pe.slot + self.cq + cqe.CQE_TAIL).to_bytes(8, "little")
            if tail[7] >> 4 != 15 and struct.unpack(">H", tail[4:6])[0] == index & 0xFFFF:
                return cqe.decode(self.entry())
            assert time.monotonic() < deadline, f"no CQE for {index}: {cqe.decode(self.entry())}; {self.pe.hca.diagnose(self.qpn)}"
            time.sleep(0)

    def run(self, build, *args, signal=True, **kwargs):
        """Post one WQE, ring, wait for its CQE, and check that it did not fail."""
        index = self.post(build, *args, fm_ce_se=kwargs.pop("fm", 0) | (SIGNAL if signal else 0), **kwargs)
        self.ring()
        done = self.poll(index)
        assert not done.is_error, f"{done}: {self.pe.hca.diagnose(self.qpn)}"
        return done

    def fail(self, build, *args, **kwargs):
        """Post one unsignalled WQE that fails; return (syndrome, vendor syndrome) of its CQE."""
        index = self.post(build, *args, **kwargs)
        self.ring()
        done = self.poll(index)
        assert done.is_error, f"{done}: nothing failed"
        assert (done.qpn, done.s_wqe_opcode) == (self.qpn, self.log[-1][1][3])
        return done.syndrome, done.vendor_err_synd

    def counters(self):
        return next(qp for qp in self.pe.hca.counters()["qps"] if qp["qpn"] == self.qpn)


def connect(a, b, **qpc):
    for qp, peer in ((a, b), (b, a)) if a is not b else ((a, a),):
        qp.init().rtr(peer, **qpc)
    for qp in {a, b}:
        qp.rts()
    return a, b


def pair(pes, log_depth=7, **options):
    return connect(QP(pes[0], log_depth, **options), QP(pes[1], log_depth))


@functools.cache
def _shared():
    process, me = start(), os.getpid()
    atexit.register(lambda: me == os.getpid() and process.end())  # not in forks
    observer = client.Observer(process.name)
    print(f"engine: {observer.counters()['hca']['engine']}")
    observer.close()
    return process


@pytest.fixture(scope="module")
def card():
    """One card for all modules of this process: a card takes a second to start."""
    if gone(_shared().pid):
        _shared.cache_clear()
    return _shared()


@pytest.fixture
def pes(card):
    """PE 0 and PE 1, with fresh memory and no objects."""
    both = []
    try:
        both.extend(PE(card.name, number) for number in (0, 1))
        yield both
    finally:
        for pe in both:
            pe.close()


@pytest.fixture
def observer(card):
    observer = client.Observer(card.name)
    yield observer
    observer.resume()
    observer.set_faults("")
    observer.trace([])
    observer.close()


def wait_until(condition, what, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(1e-3)


def gone(pid):
    """Whether a process has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True
