"""The failures in a job that this PE has detected, and how they end its waits."""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pgas.base.agreement import of_another
from pgas.base.errors import CompletionError, PgasError, again
from pgas.job.health.detector import FailureDetector
from pgas.transports.mlx5.cqe import Syndrome
from pgas.transports.nic.adapter import AdapterGone

#: Seconds to wait, after an error that another process's death may have caused, for notice of that death, because a process that uses a GPU
#: takes long to exit.
NOTICE_S = 4.0


def follows_death(error: BaseException) -> bool:
    """Whether the death of another process can cause an error.

    Under MPS, the death of a client causes errors such as an illegal address (700) in the others, in the next library that calls CUDA. A
    dead peer does not answer the NIC; a dead software NIC does not report the first error of a queue pair.
    """
    if isinstance(error, CompletionError):
        return error.syndrome in (Syndrome.TRANSPORT_RETRY_EXC_ERR, Syndrome.WR_FLUSH_ERR)
    return isinstance(error, AdapterGone) or "CUDA" in f"{type(error).__name__} {error}".upper()


class Health:
    """The processes that ended, the first error of this PE's kernels and NIC, and the limits of its waits.

    Attributes:
        detector: detector of the end of another process of the job.
        lost: the message about the first process that ended; None while all run.
        failure: the first error of kernels or the NIC, until reset(); kept only if users may catch it.
        given_up: why kernels must not wait any more; empty while they may.
        broken: whether an error has left kernels or NIC in an unknown state, so that the job cannot end in the ordinary way.
        exit_status: the code of the program's SystemExit; None unless it is ending by one.

    Args:
        why_left: function that returns why a PE has left a collective call, "" if none has.
    """

    def __init__(self, why_left: Callable[[], str] = lambda: "") -> None:
        self._why_left = why_left
        self.detector = FailureDetector()
        self.lost: str | None = None
        self.failure: PgasError | None = None
        self.given_up = ""
        self.broken = False
        self.exit_status: Any = None
        self._noticed = threading.Event()  #: set when lost is
        self._examined: BaseException | None = None
        self._limit = math.inf, ""

    def lose(self, death: str) -> None:
        self.lost = self.given_up = death
        self._noticed.set()

    def _explain_loss(self) -> None:
        """Begin the message about the process that ended with the exception by which a PE left a collective call, if it ended after that.

        Called in the thread that raises the error, because it may have to look for messages of MPI.
        """
        if self.lost is not None and (why := self._why_left()):
            followed = self.lost in why  # The PE has left because the process ended.
            if not followed and why not in self.lost:
                self.lost = self.given_up = f"{why}; {self.lost}"

    def give_up(self, why: str) -> None:
        """Note why kernels must not wait any more, unless there is a reason already."""
        self.given_up = self.given_up or why

    def fail(self, error: PgasError) -> None:
        """Note an error of kernels or NIC, unless there is one already."""
        self.failure = self.failure or again(error)

    def recover(self) -> None:
        self.failure, self.given_up, self.broken = None, "", False

    def interrupt(self) -> None:
        """End a wait of the host (and a kernel of the simulator) if a process of the job died, or time is up."""
        if self.lost is not None:
            self._explain_loss()
            self.broken = True
            raise of_another(PgasError(self.lost))
        if time.monotonic() > self._limit[0]:
            raise PgasError(self._limit[1])

    def limit(self, seconds: float, why: str) -> None:
        """End the waits of the host that last longer than some seconds from now, with an error that states the reason."""
        self._limit = time.monotonic() + seconds, why

    @contextlib.contextmanager
    def limited(self, seconds: float, why: str) -> Iterator[None]:
        """limit(), until the end of a block."""
        before = self._limit
        self.limit(seconds, why)
        try:
            yield
        finally:
            self._limit = before

    def death_behind(self, error: BaseException) -> str | None:
        """Return the message about the death that caused an error, or None if none did. The error may arrive before the news."""
        if not self.detector.watches or not follows_death(error):
            return None
        if error is not self._examined:  # Wait only once per error, because an uncaught error comes here again.
            self._examined = error
            self._noticed.wait(NOTICE_S)
        self._explain_loss()
        return self.lost

    @contextlib.contextmanager
    def deaths_first(self) -> Iterator[None]:
        """Turn an error caused by another process's death into one that names this death."""
        try:
            yield
        except Exception as error:
            if (death := self.death_behind(error)) is not None:
                self.broken = True
                raise of_another(PgasError(death)) from error
            raise

    @contextlib.contextmanager
    def first_error(self, waiting: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
        """Raise the first error of kernels or NIC: the one found before, or one found inside.

        Args:
            waiting: function that makes a context in which the host waits.
        """
        if self.failure is not None:
            raise again(self.failure)
        try:
            with self.deaths_first(), waiting():
                yield
        except BaseException as error:
            if not getattr(error, "timed_out", False):  # After a timeout, the host may wait again.
                self.broken = True
                self.failure = again(error) if isinstance(error, PgasError) else None
            raise
