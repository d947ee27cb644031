"""``make figures``: runs perf tests over NICs, keeps their rows in one JSON, and draws pictures from that file alone.

The command is ``python -m pgas.perftests.plot --figures``.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgas.perftests import jobs, report
from pgas.perftests.options import size_flag
from pgas.perftests.plot import Curve, Panel, highest, picture, read
from pgas.perftests.report import place

__all__ = ["draw_figures", "main", "measure", "plan"]

#: The curves.
PUT, LIMITED_PUT, SCATTERED_P, COALESCED_P = "put", "put over a limited link", "scattered p", "coalesced p"

#: A ConnectX-6: most messages per second, and Gb/s of one port, which is the limited link.
_CONNECTX6 = 215e6
_LINK = "200"

#: Time limit of a run in seconds.
_LIMIT = 200


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
        curves = [Curve(f"{ctas} CTAs, at most {highest(points)}", points, i) for i, (ctas, points) in enumerate(by_ctas.items())]
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
            curves.append(Curve(f"{transport}, {name}: at most {highest(points, '/s')}", points, i))
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


def main(source: str, parser: argparse.ArgumentParser) -> int:
    """Measure, or take the JSON source, and draw; return the exit status. parser says what is wrong with the arguments."""
    if source:
        data = read(source, ("runs", "gpus", "gpu"), parser)
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
