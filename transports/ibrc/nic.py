"""The IBRC transport over mlx5 queues that the proxy thread drives itself; adapter, keys, and queue pairs are those of AdapterNIC.

Queues, registers, ring, and landing cells are in host memory; the heap is in GPU memory if there is a GPU. The data of a READ or an atomic
must be visible before ``completed`` covers its request. The software NIC ensures this before it writes the CQE. With a physical NIC, whose
writes to GPU and host take different routes, a DUMP would have to follow. This is not supported.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from pgas.kernels import layout
from pgas.transports.ibrc import tables, wqes
from pgas.transports.ibrc.thread import RingNIC
from pgas.transports.nic.adapter_nic import AdapterNIC


class ProxiedNIC(RingNIC, AdapterNIC):
    """A NIC whose WQEs a proxy thread writes. Arguments and errors are those of AdapterNIC."""

    posting: ClassVar[ModuleType] = wqes

    def _record_words(self) -> Mapping[int, int]:
        return {
            tables.LKEY: self._load(layout.LKEY),
            tables.CELL_LKEY: self._load(layout.CELL_LKEY),
            tables.SINK: self._load(layout.CELLS) + layout.SINK,
        }

    def _row_words(self, number: int) -> Mapping[int, int]:
        record = layout.RECORDS + number * layout.RECORD_SIZE
        fields = {wqes.WQ: layout.WQ, wqes.DBR: layout.DBR, wqes.UAR: layout.UAR, wqes.CQE: layout.CQE, wqes.QPN: layout.QPN}
        return {
            **{name: self._load(record + field) for name, field in fields.items()},
            wqes.HEAP_KEY: self._rkey(number),
            **dict.fromkeys((tables.PROD_IDX, tables.RUNG_IDX, tables.CONS_IDX), self.first_index),
        }

    def _rkey(self, number: int) -> int:
        """Return the rkey of a queue pair's peer, big-endian."""
        return int.from_bytes(self._memory.read(layout.KEYS + layout.KEY_SIZE * (number // self._num), layout.KEY_SIZE), "little")

    def _take_keys(self, keys: list[Any]) -> None:
        super()._take_keys(keys)
        self._set({self._row(n) + wqes.HEAP_KEY: self._rkey(n) for n in range(len(self.qps))})
        self._set({tables.LKEY: self._load(layout.LKEY)})

    def _region_words(self, entry: int) -> tuple[int, int]:
        return self.lkey_of_registered(entry), 0
