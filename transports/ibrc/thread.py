"""The host's side of the kernels' ring: its shared line, the proxy thread that serves it, what went wrong in it."""

import contextlib
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from pgas.base.errors import PgasError
from pgas.kernels import state, window
from pgas.kernels.paths import proxy
from pgas.kernels.paths.nic import queue
from pgas.transports.hostloop.slack import sleep_precisely
from pgas.transports.ibrc import tables
from pgas.transports.ibrc.loop import compiled
from pgas.transports.nic import NIC, Part, timed_out
from pgas.transports.snapshot import Ring

__all__ = ["RingNIC", "shares"]

#: Seconds that kernels have to find an error by themselves: each looks in one of 64 polls (kernels/paths/proxy.py).
_FIND_S = 1.0

#: Samples of what the thread does that are too few to say.
_FEW = 20


def shares(samples: Sequence[int]) -> dict[str, float]:
    """Return the share of each of tables.PHASES, between the first sample and the last in which the thread does something.

    Around those a kernel is launched and waited for. {} if they are too few to say.
    """
    active = [i for i, phase in enumerate(samples) if phase != tables.WAITING]
    during = samples[active[0] : active[-1] + 1] if active else ()
    return {name: during.count(phase) / len(during) for phase, name in enumerate(tables.PHASES)} if len(during) >= _FEW else {}


class RingNIC(NIC):
    """A NIC whose kernels write requests into a ring, which a thread of this process serves. Arguments and errors are NIC's.

    A subclass says what the thread posts with, and fills the words of its tables.
    """

    on_host = True

    #: What the thread posts with.
    posting: ClassVar[ModuleType]
    #: Bytes of the loop's record.
    record_bytes: ClassVar[int] = tables.END

    def __init__(self, part: Part, **options: Any) -> None:
        self._thread: threading.Thread | None = None
        self._constants = part.constants
        super().__init__(part, **options)

    @classmethod
    def segment_bytes(cls, n_pes: int, constants: window.Constants) -> int:
        """Return how many bytes of the segment are used; the ring is behind the queues."""
        return cls.queue_bytes(n_pes, constants) + proxy.RING + constants.ring * proxy.REQUEST_SIZE

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
        """Begin with an empty ring, and start the thread that serves it."""
        constants = self._constants
        self._stopping, self._ended = False, ""
        self._control = self._slot + window.QUEUE_OFFSET + self.queue_bytes(self._n_pes, constants)
        self._store(proxy.CONTROL, self._control)
        self._memory.fill(self._control, proxy.RING + constants.ring * proxy.REQUEST_SIZE, 0)
        for word in (proxy.HEAD, proxy.SEEN, proxy.LOOKING):
            self._store(word, 0)
        count = len(self.qps)
        rows = self.record_bytes
        undone = rows + count * tables.ROW
        unrung = undone + constants.ring * tables.UNDONE_SIZE
        regions = unrung + 8 * count
        # On pages of their own: those that a user's array lies on may be exchanged in the simulator (transports/memory/pages.py).
        own = self._own = np.frombuffer(mmap.mmap(-1, regions + state.N_REGISTERED * tables.REGION_SIZE), np.int64)
        at = own.ctypes.data
        self._regions = regions // 8
        words = {
            tables.CONTROL: self._control, tables.SLOT_MASK: constants.ring - 1, tables.ROWS: at + rows, tables.UNDONE: at + undone,
            tables.UNRUNG: at + unrung, tables.DEPTH: self._depth, tables.BATCH: constants.batch, tables.REGISTERED: at + regions,
            **self._record_words(),
        }  # fmt: skip
        for number in range(count):
            row = {tables.RECORD: queue.RECORDS + number * queue.RECORD_SIZE, **self._row_words(number)}
            words |= {self._row(number) + offset: value for offset, value in row.items()}
        self._set(words)
        for entry in range((self._load(state.REGISTERED_END) - state.REGISTERED) // state.REGISTERED_SIZE):
            if self._load(state.REGISTERED + entry * state.REGISTERED_SIZE + state.END):
                self._name_region(entry)
        loop = compiled(self.posting)
        self._thread = threading.Thread(target=self._run, args=(loop, at), name=f"pgas proxy of PE {self._me}", daemon=True)
        self._thread.start()

    def _set(self, words: Mapping[int, int]) -> None:
        """Set words of the loop's record and rows, by their offsets; also while it runs, each for itself."""
        for offset, value in words.items():
            self._own[offset // 8] = value

    def _row(self, number: int) -> int:
        """Return the offset of a queue pair's row."""
        return self.record_bytes + number * tables.ROW

    def holds_unposted(self) -> bool:
        """Whether kernels that have ended reserved tickets and wrote no request; what is written, the proxy takes."""
        self._store(proxy.LOOKING, 0)  # who looked when its kernel was cut looks no more
        ring, size = self._control + proxy.RING, int(self._own[tables.SLOT_MASK // 8]) + 1
        tickets = range(self._load(self._control + proxy.COMPLETED), self._load(proxy.HEAD))
        sequences = (self._load(ring + t % size * proxy.REQUEST_SIZE + proxy.SEQUENCE) for t in tickets)
        return any(found != t + 1 for t, found in zip(tickets, sequences, strict=True)) if len(tickets) <= size else True

    def register(self, entry: int, address: int, nbytes: int) -> None:
        """Let the NIC reach local memory, and the thread name it."""
        super().register(entry, address, nbytes)
        self._name_region(entry)

    def _name_region(self, entry: int) -> None:
        """Let the thread know what to call a registered piece of memory."""
        at = self._regions + entry * tables.REGION_SIZE // 8
        self._own[at : at + 2] = self._region_words(entry)

    def _region_words(self, entry: int) -> tuple[int, int]:
        """Return lkey and shift of a registered piece of memory, for what the thread posts."""
        raise NotImplementedError

    def cursors(self, number: int) -> dict[str, int]:
        """Return the indices of a queue pair, which only the proxy thread moves, by their names."""
        row = self._row(number)
        names = {"prod_idx": tables.PROD_IDX, "rung_idx": tables.RUNG_IDX, "cons_idx": tables.CONS_IDX}
        return {name: int(self._own[(row + offset) // 8]) for name, offset in names.items()}

    def requests(self, most: int) -> Ring:
        """Return the ring, with so many of the oldest requests that are not done."""
        head, completed = self._load(proxy.HEAD), self._load(self._control + proxy.COMPLETED)
        mask, oldest = int(self._own[tables.SLOT_MASK // 8]), []
        for ticket in range(completed, min(head, completed + most)):
            data = self._memory.read(self._control + proxy.RING + (ticket & mask) * proxy.REQUEST_SIZE, proxy.REQUEST_SIZE)
            written = int.from_bytes(data[proxy.SEQUENCE : proxy.SEQUENCE + 8], "little") == ticket + 1
            oldest.append((ticket, data if written else None))
        if self._ended:
            doing = f"has ended ({self._ended})"
        elif self._load(self._control + proxy.FAILED):
            doing = "has ended: what it posted has failed"
        else:
            doing = f"runs ({tables.PHASES[int(self._own[tables.PHASE // 8])]})"
        return Ring(doing, head, completed, oldest)

    def _run(self, loop: Callable[[int], int], own: int) -> None:
        """The proxy thread; if it ends before it is told to, nobody sends any more: let the waits of kernels end."""
        sleep_precisely()
        reason = "nobody stopped it"
        try:
            loop(own)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not self._stopping:
            self._ended = reason
            self._memory.enter()
            if self._load(self._control + proxy.FAILED):
                self._let_kernels_find_it()
            if self._load(state.POISON) == state.SOUND:
                self._store(state.POISON, state.LOST)

    def _let_kernels_find_it(self) -> None:
        """Give a kernel that waits for a request the time to record the error: in the simulator that ends it, LOST ends its waits alone."""
        until = time.monotonic() + _FIND_S
        while self._load(state.POISON) == state.SOUND and not self._stopping and time.monotonic() < until:
            time.sleep(0.01)

    @contextlib.contextmanager
    def sampled(self) -> Iterator[dict[str, float]]:
        """Look at what the thread does, 2,000 times a second; at the end the dict holds what shares() says."""
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
        """Raise what went wrong in the proxy thread.

        Raises:
            CompletionError: a WQE failed.
            PgasError: the thread has ended.
        """
        if self._thread is None:
            return
        if record := self._load(self._control + proxy.FAILED):
            raise self.failure(record, "the proxy thread")
        if self._ended:
            raise PgasError(f"the proxy thread of PE {self._me} ended ({self._ended}): what kernels ask for is not sent any more")

    def quiet(self, timeout_s: float, poll: Callable[[], None]) -> None:
        """Wait until everything that kernels asked for is done. Arguments and errors are NIC.quiet's, and check's."""
        deadline = time.monotonic() + timeout_s
        target = self._load(proxy.HEAD)
        while (done := self._load(self._control + proxy.COMPLETED)) < target:
            self.check()
            if time.monotonic() > deadline:
                words = f"the proxy thread completed {done} of {target} requests in {timeout_s:g} s (PGAS_TIMEOUT)"
                raise timed_out(words + self.trouble())
            poll()
            time.sleep(0)

    def name_of(self, record: int) -> str:
        """Return the queue pair of a record, or the ring, in words."""
        return "the proxy thread's ring" if record == proxy.HEAD else super().name_of(record)

    def stop(self) -> None:
        """Stop the thread. Further calls do nothing."""
        if self._thread is not None:
            self._stopping = True
            self._own[tables.STOP // 8] = 1
            self._thread.join()
            self._thread = None
