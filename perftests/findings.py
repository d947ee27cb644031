"""What the runs of ``make figures`` show: their curves, the numbers in titles, the summary. Pure arithmetic on the JSON.

The JSON (figures.py writes it) has ``machine, gpu, gpus, commit, date, versions, runs``; each run ``curve, transport, ctas, command,
environment, succeeded`` and, unless it failed at once, ``date, adapter, engine, cpus, rows`` as its perf test wrote them. The curves are
PUT, LIMITED_PUT, SCATTERED_P and COALESCED_P.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pgas.perftests.style import number_text, rate_text, size_text

__all__ = [
    "COALESCED_P", "CONNECTX6_MOPS", "FILLED", "LIMITED_PUT", "PUT", "SCATTERED_P", "Points", "compared_size", "ctas_text", "faults",
    "link_gbps", "p_curve", "p_of_a_wqe", "peak", "put_curves", "rate_of_p", "reach", "simulated", "summary",
]  # fmt: skip

PUT, LIMITED_PUT, SCATTERED_P, COALESCED_P = "put", "put over a limited link", "scattered p", "coalesced p"

#: Messages that a ConnectX-6 sends at most, in millions a second.
CONNECTX6_MOPS = 215.0

#: CTAs with which NVIDIA measured IBGDA close to that limit.
_CONNECTX6_CTAS = 8

#: The share of a link's bandwidth from which on it counts as filled.
FILLED = 0.9

#: x and y of the points of a curve.
Points = list[tuple[int, float]]


def put_curves(data: Mapping[str, Any], curve: str, transport: str) -> dict[int, Points]:
    """Return bandwidth in GB/s over bytes of a message, by number of CTAs; rows that were not validated are left out."""
    curves = {run["ctas"]: [(row["message_bytes"], row["bw_gbps"]) for row in _valid(run)] for run in _runs(data, curve, transport)}
    return {ctas: sorted(points) for ctas, points in sorted(curves.items()) if points}


def p_curve(data: Mapping[str, Any], curve: str, transport: str) -> Points:
    """Return million p a second over CTAs; rows that were not validated are left out."""
    return sorted((run["ctas"], row["mops"]) for run in _runs(data, curve, transport) for row in _valid(run))


def _runs(data: Mapping[str, Any], curve: str, transport: str) -> Iterator[Mapping[str, Any]]:
    return (run for run in data["runs"] if (run["curve"], run["transport"]) == (curve, transport))


def _valid(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in run["rows"] if row["validated"]]


def simulated(data: Mapping[str, Any]) -> bool:
    """Return whether kernels were interpreted: then the rates are an interpreter's."""
    return data["gpu"] is None


def link_gbps(data: Mapping[str, Any]) -> float | None:
    """Return the bandwidth of the limited link in GB/s; None if nothing ran over one."""
    limits = [run["environment"]["PGAS_SOFTHCA_GBPS"] for run in data["runs"] if run["curve"] == LIMITED_PUT]
    return float(limits[0]) / 8 if limits else None


def peak(points: Points) -> tuple[int, float]:
    """Return the highest point."""
    return max(points, key=lambda point: point[1])


def reach(points: Points, gbps: float) -> int | None:
    """Return the smallest message that fills so fast a link; None if none does."""
    return next((size for size, rate in points if rate >= FILLED * gbps), None)


def rate_of_p(mops: float) -> str:
    """Return a rate of p with its unit."""
    return number_text(mops * 1e6, "/s")


def ctas_text(ctas: int) -> str:
    """Return a number of CTAs in words."""
    return f"{ctas} CTA{'s' * (ctas > 1)}"


def compared_size(curves: Mapping[str, Mapping[int, Points]]) -> int | None:
    """Return the middle one of the message sizes that all curves have; None if a transport has no curve, or they share no size."""
    sizes = [{size for size, _ in points} for by_ctas in curves.values() for points in by_ctas.values()]
    shared = sorted(set.intersection(*sizes)) if all(curves.values()) else []
    return shared[(len(shared) - 1) // 2] if shared else None


def p_of_a_wqe(data: Mapping[str, Any]) -> float | None:
    """Return how many coalesced p shared a WQE, with the most CTAs; None if none ran."""
    rows = [row for run in _runs(data, COALESCED_P, "ibgda") for row in _valid(run)]
    return max((row["ctas"], row["messages"] / row["wqes"]) for row in rows)[1] if rows else None


def faults(data: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each run that failed and each row that is left out."""
    found = []
    for run in data["runs"]:
        name = f"{run['curve']}, {run['transport']}, {ctas_text(run['ctas'])}"
        bad = [size_text(row["size"]) for row in run["rows"] if not row["validated"]]
        if bad:
            found.append(f"left out, not validated: {name}, size {', '.join(bad)}")
        elif not run["succeeded"]:
            found.append(f"failed: {name}: {run['command']}")
    return found


def summary(data: Mapping[str, Any]) -> list[str]:
    """Return what the runs show, in lines."""
    return [*_p_lines(data), *_link_lines(data), *faults(data)]


def _p_lines(data: Mapping[str, Any]) -> Iterator[str]:
    ibgda, ibrc = (p_curve(data, SCATTERED_P, transport) for transport in ("ibgda", "ibrc"))
    if ibgda and ibrc:
        (ctas, rate), (ibrc_ctas, ibrc_rate) = peak(ibgda), peak(ibrc)
        ratio = f"{rate / ibrc_rate:.3g} times ibrc's {rate_of_p(ibrc_rate)} ({ctas_text(ibrc_ctas)})"
        yield f"scattered p, peaks: ibgda's {rate_of_p(rate)} ({ctas_text(ctas)}) is {ratio}"
    if _CONNECTX6_CTAS in dict(ibgda) and not simulated(data):
        rate = dict(ibgda)[_CONNECTX6_CTAS]
        limit = f"ConnectX-6's {CONNECTX6_MOPS:g} M/s"
        reached = f"reaches {limit}" if rate >= CONNECTX6_MOPS else f"does not reach {limit}"
        yield f"scattered p, {ctas_text(_CONNECTX6_CTAS)}: ibgda {reached}: {rate_of_p(rate)}"


def _link_lines(data: Mapping[str, Any]) -> Iterator[str]:
    gbps = link_gbps(data)
    if gbps is None:
        return
    for transport in ("ibgda", "ibrc"):
        for ctas, points in put_curves(data, LIMITED_PUT, transport).items():
            size = reach(points, gbps)
            found = f"with messages of {size_text(size)}" if size else f"not up to {size_text(points[-1][0])}: {rate_text(peak(points)[1])}"
            yield f"{FILLED:.0%} of a {gbps:g} GB/s link, {ctas_text(ctas)}: {transport} {found}"
