"""``make figures``: runs perf tests over NICs, keeps their rows in one JSON, and draws pictures from that file alone.

    python tests/tools/figures.py                          measures here, then draws
    python tests/tools/figures.py --only all-to-all        measures this curve anew, and keeps the others
    python tests/tools/figures.py figures-1xH200.json      draws again from that file

shmem_put_bw, shmem_p_bw and alltoall_latency run on two PEs and Jacobi on two to four, over ibrc and ibgda; Jacobi also over p2p. Rows,
commands and machine go into perftests/baselines/figures-<machine>.json. put_bandwidth-<machine>.png, put_rate-, jacobi- and alltoall- are
drawn from that file alone. Rows that were not validated are left out. Without a GPU the runs are small and in the simulator. The exit
status is 1 if a run failed.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgas.base.arguments import Parser, pattern, size_flag
from pgas.base.output import outlive_reader
from pgas.perftests.harness import jobs, report
from pgas.perftests.harness.plot import Curve, Panel, highest, lacking, picture, read
from pgas.perftests.harness.report import place

__all__ = ["draw_figures", "main", "measure", "plan"]

#: The curves.
PUT, LIMITED_PUT, SCATTERED_P, COALESCED_P = "put", "put over a limited link", "scattered p", "coalesced p"
JACOBI_P, JACOBI_PUT, ALLTOALL = "Jacobi by p", "Jacobi by put", "all-to-all"

#: A ConnectX-6: most messages per second, and Gb/s of one port, which is the limited link.
_CONNECTX6 = 215e6
_LINK = "200"

#: Queue pairs to each PE in Jacobi runs: as many as p over ibrc has at its highest rate.
_JACOBI_QUEUES = 8

#: NVIDIA compares all-to-alls below this number of bytes to each PE.
_SMALL = 16 << 10

#: Time limit of a run in seconds.
_LIMIT = 200

Points = list[tuple[int, float]]


# What is measured -----------------------------------------------------------------------------------------------------------------


def plan(*, gpu: bool) -> Iterator[dict[str, Any]]:
    """Yield the runs: curve, transport, PEs, command and variables; of put and p also the CTAs.

    Sizes of put and p are those of one CTA: one message of a put, all messages of p. Every CTA has a queue pair of its own. Scattered p
    send every other element. The simulator is too slow for the limited link.
    """
    put_ctas, p_ctas = ((1, 8, 64), (1, 2, 4, 8, 16, 32, 64)) if gpu else ((1, 2, 4), (1, 2, 4))
    put, p = ("-n 1000 -w 50 -t 1024 -f 2", "-n 50 -w 10 -t 1024") if gpu else ("-n 2 -w 1 -t 32 -f 4", "-n 2 -w 1 -t 32")
    most, p_bytes = (1 << 20, 64 << 10) if gpu else (8 << 10, 1 << 10)
    for curve, transport in ((SCATTERED_P, "ibgda"), (SCATTERED_P, "ibrc"), (COALESCED_P, "ibgda")):
        for ctas in p_ctas:
            size, stride = size_flag(p_bytes * ctas), 2 if curve == SCATTERED_P else 1
            flags = f"{p} -c {ctas} -i {stride} -b {size} -e {size}"
            yield _run(curve, transport, f"shmem_p_bw --transport {transport} {flags}", _queues(ctas), ctas=ctas)
    for curve, numbers in ((LIMITED_PUT, put_ctas[-1:] if gpu else ()), (PUT, put_ctas)):
        for transport, ctas in itertools.product(("ibgda", "ibrc"), numbers):
            flags = f"{put} -c {ctas} -b {size_flag(8 * ctas)} -e {size_flag(most * ctas)}"
            variables = _queues(ctas) | ({"PGAS_SOFTHCA_GBPS": _LINK} if curve == LIMITED_PUT else {})
            yield _run(curve, transport, f"shmem_put_bw --transport {transport} {flags}", variables, ctas=ctas)
    # NVIDIA's default width, and few rows: PEs that share a GPU compute no faster than one, so computing must take less time than sending.
    mesh = "-nx 16384 -ny 256 -niter 1000 -nccheck 100" if gpu else "-nx 130 -ny 18 -niter 4 -nccheck 2"
    for curve, transport, npes in itertools.product((JACOBI_P, JACOBI_PUT), ("ibrc", "ibgda", "p2p"), (2, 3, 4)):
        version = " -use_block_comm" if curve == JACOBI_PUT else ""
        yield _run(curve, transport, f"jacobi --transport {transport} -csv {mesh}{version}", _queues(_JACOBI_QUEUES), npes=npes)
    sizes = "-n 500 -w 20 -t 256 -f 2 -b 8 -e 2M" if gpu else "-n 2 -w 1 -t 64 -f 16 -b 8 -e 2K"
    for transport in ("ibrc", "ibgda"):
        yield _run(ALLTOALL, transport, f"coll_latency alltoall_latency --transport {transport} -s block -d int32 {sizes}", {})


def _run(curve: str, transport: str, command: str, variables: dict[str, str], npes: int = 2, **more: int) -> dict[str, Any]:
    return {"curve": curve, "transport": transport, "npes": npes, "command": command, "environment": variables, **more}


def _queues(n: int) -> dict[str, str]:
    return {"PGAS_IBGDA_NUM_RC_PER_PE": str(n), "PGAS_QP_DEPTH": "8192"}


def measure(runs: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make the runs and return the results; the file is written after each run.

    Args:
        runs: from plan().
        names: names of the GPUs; none in the simulator.
        path: JSON to write.
        before: earlier results of this machine. Those of other curves are kept.
    """
    curves, commit = {run["curve"] for run in runs}, report.commit()
    data: dict[str, Any] = {"machine": None, "gpu": names[0] if names else None, **(before or {})}
    data["runs"] = [run for run in data.get("runs", ()) if run["curve"] not in curves]
    with tempfile.TemporaryDirectory() as folder:
        for number, run in enumerate(runs):
            result, npes, date = Path(folder) / f"{number}.json", run["npes"], report.now()
            module, *flags = shlex.split(run["command"])
            job = [*jobs.mpirun(npes), sys.executable, "-m", f"pgas.perftests.{module}", *flags, "--json", str(result)]
            succeeded = jobs.run(job, _LIMIT, run["environment"])
            found = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {"rows": []}
            data["machine"] = found.get("machine", data["machine"])
            environment = os.environ | run["environment"]
            variables = {name: environment[name] for name in sorted(environment) if name.startswith(("PGAS_", "NUMBA_"))}
            data["runs"].append(
                {**run, "command": f"mpirun -n {npes} python -m pgas.perftests.{run['command']}", "environment": variables}
                | {"gpus": min(len(names), npes), "commit": commit, "date": date, "succeeded": succeeded}
                | {key: found[key] for key in ("adapter", "engine", "cpus", "versions", "rows") if key in found}
            )
            path.write_text(report.rows_in_lines(data) + "\n", encoding="utf-8")
    return data


# What is drawn --------------------------------------------------------------------------------------------------------------------


def draw_figures(data: Mapping[str, Any], folder: Path, machine: str) -> None:
    """Draw the pictures that the results of measure() have runs for. In old results, commit, date and GPUs are not with the runs."""
    for name, (curves, drawn) in _PICTURES.items():
        runs = [{"gpus": 1, "commit": None, "adapter": None, **data, **run} for run in data["runs"] if run["curve"] in curves]
        if runs:
            headline, panels = drawn(runs)
            picture(str(folder / f"{name}-{machine}.png"), headline, ", ".join(_facts(runs)), panels)


def _facts(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    gpus, gpu = max(run["gpus"] for run in runs), runs[0]["gpu"]
    yield (f"{gpus} x " if gpus > 1 else "") + place(runs[0]["machine"], gpu)
    yield from sorted({f"NIC: {run['adapter']}, {run['engine']} engine" for run in runs if run["adapter"]})
    yield from dict.fromkeys(f"commit {(run['commit'] or 'unknown')[:12]}" for run in runs)
    yield from dict.fromkeys(run["date"][:10] for run in runs)
    if failed := sum(not run["succeeded"] for run in runs):
        yield f"{failed} of {len(runs)} runs failed, wholly or in part"
    if gpu is None:
        yield "kernels are interpreted: rates and times are an interpreter's"


def _points(runs: Sequence[Mapping[str, Any]], curve: str, transport: str, x: str, y: str, unit: float) -> Points:
    """Return a curve: two columns of its valid rows, y in units."""
    rows = [row for run in runs if (run["curve"], run["transport"]) == (curve, transport) for row in run["rows"] if row["validated"]]
    return sorted((row[x], row[y] * unit) for row in rows)


def _put_bandwidth(runs: Sequence[Mapping[str, Any]]) -> tuple[str, list[Panel]]:
    panels = []
    for transport in ("ibrc", "ibgda"):
        by_ctas = _by_ctas(runs, PUT, transport)
        curves = [Curve(f"{ctas} CTAs, at most {highest(points)}", points, i) for i, (ctas, points) in enumerate(by_ctas.items())]
        panels.append(Panel(curves, "message size", "bandwidth", "B/s", transport))
    link, curves = float(_LINK) / 8 * 1e9, []
    for i, transport in enumerate(("ibgda", "ibrc")):
        for ctas, points in _by_ctas(runs, LIMITED_PUT, transport).items():
            filled = [size_flag(size) for size, rate in points if rate >= 0.9 * link]
            curves.append(Curve(f"{transport}, {ctas} CTAs: 90% with {filled[0] if filled else 'no size'}", points, i))
    if curves:
        panels.append(Panel(curves, "message size", "bandwidth", "B/s", "over a link of 25 GB/s", False, link))
    return "put through a NIC, a queue pair a CTA", panels


def _by_ctas(runs: Sequence[Mapping[str, Any]], curve: str, transport: str) -> dict[int, Points]:
    """Return (bytes of a message, bandwidth) points by number of CTAs."""
    numbers = sorted({run["ctas"] for run in runs})
    found = {n: _points([run for run in runs if run["ctas"] == n], curve, transport, "message_bytes", "bw_gbps", 1e9) for n in numbers}
    return {n: points for n, points in found.items() if points}


def _put_rate(runs: Sequence[Mapping[str, Any]]) -> tuple[str, list[Panel]]:
    curves = []
    for i, (name, transport) in enumerate(((SCATTERED_P, "ibgda"), (SCATTERED_P, "ibrc"), (COALESCED_P, "ibgda"))):
        points = _points(runs, name, transport, "ctas", "mops", 1e6)
        if points:
            curves.append(Curve(f"{transport}, {name}: at most {highest(points, '/s')}", points, i))
    limit, title = (_CONNECTX6, "dashed: the limit of a ConnectX-6, 215 M/s") if runs[0]["gpu"] else (None, "")
    return "p through a NIC, a queue pair a CTA", [Panel(curves, "CTAs", "p per second", "/s", title, True, limit)]


def _jacobi(runs: Sequence[Mapping[str, Any]]) -> tuple[str, list[Panel]]:
    rows = [row for run in runs for row in run["rows"] if row["validated"]]
    texts = "{iterations} iterations on a mesh of {ny} rows x {nx} columns of float32, norm every {nccheck} iterations"
    title = [*dict.fromkeys(texts.format(**row) for row in rows)]
    times = {(c, t): _points(runs, c, t, "pes", "time_ms", 1e-3) for t in ("ibrc", "ibgda", "p2p") for c in (JACOBI_P, JACOBI_PUT)}
    for text, a, b in (
        ("ibrc: p takes {} times as long as put", (JACOBI_P, "ibrc"), (JACOBI_PUT, "ibrc")),
        ("p over ibgda takes {} times as long as put over ibrc", (JACOBI_P, "ibgda"), (JACOBI_PUT, "ibrc")),
    ):
        if ratio := _ratio(times[a], times[b]):
            title.append(text.format(ratio))
    alone = max((row["one_pe_ms"] for row in rows), default=None)
    if alone is not None:
        title.append("dashed gray: one PE alone, which sends nothing, in the slowest run")
    curves = [
        Curve(f"{transport}, {curve.removeprefix('Jacobi by ')}", points, i // 2, hollow=curve == JACOBI_PUT)
        for i, ((curve, transport), points) in enumerate(times.items())
    ]
    limit = None if alone is None else alone / 1e3
    panel = Panel(curves, "PEs", "time of all iterations", "s", "\n".join(title), True, limit, few=True)
    return f"Jacobi by p and by put, {_JACOBI_QUEUES} queue pairs to each PE", [panel]


def _alltoall(runs: Sequence[Mapping[str, Any]]) -> tuple[str, list[Panel]]:
    latencies: dict[str, Points] = {}
    for run in runs:
        points = _points([run], ALLTOALL, run["transport"], "size", "latency_us", 1e-6)
        latencies[run["transport"]] = [(size // run["npes"], seconds) for size, seconds in points]
    small = {transport: [point for point in points if point[0] < _SMALL] for transport, points in latencies.items()}
    ratio = _ratio(small.get("ibgda", []), small.get("ibrc", []))
    title = f"below 16 KiB ibgda takes {ratio} times as long as ibrc" if ratio else ""
    curves = []
    for i, (transport, points) in enumerate(latencies.items()):
        steps = [abs(b / a - 1) for (_, a), (_, b) in itertools.pairwise(small[transport])]
        text = f", steps of up to {max(steps):.0%} below 16 KiB" if steps else ""
        curves.append(Curve(transport + text, points, i))
    panel = Panel(curves, "bytes from each PE to each", "latency", "s", title)
    return f"all-to-all of {runs[0]['npes']} PEs, by a block of each", [panel]


def _ratio(points: Points, others: Points) -> str:
    """Return how many times as high the points are as others of the same x: the least and the most; empty if there are none."""
    below = dict(others)
    found = sorted(y / below[x] for x, y in points if x in below)
    return " to ".join(dict.fromkeys(f"{ratio:.2g}" for ratio in (*found[:1], *found[-1:])))


#: By name: the curves of a picture, and what makes its headline and panels from their runs.
_PICTURES: dict[str, tuple[tuple[str, ...], Callable[[Sequence[Mapping[str, Any]]], tuple[str, list[Panel]]]]] = {
    "put_bandwidth": ((PUT, LIMITED_PUT), _put_bandwidth),
    "put_rate": ((SCATTERED_P, COALESCED_P), _put_rate),
    "jacobi": ((JACOBI_P, JACOBI_PUT), _jacobi),
    "alltoall": ((ALLTOALL,), _alltoall),
}


# The command ----------------------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    outlive_reader()
    parser = Parser("python tests/tools/figures.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="JSON", help="draw from this file instead of measuring")
    parser.add_argument("--only", type=pattern, metavar="REGEX", help="measure the curves whose names match")
    arguments = parser.parse_args(argv)
    if (why := lacking()) is not None:
        parser.error(why)
    source, only = arguments.file, arguments.only
    if source and only is not None:
        parser.error("argument --only: it says what is measured, and a file is only drawn")
    if source:
        data = read(source, ("runs", "gpu"), parser)
        folder, machine = Path(source).parent, Path(source).stem.removeprefix("figures-")
    else:
        if shutil.which("mpirun") is None:
            parser.error("measuring needs an mpirun")
        names = jobs.gpus()
        folder, machine = jobs.RESULTS, jobs.machine_name(names)
        path, every = folder / f"figures-{machine}.json", list(plan(gpu=bool(names)))
        runs = [run for run in every if only is None or only.search(run["curve"])]
        if not runs:
            parser.error(f"argument --only: no curve matches; they are: {', '.join(dict.fromkeys(run['curve'] for run in every))}")
        before = read(str(path), ("runs", "gpu"), parser) if only is not None and path.exists() else None
        # PEs and the software card share GPUs unless each has its own.
        with jobs.mps() if 0 < len(names) <= max(run["npes"] for run in runs) else contextlib.nullcontext():
            data = measure(runs, names, path, before)
    draw_figures(data, folder, machine)
    failed = [run["command"] for run in data["runs"] if not run["succeeded"]]
    print(*(f"failed: {command}" for command in failed), sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
