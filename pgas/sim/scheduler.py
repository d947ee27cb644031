"""How the threads of a kernel take turns: threads, blocks, the queue of runnable threads, and idle rounds.

A thread that waits switches to the next runnable one. The *hub* is the greenlet that launched the kernel. It idles when all runnable
threads are spinning, reports deadlocks, and ends the launch. It also starts new threads, because a greenlet's C stack begins where it is
started, so that threads that started each other would nest without bound.
"""

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from pgas.base.errors import DeadlockError, PgasError
from pgas.base.text import ranges
from pgas.sim import activity

WARP_SIZE = 32
FULL_MASK = 0xFFFFFFFF

# Number of idle rounds that only yield the core. Then the engine sleeps, 1 us doubling to 50 us (Linux adds its timer slack of 50 us).
_YIELD_ROUNDS = 200
_MAX_SLEEP_S = 50e-6
# A round in which a thread was preempted at work is not idle. Idle hooks run in one of this many such rounds.
_BUSY_ROUNDS_PER_HOOK = 16
# Maximum number of idle greenlets to keep: a new one takes 20 us, an idle one 20 KB.
_MAX_IDLE_WORKERS = 1024

# Maximum number of lines of a report for kinds of blocks, and for kinds of waits.
_MAX_LINES = 8

Index = tuple[int, int, int]

#: The goal of a wait. In a spin loop: a text, or a function that returns it. In a barrier or warp operation: (operation, mask or None).
#: None: the thread is not waiting.
WaitsFor = str | Callable[[], str] | tuple[str, int | None] | None

#: Names and values of the arguments of a call.
Arguments = tuple[tuple[str, ...], Sequence[Any]]


class ScheduleObserver(Protocol):
    """Events of the schedule that a memory model receives (see `pgas.sim.weak`)."""

    def threads_synced(self, threads: Iterable["SimThread"]) -> None:
        """These threads of one block met in a barrier or a warp operation."""

    def grid_synced(self) -> None:
        """All threads of the grid met."""

    def step(self) -> None:
        """A thread yields. An exception raised here ends the launch."""

    def launch_ended(self, failed: bool) -> None:
        """The kernel is over; failed: by an error or an interrupt."""


class ThreadWatcher(Protocol):
    """Events of kernels that a checker of programs receives (see `pgas.sim.watch`)."""

    def launch_started(self, launch: "Launch", stream: Any) -> None:
        """A kernel is about to run in the order of a stream."""

    def launch_ended(self, launch: "Launch") -> None:
        """The kernel is over."""

    def threads_synced(self, block: "Block", threads: Sequence["SimThread"], *, whole: bool) -> None:
        """These threads of a block met; whole: in a barrier of the block."""

    def grid_synced(self, launch: "Launch") -> None:
        """All threads of the grid met."""


class SimThread:
    """One CUDA thread. `linear` is its index in the block, in which x varies fastest, like in hardware."""

    __slots__ = ("arguments", "block", "linear", "waiting_for", "worker")

    def __init__(self, block: "Block", linear: int) -> None:
        self.block = block
        self.linear = linear
        self.arguments: Arguments = ((), ())  #: of its last call that a warp or block makes together
        self.waiting_for: WaitsFor = None  #: why it is not running, for reports; stale while it runs
        self.worker: Worker | None = None

    @property
    def lane(self) -> int:
        return self.linear % WARP_SIZE

    @property
    def thread_index(self) -> Index:
        return self.block.launch.thread_indices[self.linear]

    def __repr__(self) -> str:
        return f"block {list(self.block.index)} thread {list(self.thread_index)}"


class Rendezvous:
    """Threads that wait for each other, and the value that each brought."""

    __slots__ = ("calls", "firsts", "values", "workers")

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.values: dict[int, Any] = {}
        self.calls: dict[str, int] = {}  #: by operation that begins with a barrier, number of threads that came for it
        self.firsts: dict[str, SimThread] = {}  #: by operation that begins with a barrier, the first of these threads


class Gathering:
    """Lanes of a warp that arrived at one place in the program."""

    __slots__ = ("closed", "keys", "mask")

    def __init__(self) -> None:
        self.mask = 0
        self.keys: dict[int, Any] = {}  #: key of each lane
        self.closed = False


class Block:
    """One resident block: barrier, warps, shared memory."""

    __slots__ = ("alive", "barrier", "gatherings", "grid_waiters", "index", "lanes", "launch", "linear", "shared", "threads", "warps")

    def __init__(self, launch_: "Launch", linear: int, index: Index) -> None:
        self.launch = launch_
        self.linear = linear
        self.index = index
        self.alive = launch_.nthreads  #: number of threads that have not returned, including those that have not started
        self.threads: dict[int, SimThread] = {}  #: threads that have started and not returned
        self.barrier = Rendezvous()
        self.grid_waiters: list[Worker] = []
        self.lanes = launch_.lanes[:]  #: by warp, the mask of lanes that have not returned
        self.warps: dict[int, dict[tuple[str, int], Rendezvous]] = {}  #: by warp, then by operation and mask, the waiting lanes
        self.gatherings: dict[tuple[Any, ...], Gathering] = {}  #: by warp and place in the program, the one that is open
        self.shared: dict[Any, Any] = {}  #: shared memory, which belongs to pgas.sim.cuda_module

    def release_barrier(self) -> None:
        """Make all threads runnable, because all have come."""
        met, self.barrier = self.barrier, Rendezvous()
        self.launch.release(met.workers)
        if self.launch.observer is not None:
            self.launch.observer.threads_synced([w.thread for w in met.workers])
        if self.launch.watcher is not None:
            self.launch.watcher.threads_synced(self, [w.thread for w in met.workers], whole=True)

    def release_warp(self, warp: int, key: tuple[str, int]) -> None:
        """Make the lanes of a warp operation runnable, because all have come."""
        met = self.warps[warp].pop(key)
        self.launch.release(met.workers)
        if self.launch.observer is not None:
            self.launch.observer.threads_synced([w.thread for w in met.workers])
        if self.launch.watcher is not None:
            self.launch.watcher.threads_synced(self, [w.thread for w in met.workers], whole=False)

    def exited(self, thread: SimThread) -> None:
        """Account for a thread that returned. Like on hardware, barriers no longer wait for it."""
        del self.threads[thread.linear]
        self.alive -= 1
        warp, lane = divmod(thread.linear, WARP_SIZE)
        self.lanes[warp] &= ~(1 << lane)
        if not self.alive:
            del self.launch.blocks[self.linear]
            return
        if self.barrier.workers and len(self.barrier.workers) == self.alive:
            self.release_barrier()
        pending = self.warps.get(warp)
        if pending:
            for key in [k for k, met in pending.items() if len(met.workers) == (k[1] & self.lanes[warp]).bit_count()]:
                self.release_warp(warp, key)
        if len(self.grid_waiters) == self.alive:
            self.launch.block_reached_grid_barrier(self)


class Worker(greenlet):  # type: ignore[misc]  # greenlet is untyped
    """A greenlet that runs CUDA threads one after another until one of them waits. Kept from launch to launch."""

    launch: "Launch"
    thread: SimThread
    wait: tuple[Any, ...] = ()  #: the last wait of engine.poll_again()
    stores = 0  #: activity.stores when that call returned

    def run(self) -> None:
        """Work for a launch, then wait to be started for the next one."""
        while True:
            launch_ = self.launch
            launch_.work(self)
            del self.launch, self.thread
            if len(launch_.idle_workers) >= _MAX_IDLE_WORKERS:
                return
            launch_.idle_workers.append(self)
            hub = launch_.hub
            del launch_
            hub.switch()


class _IdleWorkers(threading.local):
    """Greenlets belong to the OS thread that made them."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []


#: Numbers of launches of this process.
_numbers = itertools.count(1)


class Launch:
    """One kernel while it runs: its threads and the queue of those that can run."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], grid: Index, block: Index, dynshared: int, debug: bool) -> None:
        self.fn, self.args, self.grid, self.block_dim, self.dynshared, self.debug = fn, args, grid, block, dynshared, debug
        self.number = next(_numbers)
        self.hub = getcurrent()
        self.name = getattr(fn, "__name__", repr(fn))
        self.observer: ScheduleObserver | None = None
        self.watcher: ThreadWatcher | None = None
        self.idle_hooks: Sequence[Callable[[], None]] = ()
        self.idle_workers = _idle.workers
        self.nblocks, self.nthreads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
        self.thread_indices: list[Index] = list(_indices(block))
        full, rest = divmod(self.nthreads, WARP_SIZE)
        self.lanes = [FULL_MASK] * full + ([(1 << rest) - 1] if rest else [])
        self.blocks: dict[int, Block] = {}  #: blocks that have a thread left
        self.unborn = self._births()
        self.unborn_left = self.nblocks * self.nthreads
        self.due = 0  #: number of unborn threads to start before any other thread runs
        self.ready: deque[Worker] = deque()
        self.grid_blocks: list[Block] = []  #: blocks whose threads have all reached the grid barrier
        self.failure: tuple[SimThread, BaseException] | None = None
        self.stopping = False
        self.spins = 0  #: number of yields since a thread last made progress
        self.busy = False  #: whether a thread was preempted at work since the last idle round
        self.idle_rounds = 0
        self.idle_since = 0.0  #: time of the first idle round
        self.busy_rounds = 0
        self.stores = activity.stores
        self.inside: dict[int, SimThread] = {}  #: by address of a channel, the thread in a collective on it; only one may be at a time

    def _births(self) -> Iterator[SimThread]:
        for linear, index in enumerate(_indices(self.grid)):
            block = self.blocks[linear] = Block(self, linear, index)
            for i in range(self.nthreads):
                self.unborn_left -= 1
                self.due -= 1
                yield SimThread(block, i)

    def work(self, worker: Worker) -> None:
        """Run threads that have not started yet. If one waits, another worker takes over the rest."""
        # A greenlet has its own context, so the caller's errstate does not reach it. On a GPU integers wrap, and inf - inf is NaN.
        with np.errstate(over="ignore", invalid="ignore", divide="raise" if self.debug else None):
            for thread in self.unborn:
                worker.thread, thread.worker = thread, worker
                thread.block.threads[thread.linear] = thread
                try:
                    self.fn(*self.args)
                except GreenletExit:
                    return
                except BaseException as error:
                    self.failure = thread, error
                    return
                thread.block.exited(thread)
                self.spins = self.idle_rounds = 0

    def park(self, worker: Worker, waiting_for: WaitsFor) -> None:
        """Suspend the calling thread until its worker is put into `ready`."""
        if self.stopping:
            raise GreenletExit
        worker.thread.waiting_for = waiting_for
        if self.due > 0 or not self.ready:
            self.hub.switch()
        else:
            self.ready.popleft().switch()

    def spin(self, worker: Worker, waiting_for: WaitsFor) -> None:
        """Let the other threads run before the calling thread continues."""
        if self.stopping:
            raise GreenletExit
        worker.thread.waiting_for = waiting_for
        if self.observer is not None:
            self.observer.step()
        ready = self.ready
        ready.append(worker)
        self.spins += 1
        if self.due > 0 or self.spins > len(ready):
            self.hub.switch()
        else:
            ready.popleft().switch()

    def release(self, workers: list[Worker]) -> None:
        """Make waiting threads runnable; the one that runs already is left out."""
        me = getcurrent()
        self.ready.extend([w for w in workers if w is not me])
        self.spins = self.idle_rounds = 0

    def block_reached_grid_barrier(self, block: Block) -> None:
        """All threads of the block wait in the grid barrier; if it is the last block, make all blocks runnable."""
        self.grid_blocks.append(block)
        if len(self.grid_blocks) < self.nblocks:  # A block that has returned never comes, so the others wait forever, like on hardware.
            return
        met, self.grid_blocks = self.grid_blocks, []
        for each in met:
            waiters, each.grid_waiters = each.grid_waiters, []
            self.release(waiters)
        if self.observer is not None:
            self.observer.grid_synced()
        if self.watcher is not None:
            self.watcher.grid_synced(self)

    def start_worker(self) -> None:
        """Start threads that have not started, on one more greenlet."""
        worker = self.idle_workers.pop() if self.idle_workers else Worker()
        if worker.parent is not self.hub:
            worker.parent = self.hub  # Because a greenlet's exceptions go to its parent.
        worker.launch = self
        worker.switch()

    def run(self) -> None:
        """The hub's loop. Returns when every thread has returned."""
        while self.failure is None:
            if self.unborn_left and (self.due > 0 or self.spins >= len(self.ready)):
                if self.due <= 0:
                    # If no thread can run, start a block. If all that can run are spinning, start as many again, because each start
                    # costs a round.
                    self.due = min(max(self.nthreads, len(self.ready)), self.unborn_left)
                    self.spins = 0
                self.start_worker()
            elif self.ready:
                if self.spins >= len(self.ready):
                    self.idle()
                self.ready.popleft().switch()
            elif self.blocks:
                raise DeadlockError(f"deadlock in {self.name}, no thread can run: {self.report()}")
            else:
                return
        thread, error = self.failure
        try:
            raise _located(error, thread)
        finally:
            del thread, error  # Otherwise, there would be a cycle, because the traceback holds this frame.

    def idle(self) -> None:
        """Every runnable thread has had its turn and yielded again: run the idle hooks, then yield the core or sleep."""
        self.spins = 0
        if self.busy:
            self.busy = False
            self.idle_rounds = 0
            self.busy_rounds += 1
            if self.busy_rounds % _BUSY_ROUNDS_PER_HOOK:
                return
        for hook in tuple(self.idle_hooks):
            hook()
        if self.stores != activity.stores:
            self.stores = activity.stores
            self.idle_rounds = 0
        if not self.idle_rounds:
            self.idle_since = time.monotonic()
        self.idle_rounds += 1
        if self.idle_rounds <= _YIELD_ROUNDS:
            os.sched_yield()
        else:
            time.sleep(min(_MAX_SLEEP_S, 1e-6 * 2 ** min(self.idle_rounds - _YIELD_ROUNDS, 10)))

    def report(self) -> str:
        """Count and name the threads by what they wait for. Blocks with the same description share one line."""
        alike: dict[str, list[int]] = {}
        for linear, block in self.blocks.items():
            alike.setdefault(_block(block), []).append(linear)
        started = self.nblocks - -(-self.unborn_left // self.nthreads)
        returned = sorted(set(range(started)) - self.blocks.keys())
        lines = [f"{_blocks(self, which)}: {text}" for text, which in alike.items()]
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES:] = [f"{len(lines) - _MAX_LINES} more kinds of blocks"]
        if returned:
            lines.append(f"{_blocks(self, returned)} {'has' if len(returned) == 1 else 'have'} returned")
        return ". ".join(lines)

    def kill(self) -> None:
        """Unwind every thread that has not returned, so that no greenlet, frame or argument survives the launch."""
        self.stopping = True
        self.unborn_left = 0
        self.unborn = iter(())
        for block in list(self.blocks.values()):
            for thread in list(block.threads.values()):
                if thread.worker is not None and not thread.worker.dead:
                    thread.worker.throw(GreenletExit)
        self.ready.clear()
        self.blocks.clear()
        self.grid_blocks.clear()
        self.failure = None


_idle = _IdleWorkers()


def _indices(dim: Index) -> Iterator[Index]:
    return ((x, y, z) for z in range(dim[2]) for y in range(dim[1]) for x in range(dim[0]))


def _located(error: BaseException, thread: SimThread) -> BaseException:
    """Name the thread in the text of its exception, unless the text does. The object stays the same, with its attributes and traceback."""
    if not isinstance(error, Exception):
        return error  # A KeyboardInterrupt or SystemExit is not the thread's own.
    if isinstance(error, PgasError) and str(error).startswith("PE "):  # The message of a record names PE, block, and thread.
        return error
    where = f"tid={list(thread.thread_index)} ctaid={list(thread.block.index)}"
    args = error.args
    try:
        text = str(args[0]) if len(args) == 1 else str(error)
        error.args = (f"{where}: {text}" if text else where,)
        if where in str(error):
            return error
        error.args = args  # Because its class makes its own text.
    except Exception:  # A class that cannot be printed must not hide the error itself.
        error.args = args
    error.add_note(where)
    return error


# Reports ------------------------------------------------------------------------------------------------------------------------


def _block(block: Block) -> str:
    n = block.launch.nthreads
    groups: dict[str, list[int]] = {}
    for linear, thread in sorted(block.threads.items()):
        groups.setdefault(_wait(thread.waiting_for), []).append(linear)
    parts = [
        f"{len(who)} of {n} threads {'waits' if len(who) == 1 else 'wait'} {what} ({_threads(who)})"
        if what
        else f"{len(who)} of {n} threads run ({_threads(who)})"
        for what, who in groups.items()
    ]
    if len(parts) > _MAX_LINES:
        parts[_MAX_LINES:] = [f"{len(parts) - _MAX_LINES} more kinds of waits"]
    started = n if block.alive == len(block.threads) or not block.launch.unborn_left else max(block.threads, default=-1) + 1
    gone = [i for i in range(started) if not block.lanes[i // 32] >> i % 32 & 1]
    if gone:
        parts.append(f"{_threads(gone)} {'has' if len(gone) == 1 else 'have'} returned")
    waiting = block.alive - len(block.threads)
    if waiting:
        parts.append(f"{waiting} not started")
    return "; ".join(parts)


def _wait(waiting_for: WaitsFor) -> str:
    if waiting_for is None:
        return ""
    if isinstance(waiting_for, tuple):
        what, mask = waiting_for
        return f"in {what}" if mask is None else f"in {what} mask {mask:#x}"
    return f"for {waiting_for if isinstance(waiting_for, str) else waiting_for()}"


def _threads(linear: Sequence[int]) -> str:
    return f"thread{'s' if len(linear) > 1 else ''} {ranges(linear)}"


def _blocks(launch: Launch, linear: Sequence[int]) -> str:
    if len(linear) == 1 and launch.grid[1] * launch.grid[2] > 1:
        x, rest = linear[0] % launch.grid[0], linear[0] // launch.grid[0]
        return f"block {[x, rest % launch.grid[1], rest // launch.grid[1]]}"
    return f"block {linear[0]}" if len(linear) == 1 else f"{len(linear)} blocks ({ranges(linear)}), each"
