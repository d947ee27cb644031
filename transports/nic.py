"""The host's side of a transport over a NIC, whatever drives the NIC: queue pairs to every PE, registered memory, errors.

A PE shares its slot with the NIC alone: under these transports no PE maps another's memory. What makes queue pairs is a subclass's:
adapter_nic.AdapterNIC (mlx5 commands) or ibrc.verbs.VerbsNIC (libibverbs); so is what drives them: ibgda.nic.DirectNIC (kernels) or
ibrc.thread.RingNIC (a proxy thread).
"""

import contextlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pgas.base.agreement import everywhere
from pgas.base.errors import TransportError
from pgas.kernels import state, window
from pgas.kernels.paths.nic import queue
from pgas.transports.adapter import Inspection
from pgas.transports.memory.protocol import GRANULARITY, Memory, Segment
from pgas.transports.queue_pair import Queues
from pgas.transports.snapshot import QueueMemory, Ring

__all__ = ["CELL_BYTES", "NIC", "Part", "big_endian", "timed_out"]

#: Landing cells and the sink lie in front of the queues, in pages of their own.
CELL_BYTES = -(-(queue.SINK + queue.CELL_SIZE) // 4096) * 4096


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


def big_endian(value: int) -> int:
    """Return the 32-bit word whose bytes in memory are value's, most significant first."""
    return int.from_bytes(value.to_bytes(4, "big"), "little")


class NIC(ABC):
    """This PE's queue pairs. Making one is collective; an error on one PE is raised on all.

    Args:
        part: this PE's in the job.

    Raises:
        TransportError: the NIC refuses; the text names the PE and says why.
    """

    #: Whether queues and registers lie in the host's memory: a CPU posts.
    on_host = False

    name: str  #: for messages, e.g. "mlx5_0:1"

    #: What executes WQEs if that is software: "cpu" or "cuda"; None if it is a device.
    engine: str | None = None

    #: The process that plays the NIC, 0 if none does.
    process: int = 0

    #: By queue number: those to PE 0, then to PE 1, ... Each has a ``qpn``, ``reset()`` and ``destroy()``.
    qps: list[Any]

    def __init__(self, part: Part) -> None:
        self._memory, self._me, self._n_pes, self._exchange = part.memory, part.me, part.n_pes, part.exchange
        self._segments, self._fds = part.segments, part.fds
        self._num, self._depth = part.constants.num_qps, part.constants.depth
        self._slot = window.slot(part.me)
        self._made = contextlib.ExitStack()
        self._orderly = False  # whether all PEs leave
        try:
            self._prepare()
            self._everywhere(self._create)
            self._begin()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:  # noqa: B027  # most have nothing to prepare
        """Start what plays the NIC. Collective."""

    @abstractmethod
    def _create(self) -> None:
        """Make everything that needs no peer."""

    @abstractmethod
    def _introduction(self) -> Any:
        """Return what _connect gets of each PE."""

    @abstractmethod
    def _connect(self, met: list[Any]) -> None:
        """Connect queue pair i to PE b with queue pair i of PE b to this PE (to itself: with itself)."""

    def _begin(self) -> None:
        """Take the queue pairs, which are in RST, to their beginning and connect them. Collective."""
        met = self._everywhere(self._introduction)
        self._everywhere(lambda: self._connect(met))

    def _everywhere(self, step: Callable[[], Any]) -> list[Any]:
        """Take a step and return what it gave on each PE."""
        return everywhere(self._exchange, step, TransportError)

    def reset(self) -> None:
        """Begin anew on every queue pair, whatever it had to do and whatever failed there. Collective; no kernel runs on any PE.

        What was outstanding is dropped; a peer may or may not have got it. Memory regions and their keys stay.

        Raises:
            TransportError: the NIC of some PE refuses, or is gone; on every PE. This may be called again.
        """
        self._everywhere(self._withdraw)  # before any of them begins: a queue pair that still sends would find its peer's anew
        self._everywhere(self._clear)
        self._begin()

    def _withdraw(self) -> None:
        """Let the NIC do nothing any more on this PE's queue pairs."""
        self.stop()
        for qp in self.qps:
            qp.reset()

    @abstractmethod
    def _clear(self) -> None:
        """Put what the queue pairs have in memory back to how it was at the beginning."""

    # ------------------------------------------------------------------------------------------------------------ where queues lie

    @classmethod
    def segment(cls, n_pes: int, constants: window.Constants) -> Segment:
        """Return the segment of a slot that holds landing cells and the queues of this PE's queue pairs.

        Raises:
            TransportError: more queue pairs, or PEs, than the runtime keeps records of.
        """
        if n_pes * constants.num_qps > queue.MAX_QUEUES or n_pes > queue.MAX_PES:
            raise TransportError(
                f"PGAS_IBGDA_NUM_RC_PER_PE={constants.num_qps} for {n_pes} PEs: a PE has at most {queue.MAX_QUEUES} queue pairs, "
                f"a job {queue.MAX_PES} PEs"
            )
        nbytes, most = cls.segment_bytes(n_pes, constants), window.DOORBELL_OFFSET - window.QUEUE_OFFSET
        if nbytes > most:
            raise TransportError(
                f"{n_pes * constants.num_qps} queue pairs of PGAS_QP_DEPTH={constants.depth} take {nbytes} bytes, a PE has "
                f"{most} for them: choose a smaller depth, or PGAS_IBGDA_NUM_RC_PER_PE"
            )
        return Segment(window.QUEUE_OFFSET, -(-nbytes // GRANULARITY) * GRANULARITY, cls.on_host)

    @classmethod
    def queue_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes landing cells and queues take."""
        return CELL_BYTES + n_pes * constants.num_qps * Queues.nbytes(constants.depth)

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes of that segment are used."""
        return cls.queue_bytes(n_pes, constants)

    def _store(self, address: int, value: int) -> None:
        self._memory.write(address, struct.pack("<Q", value))

    def _load(self, address: int) -> int:
        return int(struct.unpack("<Q", self._memory.read(address, 8))[0])

    # --------------------------------------------------------------------------------------------------- a heap that grows

    def extend_heap(self, chunk: Segment, fd: int) -> None:
        """Let the NIC reach a segment more, behind the end of the heap, and tell kernels that are launched from now on. Collective.

        All the heap becomes a memory region again, as kernels know one key of each PE's. The keys that running kernels have read stay valid
        to the end of the job, and so do the regions that they name.

        Args:
            chunk: the segment, mapped here and zeroed.
            fd: its descriptor.

        Raises:
            TransportError: the NIC of some PE refuses; on every PE, with nothing changed.
        """
        with contextlib.ExitStack() as undo:
            keys = self._everywhere(lambda: self._reach(chunk, fd, undo))
            undo.pop_all()
        self._take_keys(keys)

    @abstractmethod
    def _reach(self, chunk: Segment, fd: int, undo: contextlib.ExitStack) -> Any:
        """Register the heap with one segment more; return what _take_keys gets of each PE."""

    @abstractmethod
    def _take_keys(self, keys: list[Any]) -> None:
        """Name the heaps by other keys from now on."""

    # --------------------------------------------------------------------------------------------------- local memory (pgas.register)

    def register(self, entry: int, address: int, nbytes: int) -> None:
        """Let the NIC reach memory of this process, as a local operand, and kernels find it in an entry of state.REGISTERED.

        Raises:
            TransportError: the NIC refuses; the text says why.
        """
        key = self._key(entry, address, nbytes)
        place = state.REGISTERED + entry * state.REGISTERED_SIZE
        self._store(place + state.REGISTERED_LKEY, big_endian(key))
        self._store(place + state.START, address)
        self._store(place + state.END, address + nbytes)
        behind = place + state.REGISTERED_SIZE
        if self._load(state.REGISTERED_END) < behind:
            self._store(state.REGISTERED_END, behind)

    def unregister(self, entry: int, address: int) -> None:
        """Undo register(); nothing uses the memory."""
        place = state.REGISTERED + entry * state.REGISTERED_SIZE
        self._store(place + state.END, 0)
        self._store(place + state.START, 0)
        self._forget(entry, address)

    @abstractmethod
    def _key(self, entry: int, address: int, nbytes: int) -> int:
        """Register local memory and return its lkey."""

    @abstractmethod
    def _forget(self, entry: int, address: int) -> None:
        """Undo _key()."""

    def lkey_of_registered(self, entry: int) -> int:
        """Return the lkey of an entry, big-endian."""
        return self._load(state.REGISTERED + entry * state.REGISTERED_SIZE + state.REGISTERED_LKEY)

    # -------------------------------------------------------------------------------------------------------------------- waiting

    @abstractmethod
    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until everything that kernels asked for has completed; no kernel runs meanwhile.

        Args:
            timeout_s: after so many seconds it is an error.
            poll: called while waiting; may raise.

        Raises:
            CompletionError: a request failed.
            TransportError: (timed_out) the NIC does not complete what it was given.
        """

    @abstractmethod
    def holds_unposted(self) -> bool:
        """Whether kernels that have ended began requests and did not hand them over."""

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Sample what runs beside the kernels: by default nothing does."""
        yield {}

    # ----------------------------------------------------------------------------------------------------- what a hang report reads

    @abstractmethod
    def cursors(self, number: int) -> dict[str, int]:
        """Return the indices of a queue pair by their names; cons_idx is among them."""

    def requests(self, most: int) -> Ring | None:
        """Return the ring of requests, with so many of the oldest that are not done; None where kernels post themselves."""
        return None

    def queue_memory(self, number: int) -> QueueMemory | None:
        """Return what lies in the memory of a queue pair; None where it is the driver's."""
        return None

    def inspect(self, timeout_s: float) -> Inspection | None:
        """Return what the NIC tells of itself (adapter.Adapter.inspect), None if it does not."""
        return None

    def counts(self) -> dict[str, int]:
        """Return what the NIC counted of this PE's queue pairs (adapter.Adapter.counts), {} if it does not tell."""
        return {}

    # --------------------------------------------------------------------------------------------------------------------- errors

    def check(self) -> None:  # noqa: B027  # not every NIC has something beside its kernels
        """Raise what went wrong and no kernel has recorded."""

    def trouble(self) -> str:
        """Return what explains that nothing completes, with "; " before it; "" if nothing is known."""
        return ""

    @abstractmethod
    def failure(self, record: int, who: str) -> TransportError:
        """Return what failed on a record's queue pair. who: found it, in words."""

    def _number(self, record: int) -> int:
        return (record - queue.RECORDS) // queue.RECORD_SIZE

    def name_of(self, record: int) -> str:
        """Return the queue pair of a record in words."""
        pe, i = divmod(self._number(record), self._num)
        return f"queue pair {i + 1} to PE {pe} (QP {self.qps[self._number(record)].qpn:#x})"

    # --------------------------------------------------------------------------------------------------------------------- ending

    def stop(self) -> None:  # noqa: B027  # not every NIC has something beside its kernels
        """Stop what runs beside the kernels. Further calls do nothing."""

    def destroy(self) -> None:
        """Destroy the queue pairs. No PE uses them any more."""
        self.stop()
        for qp in self.qps:
            qp.destroy()
        self.qps = []
        self._orderly = True

    def close(self) -> None:
        """Leave the NIC. Further calls do nothing."""
        self.stop()
        self._made.close()
