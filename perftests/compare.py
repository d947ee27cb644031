"""``make compare``: pgas compared with NVSHMEM's own figures, row by row.

    python -m pgas.perftests.compare                  # the results that come with pgas (perftests/baselines)
    python -m pgas.perftests.compare --run            # measures latencies on this machine first, in at most three minutes; writes JSON
    python -m pgas.perftests.compare a.json b.json    # these results

NVSHMEM's figures are from one machine, which baselines/nvshmem-*.json names; results from another machine do not compare exactly. The ratio
is pgas to NVSHMEM: a latency is better below 1, a bandwidth above 1. NVSHMEM's times include the kernel launch, divided by the number of
iterations; those of pgas do not.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgas.base.arguments import Parser, size_flag
from pgas.base.output import outlive_reader
from pgas.perftests.harness import jobs
from pgas.perftests.harness.jobs import BASELINES, RESULTS, Step
from pgas.perftests.harness.plot import read
from pgas.perftests.harness.report import said

__all__ = ["LATENCIES", "compared", "main", "steps"]

#: NVSHMEM's figures.
REFERENCE = BASELINES / "nvshmem-3.4.5-2xH200.json"

#: Tests of latency over p2p: with the flags of NVSHMEM's figures, and some that were not measured with NVSHMEM.
LATENCIES = {
    "shmem_put_latency": "shmem_put_latency -n 500 -w 50 -e 1M -f 4",
    "shmem_get_latency": "shmem_get_latency -n 500 -w 50 -e 1M -f 4",
    "shmem_p_latency": "shmem_p_latency -n 500 -w 50 -e 1M -f 4",
    "shmem_g_latency": "shmem_g_latency -n 500 -w 50 -e 1M -f 4",
    "shmem_atomic_latency-inc": "shmem_atomic_latency -n 500 -w 50",
    "shmem_atomic_latency-fetch_add": "shmem_atomic_latency -n 500 -w 50 -a fetch_add",
    "shmem_put_ping_pong_latency": "shmem_put_ping_pong_latency -n 100 -w 10 -e 64K -f 4",
    "shmem_put_signal_ping_pong_latency": "shmem_put_signal_ping_pong_latency -n 100 -w 10 -e 64K -f 4",
    "shmem_put_signal_ping_pong_latency-block": "shmem_put_signal_ping_pong_latency -n 100 -w 10 -e 1M -f 4 -s block",
    "shmem_put_atomic_ping_pong_latency": "shmem_put_atomic_ping_pong_latency -n 100 -w 10 -e 64K -f 4",
    "shmem_p_ping_pong_latency": "shmem_p_ping_pong_latency -n 500 -w 50 -t 512 -e 16K -f 4",
    "shmem_signal_ping_pong_latency": "shmem_signal_ping_pong_latency -n 500 -w 50",
    "shmem_atomic_ping_pong_latency": "shmem_atomic_ping_pong_latency -n 500 -w 50",
}


def steps(measurements: Mapping[str, str], machine: str, seconds: float) -> Iterator[Step]:
    """Yield one step per perf test, with two PEs; results are in <name>-<machine>.json."""
    for name, line in measurements.items():
        test, *flags = line.split()
        output = str(RESULTS.absolute() / f"{name}-{machine}.json")
        yield Step(name, [*jobs.mpirun(2), sys.executable, "-m", f"pgas.perftests.{test}", *flags, "--json", output], seconds)


def compared(runs: Iterable[Mapping[str, Any]], reference: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table: each row of the runs, with NVSHMEM's figure if there is one."""
    yield f"# {reference['source']}; {reference['machine']}; {reference['date']}"
    yield f"{'test':36}{'scope':8}{'size':>8}{'pgas':>12}{'NVSHMEM':>12}{'ratio':>9}"
    for run in runs:
        yield f"# {run['machine']}, {run['gpu']}; {run['transport']}; {run['date']}; {run['command']}"
        theirs = _figures(reference, run)
        for row in run["rows"]:
            name, unit = ("latency_us", "us") if row["latency_us"] is not None else ("bw_gbps", "GB/s")
            if row[name] is None:
                yield f"{run['test']:36}{row['scope']:8}{size_flag(row['size']):>8}  not validated"
                continue
            other = theirs.get((row["scope"], row["size"], name), theirs.get((None, row["size"], name)))
            numbers = f"{row[name]:12.3f}" + (f"{other:12.3f}{row[name] / other:9.2f}" if other else f"{'-':>12}{'-':>9}")
            yield said(f"{run['test']:36}{row['scope']:8}{size_flag(row['size']):>8}{numbers} {unit}", run["gpu"] is None)


def _figures(reference: Mapping[str, Any], run: Mapping[str, Any]) -> dict[tuple[str | None, int, str], float]:
    """Return NVSHMEM's figures for a run by scope, size, and unit, from the command with the same numbers of CTAs and threads."""
    found: dict[tuple[str | None, int, str], float] = {}
    if run["args"].get("atomic_op") not in (None, "inc") or run["args"].get("bidir"):
        return found
    one_thread = run["test"].endswith("ping_pong_latency") and run["args"]["scope"] != "thread"
    for other in reference["runs"]:
        flags = other["command"].split()
        asked = {flag: int(flags[flags.index(flag) + 1]) if flag in flags else default for flag, default in (("-c", 32), ("-t", 256))}
        same = asked == {"-c": run["args"]["ctas"], "-t": run["args"]["threads_per_cta"]} or "latency" in run["test"]
        if other["test"] == run["test"] and same and not one_thread:
            found |= {
                (row["scope"], row["size"], name): row[name] for row in other["rows"] for name in ("latency_us", "bw_gbps") if name in row
            }
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison."""
    outlive_reader()
    parser = Parser("python -m pgas.perftests.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure latencies on this machine first")
    parser.add_argument("files", nargs="*", metavar="JSON", help="results of perf tests [those in perftests/baselines]")
    arguments = parser.parse_args(argv)
    failed = []
    files = [Path(name) for name in arguments.files]
    if arguments.run:
        names = jobs.gpus()
        machine = jobs.machine_name(names)
        if not names:
            parser.error("--run needs a GPU")
        with jobs.mps() if len(names) == 1 else contextlib.nullcontext():
            failed = [step.name for step in steps(LATENCIES, machine, 60) if not jobs.run(step.command, step.seconds)]
        files += [RESULTS / f"{name}-{machine}.json" for name in LATENCIES if name not in failed]
    files = files or sorted(path for path in BASELINES.glob("shmem_*.json") if "ibgda" not in path.name)
    runs = [read(str(path), ("test", "args", "rows", "machine", "gpu", "transport", "date", "command"), parser) for path in files]
    print(*compared(runs, json.loads(REFERENCE.read_text())), sep="\n")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
