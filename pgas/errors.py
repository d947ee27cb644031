"""Exceptions. The caller's mistakes are ValueError and TypeError; what the runtime or the hardware refuses is a PgasError."""

__all__ = ["BootstrapError", "DeadlockError", "DeviceError", "HeapError", "PgasError", "PgasWarning", "TransportError"]


class PgasError(RuntimeError):
    """Base of everything that pgas raises about the state of the job."""


class BootstrapError(PgasError):
    """The job could not be formed, or its PEs disagree about a collective call."""


class HeapError(PgasError):
    """The symmetric heap cannot satisfy a request, or an array was used after it was freed."""


class TransportError(PgasError):
    """A transport was asked for that this job cannot use; the text names the missing prerequisite."""


class DeviceError(PgasError):
    """A kernel found an error (a wait past its deadline, a bad PE or address) and poisoned the device state."""


class DeadlockError(PgasError):
    """Simulator: threads remain and none of them can run."""


class PgasWarning(UserWarning):
    """Something that a program should mend but that hurts nobody yet, such as an array never freed."""
