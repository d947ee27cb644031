"""Draws bandwidth or latency against message size, from the JSON files of one or several runs.

Several runs in one picture:

    python -m pgas.perftests.plot a.json b.json -o bandwidth.png
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgas.perftests import style
from pgas.perftests.report import BANDWIDTH, place

__all__ = ["by_scope", "curve_labels", "draw", "main", "title_text"]

#: What tells two runs apart in the legend, in this order; what all runs share goes into the subtitle.
_TRAITS = ("test", "machine", "gpu", "transport", "adapter", "engine", "commit", "date")
_ARGUMENTS = ("scope", "ctas", "threads_per_cta", "datatype", "stride", "bidir", "iters", "seed")


def draw(runs: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw the runs into one PNG, bandwidth or latency over message size, both logarithmic; of a run a curve for each scope.

    A row whose data did not arrive has no figure: it is left out and its run's label says so.

    Args:
        runs: JSON objects of perf tests that all measure the same.
        path: file to write.
    """
    bandwidth = _measures(runs[0]) == BANDWIDTH
    runs = by_scope(runs)
    with style.picture(path, 9, 5.8, *title_text(runs)) as figure:
        axes = figure.subplots()
        for number, (run, label) in enumerate(zip(runs, curve_labels(runs), strict=True)):
            _draw_curve(axes, run, label, style.COLOURS[number % len(style.COLOURS)], style.MARKERS[number % len(style.MARKERS)])
        sizes = [row["size"] for run in runs for row in _valid_rows(run)]
        if sizes:
            axes.set_yscale("log")
        style.size_axis(axes, sizes)
        if bandwidth:
            style.bandwidth_axis(axes)
        else:
            axes.set_ylabel("latency (us)")
        style.frame(axes)
        # Both rise with size: there is room in this corner.
        axes.legend(fontsize=8.5, loc="lower right" if bandwidth else "upper left", edgecolor="none", framealpha=0.9)


def by_scope(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs, those with rows of several scopes as one for each."""
    split = []
    for run in runs:
        scopes = list(dict.fromkeys(row["scope"] for row in run["rows"])) or [run["args"].get("scope")]
        for scope in scopes:
            rows = [row for row in run["rows"] if row["scope"] == scope]
            split.append({**run, "rows": rows, "args": {**run["args"], "scope": scope}})
    return split


def _measures(run: Mapping[str, Any]) -> str:
    return str(run.get("measures", BANDWIDTH))  # results from before there were others do not say


def _figure(run: Mapping[str, Any]) -> str:
    return "bw_gbps" if _measures(run) == BANDWIDTH else "latency_us"


def _valid_rows(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in run["rows"] if row[_figure(run)]]


def _draw_curve(axes: Any, run: Mapping[str, Any], label: str, colour: str, marker: str) -> None:
    rows = _valid_rows(run)
    sizes, figures = [row["size"] for row in rows], [row[_figure(run)] for row in rows]
    failed = len(run["rows"]) - len(rows)
    notes = []
    if rows:
        notes.append(f"at most {style.rate_text(max(figures))}" if _measures(run) == BANDWIDTH else f"from {min(figures):.3g} us")
    notes += [f"{failed} of {len(run['rows'])} rows failed"] if failed else []
    text = f"{label} ({', '.join(notes)})"
    axes.plot(sizes, figures, color=colour, marker=marker, markersize=4.5, linewidth=1.6, label=text)


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


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the JSON files named on the command line into one PNG."""
    parser = argparse.ArgumentParser("python -m pgas.perftests.plot", description="Draw bandwidth or latency over message size.")
    parser.add_argument("files", nargs="+", metavar="JSON", help="result of a perf test's --json")
    parser.add_argument("-o", "--output", required=True, metavar="PNG", help="picture to write")
    arguments = parser.parse_args(argv)
    runs: list[dict[str, Any]] = []
    for name in arguments.files:
        try:
            run = json.loads(Path(name).read_text(encoding="utf-8"))
            run["test"], run["rows"], run["args"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(f"{name} is no result of a perf test's --json: {error}")
        if runs and _measures(run) != _measures(runs[0]):
            parser.error(f"{name} measures {_measures(run)}, the first file {_measures(runs[0])}: they do not fit into one picture")
        runs.append(run)
    draw(runs, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
