"""Shadow memory: for each word, its last write and the reads since, to find accesses that nothing orders."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pgas.check.clocks import PE_SHIFT, Epoch
from pgas.check.state import Chain, Knowledge

#: Kinds of access: by the thread itself; to a PE by an operation, which takes effect later; by non-blocking operations, of their source,
#: of what a get writes, and of what a get reads.
READ, WRITE, REMOTE, SOURCE, GOT, FROM = range(6)

_WRITES = frozenset({WRITE, REMOTE, GOT})

#: Classes of atomic accesses. Those of one class are atomic with respect to each other, and reads to all of pgas.
CUDA, PGAS, SETS, READS = "an atomic of CUDA", "an atomic", "a signal that sets", "an atomic read"

_PAGE_SHIFT = 12
#: Maximum size of an element in bytes. The host's copies are larger.
_ELEMENT = 16
_PAGE = 1 << _PAGE_SHIFT
#: Shadow cells are 4 bytes, on pages with smaller accesses 1 byte.
_WORD_SHIFT = 2
#: Maximum number of accesses of the threads of a block between two barriers that a cell keeps, and of all.
_OF_PHASE, _OF_CELL = 2, 24


@dataclass(eq=False, slots=True)
class MemoryAccess:
    """An access to memory. pe: the PE whose memory it is, for operations."""

    kind: int
    epoch: Epoch
    site: int
    what: str
    pe: int = -1
    atom: str = ""
    chain: Chain | None = None  #: of the update whose arrival tells that this one has arrived
    number: int = 0
    call: Any = None  #: call of a collective, whose members' accesses do not race
    state: Knowledge | None = None  #: of the thread that wrote
    same: bool = False  #: whether the store changed nothing
    began: Epoch | None = None  #: of a collective's read, which lasts until its member returns: where the member called
    made_in: tuple[Any, ...] | None = None  #: what its thread knew, for a CUDA atomic (Shadow.atomic)

    @property
    def remote(self) -> int:
        """PE of an operation that changes or atomically reads its memory, else -1."""
        return self.pe if self.kind == REMOTE or self.atom == READS else -1

    def ordered_before(self, state: Knowledge, thread: int, remote_pe: int, call: Any = None) -> bool:
        """Whether this access is complete before one that a thread in a state makes.

        Args:
            remote_pe: PE of an operation, else -1.
            call: call of a collective that makes the other access.
        """
        kind, epoch = self.kind, self.epoch
        if kind == READ:
            if self.began is not None and call is not None and call[:2] == self.call[:2]:  # Calls on one channel follow each other.
                epoch = self.began
            return epoch.thread == thread or state.happened.covers(epoch)
        if kind == WRITE:
            if epoch.thread == thread or state.visible.covers(epoch):
                return True
            return remote_pe >= 0 and state.happened.covers(epoch)  # An operation that comes later is not overtaken by a store.
        if kind == REMOTE or (kind == SOURCE and not state.sources.covers(epoch)):  # Data that has arrived has been read.
            arrived = state.arrived.get(self.pe)
            if arrived is not None and arrived.covers(epoch):
                return True
            if self.chain is not None and state.updates.get(self.chain, -1) >= self.number:
                return True
            # Only a fence of the PE that made this access orders it, although other PEs may know of that fence.
            return kind == REMOTE and remote_pe == self.pe and epoch.pe == thread >> PE_SHIFT and state.fenced.covers(epoch)
        if kind == SOURCE:
            return True
        of_pe = state.arrived.get(gets_from(self.pe))
        return state.gotten.covers(epoch) or (of_pe is not None and of_pe.covers(epoch))

    def conflicts(self, other: "MemoryAccess") -> bool:
        """Whether two accesses to the same bytes must be ordered; one of them writes."""
        if self.call is not None and other.call is not None:
            if self.call == other.call:
                return False
            if self.kind == other.kind == REMOTE and self.call[:2] == other.call[:2]:
                return False  # Calls on one channel follow each other.
        if other.same and self.kind == other.kind == WRITE and self.epoch.launch == other.epoch.launch:
            return False  # Threads of a kernel may store the same value.
        if not self.atom or not other.atom:
            return True
        return self.atom != other.atom and READS not in (self.atom, other.atom)


def gets_from(pe: int) -> int:
    """Return the key in `Knowledge.arrived` of gets from a PE, which quiet of that PE completes, but no fence and signal."""
    return -2 - pe


Entry = MemoryAccess | tuple[MemoryAccess, ...] | None
Race = Callable[[MemoryAccess, MemoryAccess, int, Knowledge], None]


@dataclass(slots=True)
class Settled:
    """What was found about the accesses of cells and those of one thread, for as long as its state is the same."""

    known: set[Entry]  #: accesses of others that are ordered before the loads and stores of every thread in this state
    own: set[Entry] = field(default_factory=set)  #: likewise, but some are of this thread
    kept: dict[tuple[Entry, MemoryAccess], Entry] = field(default_factory=dict)  #: by earlier reads and a load, what a cell then has

    def order(self, entry: Entry, thread: int) -> None:
        """Note that the accesses of a cell are ordered before those of a thread."""
        (self.own if any(access.epoch.thread == thread for access in _members(entry)) else self.known).add(entry)


@dataclass(slots=True)
class _Page:
    shift: int = _WORD_SHIFT
    writes: list[Entry] = field(default_factory=lambda: [None] * (_PAGE >> _WORD_SHIFT))
    reads: list[Entry] = field(default_factory=lambda: [None] * (_PAGE >> _WORD_SHIFT))

    def refine(self) -> None:
        """Use cells of one byte from now on."""
        for cells in (self.writes, self.reads):
            cells[:] = [entry for entry in cells for _ in range(1 << self.shift)]
        self.shift = 0


class Shadow:
    """The shadow of all memory that threads share.

    Args:
        race: function of two accesses that nothing orders, the earlier one first, an address, and the state of the later one's thread.
    """

    def __init__(self, race: Race) -> None:
        self._pages: dict[int, _Page] = {}
        self._race = race

    def access(self, new: MemoryAccess, state: Knowledge, addr: int, nbytes: int) -> None:
        """Check an access against earlier ones, and note it."""
        thread, remote = new.epoch.thread, new.remote
        writes = new.kind in _WRITES
        following = addr
        for page, lo, hi in self._cells(addr, nbytes):
            first, following = following, following + (hi - lo << page.shift)
            self._check(page.writes, lo, hi, new, state, remote, first, page.shift)
            if not writes:
                _update(page.reads, lo, hi, lambda old: _with(old, new, state, thread, remote))
                continue
            self._check(page.reads, lo, hi, new, state, remote, first, page.shift)
            if new.atom:
                _update(page.writes, lo, hi, lambda old: _with(old, new, state, thread, remote))
                _update(page.reads, lo, hi, lambda old: _atomic_reads(old, state, thread, remote))
            else:
                page.writes[lo:hi] = [new] * (hi - lo)
                page.reads[lo:hi] = [None] * (hi - lo)

    def read(self, new: MemoryAccess, state: Knowledge, addr: int, nbytes: int, settled: Settled) -> None:
        """Check and note a load, faster than access() for an element in cells of 4 bytes. settled: of the thread in this state."""
        page = self._pages.get(addr >> _PAGE_SHIFT)
        if page is None or not page.shift or (addr | nbytes) & 3 or nbytes > _ELEMENT or (addr & _PAGE - 1) + nbytes > _PAGE:
            self.access(new, state, addr, nbytes)
            return
        reads, cell, told = page.reads, (addr & _PAGE - 1) >> _WORD_SHIFT, None
        end = cell + (nbytes >> _WORD_SHIFT)
        while cell < end:
            old = reads[cell]
            if old is not new:  # Otherwise no write came since, because it would have removed this.
                written = page.writes[cell]
                if written is not None and written is not told and written not in settled.known and written not in settled.own:
                    if self._tell(written, new, state, -1, addr + nbytes - (end - cell << _WORD_SHIFT)):
                        settled.order(written, new.epoch.thread)
                    told = written
                if old is None:
                    reads[cell] = new
                else:
                    key = old, new
                    if (kept := settled.kept.get(key)) is None:
                        kept = settled.kept[key] = _with(old, new, state, new.epoch.thread, -1)
                    reads[cell] = kept
            cell += 1

    def write(self, new: MemoryAccess, state: Knowledge, addr: int, nbytes: int, settled: Settled) -> None:
        """Check and note a store, faster than access() for an element in cells of 4 bytes. settled: of the thread in this state."""
        page = self._pages.get(addr >> _PAGE_SHIFT)
        if page is None or not page.shift or (addr | nbytes) & 3 or nbytes > _ELEMENT or (addr & _PAGE - 1) + nbytes > _PAGE:
            self.access(new, state, addr, nbytes)
            return
        cell, told = (addr & _PAGE - 1) >> _WORD_SHIFT, []
        end = cell + (nbytes >> _WORD_SHIFT)
        while cell < end:
            for old in (page.writes[cell], page.reads[cell]):
                if old is not None and old is not new and old not in settled.known and old not in settled.own and old not in told:
                    at = addr + nbytes - (end - cell << _WORD_SHIFT)
                    if self._tell(old, new, state, -1, at) and not new.same:  # The same value may be stored without an order.
                        settled.order(old, new.epoch.thread)
                    told.append(old)
            page.writes[cell], page.reads[cell] = new, None
            cell += 1

    def atomic(self, new: MemoryAccess, state: Knowledge, addr: int, nbytes: int) -> None:
        """Check and note an atomic of CUDA, faster than access() if the last one of the word was made in the same state.

        That is, whatever the threads know to have happened, the same stores and operations are complete for them. Then the accesses that
        were not ordered before the last one are not ordered before the new one either, except for those of its own thread.
        """
        page = self._pages.get(addr >> _PAGE_SHIFT)
        if page is None or not page.shift or (addr | nbytes) & 3 or nbytes > _ELEMENT or (addr & _PAGE - 1) + nbytes > _PAGE:
            self.access(new, state, addr, nbytes)
            return
        cell = (addr & _PAGE - 1) >> _WORD_SHIFT
        end = cell + (nbytes >> _WORD_SHIFT)
        old = page.writes[cell]
        members = _members(old)
        made_in = members[-1].made_in if members else None
        if (
            made_in is None
            or made_in[0] is not state.visible
            or made_in[1] is not state.arrived
            or made_in[2] is not state.updates
            or made_in[3] is not state.fenced
            or any(entry is not old for entry in page.writes[cell:end])
            or any(page.reads[cell:end])
        ):
            self.access(new, state, addr, nbytes)
            if all(access.atom == new.atom for access in _members(page.writes[cell])):
                new.made_in = state.visible, state.arrived, state.updates, state.fenced
            return
        thread, block, phase = new.epoch.thread, new.epoch.block, new.epoch.phase
        kept, of_phase = [], 0
        for access in members:
            epoch = access.epoch
            if epoch.thread == thread:
                continue
            if epoch.block == block and epoch.phase == phase:
                of_phase += 1
                if of_phase >= _OF_PHASE:
                    continue
            kept.append(access)
        new.made_in = made_in
        page.writes[cell:end] = [(*kept[-_OF_CELL:], new) if kept else new] * (end - cell)

    def writers(self, addr: int) -> tuple[MemoryAccess, ...]:
        """Return the last writes of the word at an address."""
        page, lo, _ = next(self._cells(addr, 1 if addr % 4 else 4))
        return _members(page.writes[lo])

    def _cells(self, addr: int, nbytes: int) -> Iterator[tuple[_Page, int, int]]:
        end = addr + nbytes
        while addr < end:
            number = addr >> _PAGE_SHIFT
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = _Page()
            last = min(end, (number + 1) << _PAGE_SHIFT)
            if page.shift and (addr | last) & 3:
                page.refine()
            base = number << _PAGE_SHIFT
            yield page, addr - base >> page.shift, last - base >> page.shift
            addr = last

    def _check(
        self, cells: list[Entry], lo: int, hi: int, new: MemoryAccess, state: Knowledge, remote: int, addr: int, shift: int
    ) -> None:  # fmt: skip
        """Tell of the accesses in cells that are not ordered before a new one. addr: address of the first cell."""
        for entry in (cells[lo],) if hi - lo == 1 else dict.fromkeys(cells[lo:hi]):
            if entry is not None and entry is not new:
                for old in _unordered(entry, new, state, remote):
                    self._race(old, new, addr + (cells.index(entry, lo, hi) - lo << shift), state)

    def _tell(self, entry: Entry, new: MemoryAccess, state: Knowledge, remote: int, addr: int) -> bool:
        """Tell of the accesses of a cell that are not ordered before a new one; return whether all are."""
        racing = _unordered(entry, new, state, remote)
        for old in racing:
            self._race(old, new, addr, state)
        return not racing


def _members(entry: Entry) -> tuple[MemoryAccess, ...]:
    return () if entry is None else entry if type(entry) is tuple else (entry,)  # type: ignore[return-value]


def _unordered(entry: Entry, new: MemoryAccess, state: Knowledge, remote: int) -> list[MemoryAccess]:
    """Return the accesses of a cell that race with a new one."""
    thread = new.epoch.thread
    if new.atom:  # Most often, what is there is also atomic.
        return [old for old in _members(entry) if old.conflicts(new) and not old.ordered_before(state, thread, remote, new.call)]
    return [old for old in _members(entry) if not old.ordered_before(state, thread, remote, new.call) and old.conflicts(new)]


def _atomic_reads(entry: Entry, state: Knowledge, thread: int, remote: int) -> Entry:
    """Return the atomic reads of a cell that are not ordered before an atomic update: a later store may still race with them."""
    return tuple(old for old in _members(entry) if old.atom == READS and not old.ordered_before(state, thread, remote)) or None


def _update(cells: list[Entry], lo: int, hi: int, change: Callable[[Entry], Entry]) -> None:
    if hi - lo == 1:
        cells[lo] = change(cells[lo])
        return
    changed: dict[Entry, Entry] = {}
    for entry in set(cells[lo:hi]):
        changed[entry] = change(entry)
    cells[lo:hi] = [changed[entry] for entry in cells[lo:hi]]


def _with(old: Entry, new: MemoryAccess, state: Knowledge, thread: int, remote: int) -> Entry:
    """Return the accesses of a cell that later ones must be ordered after: those that are not ordered before the new one, and this."""
    if old is None or old is new:
        return new
    if isinstance(old, MemoryAccess):
        return new if old.ordered_before(state, thread, remote) else (old, new)
    kept, of_phase = [], 0
    for access in old:
        if access is new:
            return old
        if access.ordered_before(state, thread, remote):
            continue
        if access.epoch.block == new.epoch.block and access.epoch.phase == new.epoch.phase and access.kind == new.kind:
            of_phase += 1
            if of_phase >= _OF_PHASE:
                continue
        kept.append(access)
    return (*kept[-_OF_CELL:], new) if kept else new
