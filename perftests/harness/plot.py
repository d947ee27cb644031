"""Draws results of perf tests (``--json``).

    python -m pgas.perftests.plot a.json b.json -o bandwidth.png    # over message size
    python -m pgas.perftests.plot overlap.json -o overlap.png       # bars; also of ep.json
    python -m pgas.perftests.plot jacobi.json -o jacobi.png         # time over GPUs

Rows that were not validated are omitted. Pictures need matplotlib: pip install 'pgas[plot]'.
"""

import argparse
import importlib.util
import json
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pgas.base.arguments import Parser, output_file, size_flag
from pgas.perftests.harness.report import BANDWIDTH, place

__all__ = ["Bar", "Bars", "Curve", "Panel", "draw", "highest", "lacking", "main", "picture", "read"]

#: Okabe and Ito's colors without yellow, for every kind of color vision; the markers distinguish curves in gray.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"
_GRAY = "#444444"

#: Properties of a run and their text: in the legend if runs differ, below the picture if all are the same.
_TRAITS = {
    "test": "{}", "machine": "{}", "gpu": "{}", "transport": "{}", "adapter": "{}", "engine": "{}", "scope": "scope {}", "ctas": "{} CTAs",
    "threads_per_cta": "{} threads per CTA", "datatype": "{}", "stride": "stride {}", "bidir": "both ways", "iters": "{} iterations",
    "commit": "{:.12}", "date": "{:.10}",
}  # fmt: skip


class Curve(NamedTuple):
    """A curve and its entry in the legend; y in bytes, messages, or seconds."""

    label: str
    points: Sequence[tuple[int, float]]
    number: int  #: index of color and marker
    hollow: bool = False  #: dashed, with hollow markers: next to a curve of the same number


class Panel(NamedTuple):
    """Axes and their curves."""

    curves: Sequence[Curve]
    x: str
    y: str
    unit: str
    title: str = ""
    log: bool = True
    limit: float | None = None  #: a horizontal line
    few: bool = False  #: x is linear, and each has a tick
    log_log: bool = False  #: x is logarithmic, and each has a tick


class Bar(NamedTuple):
    """A bar, its label, and its entry in the legend, which determines its color."""

    label: str
    value: float
    series: str = ""


class Bars(NamedTuple):
    """Axes with horizontal bars, the first on top. Consecutive bars with the same label touch each other."""

    bars: Sequence[Bar]
    x: str
    unit: str
    title: str = ""


def lacking() -> str | None:
    """Return why no picture can be drawn, None if it can."""
    return None if importlib.util.find_spec("matplotlib") else "pictures need matplotlib: pip install 'pgas[plot]'"


def picture(path: str, headline: str, details: str, panels: Sequence[Panel | Bars]) -> None:
    """Draw panels side by side into a PNG, with a headline above and facts about the runs below."""
    import matplotlib  # Imported here and below, because it takes half a second to load and may not be installed.

    matplotlib.use("Agg")  # Only files are written, so no display is needed.
    from matplotlib import pyplot

    figure, axes_of = pyplot.subplots(1, len(panels), squeeze=False, figsize=(3 + 5 * len(panels), 5), dpi=150, layout="constrained")
    try:
        figure.suptitle(headline, fontweight="bold")
        figure.supxlabel(textwrap.fill(details, 110 * len(panels)), fontsize=8, color=_GRAY)
        for axes, panel in zip(axes_of[0], panels, strict=True):
            if isinstance(panel, Bars):
                _draw_bars(axes, panel)
            else:
                _draw(axes, panel)
        figure.savefig(path)
    finally:
        pyplot.close(figure)
    if path.endswith(".png"):
        from PIL import Image

        with Image.open(path) as image:  # 64 colors take a third of the space.
            image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, optimize=True)


def _draw(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter, NullLocator

    curves = [curve for curve in panel.curves if curve.points]
    for label, points, number, hollow in curves:
        style: dict[str, Any] = {"color": _COLORS[number % len(_COLORS)], "marker": _MARKERS[number % len(_MARKERS)]}
        if hollow:
            style |= {"linestyle": "--", "markerfacecolor": "white"}
        axes.plot(*zip(*points, strict=True), label=label, markersize=4.5, linewidth=1.6, **style)
    if panel.limit is not None:
        axes.axhline(panel.limit, color=_GRAY, linestyle="--", linewidth=1.2)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if curves:
        xs, ys = zip(*(point for curve in curves for point in curve.points), strict=True)
        if not panel.few:
            axes.set_xscale("log", base=2)
        if panel.few or panel.log_log:
            axes.set_xticks(sorted(set(xs)))
        if panel.log:
            axes.set_yscale("log")
            if max(ys) < 1000 * min(ys):
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        outside = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if panel.few else {}  # Flat curves leave no room between them.
        axes.legend(fontsize=8.5, edgecolor="none", framealpha=0.9, **outside)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_flag(int(x))))
    axes.yaxis.set_major_formatter(EngFormatter(panel.unit))
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bars(axes: Any, panel: Bars) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    exponent = math.floor(math.log10(max((bar.value for bar in panel.bars), default=1)) / 3) * 3  # One unit for all bars.
    scale = 10.0**exponent
    places: list[float] = []
    labels: dict[str, list[float]] = {}
    for i, bar in enumerate(panel.bars):
        near = i > 0 and panel.bars[i - 1].label == bar.label
        places.append(places[-1] + (1 if near else 1.5) if places else 0.0)
        labels[bar.label] = [*labels.get(bar.label, []), places[-1]]
    for number, series in enumerate(dict.fromkeys(bar.series for bar in panel.bars)):
        mine = [(place, bar.value / scale) for place, bar in zip(places, panel.bars, strict=True) if bar.series == series]
        found = axes.barh(*zip(*mine, strict=True), height=1, label=series, color=_COLORS[number % len(_COLORS)], edgecolor="white")
        axes.bar_label(found, [f"{value:#.3g}".rstrip(".") for _, value in mine], padding=3, fontsize=8.5)
    if len({bar.series for bar in panel.bars}) > 1:
        axes.legend(fontsize=8.5, edgecolor="none", framealpha=0.9)
    axes.set_yticks([sum(each) / len(each) for each in labels.values()], list(labels))
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.03)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(f"{panel.x} ({EngFormatter.ENG_PREFIXES[exponent]}{panel.unit})")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def highest(points: Sequence[tuple[int, float]], unit: str = "B/s") -> str:
    """Return the highest y of a curve, three digits with a decimal prefix before its unit."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)(float(f"{max(y for _, y in points):.3g}"))


# ------------------------------------------------------------------------------------------------------------- results of --json


def draw(runs: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw bandwidth or latency over message size, one curve per run, scope, and path; or one run of a test in _OTHERS.

    Args:
        runs: JSON objects of perf tests, all of bandwidth or all of latency.
        path: path of the PNG to write.
    """
    if runs[0]["test"] in _OTHERS:
        run = runs[0]
        headline, details, panels = _OTHERS[run["test"]](run, [row for row in run["rows"] if row.get("validated", True)])
        gpus = f"{run['npes']} PEs on {place(run['machine'], run['gpu'])}" if "npes" in run else place(run["machine"], run["gpu"])
        date = f"{run['date']:.10}" if "date" in run else ""
        picture(path, headline, "; ".join(text for text in (gpus, details, date) if text), panels)
        return
    bandwidth = _measures(runs[0]) == BANDWIDTH
    name, scale, unit = ("bw_gbps", 1e9, "B/s") if bandwidth else ("latency_us", 1e-6, "s")
    traits, curves = [], []
    for run in runs:
        for scope, path_of_rows in dict.fromkeys((row["scope"], row.get("path")) for row in run["rows"]):
            rows = [row for row in run["rows"] if (row["scope"], row.get("path")) == (scope, path_of_rows)]
            traits.append(_traits(run, scope, path_of_rows))
            curves.append([(row["size"], row[name] * scale) for row in rows if row[name]])
    shared, labels = _told_apart(traits)
    drawn = [Curve(*each, number) for number, each in enumerate(zip(labels, curves, strict=True))]
    panel = Panel(drawn, "message size", _measures(runs[0]), unit)
    headline = " and ".join(dict.fromkeys(run["test"] for run in runs))
    picture(path, headline, f"{place(runs[0]['machine'], runs[0]['gpu'])}: {', '.join(shared)}", [panel])


def _measures(run: Mapping[str, Any]) -> str:
    return str(run.get("measures", BANDWIDTH))  # Because old results have no such field.


def _traits(run: Mapping[str, Any], scope: str, path: str | None) -> dict[str, str]:
    every = {**run["args"], **{key: value for key, value in run.items() if key != "args"}, "scope": scope}
    every |= {} if path is None else {"transport": path}
    return {key: text.format(every[key]) for key, text in _TRAITS.items() if every.get(key)}


def _told_apart(traits: Sequence[Mapping[str, str]]) -> tuple[list[str], list[str]]:
    """Return the properties that all curves share, and for each curve a label of those that differ."""
    alike = {key for key in _TRAITS if len({each.get(key) for each in traits}) == 1}
    others = [key for key in _TRAITS if key not in {*alike, "commit", "date"}] or ["commit", "date"]
    labels = [", ".join(each[key] for key in others if key in each) or each["test"] for each in traits]
    return [text for key, text in (traits[0] if traits else {}).items() if key in alike - {"test", "machine", "gpu"}], labels


# -------------------------------------------------------------------------------------------------------------------- other tests


_Picture = tuple[str, str, Sequence[Panel | Bars]]


def _overlap(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> _Picture:
    """Return headline, details, and panels: a bar per variant, its color that of what moves the data."""

    def bar(row: Mapping[str, Any]) -> Bar:
        name, library = row["variant"], "product only"
        for each in ("NCCL", "pgas"):
            if each in name:
                name, library = name.replace(f", {each} ", ", in ").removesuffix(f", {each}"), each
        return Bar(name, row["us"] * 1e-6, "pgas" if name.startswith("overlapped") else library)

    panels = [Bars([bar(row) for row in rows if row["pattern"] == title], "time", "s", title) for title in _distinct(rows, "pattern")]
    details = "M {m}, N {n}, K {k}, bfloat16, {chunks} chunks, {blocks} blocks send tiles".format(**run["args"])
    return "Communication and a library's matrix products", f"{run['transport']}, products by {run['products']}; {details}", panels


def _ep(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> _Picture:
    """Rows of ep: a panel per number of tokens and dtype; a bar per step and library, pgas with its number of blocks."""

    def bars(of: Sequence[Mapping[str, Any]]) -> list[Bar]:
        steps = [(step, row[f"{step}_us"], row) for step in ("dispatch", "combine") for row in of]
        return [Bar(step, us * 1e-6, row["library"] + (f", {row['sms']} blocks" if row["sms"] else "")) for step, us, row in steps]

    cases: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        cases.setdefault(f"{row['tokens']:,} tokens per PE, {row['dtype']}", []).append(row)
    panels = [Bars(bars(of), "time", "s", case) for case, of in cases.items()]
    sizes = "{hidden:,} elements, top {top_k} of {experts} experts, {threads} threads per block".format(**run["args"])
    return "Expert-parallel dispatch and combine", f"{run['transport']}; {sizes}", panels


def _distinct(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _jacobi(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> _Picture:
    """Rows: version, pes, and time_ms. The version "floor" is dashed."""
    versions = _distinct(rows, "version")
    points = {name: sorted((row["pes"], row["time_ms"] * 1e-3) for row in rows if row["version"] == name) for name in versions}
    curves = [Curve(name, points[name], -1 if name == "floor" else i, hollow=name == "floor") for i, name in enumerate(versions)]
    mesh = "mesh of {nx:,} x {ny:,} float32, {iterations:,} steps, norm every {nccheck} steps".format(**rows[0])
    return (
        "NVIDIA's Jacobi solver",
        mesh.replace("every 1 steps", "in each step"),
        [Panel(curves, "GPUs", "time of all steps", "s", log_log=True)],
    )


#: What makes the picture of a run that is not drawn over message size, by test.
_OTHERS: dict[str, Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], _Picture]] = {
    "overlap": _overlap, "ep": _ep, "jacobi": _jacobi,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------- the command


def read(name: str, keys: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the contents of a JSON file that has these keys; otherwise parser reports an error."""
    try:
        data: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
        [data[key] for key in keys]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        parser.error(f"{name} must be a result of a perf test's --json or of make figures: {error}")
    return data


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = Parser("python -m pgas.perftests.plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="JSON", help="result of a perf test's --json")
    parser.add_argument("-o", "--output", type=output_file, metavar="PNG", required=True, help="picture to write")
    arguments = parser.parse_args(argv)
    if (why := lacking()) is not None:
        parser.error(why)
    runs = [read(name, ("test", "rows", "args", "machine", "gpu"), parser) for name in arguments.files]
    if any(run["test"] in _OTHERS for run in runs):
        if len(runs) > 1:
            parser.error("a picture of " + ", ".join(_OTHERS) + " shows one file")
        draw(runs, arguments.output)
        return 0
    for name, run in zip(arguments.files, runs, strict=True):
        if _measures(run) != _measures(runs[0]):
            parser.error(f"{name} measures {_measures(run)}, the first file {_measures(runs[0])}: they cannot share a picture")
    draw(runs, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
