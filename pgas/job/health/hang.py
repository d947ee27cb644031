"""The hang report of a PE: the waits of its host and kernels, the outstanding work of its NIC, and the expected writers.

The report is made when a wait of any PE has lasted PGAS_TIMEOUT, and on SIGUSR1 (inquiry.py), after which the program continues.
"""

import contextlib
import json
import linecache
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pgas.base import config, liveness
from pgas.base.errors import PgasError
from pgas.base.text import printable, ranges
from pgas.job.health import device_state
from pgas.job.health.inquiry import Inquiry
from pgas.job.paths.platform import platform
from pgas.kernels import window
from pgas.kernels.compiler import backend
from pgas.transports.memory.protocol import Memory
from pgas.transports.nic import outstanding
from pgas.transports.nic.protocol import NIC

#: Maximum number of host stack frames in the report.
_CALLS = 6

#: Maximum number of groups of waiting threads in the report.
_WAITS = 16

#: Number of turns of the simulator after which every wait has read the poison word, which happens every 64 turns (kernels/ops/sync.py).
_LOOKS = 70


@dataclass
class Subject:
    """The sources of a report."""

    me: int
    n_pes: int
    transport: str
    memory: Memory
    places: device_state.Places
    nic: NIC | None
    timeout_s: float
    #: Process ids of the other PEs on this node.
    others: Mapping[int, int]
    #: Function that returns lines about the last events of blocks, if there is a timeline.
    recorded: Callable[[], list[str]] = list
    #: The kernels launched last that are not known to have ended: name and grid, handle of the stream.
    launched: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=8))


class Reporter:
    """A PE's part in the hang reports of its job. form: text, json or off."""

    def __init__(self, subject: Subject, form: str) -> None:
        self._subject = subject
        self._inquiry = Inquiry(subject.me, lambda reason: emit(subject, reason, form))
        #: Address for requests of other PEs on the node.
        self.address = self._inquiry.address
        self.start, self.stop, self.forked = self._inquiry.start, self._inquiry.stop, self._inquiry.give_signal_back
        self._launches = threading.Lock()  # Because several threads may launch.
        self.begin()

    def begin(self) -> None:
        """Start without an error, so that the next wait that lasts too long makes every PE report."""
        self._done = self._answering = self._ended_kernel = False

    def launching(self, kernel: str, stream: int) -> None:
        """Note a launch on a stream, by its handle."""
        with self._launches:
            self._subject.launched.append((kernel, stream))

    def synchronized(self, stream: int | None) -> None:
        """Note that the kernels of a stream (None: all kernels) have ended."""
        launched = self._subject.launched
        with self._launches:
            left = [entry for entry in launched if stream not in (None, entry[1])]
            launched.clear()
            launched.extend(left)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """At the first error of a wait, of host or kernel, that has lasted too long, make every PE report.

        Notes about stopped processes are added to the error.
        """
        try:
            yield
        except PgasError as error:
            with contextlib.suppress(PgasError):  # The context may be lost.
                if not self._done and (getattr(error, "timed_out", False) or device_state.timed_out(self._subject.memory)):
                    self._done = True
                    words = str(error)
                    for line in _stopped(self._subject):
                        error.add_note(line)
                    self._inquiry.ask(words if words.startswith("PE ") else f"PE {self._subject.me}: {words}", wait=True)
            raise

    def recorded_in_simulator(self, go_on_waiting: Callable[[], None]) -> bool:
        """Called by a thread of the simulator that has written a record. Return whether the thread must end the kernel.

        go_on_waiting: function that lets other threads run.

        The thread of the first error ends the kernel, after all waiting threads have recorded their waits; these do not continue. On a GPU,
        kernels run to their end instead.
        """
        while self._answering:
            go_on_waiting()
        if self._ended_kernel or not device_state.recorded(self._subject.memory):
            return False
        self._ended_kernel = True
        if device_state.timed_out(self._subject.memory):
            self._answering = True
            try:
                for _ in range(_LOOKS):
                    go_on_waiting()
            finally:
                self._answering = False
        return True


def emit(subject: Subject, reason: str, form: str) -> None:
    """Print the report to stderr in one write. form: text, json, or off."""
    if form == "off":
        return
    try:
        report = gather(subject, reason)
        words = json.dumps({"hang_report": report}) + "\n" if form == "json" else text(report)
    except Exception as error:  # The state may be too broken to be read.
        words = f"pgas: PE {subject.me} cannot make its hang report: {type(error).__name__}: {error}\n"
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, words.encode())


def gather(subject: Subject, reason: str) -> dict[str, Any]:
    """Return the report: plain values, for text() or JSON."""
    subject.memory.enter()
    place = _places(subject.places)
    host = _host_stack()  # This must come before anything here waits.
    error = None
    waiters = device_state.waiters(subject.memory, subject.places, subject.me, subject.n_pes, subject.nic, subject.timeout_s)
    if device_state.recorded(subject.memory):
        error = str(device_state.first_error(subject.memory, subject.places, subject.me, subject.nic))
    return {
        "pe": subject.me,
        "n_pes": subject.n_pes,
        "machine": socket.gethostname(),
        "pid": os.getpid(),
        "transport": subject.transport,
        "reason": reason,
        "stopped": _stopped(subject),
        "host": host,
        "kernels": [kernel for kernel, _ in subject.launched],
        "threads": platform.report(),
        "error": error,
        "waiters": _grouped(waiters),
        "last": subject.recorded(),
        "nic": [] if subject.nic is None else outstanding.describe(subject.nic, place),
    }


def text(report: dict[str, Any]) -> str:
    """Return a report as lines, each with the PE's number, because mpirun mixes the lines of PEs."""
    me = report["pe"]
    lines = [f"hang report: {report['reason']}", f"  process {report['pid']} on {report['machine']}, transport {report['transport']}"]
    lines += [f"  {line}" for line in report["stopped"]]
    lines.append(f"  host: {' > '.join(report['host'])}")
    lines.append(f"  kernels that may still be running: {', '.join(report['kernels']) or 'none'}")
    if report["threads"]:
        lines.append(f"  threads: {report['threads']}")
    if report["error"]:
        lines.append(f"  first error: {report['error']}")
    for waiter in report["waiters"][:_WAITS]:
        who = f"{waiter['threads']}: {waiter['operation']} waits for {waiter['goal']}"
        lines.append(f"  {who}, for {waiter['waited_s']:.1f} s; {waiter['writer']}")
    if len(report["waiters"]) > _WAITS:
        lines.append(f"  and {len(report['waiters']) - _WAITS} more groups of waiting threads")
    if not report["waiters"]:
        lines.append("  no thread is waiting in a pgas function" + (" except the one of the first error" if report["error"] else ""))
    lines += [f"  {line}" for line in (*report["last"], *report["nic"])]
    return "".join(f"pgas: PE {me}: {line}\n" for line in lines)


def _stopped(subject: Subject) -> list[str]:
    """Return lines about the other PEs and the software NIC that are stopped."""
    others = {f"PE {pe}": pid for pe, pid in subject.others.items()}
    if subject.nic is not None and subject.nic.process:
        others["the software NIC"] = subject.nic.process
    return [f"{who} (process {pid}) is stopped" for who, pid in others.items() if liveness.state(pid) == "stopped"]


def _grouped(waiters: list[device_state.Waiter]) -> list[dict[str, Any]]:
    alike: dict[tuple[str, str, str], list[device_state.Waiter]] = {}
    for waiter in waiters:
        alike.setdefault((waiter.operation, waiter.goal, waiter.writer), []).append(waiter)
    return [
        {
            "threads": "; ".join(_threads(who)),
            "operation": operation,
            "goal": goal,
            "writer": writer,
            "waited_s": round(max(w.waited_s for w in who), 3),
        }
        for (operation, goal, writer), who in alike.items()
    ]


def _threads(waiters: list[device_state.Waiter]) -> list[str]:
    """Name threads, grouped by blocks with the same thread numbers."""
    of_block: dict[int, list[int]] = {}
    for waiter in waiters:
        of_block.setdefault(waiter.block, []).append(waiter.thread)
    blocks_of: dict[str, list[int]] = {}
    for block, threads in of_block.items():
        blocks_of.setdefault(f"thread{'s' if len(threads) > 1 else ''} {ranges(threads)}", []).append(block)
    return [f"block{'s' if len(blocks) > 1 else ''} {ranges(blocks)}, {threads}" for threads, blocks in blocks_of.items()]


def _places(places: device_state.Places) -> Callable[[int], str]:
    """Return a function that describes an address, with the PE that owns it."""

    def place(address: int) -> str:
        pe = (address - window.BASE) >> window.STRIDE_SHIFT
        return f"{device_state.place(address, places)} on PE {pe}" if address >= window.BASE else device_state.place(address, places)

    return place


def _host_stack() -> list[str]:
    """Return the program's line that the main thread is in, and whether it compiles a kernel; to debug pgas, also the innermost calls."""
    main = threading.main_thread().ident or 0
    frame = platform.host_frame(sys._current_frames().get(main))
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_globals.get("__name__") not in (__name__, "pgas.job.health.inquiry"):  # These belong to the report itself.
            frames.insert(0, frame)
        frame = frame.f_back
    first = next((i for i, f in enumerate(frames) if _is_of_pgas(f)), len(frames))
    doing = []
    if kernel := backend.compiling(main):
        doing = [f"is compiling kernel {kernel}"]  # In place of the compiler's calls.
        frames = frames[: next((i for i in range(first, len(frames)) if not _is_of_pgas(frames[i])), len(frames))]
    shown = frames[max(0, first - 1) :]
    calls = [f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno} {f.f_code.co_name}" for f in shown]
    if shown and (line := linecache.getline(shown[0].f_code.co_filename, shown[0].f_lineno).strip()):
        calls[0] += f": {printable(line)}"
    calls = (calls if config.debugging("traceback") else calls[:1]) + doing
    return calls if len(calls) <= _CALLS else [*calls[:2], "...", *calls[2 - _CALLS :]]


def _is_of_pgas(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "pgas"
