"""Draws the two pictures of ``make figures``: bandwidth of puts over message size, and rate of p over CTAs."""

import re
from collections.abc import Mapping
from typing import Any

from matplotlib.colors import to_hex, to_rgb
from matplotlib.ticker import FuncFormatter, NullLocator

from pgas.perftests import findings, style
from pgas.perftests.findings import COALESCED_P, CONNECTX6_MOPS, LIMITED_PUT, PUT, SCATTERED_P, Points
from pgas.perftests.report import place

__all__ = ["draw_put_bandwidth", "draw_put_rate"]

#: A transport has one colour in all pictures, coalesced p one of its own.
_IBRC, _IBGDA, _COALESCED = style.COLOURS[1], style.COLOURS[0], style.COLOURS[2]
_TRANSPORTS = {"ibrc": _IBRC, "ibgda": _IBGDA}

#: Keeps text on curves readable.
_HALO = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}


def draw_put_bandwidth(data: Mapping[str, Any], path: str) -> None:
    """Draw the transports side by side, a curve for each number of CTAs; below, both over the limited link.

    Args:
        data: what findings.py describes.
        path: PNG to write.
    """
    curves = {transport: findings.put_curves(data, PUT, transport) for transport in _TRANSPORTS}
    limited = {transport: findings.put_curves(data, LIMITED_PUT, transport) for transport in _TRANSPORTS}
    gbps = findings.link_gbps(data)
    compared = findings.compared_size(curves)
    panels = [[*_TRANSPORTS], *([["link"] * len(_TRANSPORTS)] if any(limited.values()) else [])]
    with style.picture(path, 9, 1.2 + 3.4 * len(panels), _headline(data, _put_text(curves, compared)), _details(data)) as figure:
        axes = figure.subplot_mosaic(panels, height_ratios=[5, 4][: len(panels)])
        rates = [rate for by_ctas in curves.values() for points in by_ctas.values() for _, rate in points]
        for transport in _TRANSPORTS:
            style.log_y(axes[transport], rates)
            _draw_transport(axes[transport], transport, curves[transport], compared)
        axes["ibgda"].set_ylabel("")
        axes["ibgda"].tick_params(labelleft=False)  # as at its left
        if "link" in axes and gbps is not None:
            _draw_link(axes["link"], limited, gbps)


def _draw_transport(axes: Any, transport: str, curves: Mapping[int, Points], compared: int | None) -> None:
    """Draw a curve for each number of CTAs, the most in full colour, and the message size at which transports are compared."""
    ends, colour, title = [], _TRANSPORTS[transport], transport if curves else f"{transport}: no valid row"
    for number, (ctas, points) in enumerate(curves.items()):
        tint = _tint(colour, (number + 1) / len(curves))
        axes.plot(*zip(*points, strict=True), color=tint, marker=style.MARKERS[number], markersize=3.5, linewidth=1.6)
        ends.append((findings.ctas_text(ctas), *points[-1], tint))
    if compared is not None:
        fewest, most = min(curves), max(curves)
        rate, least = dict(curves[most])[compared], dict(curves[fewest])[compared]
        _mark(axes, compared, rate, f"{style.size_text(compared)}: {style.rate_text(rate)}", colour, "left")
        times = f"{_ratio_text(rate / least)} times what {findings.ctas_text(fewest)} put{'s' * (fewest == 1)}"
        title += f": {findings.ctas_text(most)} put {times}"
    style.size_axis(axes, [size for points in curves.values() for size, _ in points], ticks=5)
    style.bandwidth_axis(axes)
    style.frame(axes)
    style.end_labels(axes, ends)
    _title(axes, title, colour)


def _draw_link(axes: Any, limited: Mapping[str, Mapping[int, Points]], gbps: float) -> None:
    """Draw the transports over the limited link, and with which messages each fills it."""
    ctas = max(ctas for by_ctas in limited.values() for ctas in by_ctas)
    curves = {transport: by_ctas[ctas] for transport, by_ctas in limited.items() if ctas in by_ctas}
    filled = {transport: size for transport, points in curves.items() if (size := findings.reach(points, gbps))}
    for transport, points in curves.items():
        colour = _TRANSPORTS[transport]
        axes.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3.5, linewidth=1.6)
        if transport in filled:
            size = filled[transport]
            where = "left" if size == min(filled.values()) else "below"
            _mark(axes, size, dict(points)[size], f"{transport}: {style.size_text(size)}", colour, where)
        else:
            _mark(axes, *points[-1], f"{transport}: {style.rate_text(points[-1][1])}", colour, "above")
    axes.axhline(gbps, color=style.GREY, linestyle="--", linewidth=1.2)
    style.size_axis(axes, [size for points in curves.values() for size, _ in points])
    style.bandwidth_axis(axes)
    axes.set_ylim(0, 1.15 * max(gbps, *(findings.peak(points)[1] for points in curves.values())))
    style.frame(axes)
    found = ", ".join(f"{name} {style.size_text(filled[name]) if name in filled else 'none'}" for name in sorted(curves))
    _title(axes, f"messages of {findings.ctas_text(ctas)} that fill {findings.FILLED:.0%} of a {gbps:g} GB/s link: {found}", style.GREY)


def draw_put_rate(data: Mapping[str, Any], path: str) -> None:
    """Draw the rate of p over CTAs, both logarithmic, and the limit of a ConnectX-6 where rates are those of hardware.

    Args:
        data: what findings.py describes.
        path: PNG to write.
    """
    sharing = findings.p_of_a_wqe(data)
    coalesced = "ibgda, coalesced" + (f"\n{sharing:.2g} p in a WQE" if sharing else "")
    curves = [
        (name, points, colour, marker)
        for name, points, colour, marker in (
            ("ibrc", findings.p_curve(data, SCATTERED_P, "ibrc"), _IBRC, "o"),
            ("ibgda", findings.p_curve(data, SCATTERED_P, "ibgda"), _IBGDA, "s"),
            (coalesced, findings.p_curve(data, COALESCED_P, "ibgda"), _COALESCED, "D"),
        )
        if points
    ]
    with style.picture(path, 9, 5.4, _headline(data, _rate_text(data)), _details(data)) as figure:
        axes = figure.subplots()
        rates, ends = [mops for _, points, _, _ in curves for _, mops in points], []
        for name, points, colour, marker in curves:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=5, linewidth=2)
            ends.append((f"{name}\n{findings.rate_of_p(points[-1][1])}", *points[-1], colour))
        if curves:
            ctas = sorted({ctas for _, points, _, _ in curves for ctas, _ in points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(ctas)
            axes.set_xlim(ctas[0] / 1.1, ctas[-1] * 1.03)
            if not findings.simulated(data):
                axes.axhline(CONNECTX6_MOPS, color=style.GREY, linestyle="--", linewidth=1.4)
                rates.append(CONNECTX6_MOPS)
                ends.append((f"ConnectX-6's limit\n{findings.rate_of_p(CONNECTX6_MOPS)}", ctas[-1], CONNECTX6_MOPS, style.GREY))
        style.log_y(axes, rates)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ctas, _: f"{ctas:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda mops, _: findings.rate_of_p(mops)))
        axes.set_xlabel("CTAs")
        axes.set_ylabel("p per second")
        style.frame(axes)
        style.end_labels(axes, ends)


def _headline(data: Mapping[str, Any], text: str) -> str:
    return f"{text} (simulator)" if findings.simulated(data) else text


def _put_text(curves: Mapping[str, Mapping[int, Points]], compared: int | None) -> str:
    if compared is None:
        return "put"
    ctas = " and ".join(dict.fromkeys(findings.ctas_text(max(by_ctas)) for by_ctas in curves.values()))
    found = [f"{name} {style.rate_text(dict(curves[name][max(curves[name])])[compared])}" for name in sorted(curves)]
    return f"put of {style.size_text(compared)} by each of {ctas}: {', '.join(found)}"


def _rate_text(data: Mapping[str, Any]) -> str:
    ibgda, ibrc = (findings.p_curve(data, SCATTERED_P, transport) for transport in ("ibgda", "ibrc"))
    if not ibgda or not ibrc:
        return "p"
    (ctas, rate), (_, ibrc_rate) = findings.peak(ibgda), findings.peak(ibrc)
    times = f"{_ratio_text(rate / ibrc_rate)} times ibrc's {findings.rate_of_p(ibrc_rate)}"
    return f"scattered p: ibgda {findings.rate_of_p(rate)} with {findings.ctas_text(ctas)}, {times}"


def _details(data: Mapping[str, Any]) -> str:
    """Say what ran where, and what was left out."""
    runs = [run for run in data["runs"] if run["rows"]]
    nics = sorted({f"NIC: {run['adapter']}, {run['engine']} engine" for run in runs})
    threads = sorted({f"{row['threads']} threads a CTA" for run in runs for row in run["rows"]})
    commit = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}", r"\1", f"commit {data['commit'] or 'unknown'}")
    count = f"{data['gpus']} x " if data.get("gpus", 1) > 1 else ""
    lines = [", ".join([count + place(data["machine"], data["gpu"]), *nics, *threads, commit, data["date"][:10]])]
    if findings.simulated(data):
        lines.append("kernels are interpreted here: these are an interpreter's rates, not hardware's")
    if found := findings.faults(data):
        lines.append(f"{len(found)} of {len(data['runs'])} runs failed, wholly or in part")
    return "\n".join(lines)


def _mark(axes: Any, x: float, y: float, text: str, colour: str, where: str) -> None:
    """Ring a point and say what it is: left, above or below it."""
    offset, align = {"left": ((-9, 2), "right"), "above": ((6, 12), "right"), "below": ((9, -12), "left")}[where]
    axes.plot([x], [y], marker="o", markersize=9, markerfacecolor="none", markeredgewidth=1.8, color=colour)
    beside = {"xytext": offset, "textcoords": "offset points", "ha": align, "va": "center", "bbox": _HALO}
    axes.annotate(text, (x, y), **beside, color=colour, fontsize=9.5, fontweight="bold")


def _title(axes: Any, text: str, colour: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5, fontweight="bold", color=colour)


def _ratio_text(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _tint(colour: str, share: float) -> str:
    """Return the colour mixed with white: all of it for a share of 1, less for less."""
    share = 0.25 + 0.75 * share
    return to_hex([1 - share * (1 - part) for part in to_rgb(colour)])
