"""The software NIC's contexts, shared by the firmware (Python, the server's main thread) and the engine (compiled).

Every record is a row of a NumPy table whose fields are all int64. The engine accesses a field by the row's address and an offset constant
(QP_STATE ...), Python by its name ("state"). The tables are private memory of the server, so that no PE can write them. The cpu engine, a
thread, works on the tables; the cuda engine, a kernel, works on their image in GPU memory (Mirror), to which the firmware publishes what it
writes, and from which it fetches what the engine writes before reading it. Every field has only one writer at a time.

Writers
-------
===========================  ===========================================================================================
QP_STATE                     the firmware. A QP in RTR or RTS with QP_BROKEN set is in ERR: the engine found an error
QP fields up to QP_WORKER    the firmware, only while the engine does not read them: before the state that allows it (see below)
QP fields from QP_BROKEN     the engine; the firmware clears them while the state is RST and a grace period has passed
RQ fields                    like those of the QP in the same row: up to RQ_RNR_RETRY the firmware, from RQ_CONSUMER the engine
CQ fields from CQ_PRODUCER   the engine; everything else of a CQ the firmware, while CQ_CQN is 0
MKEY fields                  the firmware, while MKEY_KEY is 0; MKEY_KEY is stored last (release) and cleared first
sweeps, TRACE_HEAD, LOST     the engine, and CTL_EVENTS_TICKET
CTL_PAUSED                   the firmware; the engine sets it when a fault halts it
CTL fields of faults         the firmware, while the engine is paused; the engine counts down and draws random numbers
CTL_..._UNTIL                the engine
CTL_LATE_ROWS, CTL_SETTLED   the engine, like the rows of late data
other CTL fields             the firmware
doorbell registers           PEs store; the engine takes a value by exchanging it with 0, so that it observes each doorbell once. An engine
                             on a GPU cannot atomically exchange what a CPU stores, so that a changed value is a doorbell there
===========================  ===========================================================================================

The engine reads the send queue of a QP in RTS or ERR, the receiving side of a QP in RTR or RTS, the CQs of such a QP, and any key with
MKEY_KEY not 0. It begins every pass over the QPs by adding 1 to its sweep, and keeps no values from one pass to the next. The update is
ordered after everything that the previous pass wrote, and rows of QPs are read after it. The control record may be read before the update
is done, so that a grace period takes two sweeps. A worker may read an old QP_WORKER from L1. If that names another worker, this one serves
a new QP some passes later (block.py, REFRESH); if it names this worker, wants() reads it again, bypassing L1.

An engine may have several workers (the CTAs of a kernel; the cpu engine is one). QP_WORKER is the worker of a QP, the same for all QPs that
share a CQ. While CTL_SERIAL is set, the first worker serves all QPs, one WQE at a time, because faults, printed traces, and counts of "the
n-th WQE" require it.

Only the cpu engine serves receive queues (QueuePairs), because with several workers, the sender's worker would take receive WQEs and write
CQEs that belong to the receiver's worker. Receive queues have a separate table, so that the rows of QPs, which every pass reads, stay
small.

How DESTROY avoids races with WQEs in flight
--------------------------------------------
By a **grace period**, like RCU. The firmware makes the object invisible (by its state; a key by storing 0), fences, reads every worker's
sweep, and waits until each has grown by 2. Then every pass that may have observed the object has ended, so that its context can be reused
and its memory unmapped. 2RST_QP (which clears the counters afterwards) and DESTROY_MKEY do the same, and so does a PE that leaves. A CQ is
destroyed after its last QP, whose grace period covers it. WQEs of a destroyed QP that were not executed are dropped without a CQE, as on a
ConnectX; an executing WQE has written its data and CQE before the command returns. A paused engine still makes (empty) passes, so that
commands work during a pause. Late data (engine/late.py) is also written within a grace period.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from pgas.native import atomics
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.softhca import layout

# States of a QP: those of qpc.state, and one for an unused row.
RST, INIT, RTR, RTS, ERR = (int(state) for state in QpState)
FREE = 15

# ------------------------------------------------------------------------------------------------------------------------- QP
(
    QP_STATE,
    QP_QPN,
    QP_PE,
    QP_PD,
    QP_SQ,  # address of the send queue, or of the engine's copy of it
    QP_MASK,  # WQEBBs - 1
    QP_DBR,  # address of the send counter's word in the doorbell record
    QP_REGISTER,  # address of the doorbell register
    QP_BUFFERS,  # number of BlueFlame registers in its UAR page, for all QPs of the page; SHARED; or 0 if it has its own register
    QP_ON_HOST,  # 1: a CPU rings it
    QP_CQ,  # address of the CQ's record
    QP_USER_INDEX,
    QP_UAR,
    QP_LOG_MSG_MAX,
    QP_ACCESS,  # permitted remote operations: OP_* bits
    QP_REMOTE_QPN,
    QP_SEND_PSN,
    QP_RECV_PSN,
    QP_WORKER,  # the worker of the engine that serves it
    QP_BROKEN,  # 1: an error moved it to ERR. The peer's worker also writes this word and the next one
    QP_ERRORS,  # number of errors
    QP_CONSUMER,  # next WQEBB to execute, ever-growing
    QP_PRODUCER,  # next WQEBB without a doorbell, ever-growing
    QP_RUNG,  # last doorbell taken from a register that a CPU rings
    QP_STALLED_UNTIL,  # a fault delays the QP until this sweep
    QP_HELD,  # a fault delays a CQE: its WQE's index + 1
    QP_HELD_OPCODE,
    QP_HELD_NBYTES,
    QP_WQES,
    QP_NBYTES,
    QP_DOORBELLS,
    QP_CQES,
    QP_FLUSHED,
    QP_WRITES,
    QP_READS,
    QP_ATOMICS,
    QP_FOREIGN_DOORBELLS,  # doorbells in this QP's register with another QPN
    QP_STALE_DOORBELLS,  # doorbells that went backwards
    QP_STALE_RECORDS,  # doorbells ahead of the doorbell record
    QP_ERROR_SYNDROME,  # the first error since RST
    QP_ERROR_VENDOR,
    QP_ERROR_INDEX,
    QP_ERROR_NBYTES,  # bytes of its WQE in Tables.error_wqes
    QP_ERROR_WQE,  # their address
) = range(0, 8 * 44, 8)

#: Names of the counters since RST, in the order of printed tables.
COUNTERS = (
    "wqes nbytes doorbells cqes errors flushed writes reads atomics foreign_doorbells stale_doorbells stale_records".split()  # noqa: SIM905
)

#: Value of QP_BUFFERS for QPs that share one register. Only its last doorbell is visible, so a doorbell makes the engine read every QP's
#: record.
SHARED = -1

OP_READ, OP_WRITE, OP_ATOMIC = 1, 2, 4

#: Flag for mkc.lr, for which IBV_ACCESS_* has none, because ibv_reg_mr always sets it.
LOCAL_READ = 1 << 30

# ------------------------------------------------------------------------------------- RQ: in the row that the QP has in its table
(
    RQ_ADDRESS,  # address of the receive queue; 0: none
    RQ_MASK,  # receive WQEs - 1
    RQ_STRIDE,  # bytes of a receive WQE
    RQ_DBR,  # address of the receive counter's word in the doorbell record
    RQ_CQ,  # address of the CQ's record
    RQ_RNR_NS,  # time that the peer waits if there is no receive WQE
    RQ_RNR_RETRY,  # qpc.rnr_retry: number of retries if the peer has no receive WQE
    RQ_CONSUMER,  # next receive WQE, ever-growing
    RQ_NAKS,  # attempts of the current WQE without a receive WQE
    RQ_NAKED_UNTIL,  # time of the next attempt
    RQ_RECEIVES,  # completed receive WQEs, and flushed ones
    RQ_FLUSHED,
) = range(0, 8 * 12, 8)

# ------------------------------------------------------------------------------------------------------------------------- CQ
(
    CQ_CQN,  # 0: free
    CQ_PE,
    CQ_ADDRESS,
    CQ_LOG_SIZE,
    CQ_COLLAPSED,
    CQ_DBR,  # address of the doorbell record with the consumer index; 0: overrun is ignored
    CQ_PRODUCER,
    CQ_CQES,
    CQ_OVERRUN,  # 1: a CQE found no room; the CQ stays in error
) = range(0, 8 * 9, 8)

# ----------------------------------------------------------------------------------------------------------------------- mkey
(
    MKEY_KEY,  # lkey and rkey; 0: free
    MKEY_PE,
    MKEY_PD,
    MKEY_ACCESS,  # flags of contexts.Access, and LOCAL_READ
    MKEY_START,  # first address in WQEs (iova)
    MKEY_NBYTES,
    MKEY_ADDRESS,  # address of the first byte in the window
) = range(0, 8 * 7, 8)

# -------------------------------------------------------------------------------------------------------------------- control
(
    CTL_STOP,
    CTL_PAUSED,
    CTL_SWEEPS,  # address of the workers' sweeps, a cache line each: passes begun
    CTL_QP_LIMIT,  # rows of the QP table that may be in use
    CTL_QPS,  # addresses of the tables
    CTL_RQS,
    CTL_MKEYS,
    CTL_WORK,  # the workers' work records
    CTL_TRACE,
    CTL_TRACE_HEAD,  # records written
    CTL_TRACE_TAIL,  # records read
    CTL_TRACE_LOST,
    CTL_TRACE_KINDS,  # TRACE_WQE | TRACE_CQE | TRACE_EVENTS
    CTL_CHAOS,  # probability of a delay, times 2^16
    CTL_HOLD,  # upper bound of a delay, in sweeps
    CTL_RANDOM,  # state of the generator, seeded
    CTL_ATOMICS_SPLIT,  # atomics of the software NIC are not atomic with respect to those of the PEs
    CTL_FAIL_COUNT,  # WQEs until one fails; 0: none
    CTL_FAIL_QPN,  # 0: of any QP
    CTL_FAIL_SYNDROME,
    CTL_HALT_COUNT,  # WQEs until the engine pauses; 0: never
    CTL_SERIAL,  # the first worker serves all QPs
    CTL_BEAT,  # grows while the server lives; otherwise a kernel ends
    CTL_WQE_COST,  # limits (limits.py): cost of a WQE and of a byte; 0: no limit
    CTL_BYTE_COST,
    CTL_WQES_UNTIL,  # times at which all admitted WQEs, and all admitted bytes, are done
    CTL_BYTES_UNTIL,
    CTL_CQS,  # address of the table of CQs, for WAIT; 0: no WAIT, because CQs belong to several workers
    CTL_LATE,  # probability that data is late, times 2^16
    CTL_LATE_DATA,  # address of the rows of late data
    CTL_LATE_ROWS,  # number of rows in use
    CTL_SETTLE,  # grace periods begun while data may be late
    CTL_SETTLED,  # the last of these for which all data has been written
    CTL_BIG_ENDIAN,  # atomics return old values of 8 bytes big-endian
    CTL_EVENTS,  # address of the ring of a timeline's events, number of events written, mask of the ring's slots
    CTL_EVENTS_TICKET,
    CTL_EVENTS_MASK,
    CTL_EVENTS_COUNT,  # address of CTL_EVENTS_TICKET, because a CTA works on a copy of this record
) = range(0, 8 * 38, 8)

# ------------------------------------------------------------------------------------------------------------------ late data
(
    LATE_NBYTES,  # 0: free
    LATE_AT,  # their address
    LATE_PE,  # the PE of that memory
    LATE_QPN,  # QP of the READ or atomic that fetched them; 0: written by a peer
    LATE_UNTIL,  # the latest sweep at which they are written
) = range(0, 8 * 5, 8)
LATE_DATA = 64
LATE_MAX = 256  #: maximum number of late bytes of a segment, at its end
LATE_ROW = LATE_DATA + LATE_MAX
LATE_ROWS = 64

# --------------------------------------------------------------------------------------------------- one WQE in the pipeline
(
    WORK_INDEX,  # ever-growing index of its first WQEBB
    WORK_OPCODE,
    WORK_OPMOD,
    WORK_DS,
    WORK_CE,
    WORK_WQEBBS,
    WORK_RADDR,
    WORK_RKEY,
    WORK_OPERANDS,  # offset of the atomic segment
    WORK_DATA,  # offset of the first data segment
    WORK_WIDTH,  # bytes of an atomic's operand; 0 if not an atomic
    WORK_NBYTES,  # bytes that it moves
    WORK_WQE,  # address of a copy of the WQE
    WORK_CAPACITY,  # room for (address, nbytes) pairs
    WORK_SEGMENTS,  # pairs in use
    WORK_RESPONDER,  # address of the responder's record
    WORK_REMOTE,  # address of raddr in the window
    WORK_SYNDROME,
    WORK_VENDOR,
) = range(0, 8 * 19, 8)

#: Offsets after these fields: data segments as (address, nbytes) pairs, with room for all that fit into a WQE; then the copy of the WQE.
WORK_PAIRS = 8 * 19
SEGMENT_BYTES = 16
WQE_BYTES = 1024  #: a WQE has at most 63 octowords
MAX_SEGMENTS = WQE_BYTES // 16
WORK_COPY = WORK_PAIRS + SEGMENT_BYTES * MAX_SEGMENTS
WORK_SCATTER = WORK_COPY + WQE_BYTES  #: pairs of the receive WQE, up to layout.MAX_WQE_SZ_RQ
WORK_BYTES = WORK_SCATTER + layout.MAX_WQE_SZ_RQ

# ---------------------------------------------------------------------------------------------------------------------- trace
TRACE_KIND, TRACE_QPN, TRACE_INDEX, TRACE_NBYTES, TRACE_PE = range(0, 8 * 5, 8)
TRACE_WQE, TRACE_CQE, TRACE_EVENTS = 1, 2, 4
TRACE_DATA = 64
TRACE_BYTES = TRACE_DATA + WQE_BYTES
TRACE_RECORDS = 1024


def record(prefix: str, constants: Mapping[str, Any], nbytes: int = 0) -> np.dtype:
    """Return the dtype of a record: fields named after its offset constants, padded to nbytes, or to whole cache lines."""
    named = {name.removeprefix(prefix).lower(): offset for name, offset in constants.items() if name.startswith(prefix)}
    size = nbytes or 64 * -(-8 * len(named) // 64)
    return np.dtype({"names": list(named), "formats": ["<i8"] * len(named), "offsets": list(named.values()), "itemsize": size})


QP, RQ, CQ, MKEY, CONTROL = (record(prefix, globals()) for prefix in ("QP_", "RQ_", "CQ_", "MKEY_", "CTL_"))

#: Fields of an engine on a CPU alone, after those that the cuda engine copies; the firmware writes them. Addresses of a QP's connection (0:
#: the peer is on this card), and of its send queue in the PE's memory if QP_SQ is a copy (engine/dma.py); of the port's record
#: (wire/records.py), and of the ring of DMA commands.
QP_WIRE, CTL_WIRE = 8 * len(QP.names or ()), 8 * len(CONTROL.names or ())
QP_RING, CTL_DMA = QP_WIRE + 8, CTL_WIRE + 8

#: Time in ns after which a kernel ends if the server's beat does not change.
BEAT_NS = 20_000_000_000

SWEEP = np.dtype({"names": ["sweep"], "formats": ["<i8"], "offsets": [0], "itemsize": 64})
SWEEP_ROW = SWEEP.itemsize
QP_ROW, RQ_ROW, CQ_ROW, MKEY_ROW = QP.itemsize, RQ.itemsize, CQ.itemsize, MKEY.itemsize
QP_ROWS_MASK, CQ_ROWS_MASK, MKEY_ROWS_MASK = ((1 << log) - 1 for log in (layout.LOG_MAX_QP, layout.LOG_MAX_CQ, layout.LOG_MAX_MKEY))


class Mirror(Protocol):
    """An image of the tables in memory of the engine."""

    def place(self, table: Any) -> int:
        """Make an image of a table, with its current contents, and return its address."""

    def publish(self, table: Any, start: int, nbytes: int) -> None:
        """Copy bytes of a table to its image; on return they are visible to the engine."""

    def fetch(self, table: Any, start: int, nbytes: int) -> None:
        """Copy bytes of an image to the table."""


class Tables:
    """The contexts of one software NIC, and the firmware's side of the protocol above.

    Args:
        workers: number of workers of the engine.
        mirror: image of the tables for the engine. Default: the engine works on the tables.
        receives: whether the engine serves receive queues.
        page_locked: function that returns zeroed bytes that a GPU can access, of an engine that reaches the PEs' memory by DMA.
        ring: address of the ring of DMA commands.
    """

    def __init__(
        self, workers: int = 1, mirror: Mirror | None = None, *, receives: bool = False, page_locked: Callable[[int], Any] | None = None,
        ring: int = 0,
    ) -> None:  # fmt: skip
        self.workers, self._mirror, self.ring = workers, mirror, ring
        #: Function that returns zeroed bytes, page-locked for DMA.
        self.page_locked = page_locked or (lambda nbytes: zeroed(nbytes, np.dtype(np.uint8)))
        self._queues: dict[int, Any] = {}
        #: Whether the engine serves receive queues.
        self.receives = receives
        self.qps = zeroed(1 << layout.LOG_MAX_QP, QP)
        self.rqs = zeroed(1 << layout.LOG_MAX_QP, RQ)
        self.cqs = zeroed(1 << layout.LOG_MAX_CQ, CQ)
        self.mkeys = zeroed(1 << layout.LOG_MAX_MKEY, MKEY)
        self.control = zeroed(1, CONTROL)
        self.sweeps = zeroed(workers, SWEEP)
        self.trace = zeroed(TRACE_RECORDS * TRACE_BYTES, np.dtype(np.uint8))
        self.error_wqes = zeroed((1 << layout.LOG_MAX_QP) * WQE_BYTES, np.dtype(np.uint8))
        self._work = zeroed(workers * WORK_BYTES, np.dtype(np.uint8))
        self._late = zeroed(LATE_ROWS * LATE_ROW, np.dtype(np.uint8))
        self._places: dict[int, int] = {}
        self.qps["state"] = FREE
        self.qps["error_wqe"] = self.address_of(self.error_wqes) + WQE_BYTES * np.arange(len(self.qps))
        work = self.address_of(self._work)
        for start in range(0, workers * WORK_BYTES, WORK_BYTES):
            record = self._work[start : start + WORK_COPY].view("<i8")
            record[WORK_WQE // 8], record[WORK_CAPACITY // 8] = work + start + WORK_COPY, MAX_SEGMENTS
        control = self.control[0]
        control["qps"], control["rqs"] = self.address_of(self.qps), self.address_of(self.rqs)
        control["mkeys"], control["cqs"] = self.address_of(self.mkeys), self.address_of(self.cqs) if receives else 0
        control["work"], control["trace"], control["sweeps"] = work, self.address_of(self.trace), self.address_of(self.sweeps)
        control["late_data"] = self.address_of(self._late)
        atomics.store_release_u64(int(self.control.ctypes.data) + CTL_DMA, ring)
        for table in (self.qps, self.cqs, self._work, self._late, self.control):
            self._publish(table, 0, table.nbytes)
        #: Function called during a grace period, which raises if the engine has ended.
        self.alive: Callable[[], None] = lambda: None

    @property
    def address(self) -> int:
        """The address of the control record, which has the addresses of all tables."""
        return self.address_of(self.control)

    def address_of(self, table: Any) -> int:
        """Return the engine's address of a table."""
        if self._mirror is None:
            return int(table.ctypes.data)
        if id(table) not in self._places:
            self._places[id(table)] = self._mirror.place(table)
        return self._places[id(table)]

    def row_address(self, table: Any, row: int) -> int:
        return self.address_of(table) + row * int(table.itemsize)

    def _publish(self, table: Any, start: int, nbytes: int) -> None:
        atomics.fence_seq_cst()
        if self._mirror is not None:
            self.address_of(table)
            self._mirror.publish(table, start, nbytes)

    def publish_qp(self, row: int, *, whole: bool) -> None:
        """Publish a QP's row to the engine: the firmware's fields, or, while the engine does not write its own, the whole row."""
        self._publish(self.qps, row * QP_ROW, QP_ROW if whole else QP_BROKEN)

    def publish_cq(self, row: int) -> None:
        """Publish a CQ's row to the engine; no active QP uses it."""
        self._publish(self.cqs, row * CQ_ROW, CQ_ROW)

    def publish_key(self, row: int, key: int) -> None:
        """Make a complete mkey visible to the engine; 0 hides it."""
        start = row * MKEY_ROW
        self._publish(self.mkeys, start, MKEY_ROW)
        atomics.store_release_u64(int(self.mkeys.ctypes.data) + start + MKEY_KEY, key)
        self._publish(self.mkeys, start + MKEY_KEY, 8)

    def move(self, row: int, state: int) -> None:
        """Set the state of a QP; its row is complete for that state."""
        atomics.store_release_u64(int(self.qps.ctypes.data) + row * QP_ROW + QP_STATE, state)
        self._publish(self.qps, row * QP_ROW + QP_STATE, 8)

    def place_queue(self, row: int, address: int, nbytes: int) -> int:
        """Return where the engine reads the send queue at an address of a PE: there, or in a copy that it fetches by DMA."""
        if not self.ring:
            return address
        atomics.store_release_u64(int(self.qps.ctypes.data) + row * QP_ROW + QP_RING, address)
        self._queues[row] = zeroed(nbytes, np.dtype(np.uint8))
        return int(self._queues[row].ctypes.data)

    def set_wire(self, row: int, connection: int) -> None:
        """Set the address of a QP's connection while the engine does not use the QP; 0 for none."""
        atomics.store_release_u64(int(self.qps.ctypes.data) + row * QP_ROW + QP_WIRE, connection)

    def set(self, field: int, value: int) -> None:
        """Set a word of the control record while the engine runs."""
        atomics.store_release_u64(int(self.control.ctypes.data) + field, value & (1 << 64) - 1)
        self._publish(self.control, field, 8)

    def fetch_qps(self, first: int = 0, end: int | None = None) -> None:
        """Update the engine's fields in rows of QPs, and their first failed WQEs."""
        if self._mirror is None:
            return
        end = int(self.control[0]["qp_limit"]) if end is None else end
        rows = self.qps[first:end]
        own = {name: rows[name].copy() for name in QP.names or () if QP.fields[name][1] < QP_BROKEN}  # type: ignore[index]
        if len(rows):
            self._mirror.fetch(self.qps, first * QP_ROW, rows.nbytes)
            self._mirror.fetch(self.error_wqes, first * WQE_BYTES, len(rows) * WQE_BYTES)
        for name, values in own.items():
            rows[name] = values

    def fetch_cqs(self) -> None:
        """Update the rows of CQs."""
        if self._mirror is not None:
            self._mirror.fetch(self.cqs, 0, self.cqs.nbytes)

    def fetch_control(self) -> None:
        """Update the control record and the trace."""
        if self._mirror is None:
            return
        self._mirror.fetch(self.control, 0, self.control.nbytes)
        if self.control[0]["trace_head"] != self.control[0]["trace_tail"]:
            self._mirror.fetch(self.trace, 0, self.trace.nbytes)

    def _passes(self) -> Any:
        if self._mirror is not None:
            self._mirror.fetch(self.sweeps, 0, self.sweeps.nbytes)
            return self.sweeps["sweep"].copy()
        first = int(self.sweeps.ctypes.data)
        return np.array([atomics.load_acquire_u64(first + worker * SWEEP_ROW) for worker in range(self.workers)])

    @property
    def sweep(self) -> int:
        """The number of passes that the slowest worker has begun."""
        return int(self._passes().min())

    def wait_for_engine(self, timeout_s: float = 60.0) -> None:
        """Wait for a grace period, after which the engine does not use any object that was hidden before the call.

        Raises:
            TimeoutError: the engine did not finish its passes.
        """
        if self.control[0]["late"]:
            self.set(CTL_SETTLE, int(self.control[0]["settle"]) + 1)
        atomics.fence_seq_cst()
        end, deadline = self._passes() + 2, time.monotonic() + timeout_s
        while (self._passes() < end).any():
            self.alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine of the software NIC made no progress for {timeout_s:g} s")
            time.sleep(20e-6)


def zeroed(count: int, dtype: np.dtype) -> Any:
    """Return zeroed rows at an address that is a multiple of 64."""
    raw = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype)
