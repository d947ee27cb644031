"""Late data: what a WQE writes is visible behind its CQE, as to a GPU that does not see a NIC's writes in their order.

The last bytes of a segment wait in a row of a table; CQEs, atomics and everything else are visible at once. Late bytes are placed

* before the card executes a DUMP of that PE, or a READ of that PE's memory: a read pushes the writes before it ahead (PCI Express);
* before the card reads or writes these bytes;
* some passes later (hold=0: not for that), and within a grace period (tables).

A DUMP without a fence does not wait for the READs and atomics of its own QP. One thread executes all WQEs while data may be late
(CTL_SERIAL). The engine's kernel on a GPU has none of this (states.DELAYS_DATA).
"""

from pgas.kernels import window
from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5.wqe import CTRL_FM_CE_SE, OCTOWORD, Fm
from pgas.transports.softhca.engine.ops import copy, load, load_acquire, load_u8, store
from pgas.transports.softhca.engine.states import COMPLETE, DELAYS_DATA, random
from pgas.transports.softhca.tables import (
    CTL_HOLD,
    CTL_LATE,
    CTL_LATE_DATA,
    CTL_LATE_ROWS,
    CTL_SETTLE,
    CTL_SETTLED,
    CTL_SWEEPS,
    LATE_AT,
    LATE_DATA,
    LATE_MAX,
    LATE_NBYTES,
    LATE_PE,
    LATE_QPN,
    LATE_ROW,
    LATE_ROWS,
    LATE_UNTIL,
    QP_ON_HOST,
    QP_PE,
    QP_QPN,
    WORK_WQE,
)

FENCE, FM_MASK = int(Fm.FENCE), 7 << 5
NEVER = (1 << 63) - 1
QUEUE_OFFSET, OFFSET_MASK = window.QUEUE_OFFSET, (1 << window.SMALL_STRIDE_SHIFT) - 1


@device
def place(hca: int, row: int) -> int:
    """Place the bytes of a row."""
    copy(load(row + LATE_AT), row + LATE_DATA, load(row + LATE_NBYTES))
    store(row + LATE_NBYTES, 0)
    return store(hca + CTL_LATE_ROWS, load(hca + CTL_LATE_ROWS) - 1)


@device
def place_touched(hca: int, at: int, nbytes: int) -> int:
    """Place what is late of some bytes."""
    if DELAYS_DATA and load(hca + CTL_LATE_ROWS) != 0:
        for i in range(LATE_ROWS):
            row = load(hca + CTL_LATE_DATA) + i * LATE_ROW
            late, first = load(row + LATE_NBYTES), load(row + LATE_AT)
            if late != 0 and first < at + nbytes and at < first + late:
                place(hca, row)
    return 0


@device
def place_all_of(hca: int, pe: int, but: int) -> int:
    """Place what is late in a PE's memory, but what a QP has fetched (0: no QP)."""
    if DELAYS_DATA and load(hca + CTL_LATE_ROWS) != 0:
        for i in range(LATE_ROWS):
            row = load(hca + CTL_LATE_DATA) + i * LATE_ROW
            if load(row + LATE_NBYTES) != 0 and load(row + LATE_PE) == pe and (but == 0 or load(row + LATE_QPN) != but):
                place(hca, row)
    return 0


@device
def expire(hca: int) -> int:
    """Place what has been late for long enough; everything, if a grace period has begun. Once a pass; return 1."""
    asked, sweep = load_acquire(hca + CTL_SETTLE), load(load(hca + CTL_SWEEPS))
    for i in range(LATE_ROWS):
        row = load(hca + CTL_LATE_DATA) + i * LATE_ROW
        if load(row + LATE_NBYTES) != 0 and (load(row + LATE_UNTIL) <= sweep or asked != load(hca + CTL_SETTLED)):
            place(hca, row)
    store(hca + CTL_SETTLED, asked)
    return 1


@device
def deliver_late(hca: int, pe: int, qpn: int, dest: int, source: int, nbytes: int) -> int:
    """Write to a PE's memory; the last bytes late, if chance says so. qpn: of the QP that has fetched them, 0: written by a peer."""
    place_touched(hca, source, nbytes)
    place_touched(hca, dest, nbytes)
    kept = min(nbytes, LATE_MAX)
    kept -= (kept - dest - nbytes) & (OCTOWORD - 1) if kept != nbytes else 0  # no element is torn
    if random(hca) >= load(hca + CTL_LATE):
        kept = 0
    copy(dest, source, nbytes - kept)
    if kept == 0:
        return 0
    used = load(hca + CTL_LATE_ROWS)
    if used == 0:
        store(hca + CTL_SETTLED, load_acquire(hca + CTL_SETTLE))
    row = load(hca + CTL_LATE_DATA)
    if used == LATE_ROWS:
        row += (random(hca) & (LATE_ROWS - 1)) * LATE_ROW
        place(hca, row)
    while load(row + LATE_NBYTES) != 0:
        row += LATE_ROW
    copy(row + LATE_DATA, source + nbytes - kept, kept)
    store(row + LATE_AT, dest + nbytes - kept)
    store(row + LATE_PE, pe)
    store(row + LATE_QPN, qpn)
    sweep, hold = load(load(hca + CTL_SWEEPS)), load(hca + CTL_HOLD)
    store(row + LATE_UNTIL, sweep + 1 + (random(hca) * hold >> 16) if hold != 0 else NEVER)
    store(row + LATE_NBYTES, kept)
    store(hca + CTL_LATE_ROWS, load(hca + CTL_LATE_ROWS) + 1)
    return 0


@device
def fetch_late(hca: int, qp: int, dest: int, source: int, nbytes: int) -> int:
    """Write what a READ or an atomic has fetched. Where a CPU polls, landing cells are in the host's memory, where nothing is late."""
    if load(qp + QP_ON_HOST) != 0 and dest & OFFSET_MASK >= QUEUE_OFFSET:
        copy(dest, source, nbytes)
    else:
        deliver_late(hca, load(qp + QP_PE), load(qp + QP_QPN), dest, source, nbytes)
    return 0


@device
def execute_dump(hca: int, qp: int, work: int) -> int:
    """Read and discard, which pushes earlier writes ahead."""
    fenced = load_u8(load(work + WORK_WQE) + CTRL_FM_CE_SE) & FM_MASK >= FENCE
    place_all_of(hca, load(qp + QP_PE), 0 if fenced else load(qp + QP_QPN))
    return COMPLETE
