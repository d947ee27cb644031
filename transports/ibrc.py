"""The host's side of the IBRC transport: the proxy thread, which posts kernels' requests to the adapter.

Requests and the ring are those of kernels/proxy.py; adapter, keys and queue pairs are nic.NIC's, with the queues in memory of the host.
The thread runs one compiled loop without the GIL: take requests in the order of their tickets, build their WQEs, ring the doorbells when
the ring is empty or a batch of WQEBBs waits, look at CQs, publish which requests are done.

A request is done when the CQE of its last WQE, or a later one of its queue pair, is there (mlx5.cqe.extend: every request ends in a
signalled WQE of one WQEBB). Requests of different queue pairs may end in any order, so only the CQ of the oldest request that is not done
is looked at, and the CQ of a send queue that is full.

Queues, registers, ring and landing cells lie in the host's memory, heaps in that of GPUs where there are some. What a READ or an atomic
brought must be there before the word ``completed`` tells of it: the software card makes it so before its CQE; behind a real one, whose
writes to GPU and host go different ways, a DUMP would have to follow (facts/mlx5.md 1.6), which is not done.
"""

import contextlib
import ctypes
import functools
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import types

from pgas.errors import PgasError, TransportError
from pgas.kernels import proxy, queue, state, window
from pgas.transports.memory import Memory, Segment
from pgas.transports.mlx5 import cqe, wqe
from pgas.transports.mlx5.wqe import Ce, Opcode, Opmod
from pgas.transports.nic import NIC
from pgas.transports.softhca.compiled import kernel, on_host
from pgas.transports.softhca.ops_cpu import (
    SLEEP_MIN_US,
    YIELDS,
    fence,
    idle,
    load,
    load_acquire,
    store,
    store_release,
    store_u32,
    swap32,
    swap64,
)

__all__ = ["ProxiedNIC"]

# What the loop works on: one record, then a row for each queue pair, the requests that are not done, and the queue pairs to be rung. Keys
# and QPN are big-endian.
STOP, CONTROL, SLOT_MASK, ROWS, UNDONE, UNRUNG, DEPTH, BATCH, LKEY, CELL_LKEY, SINK, PHASE, RECORD_END = range(0, 104, 8)
WQ, DBR, UAR, CQE, QPN, HEAP_KEY, SYSTEM_KEY, RECORD, PROD_IDX, RUNG_IDX, CONS_IDX = range(0, 88, 8)
ROW = 128
UNDONE_SIZE = 16  #: row, index behind its last WQEBB

#: What one step of a request posts at most: a WRITE, a MASKED_CS of 2 WQEBBs, and a NOP that completes it.
_STEP_MAX = 4

#: What the thread does, in the record's PHASE, for who wants to know where its time goes: builds WQEs, rings doorbells, looks at CQEs,
#: or found nothing to do in the last turn.
POSTING, RINGING, COMPLETING, WAITING = range(4)
PHASES = ("posting", "ringing", "completing", "waiting")

#: What step() returns when a request is posted as a whole.
_POSTED = -1

_PR_SET_TIMERSLACK = 29

#: A turn of idle() beyond which its sleeps would be longer than 50 us.
_LAST_TURN = YIELDS + 4 * (50 - SLEEP_MIN_US)

_WRITE, _READ, _STORE, _ADD, _COMPARE_SWAP, _SIGNAL_SET, _SIGNAL_ADD = map(int, proxy.Request)
_NOP, _RDMA_WRITE, _RDMA_READ = int(Opcode.NOP), int(Opcode.RDMA_WRITE), int(Opcode.RDMA_READ)
_FA, _CS = int(Opcode.ATOMIC_FA), int(Opcode.ATOMIC_CS)
_MASKED_FA_4 = Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_FA
_MASKED_CS_4 = Opmod.MASKED_4 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS
_MASKED_CS_8 = Opmod.MASKED_8 << wqe.OPMOD_SHIFT | Opcode.ATOMIC_MASKED_CS
_QUIETLY, _ALWAYS = int(Ce.ON_ERROR), int(Ce.ALWAYS)
_CE_SHIFT = 8 * (wqe.CTRL_FM_CE_SE - 8)
_ds_inline, _wqebbs = on_host(wqe.ds_inline), on_host(wqe.wqebbs)
_REQ, _INVALID = int(cqe.CqeOpcode.REQ), int(cqe.CqeOpcode.INVALID)


# WQEs -------------------------------------------------------------------------------------------------------------------------


@on_host
def wqebb(own: int, row: int, index: int) -> int:
    """Return the address of a WQEBB."""
    return load(row + WQ) + ((index & (load(own + DEPTH) - 1)) << wqe.WQEBB_SHIFT)


@on_host
def begin(own: int, row: int, opcode: int, ds: int, ce: int) -> int:
    """Store the control segment of the next WQE and return its address; opcode has opmod in its upper byte (facts/mlx5.md 1.2)."""
    index = load(row + PROD_IDX)
    at = wqebb(own, row, index)
    store(at, swap32(opcode | (index & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT) | load(row + QPN) << 32 | ds << 56)
    store(at + 8, ce << _CE_SHIFT)
    store(row + PROD_IDX, index + _wqebbs(ds))
    return at


@on_host
def store_raddr(at: int, raddr: int, rkey: int) -> int:
    """Store a remote address segment."""
    store(at + wqe.WQE_RADDR, swap64(raddr))
    return store(at + wqe.WQE_RADDR + 8, rkey)


@on_host
def store_data(at: int, addr: int, lkey: int, nbytes: int) -> int:
    """Store a data segment."""
    store(at, swap32(nbytes) | lkey << 32)
    return store(at + 8, swap64(addr))


@on_host
def post_nop(own: int, row: int) -> int:
    """Post what completes a WQE of several WQEBBs."""
    return begin(own, row, _NOP, wqe.DS_NOP, _ALWAYS)


@on_host
def post_inline(own: int, request: int, row: int, rkey: int) -> int:
    """Post a WRITE of 1 to 16 bytes that are in the request."""
    nbytes = load(request + proxy.NBYTES)
    at = begin(own, row, _RDMA_WRITE, _ds_inline(nbytes), _ALWAYS)
    store_raddr(at, load(request + proxy.REMOTE), rkey)
    value, second = load(request + proxy.VALUE), load(request + proxy.SECOND)
    at += wqe.WQE_DATA
    store_u32(at, swap32(wqe.INLINE_SEG | nbytes))
    store_u32(at + 4, value)
    store_u32(at + 8, value >> 32)
    store_u32(at + 12, second)
    if nbytes > 12:
        store_u32(at + 16, second >> 32)
    return 0


@on_host
def post_atomic(own: int, row: int, opcode: int, raddr: int, first: int, second: int, local: int, nbytes: int) -> int:
    """Post an atomic of one WQEBB; first and second are its segment, the old value lands at local."""
    at = begin(own, row, opcode, wqe.DS_ATOMIC, _ALWAYS)
    store_raddr(at, raddr, load(row + HEAP_KEY))
    store(at + wqe.WQE_DATA, first)
    store(at + wqe.WQE_DATA + 8, second)
    return store_data(at + wqe.WQE_ATOMIC_DATA, local, load(own + CELL_LKEY), nbytes)


@on_host
def post_set(own: int, row: int, raddr: int, value: int) -> int:
    """Post a MASKED_CS that stores 8 bytes whatever was there (facts/mlx5.md 1.7), and its NOP."""
    index = load(row + PROD_IDX)
    at = begin(own, row, _MASKED_CS_8, wqe.DS_MASKED_CS_8, _QUIETLY)
    store_raddr(at, raddr, load(row + HEAP_KEY))
    store(at + wqe.WQE_DATA, swap64(value))
    store(at + wqe.WQE_DATA + 8, 0)
    store(at + wqe.WQE_DATA + 16, -1)
    store(at + wqe.WQE_DATA + 24, 0)
    store_data(wqebb(own, row, index + 1), load(own + SINK), load(own + CELL_LKEY), 8)
    return post_nop(own, row)


@on_host
def step(own: int, request: int, row: int, done: int) -> int:
    """Post the WQEs of a request of which `done` bytes are posted; return how many are then, _POSTED if nothing is left."""
    what, nbytes = load(request + proxy.WHAT), load(request + proxy.NBYTES)
    operation = what & proxy.OPERATION_MASK
    local, to = load(request + proxy.LOCAL), load(request + proxy.REMOTE)
    value, second = load(request + proxy.VALUE), load(request + proxy.SECOND)
    if operation == _STORE:
        post_inline(own, request, row, load(row + (SYSTEM_KEY if what & proxy.SYSTEM else HEAP_KEY)))
    elif operation in (_ADD, _COMPARE_SWAP):
        if local == 0:
            local = load(own + SINK)
        if operation == _ADD and nbytes == 4:
            post_atomic(own, row, _MASKED_FA_4, to, swap32(value), 0, local, 4)
        elif operation == _ADD:
            post_atomic(own, row, _FA, to, swap64(value), 0, local, 8)
        elif nbytes == 4:
            post_atomic(own, row, _MASKED_CS_4, to, swap32(value) | swap32(second) << 32, -1, local, 4)
        else:
            post_atomic(own, row, _CS, to, swap64(value), swap64(second), local, 8)
    else:
        signals = operation in (_SIGNAL_SET, _SIGNAL_ADD)
        if done < nbytes:
            count = min(nbytes - done, wqe.MESSAGE_MAX)
            last = done + count == nbytes
            opcode = _RDMA_READ if operation == _READ else _RDMA_WRITE
            at = begin(own, row, opcode, wqe.DS_WRITE, _ALWAYS if last and not signals else _QUIETLY)
            store_raddr(at, to + done, load(row + HEAP_KEY))
            store_data(at + wqe.WQE_DATA, local + done, load(own + (CELL_LKEY if what & proxy.LANDING else LKEY)), count)
            if not last:
                return done + count
        if operation == _SIGNAL_ADD:
            post_atomic(own, row, _FA, second, swap64(value), 0, load(own + SINK), 8)
        elif operation == _SIGNAL_SET:
            post_set(own, row, second, value)
    return _POSTED


# Doorbells and completions ----------------------------------------------------------------------------------------------------


@on_host
def ring(own: int, count: int) -> int:
    """Ring the doorbells of the queue pairs to be rung: WQEs, then the DBR, then the UAR (facts/mlx5.md 1.9)."""
    fence()
    for i in range(count):
        row = load(load(own + UNRUNG) + 8 * i)
        index = load(row + PROD_IDX)
        store_u32(load(row + DBR), swap32(index & wqe.WQE_IDX_MASK))
        store_release(load(row + UAR), swap32((index & wqe.WQE_IDX_MASK) << wqe.WQE_IDX_SHIFT) | load(row + QPN) << 32)
        store(row + RUNG_IDX, index)
    return 0


@on_host
def advance(own: int, row: int) -> int:
    """Look at a CQE and move CONS_IDX forward (mlx5.cqe.extend); return whether it is one of an error."""
    tail = swap64(load_acquire(load(row + CQE)))
    opcode = (tail >> cqe.OP_OWN_OPCODE_SHIFT) & 0xF
    if opcode == _REQ:
        cons = load(row + CONS_IDX)
        distance = ((tail >> cqe.TAIL_WQE_COUNTER_SHIFT) + 1 - cons) & wqe.WQE_IDX_MASK
        if distance <= load(own + DEPTH):
            store(row + CONS_IDX, cons + distance)
    return opcode != _REQ and opcode != _INVALID


def _make(stamp: int) -> Callable[[int], int]:
    layout = int.from_bytes(hashlib.sha256(Path(proxy.__file__).read_bytes()).digest()[:7], "little")

    def loop(own: int) -> int:
        """Run until STOP; return 0 before that if a WQE has failed."""
        control, mask = load(own + CONTROL), load(own + SLOT_MASK)
        tail = completed = 0  # requests posted, and done
        posted = 0  # bytes of the request at tail
        unrung = waiting = 0  # queue pairs to be rung, WQEBBs that wait for it
        turns = 0
        while load_acquire(own + STOP) == 0:
            turns += 1
            request = control + proxy.RING + ((tail & mask) << proxy.REQUEST_SHIFT)
            room = False
            if load_acquire(request + proxy.SEQUENCE) == tail + 1:
                row = load(own + ROWS) + (load(request + proxy.WHAT) >> proxy.NUMBER_SHIFT) * ROW
                index = load(row + PROD_IDX)
                room = index - load(row + CONS_IDX) + _STEP_MAX <= load(own + DEPTH)
                if room:
                    turns = 0
                    store(own + PHASE, POSTING)
                    if index == load(row + RUNG_IDX):
                        store(load(own + UNRUNG) + 8 * unrung, row)
                        unrung += 1
                    posted = step(own, request, row, posted)
                    waiting += load(row + PROD_IDX) - index
                    if posted == _POSTED:
                        undone = load(own + UNDONE) + (tail & mask) * UNDONE_SIZE
                        store(undone, row)
                        store(undone + 8, load(row + PROD_IDX))
                        posted = 0
                        tail += 1
                elif advance(own, row):
                    store_release(control + proxy.FAILED, load(row + RECORD))
                    return 0
            if unrung and (waiting >= load(own + BATCH) or not room):
                store(own + PHASE, RINGING)
                ring(own, unrung)
                unrung = waiting = 0
            store(own + PHASE, COMPLETING if turns <= 1 else WAITING)
            before = completed
            while completed < tail:
                undone = load(own + UNDONE) + (completed & mask) * UNDONE_SIZE
                row = load(undone)
                if load(row + CONS_IDX) < load(undone + 8):
                    if advance(own, row):
                        store_release(control + proxy.FAILED, load(row + RECORD))
                        return 0
                    if load(row + CONS_IDX) < load(undone + 8):
                        break
                completed += 1
            if completed != before:
                turns = 0
                store_release(control + proxy.COMPLETED, completed)
            idle(min(turns, _LAST_TURN))
        return stamp ^ layout

    return loop


@functools.cache
def _loop() -> Any:
    """Compile the loop, or find it in the disk cache."""
    return kernel(types.int64(types.int64), _make)


# The host ---------------------------------------------------------------------------------------------------------------------


class ProxiedNIC(NIC):
    """A NIC that a proxy thread posts to. Arguments and errors are NIC's."""

    on_host = True

    def __init__(
        self,
        memory: Memory,
        me: int,
        n_pes: int,
        segments: tuple[Segment, ...],
        fds: list[int],
        exchange: Callable[[Any], list[Any]],
        constants: window.Constants,
        **options: Any,
    ) -> None:
        self._thread: threading.Thread | None = None
        self._stopping, self._ended = False, ""
        super().__init__(memory, me, n_pes, segments, fds, exchange, constants, **options)
        try:
            self._everywhere(lambda: self._start(constants))
        except BaseException:
            self.close()
            raise

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes of the segment are used; the ring is behind the queues."""
        return super().segment_bytes(n_pes, constants) + proxy.RING + constants.ring * proxy.REQUEST_SIZE

    def _start(self, constants: window.Constants) -> None:
        self._control = self._slot + window.QUEUE_OFFSET + super().segment_bytes(self._n_pes, constants)
        self._store(proxy.CONTROL, self._control)
        count = len(self.qps)
        rows = RECORD_END
        undone = rows + count * ROW
        unrung = undone + constants.ring * UNDONE_SIZE
        own = self._own = np.zeros(unrung // 8 + count, np.int64)
        at = own.ctypes.data
        cells = self._load(queue.CELLS)
        for offset, value in (
            (CONTROL, self._control), (SLOT_MASK, constants.ring - 1), (ROWS, at + rows), (UNDONE, at + undone), (UNRUNG, at + unrung),
            (DEPTH, self._depth), (BATCH, constants.batch), (LKEY, self._load(queue.LKEY)), (CELL_LKEY, self._load(queue.CELL_LKEY)),
            (SINK, cells + queue.SINK),
        ):  # fmt: skip
            own[offset // 8] = value
        for number in range(count):
            record = queue.RECORDS + number * queue.RECORD_SIZE
            keys = self._load(queue.KEYS + 8 * (number // self._num))
            fields = {WQ: queue.WQ, DBR: queue.DBR, UAR: queue.UAR, CQE: queue.CQE, QPN: queue.QPN}
            values = {name: self._load(record + field) for name, field in fields.items()}
            values |= {HEAP_KEY: keys & 0xFFFF_FFFF, SYSTEM_KEY: keys >> 32, RECORD: record}
            values |= dict.fromkeys((PROD_IDX, RUNG_IDX, CONS_IDX), self.first_index)
            for offset, value in values.items():
                own[(rows + number * ROW + offset) // 8] = value
        loop = _loop()
        self._thread = threading.Thread(target=self._run, args=(loop, at), name=f"pgas proxy of PE {self._me}", daemon=True)
        self._thread.start()

    def holds_unposted(self) -> bool:
        """Whether kernels that have ended reserved tickets and wrote no request; what is written, the proxy takes."""
        self._store(proxy.LOOKING, 0)  # who looked when its kernel was cut looks no more
        ring, size = self._control + proxy.RING, int(self._own[SLOT_MASK // 8]) + 1
        tickets = range(self._load(self._control + proxy.COMPLETED), self._load(proxy.HEAD))
        sequences = (self._load(ring + t % size * proxy.REQUEST_SIZE + proxy.SEQUENCE) for t in tickets)
        return any(found != t + 1 for t, found in zip(tickets, sequences, strict=True)) if len(tickets) <= size else True

    def _run(self, loop: Callable[[int], int], own: int) -> None:
        """The proxy thread; if it ends before it is told to, nobody sends any more: let the waits of kernels end."""
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # of this thread: 50 us would double its sleeps
        reason = "nobody stopped it"
        try:
            loop(own)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not self._stopping:
            self._ended = reason
            if self._load(state.POISON) == state.SOUND:
                self._store(state.POISON, state.LOST)

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Look at what the thread does, 2,000 times a second; at the end the dict holds the share of each of PHASES."""
        shares: dict[str, float] = {}
        counts, ended = [0] * len(PHASES), threading.Event()

        def look() -> None:
            while not ended.wait(500e-6):
                counts[int(self._own[PHASE // 8])] += 1

        sampler = threading.Thread(target=look, name="pgas proxy sampler", daemon=True)
        sampler.start()
        try:
            yield shares
        finally:
            ended.set()
            sampler.join()
            shares.update({name: count / max(1, sum(counts)) for name, count in zip(PHASES, counts, strict=True)})

    def check(self) -> None:
        """Raise what went wrong in the proxy thread.

        Raises:
            CompletionError: a WQE failed.
            PgasError: the thread has ended.
        """
        if self._thread is None:
            return
        if record := self._load(self._control + proxy.FAILED):
            raise self.failure(record, "the proxy thread")
        if self._ended:
            raise PgasError(f"the proxy thread of PE {self._me} ended ({self._ended}): what kernels ask for is not sent any more")

    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until everything that kernels asked for is done. Arguments and errors are NIC.quiet's, and check's."""
        deadline = time.monotonic() + timeout_s
        target = self._load(proxy.HEAD)
        while (done := self._load(self._control + proxy.COMPLETED)) < target:
            self.check()
            if time.monotonic() > deadline:
                raise TransportError(f"the proxy thread completed {done} of {target} requests in {timeout_s:g} s (PGAS_TIMEOUT)")
            poll()
            time.sleep(0)

    def name_of(self, record: int) -> str:
        """Return the queue pair of a record, or the ring, in words."""
        return "the proxy thread's ring" if record == proxy.HEAD else super().name_of(record)

    def stop(self) -> None:
        """Stop the thread. Further calls do nothing."""
        if self._thread is not None:
            self._stopping = True
            self._own[STOP // 8] = 1
            self._thread.join()
            self._thread = None
