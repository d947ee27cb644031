"""Requests for hang reports: by SIGUSR1, and from one PE to another.

A thread of each PE waits for both, so a report is made even while the main thread is in a C function that never returns. PEs of a node
send each other datagrams, which need no files and tolerate failed PEs. SIGUSR1 to any PE makes all PEs of the node report.

Before and after its job, SIGUSR1 does not end a process that has imported pgas, because a user who looks for the cause of a hang sends the
signal to all PEs, and some of them may not have reached the end of pgas.init().
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pgas.base import credentials, plain

#: Minimum seconds between two reports of a PE; requests in between are ignored.
_ONCE_S = 2.0

#: Seconds to wait for the other PEs' reports.
_ANSWER_S = 4.0


#: The Inquiry of a job that a thread other than the main one has started. Only the main thread may set handlers, so survive()'s stays.
_of_thread: "Inquiry | None" = None


def survive() -> None:
    """Let SIGUSR1 print where the program is while there is no job, instead of ending it. A handler of the program stays."""
    with contextlib.suppress(ValueError):  # Only the main thread may set handlers.
        if signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _without_job)


def _without_job(number: int, frame: FrameType | None) -> None:
    if (inquiry := _of_thread) is not None:
        with contextlib.suppress(OSError):  # It is being stopped, or has been signaled often.
            os.write(inquiry._wakeup, bytes([number]))
        return
    where = "" if frame is None else f": it is at {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"
    os.write(2, f"pgas: process {os.getpid()} has no job, because pgas.init() has not ended, or pgas.finalize() has{where}\n".encode())


class Inquiry:
    """Makes this PE's reports on request, and requests those of other PEs.

    Args:
        report: function that prints this PE's report, given the reason; called in any thread, one call at a time.
    """

    def __init__(self, me: int, report: Callable[[str], None]) -> None:
        self._me, self._report = me, report
        self._signalled, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        self.address = f"pgas-report-{os.getpid()}-{os.urandom(8).hex()}"
        try:
            self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            credentials.name_senders(self._inbox)
            self._inbox.bind(f"\0{self.address}")
        except OSError:
            os.close(self._signalled)
            os.close(self._wakeup)
            raise
        self._peers: dict[int, str] = {}
        self._reporting = threading.Lock()
        self._last = -_ONCE_S
        self._missing: set[int] = set()
        self._answered = threading.Condition()
        self._handler: Any = None
        self._hears_itself = False
        self._thread: threading.Thread | None = None

    def start(self, peers: Mapping[int, str]) -> None:
        """Listen to SIGUSR1 and to the peers on this node. peers: address by number."""
        global _of_thread
        self._peers = dict(peers)
        self._thread = threading.Thread(target=self._run, name="pgas-inquiry", daemon=True)
        self._thread.start()
        if threading.current_thread() is not threading.main_thread():
            _of_thread = self
        else:
            self._handler = signal.getsignal(signal.SIGUSR1)
            if isinstance(earlier := getattr(self._handler, "__self__", None), Inquiry):  # It was stopped in another thread.
                self._handler = earlier._handler
            signal.signal(signal.SIGUSR1, self._on_signal)
            # The C signal handler writes to the wakeup fd. A Python handler runs only when the main thread is back in Python.
            before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
            self._hears_itself = before == -1
            if before != -1:  # It is asyncio's, which stays.
                signal.set_wakeup_fd(before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        stopped = self._wakeup < 0  # By a thread other than the main one, which cannot restore the handler.
        if not stopped and not self._hears_itself:
            os.write(self._wakeup, bytes([number]))
        if callable(self._handler) and (stopped or self._handler is not _without_job):
            self._handler(number, frame)

    def ask(self, reason: str, *, wait: bool) -> None:
        """Report, and let all peers report. wait: whether to wait for their answers, at most _ANSWER_S."""
        told = set()
        with self._answered:
            for pe in self._peers:
                if self._send(pe, reason):
                    told.add(pe)
            self._missing = set(told) if wait else set()
        self._once(reason)
        if wait:
            with self._answered:
                self._answered.wait_for(lambda: not self._missing, _ANSWER_S)

    def _once(self, reason: str) -> None:
        with self._reporting:
            if time.monotonic() - self._last >= _ONCE_S:
                self._report(reason)
                self._last = time.monotonic()

    def _send(self, pe: int, reason: str | None) -> bool:
        """Request a peer's report, or notify it that this PE has reported (reason None)."""
        with contextlib.suppress(OSError):  # The peer is gone, or its queue is full.
            self._inbox.sendto(plain.dumps((self._me, reason)), socket.MSG_DONTWAIT, f"\0{self._peers[pe]}")
            return True
        return False

    def _run(self) -> None:
        poller = select.poll()
        for fd in (self._inbox.fileno(), self._signalled):
            poller.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._signalled in ready:
                numbers = os.read(self._signalled, 512)
                if not numbers or 0 in numbers:
                    return
                if signal.SIGUSR1 in numbers:
                    self.ask(f"SIGUSR1 to PE {self._me}", wait=False)
            if self._inbox.fileno() in ready:
                data, address, sender = credentials.receive(self._inbox, 1 << 16)
                if sender.ours and address in (f"\0{name}".encode() for name in self._peers.values()):
                    self._read(data)

    def _read(self, data: bytes) -> None:
        try:
            pe, reason = plain.loads(data)
            known = pe in self._peers
        except (TypeError, ValueError):  # Malformed datagrams are ignored.
            return
        if known and isinstance(reason, str):
            self._once(reason)
            self._send(pe, None)
        elif known:
            with self._answered:
                self._missing.discard(pe)
                self._answered.notify_all()

    def stop(self) -> None:
        """Stop listening, and restore the handler of SIGUSR1. Further calls do nothing."""
        if self._wakeup < 0:
            return
        self.give_signal_back()
        wakeup, self._wakeup = self._wakeup, -1
        os.write(wakeup, b"\0")
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if not self._hears_itself or threading.current_thread() is threading.main_thread():
            for fd in (self._signalled, wakeup):  # Otherwise, the C signal handler still writes there.
                os.close(fd)
        self._inbox.close()

    def give_signal_back(self) -> None:
        """Restore the handler of SIGUSR1. A forked child does only this, because thread and pipe belong to its parent."""
        global _of_thread
        if _of_thread is self:
            _of_thread = None
        with contextlib.suppress(ValueError):
            if self._handler is not None and signal.getsignal(signal.SIGUSR1) == self._on_signal:
                signal.signal(signal.SIGUSR1, self._handler)
            if self._hears_itself and (other := signal.set_wakeup_fd(-1)) != self._wakeup:
                signal.set_wakeup_fd(other)
