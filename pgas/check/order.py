"""Happens-before of a job, computed from the logs of its PEs by the rules of docs/memory-model.md, and the accesses that it leaves open."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from pgas.base import collector
from pgas.base.errors import PgasError
from pgas.check import collectives, log, memory, words
from pgas.check.clocks import OF_BLOCK, OF_WARP, PE_SHIFT, Clock, Epoch, joined_later
from pgas.check.collectives import Operands
from pgas.check.memory import FROM, GOT, READ, REMOTE, SOURCE, WRITE, MemoryAccess, Race, Shadow
from pgas.check.report import Mistakes, SourceLine
from pgas.check.state import Knowledge, joined
from pgas.kernels import window
from pgas.sim.scheduler import WARP_SIZE

#: Kinds of update by the class of the atomic access; p is none.
_ATOMS = {
    log.PLAIN: "", log.SET: memory.SETS, log.ADD: memory.PGAS, log.ATOMIC_SET: memory.PGAS, log.ATOMIC_ADD: memory.PGAS,
    log.ATOMIC_OTHER: memory.PGAS,
}  # fmt: skip

#: Bits of addresses that are tags, and the position of the PE in them here.
_TAGS, _PE_OF_ADDRESS = log.SHARED | log.PRIVATE, 128

_PAGE = 12

_MOST_SPLIT, _MOST_STATES = 4096, 4096

#: Mask of a thread's number on its PE.
_NUMBER = (1 << PE_SHIFT) - 1

_COMPLETING = ("barrier_all", "barrier")
_BARRIERS = (*_COMPLETING, "sync_all", "team_sync")


@dataclass(eq=False)
class _Block:
    """A block: the state of threads that have done nothing since its last barrier, and the others."""

    first: int  #: number of its first thread, which is also its own
    count: int
    launch: "_Launch"
    state: Knowledge
    phase: int = 0
    since: int = 0  #: tick of the last barrier
    together: bool = False  #: whether its threads have issued non-blocking operations together
    threads: dict[int, "Thread"] = field(default_factory=dict)


@dataclass(eq=False)
class _Launch:
    """A kernel, or the host of a PE, which is a launch that never ends."""

    pe: int
    lane: tuple[int, int]
    number: int
    first: int
    nthreads: int
    nblocks: int
    state: Knowledge
    blocks: dict[int, _Block] = field(default_factory=dict)


@dataclass(eq=False)
class Thread:
    """A thread between two barriers of its block."""

    number: int
    block: _Block
    state: Knowledge
    tick: int
    pending: Knowledge | None = None  #: what atomics have returned, until a fence
    epoch: Epoch | None = None
    loads: dict[int, MemoryAccess] = field(default_factory=dict)  #: by site, until the thread has told or learned something
    stores: dict[tuple[int, bool], MemoryAccess] = field(default_factory=dict)  #: likewise, by site and whether they change nothing
    settled: memory.Settled | None = None  #: of its state, since its first load or store there

    @property
    def pe(self) -> int:
        return self.block.launch.pe

    @property
    def warp(self) -> int:
        """The number that stands for all threads of its warp."""
        return _of_warp(self.number - (self.number - self.block.first) % WARP_SIZE)

    def changed(self) -> None:
        """Forget what was derived from the thread's state and position."""
        self.loads.clear()
        self.stores.clear()
        self.settled = None

    def now(self) -> Epoch:
        """Return the position of the thread's next event."""
        if self.epoch is None:
            block, launch = self.block, self.block.launch
            self.epoch = Epoch(
                launch.pe, launch.lane, launch.number, block.first, block.phase, self.number, self.warp, self.tick, block.since, block.count
            )
        return self.epoch

    def told(self) -> Knowledge:
        """Return what another thread knows after this one has told it something, without a fence in between."""
        s = self.state
        return Knowledge(
            s.happened.with_thread(self.number, self.tick), s.released, s.released, s.fenced, s.sources, s.gotten, s.arrived, s.updates
        )

    def passed(self) -> Knowledge:
        """Return what a thread of the same block knows after a barrier of them."""
        s = self.state
        return replace(s, happened=s.happened.with_thread(self.number, self.tick), visible=s.visible.with_thread(self.number, self.tick))


@dataclass(frozen=True, eq=False)
class Came:
    """A member that has called: its thread's state then, and what it tells the others."""

    state: Knowledge
    epoch: Epoch
    site: int
    operands: Operands
    told: Knowledge
    passed: Knowledge
    last: Epoch  #: of its reads that may come after what it tells the others


@dataclass(eq=False)
class _Meeting:
    """A call of a collective: what each member has told the others."""

    number: int  #: of the call in its group
    what: tuple[Any, ...]
    members: tuple[int, ...]
    root: int | None
    came: dict[int, Came] = field(default_factory=dict)


@dataclass(eq=False)
class _Pe:
    """A PE: its host, its kernels, and what streams and events know."""

    host: Thread
    sites: dict[int, SourceLine] = field(default_factory=dict)
    running: _Launch | None = None
    lanes: dict[int, Knowledge] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    meetings: dict[Any, _Meeting] = field(default_factory=dict)  #: by group, the last call
    exchanges: int = 0
    met: int = 0  #: turn of the last exchange
    live: dict[int, Thread] = field(default_factory=dict)  #: threads of the running kernel since their block's last barrier
    events: dict[int, Knowledge] = field(default_factory=dict)
    ends: list[tuple[int, tuple[int, int], int]] = field(default_factory=list)  #: ended launches: first thread, lane, number
    following: tuple[MemoryAccess, ...] | None = None  #: the data of a put_signal whose signal comes next

    @property
    def kernel(self) -> _Launch:
        """The running kernel."""
        if self.running is None:
            raise PgasError("the order checker's log has an event of a kernel where none runs")
        return self.running


class Order:
    """Follows a job. `findings` has what it finds."""

    def __init__(self, race: Race | None = None) -> None:
        """race: receives accesses that nothing orders, in place of `findings`."""
        self.findings = Mistakes(self)
        self._memory = Shadow(race or self.findings.race)
        self._pes: dict[int, _Pe] = {}
        self._words: dict[int, words.SyncWord] = {}
        self._pages_of_words: dict[int, list[int]] = {}
        self._atomics: dict[int, words.CudaAtomics] = {}
        self._meetings: dict[Any, _Meeting] = {}
        self._exchanges: dict[int, dict[int, Knowledge]] = {}
        self._waits: dict[tuple[int, int], tuple[Any, ...]] = {}  #: by thread, its last wait, if that has not ended
        self._split: dict[tuple[int, int], tuple[Clock, tuple[Clock, Clock]]] = {}
        self._states: dict[int, tuple[Knowledge, set[memory.Entry]]] = {}  #: by ID of a state
        self._tick = 0
        self._handlers: dict[int, Callable[..., None]] = {
            log.SITE: self._site, log.MADE: self._made, log.LAUNCH: self._launch, log.ENDED: self._ended, log.MET: self._met,
            log.GRID: self._grid, log.STORE: self._store, log.SAME: partial(self._store, same=True),
            log.ATOMIC: self._cuda_atomic, log.FENCE: self._cuda_fence, log.COMPLETED: self._completed, log.JOB: lambda pe, n: None,
            log.PUT: self._put, log.GET: self._get, log.UPDATE: self._update, log.ACQUIRED: self._acquired, log.FETCHED: self._fetched,
            log.WAITS: lambda pe, thread, *wait: self._waits.__setitem__((pe, thread), wait),
            log.ORDER: self._order, log.ENTER: self._enter, log.LEFT: self._left, log.WAITED: self._waited, log.MEETS: self._meets,
            log.HAS_MET: self._has_met, log.RECORDED: self._recorded, log.AWAITED: self._event_awaited,
        }  # fmt: skip

    @classmethod
    def of(cls, folder: Path, race: Race | None = None) -> "Order":
        """Follow the job whose logs are in a folder. race: see the constructor."""
        order = cls(race)
        horizon = log.Horizon(folder)
        order.follow(log.merged(folder, horizon), horizon.waits_that_ended())
        return order

    def follow(self, parts: Iterable[tuple[int, list[log.Event]]], ended: Collection[tuple[int, int]] = ()) -> None:
        """Take the events of a job in an order in which releases precede what they released: of a PE, and some that follow each other.

        ended: threads, with their PEs, that ended a wait after these events.
        """
        handlers = self._handlers
        with collector.paused():  # Otherwise it takes 40% of the time.
            for pe, events in parts:
                for event in events:
                    if event[0] == log.LOAD:
                        self._load(pe, event)
                    else:
                        handlers[event[0]](pe, *event[1:])
        for thread, wait in self._waits.items():
            if thread not in ended:
                self._never(thread[0], *wait)

    def site(self, access: MemoryAccess) -> SourceLine:
        """Return the line of the program that made an access."""
        return self.site_of(access.epoch.pe, access.site)

    def site_of(self, pe: int, number: int) -> SourceLine:
        """Return a line of the program by its number on a PE."""
        return self._pes[pe].sites[number]

    def index(self, epoch: Epoch) -> int:
        """Return the number of an event's block in its grid."""
        starts = [start for start, _, _ in self._pes[epoch.pe].ends]
        running = self._pes[epoch.pe].running
        first = running.first | epoch.pe << PE_SHIFT if running is not None else -1
        if not 0 <= first <= epoch.block:
            first = starts[bisect_right(starts, epoch.block) - 1]
        return (epoch.block - first) // epoch.count

    @staticmethod
    def place(addr: int) -> tuple[int, int]:
        """Return the PE and the offset in its slot of an address; -1 for other memory."""
        return (-1, 0) if addr & _TAGS or addr >> 64 else (addr - window.BASE >> window.STRIDE_SHIFT, _of_slot(addr))

    @staticmethod
    def owner(addr: int) -> tuple[int, int]:
        """Return the PE whose own memory has an address, and the address there; -1 for a slot."""
        return (addr >> _PE_OF_ADDRESS) - 1, addr & ~_TAGS & (1 << 64) - 1

    # Threads

    def _pe(self, pe: int) -> _Pe:
        found = self._pes.get(pe)
        if found is None:
            number = pe << PE_SHIFT
            launch = _Launch(pe, (pe, -1), 0, number, 1, 1, Knowledge())
            block = launch.blocks[number] = _Block(number, 1, launch, Knowledge())
            host = block.threads[number] = Thread(number, block, Knowledge(), 0)
            found = self._pes[pe] = _Pe(host)
        return found

    def _thread(self, pe: int, number: int) -> Thread:
        of_pe = self._pe(pe)
        if number == 0:
            return of_pe.host
        known = of_pe.live.get(number)
        if known is not None:
            return known
        block = self._block(of_pe.kernel, number)
        full = number | pe << PE_SHIFT
        thread = block.threads.get(full)
        if thread is None:
            thread = block.threads[full] = Thread(full, block, block.state, self._tick)
        of_pe.live[number] = thread
        return thread

    @staticmethod
    def _block(launch: _Launch, number: int) -> _Block:
        first = number - (number - launch.first) % launch.nthreads | launch.pe << PE_SHIFT
        block = launch.blocks.get(first)
        if block is None:
            block = launch.blocks[first] = _Block(first, launch.nthreads, launch, launch.state)
        return block

    def _ticks(self, thread: Thread) -> None:
        """Distinguish a thread's later events from those that it has told others about."""
        self._tick += 1
        thread.tick, thread.epoch = self._tick, None
        thread.changed()

    def _learns(self, thread: Thread, told: Knowledge) -> None:
        """Let a thread know what others have told."""
        state = thread.state | told
        if state is not thread.state:
            thread.state = state
            thread.changed()

    # The program and its kernels

    def _site(self, pe: int, number: int, *told: Any) -> None:
        self._pe(pe).sites[number] = SourceLine(*told)

    def _made(self, pe: int, addr: int, nbytes: int, site: int, shape: tuple[int, ...], itemsize: int, kind: str) -> None:
        self.findings.made(_of_slot(addr), nbytes, shape, itemsize, kind, self._pe(pe).sites[site])
        if nbytes:  # Other PEs may have updated it already, after the exchange in which all made it.
            met = self._pe(pe).met
            self._resets(addr, nbytes, lambda update: update.turn >= met)

    def _launch(self, pe: int, number: int, first: int, nthreads: int, nblocks: int, stream: int, name: str, site: int) -> None:
        of_pe = self._pe(pe)
        host, state = of_pe.host, self._lane(pe, stream)
        count = of_pe.counts[stream] = of_pe.counts.get(stream, 0) + 1
        of_pe.running = _Launch(pe, (pe, stream), count, first, nthreads, nblocks, state)
        self._ticks(host)

    def _ended(self, pe: int, number: int) -> None:
        of_pe = self._pe(pe)
        launch = of_pe.kernel
        blocks = launch.blocks.values()
        for block in blocks:
            if block.together:
                self._met(pe, block.first & _NUMBER, None)
        state = joined([launch.state, *(b.state for b in blocks), *(t.state for b in blocks for t in b.threads.values())])
        first = launch.first | pe << PE_SHIFT
        known = lambda clock: clock.with_launch(launch.lane, launch.number, first, launch.nthreads * launch.nblocks)  # noqa: E731
        state = state.map(known, "happened", "visible")
        of_pe.ends.append((first, launch.lane, launch.number))
        of_pe.running = None
        of_pe.lanes[launch.lane[1]] = replace(state, released=state.visible).every(lambda clock: clock.without(self._launch_of))
        of_pe.live.clear()
        for block in blocks:  # These refer to each other, and follow() collects no garbage.
            block.threads.clear()
        launch.blocks.clear()
        self._states.clear()

    def _launch_of(self, number: int) -> tuple[tuple[int, int], int] | None:
        """Return the lane and the number of the launch of a thread, if it has ended."""
        of_pe = self._pes[number >> PE_SHIFT]
        if (running := of_pe.running) is not None and number >= running.first | number >> PE_SHIFT << PE_SHIFT:
            return None
        at = bisect_right(of_pe.ends, number, key=itemgetter(0)) - 1
        return of_pe.ends[at][1:] if at >= 0 else None

    def _met(self, pe: int, first: int, numbers: list[int] | None) -> None:
        of_pe = self._pe(pe)
        block = self._block(of_pe.kernel, first)
        if numbers is None:
            state = joined([thread.state for thread in block.threads.values()] or [block.state])  # Threads know what their block knew.
            known = lambda clock: clock.with_block(block.first, block.phase, block.first, block.count)  # noqa: E731
            block.state = state.map(known, "happened", "visible")
            if block.together:
                threads = block.threads
                if len(threads) == block.count:
                    block.state = _all_know(block.state, list(threads.values()), block.first | OF_BLOCK)
                for warp in _whole_warps(block, threads):
                    block.state = _all_know(block.state, [threads[number] for number in warp], _of_warp(warp.start))
            waiting = {n: t.pending for n, t in block.threads.items() if t.pending is not None}
            block.phase += 1
            self._tick += 1
            block.since = self._tick
            live = of_pe.live
            for number in block.threads:
                live.pop(number & _NUMBER, None)
            block.threads = {}
            for number, pending in waiting.items():
                block.threads[number] = Thread(number, block, block.state, self._tick, pending)
            return
        threads = {number | pe << PE_SHIFT: self._thread(pe, number) for number in numbers}
        warps = list(_whole_warps(block, threads))
        whole = {number for warp in warps for number in warp}
        state = joined([thread.state if number in whole else thread.passed() for number, thread in threads.items()])
        tick = self._tick
        state = state.map(lambda clock: clock.with_warps(warps, tick), "happened", "visible")
        for warp in warps if block.together else ():
            state = _all_know(state, [threads[number] for number in warp], _of_warp(warp.start))
        for thread in threads.values():
            thread.state = state
            self._ticks(thread)

    def _grid(self, pe: int, number: int) -> None:
        of_pe = self._pe(pe)
        launch = of_pe.kernel
        blocks = [self._block(launch, launch.first + i * launch.nthreads) for i in range(launch.nblocks)]
        for block in blocks:
            self._met(pe, block.first & (1 << PE_SHIFT) - 1, None)
        state = joined([block.state for block in blocks])
        for block in blocks:
            block.state = state
            for thread in block.threads.values():
                thread.state = state

    # Accesses

    def _touch(self, thread: Thread, access: MemoryAccess, addr: int, nbytes: int) -> None:
        if addr:
            self.findings.pending = thread.pending
            self._memory.access(access, thread.state, _global(addr, thread.pe), nbytes)

    def _load(self, pe: int, event: log.Event) -> None:
        _, number, addr, nbytes, site = event
        thread = self._pes[pe].live.get(number) or self._by_host(pe, number)
        if addr in self._words:
            self.findings.awaited(addr)
        access = thread.loads.get(site)
        if access is None:
            access = thread.loads[site] = MemoryAccess(READ, thread.now(), site, "is read")
        self.findings.pending = thread.pending
        if addr & _TAGS:
            addr = _global(addr, pe)
        self._memory.read(access, thread.state, addr, nbytes, thread.settled or self._settled(thread))

    def _store(self, pe: int, number: int, addr: int, nbytes: int, site: int, *, same: bool = False) -> None:
        thread = self._pes[pe].live.get(number) or self._by_host(pe, number)
        key = site, same
        access = thread.stores.get(key)
        if access is None:
            access = thread.stores[key] = MemoryAccess(WRITE, thread.now(), site, "is written", same=same)
        access.state = thread.state
        self.findings.pending = thread.pending
        if addr & _TAGS:
            addr = _global(addr, pe)
        self._memory.write(access, thread.state, addr, nbytes, thread.settled or self._settled(thread))
        last = addr + nbytes - 1
        if not same and (addr >> _PAGE in self._pages_of_words or last >> _PAGE in self._pages_of_words or nbytes > 1 << _PAGE):
            self._resets(addr, nbytes, lambda update: not update.access.ordered_before(thread.state, thread.number, -1))

    def _settled(self, thread: Thread) -> memory.Settled:
        """Return what is found about a thread's accesses in its state. Threads that share a state share what is known of others."""
        state, known = self._states.get(id(thread.state), (None, set()))
        if state is None:
            if len(self._states) == _MOST_STATES:
                self._states.clear()
            self._states[id(thread.state)] = thread.state, known
        thread.settled = memory.Settled(known)
        return thread.settled

    def _resets(self, addr: int, nbytes: int, stays: Callable[[words.WordUpdate], bool]) -> None:
        """Forget updates of words that have been overwritten. stays: whether an update may have come later, so that a wait may see it."""
        for page in range(addr >> _PAGE, (addr + nbytes - 1 >> _PAGE) + 1):
            for word in [w for w in self._pages_of_words.get(page, ()) if addr <= w < addr + nbytes]:
                self._words[word].reset(stays)

    def _by_host(self, pe: int, number: int) -> Thread:
        """Return the thread of an access. The host's copies wait for the default stream, and therefore for all."""
        thread = self._thread(pe, number)
        if number == 0:
            self._waited(pe, None)
        return thread

    def _cuda_atomic(self, pe: int, number: int, addr: int, nbytes: int, site: int, before: int | None) -> None:
        thread = self._thread(pe, number)
        word = _global(addr, pe)
        self.findings.pending = thread.pending
        access = MemoryAccess(WRITE, thread.now(), site, "is changed by an atomic of CUDA", atom=memory.CUDA)
        self._memory.atomic(access, thread.state, word, nbytes)
        atomics = self._atomics.get(word)
        if atomics is None:
            atomics = self._atomics[word] = words.CudaAtomics()
        launch = thread.block.launch
        told = atomics.told_to(launch.lane, launch.number, thread.state)
        if told is not None:
            self._returned(thread, told, joined_later(thread.state.happened, told.happened))
        atomics.add(before, thread.told())
        self._ticks(thread)

    @staticmethod
    def _returned(thread: Thread, told: Knowledge, happened: Clock) -> None:
        """Note what the writers of a value told that an atomic has returned: loads and stores may use it after a fence only.

        happened: what the thread then knows to have happened.
        """
        thread.pending = told if thread.pending is None else thread.pending | told
        state = thread.state
        thread.state = Knowledge(
            happened, state.visible, state.released, state.fenced, state.sources | told.sources, state.gotten, state.arrived, state.updates
        )  # fmt: skip
        thread.changed()

    def _cuda_fence(self, pe: int, number: int, scope: str) -> None:
        thread = self._thread(pe, number)
        if scope != "block":
            self._fence(thread)

    def _put(
        self, pe: int, turn: int, number: int, site: int, to: int, dest: int, source: int, nbytes: int, count: int, dest_step: int,
        source_step: int, nbi: bool, signal: bool, width: int,
    ) -> None:  # fmt: skip
        thread = self._thread(pe, number)
        epoch = _of_all(thread, width) if nbi else thread.now()
        reads = MemoryAccess(SOURCE if nbi else READ, epoch, site, "is read by a put")
        writes = MemoryAccess(REMOTE, epoch, site, "is written by a put", to)
        if nbi:
            reads.pe = to
        if signal:
            self._pe(pe).following = reads, writes
        for i in range(count):
            self._touch(thread, reads, source and source + i * source_step, nbytes)
            self._touch(thread, writes, dest and dest + i * dest_step, nbytes)

    def _get(
        self, pe: int, turn: int, number: int, site: int, origin: int, dest: int, source: int, nbytes: int, count: int, dest_step: int,
        source_step: int, nbi: bool, width: int,
    ) -> None:  # fmt: skip
        thread = self._thread(pe, number)
        epoch = _of_all(thread, width) if nbi else thread.now()
        reads = MemoryAccess(FROM if nbi else READ, epoch, site, "is read by a get", origin)
        writes = MemoryAccess(GOT if nbi else WRITE, epoch, site, "is written by a get", origin if nbi else -1, state=thread.state)
        for i in range(count):
            self._touch(thread, reads, source and source + i * source_step, nbytes)
            self._touch(thread, writes, dest and dest + i * dest_step, nbytes)

    # Words

    def _word(self, addr: int) -> words.SyncWord:
        word = self._words.get(addr)
        if word is None:
            word = self._words[addr] = words.SyncWord(addr)
            self._pages_of_words.setdefault(addr >> _PAGE, []).append(addr)
        return word

    def _update(
        self, pe: int, turn: int, number: int, site: int, to: int, addr: int, nbytes: int, kind: int, value: int | None, fetches: bool,
        before: int = 0, width: int = 0,
    ) -> None:  # fmt: skip
        thread, of_pe = self._thread(pe, number), self._pe(pe)
        reads = kind == log.ATOMIC_OTHER and value is None and fetches
        form, verb = (READ, "is read") if reads else (REMOTE, "is written" if kind == log.PLAIN else "is changed")
        access = MemoryAccess(form, _of_all(thread, width), site, verb, to, memory.READS if reads else _ATOMS[kind])
        update = words.WordUpdate(access, kind, value, thread.state, self._sent(thread, to), turn, addr, before)
        if not reads:
            self._word(addr).add(update)
            self.findings.sent(update, addr, signal=update.is_signal)
        else:
            self.findings.awaited(addr)
        if of_pe.following is not None:
            for moved in of_pe.following:
                moved.chain, moved.number = access.chain, access.number
            of_pe.following = None
        self._touch(thread, access, addr, nbytes)
        self._ticks(thread)

    def _sent(self, thread: Thread, to: int) -> Knowledge:
        """Return what a thread knows that sees an operation of this one on a PE: also that those before its fence have arrived there.

        Fences of other PEs, of which the thread has learned, order nothing before operations of its own PE.
        """
        told = thread.told()
        return told | Knowledge(arrived={to: self._parts(thread.state.fenced, thread.pe)[0]})

    def _fetched(self, pe: int, turn: int, number: int, site: int, addr: int) -> None:
        thread = self._thread(pe, number)
        word = self._word(addr)
        mine = next((update for update in reversed(word.updates) if update.access.epoch.thread == thread.number), None)
        if mine is not None:
            thread.state = thread.state | mine.arrival
        told = word.told(turn)
        self._returned(thread, told, thread.state.happened | told.happened)

    def _acquired(
        self, pe: int, turn: int, number: int, site: int, addr: int, nbytes: int, comparison: int | None, value: int, found: int
    ) -> None:
        thread = self._thread(pe, number)
        self._waits.pop((pe, number), None)
        self.findings.awaited(addr)
        word = self._words.get(addr)
        told = Knowledge()
        if word is not None:
            issued, arrived = word.seen(turn, comparison, value)
            told = words.joined(word.earlier or told, issued)
            for update in arrived:
                told = told | update.arrival
        if (atomics := self._atomics.get(_global(addr, pe))) is not None:
            told = told | atomics.seen(comparison, value)
        for writer in self._memory.writers(addr):  # A thread of this PE has stored the value, or a put of several elements.
            if writer.kind == WRITE and writer.state is not None and writer.epoch.thread != thread.number:
                told = told | replace(writer.state, visible=writer.state.released)
            elif writer.kind == REMOTE and "put" in writer.what:
                self.findings.saw_put(thread.now(), writer)
        self.findings.saw(thread.now(), told, site)
        self._learns(thread, told)
        self._takes_pending(thread)  # Most often, what the word has told includes it.

    def _never(self, pe: int, site: int, comparison: int, every: bool, wanted: tuple[tuple[int, int, int, int], ...]) -> None:
        """Report a wait that has not ended if no write that was made could end it."""
        never = []
        for addr, nbytes, found, value in wanted:
            self.findings.awaited(addr)
            by_kernel = any((w.kind == WRITE and w.epoch.launch > 0) or "put" in w.what for w in self._memory.writers(addr))
            updates = self.findings.updates(addr)
            before = min(updates, key=lambda u: u.turn).before if updates else found
            if not by_kernel and words.can_hold(updates, before, nbytes, comparison, value) is False:
                never.append((addr, found, value, updates))
        if never and (every or len(never) == len(wanted)):
            self.findings.never(self._pe(pe).sites[site], pe, comparison, *never[0])

    @staticmethod
    def _takes_pending(thread: Thread) -> None:
        if thread.pending is not None:
            thread.state, thread.pending = thread.state | thread.pending, None
            thread.changed()

    # Order

    def _issued(self, thread: Thread) -> Clock:
        """Return the events of this PE that happen before what the thread does now."""
        return self._parts(thread.state.happened, thread.pe)[0].with_thread(thread.number, thread.tick)

    def _parts(self, clock: Clock, pe: int) -> tuple[Clock, Clock]:
        """Return the parts of a clock about one PE and about the others. Most threads share their clocks, so the last ones are kept."""
        known = self._split.get((id(clock), pe))
        if known is None:
            if len(self._split) > _MOST_SPLIT:
                self._split.clear()
            known = self._split[id(clock), pe] = clock, (clock.of_pe(pe), clock.of_others(pe))
        return known[1]

    def _with(self, clock: Clock, issued: Clock, pe: int) -> Clock:
        """Return a clock that also knows of what this PE has issued, which covers all that it knew of this PE."""
        return self._parts(clock, pe)[1] | issued

    def _fence(self, thread: Thread) -> None:
        self._takes_pending(thread)
        s = thread.state
        thread.state = replace(
            s, released=s.visible.with_thread(thread.number, thread.tick), fenced=self._with(s.fenced, self._issued(thread), thread.pe)
        )
        self._ticks(thread)

    def _order(self, pe: int, turn: int, number: int, site: int, what: str, to: int | None) -> None:
        thread = self._thread(pe, number)
        if what == "flush":
            thread.state = replace(thread.state, sources=self._with(thread.state.sources, self._issued(thread), pe))
            self._ticks(thread)
        elif what == "fence":
            self._fence(thread)
        else:
            self._quiet(thread, to)

    def _quiet(self, thread: Thread, to: int | None) -> None:
        """Complete the operations of a thread, and those of this PE that happen before: to one PE, or to all (None)."""
        issued, pe = self._issued(thread), thread.pe
        if to is None:
            self._fence(thread)
        s = thread.state
        arrived = dict(s.arrived)
        for target in self._pes if to is None else (to, memory.gets_from(to)):
            arrived[target] = self._with(arrived[target], issued, pe) if target in arrived else issued
        if to is None:
            s = replace(s, sources=self._with(s.sources, issued, pe), gotten=self._with(s.gotten, issued, pe))
        thread.state = replace(s, arrived=arrived)
        self._ticks(thread)

    # Collectives

    def _enter(
        self, pe: int, turn: int, number: int, site: int, group: Any, what: tuple[Any, ...], members: tuple[int, ...], dest: int,
        dest_bytes: int, source: int, source_bytes: int, root: int | None, part: tuple[int, int] | None, rows: Any, limit: int,
    ) -> None:  # fmt: skip
        thread, of_pe = self._thread(pe, number), self._pe(pe)
        last = of_pe.meetings.get(group)
        count = 1 if last is None else last.number + 1
        call: tuple[Any, ...] = (group, members, count)
        meeting = self._meetings.get(call)
        if meeting is None:
            meeting = self._meetings[call] = _Meeting(count, what, members, None if root is None else members[root])
        of_pe.meetings[group] = meeting
        if meeting.what != what:
            self.findings.mismatch(meeting.what, what, pe, of_pe.sites[site])
        if what[0] in _COMPLETING:
            self._quiet(thread, None)
        state, epoch, told, passed = thread.state, thread.now(), thread.told(), thread.passed()
        self._ticks(thread)
        operands = Operands(dest, dest_bytes, source, source_bytes, part, rows)
        meeting.came[pe] = came = Came(state, epoch, site, operands, told, passed, thread.now())
        if what[0] in _BARRIERS:
            return
        if meeting.root in (None, pe):
            access = MemoryAccess(READ, came.last, site, f"is read by {what[0]}", call=call, began=came.epoch)
            for offset, nbytes in collectives.read(what[0], came.operands, len(members)):
                self._touch_for(came.state, access, source + offset, nbytes)
        if collectives.is_staged(what[0], came.operands, len(members), limit):
            self._receives(meeting, call, pe)
        elif meeting.root == pe or (meeting.root is None and len(meeting.came) == len(members)):
            self._moves(meeting, call, members if meeting.root is None else (meeting.root,))

    def _receives(self, meeting: _Meeting, call: Any, pe: int) -> None:
        """Note the stores of a member to its own dest, of messages that go through staging."""
        name, (group, members, count) = meeting.what[0], call
        came, me = meeting.came[pe], members.index(pe)
        writers = range(len(members)) if meeting.root is None else (members.index(meeting.root),)
        access = MemoryAccess(REMOTE, came.epoch, came.site, f"is written by {name}", pe, "", (group, members, pe, pe), count, call)
        for writer in writers:
            for offset, nbytes in collectives.written(name, writer, me, [came.operands] * len(members)):
                self._touch_for(came.state, access, came.operands.dest + offset, nbytes)

    def _moves(self, meeting: _Meeting, call: Any, writers: tuple[int, ...]) -> None:
        """Note the stores of members to the dest of every member."""
        name, (group, members, count) = meeting.what[0], call
        operands = {pe: came.operands for pe, came in meeting.came.items()}
        for member in members:
            for writer in sorted(writers, key=lambda pe: pe == member):  # Itself last: it knows what of its own the others may not.
                came = meeting.came[writer]
                access = MemoryAccess(
                    REMOTE, came.epoch, came.site, f"is written by {name}", member, "", (group, members, writer, member), count, call
                )
                to = operands.get(member, came.operands)
                for offset, nbytes in collectives.written(
                    name, members.index(writer), members.index(member), [operands.get(m, to) for m in members]
                ):
                    state = came.state
                    in_place = to.dest == to.source and meeting.root is None
                    if in_place and member in meeting.came:  # What is in dest is needed first, so that the member has called.
                        state = state | meeting.came[member].passed
                    self._touch_for(state, access, _of_slot(to.dest) + offset | window.slot(member), nbytes)

    def _touch_for(self, state: Knowledge, access: MemoryAccess, addr: int, nbytes: int) -> None:
        self.findings.pending = None
        self._memory.access(access, state, addr, nbytes)

    def _left(self, pe: int, turn: int, number: int, width: int, site: int, group: Any) -> None:
        of_pe, thread = self._pe(pe), self._thread(pe, number)
        meeting = of_pe.meetings.get(group)
        if meeting is None:  # The call has failed.
            return
        told = Knowledge()
        members = meeting.members[: meeting.members.index(pe) + 1] if meeting.what[0] in collectives.SCANS else meeting.members
        name = meeting.what[0]
        empty = name not in _BARRIERS and collectives.is_empty(name, meeting.came[pe].operands, len(meeting.members))
        for member, came in () if empty else meeting.came.items():
            if member in members and (meeting.root in (None, member) or member == pe):
                told = told | came.told | Knowledge(updates={(group, meeting.members, member, pe): meeting.number})  # type: ignore[dict-item]
        self.findings.saw(thread.now(), told, site)
        own = meeting.came[pe].last
        told = told | Knowledge(happened=Clock().with_thread(own.thread, own.tick))
        block = thread.block
        threads = [thread]
        if width == WARP_SIZE < block.count:
            first = number - ((thread.number - block.first) % WARP_SIZE)
            last = min(first + WARP_SIZE, (block.first & (1 << PE_SHIFT) - 1) + block.count)
            threads = [self._thread(pe, n) for n in range(first, last)]
        elif width:
            threads, block.state = list(block.threads.values()), block.state | told
        for each in threads:
            self._takes_pending(each)
            self._learns(each, told)

    # The host

    def _waited(self, pe: int, stream: int | None) -> None:
        of_pe = self._pe(pe)
        for lane, state in of_pe.lanes.items():
            if stream in (None, 0, lane):
                self._learns(of_pe.host, state)
                of_pe.lanes[lane] = Knowledge()  # Later kernels know what the host knows.

    def _recorded(self, pe: int, event: int, stream: int) -> None:
        self._pe(pe).events[event] = self._lane(pe, stream)

    def _event_awaited(self, pe: int, event: int, stream: int | None) -> None:
        of_pe = self._pe(pe)
        told = of_pe.events.get(event, Knowledge())
        if stream is None:
            self._learns(of_pe.host, told)
        else:
            of_pe.lanes[stream] = of_pe.lanes.get(stream, Knowledge()) | told

    def _lane(self, pe: int, stream: int) -> Knowledge:
        """Return what a kernel that is now launched on a stream knows."""
        of_pe = self._pe(pe)
        passed = of_pe.host.passed()
        state = replace(passed, released=passed.visible) | of_pe.lanes.get(stream, Knowledge())
        for other, left in of_pe.lanes.items():
            if 0 in (stream, other):  # The default stream waits for the others, and they for it.
                state = state | left
        return state

    def _completed(self, pe: int, turn: int) -> None:
        self._waited(pe, None)
        host = self._pe(pe).host
        self._quiet(host, None)

    def _meets(self, pe: int, turn: int) -> None:
        of_pe = self._pe(pe)
        host = of_pe.host
        passed = host.passed()
        of_pe.exchanges, of_pe.met = of_pe.exchanges + 1, turn
        self._exchanges.setdefault(of_pe.exchanges, {})[pe] = replace(passed, released=passed.visible)
        self._ticks(host)

    def _has_met(self, pe: int, turn: int) -> None:
        of_pe = self._pe(pe)
        for told in self._exchanges[of_pe.exchanges].values():
            self._learns(of_pe.host, told)
        of_pe.host.state = of_pe.host.state.every(lambda clock: clock.without(self._launch_of))


def _of_all(thread: Thread, width: int) -> Epoch:
    """Return the epoch of a non-blocking operation of a warp or block. One thread knows of all parts only after the threads have met."""
    epoch = thread.now()
    if not width or thread.block.count == 1:
        return epoch
    thread.block.together = True
    together = _of_warp(epoch.thread) if width == WARP_SIZE else epoch.thread | OF_BLOCK
    return replace(epoch, thread=together, warp=together)


def _whole_warps(block: _Block, threads: Container[int]) -> Iterator[range]:
    """Yield the numbers of the threads of each warp all of whose threads are among these."""
    last = block.first + block.count
    for leader in range(block.first, last, WARP_SIZE):
        warp = range(leader, min(leader + WARP_SIZE, last))
        if all(number in threads for number in warp):
            yield warp


def _all_know(state: Knowledge, threads: list[Thread], all_of_them: int) -> Knowledge:
    """Return a state that knows what each of these threads has completed of its own part of an operation of all of them."""

    def change(clock: Clock) -> Clock:
        tick = min(clock.tick_of(thread.number, thread.warp) for thread in threads)
        return clock if tick < 0 else clock.with_thread(all_of_them, tick)

    arrived = {pe: change(clock) for pe, clock in state.arrived.items()}
    return replace(state.map(change, "fenced", "sources", "gotten"), arrived=arrived)


def _of_warp(leader: int) -> int:
    return leader | OF_WARP


def _global(addr: int, pe: int) -> int:
    """Return an address that no other memory of the job has."""
    return addr | pe + 1 << _PE_OF_ADDRESS if addr & _TAGS else addr


def _of_slot(addr: int) -> int:
    return addr & (1 << window.STRIDE_SHIFT) - 1
