"""Pictures of perf tests.

    python -m pgas.perftests.plot a.json b.json -o bandwidth.png     draws results of --json over message size
    python -m pgas.perftests.plot --figures                          ``make figures``: measures here, then draws
    python -m pgas.perftests.plot --figures figures-1xH200.json      draws again from that file

``--figures`` runs shmem_put_bw and shmem_p_bw over ibrc and ibgda on two PEs. Rows, commands and machine go into
perftests/baselines/figures-<machine>.json; put_bandwidth-<machine>.png and put_rate-<machine>.png are drawn from that file alone.
Rows that were not validated are left out. Without a GPU the runs are small and in the simulator. The exit status is 1 if a run failed.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")  # Files only: no display is needed.

from matplotlib import pyplot
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter, NullLocator

from pgas.perftests import jobs, report
from pgas.perftests.options import size_flag
from pgas.perftests.report import BANDWIDTH, place

__all__ = ["Curve", "Panel", "draw", "draw_figures", "main", "measure", "picture", "plan"]

#: Okabe and Ito's colours without yellow, for every kind of colour vision; the markers tell curves apart in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_MARKERS = "osD^vPX"
_GREY = "#444444"

#: Properties of a run and their text: in the legend where runs differ, below the picture where all are the same.
_TRAITS = {
    "test": "{}", "machine": "{}", "gpu": "{}", "transport": "{}", "adapter": "{}", "engine": "{}", "scope": "scope {}", "ctas": "{} CTAs",
    "threads_per_cta": "{} threads per CTA", "datatype": "{}", "stride": "stride {}", "bidir": "both ways", "iters": "{} iterations",
    "commit": "{:.12}", "date": "{:.10}",
}  # fmt: skip

#: The curves of ``make figures``.
PUT, LIMITED_PUT, SCATTERED_P, COALESCED_P = "put", "put over a limited link", "scattered p", "coalesced p"

#: A ConnectX-6: most messages per second, and Gb/s of one port, which is the limited link.
_CONNECTX6 = 215e6
_LINK = "200"

#: Time limit of a run in seconds.
_LIMIT = 200


class Curve(NamedTuple):
    """A curve and its entry in the legend; y in bytes, messages or seconds."""

    label: str
    points: Sequence[tuple[int, float]]
    number: int  #: index of colour and marker


class Panel(NamedTuple):
    """Axes and their curves."""

    curves: Sequence[Curve]
    x: str
    y: str
    unit: str
    title: str = ""
    log: bool = True
    limit: float | None = None  #: a horizontal line


def picture(path: str, headline: str, details: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side into a PNG, with a headline above and facts about the runs below."""
    figure, axes_of = pyplot.subplots(1, len(panels), squeeze=False, figsize=(3 + 5 * len(panels), 5), dpi=150, layout="constrained")
    try:
        figure.suptitle(headline, fontweight="bold")
        figure.supxlabel(textwrap.fill(details, 110 * len(panels)), fontsize=8, color=_GREY)
        for axes, panel in zip(axes_of[0], panels, strict=True):
            _draw(axes, panel)
        figure.savefig(path)
    finally:
        pyplot.close(figure)


def _draw(axes: Any, panel: Panel) -> None:
    curves = [curve for curve in panel.curves if curve.points]
    for label, points, number in curves:
        style = {"color": _COLOURS[number % len(_COLOURS)], "marker": _MARKERS[number % len(_MARKERS)]}
        axes.plot(*zip(*points, strict=True), label=label, markersize=4.5, linewidth=1.6, **style)
    if panel.limit is not None:
        axes.axhline(panel.limit, color=_GREY, linestyle="--", linewidth=1.2)
    axes.set_title(panel.title, fontsize=10)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if curves:
        axes.set_xscale("log", base=2)
        if panel.log:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=8.5, edgecolor="none", framealpha=0.9)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: size_flag(int(x))))
    axes.yaxis.set_major_formatter(EngFormatter(panel.unit))
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _most(points: Sequence[tuple[int, float]], unit: str = "B/s") -> str:
    """Return the highest y of a curve, three digits with a decimal prefix before its unit."""
    return EngFormatter(unit)(float(f"{max(y for _, y in points):.3g}"))


# ------------------------------------------------------------------------------------------------------------- results of --json


def draw(runs: Sequence[Mapping[str, Any]], path: str) -> None:
    """Draw bandwidth or latency over message size, a curve for each run, scope and path.

    Args:
        runs: JSON objects of perf tests, all of bandwidth or all of latency.
        path: PNG to write.
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
    return str(run.get("measures", BANDWIDTH))  # old results have no such field


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


# ---------------------------------------------------------------------------------------------------------------- make figures


def plan(*, gpu: bool) -> Iterator[dict[str, Any]]:
    """Yield the runs of ``make figures``, the most important first: curve, transport, CTAs, command and variables.

    Sizes are those of one CTA: one message of a put, all messages of p. Every CTA has a queue pair of its own. Scattered p send every other
    element. The simulator is too slow for the limited link.
    """
    put_ctas, p_ctas = ((1, 8, 64), (1, 2, 4, 8, 16, 32, 64)) if gpu else ((1, 2, 4), (1, 2, 4))
    put, p = ("-n 1000 -w 50 -t 1024 -f 2", "-n 50 -w 10 -t 1024") if gpu else ("-n 2 -w 1 -t 32 -f 4", "-n 2 -w 1 -t 32")
    most, p_bytes = (1 << 20, 64 << 10) if gpu else (8 << 10, 1 << 10)
    for curve, transport in ((SCATTERED_P, "ibgda"), (SCATTERED_P, "ibrc"), (COALESCED_P, "ibgda")):
        for ctas in p_ctas:
            size, stride = size_flag(p_bytes * ctas), 2 if curve == SCATTERED_P else 1
            yield _run(curve, transport, ctas, f"shmem_p_bw --transport {transport} {p} -c {ctas} -i {stride} -b {size} -e {size}")
    for curve, numbers in ((LIMITED_PUT, put_ctas[-1:] if gpu else ()), (PUT, put_ctas)):
        for transport, ctas in itertools.product(("ibgda", "ibrc"), numbers):
            sizes = f"-b {size_flag(8 * ctas)} -e {size_flag(most * ctas)}"
            yield _run(curve, transport, ctas, f"shmem_put_bw --transport {transport} {put} -c {ctas} {sizes}")


def _run(curve: str, transport: str, ctas: int, command: str) -> dict[str, Any]:
    variables = {"PGAS_IBGDA_NUM_RC_PER_PE": str(ctas), "PGAS_QP_DEPTH": "8192"}
    if curve == LIMITED_PUT:
        variables["PGAS_SOFTHCA_GBPS"] = _LINK
    return {"curve": curve, "transport": transport, "ctas": ctas, "command": command, "environment": variables}


def measure(runs: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> dict[str, Any]:
    """Make the runs on two PEs and return the results; the file is written after each run.

    Args:
        runs: from plan().
        names: names of the GPUs; none in the simulator.
        path: JSON to write.
    """
    data: dict[str, Any] = {"machine": None, "gpu": names[0] if names else None, "gpus": min(len(names), 2)}
    data |= {"commit": report.commit(), "date": report.now(), "versions": {}, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            result = Path(folder) / f"{number}.json"
            test, *flags = shlex.split(run["command"])
            job = [*jobs.mpirun(2), sys.executable, "-m", f"pgas.perftests.{test}", *flags, "--json", str(result)]
            succeeded = jobs.run(job, _LIMIT, run["environment"])
            found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"rows": []}
            data |= {key: found[key] for key in ("machine", "versions") if key in found}
            environment = os.environ | run["environment"]
            variables = {name: environment[name] for name in sorted(environment) if name.startswith(("PGAS_", "NUMBA_"))}
            data["runs"].append(
                {**run, "command": f"mpirun -n 2 {run['command']}", "environment": variables, "succeeded": succeeded}
                | {key: found[key] for key in ("date", "adapter", "engine", "cpus", "rows") if key in found}
            )
            path.write_text(report.rows_in_lines(data) + "\n", encoding="utf-8")
    return data


def draw_figures(data: Mapping[str, Any], folder: Path, machine: str) -> None:
    """Draw the results of measure(): bandwidth of puts over message size, and rate of p over CTAs."""
    runs = [run for run in data["runs"] if run["rows"]]
    engines = sorted({f"NIC: {run['adapter']}, {run['engine']} engine" for run in runs})
    count = f"{data['gpus']} x " if data["gpus"] > 1 else ""
    facts = [count + place(data["machine"], data["gpu"]), *engines, f"commit {(data['commit'] or 'unknown')[:12]}", data["date"][:10]]
    if failed := sum(not run["succeeded"] for run in data["runs"]):
        facts.append(f"{failed} of {len(data['runs'])} runs failed, wholly or in part")
    if data["gpu"] is None:
        facts.append("kernels are interpreted: rates are an interpreter's")

    panels = []
    for transport in ("ibrc", "ibgda"):
        by_ctas = _by_ctas(data, PUT, transport)
        curves = [Curve(f"{ctas} CTAs, at most {_most(points)}", points, i) for i, (ctas, points) in enumerate(by_ctas.items())]
        panels.append(Panel(curves, "message size", "bandwidth", "B/s", transport))
    link, curves = float(_LINK) / 8 * 1e9, []
    for i, transport in enumerate(("ibgda", "ibrc")):
        for ctas, points in _by_ctas(data, LIMITED_PUT, transport).items():
            filled = [size_flag(size) for size, rate in points if rate >= 0.9 * link]
            curves.append(Curve(f"{transport}, {ctas} CTAs: 90% with {filled[0] if filled else 'no size'}", points, i))
    if curves:
        panels.append(Panel(curves, "message size", "bandwidth", "B/s", "over a link of 25 GB/s", False, link))
    picture(str(folder / f"put_bandwidth-{machine}.png"), "put through a NIC, a queue pair a CTA", ", ".join(facts), panels)

    curves = []
    for i, (name, transport) in enumerate(((SCATTERED_P, "ibgda"), (SCATTERED_P, "ibrc"), (COALESCED_P, "ibgda"))):
        rows = [row for run in runs if (run["curve"], run["transport"]) == (name, transport) for row in run["rows"] if row["validated"]]
        points = sorted((row["ctas"], row["mops"] * 1e6) for row in rows)
        if points:
            curves.append(Curve(f"{transport}, {name}: at most {_most(points, '/s')}", points, i))
    limit, title = (_CONNECTX6, "dashed: the limit of a ConnectX-6, 215 M/s") if data["gpu"] else (None, "")
    panel = Panel(curves, "CTAs", "p per second", "/s", title, True, limit)
    picture(str(folder / f"put_rate-{machine}.png"), "p through a NIC, a queue pair a CTA", ", ".join(facts), [panel])


def _by_ctas(data: Mapping[str, Any], curve: str, transport: str) -> dict[int, list[tuple[int, float]]]:
    """Return (bytes of a message, bandwidth) points by number of CTAs."""
    found = {}
    for run in sorted(data["runs"], key=lambda run: run["ctas"]):
        points = sorted((row["message_bytes"], row["bw_gbps"] * 1e9) for row in run["rows"] if row["validated"])
        if (run["curve"], run["transport"]) == (curve, transport) and points:
            found[run["ctas"]] = points
    return found


def _figures(source: str, parser: argparse.ArgumentParser) -> int:
    if source:
        data = _read(source, ("runs", "gpus", "gpu"), parser)
        folder, machine = Path(source).parent, Path(source).stem.removeprefix("figures-")
    else:
        if shutil.which("mpirun") is None:
            parser.error("measuring needs an mpirun")
        names = jobs.gpus()
        folder, machine = jobs.BASELINES, jobs.machine_name(names)
        # The software card takes a spare GPU, or shares one with a PE.
        with jobs.mps() if len(names) in (1, 2) else contextlib.nullcontext():
            data = measure(list(plan(gpu=bool(names))), names, folder / f"figures-{machine}.json")
    draw_figures(data, folder, machine)
    failed = [run["command"] for run in data["runs"] if not run["succeeded"]]
    print(*(f"failed: {command}" for command in failed), sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


def _read(name: str, keys: Sequence[str], parser: argparse.ArgumentParser) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(Path(name).read_text(encoding="utf-8"))
        [data[key] for key in keys]
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{name} is no result of a perf test's --json, or of --figures: {error}")
    return data


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser("python -m pgas.perftests.plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="JSON", help="result of a perf test's --json")
    parser.add_argument("-o", "--output", metavar="PNG", help="picture to write")
    parser.add_argument("--figures", nargs="?", const="", metavar="JSON", help="make figures: measure and draw, or draw from this file")
    arguments = parser.parse_args(argv)
    if arguments.figures is not None:
        return _figures(arguments.figures, parser)
    if not arguments.files or arguments.output is None:
        parser.error("results of perf tests and -o are needed, or --figures")
    runs = [_read(name, ("test", "rows", "args"), parser) for name in arguments.files]
    for name, run in zip(arguments.files, runs, strict=True):
        if _measures(run) != _measures(runs[0]):
            parser.error(f"{name} measures {_measures(run)}, the first file {_measures(runs[0])}: they cannot share a picture")
    draw(runs, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
