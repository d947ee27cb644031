"""A model of a device with post_send and poll_cq: it executes work requests on this process's memory, in order, when they complete.

It replaces libibverbs for the proxy thread's verbs back end, so that tests can inspect and disturb every work request.
"""

import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pgas.kernels import layout
from pgas.transports.ibrc import loop, tables, work_requests
from pgas.transports.verbs import abi
from pgas.transports.verbs.abi import SendFlags, WcStatus, WrOpcode

DEPTH, RING = 128, 64
LKEY, CELL_LKEY, HEAP_KEY = 0x11, 0x22, 0x44
HEAP_SHIFT, LOCAL_SHIFT, CELL_SHIFT = 0x1000, 0x3000, 0x4000
RECORD = 4711

_Post = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Poll = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def word(address, nbytes=8):
    """Load an unsigned word of memory."""
    return int.from_bytes(ctypes.string_at(address, nbytes), "little")


def set_word(address, value, nbytes=8):
    ctypes.memmove(address, (value & (1 << 8 * nbytes) - 1).to_bytes(nbytes, "little"), nbytes)


@dataclass
class WorkRequest:
    """A struct ibv_send_wr at the time of its posting."""

    at: int
    wr_id: int
    opcode: WrOpcode
    flags: SendFlags
    remote: int
    rkey: int
    compare_add: int
    swap: int
    addr: int
    nbytes: int
    lkey: int
    inline: bytes

    @classmethod
    def read(cls, at):
        opcode = WrOpcode(word(at + abi.WR_OPCODE, 4))
        flags = SendFlags(word(at + abi.WR_SEND_FLAGS, 4))
        atomic = opcode in (WrOpcode.ATOMIC_CMP_AND_SWP, WrOpcode.ATOMIC_FETCH_AND_ADD)
        assert word(at + abi.WR_NUM_SGE, 4) == 1
        sge = word(at + abi.WR_SG_LIST)
        addr, nbytes, lkey = (word(sge + o, n) for o, n in ((abi.SGE_ADDR, 8), (abi.SGE_LENGTH, 4), (abi.SGE_LKEY, 4)))
        return cls(
            at, word(at + abi.WR_ID), opcode, flags, word(at + abi.WR_REMOTE_ADDR),
            word(at + (abi.WR_ATOMIC_RKEY if atomic else abi.WR_RDMA_RKEY), 4), word(at + abi.WR_COMPARE_ADD), word(at + abi.WR_SWAP),
            addr, nbytes, lkey, ctypes.string_at(addr, nbytes) if SendFlags.INLINE in flags else b"",
        )  # fmt: skip


@dataclass
class Model:
    """A device with one queue pair, the proxy's tables for it, and a ring of requests.

    Args:
        inline: whether it accepts inline data.
        atomics: whether it has atomics.
        message_max: most bytes of one message.
        together: number of completions at a time.
        ends: where pieces of heap and local memory end, in words, but for the last; each has keys and shifts of its own.
    """

    inline: bool = True
    atomics: bool = True
    message_max: int = 1 << 20
    together: int = 4
    ends: tuple = ()  #: where pieces of heap and local memory end, in words, but for the last; each has its own keys and shifts
    lists: list = field(default_factory=list)  #: the work requests of each call of post_send
    before: object = None  #: called with each work request before its execution; may return a status with which it fails
    post_error: int = 0  #: result of post_send
    broken: bool = False  #: whether the queue pair is in ERR
    largest: int = 0  #: most outstanding work requests

    def __post_init__(self):
        self.heap, self.local = np.zeros(4096, np.uint64), np.zeros(4096, np.uint64)
        self.cells = np.zeros(64, np.uint64)
        self.near, self.far = self._pieces(self.local, LKEY, LOCAL_SHIFT), self._pieces(self.heap, HEAP_KEY, HEAP_SHIFT)
        self.queue = deque()
        self._post, self._poll = _Post(self._post_send), _Poll(self._poll_cq)
        self.control = np.zeros((layout.RING + RING * layout.REQUEST_SIZE) // 8, np.uint64)
        self.own = np.zeros((work_requests.END + tables.ROW + RING * tables.UNDONE_SIZE + 8) // 8, np.int64)
        self.slots = np.zeros(DEPTH * work_requests.SLOT // 8, np.int64)
        self.chains = np.zeros(work_requests.N_CHAINS * work_requests.CHAIN_SIZE // 8, np.int64)
        at, self.tickets = self.own.ctypes.data, 0
        row = work_requests.END
        for offset, value in {
            tables.CONTROL: self.control.ctypes.data, tables.SLOT_MASK: RING - 1, tables.ROWS: at + row, tables.DEPTH: DEPTH,
            tables.UNDONE: at + row + tables.ROW, tables.UNRUNG: at + row + tables.ROW + RING * tables.UNDONE_SIZE, tables.BATCH: 32,
            tables.CELL_LKEY: CELL_LKEY,
            work_requests.HEAP: self.near.ctypes.data, work_requests.CELL_SHIFT: CELL_SHIFT,
            work_requests.POST_SEND: ctypes.cast(self._post, ctypes.c_void_p).value,
            work_requests.POLL_CQ: ctypes.cast(self._poll, ctypes.c_void_p).value,
            work_requests.MESSAGE_MAX: self.message_max, work_requests.INLINE: int(SendFlags.INLINE) * self.inline,
            work_requests.ATOMICS: int(self.atomics),
            row + work_requests.SLOTS: self.slots.ctypes.data, row + work_requests.QP: 77, row + work_requests.CQ: 88,
            row + work_requests.FAR_HEAP: self.far.ctypes.data,
            row + work_requests.CHAINS: self.chains.ctypes.data, row + tables.RECORD: RECORD,
        }.items():  # fmt: skip
            self.own[offset // 8] = value

    def _pieces(self, memory, key, shift):
        """Return the table of the pieces of heap or local memory."""
        ends = [*(memory.ctypes.data + 8 * end for end in self.ends), work_requests.NO_END]
        return np.array([(end, key + i, shift + 16 * i) for i, end in enumerate(ends)], np.int64)

    def _address(self, pieces, key, at, nbytes):
        """Return the address of what a work request names; None if its key is not that of a piece that contains all of it."""
        for i, (end, known, shift) in enumerate(pieces.tolist()):
            if key == known and (i == 0 or at + shift >= pieces[i - 1, 0]) and at + shift + nbytes <= end:
                return at + shift
        return None

    # ------------------------------------------------------------------------------------------------------------------ the device

    def _post_send(self, qp, wr, bad_wr):
        assert qp == 77
        if self.post_error:
            set_word(bad_wr, wr)
            return self.post_error
        posted = []
        while wr:
            posted.append(WorkRequest.read(wr))
            wr = word(wr + abi.WR_NEXT)
        self.lists.append(posted)
        self.queue.extend(posted)
        self.largest = max(self.largest, len(self.queue))
        return 0

    def _poll_cq(self, cq, count, wcs):
        assert (cq, count) == (88, work_requests.N_WCS)
        made = 0
        while self.queue and made < self.together:
            request = self.queue.popleft()
            status = WcStatus.WR_FLUSH_ERR if self.broken else (self.before and self.before(request)) or self._execute(request)
            self.broken = bool(status)
            if status or SendFlags.SIGNALED in request.flags:
                at = wcs + made * abi.WC_SIZE
                ctypes.memset(at, 0xA5, abi.WC_SIZE)
                set_word(at + abi.WC_WR_ID, request.wr_id)
                set_word(at + abi.WC_STATUS, status, 4)
                set_word(at + abi.WC_VENDOR_ERR, 0x77, 4)
                made += 1
        return made

    def _execute(self, request):
        remote = self._address(self.far, request.rkey, request.remote, request.nbytes)
        if remote is None:
            return WcStatus.REM_ACCESS_ERR
        if not request.inline:
            local = self._address(self.near, request.lkey, request.addr, request.nbytes)
            if request.lkey == CELL_LKEY:
                local = request.addr + CELL_SHIFT
            if local is None:
                return WcStatus.LOC_PROT_ERR
        if request.opcode == WrOpcode.RDMA_WRITE:
            ctypes.memmove(remote, request.inline or ctypes.string_at(local, request.nbytes), request.nbytes)
        elif request.opcode == WrOpcode.RDMA_READ:
            ctypes.memmove(local, remote, request.nbytes)
        else:
            assert (remote % 8, request.nbytes) == (0, 8)
            old = word(remote)
            if request.opcode == WrOpcode.ATOMIC_FETCH_AND_ADD:
                set_word(remote, old + request.compare_add)
            elif old == request.compare_add:
                set_word(remote, request.swap)
            set_word(local, old)
        return WcStatus.SUCCESS

    # ----------------------------------------------------------------------------------------------------------------- the kernels

    def ask(self, what, nbytes, local=0, remote=0, value=0, second=0):
        """Write a request into the ring; wait for room as kernels do."""
        until(lambda: self.tickets < self.completed + RING or self.failed)
        at = (layout.RING + self.tickets % RING * layout.REQUEST_SIZE) // 8
        self.control[at : at + 6] = [int(w) & (1 << 64) - 1 for w in (what, nbytes, local, remote, value, second)]
        self.tickets += 1
        self.control[at + layout.SEQUENCE // 8] = self.tickets

    @property
    def completed(self):
        return int(self.control[layout.COMPLETED // 8])

    @property
    def failed(self):
        return int(self.control[layout.FAILED_QUEUE // 8])

    @property
    def fault(self):
        return int(self.own[work_requests.FAULT // 8]), int(self.own[work_requests.FAULT_CODE // 8])

    def run(self, requests):
        """Run the proxy's loop until some requests are done or one has failed; return the work requests."""
        thread = threading.Thread(target=loop.compiled(work_requests), args=(self.own.ctypes.data,), daemon=True)
        thread.start()
        for request in requests:
            self.ask(*request)
        until(lambda: self.completed == self.tickets or self.failed)
        self.own[tables.STOP // 8] = 1
        thread.join(20)
        assert not thread.is_alive()
        return [request for posted in self.lists for request in posted]


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0)
