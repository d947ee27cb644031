"""The card's contexts: what the firmware (Python, the server's main thread) and the engine (compiled, a thread of its own) both read.

Every record is a row of a NumPy table whose fields are all int64. The engine reaches a field by the row's address and the offset constant
(QP_STATE ...), Python by its name ("state"). The tables are private memory of the server: no PE can write them.

Who writes what
---------------
===========================  ===========================================================================================
QP_STATE                     both, only by compare-and-swap: the firmware for commands, the engine for RTS or RTR -> ERR
QP fields up to QP_RECV_PSN  the firmware, and only while the engine does not look: before the state that lets it (see below)
QP fields from QP_CONSUMER   the engine; the firmware clears them while the state is RST and a grace period has passed
CQ_PRODUCER, CQ_CQES         the engine; everything else of a CQ the firmware, while CQ_CQN is 0
MKEY fields                  the firmware, while MKEY_KEY is 0; MKEY_KEY is stored last (release) and cleared first
CTL_SWEEP, TRACE_HEAD, LOST  the engine
CTL_PAUSED                   the firmware; the engine sets it when a fault halts it
CTL fields of faults         the firmware, while the engine is paused; the engine counts down and draws random numbers
other CTL fields             the firmware
doorbell registers           PEs store; the engine takes a value by exchanging it with 0, so every ring is seen once
===========================  ===========================================================================================

What the engine looks at: the send queue of a QP in RTS or ERR; the receiving side of a QP in RTR or RTS; a CQ that such a QP names; any key
with MKEY_KEY not 0. It begins every pass over the QPs by adding 1 to CTL_SWEEP (sequentially consistent) and keeps nothing that it
read from one pass to the next.

What keeps DESTROY from racing WQEs in flight
---------------------------------------------
A **grace period**, as in RCU: the firmware first makes the object invisible (state by compare-and-swap, key by storing 0), fences, reads
CTL_SWEEP and waits until it has grown by 2. A pass that might have seen the object has ended by then, so its context may be reused and the
memory behind it unmapped. The same holds for 2RST_QP (the counters are cleared after the grace period), for DESTROY_MKEY, and for a PE that
leaves; a CQ is destroyed after its last QP, whose grace period is its own. WQEs of a destroyed QP that were not executed vanish without a
CQE, as on a card; of one that is executing, memory and CQE are complete before the command returns. A paused engine goes on making (empty)
passes, so commands work while it is paused.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pgas.sim import memory
from pgas.transports.mlx5.contexts import QpState
from pgas.transports.softhca import layout

__all__ = ["CONTROL", "COUNTERS", "CQ", "MKEY", "QP", "Tables"]

# States of a QP: the values of qpc.state, and one for a row that no QP uses.
RST, INIT, RTR, RTS, ERR = (int(state) for state in QpState)
FREE = 15

# ------------------------------------------------------------------------------------------------------------------------- QP
(
    QP_STATE,
    QP_QPN,
    QP_PE,
    QP_PD,
    QP_SQ,  # address of the send queue
    QP_MASK,  # WQEBBs - 1
    QP_DBR,  # address of the send counter's word in the doorbell record
    QP_REGISTER,  # address of the doorbell register
    QP_CQ,  # address of the CQ's record
    QP_USER_INDEX,
    QP_UAR,
    QP_LOG_MSG_MAX,
    QP_ACCESS,  # what it lets others do: OP_* bits
    QP_REMOTE_QPN,
    QP_SEND_PSN,
    QP_RECV_PSN,
    QP_CONSUMER,  # next WQEBB to execute, ever-growing
    QP_PRODUCER,  # next WQEBB that is not rung for, ever-growing
    QP_STALLED_UNTIL,  # a fault holds the QP back until this sweep
    QP_HELD,  # a fault holds a CQE back: its WQE's index + 1
    QP_HELD_OPCODE,
    QP_HELD_NBYTES,
    QP_WQES,
    QP_NBYTES,
    QP_DOORBELLS,
    QP_CQES,
    QP_ERRORS,
    QP_FLUSHED,
    QP_WRITES,
    QP_READS,
    QP_ATOMICS,
    QP_FOREIGN_DOORBELLS,  # rung in this QP's register with the number of another
    QP_STALE_DOORBELLS,  # that went backwards
    QP_STALE_RECORDS,  # doorbells that the doorbell record lagged behind
    QP_ERROR_SYNDROME,  # the first error since RST
    QP_ERROR_VENDOR,
    QP_ERROR_INDEX,
    QP_ERROR_NBYTES,  # bytes of its WQE in Tables.error_wqes
    QP_ERROR_WQE,  # address of them
) = range(0, 8 * 39, 8)

#: The fields that count since RST, in the order in which tables show them.
COUNTERS = (
    "wqes nbytes doorbells cqes errors flushed writes reads atomics foreign_doorbells stale_doorbells stale_records".split()  # noqa: SIM905
)

OP_READ, OP_WRITE, OP_ATOMIC = 1, 2, 4

#: mkc.lr, which IBV_ACCESS_* has no flag for: ibv_reg_mr always sets it.
LOCAL_READ = 1 << 30

# ------------------------------------------------------------------------------------------------------------------------- CQ
(
    CQ_CQN,  # 0: free
    CQ_PE,
    CQ_ADDRESS,
    CQ_LOG_SIZE,
    CQ_COLLAPSED,
    CQ_PRODUCER,
    CQ_CQES,
) = range(0, 8 * 7, 8)

# ----------------------------------------------------------------------------------------------------------------------- mkey
(
    MKEY_KEY,  # lkey and rkey; 0: free
    MKEY_PE,
    MKEY_PD,
    MKEY_ACCESS,  # flags of contexts.Access, and LOCAL_READ
    MKEY_START,  # first address in WQEs (iova)
    MKEY_NBYTES,
    MKEY_ADDRESS,  # where the first byte lies in the window
) = range(0, 8 * 7, 8)

# -------------------------------------------------------------------------------------------------------------------- control
(
    CTL_STOP,
    CTL_PAUSED,
    CTL_SWEEP,
    CTL_QP_LIMIT,  # rows of the QP table that may be in use
    CTL_QPS,  # addresses of the tables
    CTL_MKEYS,
    CTL_WORK,
    CTL_TRACE,
    CTL_TRACE_HEAD,  # records written
    CTL_TRACE_TAIL,  # records read
    CTL_TRACE_LOST,
    CTL_TRACE_KINDS,  # TRACE_WQE | TRACE_CQE
    CTL_CHAOS,  # probability of a delay, of 2^16
    CTL_RANDOM,  # state of the generator, seeded
    CTL_ATOMICS_SPLIT,  # atomics of the card are not atomic with those of the PEs
    CTL_FAIL_COUNT,  # WQEs until one fails; 0: none
    CTL_FAIL_QPN,  # 0: of any QP
    CTL_FAIL_SYNDROME,
    CTL_HALT_COUNT,  # WQEs until the engine pauses; 0: it does not
) = range(0, 8 * 19, 8)

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
    WORK_WIDTH,  # of an atomic's operand, 0: no atomic
    WORK_NBYTES,  # that it moves
    WORK_SEGMENTS,  # (address, nbytes) pairs in use
    WORK_RESPONDER,  # address of the responder's record
    WORK_REMOTE,  # where raddr lies in the window
    WORK_SYNDROME,
    WORK_VENDOR,
) = range(0, 8 * 17, 8)

#: Behind these fields: a copy of the WQE (at most 63 octowords), and its data segments resolved to pairs of address and nbytes.
WORK_WQE = 256
WQE_BYTES = 1024
WORK_PAIRS = WORK_WQE + WQE_BYTES
SEGMENT_BYTES = 16
WORK_BYTES = WORK_PAIRS + SEGMENT_BYTES * 64

# ---------------------------------------------------------------------------------------------------------------------- trace
TRACE_KIND, TRACE_QPN, TRACE_INDEX, TRACE_NBYTES, TRACE_PE = range(0, 8 * 5, 8)
TRACE_WQE, TRACE_CQE = 1, 2
TRACE_DATA = 64
TRACE_BYTES = TRACE_DATA + WQE_BYTES
TRACE_RECORDS = 1024


def _record(prefix: str) -> np.dtype:
    """Return the dtype of a record: fields named after its offset constants, whole cache lines long."""
    named = {name.removeprefix(prefix).lower(): offset for name, offset in globals().items() if name.startswith(prefix)}
    size = 64 * -(-8 * len(named) // 64)
    return np.dtype({"names": list(named), "formats": ["<i8"] * len(named), "offsets": list(named.values()), "itemsize": size})


QP, CQ, MKEY, CONTROL = _record("QP_"), _record("CQ_"), _record("MKEY_"), _record("CTL_")
QP_ROW, CQ_ROW, MKEY_ROW = QP.itemsize, CQ.itemsize, MKEY.itemsize
QP_ROWS_MASK, MKEY_ROWS_MASK = (1 << layout.LOG_MAX_QP) - 1, (1 << layout.LOG_MAX_MKEY) - 1


class Tables:
    """The contexts of one card, and the firmware's side of the protocol above."""

    def __init__(self) -> None:
        self.qps = _rows(1 << layout.LOG_MAX_QP, QP)
        self.cqs = _rows(1 << layout.LOG_MAX_CQ, CQ)
        self.mkeys = _rows(1 << layout.LOG_MAX_MKEY, MKEY)
        self.control = _rows(1, CONTROL)
        self.trace = _rows(TRACE_RECORDS * TRACE_BYTES, np.dtype(np.uint8))
        self.error_wqes = _rows((1 << layout.LOG_MAX_QP) * WQE_BYTES, np.dtype(np.uint8))
        self._work = _rows(WORK_BYTES, np.dtype(np.uint8))
        self.qps["state"] = FREE
        self.qps["error_wqe"] = self.error_wqes.ctypes.data + WQE_BYTES * np.arange(len(self.qps))
        control = self.control[0]
        control["qps"], control["mkeys"] = self.qps.ctypes.data, self.mkeys.ctypes.data
        control["work"], control["trace"] = self._work.ctypes.data, self.trace.ctypes.data
        #: Called while a grace period lasts; raises if the engine's thread has ended.
        self.alive: Callable[[], None] = lambda: None

    @property
    def address(self) -> int:
        """The address of the control record, from which the engine finds everything else."""
        return int(self.control.ctypes.data)

    def row_address(self, table: Any, row: int) -> int:
        """Return the address of a row."""
        return int(table.ctypes.data + row * table.itemsize)

    def move(self, row: int, before: int, after: int) -> bool:
        """Change the state of a QP if it is still what it was."""
        return memory.atomic_compare_swap_u64(self.row_address(self.qps, row) + QP_STATE, before, after) == before

    def publish_key(self, row: int, key: int) -> None:
        """Make a complete mkey visible to the engine; 0 hides it."""
        memory.store_release_u64(self.row_address(self.mkeys, row) + MKEY_KEY, key)

    def set(self, field: int, value: int) -> None:
        """Set a word of the control record while the engine runs."""
        memory.store_release_u64(self.address + field, value & (1 << 64) - 1)

    def wait_for_engine(self, timeout_s: float = 60.0) -> None:
        """Wait for a grace period: afterwards the engine uses nothing that was hidden from it before the call.

        Raises:
            TimeoutError: the engine did not finish what it does.
        """
        memory._fence_seq_cst()
        sweep = self.address + CTL_SWEEP
        end, deadline = memory.load_acquire_u64(sweep) + 2, time.monotonic() + timeout_s
        while memory.load_acquire_u64(sweep) < end:
            self.alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the engine of the software card stands still for {timeout_s:g} s")
            time.sleep(20e-6)


def _rows(count: int, dtype: np.dtype) -> Any:
    """Return zeroed rows at an address that is a multiple of 64."""
    raw = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * dtype.itemsize].view(dtype)
