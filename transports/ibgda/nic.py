"""A NIC that kernels drive themselves: they write WQEs, ring doorbells, and poll the CQ."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pgas.kernels import layout, window
from pgas.transports.ibgda import doorbells
from pgas.transports.mlx5 import cqe
from pgas.transports.nic.adapter_nic import AdapterNIC
from pgas.transports.nic.protocol import timed_out
from pgas.transports.nic.queue_pair import Queues

if TYPE_CHECKING:
    from pgas.transports.ibgda.forwarding import Forwarder


class DirectNIC(AdapterNIC):
    """A NIC that kernels post to. If the GPU cannot store to its registers, a thread forwards the doorbells (doorbells.py)."""

    coalesces = True
    _forwarder: "Forwarder | None" = None

    def _places(self, shared: list[tuple[int, int, int]]) -> list[Queues]:
        places, self.rung_by_cpu = super()._places(shared), self.adapter.rung_by_cpu
        if not self.rung_by_cpu:
            return places
        umem = self.adapter.register_umem(*shared[-1][:2])
        return [replace(place, dbr=doorbells.dbr_offset(n), dbr_umem=umem) for n, place in enumerate(places)]

    def _doorbell(self, number: int) -> tuple[int, int]:
        if not self.rung_by_cpu:
            return super()._doorbell(number)
        base = self._slot + window.DOORBELL_OFFSET
        return base + self.queues[number].dbr, base + doorbells.mailbox_offset(number)

    def _connect(self, met: list[Any]) -> None:
        super()._connect(met)
        if self.rung_by_cpu:
            from pgas.transports.ibgda.forwarding import Forwarder  # imported here because it compiles

            self._forwarder = Forwarder([(self._doorbell(n)[1], qp.uar.register_address) for n, qp in enumerate(self.qps)])

    def _clear(self) -> None:
        super()._clear()
        if self.rung_by_cpu:
            self._memory.fill(self._slot + window.DOORBELL_OFFSET, doorbells.segment_bytes(len(self.qps)), 0)

    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        deadline = time.monotonic() + timeout_s
        for number, place in enumerate(self.queues):
            record = layout.RECORDS + number * layout.RECORD_SIZE
            target = self._load(record + layout.RESV_HEAD)
            entry = self._slot + window.QUEUE_OFFSET + place.cq
            while (done := self._load(record + layout.CONS_IDX)) < target:
                seen = cqe.decode(self._memory.read(entry, cqe.CQE_SIZE))
                if seen.is_error:
                    raise self.failure(record, "a host call")
                if seen.opcode != cqe.CqeOpcode.INVALID:
                    self._store(record + layout.CONS_IDX, cqe.extend(done, seen.wqe_counter, self._depth))
                if time.monotonic() > deadline:
                    words = f"{self.name_of(record)} completed {done} of {target} WQEBBs in {timeout_s:g} s (PGAS_TIMEOUT)"
                    raise timed_out(words)
                poll()
                time.sleep(0)

    def cursors(self, number: int) -> dict[str, int]:
        record = layout.RECORDS + number * layout.RECORD_SIZE
        names = {"resv_head": layout.RESV_HEAD, "ready_head": layout.READY_HEAD, "rung_idx": layout.RUNG_IDX, "cons_idx": layout.CONS_IDX}
        return {name: self._load(record + offset) & (layout.RINGING - 1) for name, offset in names.items()}

    def holds_unposted(self) -> bool:
        """Whether kernels that have ended reserved WQEBBs but did not submit them, or did not ring for them (layout.RINGING)."""
        records = (layout.RECORDS + number * layout.RECORD_SIZE for number in range(len(self.queues)))
        return any(self._load(record + layout.RESV_HEAD) != self._load(record + layout.READY_HEAD) for record in records)

    def stop(self) -> None:
        if self._forwarder is not None:
            self._forwarder.stop()
            self._forwarder = None
