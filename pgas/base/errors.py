"""Exceptions. The caller's mistakes are ValueError and TypeError; what the runtime or the hardware refuses is a PgasError."""

__all__ = [
    "BootstrapError", "CompletionError", "DeadlockError", "DeviceError", "HeapError", "PgasError", "PgasWarning", "TransportError",
]  # fmt: skip


class PgasError(RuntimeError):
    """Base of everything that pgas raises about the state of the job.

    Attributes:
        of_another: True if this error only follows from another process's failure or end, which is reported elsewhere; if uncaught it is
            not printed.
    """

    of_another: bool = False


class BootstrapError(PgasError):
    """The job could not be formed, or its PEs disagree about a collective call.

    Also when an exception, such as the KeyboardInterrupt of Ctrl-C, made a PE leave a collective call: the PEs are out of step from then
    on, and every later collective call of every PE raises this error, which names the call and the exception. finalize() raises it, too,
    but gives everything back, so that init() may start a new job.
    """


class HeapError(PgasError):
    """The symmetric heap cannot satisfy a request, or an array was used after it was freed."""


class TransportError(PgasError):
    """A transport was asked for that this job cannot use; the text names the missing prerequisite.

    Attributes:
        timed_out: instead, the host waited PGAS_TIMEOUT for the NIC.
    """

    timed_out: bool = False


class CompletionError(TransportError):
    """The NIC completed a WQE in error. The text decodes the WQE.

    Attributes:
        pe: the PE that the WQE was for.
        qpn: number of the QP.
        wqe_idx: index of the WQE, modulo 2^16.
        syndrome: of the error CQE (mlx5.cqe.Syndrome).
        vendor_err_synd: the vendor's own syndrome.
    """

    def __init__(self, text: str, pe: int, qpn: int, wqe_idx: int, syndrome: int, vendor_err_synd: int) -> None:
        super().__init__(text)
        self.pe, self.qpn, self.wqe_idx, self.syndrome, self.vendor_err_synd = pe, qpn, wqe_idx, syndrome, vendor_err_synd


class DeviceError(PgasError):
    """A kernel found an error (a wait past its deadline, a bad PE or address) and poisoned the device state.

    From then on every launch and every collective call of this PE raises the same error; collective calls of the other PEs raise one that
    names it. So it is after a CompletionError, too. reset() makes the job usable again.
    """


class DeadlockError(PgasError):
    """Simulator: threads remain and none of them can run."""


class PgasWarning(UserWarning):
    """Something that a program should mend but that hurts nobody yet, such as an array never freed."""


def again(error: PgasError) -> PgasError:
    """Return an error like one that was raised, whose text and traceback others may have changed since."""
    copy = type(error).__new__(type(error))
    copy.args = error.args
    vars(copy).update(vars(error))
    return copy
