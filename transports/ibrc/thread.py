"""The host's side of the kernels' ring: the shared line, the proxy thread that serves the ring, and the thread's errors."""

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pgas.base import events
from pgas.base.errors import PgasError
from pgas.kernels import layout, state, window
from pgas.transports.hostloop.slack import sleep_precisely
from pgas.transports.ibrc import tables
from pgas.transports.ibrc.loop import compiled
from pgas.transports.nic.protocol import NIC, Part, timed_out
from pgas.transports.nic.snapshot import Ring

#: Seconds in which kernels can find an error by themselves, because a waiting kernel checks for errors in one of 64 polls (nic/ring.py).
_FIND_S = 1.0

#: Minimum sample count for a meaningful share.
_MIN_SAMPLES = 20


def shares(samples: Sequence[int]) -> dict[str, float]:
    """Return the share of each of tables.PHASES, from the first sample in which the thread is not idle to the last.

    The idle samples before and after belong to the launch of the kernel and to the wait for its end. {} if the samples are too few.
    """
    active = [i for i, phase in enumerate(samples) if phase != tables.WAITING]
    during = samples[active[0] : active[-1] + 1] if active else ()
    return {name: during.count(phase) / len(during) for phase, name in enumerate(tables.PHASES)} if len(during) >= _MIN_SAMPLES else {}


def _trace_words(capacity: int) -> dict[int, int]:
    """Return the words of the loop's record for a timeline; capacity: number of events in a ring, 0 for no timeline."""
    ring = window.TRACE + events.RINGS + events.PROXY * capacity * events.EVENT_SIZE
    return {tables.TRACE: ring, tables.TRACE_MASK: capacity - 1} if capacity else {}


class RingNIC(NIC):
    """A NIC whose kernels write requests into a ring, served by a thread of this process. Arguments and errors are NIC's.

    A subclass names the posting back end and supplies its words of the tables.
    """

    on_host = True

    #: The posting back end.
    posting: ClassVar[ModuleType]
    #: Bytes of the loop's record.
    record_bytes: ClassVar[int] = tables.END

    def __init__(self, part: Part, **options: Any) -> None:
        self._thread: threading.Thread | None = None
        self._constants = part.constants
        super().__init__(part, **options)

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return the used bytes of the segment; the ring follows the queues."""
        return cls.queue_bytes(n_pes, constants) + layout.RING + constants.ring * layout.REQUEST_SIZE

    def _record_words(self) -> Mapping[int, int]:
        """Return the back end's words of the loop's record, by offset."""
        raise NotImplementedError

    def _row_words(self, number: int) -> Mapping[int, int]:
        """Return the back end's words of a queue pair's row, by offset, and the row's cursors."""
        raise NotImplementedError

    def _begin(self) -> None:
        super()._begin()
        self._everywhere(self._start)

    def _start(self) -> None:
        """Clear the ring, and start the thread that serves it."""
        constants = self._constants
        self._stopping, self._ended = False, ""
        self._control = self._slot + window.QUEUE_OFFSET + self.queue_bytes(self._n_pes, constants)
        self._store(layout.CONTROL, self._control)
        self._memory.fill(self._control, layout.RING + constants.ring * layout.REQUEST_SIZE, 0)
        for word in (layout.RING_HEAD, layout.RING_SEEN, layout.RING_LOOKING):
            self._store(word, 0)
        count = len(self.qps)
        rows = self.record_bytes
        undone = rows + count * tables.ROW
        unrung = undone + constants.ring * tables.UNDONE_SIZE
        regions = unrung + 8 * count
        # Use separate pages, because the simulator may remap the pages of a user's array (transports/memory/pages.py).
        own = self._own = np.frombuffer(mmap.mmap(-1, regions + layout.N_REGISTERED * tables.REGION_SIZE), np.int64)
        at = own.ctypes.data
        self._regions = regions // 8
        words = {
            tables.CONTROL: self._control, tables.SLOT_MASK: constants.ring - 1, tables.ROWS: at + rows, tables.UNDONE: at + undone,
            tables.UNRUNG: at + unrung, tables.DEPTH: self._depth, tables.BATCH: constants.batch, tables.REGISTERED: at + regions,
            **_trace_words(constants.trace_events), **self._record_words(),
        }  # fmt: skip
        for number in range(count):
            row = {tables.RECORD: layout.RECORDS + number * layout.RECORD_SIZE, **self._row_words(number)}
            words |= {self._row(number) + offset: value for offset, value in row.items()}
        self._set(words)
        for entry in range((self._load(layout.REGISTERED_END) - layout.REGISTERED) // layout.PIECE_SIZE):
            if self._load(layout.REGISTERED + entry * layout.PIECE_SIZE + layout.PIECE_END):
                self._name_region(entry)
        loop = compiled(self.posting)
        self._thread = threading.Thread(target=self._run, args=(loop, at), name=f"pgas proxy of PE {self._me}", daemon=True)
        self._thread.start()

    def _set(self, words: Mapping[int, int]) -> None:
        """Store words of the loop's record and rows, by offset. The loop may run meanwhile; it observes the words changing one by one."""
        for offset, value in words.items():
            self._own[offset // 8] = value

    def _row(self, number: int) -> int:
        return self.record_bytes + number * tables.ROW

    def holds_unposted(self) -> bool:
        """Whether kernels that have ended reserved tickets without writing the requests. The proxy posts every request that is written."""
        self._store(layout.RING_LOOKING, 0)  # a thread that was polling when its kernel was aborted never clears it
        ring, size = self._control + layout.RING, int(self._own[tables.SLOT_MASK // 8]) + 1
        tickets = range(self._load(self._control + layout.COMPLETED), self._load(layout.RING_HEAD))
        sequences = (self._load(ring + t % size * layout.REQUEST_SIZE + layout.SEQUENCE) for t in tickets)
        return any(found != t + 1 for t, found in zip(tickets, sequences, strict=True)) if len(tickets) <= size else True

    def register(self, entry: int, address: int, nbytes: int) -> None:
        """Register local memory with the NIC, and pass its lkey to the thread."""
        super().register(entry, address, nbytes)
        self._name_region(entry)

    def _name_region(self, entry: int) -> None:
        """Pass the lkey and shift of a registered region to the thread."""
        at = self._regions + entry * tables.REGION_SIZE // 8
        self._own[at : at + 2] = self._region_words(entry)

    def _region_words(self, entry: int) -> tuple[int, int]:
        """Return lkey and shift of a registered region in the form that the back end uses."""
        raise NotImplementedError

    def cursors(self, number: int) -> dict[str, int]:
        """Return the cursors of a queue pair by name; only the proxy thread moves them."""
        row = self._row(number)
        names = {"prod_idx": tables.PROD_IDX, "rung_idx": tables.RUNG_IDX, "cons_idx": tables.CONS_IDX}
        return {name: int(self._own[(row + offset) // 8]) for name, offset in names.items()}

    def requests(self, most: int) -> Ring:
        """Return the state of the ring, with the oldest outstanding requests, at most `most`."""
        head, completed = self._load(layout.RING_HEAD), self._load(self._control + layout.COMPLETED)
        mask, oldest = int(self._own[tables.SLOT_MASK // 8]), []
        for ticket in range(completed, min(head, completed + most)):
            data = self._memory.read(self._control + layout.RING + (ticket & mask) * layout.REQUEST_SIZE, layout.REQUEST_SIZE)
            written = int.from_bytes(data[layout.SEQUENCE : layout.SEQUENCE + 8], "little") == ticket + 1
            oldest.append((ticket, data if written else None))
        if self._ended:
            doing = f"has ended ({self._ended})"
        elif self._load(self._control + layout.FAILED_QUEUE):
            doing = "has ended: a request it posted has failed"
        else:
            doing = f"runs ({tables.PHASES[int(self._own[tables.PHASE // 8])]})"
        return Ring(doing, head, completed, oldest)

    def _run(self, loop: Callable[[int], int], own: int) -> None:
        """Run the proxy thread. If it ends before it is stopped, end the waits of kernels, because requests are no longer sent."""
        sleep_precisely()
        reason = "it was not stopped"
        try:
            loop(own)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not self._stopping:
            self._ended = reason
            self._memory.enter()
            if self._load(self._control + layout.FAILED_QUEUE):
                self._let_kernels_find_it()
            if self._load(layout.POISON) == state.SOUND:
                self._store(self._memory.host_words + layout.ALARM, state.LOST)
                self._store(layout.POISON, state.LOST)

    def _let_kernels_find_it(self) -> None:
        """Give a waiting kernel time to record the error. In the simulator, that ends the kernel, but LOST ends only its waits."""
        until = time.monotonic() + _FIND_S
        while self._load(layout.POISON) == state.SOUND and not self._stopping and time.monotonic() < until:
            time.sleep(0.01)

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Sample the thread's phase 2,000 times per second. At the end, the dict holds the shares() of the samples."""
        found: dict[str, float] = {}
        samples, ended = list[int](), threading.Event()

        def look() -> None:
            while not ended.wait(500e-6):
                samples.append(int(self._own[tables.PHASE // 8]))

        sampler = threading.Thread(target=look, name="pgas proxy sampler", daemon=True)
        sampler.start()
        try:
            yield found
        finally:
            ended.set()
            sampler.join()
            found.update(shares(samples))

    def check(self) -> None:
        """Raise the proxy thread's error, if it has one.

        Raises:
            CompletionError: a WQE failed.
            PgasError: the thread has ended.
        """
        if self._thread is None:
            return
        if record := self._load(self._control + layout.FAILED_QUEUE):
            raise self.failure(record, "the proxy thread")
        if self._ended:
            raise PgasError(f"the proxy thread of PE {self._me} ended ({self._ended}): requests of kernels are no longer sent")

    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until all requests of kernels have completed. Arguments and errors are those of NIC.quiet and check."""
        deadline = time.monotonic() + timeout_s
        target = self._load(layout.RING_HEAD)
        while (done := self._load(self._control + layout.COMPLETED)) < target:
            self.check()
            if time.monotonic() > deadline:
                words = f"the proxy thread completed {done} of {target} requests in {timeout_s:g} s (PGAS_TIMEOUT)"
                raise timed_out(words + self.trouble())
            poll()
            time.sleep(0)

    def name_of(self, record: int) -> str:
        """Return the name, for messages, of a record's queue pair or of the ring."""
        return "the proxy thread's ring" if record == layout.RING_HEAD else super().name_of(record)

    def stop(self) -> None:
        """Stop the thread. Further calls do nothing."""
        if self._thread is not None:
            self._stopping = True
            self._own[tables.STOP // 8] = 1
            self._thread.join()
            self._thread = None
