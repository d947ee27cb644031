"""Draws results of perf tests (``--json``) over message size.

    python -m pgas.perftests.plot a.json b.json -o bandwidth.png

Rows that were not validated are omitted. Pictures need matplotlib: pip install 'pgas[plot]'.
"""

import argparse
import importlib.util
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pgas.base.arguments import Parser, output_file, size_flag
from pgas.perftests.harness.report import BANDWIDTH, place

__all__ = ["Bars", "Curve", "Panel", "draw", "highest", "lacking", "main", "picture", "read"]

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


class Bars(NamedTuple):
    """Axes with a horizontal bar per name, the first on top."""

    bars: Sequence[tuple[str, float]]
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
        if panel.few:
            axes.set_xticks(sorted(set(xs)))
        else:
            axes.set_xscale("log", base=2)
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
    from matplotlib.ticker import EngFormatter

    places = range(len(panel.bars))
    found = axes.barh(places, [value for _, value in panel.bars], color=[_COLORS[i % len(_COLORS)] for i in places])
    axes.bar_label(found, [EngFormatter(panel.unit)(float(f"{value:.3g}")) for _, value in panel.bars], padding=3, fontsize=8.5)
    axes.set_yticks(places, [name for name, _ in panel.bars])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.xaxis.set_major_formatter(EngFormatter(panel.unit))
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def highest(points: Sequence[tuple[int, float]], unit: str = "B/s") -> str:
    """Return the highest y of a curve, three digits with a decimal prefix before its unit."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit)(float(f"{max(y for _, y in points):.3g}"))


# ------------------------------------------------------------------------------------------------------------- results of --json


def draw(runs: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw bandwidth or latency over message size, one curve per run, scope, and path.

    Args:
        runs: JSON objects of perf tests, all of bandwidth or all of latency.
        path: path of the PNG to write.
    """
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
    runs = [read(name, ("test", "rows", "args"), parser) for name in arguments.files]
    for name, run in zip(arguments.files, runs, strict=True):
        if _measures(run) != _measures(runs[0]):
            parser.error(f"{name} measures {_measures(run)}, the first file {_measures(runs[0])}: they cannot share a picture")
    draw(runs, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
