"""How a job starts the software card that stands in for a NIC: with which engine, on which GPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pgas.job import topology
from pgas.transports.softhca.process import client

if TYPE_CHECKING:
    from pgas.job.gpu import GPU

__all__ = ["starter"]


def starter(
    requested: Mapping[str, Any], gpu: "GPU | None", pes: Sequence[topology.PE], warn: Callable[[str], None], *, on_host: bool
) -> Callable[[int], client.Process]:
    """Return what starts the card for so many PEs, as the variables ask for.

    In weak mode the card does its part: it begins and completes WQEs late, by as much as a thread of the simulator needs for several
    operations, so that a source that is reused too early, or a flag on another queue pair that should have waited, shows.

    Args:
        requested: the variables.
        gpu: that of this PE.
        pes: all PEs.
        warn: called with what the user should know.
        on_host: whether CPUs ring the card.
    """
    faults = requested["PGAS_SOFTHCA_FAULTS"]
    if requested["PGAS_SIM_WEAK"] is not None and not faults:
        # A pass of the cpu engine takes less than a microsecond, one of the cuda engine's, in the simulator, more than a thousand.
        hold = 4096 if topology.choose_engine(requested["PGAS_ENGINE"], gpu is not None) == "cpu" else 64
        faults = f"seed={requested['PGAS_SIM_WEAK']},delay=0.1,hold={hold}"

    def start(n_pes: int) -> client.Process:
        options = {
            "trace": ",".join(sorted(requested["PGAS_TRACE"])),
            "faults": faults,
            "engine": topology.choose_engine(requested["PGAS_ENGINE"], gpu is not None),
            "on_host": on_host,
            "mops": requested["PGAS_SOFTHCA_MOPS"],
            "gbps": requested["PGAS_SOFTHCA_GBPS"],
        }
        if gpu is None:
            return client.start(n_pes, **options)
        from pgas.job.gpu import place_engine, uuid

        device, sms, percent = place_engine(gpu, {pe.gpu for pe in pes}, requested["PGAS_SOFTHCA_DEVICE"], requested["PGAS_SOFTHCA_SMS"])
        if (slow := topology.slow_engine(pes, uuid(device))) is not None:
            warn(slow)
        return client.start(n_pes, **options, device=device, sms=sms, percent=percent)

    return start
