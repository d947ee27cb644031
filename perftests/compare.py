"""``make compare``: pgas compared with NVSHMEM, NCCL, and PyTorch's symmetric memory, row by row.

    python -m pgas.perftests.compare                  # the results that come with pgas (perftests/baselines)
    python -m pgas.perftests.compare --run            # measures on this machine first, and writes JSON
    python -m pgas.perftests.compare a.json b.json    # these results

Point-to-point tests are compared with NVSHMEM's figures from one machine, which baselines/nvshmem-*.json names; results from another
machine do not compare exactly. The ratio is pgas to NVSHMEM: a latency is better below 1, a bandwidth above 1. NVSHMEM's times include the
kernel launch, divided by the number of iterations; those of pgas do not.

Collectives that the host calls are measured on two GPUs and on all GPUs, together with NCCL and symmetric memory (coll_compare), and with
NVSHMEM's own tests, if --nvshmem names a directory that has them. Otherwise, NVSHMEM's column has figures that were recorded on such a
machine, with their date. The ratio is pgas to its fastest peer, or to the floor of coll_compare where there is none. No peer uses multicast
(NVLS), because pgas uses none; variables that are set are kept (NVSHMEM_DISABLE_NVLS=0 NCCL_NVLS_ENABLE=1
TORCH_SYMM_MEM_DISABLE_MULTICAST=0).
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgas.base import interpreter
from pgas.base.arguments import Parser, output_file, size_flag
from pgas.base.config import size_text
from pgas.base.output import outlive_reader
from pgas.perftests.harness import jobs
from pgas.perftests.harness.jobs import BASELINES, RESULTS, Step
from pgas.perftests.harness.plot import read
from pgas.perftests.harness.report import now, place, rows_in_lines, said

__all__ = ["LATENCIES", "SIZES", "TESTS", "WITHOUT_MULTICAST", "compared", "figures_of_nvshmem", "main", "markdown", "steps", "table"]

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

#: Tests of the host's collectives, pgas's and NVSHMEM's, by collective; and the bytes of a message.
TESTS = {name: f"{name}_on_stream" for name in ("alltoall", "broadcast", "fcollect")} | {
    "reduce": "reduction_on_stream", "reducescatter": "reducescatter_on_stream", "barrier": "barrier_all_on_stream",
}  # fmt: skip
SIZES = (4 << 10, 32 << 10, 512 << 10, 8 << 20, 64 << 20)

#: Variables with which NVSHMEM, NCCL, and symmetric memory use no multicast of NVLink (NVLS), because pgas uses none.
WITHOUT_MULTICAST = {"NVSHMEM_DISABLE_NVLS": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}

#: Columns of their table.
_PEERS = ("NVSHMEM", "NCCL", "symmetric memory")
_COLUMNS = ("pgas", *_PEERS, "floor")


def steps(measurements: Mapping[str, str], machine: str, seconds: float) -> Iterator[Step]:
    """Yield one step per perf test, with two PEs; results are in <name>-<machine>.json."""
    for name, line in measurements.items():
        test, *flags = line.split()
        output = str(RESULTS.absolute() / f"{name}-{machine}.json")
        yield Step(name, [*jobs.mpirun(2), *interpreter.command(f"pgas.perftests.{test}", *flags, "--json", output)], seconds)


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


# Collectives ----------------------------------------------------------------------------------------------------------------------


def table(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a run of coll_compare as text."""
    yield f"# {run['npes']} PEs on {place(run['machine'], run['gpu'])}; {run['transport']}; {run['date']}; {run['command']}"
    yield f"# us of a call in a graph, float32; puts to the neighbor {run['put_gbps']:.4g} GB/s, an empty kernel {run['launch_us']:.3g} us"
    yield from (f"# {text}" for text in _notes(run))
    yield f"{'collective':16}{'size':>6}" + "".join(f"{name:>18}" for name in _COLUMNS) + f"{'ratio':>8}  to"
    for row in run["rows"]:
        size = size_flag(row["size"]) if row["size"] else ""
        cells = "".join(f"{_shown(row.get(name)) or '-':>18}" for name in _COLUMNS)
        found = {row[name]: name for name in _PEERS if row.get(name)} or {row["floor"]: "floor"}
        ratio = f"{row['pgas'] / min(found):8.2f}  {found[min(found)]}" if row["pgas"] else "  not validated"
        yield said(f"{row['collective']:16}{size:>6}{cells}{ratio}", run["gpu"] is None)


def markdown(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of docs/figures.md. A row is a collective and a size; a cell has the figures of all runs."""
    yield f"| µs, {' / '.join(str(run['npes']) for run in runs)} PEs | {' | '.join(_COLUMNS)} |"
    yield "|---" * (len(_COLUMNS) + 1) + "|"
    by_key = [{(row["collective"], row["size"]): row for row in run["rows"]} for run in runs]
    for name, size in dict.fromkeys(key for rows in by_key for key in rows):
        figures = ([_shown(rows.get((name, size), {}).get(column)) for rows in by_key] for column in _COLUMNS)
        cells = [" / ".join(texts) if any(texts) else "" for texts in figures]
        yield f"| {name}{f', {size_text(size)}' if size else ''} | {' | '.join(cells)} |"
    for run in runs:
        where = f"{run['npes']} PEs: {place(run['machine'], run['gpu'])}, {run['date'][:10]}, `{run['command']}`"
        yield f"\n{'. '.join([where, *_notes(run)])}."


def _notes(run: Mapping[str, Any]) -> list[str]:
    """Return what was measured, and why the rest was not."""
    found = [f"NVSHMEM: {run.get('nvshmem', 'not measured')}", *([run["peers"]] if run["peers"] else [])]
    return [*found, *(f"{library} is not measured: {why}" for library, why in run["missing"].items())]


def _shown(us: float | None) -> str:
    """Return three digits of microseconds; None is an empty string."""
    return "" if us is None else f"{us:.0f}" if us >= 99.95 else f"{us:.1f}"


def figures_of_nvshmem(output: str) -> dict[int, float]:
    """Return microseconds by bytes from the table that one of NVSHMEM's tests of collectives prints; a barrier has size 0."""
    names: list[str] = []
    found: dict[int, float] = {}
    for line in output.splitlines():
        if line.startswith("size(B)"):
            names = [name.replace(" ", "") for name in re.split(r"\s{2,}", line.strip())]
        elif names and re.match(r"\d+\s", line):
            row = dict(zip(names, line.split(), strict=False))
            if row.get("redop", "sum") == "sum":
                found.setdefault(int(row["size(B)"]) if "count" in row else 0, float(row["latency(us)"]))
    return found


def _add_nvshmem(run: dict[str, Any], folder: str | None) -> None:
    """Add NVSHMEM's column: measured by the tests in a directory, otherwise recorded on a machine with as many of the same GPUs."""
    recorded = [json.loads(path.read_text()) for path in BASELINES.glob("nvshmem-*.json")]
    recorded = [each for each in recorded if (each.get("gpu"), each.get("npes")) == (run["gpu"], run["npes"])]
    if folder is not None:
        found = {(name, size): us for name, test in TESTS.items() for size, us in _run_nvshmem(folder, test, run["npes"]).items()}
        run["nvshmem"] = f"{folder}, in graphs, {now()[:10]}"
    elif recorded:
        found = {(row["collective"], row["size"]): row["us"] for row in recorded[0]["rows"]}
        run["nvshmem"] = f"{recorded[0]['source']}, {recorded[0]['date']}"
    else:
        return
    for row in run["rows"]:
        row["NVSHMEM"] = found.get((row["collective"], row["size"]))


def _run_nvshmem(folder: str, test: str, npes: int) -> dict[int, float]:
    """Run one of NVSHMEM's tests, and return its figures; none if it fails."""
    flags = ["--cudagraph", "-n", "100", "-w", "5"]
    if test != TESTS["barrier"]:
        flags += ["-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "2", "-d", "float", *(["-o", "sum"] if test.startswith("redu") else [])]
    path = next(iter(sorted(Path(folder).rglob(test))), Path(folder, test))
    variables = {name: os.environ.get(name, value) for name, value in WITHOUT_MULTICAST.items()}
    with tempfile.TemporaryFile() as file:
        succeeded = jobs.run([*jobs.mpirun(npes), str(path.absolute()), *flags], 120, variables, file)
        file.seek(0)
        output = file.read().decode(errors="replace")
    if not succeeded or not (found := figures_of_nvshmem(output)):
        print(f"{path} {' '.join(flags)} failed:", *output.splitlines()[-5:], sep="\n", file=sys.stderr)
        return {}
    return found


def _measured_collectives(names: list[str], folder: str | None) -> tuple[list[Path], list[str]]:
    """Measure on two PEs, and on all GPUs. Return the files, and the steps that failed."""
    files, failed = [], []
    for npes in sorted({2, max(2, len(names))}):
        path = RESULTS.absolute() / f"coll_compare-{jobs.machine_name(names, npes)}.json"
        command = [*jobs.mpirun(npes), *interpreter.command("pgas.perftests.coll_compare", "--json", str(path))]
        path.unlink(missing_ok=True)
        if not jobs.run(command, 400):
            failed.append(path.stem)
        if path.exists():
            run = json.loads(path.read_text(encoding="utf-8"))
            _add_nvshmem(run, folder)
            path.write_text(rows_in_lines(run) + "\n", encoding="utf-8")
            files.append(path)
    return files, failed


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison."""
    outlive_reader()
    parser = Parser("python -m pgas.perftests.compare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure on this machine first")
    parser.add_argument("--collectives", action="store_true", help="only collectives")
    parser.add_argument("--nvshmem", metavar="DIR", help="with --run: a directory with NVSHMEM's own tests (alltoall_on_stream, ...)")
    parser.add_argument("--markdown", action="store_true", help="print the table of the collectives as Markdown")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all results into one file")
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
            latencies = {} if arguments.collectives else LATENCIES
            failed = [step.name for step in steps(latencies, machine, 60) if not jobs.run(step.command, step.seconds)]
            files += [RESULTS / f"{name}-{machine}.json" for name in latencies if name not in failed]
            more, without = _measured_collectives(names, arguments.nvshmem)
        files, failed = files + more, failed + without
    recorded = [path for pattern in ("shmem_*.json", "coll_compare-*.json") for path in sorted(BASELINES.glob(pattern))]
    files = files or [path for path in recorded if "ibgda" not in path.name]
    runs = [read(str(path), ("test", "args", "rows", "machine", "gpu", "transport", "date", "command"), parser) for path in files]
    of_collectives = [run for run in runs if run["test"] == "coll_compare"]
    others = [] if arguments.collectives else [run for run in runs if run["test"] != "coll_compare"]
    lines = list(compared(others, json.loads(REFERENCE.read_text()))) if others else []
    lines += markdown(of_collectives) if arguments.markdown else [line for run in of_collectives for line in table(run)]
    print(*lines, sep="\n")
    if arguments.json is not None:
        Path(arguments.json).write_text(rows_in_lines({"runs": others + of_collectives}) + "\n", encoding="utf-8")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
