"""Host side of a NIC transport: queue pairs to every PE, registered memory, and errors.

Under these transports, no PE maps another's memory; a PE shares its slot only with the NIC. Subclasses make queue pairs by mlx5 commands
(adapter_nic.AdapterNIC) or through libibverbs (ibrc.verbs.VerbsNIC), and leave them to kernels (ibgda.nic.DirectNIC) or to a proxy thread
(ibrc.thread.RingNIC).
"""

import contextlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from pgas.base.agreement import everywhere
from pgas.base.errors import TransportError
from pgas.kernels import layout, window
from pgas.transports.memory.protocol import Memory, Segment, whole_pages
from pgas.transports.nic.adapter import Inspection
from pgas.transports.nic.queue_pair import Queues
from pgas.transports.nic.snapshot import QueueMemory, Ring

#: Number of bytes of the landing cells and the sink, which precede the queues and fill whole pages.
CELL_BYTES = -(-(layout.SINK + layout.CELL_SIZE) // 4096) * 4096


@dataclass(frozen=True)
class Part:
    """This PE's part in the job, for its NIC."""

    memory: Memory  #: memory of this PE, with the segments mapped
    me: int  #: this PE's number
    n_pes: int  #: number of PEs
    segments: tuple[Segment, ...]  #: team memory and heap, queues
    fds: list[int]  #: descriptors of the segments, for the adapter
    exchange: Callable[[Any], list[Any]]  #: exchange of small plain values (pgas.base.plain) among the PEs
    constants: window.Constants  #: number and depth of the queue pairs
    near_pes: Container[int]  #: PEs that map this PE's memory and whose memory this PE maps


def timed_out(text: str) -> TransportError:
    """Return the error of a host wait that lasted PGAS_TIMEOUT."""
    error = TransportError(text)
    error.timed_out = True
    return error


def big_endian(value: int) -> int:
    """Return the 32-bit word whose bytes in memory are value in big-endian order."""
    return int.from_bytes(value.to_bytes(4, "big"), "little")


class NIC(ABC):
    """This PE's queue pairs. The constructor is collective; an error on one PE is raised on all.

    Args:
        part: this PE's part in the job.

    Raises:
        TransportError: the NIC refuses; the text names the PE and the reason.
    """

    #: Whether queues and registers are in host memory, because a CPU posts.
    on_host = False

    #: Whether one WQE may combine the p() stores of several neighboring lanes.
    coalesces = False

    #: Whether atomics return old values of 8 bytes big-endian (queue_pair.returns_big_endian).
    big_endian = False

    #: Whether a CPU rings the doorbells that kernels store into host memory (transports/ibgda/doorbells.py).
    rung_by_cpu = False

    name: str  #: for messages, e.g. "mlx5_0:1"

    #: The software that executes WQEs, such as "cpu", or "cuda" or "dma" with a hash of its kernel; None for a device.
    engine: str | None = None

    #: Process id of the software NIC, 0 if there is none.
    process: int = 0

    #: Queue pairs by queue number: those to PE 0, then to PE 1, and so on. Each has a ``qpn`` and ``reset()``.
    qps: list[Any]

    def __init__(self, part: Part) -> None:
        self._memory, self._me, self._n_pes, self._exchange = part.memory, part.me, part.n_pes, part.exchange
        self._segments, self._fds = part.segments, part.fds
        self._num, self._depth = part.constants.num_qps, part.constants.depth
        self._slot = window.slot(part.me)
        self._made = contextlib.ExitStack()
        try:
            self._prepare()
            self._everywhere(self._create)
            self._begin()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:  # noqa: B027  # most subclasses have nothing to prepare
        """Start the software NIC. Collective."""

    @abstractmethod
    def _create(self) -> None:
        """Make all objects that do not need a peer."""

    @abstractmethod
    def _introduction(self) -> Any:
        """Return this PE's argument for the others' _connect()."""

    @abstractmethod
    def _connect(self, met: list[Any]) -> None:
        """Connect queue pair i to PE b with PE b's queue pair i to this PE; on this PE itself, connect each with itself."""

    def _begin(self) -> None:
        """Connect the queue pairs, which are in RST, starting at index 0. Collective."""
        met = self._everywhere(self._introduction)
        self._measure(met)
        self._everywhere(lambda: self._connect(met))

    def _measure(self, met: list[Any]) -> None:  # noqa: B027  # most subclasses need not
        """Measure the paths to the others. Collective. met: the argument of _connect()."""

    def _everywhere(self, step: Callable[[], Any]) -> list[Any]:
        """Run a step on every PE and return the results of all PEs. Collective."""
        return everywhere(self._exchange, step, TransportError)

    def reset(self) -> None:
        """Reset and reconnect every queue pair, including failed ones. Collective; no kernel may run on any PE.

        Outstanding requests are dropped; peers may or may not have received them. Memory regions and their keys stay.

        Raises:
            TransportError: the NIC of some PE refuses, or is gone; on every PE. This may be called again.
        """
        self._everywhere(self._withdraw)  # on all PEs first, because an old queue pair must not send to a peer's reconnected one
        self._everywhere(self._clear)
        self._begin()

    def _withdraw(self) -> None:
        """Stop all work on this PE's queue pairs."""
        self.stop()
        for qp in self.qps:
            qp.reset()

    @abstractmethod
    def _clear(self) -> None:
        """Restore the initial contents of the queue pairs' memory."""

    # ------------------------------------------------------------------------------------------------------------ where queues lie

    @classmethod
    def segment(cls, n_pes: int, constants: window.Constants) -> Segment:
        """Return the segment of a slot for landing cells and the queues of this PE's queue pairs.

        Raises:
            TransportError: more queue pairs or PEs than the runtime has records for.
        """
        if n_pes * constants.num_qps > layout.MAX_QUEUES or n_pes > layout.MAX_PES:
            raise TransportError(
                f"PGAS_IBGDA_NUM_RC_PER_PE={constants.num_qps} for {n_pes} PEs: a PE has at most {layout.MAX_QUEUES} queue pairs, "
                f"a job {layout.MAX_PES} PEs"
            )
        nbytes, most = cls.segment_bytes(n_pes, constants), window.DOORBELL_OFFSET - window.QUEUE_OFFSET
        if nbytes > most:
            raise TransportError(
                f"{n_pes * constants.num_qps} queue pairs of PGAS_QP_DEPTH={constants.depth} take {nbytes} bytes, but a PE has "
                f"{most} for them; choose a smaller depth, or PGAS_IBGDA_NUM_RC_PER_PE"
            )
        return Segment(window.QUEUE_OFFSET, whole_pages(nbytes), cls.on_host)

    @classmethod
    def queue_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return the bytes of landing cells and queues."""
        return CELL_BYTES + n_pes * constants.num_qps * Queues.nbytes(constants.depth)

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return the used bytes of that segment."""
        return cls.queue_bytes(n_pes, constants)

    def _store(self, address: int, value: int) -> None:
        self._memory.write(address, struct.pack("<Q", value))

    def _load(self, address: int) -> int:
        return int(struct.unpack("<Q", self._memory.read(address, 8))[0])

    # --------------------------------------------------------------------------------------------------- a heap that grows

    def extend_heap(self, chunk: Segment, fd: int) -> None:
        """Register the heap with a segment appended, and give kernels launched from now on its keys. Collective.

        The whole heap is registered again, or only the segment if the NIC refuses the whole. Running kernels may use the old keys, so that
        these keys and their regions stay valid until the end of the job.

        Args:
            chunk: the segment, mapped here and zeroed.
            fd: its descriptor.

        Raises:
            TransportError: the NIC of some PE refuses; on every PE. Nothing has changed.
        """
        with contextlib.ExitStack() as undo:
            keys = self._everywhere(lambda: self._reach(chunk, fd, undo))
            undo.pop_all()
        self._take_keys(keys)

    @abstractmethod
    def _reach(self, chunk: Segment, fd: int, undo: contextlib.ExitStack) -> Any:
        """Register the heap with one more segment; return this PE's argument for the others' _take_keys()."""

    @abstractmethod
    def _take_keys(self, keys: list[Any]) -> None:
        """Use new keys of the heaps from then on."""

    # --------------------------------------------------------------------------------------------------- local memory (pgas.register)

    def register(self, entry: int, address: int, nbytes: int) -> None:
        """Let the NIC access memory of this process as a local operand, and store it in an entry of layout.REGISTERED for kernels.

        Raises:
            TransportError: the NIC refuses; the text has the reason.
        """
        key = self._key(entry, address, nbytes)
        place = layout.REGISTERED + entry * layout.PIECE_SIZE
        self._store(place + layout.PIECE_LKEY, big_endian(key))
        self._store(place + layout.PIECE_START, address)
        self._store(place + layout.PIECE_END, address + nbytes)
        end = place + layout.PIECE_SIZE
        if self._load(layout.REGISTERED_END) < end:
            self._store(layout.REGISTERED_END, end)

    def unregister(self, entry: int, address: int) -> None:
        """Undo register(). The memory must not be in use."""
        place = layout.REGISTERED + entry * layout.PIECE_SIZE
        self._store(place + layout.PIECE_END, 0)
        self._store(place + layout.PIECE_START, 0)
        self._forget(entry, address)

    @abstractmethod
    def _key(self, entry: int, address: int, nbytes: int) -> int:
        """Register local memory and return its lkey."""

    @abstractmethod
    def _forget(self, entry: int, address: int) -> None:
        """Undo _key()."""

    def lkey_of_registered(self, entry: int) -> int:
        """Return an entry's lkey, big-endian."""
        return self._load(layout.REGISTERED + entry * layout.PIECE_SIZE + layout.PIECE_LKEY)

    # -------------------------------------------------------------------------------------------------------------------- waiting

    @abstractmethod
    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until all requests of kernels have completed. No kernel may run during the wait.

        Args:
            timeout_s: limit of the wait in seconds.
            poll: called while waiting; may raise.

        Raises:
            CompletionError: a request failed.
            TransportError: (timed_out) the requests did not complete in time.
        """

    @abstractmethod
    def holds_unposted(self) -> bool:
        """Whether kernels that have ended had begun requests without posting them."""

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Sample the proxy thread; {} for NICs without one."""
        yield {}

    # ------------------------------------------------------------------------------------------------------------ for hang reports

    @abstractmethod
    def cursors(self, number: int) -> dict[str, int]:
        """Return the cursors of a queue pair by name, cons_idx among them."""

    def requests(self, most: int) -> Ring | None:
        """Return the proxy's ring with its oldest outstanding requests, at most `most`; None if kernels post themselves."""
        return None

    def queue_memory(self, number: int) -> QueueMemory | None:
        """Return the memory of a queue pair; None if it belongs to the driver."""
        return None

    def inspect(self, timeout_s: float) -> Inspection | None:
        """Return the adapter's report (adapter.Adapter.inspect), None if there is none."""
        return None

    def counts(self) -> dict[str, int]:
        """Return the counters of this PE's queue pairs (adapter.Adapter.counts), {} if there are none."""
        return {}

    # --------------------------------------------------------------------------------------------------------------------- errors

    def check(self) -> None:  # noqa: B027  # only some NICs have a thread
        """Raise an error that no kernel has recorded, if there is one."""

    def trouble(self) -> str:
        """Return "; " and the reason why nothing completes, "" if none is known."""
        return ""

    @abstractmethod
    def failure(self, record: int, who: str) -> TransportError:
        """Return the error of a record's queue pair. who: text that names what found the error."""

    def _number(self, record: int) -> int:
        return (record - layout.RECORDS) // layout.RECORD_SIZE

    def name_of(self, record: int) -> str:
        """Return the name, for messages, of a record's queue pair."""
        pe, i = divmod(self._number(record), self._num)
        return f"queue pair {i + 1} to PE {pe} (QP {self.qps[self._number(record)].qpn:#x})"

    # --------------------------------------------------------------------------------------------------------------------- ending

    def stop(self) -> None:  # noqa: B027  # only some NICs have a thread
        """Stop the thread that serves kernels, if there is one. Further calls do nothing."""

    def end_process(self) -> None:  # noqa: B027  # only a software NIC has a process
        """End the software NIC's process if this PE started it. No PE may use the NIC anymore. Further calls do nothing."""

    def close(self) -> None:
        """Release the NIC and all its objects. Further calls do nothing."""
        self.stop()
        self._made.close()
