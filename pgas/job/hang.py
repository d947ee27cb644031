"""The hang report of a PE: what its host and its kernels wait for, what its NIC has still to do, and who was expected to write.

Made when a wait has lasted PGAS_TIMEOUT on any PE of the job, and on SIGUSR1 (inquiry.py); a program that has only been asked goes on.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pgas.base import liveness
from pgas.base.backend import SIMULATOR
from pgas.base.errors import PgasError
from pgas.job import device_state
from pgas.job.heap import Allocator
from pgas.job.inquiry import Inquiry
from pgas.kernels import window
from pgas.sim.report import ranges
from pgas.transports import outstanding
from pgas.transports.memory.protocol import Memory
from pgas.transports.nic import NIC

if SIMULATOR:
    from pgas.sim import engine

__all__ = ["Reporter", "Subject", "emit", "gather", "text"]

#: Calls of the host's stack that are printed.
_CALLS = 6

#: Different waits that are printed.
_WAITS = 16

#: Turns of the simulator in which every wait has looked at the poison word (each in one of 64: kernels/ops/sync.py).
_LOOKS = 70


@dataclass
class Subject:
    """What is reported on."""

    me: int
    n_pes: int
    transport: str
    memory: Memory
    heap: Allocator
    nic: NIC | None
    timeout_s: float
    #: Process ids of the other PEs of this machine.
    others: Mapping[int, int]
    #: Name and grid, and the handle of the stream, of the kernels launched last that are not known to have ended.
    launched: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=8))


class Reporter:
    """A PE's part in the hang reports of its job.

    Args:
        subject: what this PE reports on.
        form: text, json or off.
    """

    def __init__(self, subject: Subject, form: str) -> None:
        self._subject = subject
        self._inquiry = Inquiry(subject.me, lambda reason: emit(subject, reason, form))
        #: What other PEs of the node ask this one by.
        self.address = self._inquiry.address
        self.start, self.stop, self.forked = self._inquiry.start, self._inquiry.stop, self._inquiry.give_signal_back
        self._launches = threading.Lock()  # several threads may launch
        self.begin()

    def begin(self) -> None:
        """Know of no error: let every PE report at the first wait that lasts too long."""
        self._done = self._answering = self._ended_kernel = False

    def launching(self, kernel: str, stream: int) -> None:
        """Know of a launch on a stream, by its handle."""
        with self._launches:
            self._subject.launched.append((kernel, stream))

    def synchronized(self, stream: int | None) -> None:
        """The kernels of a stream (None: all) have ended."""
        launched = self._subject.launched
        with self._launches:
            left = [entry for entry in launched if stream not in (None, entry[1])]
            launched.clear()
            launched.extend(left)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """If what is done here raises that a wait, of the host or of a kernel, has lasted too long, let every PE report, the first time.

        The error then says, too, which processes are stopped.
        """
        try:
            yield
        except PgasError as error:
            with contextlib.suppress(PgasError):  # the context may be lost
                if not self._done and (getattr(error, "timed_out", False) or device_state.timed_out(self._subject.memory)):
                    self._done = True
                    words = str(error)
                    for line in _stopped(self._subject):
                        error.add_note(line)
                    self._inquiry.ask(words if words.startswith("PE ") else f"PE {self._subject.me}: {words}", wait=True)
            raise

    def recorded_in_simulator(self) -> bool:
        """A thread of the simulator's kernel has written a record. Return whether it is the one that ends the kernel.

        That is the thread that made the first error; the others, who wrote down what they wait for, do not go on. It comes back when they
        all have. Kernels of a GPU run to their end instead.
        """
        while self._answering:
            engine.go_on_waiting()
        if self._ended_kernel or not device_state.recorded(self._subject.memory):
            return False
        self._ended_kernel = True
        if device_state.timed_out(self._subject.memory):
            self._answering = True
            try:
                for _ in range(_LOOKS):
                    engine.go_on_waiting()
            finally:
                self._answering = False
        return True


def emit(subject: Subject, reason: str, form: str) -> None:
    """Print the report to stderr, at once. form: text, json or off."""
    if form == "off":
        return
    try:
        report = gather(subject, reason)
        words = json.dumps({"hang_report": report}) + "\n" if form == "json" else text(report)
    except Exception as error:  # what is broken enough to be reported on may not let itself be read
        words = f"pgas: PE {subject.me} cannot make its hang report: {type(error).__name__}: {error}\n"
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        os.write(2, words.encode())


def gather(subject: Subject, reason: str) -> dict[str, Any]:
    """Return the report: plain values, for text() or JSON."""
    subject.memory.enter()
    place = _places(subject.heap)
    host = _host_stack()  # before anything waits
    error = None
    waiters = device_state.waiters(subject.memory, subject.heap, subject.me, subject.n_pes, subject.nic, subject.timeout_s)
    if device_state.recorded(subject.memory):
        error = str(device_state.first_error(subject.memory, subject.heap, subject.me, subject.nic))
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
        "threads": engine.report() if SIMULATOR else "",
        "error": error,
        "waiters": _grouped(waiters),
        "nic": [] if subject.nic is None else outstanding.describe(subject.nic, place),
    }


def text(report: dict[str, Any]) -> str:
    """Return a report as lines, each with its PE, as an mpirun mixes those of several."""
    me = report["pe"]
    lines = [f"hang report: {report['reason']}", f"  process {report['pid']} on {report['machine']}, transport {report['transport']}"]
    lines += [f"  {line}" for line in report["stopped"]]
    lines.append(f"  host: {' > '.join(report['host'])}")
    lines.append(f"  kernels not known to have ended: {', '.join(report['kernels']) or 'none'}")
    if report["threads"]:
        lines.append(f"  threads: {report['threads']}")
    if report["error"]:
        lines.append(f"  first error: {report['error']}")
    for waiter in report["waiters"][:_WAITS]:
        who = f"{waiter['threads']}: {waiter['operation']} waits for {waiter['goal']}"
        lines.append(f"  {who}, for {waiter['waited_s']:.1f} s; {waiter['writer']}")
    if len(report["waiters"]) > _WAITS:
        lines.append(f"  and {len(report['waiters']) - _WAITS} more kinds of waits")
    if not report["waiters"]:
        lines.append("  no thread waits in a function of pgas" + (" but the one of the first error" if report["error"] else ""))
    lines += [f"  {line}" for line in report["nic"]]
    return "".join(f"pgas: PE {me}: {line}\n" for line in lines)


def _stopped(subject: Subject) -> list[str]:
    """Say which of the other PEs are stopped, and whether the card is."""
    others = {f"PE {pe}": pid for pe, pid in subject.others.items()}
    if subject.nic is not None and subject.nic.process:
        others["the software card"] = subject.nic.process
    return [f"{who} (process {pid}) is stopped" for who, pid in others.items() if liveness.state(pid) == "stopped"]


def _grouped(waiters: list[device_state.Waiter]) -> list[dict[str, Any]]:
    """Return the waits, those for the same together."""
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
    """Name threads; blocks with the same ones together."""
    of_block: dict[int, list[int]] = {}
    for waiter in waiters:
        of_block.setdefault(waiter.block, []).append(waiter.thread)
    blocks_of: dict[str, list[int]] = {}
    for block, threads in of_block.items():
        blocks_of.setdefault(f"thread{'s' if len(threads) > 1 else ''} {ranges(threads)}", []).append(block)
    return [f"block{'s' if len(blocks) > 1 else ''} {ranges(blocks)}, {threads}" for threads, blocks in blocks_of.items()]


def _places(heap: Allocator) -> Callable[[int], str]:
    """Return what says of an address which PE's memory it is, and what lies there."""

    def place(address: int) -> str:
        pe = (address - window.BASE) >> window.STRIDE_SHIFT
        return f"{device_state.place(address, heap)} on PE {pe}" if address >= window.BASE else device_state.place(address, heap)

    return place


def _host_stack() -> list[str]:
    """Return where the main thread is: the call of pgas in the program, and the innermost calls, the last one last."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if SIMULATOR:
        frame = engine.host_frame(frame)
    frames: list[FrameType] = []
    while frame is not None:
        if not _is_own(frame):
            frames.insert(0, frame)
        frame = frame.f_back
    first = next((i for i, f in enumerate(frames) if f.f_globals.get("__name__", "").startswith("pgas")), len(frames))
    calls = [f"{os.path.basename(f.f_code.co_filename)}:{f.f_lineno} {f.f_code.co_name}" for f in frames[max(0, first - 1) :]]
    return calls if len(calls) <= _CALLS else [*calls[:2], "...", *calls[2 - _CALLS :]]


def _is_own(frame: FrameType) -> bool:
    """Whether a call belongs to the report itself."""
    return frame.f_globals.get("__name__") in (__name__, "pgas.job.inquiry")
