"""A NIC over an Adapter, which makes queue pairs by mlx5 commands, registers memory, and writes the records that kernels read.

Subclasses differ in what drives the queues: kernels themselves (ibgda/nic.py), or a proxy thread (ibrc/nic.py).
"""

import contextlib
import struct
from dataclasses import astuple, dataclass, replace
from typing import Any

from pgas.base.errors import CompletionError, PgasError, TransportError
from pgas.kernels import layout, window
from pgas.transports.memory.protocol import Segment
from pgas.transports.mlx5 import cqe, send_queue
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.doorbell import DBR_SND_OFFSET
from pgas.transports.mlx5.wqe import WQEBB
from pgas.transports.nic import indirect_key
from pgas.transports.nic.adapter import AddressPath, FirstError, Inspection, Opener, PortAddress
from pgas.transports.nic.indirect_key import Piece
from pgas.transports.nic.protocol import CELL_BYTES, NIC, Part, big_endian
from pgas.transports.nic.queue_pair import QueuePair, Queues, check_caps, first_psn, returns_big_endian
from pgas.transports.nic.snapshot import QueueMemory

_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC


@dataclass(frozen=True)
class _Introduction:
    """Data that a PE sends to the others before they connect."""

    qpns: tuple[int, ...]  # by queue number: those to PE 0, then to PE 1, ...
    heap_key: int
    port: PortAddress
    log_rd_atomic: int  #: of each queue pair
    psns: tuple[int, ...]  #: first PSN that each queue pair sends


def _introductions(met: list[Any]) -> list[_Introduction]:
    return [_Introduction(qpns, key, PortAddress(*port), *rest) for qpns, key, port, *rest in met]


class AdapterNIC(NIC):
    """This PE's queue pairs on an adapter. Collective, with NIC's errors.

    Args:
        part: this PE's part in the job.
        opener: opens the adapter.
        packets: GID, service level, and retries of packets.
    """

    #: Index of the first WQEBB of every queue; not 0 for tests of wrap-around.
    first_index = 0

    def __init__(self, part: Part, *, opener: Opener, packets: AddressPath | None = None) -> None:
        self._opener, self._packets = opener, packets
        super().__init__(part)

    def _prepare(self) -> None:
        """Let the first of the PEs that share an adapter start it, if it is a process."""
        first = self._opener.sharing[0]

        def begin() -> tuple[str, int]:
            if self._me != first:
                return "", 0
            begun = self._opener.begin()
            self._made.callback(self._opener.end)
            return begun

        self._adapter_name, self.process = self._everywhere(begin)[first]

    def _create(self) -> None:
        """Make all objects that do not need a peer."""
        shared = [(self._slot + s.offset, s.size, fd) for s, fd in zip(self._segments, self._fds, strict=True)]
        adapter = self.adapter = self._opener.open(self._adapter_name, self._memory, shared)
        self._made.callback(adapter.close)  # destroys the remaining objects
        self.name, self.engine = adapter.name, adapter.engine
        check_caps(adapter, self._n_pes, self._num, self._depth, len(self._opener.sharing) if self.process else 1)
        self.big_endian = returns_big_endian(adapter)
        pdn = self._pdn = adapter.alloc_pd()
        heap, queues, *_ = [(address, nbytes) for address, nbytes, _ in shared]
        lkey, self._heap_key = adapter.register_mr(*heap, pdn, _ACCESS)
        self._pieces = self._grown = [Piece(*heap, lkey)]
        cell_key, _ = adapter.register_mr(queues[0], CELL_BYTES, pdn, Access.LOCAL_WRITE)
        umem = adapter.register_umem(*queues)
        self.queues = self._places(shared)
        self.qps = [QueuePair(adapter, umem, pdn, place, self._depth, number, self._packets) for number, place in enumerate(self.queues)]
        for address, value in (
            (layout.LKEY, big_endian(lkey)),
            (layout.CELL_LKEY, big_endian(cell_key)),
            (layout.CELLS, queues[0]),
            (layout.USED_END, layout.USED + 8 * -(-len(self.queues) // 64)),
        ):
            self._store(address, value)

    def _places(self, shared: list[tuple[int, int, int]]) -> list[Queues]:
        """Return the locations of the queues, by queue number. shared: address, size, and descriptor of each segment."""
        return Queues.layout(self._depth, self._n_pes * self._num, CELL_BYTES)

    def _introduction(self) -> Any:
        qpns, port = tuple(qp.qpn for qp in self.qps), self.adapter.query_port()
        self._psns = tuple(first_psn(port) for _ in qpns)
        return astuple(_Introduction(qpns, self._heap_key, port, self.qps[0].log_rd_atomic, self._psns))

    def _measure(self, met: list[Any]) -> None:
        """Let the first PE of each port measure the paths from there."""
        gids = [introduction.port.gid for introduction in _introductions(met)]
        own, self._path_mtus = gids[self._me], {}

        def step() -> tuple[tuple[bytes, int], ...]:
            return tuple(self.adapter.path_mtus({*gids} - {own}).items()) if gids.index(own) == self._me else ()

        if len({*gids}) > 1:
            found = zip(gids, self._everywhere(step), strict=True)
            self._path_mtus = {(gid, to): mtu for gid, paths in found for to, mtu in paths}

    def _path_mtu(self, own: PortAddress, peer: PortAddress) -> int:
        """Return the qpc.mtu to a PE: the least of both ports and both directions."""
        both = (own.gid, peer.gid), (peer.gid, own.gid)
        return min(own.active_mtu, peer.active_mtu, *(self._path_mtus[way] for way in both if way in self._path_mtus))

    def _connect(self, met: list[Any]) -> None:
        introductions = _introductions(met)
        own = introductions[self._me].port
        base = self._slot + window.QUEUE_OFFSET
        for number, (qp, place) in enumerate(zip(self.qps, self.queues, strict=True)):
            pe, i = divmod(number, self._num)
            self._memory.fill(base + place.cq, cqe.CQE_SIZE, cqe.EMPTY)
            if self.first_index:
                self.adapter.set_index(qp.qpn, self.first_index)
            peer = introductions[pe]
            theirs = self._me * self._num + i
            port = replace(own, active_mtu=self._path_mtu(own, peer.port))
            qp.connect(peer.qpns[theirs], port, peer.port, peer.log_rd_atomic, (self._psns[number], peer.psns[theirs]))
            record = layout.RECORDS + number * layout.RECORD_SIZE
            dbr, register = self._doorbell(number)
            for offset, value in (
                (layout.WQ, base + place.wq),
                (layout.DBR, dbr + DBR_SND_OFFSET),
                (layout.UAR, register),
                (layout.CQE, base + place.cq + cqe.CQE_TAIL),
                (layout.QPN, big_endian(qp.qpn << 8)),
                *((cursor, self.first_index) for cursor in layout.CURSORS),
            ):
                self._store(record + offset, value)
        for pe, peer in enumerate(introductions):
            self._memory.write(layout.KEYS + layout.KEY_SIZE * pe, struct.pack("<I", big_endian(peer.heap_key)))

    def _doorbell(self, number: int) -> tuple[int, int]:
        """Return the addresses of a queue pair's doorbell record and register, for the poster."""
        return self._slot + window.QUEUE_OFFSET + self.queues[number].dbr, self.qps[number].uar.register_address

    def _clear(self) -> None:
        """Zero the queues, the doorbell records, and the kernels' words about them."""
        self._memory.fill(self._slot + window.QUEUE_OFFSET + CELL_BYTES, len(self.queues) * Queues.nbytes(self._depth), 0)
        for address, nbytes in ((layout.CELL_TICKET, 8), (layout.USED, 8 * layout.USED_WORDS), (layout.CELL_TAKEN, 8 * layout.N_CELLS)):
            self._memory.fill(address, nbytes, 0)

    def end_process(self) -> None:
        if self._me == self._opener.sharing[0]:
            self._opener.end()

    def counts(self) -> dict[str, int]:
        return self.adapter.counts()

    def inspect(self, timeout_s: float) -> Inspection | None:
        return self.adapter.inspect(timeout_s)

    # ----------------------------------------------------------------------------------------------------------------- memory

    def _reach(self, chunk: Segment, fd: int, undo: contextlib.ExitStack) -> Any:
        """Register the whole heap again. If the adapter refuses, register the chunk, and make one key for this and earlier pieces."""
        start, heap = self._slot + chunk.offset, self._pieces[0].address
        self.adapter.share(start, chunk.size, fd)
        undo.callback(self.adapter.unshare, start, chunk.size)
        try:
            lkey, rkey = self._registered(heap, start + chunk.size - heap, undo)
            self._grown = [Piece(heap, start + chunk.size - heap, lkey)]
        except TransportError as refused:
            try:
                piece = Piece(start, chunk.size, self._registered(start, chunk.size, undo)[0])
                self._grown = [*self._pieces, piece]
                lkey = rkey = indirect_key.over(self.adapter, self._pdn, _ACCESS, self._grown)
            except TransportError as error:
                raise TransportError(f"the grown heap is refused as a whole ({refused}) and in pieces ({error})") from error
            undo.callback(indirect_key.destroy, self.adapter, lkey)
        return lkey, rkey

    def _registered(self, address: int, nbytes: int, undo: contextlib.ExitStack) -> tuple[int, int]:
        keys = self.adapter.register_mr(address, nbytes, self._pdn, _ACCESS)
        undo.callback(self.adapter.deregister_mr, keys[0])
        return keys

    def _take_keys(self, keys: list[Any]) -> None:
        self._pieces = self._grown
        lkey, self._heap_key = keys[self._me]
        self._store(layout.LKEY, big_endian(lkey))
        for pe, (_, rkey) in enumerate(keys):
            self._memory.write(layout.KEYS + layout.KEY_SIZE * pe, struct.pack("<I", big_endian(rkey)))

    def _key(self, entry: int, address: int, nbytes: int) -> int:
        self.adapter.lend(address, nbytes, self._memory)
        try:
            return self.adapter.register_mr(address, nbytes, self._pdn, Access.LOCAL_WRITE)[0]
        except PgasError:
            self.adapter.take_back(address, self._memory)
            raise

    def _forget(self, entry: int, address: int) -> None:
        self.adapter.deregister_mr(big_endian(self.lkey_of_registered(entry)))
        self.adapter.take_back(address, self._memory)

    def queue_memory(self, number: int) -> QueueMemory | None:
        place, record, base = self.queues[number], layout.RECORDS + number * layout.RECORD_SIZE, self._slot + window.QUEUE_OFFSET
        ring = self._memory.read(base + place.wq, self._depth * WQEBB)
        doorbell = int.from_bytes(self._memory.read(self._load(record + layout.DBR), 4), "big")
        return QueueMemory(ring, doorbell, self._memory.read(base + place.cq, cqe.CQE_SIZE))

    # ----------------------------------------------------------------------------------------------------------------- errors

    def failure(self, record: int, who: str) -> TransportError:
        """Return the first error of a record's queue pair; if the adapter does not report it, the error in the CQE."""
        number = self._number(record)
        qpn, first = self.qps[number].qpn, None
        with contextlib.suppress(TransportError):
            first = self.adapter.diagnose(qpn)
        note = "the first error of this queue pair"
        if first is None:
            first = self._last_error(number)
            flushed = first.syndrome == cqe.Syndrome.WR_FLUSH_ERR
            note = f"flushed after the first error, which {self.adapter.name} does not report" if flushed else "from its CQE"
        text = f"{who}: {self.name_of(record)} failed at {first} ({note})"
        return CompletionError(text, number // self._num, qpn, first.wqe_idx, first.syndrome, first.vendor_err_synd)

    def _last_error(self, number: int) -> FirstError:
        """Return the error in the only CQE of a collapsed CQ, the last one. It is the first error if no later WQE was posted."""
        place, base = self.queues[number], self._slot + window.QUEUE_OFFSET
        seen = cqe.decode(self._memory.read(base + place.cq, cqe.CQE_SIZE))
        ring = bytearray(self._memory.read(base + place.wq, self._depth * WQEBB))
        try:
            wqe = send_queue.fetch(ring, seen.wqe_counter)
        except ValueError:
            wqe = b""
        return FirstError(seen.wqe_counter, seen.syndrome, seen.vendor_err_synd, "", wqe)
