"""The host's side of the NIC transports: adapter, keys, one RC queue pair for each PE and number, and the records that kernels read.

A PE shares its slot with the adapter alone: under these transports no PE maps another's memory.
"""

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pgas.base.agreement import everywhere
from pgas.base.backend import SIMULATOR
from pgas.base.errors import CompletionError, PgasError, TransportError
from pgas.kernels import state, window
from pgas.kernels.paths.nic import queue
from pgas.transports import doorbells, p2p
from pgas.transports.adapter import Adapter, FirstError, Path, Port
from pgas.transports.memory.protocol import GRANULARITY, Memory, Segment
from pgas.transports.mlx5 import cqe, send_queue
from pgas.transports.mlx5.contexts import Access
from pgas.transports.mlx5.doorbell import DBR_SND_OFFSET
from pgas.transports.mlx5.wqe import WQEBB
from pgas.transports.queue_pair import QueuePair, Queues, check_caps
from pgas.transports.snapshot import QueueMemory, Ring
from pgas.transports.softhca import layout
from pgas.transports.softhca.process import client

if TYPE_CHECKING:
    from pgas.transports.forwarding import Forwarder

__all__ = ["CELL_BYTES", "NIC", "Part", "timed_out"]

_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC

#: Landing cells and the sink lie in front of the queues, in pages of their own.
CELL_BYTES = -(-(queue.SINK + queue.CELL_SIZE) // 4096) * 4096


@dataclass(frozen=True)
class _Introduction:
    """What the other PEs must know of this one."""

    qpns: tuple[int, ...]  # by queue number: of PE 0, then of PE 1, ...
    heap_key: int
    system_key: int
    port: Port
    log_rd_atomic: int  #: of each queue pair


@dataclass(frozen=True)
class Part:
    """This PE's part in the job, as its NIC has to know it."""

    memory: Memory  #: this PE's, in which the segments are mapped
    me: int  #: this PE
    n_pes: int  #: how many there are
    segments: tuple[Segment, ...]  #: system area, heap, queues
    fds: list[int]  #: their descriptors, for the adapter
    exchange: Callable[[Any], list[Any]]  #: exchange of small values among the PEs
    constants: window.Constants  #: number and depth of the queue pairs


def timed_out(text: str) -> TransportError:
    """Return the error of a wait of the host that lasted PGAS_TIMEOUT."""
    error = TransportError(text)
    error.timed_out = True
    return error


class NIC:
    """This PE's queue pairs. Collective; an error on one PE is raised on all.

    Args:
        part: this PE's in the job.
        start: starts the software card for so many PEs; called on PE 0. None: there is a device.
        device: opens the adapter that is no software card; called with this PE's memory.
        path: how packets go.
        by_cpu: whether a CPU rings the software card for kernels (transports/doorbells.py).

    Raises:
        TransportError: the adapter refuses; the text names the PE and says why.
    """

    #: The index of the first WQEBB of every queue; other than 0 for tests of wrap on the software card, which alone can begin elsewhere.
    first_index = 0

    #: Whether queues and registers lie in the host's memory: a CPU posts.
    on_host = False

    def __init__(
        self,
        part: Part,
        *,
        start: Callable[[int], client.Process] | None = None,
        device: Callable[[Memory], Adapter] | None = None,
        path: Path | None = None,
        by_cpu: bool = False,
    ) -> None:
        self._memory, self._me, self._n_pes, self._exchange = part.memory, part.me, part.n_pes, part.exchange
        self._num, self._depth = part.constants.num_qps, part.constants.depth
        self._slot = p2p.slot(part.me)
        self._open_device, self._packets, self._by_cpu = device, path, by_cpu
        self._forwarder: Forwarder | None = None
        self._made = contextlib.ExitStack()
        self._orderly = False  # whether all PEs leave: then the card ends by itself
        try:
            self.card_name, self.card_pid = self._everywhere(lambda: self._start_card(start))[0]
            self._everywhere(lambda: self._create(self.card_name, part.segments, part.fds))
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Take the queue pairs, which are in RST, to their beginning and connect them. Collective."""
        met = self._everywhere(self._introduction)
        self._everywhere(lambda: self._connect(met))

    def reset(self) -> None:
        """Begin anew on every queue pair, whatever it had to do and whatever failed there. Collective; no kernel runs on any PE.

        What was outstanding is dropped; a peer may or may not have got it. Memory regions and their keys stay.

        Raises:
            TransportError: the adapter of some PE refuses, or is gone; on every PE. This may be called again.
        """
        self._everywhere(self._withdraw)  # before any of them begins: a queue pair that still sends would find its peer's anew
        self._everywhere(self._clear)
        self._begin()

    def _withdraw(self) -> None:
        """Let the adapter do nothing any more on this PE's queue pairs."""
        self.stop()
        for qp in self.qps:
            qp.reset()

    def _clear(self) -> None:
        """Zero queues, doorbell records and what kernels note about them, as they were at the beginning."""
        queues = self._slot + window.QUEUE_OFFSET
        self._memory.fill(queues + CELL_BYTES, len(self.queues) * Queues.nbytes(self._depth), 0)
        if self.adapter.rung_by_cpu:
            self._memory.fill(self._slot + window.DOORBELL_OFFSET, doorbells.segment_bytes(len(self.qps)), 0)
        for address, nbytes in ((queue.CELL_TICKET, 8), (queue.USED, 8 * queue.USED_WORDS), (queue.CELL_TAKEN, 8 * queue.N_CELLS)):
            self._memory.fill(address, nbytes, 0)

    @classmethod
    def segments(cls, n_pes: int, constants: window.Constants, *, doorbells_too: bool = False) -> tuple[Segment, ...]:
        """Return the segments of a slot that hold landing cells and the queues of this PE's queue pairs.

        Args:
            n_pes: PEs of the job.
            constants: number and depth of the queue pairs.
            doorbells_too: whether there is one, the last, for doorbells that a CPU may have to ring.

        Raises:
            TransportError: more queue pairs, or PEs, than the runtime keeps records of.
        """
        if n_pes * constants.num_qps > queue.MAX_QUEUES or n_pes > queue.MAX_PES:
            raise TransportError(
                f"PGAS_IBGDA_NUM_RC_PER_PE={constants.num_qps} for {n_pes} PEs: a PE has at most {queue.MAX_QUEUES} queue pairs, "
                f"a job {queue.MAX_PES} PEs"
            )
        nbytes = cls.segment_bytes(n_pes, constants)
        if nbytes > window.DOORBELL_OFFSET - window.QUEUE_OFFSET:
            raise TransportError(
                f"{n_pes * constants.num_qps} queue pairs of PGAS_QP_DEPTH={constants.depth} take {nbytes} bytes, a PE has "
                f"{window.DOORBELL_OFFSET - window.QUEUE_OFFSET} for them: choose a smaller depth, or PGAS_IBGDA_NUM_RC_PER_PE"
            )
        queues = Segment(window.QUEUE_OFFSET, -(-nbytes // GRANULARITY) * GRANULARITY, cls.on_host)
        if not doorbells_too:
            return (queues,)
        return queues, Segment(window.DOORBELL_OFFSET, doorbells.segment_bytes(n_pes * constants.num_qps), host=True)

    @classmethod
    def queue_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes landing cells and queues take."""
        return CELL_BYTES + n_pes * constants.num_qps * Queues.nbytes(constants.depth)

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes of that segment are used."""
        return cls.queue_bytes(n_pes, constants)

    def _everywhere(self, step: Callable[[], Any]) -> list[Any]:
        """Take a step and return what it gave on each PE."""
        return everywhere(self._exchange, step, TransportError)

    def _start_card(self, start: Callable[[int], client.Process] | None) -> tuple[str, int]:
        if self._me != 0 or start is None:
            return "", 0
        process = start(self._n_pes)
        self._made.callback(lambda: process.close() if self._orderly else process.end())
        return process.name, process.pid

    def _create(self, card: str, segments: tuple[Segment, ...], fds: list[int]) -> None:
        """Make everything that needs no peer."""
        shared = [(self._slot + s.offset, s.size, fd) for s, fd in zip(segments, fds, strict=True)]
        adapter = self.adapter = self._open(card, shared)
        self._made.callback(adapter.close)  # takes with it what is left
        count = self._n_pes * self._num
        check_caps(adapter, self._n_pes, self._num, self._depth)
        pdn = self._pdn = adapter.alloc_pd()
        system, heap, queues, *rest = [(address, nbytes) for address, nbytes, _ in shared]
        _, self._system_key = adapter.register_mr(*system, pdn, _ACCESS)
        lkey, self._heap_key = adapter.register_mr(*heap, pdn, _ACCESS)
        cell_key, _ = adapter.register_mr(queues[0], CELL_BYTES, pdn, Access.LOCAL_WRITE)
        umem = adapter.register_umem(*queues)
        self.queues = Queues.layout(self._depth, count, CELL_BYTES)
        if adapter.rung_by_cpu:
            bells = adapter.register_umem(*rest[0])
            self.queues = [replace(place, dbr=doorbells.dbr_offset(n), dbr_umem=bells) for n, place in enumerate(self.queues)]
        self.qps = [QueuePair(adapter, umem, pdn, place, self._depth, number, self._packets) for number, place in enumerate(self.queues)]
        for address, value in (
            (queue.LKEY, _big_endian(lkey)),
            (queue.CELL_LKEY, _big_endian(cell_key)),
            (queue.CELLS, queues[0]),
            (queue.USED_END, queue.USED + 8 * -(-count // 64)),
        ):
            self._store(address, value)

    def _introduction(self) -> Any:
        """Return what _connect gets of each PE."""
        qpns, port = tuple(qp.qpn for qp in self.qps), self.adapter.query_port()
        return _Introduction(qpns, self._heap_key, self._system_key, port, self.qps[0].log_rd_atomic)

    def _open(self, card: str, shared: list[tuple[int, int, int]]) -> Adapter:
        if self._open_device is not None:
            return self._open_device(self._memory)
        return client.SoftHCA(card, self._me, shared, None if SIMULATOR else self._map_registers, rung_by_cpu=self._by_cpu)

    def _map_registers(self, fd: int) -> None:
        """Registers are mapped whole where a GPU reaches them: its pages have 2 MiB."""
        self._memory.attach(layout.BAR, Segment(0, layout.BAR_SIZE, self.on_host or self._by_cpu), fd)

    def _connect(self, met: list[Any]) -> None:
        """Connect queue pair i to PE b with queue pair i of PE b to this PE (to itself: with itself), and say so to kernels."""
        introductions: list[_Introduction] = met
        own = introductions[self._me].port
        base = self._slot + window.QUEUE_OFFSET
        for number, (qp, place) in enumerate(zip(self.qps, self.queues, strict=True)):
            pe, i = divmod(number, self._num)
            self._memory.fill(base + place.cq, cqe.CQE_SIZE, cqe.EMPTY)
            if self.first_index and isinstance(self.adapter, client.SoftHCA):
                self.adapter.set_index(qp.qpn, self.first_index)
            qp.connect(met[pe].qpns[self._me * self._num + i], own, met[pe].port, met[pe].log_rd_atomic)
            record = queue.RECORDS + number * queue.RECORD_SIZE
            dbr, register = base + place.dbr, qp.uar.register_address
            if self.adapter.rung_by_cpu:
                dbr = self._slot + window.DOORBELL_OFFSET + place.dbr
                register = self._mailbox(number)
            for offset, value in (
                (queue.WQ, base + place.wq),
                (queue.DBR, dbr + DBR_SND_OFFSET),
                (queue.UAR, register),
                (queue.CQE, base + place.cq + cqe.CQE_TAIL),
                (queue.QPN, _big_endian(qp.qpn << 8)),
                *((cursor, self.first_index) for cursor in queue.CURSORS),
            ):
                self._store(record + offset, value)
        for pe, peer in enumerate(met):
            self._store(queue.KEYS + 8 * pe, _big_endian(peer.heap_key) | _big_endian(peer.system_key) << 32)
        if self.adapter.rung_by_cpu:
            from pgas.transports.forwarding import Forwarder  # which compiles: not where nothing is forwarded

            self._forwarder = Forwarder([(self._mailbox(n), qp.uar.register_address) for n, qp in enumerate(self.qps)])

    def _mailbox(self, number: int) -> int:
        return self._slot + window.DOORBELL_OFFSET + doorbells.mailbox_offset(number)

    def _store(self, address: int, value: int) -> None:
        self._memory.write(address, struct.pack("<Q", value))

    def _load(self, address: int) -> int:
        return int(struct.unpack("<Q", self._memory.read(address, 8))[0])

    def about(self) -> tuple[str, str | None]:
        """Return the adapter's name, and what executes its WQEs if it is the software card."""
        engine = self.adapter.counters()["hca"]["engine"] if isinstance(self.adapter, client.SoftHCA) else None
        return self.adapter.name, engine

    def counts(self) -> dict[str, int]:
        """Return what the card counted of this PE's queue pairs: wqes, nbytes, doorbells (those it saw: rings may merge), cqes, errors.

        Nothing but of the software card: others do not tell.
        """
        if not isinstance(self.adapter, client.SoftHCA):
            return {}
        own = [qp for qp in self.adapter.counters()["qps"] if qp["pe"] == self._me]
        return {name: sum(qp[name] for qp in own) for name in ("wqes", "nbytes", "doorbells", "cqes", "errors")}

    # --------------------------------------------------------------------------------------------------- a heap that grows

    def extend_heap(self, chunk: Segment, fd: int) -> None:
        """Let the NIC reach a segment more, behind the end of the heap, and tell kernels that are launched from now on. Collective.

        All the heap becomes a memory region again, as kernels know one key of each PE's. The keys that running kernels have read stay valid
        to the end of the job, and so do the regions that they name.

        Args:
            chunk: the segment, mapped here and zeroed.
            fd: its descriptor.

        Raises:
            TransportError: the adapter of some PE refuses; on every PE, with nothing changed.
        """
        with contextlib.ExitStack() as undo:
            keys = self._everywhere(lambda: self._reach(chunk, fd, undo))
            undo.pop_all()
        self._take_keys(keys)

    def _reach(self, chunk: Segment, fd: int, undo: contextlib.ExitStack) -> Any:
        """Register the heap with one segment more; return what _take_keys gets of each PE."""
        start, heap = self._slot + chunk.offset, self._slot + window.HEAP_OFFSET
        if isinstance(self.adapter, client.SoftHCA):
            self.adapter.share(start, chunk.size, fd)
            undo.callback(self.adapter.unshare, start, chunk.size)
        lkey, rkey = self.adapter.register_mr(heap, start + chunk.size - heap, self._pdn, _ACCESS)
        undo.callback(self.adapter.deregister_mr, lkey)
        return lkey, rkey

    def _take_keys(self, keys: list[Any]) -> None:
        """Name the heaps by other keys from now on."""
        lkey, self._heap_key = keys[self._me]
        self._store(queue.LKEY, _big_endian(lkey))
        for pe, (_, rkey) in enumerate(keys):
            self._memory.write(queue.KEYS + 8 * pe, struct.pack("<I", _big_endian(rkey)))

    # --------------------------------------------------------------------------------------------------- local memory (pgas.register)

    def register(self, entry: int, address: int, nbytes: int) -> None:
        """Let the NIC reach memory of this process, as a local operand, and kernels find it in an entry of state.REGISTERED.

        Raises:
            TransportError: the adapter refuses; the text says why.
        """
        key = self._key(entry, address, nbytes)
        place = state.REGISTERED + entry * state.REGISTERED_SIZE
        self._store(place + state.REGISTERED_LKEY, _big_endian(key))
        self._store(place + state.START, address)
        self._store(place + state.END, address + nbytes)
        behind = place + state.REGISTERED_SIZE
        if self._load(state.REGISTERED_END) < behind:
            self._store(state.REGISTERED_END, behind)

    def _key(self, entry: int, address: int, nbytes: int) -> int:
        """Return the lkey of local memory of which the adapter is told."""
        if isinstance(self.adapter, client.SoftHCA):
            self.adapter.lend(address, nbytes, self._memory)
        try:
            return self.adapter.register_mr(address, nbytes, self._pdn, Access.LOCAL_WRITE)[0]
        except PgasError:
            self._take_back(address)
            raise

    def _take_back(self, address: int) -> None:
        """End the adapter's access to local memory."""
        if isinstance(self.adapter, client.SoftHCA):
            self.adapter.take_back(address, self._memory)

    def lkey_of_registered(self, entry: int) -> int:
        """Return the lkey of an entry, big-endian."""
        return self._load(state.REGISTERED + entry * state.REGISTERED_SIZE + state.REGISTERED_LKEY)

    def unregister(self, entry: int, address: int) -> None:
        """Undo register(); nothing uses the memory."""
        place = state.REGISTERED + entry * state.REGISTERED_SIZE
        self._store(place + state.END, 0)
        self._store(place + state.START, 0)
        self._forget(entry, address)

    def _forget(self, entry: int, address: int) -> None:
        """Undo _key()."""
        self.adapter.deregister_mr(_big_endian(self.lkey_of_registered(entry)))
        self._take_back(address)

    # -------------------------------------------------------------------------------------------------------------------- waiting

    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until everything that kernels posted has completed; no kernel runs meanwhile.

        Args:
            timeout_s: after so many seconds it is an error.
            poll: called while waiting; may raise.

        Raises:
            CompletionError: a WQE failed.
            TransportError: (timed_out) the adapter does not complete what was posted.
        """
        deadline = time.monotonic() + timeout_s
        for number, place in enumerate(self.queues):
            record = queue.RECORDS + number * queue.RECORD_SIZE
            target = self._load(record + queue.RESV_HEAD)
            entry = self._slot + window.QUEUE_OFFSET + place.cq
            while (done := self._load(record + queue.CONS_IDX)) < target:
                seen = cqe.decode(self._memory.read(entry, cqe.CQE_SIZE))
                if seen.is_error:
                    raise self.failure(record, "a host call")
                if seen.opcode != cqe.CqeOpcode.INVALID:
                    self._store(record + queue.CONS_IDX, cqe.extend(done, seen.wqe_counter, self._depth))
                if time.monotonic() > deadline:
                    words = f"{self.name_of(record)} completed {done} of {target} WQEBBs in {timeout_s:g} s (PGAS_TIMEOUT)"
                    raise timed_out(words)
                poll()
                time.sleep(0)

    def cursors(self, number: int) -> dict[str, int]:
        """Return the indices of a queue pair by their names (kernels/paths/nic/queue.py); cons_idx is among them."""
        record = queue.RECORDS + number * queue.RECORD_SIZE
        names = {"resv_head": queue.RESV_HEAD, "ready_head": queue.READY_HEAD, "rung_idx": queue.RUNG_IDX, "cons_idx": queue.CONS_IDX}
        return {name: self._load(record + offset) & (queue.RINGING - 1) for name, offset in names.items()}

    def requests(self, most: int) -> Ring | None:
        """Return the ring of requests, with so many of the oldest that are not done; None where kernels post themselves."""
        return None

    def queue_memory(self, number: int) -> QueueMemory | None:
        """Return what lies in the memory of a queue pair; None where it is the driver's."""
        place, record, base = self.queues[number], queue.RECORDS + number * queue.RECORD_SIZE, self._slot + window.QUEUE_OFFSET
        ring = self._memory.read(base + place.wq, self._depth * WQEBB)
        doorbell = int.from_bytes(self._memory.read(self._load(record + queue.DBR), 4), "big")
        return QueueMemory(ring, doorbell, self._memory.read(base + place.cq, cqe.CQE_SIZE))

    def holds_unposted(self) -> bool:
        """Whether kernels that have ended reserved WQEBBs and did not hand them over, or did not ring for them (queue.RINGING)."""
        records = (queue.RECORDS + number * queue.RECORD_SIZE for number in range(len(self.queues)))
        return any(self._load(record + queue.RESV_HEAD) != self._load(record + queue.READY_HEAD) for record in records)

    # --------------------------------------------------------------------------------------------------------------------- errors

    def check(self) -> None:
        """Raise what went wrong and no kernel has recorded: here kernels see everything."""

    def trouble(self) -> str:
        """Return what explains that nothing completes, with "; " before it; "" if nothing is known."""
        return ""

    def _number(self, record: int) -> int:
        return (record - queue.RECORDS) // queue.RECORD_SIZE

    def name_of(self, record: int) -> str:
        """Return the queue pair of a record in words."""
        pe, i = divmod(self._number(record), self._num)
        return f"queue pair {i + 1} to PE {pe} (QP {self.qps[self._number(record)].qpn:#x})"

    def failure(self, record: int, who: str) -> TransportError:
        """Return the first error of a record's queue pair, or what its CQE tells, if the adapter knows no more."""
        number = self._number(record)
        qpn, first = self.qps[number].qpn, None
        with contextlib.suppress(TransportError):
            first = self.adapter.diagnose(qpn)
        note = "the first error of this queue pair"
        if first is None:
            first = self._last_error(number)
            flushed = first.syndrome == cqe.Syndrome.WR_FLUSH_ERR
            note = f"flushed behind the first error, which {self.adapter.name} does not tell" if flushed else "as its CQE tells"
        text = f"{who}: {self.name_of(record)} failed at {first} ({note})"
        return CompletionError(text, number // self._num, qpn, first.wqe_idx, first.syndrome, first.vendor_err_synd)

    def _last_error(self, number: int) -> FirstError:
        """Return the error of the one CQE that a collapsed CQ keeps, the last: the first one if nothing was queued behind its WQE."""
        place, base = self.queues[number], self._slot + window.QUEUE_OFFSET
        seen = cqe.decode(self._memory.read(base + place.cq, cqe.CQE_SIZE))
        ring = bytearray(self._memory.read(base + place.wq, self._depth * WQEBB))
        try:
            wqe = send_queue.fetch(ring, seen.wqe_counter)
        except ValueError:
            wqe = b""
        return FirstError(seen.wqe_counter, seen.syndrome, seen.vendor_err_synd, "", wqe)

    # --------------------------------------------------------------------------------------------------------------------- ending

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Sample what runs beside the kernels: nothing here."""
        yield {}

    def stop(self) -> None:
        """Stop what runs beside the kernels: the thread that forwards doorbells, if there is one. Further calls do nothing."""
        if self._forwarder is not None:
            self._forwarder.stop()
            self._forwarder = None

    def destroy(self) -> None:
        """Destroy the queue pairs. No PE uses them any more."""
        self.stop()
        for qp in self.qps:
            qp.destroy()
        self.qps = []
        self._orderly = True

    def close(self) -> None:
        """Leave the adapter. Further calls do nothing."""
        self.stop()
        self._made.close()


def _big_endian(value: int) -> int:
    """Return the 32-bit word whose bytes in memory are value's, most significant first."""
    return int.from_bytes(value.to_bytes(4, "big"), "little")
