"""Compares the NIC's counters of a row with the operations issued, because a WQE lost or executed twice is a fault."""

from collections.abc import Mapping
from dataclasses import dataclass

from pgas.job import runtime


@dataclass(frozen=True)
class Issued:
    """The operations that a PE issued.

    Attributes:
        messages: number of calls.
        nbytes: number of bytes that they move.
        wqes: minimum and maximum number of WQEs for them.
    """

    messages: int
    nbytes: int
    wqes: tuple[int, int]


def nic_counts() -> dict[str, int]:
    """Return the NIC's counters for this PE; {} without a NIC."""
    nic = runtime.current().nic
    return {} if nic is None else nic.counts()


def find_fault(given: Mapping[str, int], issued: Issued) -> str | None:
    """Return what is wrong with the counters of a PE (wqes, nbytes, doorbells, errors); None if nothing is."""
    fewest, most = issued.wqes
    text = f"for {issued.messages} messages of {issued.nbytes} bytes"
    if given["errors"]:
        return f"the software NIC counted {given['errors']} errors {text}"
    if not fewest <= given["wqes"] <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        return f"the software NIC executed {given['wqes']} WQEs instead of {wanted} {text}"
    if given["nbytes"] != issued.nbytes:
        return f"the software NIC moved {given['nbytes']} bytes in {given['wqes']} WQEs {text}"
    if not min(fewest, 1) <= given["doorbells"] <= given["wqes"]:
        return f"the software NIC observed {given['doorbells']} doorbells for {given['wqes']} WQEs {text}"
    return None
