"""The simulator's engine: every CUDA thread is a greenlet of one OS thread. Kernels, device code, and the host call its functions.

All blocks of a grid are resident: any thread may run, so a block may wait for another one. A thread runs until it waits in a barrier, a
warp operation or a `yield_`; threads take turns round robin. The order is therefore the same in every run of the same program.

Greenlets are expensive. One is made only when a thread waits, and is kept for later launches; a greenlet whose thread has ended runs the
next thread that has not started, so a thread that never waits costs a function call. The threads of a block start together. A new block
starts when no thread can run; when all that can run are spinning, as many threads again start. Usually, therefore, only few blocks of a
large grid are active at a time.
"""

import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from greenlet import getcurrent

from pgas.base import model
from pgas.base.errors import PgasError
from pgas.sim import activity
from pgas.sim.scheduler import (
    FULL_MASK,
    WARP_SIZE,
    Arguments,
    Block,
    Gathering,
    Index,
    Launch,
    Rendezvous,
    ScheduleObserver,
    SimThread,
    ThreadWatcher,
    Worker,
)
from pgas.sim.turns import Turns

#: Function of the arguments of two threads: name of the first argument that differs, and both values as text; None if they are the same.
Differing = Callable[[Arguments, Arguments], tuple[str, str, str] | None]

__all__ = [
    "FULL_MASK", "WARP_SIZE", "Arguments", "Block", "ScheduleObserver", "SimThread", "Worker", "add_failure_hook", "add_idle_hook",
    "block_barrier", "block_dim", "block_index", "block_vote", "current", "enter", "go_on_waiting", "grid_barrier", "grid_dim",
    "host_frame", "install", "launch", "leave", "poll_again", "preempt", "remove_failure_hook", "remove_idle_hook", "report",
    "set_observer", "set_watcher", "thread_index", "wait_for_kernels", "warp_barrier", "warp_exchange", "whole_block", "whole_warp",
    "worker", "yield_",
]  # fmt: skip

_launch: Launch | None = None
_observer: ScheduleObserver | None = None
_watcher: ThreadWatcher | None = None
_idle_hooks: list[Callable[[], None]] = []
_failure_hooks: list[Callable[[BaseException], None]] = []


def launch(
    fn: Callable[..., Any], args: tuple[Any, ...], grid: Index, block: Index, dynshared: int = 0, debug: bool = False, stream: Any = 0
) -> None:
    """Run `fn(*args)` once for every thread of `grid` x `block`; return when all have returned.

    dynshared is the size of the dynamic shared memory in bytes; debug makes division by zero an error; stream is for watchers.

    An exception in a thread ends the launch and is raised here with the thread's `tid` and `ctaid` in its text. Kernels of several host
    threads run one after another, in the order of these calls.

    Raises:
        DeadlockError: if threads are left and none of them can run, or the kernel of another host thread only waits.
        PgasError: if called from a kernel.
    """
    global _launch
    if type(getcurrent()) is Worker:
        raise PgasError(f"{getattr(fn, '__name__', fn)} was launched from inside a kernel: kernels cannot launch kernels")
    with _turns.take(getattr(fn, "__name__", str(fn)), _look):
        try:
            _launch = running = Launch(fn, args, grid, block, dynshared, debug)
            running.observer, running.watcher, running.idle_hooks = _observer, _watcher, _idle_hooks
            if _watcher is not None:
                _watcher.launch_started(running, stream)
            failed = True
            try:
                try:
                    running.run()
                    failed = False
                finally:
                    running.kill()
            except BaseException as error:
                for hook in tuple(_failure_hooks):
                    hook(error)
                for line in _turns.waiting():
                    error.add_note(line)
                raise
            finally:
                if _observer is not None:
                    _observer.launch_ended(failed)
                if _watcher is not None:
                    _watcher.launch_ended(running)
        finally:
            _launch = None


def wait_for_kernels(what: str) -> None:
    """Wait for the kernels that other host threads run or have launched. what: the call, for messages. Raises like launch()."""
    with _turns.take(what, _look):
        pass


def _look() -> None:
    for hook in tuple(_idle_hooks):
        hook()


def _idle_s() -> float:
    running = _launch
    return time.monotonic() - running.idle_since if running is not None and running.idle_rounds else 0.0


def install() -> None:
    """Put this engine under numba-cuda's simulator, so that `@cuda.jit` kernels run on it. Idempotent.

    Raises:
        PgasError: if Numba was imported without NUMBA_ENABLE_CUDASIM=1.
    """
    from pgas.sim import frontend  # Not above, because it imports this module.

    frontend.install()


def current() -> SimThread | None:
    """Return the CUDA thread that is calling, or None on the host (any OS thread)."""
    me = getcurrent()
    return me.thread if type(me) is Worker else None


def yield_(waiting_for: str | Callable[[], str] | None = None) -> None:
    """Let the other CUDA threads run. Every spin loop must call it. On the host, yield the core.

    waiting_for: what the loop waits for ("signal 3 >= 7"), for reports; a callable is called only when a report is made.
    """
    me = getcurrent()
    if type(me) is Worker:
        me.launch.spin(me, waiting_for)
    else:
        os.sched_yield()


def poll_again(waiting_for: str, wait: tuple[Any, ...]) -> None:
    """Let the other CUDA threads run between two polls of a wait: like `yield_`, but what the polls store does not count as progress.

    Polls of ibrc's ring, for example, take a lock. wait: it differs from that of the thread's previous wait.
    """
    me = getcurrent()
    if type(me) is not Worker:
        os.sched_yield()
        return
    if me.wait == wait:
        activity.stores = me.stores
    me.wait = wait
    me.launch.spin(me, waiting_for)
    me.stores = activity.stores


def go_on_waiting() -> None:
    """Let the other CUDA threads run. In reports, the calling thread still waits for what it waited for before."""
    me = worker()
    me.launch.spin(me, me.thread.waiting_for)


def preempt() -> None:
    """Let the other CUDA threads run: like `yield_`, but the caller counts as working, not as waiting."""
    me = getcurrent()
    if type(me) is Worker:
        me.launch.busy = True
        me.launch.spin(me, None)


def block_barrier() -> None:
    """Wait until all threads of the block that have not returned are here (`syncthreads`)."""
    block_vote(None)


def block_vote(value: Any, what: str = "syncthreads") -> list[Any]:
    """Wait in a barrier of the block into which every thread brings a value. Return the values of all threads."""
    me = worker()
    block = me.thread.block
    met = block.barrier
    met.workers.append(me)
    met.values[me.thread.linear] = value
    if len(met.workers) == block.alive:
        block.release_barrier()
    else:
        me.launch.park(me, (what, None))
    return list(met.values.values()) if value is not None else []


def warp_barrier(mask: int = FULL_MASK) -> None:
    """Wait until all lanes of `mask` that have not returned are here with the same mask (`syncwarp`)."""
    warp_exchange(mask, None, "syncwarp")


def warp_exchange(mask: int, value: Any, what: str = "warp_exchange") -> dict[int, Any]:
    """Bring a value, wait for the other lanes of `mask`, and return {lane: value}. The dictionary is shared and must not be changed.

    Lanes that have returned or do not exist (partial last warp) take no part. Lanes that meet must name the same operation and mask.

    Raises:
        ValueError: if the caller's own lane is not in the mask.
    """
    me = worker()
    thread = me.thread
    block = thread.block
    warp, lane = divmod(thread.linear, WARP_SIZE)
    mask = int(mask) & block.launch.lanes[warp]
    if not mask >> lane & 1:
        raise ValueError(f"{what}: lane {lane} called it with mask {mask:#x}, which does not name that lane")
    pending = block.warps.get(warp)
    if pending is None:
        pending = block.warps[warp] = {}
    key = (what, mask)
    met = pending.get(key)
    if met is None:
        met = pending[key] = Rendezvous()
    met.workers.append(me)
    met.values[lane] = value
    if len(met.workers) == (mask & block.lanes[warp]).bit_count():
        block.release_warp(warp, key)
    else:
        me.launch.park(me, key)
    return met.values


def gather(key: Any) -> tuple[int, int]:
    """Return two masks: the lanes of this warp that run here together, and those of them with the caller's key.

    Hardware does not define which lanes of a warp run together. Here, the first lane to arrive waits while all other threads take one turn,
    and the lanes that arrive meanwhile run with it. Lanes on the same path of the program arrive; lanes that spin elsewhere do not.
    """
    me = worker()
    warp, lane = divmod(me.thread.linear, WARP_SIZE)
    block = me.thread.block
    place = (warp, _site())
    gathered = block.gatherings.setdefault(place, Gathering())
    gathered.mask |= 1 << lane
    gathered.keys[lane] = key
    if gathered.mask == block.lanes[warp]:
        gathered.closed = True
    first = gathered.mask == 1 << lane
    while not gathered.closed:
        yield_("the lanes that run with it")
        gathered.closed |= first
    if block.gatherings.get(place) is gathered:
        del block.gatherings[place]
    me.launch.spins = me.launch.idle_rounds = 0
    return gathered.mask, sum(1 << other for other, brought in gathered.keys.items() if brought == key)


def _site() -> tuple[Any, ...]:
    """Return the position of the calling thread in the kernel: code and instruction of every frame of its call stack."""
    site = []
    frame = sys._getframe(2)
    while frame.f_code is not Launch.work.__code__ and frame.f_back is not None:
        site.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(site)


def whole_block(what: str, differing: Differing) -> None:
    """Wait in a barrier of the block before an operation whose work all threads of the block share.

    Raises:
        PgasError: if some threads have returned, are at another barrier, which hardware would not distinguish from this one, or pass
            other arguments.
    """
    me = worker()
    met, threads = me.thread.block.barrier, me.launch.nthreads
    met.calls[what] = met.calls.get(what, 0) + 1
    first = met.firsts.setdefault(what, me.thread)
    _agree(what, me.thread, first.linear, first.arguments, "block", differing)
    block_vote(None, what)
    _all_came(what, len(met.workers), threads, "block")
    if elsewhere := threads - met.calls[what]:
        raise PgasError(
            f"{what}: {elsewhere} of the {threads} threads of the block are waiting at a different barrier; all of them must make this call"
        )


def whole_warp(what: str, differing: Differing) -> None:
    """Like whole_block(), but for a warp. It never ends if the other lanes are at another barrier."""
    me = worker()
    warp = me.thread.linear // WARP_SIZE
    came = warp_exchange(FULL_MASK, me.thread.arguments, what)
    lane = next(iter(came))
    _agree(what, me.thread, warp * WARP_SIZE + lane, came[lane], "warp", differing)
    _all_came(what, len(came), me.launch.lanes[warp].bit_count(), "warp")


def _agree(what: str, thread: SimThread, first: int, arguments: Arguments, group: str, differing: Differing) -> None:
    """Raise PgasError if a thread passes other arguments to an operation than the first thread of its group that came."""
    if (found := differing(thread.arguments, arguments)) is not None:
        name, mine, theirs = found
        raise PgasError(
            f"{what}: thread {thread.linear} of the block passes {mine} as {name}, but thread {first} passes {theirs}; all threads of the "
            f"{group} must pass the same arguments"
        )


def _all_came(what: str, came: int, wanted: int, group: str) -> None:
    if came != wanted:
        raise PgasError(f"{what}: {wanted - came} of the {wanted} threads of the {group} have returned; it must be called by all of them")


def enter(what: str, place: int, rank: int) -> None:
    """Begin a collective on a channel, which admits one at a time.

    Args:
        place: address of the channel.
        rank: number of the calling thread among those that call together; 0 ends it (leave()).

    Raises:
        PgasError: if a collective of other threads on this channel has not ended.
    """
    me = worker()
    leader = me.thread.block.threads[me.thread.linear - rank]
    if (other := me.launch.inside.get(place, leader)) is not leader:
        raise PgasError(
            f"{what}: {other} is already in a collective on this team and channel; call it from one thread, call the _block form from all "
            "threads of one block, or use another channel; threads that call one after another need a barrier in between, such as "
            "syncthreads"
        )
    if rank == 0:
        me.launch.inside[place] = me.thread
        while me.launch.unborn_left:  # Start all other threads. If one also comes here, it fails now, because it may fail on hardware.
            yield_("other threads to start")


def leave(place: int) -> None:
    """End the collective that enter() began on the channel at an address."""
    del worker().launch.inside[place]


def grid_barrier() -> None:
    """Wait until all threads of the grid are here. A block that has returned never comes.

    Raises:
        PgasError: if the grid has more blocks than can run concurrently, because CUDA rejects such a launch.
    """
    me = worker()
    block, running = me.thread.block, me.launch
    if running.nblocks > (most := model.resident_blocks(running.nthreads, running.dynshared)):
        raise PgasError(
            f"{running.name}: {running.nblocks} blocks of {running.nthreads} threads cannot run concurrently on an {model.NAME}; the "
            f"maximum is {most}, because a grid barrier needs all blocks of the grid to run concurrently"
        )
    block.grid_waiters.append(me)
    if len(block.grid_waiters) == block.alive:
        me.launch.block_reached_grid_barrier(block)
    if block.grid_waiters:  # The line above did not release them.
        me.launch.park(me, ("the grid barrier", None))


def thread_index() -> Index:
    """Return threadIdx as (x, y, z)."""
    me = worker()
    return me.launch.thread_indices[me.thread.linear]


def block_index() -> Index:
    """Return blockIdx as (x, y, z)."""
    return worker().thread.block.index


def block_dim() -> Index:
    """Return blockDim as (x, y, z)."""
    return worker().launch.block_dim


def grid_dim() -> Index:
    """Return gridDim as (x, y, z)."""
    return worker().launch.grid


def report() -> str:
    """Describe where the threads of the running kernel are and what they wait for; "" if none runs."""
    return _launch.report() if _launch is not None else ""


_turns = Turns(_idle_s, report)


def host_frame(frame: FrameType | None) -> FrameType | None:
    """Return the host's frame that launched the running kernel if ``frame`` is one of that kernel's threads, ``frame`` otherwise."""
    launched = _launch
    inner = frame
    while inner is not None and launched is not None:
        if inner.f_code is Worker.run.__code__:
            return getattr(launched.hub, "gr_frame", None) or frame
        inner = inner.f_back
    return frame


def add_idle_hook(hook: Callable[[], None]) -> None:
    """Call `hook()` whenever every runnable thread is spinning. An exception that it raises ends the launch, which raises it."""
    _idle_hooks.append(hook)


def remove_idle_hook(hook: Callable[[], None]) -> None:
    """Undo `add_idle_hook`. It is not an error if the hook is not there."""
    if hook in _idle_hooks:
        _idle_hooks.remove(hook)


def add_failure_hook(hook: Callable[[BaseException], None]) -> None:
    """Call `hook(error)` when an exception has ended a launch, before the launch raises it."""
    _failure_hooks.append(hook)


def remove_failure_hook(hook: Callable[[BaseException], None]) -> None:
    """Undo `add_failure_hook`. It is not an error if the hook is not there."""
    if hook in _failure_hooks:
        _failure_hooks.remove(hook)


def set_observer(observer: ScheduleObserver | None) -> None:
    """Notify `observer` of barriers and scheduler steps from now on; None: no observer."""
    global _observer
    if _launch is not None:
        raise PgasError("the observer cannot be changed while a kernel runs")
    _observer = observer


def set_watcher(watcher: ThreadWatcher | None) -> None:
    """Tell `watcher` what the threads of kernels do from now on (`pgas.sim.watch`); None: nobody."""
    global _watcher
    _watcher = watcher


def worker() -> Worker:
    """Return the greenlet that runs the calling thread: `.thread` and `.launch`. Raises PgasError if called on the host."""
    me = getcurrent()
    if type(me) is not Worker:
        raise PgasError("this function works only inside a kernel")
    return me
