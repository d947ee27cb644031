"""What a NIC counted during a row, against what kernels issued: a WQE that is lost or sent twice is a fault."""

from collections.abc import Mapping
from dataclasses import dataclass

from pgas.job import runtime

__all__ = ["Issued", "find_fault", "nic_counts"]


@dataclass(frozen=True)
class Issued:
    """What a PE issued.

    Attributes:
        messages: calls.
        nbytes: bytes that they move.
        wqes: the fewest and the most WQEs that they may become.
    """

    messages: int
    nbytes: int
    wqes: tuple[int, int]


def nic_counts() -> dict[str, int]:
    """Return what the NIC has executed for this PE; nothing under p2p."""
    nic = runtime.current().nic
    return {} if nic is None else nic.counts()


def find_fault(given: Mapping[str, int], issued: Issued) -> str | None:
    """Return what is wrong with the counts of a card: wqes, nbytes, doorbells, errors of one PE."""
    fewest, most = issued.wqes
    text = f"for {issued.messages} messages of {issued.nbytes} bytes"
    if given["errors"]:
        return f"the card counted {given['errors']} errors {text}"
    if not fewest <= given["wqes"] <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        return f"the card executed {given['wqes']} WQEs instead of {wanted} {text}"
    if given["nbytes"] != issued.nbytes:
        return f"the card moved {given['nbytes']} bytes in {given['wqes']} WQEs {text}"
    if not min(fewest, 1) <= given["doorbells"] <= given["wqes"]:
        return f"the card saw {given['doorbells']} doorbells for {given['wqes']} WQEs {text}"
    return None
