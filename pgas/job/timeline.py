"""The timeline of a PE: its trace file, which kernels also write, and the events of its host (PGAS_TRACE=timeline, docs/trace.md).

The clock of events is CLOCK_MONOTONIC, except for those of kernels on a GPU, which have the GPU's timer. The file has what a reader needs
to align clocks: offsets between GPU and host, measured by questions to a kernel, and the times at which this PE entered and left exchanges
among all PEs.
"""

import contextlib
import importlib
import itertools
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from pgas.base import events, parameters
from pgas.base.errors import PgasError, TransportError
from pgas.base.version import __version__
from pgas.kernels import operation, window
from pgas.transports.memory.protocol import Memory

#: Number of exchanges by which PEs on different machines compare their clocks, at the beginning and at the end.
_EXCHANGES = 8

#: In a hang report, maximum numbers of calls of a block, and of blocks.
_LAST_CALLS, _MOST_BLOCKS = 4, 16

#: Functions of the host that are not events, because they return immediately.
_UNTRACED = {"my_pe", "n_pes", "ptr", "info", "init", "jit"}

#: Whether this thread is in a call of pgas, which may make others.
_calling = threading.local()

#: Numbers of this process's jobs.
_jobs = itertools.count(1)


class _HostCall(AbstractContextManager[None]):
    """A call of the host, as an event."""

    def __init__(self, timeline: "Timeline", name: str) -> None:
        self._timeline, self._name = timeline, name

    def __enter__(self) -> None:
        self._outermost = not getattr(_calling, "pgas", False)
        if self._outermost:
            _calling.pgas, self._began = True, time.monotonic_ns()
            self._timeline.ranges.push(f"pgas.{self._name}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._outermost:
            _calling.pgas = False
            self._timeline.ranges.pop()
            if self._name not in _UNTRACED:
                self._timeline.add(events.CALLED, self._began, f"pgas.{self._name}")


class _Ranges:
    """NVTX ranges of the host's calls and launches, for NVIDIA's profilers, if the package nvtx is installed."""

    def __init__(self) -> None:
        self._nvtx: Any = None
        with contextlib.suppress(ImportError):
            self._nvtx = importlib.import_module("nvtx")

    def push(self, name: str) -> None:
        """Begin a range in this thread."""
        if self._nvtx is not None:
            self._nvtx.push_range(name, domain="pgas")

    def pop(self) -> None:
        """End this thread's last range."""
        if self._nvtx is not None:
            self._nvtx.pop_range(domain="pgas")


class Timeline:
    """The trace file of this PE, named after `base` and the PE's number; for later jobs of a process also after the job's number.

    Args:
        capacity: number of events in a ring.

    Raises:
        PgasError: if the file cannot be written.
    """

    def __init__(self, base: str, me: int, capacity: int) -> None:
        number = next(_jobs)
        self.base = base if number == 1 else f"{base}-{number}"  #: beginning of the names of this job's files
        path = f"{self.base}.{me}"
        try:
            self._file = events.TraceFile(path, capacity)
        except OSError as error:
            raise PgasError(f"PGAS_TRACE=timeline:{base}: cannot write {path}: {error.strerror}") from error
        self.ranges = _Ranges()
        self._lock = threading.Lock()
        self._threads: dict[int, int] = {}
        self._launch: dict[int, tuple[int, str, int]] = {}  #: by thread, begin, name, and stream of the launch in progress
        self._on_gpu = False

    def map(self, memory: Memory) -> None:
        """Map the file for kernels. Raises PgasError if that is impossible."""
        self._on_gpu = memory.on_gpu
        try:
            self._file.map(lambda fd: memory.map_file(window.TRACE, self._file.nbytes, fd))
        except TransportError as error:
            raise PgasError(f"PGAS_TRACE: {error}") from error

    def start(self, job: Mapping[str, Any], teams: Iterable[tuple[int, Sequence[int]]], exchange: Callable[[Any], list[Any]]) -> None:
        """Describe the job and its teams, align clocks, and record the calls of the host from now on. Collective.

        job: its PE, n_pes, transport, reason, gpu, and near PEs.
        """
        self._file.tell(
            job={
                **job,
                "id": exchange(os.urandom(8).hex())[0],  # the same on all PEs, and of no other job
                "machine": socket.gethostname(),
                "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
                "version": __version__,
                "operations": list(operation.NAMES),
                "collectives": list(operation.COLLECTIVES),
                "window": [window.BASE, window.STRIDE_SHIFT, window.HEAP_OFFSET],
                "num_qps": window.constants().num_qps,
            }
        )
        for number, pes in teams:
            self.team(number, pes)
        self.measure_clocks(exchange)
        parameters.around = lambda name: _HostCall(self, name)

    def team(self, number: int, pes: Sequence[int]) -> None:
        """Note the members of a team."""
        self._file.tell(team=number, pes=list(pes))

    def measure_clocks(self, exchange: Callable[[Any], list[Any]]) -> None:
        """Write what aligns this PE's clocks with those of the other PEs. Collective."""
        times = []
        for _ in range(_EXCHANGES):
            entered = time.monotonic_ns()
            exchange(None)
            times.append((entered, time.monotonic_ns()))
        self._file.tell(exchanges=times)
        if self._on_gpu:
            from pgas.job.gpu_clock import offset

            self._file.tell(gpu_clock=offset(self._file))

    def launching(self, kernel: str, stream: int) -> None:
        """Note that this thread launches a kernel."""
        if self._launch.pop(threading.get_ident(), None) is not None:  # That launch has failed.
            self.ranges.pop()
        self._launch[threading.get_ident()] = time.monotonic_ns(), kernel, stream
        self.ranges.push(kernel)

    def launched(self) -> None:
        """Note that the launch has returned: in the simulator, that the kernel has ended."""
        if (launch := self._launch.pop(threading.get_ident(), None)) is not None:
            began, kernel, stream = launch
            self.ranges.pop()
            self.add(events.LAUNCHED, began, kernel, stream)

    def add(self, code: int, began: int, name: str, value: int = 0) -> None:
        """Write an event of the calling thread that ends now."""
        self._file.add(events.HOST, code, began, time.monotonic_ns(), thread=self._thread(), address=self._file.name(name), value=value)

    def _thread(self) -> int:
        """Return the number of the calling thread."""
        ident = threading.get_ident()
        with self._lock:
            number = self._threads.get(ident)
            if number is None:
                number = self._threads[ident] = len(self._threads)
                self._file.tell(thread=number, text=threading.current_thread().name)
        return number

    def last_calls(self) -> list[str]:
        """Return lines about the last calls that blocks have completed, for hang reports."""
        lines = []
        for block, records in self._file.newest(4 * _LAST_CALLS).items():
            codes = [(record[0] & events.CODE_MASK, record[events.WHO // 8] & events.NOBODY) for record in records]
            calls = [(operation.NAMES[code], peer) for code, peer in codes if code < len(operation.NAMES)]
            if calls:
                told = [name if peer == events.NOBODY else f"{name} {operation.preposition(name)} PE {peer}" for name, peer in calls]
                lines.append(f"last calls of block {block}: {', '.join(told[-_LAST_CALLS:])}")
        more = len(lines) - _MOST_BLOCKS
        return lines[:_MOST_BLOCKS] + ([f"and of {more} more block{'s' * (more > 1)}"] if more > 0 else [])

    def close(self) -> None:
        """Write nothing more."""
        parameters.around = None
        try:
            self._file.close()
        except OSError as error:
            warnings.warn(f"PGAS_TRACE: cannot write {self._file.path}: {error.strerror}; the timeline stays in memory", stacklevel=2)
