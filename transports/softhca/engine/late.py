"""Late data: a WQE's data becomes visible after its CQE, as it may on a GPU that observes NIC writes out of order.

The last bytes of a segment wait in a row of a table; everything else, including CQEs and atomics, is visible immediately. Late bytes are
written

* before the software NIC executes a DUMP of that PE or a READ of that PE's memory, because a read pushes earlier writes ahead of it (PCI
  Express);
* before the software NIC reads or writes these bytes;
* some passes later (hold=0: never), and within a grace period (tables).

A DUMP without a fence does not wait for the READs and atomics of its own QP. While data may be late, one thread executes all WQEs
(CTL_SERIAL). The engine's GPU kernel does not delay data (ops.DELAYS_DATA).
"""

from pgas.kernels import window
from pgas.transports.hostloop.compiled import device
from pgas.transports.mlx5 import wqe as w
from pgas.transports.mlx5.wqe import Fm
from pgas.transports.softhca import tables as t
from pgas.transports.softhca.engine import dma, states
from pgas.transports.softhca.engine.ops import DELAYS_DATA, copy, load, load_acquire, load_u8, store
from pgas.transports.softhca.engine.states import random

NEVER = (1 << 63) - 1
QUEUE_OFFSET, OFFSET_MASK = window.QUEUE_OFFSET, (1 << window.SMALL_STRIDE_SHIFT) - 1


@device
def place(hca: int, row: int) -> int:
    """Write the bytes of a row to their address."""
    copy(load(row + t.LATE_AT), row + t.LATE_DATA, load(row + t.LATE_NBYTES))
    store(row + t.LATE_NBYTES, 0)
    return store(hca + t.CTL_LATE_ROWS, load(hca + t.CTL_LATE_ROWS) - 1)


@device
def place_touched(hca: int, at: int, nbytes: int) -> int:
    """Write the late bytes in a range of memory."""
    if DELAYS_DATA and load(hca + t.CTL_LATE_ROWS) != 0:
        for i in range(t.LATE_ROWS):
            row = load(hca + t.CTL_LATE_DATA) + i * t.LATE_ROW
            late, first = load(row + t.LATE_NBYTES), load(row + t.LATE_AT)
            if late != 0 and first < at + nbytes and at < first + late:
                place(hca, row)
    return 0


@device
def place_all_of(hca: int, pe: int, but: int) -> int:
    """Write all late bytes of a PE's memory, except those fetched by a QP (0: no exception)."""
    if DELAYS_DATA and load(hca + t.CTL_LATE_ROWS) != 0:
        for i in range(t.LATE_ROWS):
            row = load(hca + t.CTL_LATE_DATA) + i * t.LATE_ROW
            if load(row + t.LATE_NBYTES) != 0 and load(row + t.LATE_PE) == pe and (but == 0 or load(row + t.LATE_QPN) != but):
                place(hca, row)
    return 0


@device
def expire(hca: int) -> int:
    """Write the bytes whose time has come, or all bytes if a grace period has begun. Called once per pass; returns 1."""
    asked, sweep = load_acquire(hca + t.CTL_SETTLE), load(load(hca + t.CTL_SWEEPS))
    for i in range(t.LATE_ROWS):
        row = load(hca + t.CTL_LATE_DATA) + i * t.LATE_ROW
        if load(row + t.LATE_NBYTES) != 0 and (load(row + t.LATE_UNTIL) <= sweep or asked != load(hca + t.CTL_SETTLED)):
            place(hca, row)
    store(hca + t.CTL_SETTLED, asked)
    return 1


@device
def deliver_late(hca: int, pe: int, qpn: int, dest: int, source: int, nbytes: int) -> int:
    """Write to a PE's memory, the last bytes late with some probability. qpn: QP that fetched them; 0: written by a peer."""
    place_touched(hca, source, nbytes)
    place_touched(hca, dest, nbytes)
    kept = min(nbytes, t.LATE_MAX)
    kept -= (kept - dest - nbytes) & (w.OCTOWORD - 1) if kept != nbytes else 0  # so that no element is torn
    if random(hca) >= load(hca + t.CTL_LATE):
        kept = 0
    copy(dest, source, nbytes - kept)
    if kept == 0:
        return 0
    used = load(hca + t.CTL_LATE_ROWS)
    if used == 0:
        store(hca + t.CTL_SETTLED, load_acquire(hca + t.CTL_SETTLE))
    row = load(hca + t.CTL_LATE_DATA)
    if used == t.LATE_ROWS:
        row += (random(hca) & (t.LATE_ROWS - 1)) * t.LATE_ROW
        place(hca, row)
    while load(row + t.LATE_NBYTES) != 0:
        row += t.LATE_ROW
    copy(row + t.LATE_DATA, source + nbytes - kept, kept)
    store(row + t.LATE_AT, dest + nbytes - kept)
    store(row + t.LATE_PE, pe)
    store(row + t.LATE_QPN, qpn)
    sweep, hold = load(load(hca + t.CTL_SWEEPS)), load(hca + t.CTL_HOLD)
    store(row + t.LATE_UNTIL, sweep + 1 + (random(hca) * hold >> 16) if hold != 0 else NEVER)
    store(row + t.LATE_NBYTES, kept)
    store(hca + t.CTL_LATE_ROWS, load(hca + t.CTL_LATE_ROWS) + 1)
    return 0


@device
def write(hca: int, pe: int, qpn: int, dest: int, source: int, nbytes: int, joins: int) -> int:
    """Write to a PE's memory, late if that fault is on. qpn: see deliver_late(); joins: see dma.write()."""
    if dma.by_dma(hca) != 0:
        return dma.write(hca, dest, source, nbytes, joins)
    if load(hca + t.CTL_LATE) == 0:
        copy(dest, source, nbytes)
    else:
        deliver_late(hca, pe, qpn, dest, source, nbytes)
    return 0


@device
def fetch_late(hca: int, qp: int, dest: int, source: int, nbytes: int) -> int:
    """Write the result of a READ or an atomic. If a CPU polls, landing cells are in host memory, where data is never late."""
    if load(qp + t.QP_ON_HOST) != 0 and dest & OFFSET_MASK >= QUEUE_OFFSET:
        copy(dest, source, nbytes)
    else:
        deliver_late(hca, load(qp + t.QP_PE), load(qp + t.QP_QPN), dest, source, nbytes)
    return 0


@device
def execute_dump(hca: int, qp: int, work: int) -> int:
    """Read and discard data, which makes earlier writes visible."""
    fenced = load_u8(load(work + t.WORK_WQE) + w.CTRL_FM_CE_SE) & w.FM_MASK >= Fm.FENCE
    place_all_of(hca, load(qp + t.QP_PE), 0 if fenced else load(qp + t.QP_QPN))
    return states.COMPLETE
