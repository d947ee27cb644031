"""The whole software NIC: tables, firmware, engine, and registers; and what a physical NIC lacks: counters, trace, faults, and pause."""

import socket
from pathlib import Path
from typing import Any

from pgas.base.config import Faults
from pgas.base.events import RINGS, TraceFile
from pgas.kernels import window
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5 import cqe, fields, send_queue
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.wqe import WQE_IDX_MASK
from pgas.transports.softhca import layout, tables
from pgas.transports.softhca.engine import limits
from pgas.transports.softhca.engine.ops import DELAYS_DATA
from pgas.transports.softhca.firmware.commands import Firmware, describe
from pgas.transports.softhca.firmware.objects import Objects
from pgas.transports.softhca.process import engines
from pgas.transports.softhca.process.engines import Engine
from pgas.transports.softhca.syndromes import vendor_text
from pgas.transports.softhca.wire.port import WirePort

TRACE_KINDS = ("wqe", "cqe", "cmd")


class Card:
    """One software ConnectX, with its engine running.

    Args:
        faults, trace: initial faults and traced kinds.
        engine: engine that executes WQEs. Default: a thread.
        on_host: whether a CPU rings the registers, which are then in host memory.
        port: port on the tables of an engine that serves one. Default: an InfiniBand port without a wire.
    """

    def __init__(
        self,
        faults: Faults | None = None,
        trace: frozenset[str] = frozenset(),
        engine: Engine | None = None,
        *,
        on_host: bool = False,
        port: WirePort | None = None,
    ) -> None:
        self.engine = engine or engines.make("cpu", 0, 0)
        self.tables, self.port = self.engine.tables, port
        self._memory = self.engine.memory()
        self._check(faults or Faults())  # before the engine runs
        by_dma = bool(self.tables.ring)
        #: File descriptor of the UAR pages.
        self.bar = self._memory.create(layout.BAR, Segment(0, layout.BAR_SIZE, on_host or by_dma))
        self.objects = Objects(self.tables, self._memory, on_host=on_host and not by_dma, secret_keys=port is not None)
        self.firmware = Firmware(self.tables, self.objects, port)
        self._lines: list[str] = []
        self._lost = 0  # number of lost entries that have been reported
        self._kinds: frozenset[str] = frozenset()
        self._faulty = False
        self._timeline: TraceFile | None = None
        self.tables.alive = self.engine.check
        self.engine.start()
        self.set_trace(trace)
        self.set_faults(faults or Faults())

    def stop(self) -> None:
        """End the engine and unmap the registers."""
        self.tables.set(tables.CTL_STOP, 1)
        self.engine.stop()
        self._memory.close()
        if self.port is not None:
            self.port.close()
        if self._timeline is not None:
            self._timeline.close()

    def _order(self) -> None:
        """Set whether WQEs are executed one at a time, as counting faults and printed traces require. The engine is paused meanwhile."""
        self.tables.set(tables.CTL_SERIAL, int(self._faulty or bool(self._kinds - {"cmd"})))

    # ------------------------------------------------------------------------------------------------------------------ faults

    def _check(self, faults: Faults) -> None:
        """Raise ValueError if the engine does not have these faults."""
        if faults.late and (not DELAYS_DATA or self.tables.ring):
            raise ValueError("late: a software NIC with a dma engine, or on a GPU, does not delay data")
        if faults.split_atomics and self.tables.ring:
            raise ValueError("atomics=split: a software NIC with a dma engine does not split atomics")

    def set_faults(self, faults: Faults) -> None:
        """Replace the faults. The engine, which counts down to some of them, is paused meanwhile."""
        self._check(faults)
        control, paused = self.tables, self.paused
        self.pause()
        self._faulty = bool(faults.delay or faults.fail or faults.stop or faults.split_atomics or faults.late)
        self._order()
        self.firmware.queues.least_cq = int(faults.refuse_cq_of_one)
        self.objects.refuses_chunks = faults.refuse_mr_of_chunks
        self.firmware.big_endian = faults.big_endian_atomics
        control.set(tables.CTL_BIG_ENDIAN, int(faults.big_endian_atomics))
        control.set(tables.CTL_CHAOS, int(faults.delay * 65536))
        control.set(tables.CTL_LATE, int(faults.late * 65536))
        control.set(tables.CTL_HOLD, faults.hold)
        control.set(tables.CTL_RANDOM, (faults.seed * 0x9E3779B97F4A7C15 + 1) & (1 << 64) - 1)
        control.set(tables.CTL_ATOMICS_SPLIT, int(faults.split_atomics))
        control.set(tables.CTL_FAIL_QPN, faults.fail_qpn)
        control.set(tables.CTL_FAIL_SYNDROME, faults.syndrome)
        control.set(tables.CTL_FAIL_COUNT, faults.fail)
        control.set(tables.CTL_HALT_COUNT, faults.stop)
        self._go_on(paused)

    def set_limits(self, mops: float, gbps: float) -> None:
        """Set the limits in million WQEs and 10^9 bits per second; 0: no limit."""
        per_wqe, per_byte = limits.costs(mops, gbps)
        self.tables.set(tables.CTL_WQE_COST, per_wqe)
        self.tables.set(tables.CTL_BYTE_COST, per_byte)

    def pause(self) -> None:
        """Pause the engine; on return it has finished its current work."""
        self.tables.set(tables.CTL_PAUSED, 1)
        self.tables.wait_for_engine()

    def _go_on(self, paused: bool) -> None:
        """Resume the engine after a change, unless it was paused before.

        A pass of the kernel copies the control record word by word, so no pass that began before the change may observe the engine running.
        """
        self.tables.wait_for_engine()
        self.tables.set(tables.CTL_PAUSED, int(paused))

    @property
    def paused(self) -> bool:
        """Whether the engine is paused, by pause() or by a fault."""
        self.tables.fetch_control()
        return bool(self.tables.control[0]["paused"])

    def resume(self) -> None:
        self.tables.set(tables.CTL_PAUSED, 0)

    # ------------------------------------------------------------------------------------------------------------------- trace

    def set_trace(self, kinds: frozenset[str]) -> None:
        """Set the kinds that are traced: "wqe", "cqe", "cmd"."""
        if unknown := kinds - set(TRACE_KINDS):
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}; must be one or more of {', '.join(TRACE_KINDS)}")
        self._kinds, paused = kinds, self.paused
        self.pause()
        self._order()
        printed = tables.TRACE_WQE * ("wqe" in kinds) | tables.TRACE_CQE * ("cqe" in kinds)
        self.tables.set(tables.CTL_TRACE_KINDS, printed | tables.TRACE_EVENTS * (self._timeline is not None))
        self._go_on(paused)
        self.firmware.observe = self._observe if "cmd" in kinds else None

    def set_timeline(self, path: str, capacity: int) -> None:
        """Write the times of WQEs and CQEs into a trace file from now on. capacity: number of events.

        Raises:
            OSError, TransportError: the file cannot be written, or the engine cannot write to it.
        """
        file = self._timeline = TraceFile(path, capacity, rings=1)
        file.map(lambda fd: self._memory.map_file(window.TRACE, file.nbytes, fd))
        self.tables.set(tables.CTL_EVENTS, window.TRACE + RINGS)
        self.tables.set(tables.CTL_EVENTS_MASK, capacity - 1)
        self.tables.set(tables.CTL_EVENTS_COUNT, self.tables.address + tables.CTL_EVENTS_TICKET)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        file.tell(card={"machine": socket.gethostname(), "boot": boot, "on_gpu": self.engine.on_gpu})
        self.set_trace(self._kinds)

    @property
    def tracing(self) -> bool:
        return bool(self._kinds)

    def _observe(self, *command: Any) -> None:
        self._drain()
        self._lines.append(describe(*command))

    def take_trace(self) -> list[str]:
        """Return the trace since the last call, each entry one or more lines."""
        self._drain()
        lines, self._lines = self._lines, []
        return lines

    def _drain(self) -> None:
        self.tables.fetch_control()
        control, ring = self.tables.control[0], self.tables.trace
        head, tail = int(control["trace_head"]), int(control["trace_tail"])
        for at in range(tail, head):
            start = at % tables.TRACE_RECORDS * tables.TRACE_BYTES
            record = ring[start : start + tables.TRACE_BYTES]
            kind, qpn, index, nbytes, pe = (int(v) for v in record[: tables.TRACE_DATA].view("<i8")[:5])
            data = record[tables.TRACE_DATA : tables.TRACE_DATA + nbytes].tobytes()
            self._lines.append(_entry(kind, pe, qpn, index, data))
        self.tables.set(tables.CTL_TRACE_TAIL, head)
        if lost := int(control["trace_lost"]) - self._lost:
            self._lines.append(f"trace: {lost} entries lost, the ring holds {tables.TRACE_RECORDS}")
            self._lost += lost

    # ---------------------------------------------------------------------------------------------------------------- counters

    def diagnose(self, pe: int, qpn: int) -> dict[str, Any] | None:
        """Return the first error of a QP as the fields of adapter.FirstError, the WQE in hex; None if there was none."""
        qp = self.firmware.queues.qps.get(qpn)
        if qp is None or qp.pe != pe:
            return None
        self.tables.fetch_qps(qp.row, qp.row + 1)
        record = self.tables.qps[qp.row]
        if not record["error_syndrome"]:
            return None
        start = qp.row * tables.WQE_BYTES
        data = self.tables.error_wqes[start : start + int(record["error_nbytes"])].tobytes()
        index, syndrome, vendor = (int(record[name]) for name in ("error_index", "error_syndrome", "error_vendor"))
        cause = {"syndrome": syndrome, "vendor_err_synd": vendor, "words": vendor_text(vendor)}
        return {"wqe_idx": index & WQE_IDX_MASK, **cause, "wqe": data.hex()}

    def counters(self) -> dict[str, Any]:
        """Return all objects and their counters, as plain values."""
        self.tables.fetch_qps()
        self.tables.fetch_cqs()
        qps, totals = [], dict(self.firmware.queues.retired)
        for qpn, qp in self.firmware.queues.qps.items():
            record = self.tables.qps[qp.row]
            counted = {name: int(record[name]) for name in tables.COUNTERS}
            for name, value in counted.items():
                totals[name] += value
            fixed = {name: int(record[name]) for name in ("pd", "uar", "user_index", "remote_qpn", "consumer", "producer")}
            state = self.firmware.queues.state(qp).name
            error = {"first_error": int(record["error_syndrome"]), "vendor_error": int(record["error_vendor"])}
            error["receives"] = int(self.tables.rqs[qp.row]["receives"])
            qps.append({"qpn": qpn, "pe": qp.pe, "state": state, "depth": int(record["mask"]) + 1, **fixed, **error, **counted})
        cqs = [
            {"cqn": cqn, "pe": cq.pe, "size": 1 << int(row["log_size"]), "cqes": int(row["cqes"])}
            | {name: bool(row[name]) for name in ("collapsed", "overrun")}
            for cqn, cq in self.firmware.queues.cqs.items()
            for row in [self.tables.cqs[cq.row]]
        ]
        keys = [
            {"key": key, "pe": entry.pe, "access": _access(row), **{name: int(row[name]) for name in ("pd", "start", "nbytes")}}
            for key, entry in self.objects.keys.items()
            for row in [self.tables.mkeys[entry.row]]
        ]
        uars = [{"page": page, "pe": uar.pe, "qpns": uar.qpns} for page, uar in self.objects.uars.items()]
        hca = {
            "engine": self.engine.words,
            **totals,
            "paused": self.paused,
            "sweeps": self.tables.sweep,
            "pes": sorted(self.objects.segments),
        }
        return {"hca": hca, "port": self.port and self.port.describe(), "qps": qps, "cqs": cqs, "keys": keys, "uars": uars}


def _access(row: Any) -> list[str]:
    return [str(flag.name) for flag in Access if int(row["access"]) & flag]


def _decoded(sheet: Any, data: bytes) -> str:
    try:
        return str(sheet.decode(data))
    except ValueError as error:
        return f"cannot be decoded ({error})"


def _entry(kind: int, pe: int, qpn: int, index: int, data: bytes) -> str:
    name, sheet = ("wqe", send_queue) if kind == tables.TRACE_WQE else ("cqe", cqe)
    return f"{name} PE {pe} qpn {qpn:#08x} index {index}: {_decoded(sheet, data)}\n{fields.hexdump(data)}"
