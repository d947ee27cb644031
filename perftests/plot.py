"""Draws bandwidth against message size, from the JSON files of one or several runs.

Several runs in one picture:

    python -m pgas.perftests.plot a.json b.json -o bandwidth.png
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Files only: no display is needed.

from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from pgas.perftests.report import place

__all__ = ["curve_labels", "draw", "main", "title_text"]

#: What tells two runs apart in the legend, in this order; what all runs share goes into the subtitle.
_TRAITS = ("test", "machine", "gpu", "transport", "adapter", "engine", "commit", "date")
_ARGUMENTS = ("scope", "ctas", "threads_per_cta", "datatype", "stride", "bidir", "iters", "seed")

#: Okabe and Ito's colours without yellow: distinguishable in every kind of colour vision and in grey with the markers.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"


def draw(runs: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw the runs into one PNG, bandwidth over message size, both logarithmic.

    A row whose data did not arrive has no rate: it is left out and its run's label says so.

    Args:
        runs: JSON objects of perf tests.
        path: file to write.
    """
    figure, axes = pyplot.subplots(figsize=(9, 5.8), dpi=150)
    try:
        for number, (run, label) in enumerate(zip(runs, curve_labels(runs), strict=True)):
            _draw_curve(axes, run, label, _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)])
        _draw_frame(axes, sorted(row["size"] for run in runs for row in _valid_rows(run)))
        headline, details = title_text(runs)
        axes.set_title(details, loc="left", fontsize=8.5, color="#444444")
        corner = {"xy": (0, 1), "xycoords": "axes fraction", "xytext": (0, 36), "textcoords": "offset points"}
        axes.annotate(headline, **corner, fontsize=12, fontweight="bold")
        # Bandwidth rises with size: there is room in this corner.
        axes.legend(fontsize=8.5, loc="lower right", edgecolor="none", framealpha=0.9)
        figure.tight_layout()
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _valid_rows(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in run["rows"] if row["bw_gbps"]]


def _draw_curve(axes: Any, run: Mapping[str, Any], label: str, colour: str, marker: str) -> None:
    rows = _valid_rows(run)
    sizes, rates = [row["size"] for row in rows], [row["bw_gbps"] for row in rows]
    failed = len(run["rows"]) - len(rows)
    notes = [f"at most {_rate_label(max(rates))}"] if rows else []
    notes += [f"{failed} of {len(run['rows'])} rows failed"] if failed else []
    text = f"{label} ({', '.join(notes)})"
    axes.plot(sizes, rates, color=colour, marker=marker, markersize=4.5, linewidth=1.6, label=text)


def _draw_frame(axes: Any, sizes: Sequence[int]) -> None:
    """Set scales, ticks and names of the axes; without any size there is nothing to scale."""
    if sizes:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        doublings = math.log2(sizes[-1] / sizes[0])
        axes.xaxis.set_major_locator(LogLocator(base=4 if doublings > 12 else 2, numticks=99))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: _size_label(size)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: _rate_label(rate)))
    axes.set_xlabel("message size")
    axes.set_ylabel("bandwidth (1 GB = 10⁹ bytes)")
    axes.grid(which="major", color="#cccccc", linewidth=0.7)
    axes.grid(which="minor", axis="y", color="#eeeeee", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def title_text(runs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return headline and subtitle: what all runs have in common."""
    shared = [_traits(run) for run in runs]
    common = {key: shared[0][key] for key in shared[0] if all(traits.get(key) == shared[0][key] for traits in shared)}
    tests = list(dict.fromkeys(run["test"] for run in runs))
    transport = f" over {common['transport']}" if "transport" in common else ""
    days = sorted({str(run["date"])[:10] for run in runs})
    where = place(common.get("machine"), common.get("gpu"))
    facts = [common[key] for key in ("adapter", "engine") if key in common]
    how = [text for key in _ARGUMENTS if key in common and key != "seed" if (text := _trait_text(key, common[key]))]
    first = ", ".join(str(fact) for fact in [where, *facts, " to ".join(dict.fromkeys((days[0], days[-1])))] if fact)
    return " and ".join(tests) + transport, f"{first}\n{', '.join(how)}"


def curve_labels(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a legend entry for each run: what distinguishes it from the others."""
    traits = [_traits(run) for run in runs]
    keys = [key for key in (*_TRAITS, *_ARGUMENTS) if len({str(each.get(key)) for each in traits}) > 1]
    if set(keys) - {"date", "commit", "seed"}:
        keys = [key for key in keys if key not in {"date", "commit", "seed"}]
    labels = []
    for each in traits:
        words = [_trait_text(key, each[key]) for key in keys if key in each]
        labels.append(", ".join(word for word in words if word) or each["test"])
    return labels


def _traits(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of a run, without what is None."""
    every = {key: run.get(key) for key in _TRAITS} | {key: run["args"].get(key) for key in _ARGUMENTS}
    return {key: value for key, value in every.items() if value is not None}


def _trait_text(key: str, value: Any) -> str:
    match key:
        case "ctas":
            return f"{value} CTAs"
        case "threads_per_cta":
            return f"{value} threads per CTA"
        case "stride":
            return f"stride {value}" if value != 1 else ""
        case "bidir":
            return "both directions" if value else "one direction"
        case "scope":
            return f"scope {value}"
        case "iters":
            return f"{value} iterations"
        case "seed":
            return f"seed {value}"
        case _:
            return str(value)


def _size_label(size: float) -> str:
    for unit, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {suffix}"
    return f"{size:g} B"


def _rate_label(gbps: float) -> str:
    for unit, suffix in ((1, "GB/s"), (1e-3, "MB/s"), (1e-6, "kB/s")):
        if gbps >= unit * (1 - 1e-9):
            return f"{gbps / unit:.3g} {suffix}"
    return f"{gbps * 1e9:.3g} B/s"


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the JSON files named on the command line into one PNG."""
    parser = argparse.ArgumentParser("python -m pgas.perftests.plot", description="Draw bandwidth over message size.")
    parser.add_argument("files", nargs="+", metavar="JSON", help="result of a perf test's --json")
    parser.add_argument("-o", "--output", required=True, metavar="PNG", help="picture to write")
    arguments = parser.parse_args(argv)
    runs = []
    for name in arguments.files:
        try:
            run = json.loads(Path(name).read_text(encoding="utf-8"))
            run["test"], run["rows"], run["args"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{name} is no result of a perf test's --json: {error}")
        runs.append(run)
    draw(runs, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
