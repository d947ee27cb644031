"""Runs one test of a collective on any number of PEs, row by row, and prints NVSHMEM's tables.

A row:

1. sources get fresh random elements (collectives.py); a checked warm-up of ``warmup_iters`` iterations compares the whole destination after
   each;
2. the destination gets the complement of the expected data;
3. the PEs synchronize on the stream, the clock starts, and ``iters`` iterations run in one kernel (``_on_stream``: individual host calls);
4. every PE compares its destination, including guards; a NIC must not have counted errors;
5. latency = time / iters, of the slowest PE; algbw = size / latency; busbw is algbw times NVSHMEM's factor. GB = 1e9 bytes.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pgas
from pgas.job import runtime
from pgas.perftests.harness import counts, pair, report, timing
from pgas.perftests.harness.collectives import BITWISE, dtype_of, row_bytes
from pgas.perftests.harness.options import ALL, Defaults, Options


@dataclass(frozen=True)
class Measured:
    """Measurements of one PE in a row.

    Attributes:
        seconds: average time of an iteration.
        least, most: times of the fastest and the slowest iteration; None if one kernel or one graph performs all.
        fault: what is wrong with the data, or None.
    """

    seconds: float
    least: float | None = None
    most: float | None = None
    fault: str | None = None


@dataclass(frozen=True)
class Case:
    """A row to be measured.

    Attributes:
        size: bytes of the message, or for barriers the threads of a block, as in NVSHMEM's tables.
        scope: thread, warp, or block, or a letter for it; None for host calls.
        ctas, threads: numbers of CTAs and threads of the kernel; None for host calls.
        measure: function that performs the checked warm-up and times the row; collective.
        count: number of elements of the message; None for barriers.
        type: NVSHMEM's name of the element type.
        redop: operation of a reduction.
        bus: factor from algbw to busbw; None for barriers.
    """

    size: int
    scope: str | None
    ctas: int | None
    threads: int | None
    measure: Callable[[], Measured]
    count: int | None = None
    type: str | None = None
    redop: str | None = None
    bus: float | None = None


#: Columns of the tables: key in a row, title, width, and format of figures.
_COLUMNS = (
    ("size", "size(B)", 12, ""), ("count", "count", 10, ""), ("type", "type", 10, ""), ("redop", "redop", 8, ""), ("scope", "scope", 8, ""),
    ("latency_us", "latency(us)", 14, ".6f"), ("min_us", "min_lat(us)", 13, ".3f"), ("max_us", "max_lat(us)", 13, ".3f"),
    ("algbw_gbps", "algbw(GB/s)", 13, ".3f"), ("busbw_gbps", "busbw(GB/s)", 13, ".3f"),
    ("ctas", "ctas", 6, ""), ("threads", "threads", 9, ""), ("validated", "validated", 11, ""), ("wqes", "wqes", 8, ""),
    ("doorbells", "doorbells", 9, ""),
)  # fmt: skip


@dataclass(frozen=True)
class CollTest:
    """One test.

    Attributes:
        name: NVSHMEM's name.
        description: first sentence of --help.
        tables: function that yields the name and the rows of each table.
        defaults: those of NVSHMEM's .args file.
        simulator_defaults: defaults small enough to be interpreted within seconds.
        scopes: values of -s, the default first.
    """

    name: str
    description: str
    tables: Callable[[Options], Iterator[tuple[str, Sequence[Case]]]]
    defaults: Defaults
    simulator_defaults: Defaults
    scopes: Sequence[str] = ("all", "thread", "warp", "block")

    def run(self, argv: Sequence[str]) -> int:
        """Run the test with these flags, and return its exit status; see harness.run()."""
        return pair.in_job(self, argv, row_bytes, _run)


def run_named(tests: Mapping[str, CollTest]) -> int:
    """Run the test named by the name of this program or by its first argument."""
    name, *argv = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if name not in tests and argv:
        name, *argv = argv
    if name not in tests:
        print(f"error: the first argument must be a test: {', '.join(tests)}", file=sys.stderr)
        return 2
    return tests[name].run(argv)


def _run(test: CollTest, options: Options, argv: Sequence[str]) -> int:
    if (reason := pgas.broadcast_object(_reason_to_refuse(options))) is not None:
        raise pair.RefusedError(reason)
    result, shown, valid = pair.new_report(test.name, options, argv, report.LATENCY, None), pgas.my_pe() == 0, True
    nic = runtime.current().nic
    if shown:
        print(*report.run_lines(result, pgas.SIMULATOR, has_proxy=nic is not None and nic.on_host), sep="\n", flush=True)
    timing.prepare()
    pgas.sync_all(stream=0)  # So that its kernel is compiled before the clock starts.
    tables = list(test.tables(options))
    with pair.progress(test.name, sum(len(cases) for _, cases in tables), shown) as advance:
        for table, cases in tables:
            for i, case in enumerate(cases):
                row, faults = measure(case)
                for pe, fault in faults.items():
                    pair.complain(test, f"{table} of {case.size}: PE {pe}: {fault}", pgas.my_pe())
                valid = valid and not faults
                result.rows.append({"table": table, **row})
                if shown:
                    print(*([f"#{table}", _header(row)] if i == 0 else []), report.said(_line(row), pgas.SIMULATOR), sep="\n", flush=True)
                advance()
    if shown:
        pair.write_files(result, options)
    return 0 if valid else 1


def _reason_to_refuse(options: Options) -> str | None:
    if options.ctas > (most := pgas.TEAM_WORLD.channels):
        return f"argument -c/--ctas: {options.ctas} blocks need a channel each, and the team has {most} (PGAS_CHANNELS)"
    if options.reduce_op in BITWISE and options.datatype != ALL and dtype_of(options.datatype, exact=True).kind not in "iu":
        return f"argument -o/--reduce_op: {options.reduce_op} takes integers, and the datatype is {options.datatype}"
    return pair.unwritable(options)


def measure(case: Case) -> tuple[dict[str, Any], dict[int, str]]:
    """Measure a row; return it and, by PE, what is wrong with its data. Collective."""
    before = counts.nic_counts()
    try:
        mine = case.measure()
    except (pgas.HeapError, ValueError) as error:  # Raised on all PEs if there is no room, or the blocks cannot all be resident.
        raise pair.RefusedError(f"size {case.size}: {error}") from error
    given = {name: value - before[name] for name, value in counts.nic_counts().items()}
    errors = f"the software NIC counted {given['errors']} errors" if given.get("errors") else None
    all_of_them = pgas.allgather_object((mine, mine.fault or errors))
    faults = {pe: fault for pe, (_, fault) in enumerate(all_of_them) if fault is not None}
    slowest = max((measured for measured, _ in all_of_them), key=lambda measured: measured.seconds)
    row: dict[str, Any] = {name: value for name, value in vars(case).items() if name not in ("measure", "bus")}
    row |= {"latency_us": None, "min_us": None, "max_us": None, "algbw_gbps": None, "busbw_gbps": None}
    row |= {"wqes": given.get("wqes"), "doorbells": given.get("doorbells"), "validated": not faults}
    if not faults:  # Otherwise, the time is meaningless.
        row["latency_us"] = 1e6 * slowest.seconds
        if slowest.least is not None and slowest.most is not None:
            row |= {"min_us": 1e6 * slowest.least, "max_us": 1e6 * slowest.most}
        if case.bus is not None:
            bandwidth = case.size / slowest.seconds / 1e9
            row |= {"algbw_gbps": bandwidth, "busbw_gbps": bandwidth * case.bus}
    return row, faults


def _header(row: Mapping[str, Any]) -> str:
    return "".join(f"{title:<{width}}" for key, title, width, _ in _COLUMNS if _shown(key, row)).rstrip()


def _line(row: Mapping[str, Any]) -> str:
    """Return one line of the table, with dashes for the figures of wrong data."""
    cells = []
    for key, _, width, form in _COLUMNS:
        if _shown(key, row):
            value = row[key]
            text = ("yes" if value else "NO") if key == "validated" else "-" if value is None else format(value, form)
            cells.append(f"{text:<{width}}")
    return "".join(cells).rstrip()


def _shown(key: str, row: Mapping[str, Any]) -> bool:
    """Whether the table has a column. Barriers have no bandwidth; kernels have no times of individual calls."""
    if key in ("min_us", "max_us"):
        return row["scope"] is None and (row["min_us"] is not None or not row["validated"])
    if key in ("algbw_gbps", "busbw_gbps"):
        return row["count"] is not None
    return key in ("size", "latency_us", "validated") or row[key] is not None
