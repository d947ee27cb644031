"""Exceptions. Mistakes of the caller raise ValueError and TypeError; failures of the runtime or the hardware raise a PgasError."""

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = [
    "BootstrapError", "CompletionError", "DeadlockError", "DeviceError", "HeapError", "PgasError", "PgasWarning", "TransportError",
]  # fmt: skip


class PgasError(RuntimeError):
    """Base class of pgas's errors about the state of the job.

    Attributes:
        of_another: True if this error only follows from the failure or end of another process, which is reported elsewhere. If it is
            uncaught, it is not printed.
    """

    of_another: bool = False


class BootstrapError(PgasError):
    """The job could not be formed, or its PEs disagree about a collective call.

    An exception, such as the KeyboardInterrupt of Ctrl-C, may also make a PE leave a collective call. The PEs are out of step then: every
    later collective call of every PE raises this error, which names the call and the exception. finalize() also raises it, but releases
    everything, so that init() may start a new job.
    """


class HeapError(PgasError):
    """The symmetric heap cannot satisfy a request, or an array was used after it was freed."""


class TransportError(PgasError):
    """The job cannot use the requested transport; the text names the missing prerequisite.

    Attributes:
        timed_out: True if instead the host waited PGAS_TIMEOUT for the NIC.
    """

    timed_out: bool = False


class CompletionError(TransportError):
    """The NIC completed a WQE in error. The text decodes the WQE.

    Attributes:
        pe: the target PE of the WQE.
        qpn: number of the QP.
        wqe_idx: index of the WQE, modulo 2^16.
        syndrome: of the error CQE (mlx5.cqe.Syndrome).
        vendor_err_synd: the vendor's own syndrome.
    """

    def __init__(self, text: str, pe: int, qpn: int, wqe_idx: int, syndrome: int, vendor_err_synd: int) -> None:
        super().__init__(text)
        self.pe, self.qpn, self.wqe_idx, self.syndrome, self.vendor_err_synd = pe, qpn, wqe_idx, syndrome, vendor_err_synd

    def __reduce__(self) -> Any:
        place = self.pe, self.qpn, self.wqe_idx, self.syndrome, self.vendor_err_synd
        return type(self), (self.args[0], *place), vars(self)


class DeviceError(PgasError):
    """A kernel found an error (a wait past its deadline, a bad PE or address) and poisoned the device state.

    Every later launch and collective call of this PE raises the same error; collective calls of the other PEs raise one that names it. The
    same holds after a CompletionError. reset() makes the job usable again.
    """


class DeadlockError(PgasError):
    """Simulator: the remaining threads all wait, and none can run."""


class PgasWarning(UserWarning):
    """A mistake in a program without consequences so far, such as an array that was not freed."""


for _class in (BootstrapError, CompletionError, DeadlockError, DeviceError, HeapError, PgasError, PgasWarning, TransportError):
    _class.__module__ = "pgas"  # Tracebacks and pickles must name the class like programs do.


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
    """If pgas raises an error in the with block, begin its message with what it is about, such as ``pgas.put: dest``."""
    try:
        yield
    except PgasError as error:
        error.args = (f"{what}: {error}",)
        raise


def again(error: PgasError) -> PgasError:
    """Return a copy of an error that was raised, because its handlers may have changed the original's notes and traceback."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    vars(copy).update(vars(error))
    return copy
