"""pgas.reset(), which makes a job usable again after an error of kernels or NIC, if its processes, GPUs, and software NIC still exist."""

from pgas.base.agreement import everywhere
from pgas.base.errors import PgasError
from pgas.job.health import device_state
from pgas.job.paths.platform import platform
from pgas.job.runtime import Job

_CALL = "pgas.reset()"


def reset(job: Job) -> None:
    """Stop this job's kernels, reset NIC and device state on every PE, and clear errors. Collective. See pgas.reset.

    Each step begins after the previous one has ended on every PE, because until then, kernels and NICs of other PEs may write to this PE.
    """
    with job.making(_CALL):
        try:
            _wait_for_all(job)
            everywhere(job.exchange, lambda: _end_kernels(job), PgasError)
            if job.nic is not None:
                job.nic.reset()
            everywhere(job.exchange, lambda: _clear(job), PgasError)
        except PgasError as error:
            failed = PgasError(f"pgas.reset: the job cannot be made usable again: {error}")
            job.health.fail(failed)
            raise failed from error
    platform.read_again()
    job.health.recover()
    job.hang.begin()


def _clear(job: Job) -> None:
    device_state.reset(job.memory)
    job.teams.reset()


def _wait_for_all(job: Job) -> None:
    """Wait until every PE calls reset(). A PE that makes another collective call meanwhile raises an error there, which names why."""
    why = ""
    if (failure := job.health.failure) is not None:
        line, _, _ = str(failure).partition("\n")
        why = f" after {type(failure).__name__} ({line})"
    while any(call != _CALL for call, *_ in job.exchange((_CALL, why, False, False, None))):
        pass


def _end_kernels(job: Job) -> None:
    """End the waits of this PE's kernels, and wait for the kernels themselves."""
    if platform.capturing(None):
        raise PgasError("work is being captured into a graph")
    if not device_state.poisoned(job.memory):
        device_state.poison(job.memory)
    with job.health.limited(job.timeout_s, f"its kernels did not end in {job.timeout_s:g} s (PGAS_TIMEOUT)"):
        job.wait_for_device(None, "pgas.reset")
    job.ended(None)
