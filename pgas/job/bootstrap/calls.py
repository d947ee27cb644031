"""Collective calls of the host: every PE makes the same one, and an error of one PE is an error of all."""

import contextlib
import errno
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pgas.base import liveness
from pgas.base.agreement import of_another
from pgas.base.errors import BootstrapError, PgasError
from pgas.base.remedies import mend
from pgas.base.tracebacks import in_pgas
from pgas.base.waits import overdue, patience
from pgas.job.bootstrap.processes import Process, siblings
from pgas.job.bootstrap.protocol import Bootstrap, exchange

#: Minimum seconds between two polls of a wait from which it follows that this process was stopped meanwhile.
_STOPPED_S = 1.0


#: Seconds to look for a message that was sent before another process ended. MPI may need several calls to receive it.
_NEWS_S = 0.05

#: End of the message about an exception that has left a collective call.
_OUT_OF_STEP = "the PEs are out of step, so no further collective calls are possible in this job"

#: Held by the thread that makes a collective call of the host. It may be acquired again for a part of the call.
_turn = threading.RLock()

#: The last thread that has acquired it, and the call.
_last = 0, ""


@contextlib.contextmanager
def alone(call: str) -> Iterator[None]:
    """Make a collective call, or a part of one, while no other thread of this PE makes one.

    Raises:
        PgasError: if another thread makes a collective call. This call has not begun then, and does not disturb the other one.
    """
    global _last, _turn
    if not _turn.acquire(blocking=False):
        ident, other = _last
        frame = sys._current_frames().get(ident)
        while frame is not None and not in_pgas(frame):
            frame = frame.f_back
        if frame is not None:
            name = next((thread.name for thread in threading.enumerate() if thread.ident == ident), ident)
            raise PgasError(
                f"{_function(call)}: thread {name} is in {_function(other)}, but only one thread of a PE at a time may make collective "
                "calls; make them all in one thread"
            )
        _turn = threading.RLock()  # Ctrl-C has ended that thread's call between two instructions, before it could release the lock.
        _turn.acquire()
    turn, _last = _turn, (threading.get_ident(), call)
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # Python ends a call that Ctrl-C has left behind in another thread.
            turn.release()


def _function(call: str) -> str:
    return call.partition("(")[0]


class Collective:
    """Collective calls among the PEs. A subclass sets bootstrap."""

    bootstrap: Bootstrap
    #: The processes of the PEs, after the first exchange.
    processes: Sequence[Process] = ()
    _made: str  #: the current collective call
    _remark = ""  #: why this PE makes a call that others may not expect
    _is_failing = False  #: whether it is because its program has failed
    _patience_s: float | None = None  #: seconds until a wait is reported
    _due = _polled = math.inf

    def _interrupt(self) -> None:
        """Called while waiting for the others; may raise to end the wait."""

    def _shown(self, call: str) -> str:
        return call

    def _earlier_failure(self) -> Exception | None:
        """Return an error that makes every part of this PE in a collective call fail."""
        return None

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all PEs, in the order of PEs. Collective; a part of a call that is made with making().

        Raises:
            BootstrapError: if an exception has made a PE leave this or an earlier call.
        """
        if self._patience_s is None:
            self._patience_s = patience()
        self._polled = time.monotonic()
        self._due = self._polled + self._patience_s
        try:
            return exchange(self.bootstrap, value, self._poll)
        except BaseException as error:
            self._leave(error)
            raise

    def _poll(self) -> None:
        self._interrupt()
        now = time.monotonic()
        if now - self._polled > _STOPPED_S:  # The others waited for this PE, so this time does not count.
            self._due += now - self._polled
        self._polled = now
        if now > self._due:
            self._due = math.inf
            self._say_who_is_missing()

    def _say_who_is_missing(self) -> None:
        """Report once who is missing.

        If the missing PEs are known, only the lowest waiting PE reports. If all have arrived, each does, because lower ones may have
        continued.
        """
        missing, me = self.bootstrap.missing, self.bootstrap.rank
        if missing is None:
            late = sorted(pe for pe in siblings(os.getppid()) if not self._can_speak(pe))
        else:
            late = sorted(missing)
            if not self.bootstrap.met and any(pe not in missing and self._can_speak(pe) for pe in range(me)):
                return
        names = [self._name(pe) for pe in late]
        if missing is None:  # The launcher may serve the store.
            names += liveness.stopped_launcher(os.getppid())
        where = f", at {self.bootstrap.place}" if self.bootstrap.place and not self.processes else ""
        overdue(f"PE {me}", f"{liveness.listed(names)} in {self._made}{where}")

    def _pid(self, pe: int) -> int | None:
        """Return the process of a PE on this node, or None if it is unknown or on another node."""
        if not self.processes:
            return siblings(os.getppid()).get(pe)
        process = self.processes[pe]
        return process.pid if process.node == self.processes[self.bootstrap.rank].node else None

    def _can_speak(self, pe: int) -> bool:
        pid = self._pid(pe)
        return pid is None or not liveness.state(pid)

    def _name(self, pe: int) -> str:
        pid = self._pid(pe)
        return f"PE {pe}" if pid is None else f"PE {pe} {liveness.described(pid)}"

    def _leave(self, error: BaseException) -> None:
        """Reject later collective calls on every PE, because this PE leaves the call by an exception that others do not know of."""
        what = " ".join([type(error).__name__, *(f"({line})" for line in str(error).strip().splitlines()[:1])])
        self.bootstrap.leave(f"PE {self.bootstrap.rank} left {self._made} by {what}: {_OUT_OF_STEP}")

    def _why_left(self) -> str:
        """Return why a PE has left a collective call by an exception, "" if no message about that has come or comes within _NEWS_S."""
        if not _turn.acquire(blocking=False):  # The thread in a collective call will raise it.
            return ""
        try:
            deadline = time.monotonic() + _NEWS_S
            while not (why := self.bootstrap.why_left()) and time.monotonic() < deadline:
                time.sleep(1e-3)
        finally:
            _turn.release()
        return why if why.endswith(_OUT_OF_STEP) else ""

    @contextlib.contextmanager
    def making(self, call: str) -> Iterator[None]:
        """Make a collective call. The PEs exchange every Exception in it; other exceptions, such as that of Ctrl-C, leave the call.

        Raises:
            PgasError: if another thread makes a collective call; this call has not begun then.
        """
        with alone(call):
            self._made = call
            try:
                yield
            except (Exception, GeneratorExit):
                raise
            except BaseException as error:
                self._leave(error)
                raise

    def agree(
        self,
        call: str,
        error: type[Exception] = BootstrapError,
        value: Any = None,
        failure: Exception | None = None,
        failed_there: type[Exception] | None = None,
    ) -> list[Any]:
        """Wait until every PE makes the same call; return the values of all PEs, in the order of PEs. Collective.

        Args:
            call: the call, with its arguments.
            error: class of the errors.
            value: this PE's value.
            failure: the exception of this PE's part of the call, if it failed.
            failed_there: class of the error if another PE failed; None: the same.

        Raises:
            Exception: the failure.
            Exception: of the given class, if another PE failed, or PEs make different calls; the message names them.
            BootstrapError: if an exception has made a PE leave this or an earlier call.
        """
        failure = failure or self._earlier_failure()
        if failure is not None:
            value = ": ".join([type(failure).__name__, *str(failure).strip().splitlines()[:1]])
        with self.making(call):
            met = self.exchange((call, self._remark, self._is_failing, failure is not None, value))
        if failure is not None:
            raise failure
        for pe, (made, _, _, failed, what) in enumerate(met):
            if failed:
                raise of_another((failed_there or error)(f"PE {pe} failed in {self._shown(made)}: {what}"))
        calls = [made for made, _, _, _, _ in met]
        if len(set(calls)) > 1:
            other = next(pe for pe, c in enumerate(calls) if c != calls[0])
            here, there = (f"PE {pe} called {self._shown(calls[pe])}{met[pe][1]}" for pe in (0, other))
            disagreement = error(f"PEs disagree in a collective call: {here}, {there}")
            if (why := self._why_left()) and str(disagreement) not in why:  # That PE had sent its part of the call that it then left.
                raise of_another(BootstrapError(why))
            raise of_another(disagreement) if not self._is_failing and any(failing for _, _, failing, _, _ in met) else disagreement
        return [what for _, _, _, _, what in met]

    def together(
        self,
        call: str,
        step: Callable[[], Any],
        error: type[Exception] = BootstrapError,
        value: Any = None,
        failed_there: type[Exception] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Take a step of a call, then agree(), even if the step fails here. Return the results of both. Collective. Raises like agree()."""
        result, failure = None, None
        with self.making(call):
            try:
                result = step()
            except Exception as caught:
                failure = caught
            return result, self.agree(call, error, value, failure, failed_there)


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Add the remedy to an error of too many open files, on this PE or another one."""
    try:
        yield
    except Exception as error:
        if os.strerror(errno.EMFILE) not in str(error):
            raise
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kind = type(error) if isinstance(error, PgasError) else BootstrapError
        raise kind(f"the open-file limit of a PE is too low ({limit} here): {error}; {mend('open files')}") from error
