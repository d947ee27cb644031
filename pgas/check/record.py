"""Records what a PE does: the kernels' accesses and barriers (`pgas.sim.watch`), the operations of pgas, and the host's calls."""

import atexit
import linecache
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pgas.base.tracebacks import in_pgas
from pgas.check import log
from pgas.check.calls import CALLS, WatchedCall
from pgas.job import runtime
from pgas.job.memory.array import SymmetricArray, block_of
from pgas.job.paths.streams import is_default
from pgas.kernels import window
from pgas.kernels.compiler import simulator
from pgas.kernels.compiler.binding import HOST_FORMS
from pgas.sim import engine, mem, watch
from pgas.sim.scheduler import WARP_SIZE, Block, Launch, SimThread, Worker

_exchange = runtime.Job.exchange

#: Position of the block's number in addresses of shared memory.
_BLOCK_SHIFT = 64


class LogPart(NamedTuple):
    """The log of this PE of what a job does between two restarts."""

    folder: Path
    pe: int
    n_pes: int


class Recorder:
    """The watcher of this process. One kernel runs at a time.

    Args:
        folder: where all PEs write their logs; None: each job makes a folder, with one for each part.
    """

    def __init__(self, folder: Path | None) -> None:
        self.log = log.Log()
        self.parts: list[LogPart] = []  #: what this process has logged in folders of jobs, since the last restart
        self.job: runtime.Job | None = None
        self.folders: list[Path] = []  #: of jobs
        self._folder = folder
        self._number = 0
        self._launches, self._next_thread = 0, 1  # Thread 0 is the host.
        self._first = 0
        self._threads_of_block = 1
        self._launched_at = 0
        self._sites: dict[tuple[int, int], int] = {}  #: by ID of the code, whose hash takes long, and instruction
        self._codes: list[CodeType] = []  #: kept, so that no other code gets their IDs
        self._kept: dict[int, Any] = {}  #: by ID, streams and events
        self._entering: dict[SimThread, Callable[[], None]] = {}
        self.nbi = False  #: whether the host is in a non-blocking call
        self._returned: dict[tuple[Block, int], bool] = {}
        self._in_nbi: dict[SimThread, bool] = {}  #: threads in a non-blocking call of a warp or block, and whether they have met
        self._window = range(window.BASE, window.BASE + (1 << 46))

    def restart(self, folder: Path | None = None) -> None:
        """Begin another log from now on, like another process. If jobs make the folders, all PEs must call it."""
        self.log.close()
        self.log, self._folder, self.job = log.Log(), folder, None
        self.parts.clear()
        self._number += 1
        self._launches, self._next_thread = 0, 1
        self._sites.clear()
        self._codes.clear()
        self._kept.clear()

    def joins(self, job: runtime.Job) -> None:
        """Agree with the other PEs of a job on its folder. Collective."""
        if self._folder is None:
            made = tempfile.mkdtemp(prefix="pgas-order-") if job.my_pe == 0 else None
            self.folders.append(Path(_exchange(job, made)[0]))

    # Kernels

    def launch_started(self, launch: Launch, stream: Any) -> None:
        self.begin()
        self._launches += 1
        self._first, self._threads_of_block = self._next_thread, launch.nthreads
        self._next_thread += launch.nblocks * launch.nthreads
        self._launched_at = self.site(sys._getframe(1))
        self.log.add(
            log.LAUNCH, self._launches, self._first, launch.nthreads, launch.nblocks, self.stream(stream), launch.name, self._launched_at
        )

    def launch_ended(self, launch: Launch) -> None:
        self._entering.clear()
        self._returned.clear()
        self._in_nbi.clear()
        self.log.add(log.ENDED, self._launches)
        self.log.flush()  # If the launch has failed, the process may be about to end.

    def threads_synced(self, block: Block, threads: Any, *, whole: bool) -> None:
        if self._in_nbi:
            if all(self._in_nbi.get(thread) for thread in threads):  # No program may rely on this barrier.
                return
            self._in_nbi.update((thread, True) for thread in threads if thread in self._in_nbi)
        first = self._first + block.linear * self._threads_of_block
        self.log.add(log.MET, first, None if whole else [first + thread.linear for thread in threads])
        if self._entering:
            for thread in threads:
                if (tell := self._entering.pop(thread, None)) is not None:  # The first barrier of a call is at its beginning.
                    tell()

    def grid_synced(self, launch: Launch) -> None:
        self.log.add(log.GRID, self._launches)

    def accessed(self, kind: int, place: tuple[int, int], frame: FrameType, *, shared: bool) -> None:
        addr, nbytes = place
        thread = watch.thread()
        before = (mem.load(addr, nbytes) if nbytes in (4, 8) else None,) if kind == watch.ATOMIC else ()
        if shared or addr not in self._window:
            addr = self.tagged(addr, thread if shared else None)
        self.log.append((log.LOAD + kind, self.number(thread), addr, nbytes, self.site(frame), *before))

    def fenced(self, scope: str) -> None:
        self.log.add(log.FENCE, self.number(watch.thread()), scope)

    def number(self, thread: SimThread) -> int:
        """Return the number of a thread of the running kernel."""
        return self._first + thread.block.linear * self._threads_of_block + thread.linear

    def tagged(self, addr: int, thread: SimThread | None = None) -> int:
        """Return an address that differs from those of other PEs' and other blocks' own memory."""
        if thread is not None:
            return addr | log.SHARED | (self._first + thread.block.linear << _BLOCK_SHIFT)
        return addr if addr in self._window else addr | log.PRIVATE

    # Operations of pgas

    def call(self, name: str, names: tuple[str, ...], values: list[Any], body: Callable[..., Any]) -> Any:
        """Perform an operation that a kernel calls, and note it."""
        plain, width = self.scope(name)
        kind = CALLS.get(plain)
        if kind is None:
            return body(*values)
        thread = watch.thread()
        leads = not width or thread.linear % width == 0
        made = WatchedCall(self, plain, dict(zip(names, values, strict=True)), self.number(thread), self.site(sys._getframe(2)), width)
        if not width:
            kind.begin(made)
        elif leads:
            group = thread.block, thread.linear // width

            def begin() -> None:
                self._returned[group] = False
                kind.begin(made)

            self._entering[thread] = begin
        if width and kind.nbi:
            self._in_nbi[thread] = False
        result = body(*values)
        self._in_nbi.pop(thread, None)
        if not width:
            kind.end(made, result)
        elif not self._returned.get((thread.block, thread.linear // width), True):  # The first that returns tells for all.
            self._returned[thread.block, thread.linear // width] = True
            kind.end(made, result)
        return result

    def scope(self, name: str) -> tuple[str, int]:
        """Return an operation's name without scope, and the number of threads that call it together, 0 for one thread."""
        plain = name.removesuffix("_warp").removesuffix("_block")
        width = 0 if name == plain else WARP_SIZE if name.endswith("_warp") else self._threads_of_block
        if self.nbi and plain in ("put", "get", "put_signal"):  # A host's non-blocking call has a kernel that blocks.
            plain += "_nbi"
        return plain, width

    # The host

    def begin(self) -> None:
        """Open the log when the job is there."""
        if self.job is (job := runtime.current()):
            return
        if self.job is None or self._folder is None:
            folder = self._folder
            if folder is None:
                folder = self.folders[-1] / str(self._number)
                folder.mkdir(exist_ok=True)
                self.parts.append(LogPart(folder, job.my_pe, job.n_pes))
            self.log.close()
            self.log.open(folder, job.my_pe)
            self.log.add(log.JOB, job.n_pes)
        self.job = job

    def stream(self, stream: Any) -> Any:
        """Return the number of a stream: 0 for the default stream."""
        return 0 if is_default(stream) else self._number_of(stream)

    def _number_of(self, thing: Any) -> int:
        """Return the ID of a stream or event, which is kept, so that no other object gets it."""
        self._kept.setdefault(id(thing), thing)
        return id(thing)

    def host_accessed(self, kind: int, array: Any, frame: FrameType) -> None:
        """Note that the host reads or writes the elements of a NumPy array in GPU memory."""
        if self.on_host():
            site = self.site(frame)
            for addr, nbytes in _runs(array):
                self.log.add(log.LOAD + kind, 0, self.tagged(addr), nbytes, site)

    def stream_awaited(self, stream: Any) -> None:
        if self.on_host():
            self.log.add(log.WAITED, self.stream(stream))

    def event_recorded(self, event: Any, stream: Any) -> None:
        if self.on_host():
            self.log.add(log.RECORDED, self._number_of(event), self.stream(stream))

    def event_awaited(self, event: Any, stream: Any | None) -> None:
        if self.on_host():
            self.log.add(log.AWAITED, self._number_of(event), None if stream is None else self.stream(stream))

    def on_host(self) -> bool:
        """Whether the host calls, in a job."""
        if engine.current() is not None or not runtime.active():
            return False
        self.begin()
        return True

    def site(self, frame: FrameType | None) -> int:
        """Return the number of the innermost line of the program at or above a frame."""
        if frame is not None and (known := self._sites.get((id(frame.f_code), frame.f_lasti))) is not None:
            return known
        while frame is not None and in_pgas(frame):
            if frame.f_code is Worker.run.__code__:
                return self._launched_at
            frame = frame.f_back
        if frame is None:
            return self._launched_at
        code, at = frame.f_code, frame.f_lasti
        known = self._sites.get((id(code), at))
        if known is None:
            known = self._sites[id(code), at] = len(self._sites) + 1
            self._codes.append(code)
            self.log.add(log.SITE, known, code.co_filename, *_source(code, at))
        return known


def _runs(array: Any) -> Iterator[tuple[int, int]]:
    """Yield the address and size of each contiguous part of an array."""
    if array.size == 0:
        return
    if array.flags.c_contiguous or array.flags.f_contiguous:
        yield int(array.__array_interface__["data"][0]), array.nbytes
        return
    for i in range(len(array)):
        yield from _runs(array[i : i + 1].reshape(array.shape[1:]) if array.ndim > 1 else array[i : i + 1])


def _source(code: CodeType, at: int) -> tuple[int, int, str, str]:
    """Return line, column, function, and text of an instruction's expression."""
    line, last, left, right = list(code.co_positions())[at // 2]
    line = line or code.co_firstlineno
    text = linecache.getline(code.co_filename, line)
    if left is None or right is None or last is None:
        return line, left or 0, code.co_qualname, text.strip()
    lines = [linecache.getline(code.co_filename, n).encode() for n in range(line, last + 1)]
    lines[-1], lines[0] = lines[-1][:right], lines[0][: right if last == line else None][left:]
    return line, left, code.co_qualname, " ".join(part.decode().strip() for part in lines)


def install(folder: str | os.PathLike[str] | None, make: Callable[[Path | None], Recorder] = Recorder) -> Recorder:
    """Record this process from now on into a folder that exists, or that the PEs of the first job make. make: class of the recorder."""
    recorder = make(None if folder is None else Path(folder))
    if runtime.active():
        recorder.joins(runtime.current())
    watch.install(recorder)
    simulator.tap = recorder.call
    _of_job(recorder)
    watch.host_elements(SymmetricArray, recorder)
    for name in ("put_nbi", "get_nbi", "put_signal_nbi"):
        HOST_FORMS[name] = _non_blocking(recorder, HOST_FORMS[name])
    atexit.register(lambda: recorder.log.close())
    show = sys.excepthook

    def on_exception(*exception: Any) -> None:
        recorder.log.flush()  # The process ends without functions of atexit if the exception ends the job.
        show(*exception)

    sys.excepthook = on_exception
    return recorder


def _non_blocking(recorder: Recorder, form: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder.nbi = True
        try:
            return form(*args, **kwargs)
        finally:
            recorder.nbi = False

    return call


def _is_launch(value: Any) -> bool:
    """Whether a value is exchanged by pgas.launch(): see Collective.agree()."""
    return type(value) is tuple and bool(value) and str(value[0]).startswith("pgas.launch(")


def _of_job(recorder: Recorder) -> None:
    """Note the host's waits and exchanges."""
    synchronize, complete, allocate, start = (getattr(runtime.Job, n) for n in ("synchronize", "complete", "allocate", "__init__"))

    def starting(job: Any, *args: Any, **kwargs: Any) -> None:
        start(job, *args, **kwargs)
        recorder.joins(job)

    def synchronizing(job: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
        synchronize(job, stream, *args, **kwargs)
        if recorder.on_host():
            recorder.log.add(log.WAITED, None if stream is None else recorder.stream(stream))

    def completing(job: Any, call: str) -> None:
        complete(job, call)
        if recorder.on_host():
            recorder.log.add(log.COMPLETED, recorder.log.turn())

    def exchanging(job: Any, value: Any) -> Any:
        if not recorder.on_host() or _is_launch(value):  # init() itself, or a launch, which compares calls and is not a barrier.
            return _exchange(job, value)
        recorder.log.add(log.MEETS, recorder.log.turn())
        found = _exchange(job, value)
        recorder.log.add(log.HAS_MET, recorder.log.turn())
        return found

    def allocating(job: Any, *args: Any, **kwargs: Any) -> Any:
        array = allocate(job, *args, **kwargs)
        recorder.begin()
        block = block_of(array)
        if block is not None:
            kind, site = (array.dtype.itemsize, array.dtype.kind), recorder.site(sys._getframe(1))
            recorder.log.add(log.MADE, job.address(array), block.nbytes, site, tuple(array.shape), *kind)
        return array

    forms = {
        "__init__": starting, "synchronize": synchronizing, "complete": completing, "exchange": exchanging, "allocate": allocating,
    }  # fmt: skip
    for name, form in forms.items():
        setattr(runtime.Job, name, form)
