"""The output of a perf test: NVSHMEM's table with additional columns (message rate, CTAs, validation), and JSON. It does not call pgas."""

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pgas.perftests.harness.jobs import starting

#: Quantity that the rows of a test measure.
BANDWIDTH, LATENCY = "bandwidth", "latency"

_MEASURED = {
    BANDWIDTH: (("BW (GB/sec)", 16), ("msgrate (MMPS)", 16), ("ctas", 6)),
    LATENCY: (("latency (us)", 16), ("threads", 9)),
}


def _columns(measures: str) -> tuple[tuple[str, int], ...]:
    after = (("type", 9), ("validated", 11), ("messages", 10), ("wqes", 10), ("doorbells", 9))
    return (("size(B)", 12), ("scope", 10), *_MEASURED[measures], *after)


#: Number of the last columns, which only tables over a NIC have: calls, WQEs, and doorbells.
_NIC_COLUMNS = 3

#: NVSHMEM's table names that differ from the test's; {} is the atomic operation.
_TABLES = {
    "shmem_put_bw": "shmem_put_bw_uni", "shmem_get_bw": "shmem_get_bw_uni", "shmem_atomic_bw": "shmem_atomic_{}",
    "shmem_atomic_latency": "shmem_at_{}_ping_lat", "shmem_put_ping_pong_latency": "shmem_put_ping_lat",
    "shmem_signal_ping_pong_latency": "shmem_sig_ping_lat",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One message size.

    Attributes:
        size: number of bytes that one PE moves per iteration.
        message_bytes: bytes of the largest message.
        ctas: number of CTAs that had something to send.
        threads: number of threads per CTA.
        scope: thread, warp, or block.
        stride: distance between neighboring elements, in elements.
        coalesced: whether the threads of a warp send to neighboring locations; None for calls that send several elements.
        datatype: element type of the row.
        bw_gbps: 1e9 bytes per second, sum of the sending PEs; None in tests of latency, and if the row was not validated.
        latency_us: microseconds of one iteration, or of the whole round trip in ping-pongs; None in tests of bandwidth, and if not
            validated.
        mops: million messages per second, sum of the sending PEs; None if bw_gbps is.
        messages: number of operations that PE 0 issued in the timed kernel.
        wqes, doorbells: the NIC's counters of that kernel; None without a NIC.
        proxy: sampled fractions of the time of PE 0's proxy thread by activity; None without such a thread, or if the row was too short.
        validated: whether every byte of the payload arrived, no other byte changed, and the NIC's counters are right.
        path: in a job with two transports, the transport between the two PEs.
    """

    size: int
    message_bytes: int
    ctas: int
    threads: int
    scope: str
    stride: int
    coalesced: bool | None
    datatype: str
    bw_gbps: float | None
    latency_us: float | None
    mops: float | None
    messages: int
    wqes: int | None
    doorbells: int | None
    validated: bool
    proxy: Mapping[str, float] | None = None
    path: str | None = None


@dataclass
class Report:
    """One run of one test: command, machine, and rows. The field names are those in the JSON."""

    test: str
    machine: str
    gpu: str | None
    commit: str | None
    command: str
    date: str
    transport: str
    adapter: str | None
    engine: str | None
    npes: int
    versions: Mapping[str, str]
    args: Mapping[str, Any]
    measures: str = BANDWIDTH
    unit: str | None = None
    cpus: int | None = None  #: number of CPUs that PE 0 may run on
    rows: list[Any] = field(default_factory=list)  #: Row; tests of collectives have their own

    @property
    def title(self) -> str:
        """NVSHMEM's name of the table."""
        table = _TABLES.get(self.test, self.test).format(self.args["atomic_op"])
        return f"{table.removesuffix('_uni')}_bidi" if self.args["bidir"] else table

    def write_json(self, path: str) -> None:
        """Write the run as one JSON object."""
        Path(path).write_text(rows_in_lines(asdict(self)) + "\n", encoding="utf-8")


def rows_in_lines(value: Any, pad: str = "") -> str:
    """Return JSON in which each row of a table is a line."""
    if isinstance(value, list) and _has_objects(value):
        parts = [rows_in_lines(each, f"{pad} ") for each in value]
        return f"[\n{pad} " + f",\n{pad} ".join(parts) + f"\n{pad}]"
    if isinstance(value, dict) and any(map(_has_objects, value.values())):
        parts = [f"{json.dumps(key)}: {rows_in_lines(each, f'{pad} ')}" for key, each in value.items()]
        return f"{{\n{pad} " + f",\n{pad} ".join(parts) + f"\n{pad}}}"
    return json.dumps(value)


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def title_lines(report: Report, simulator: bool, *, has_proxy: bool = False) -> list[str]:
    """Return the lines above the table: comments on where this ran, then NVSHMEM's two lines. has_proxy: PEs have a proxy thread."""
    nic = report.adapter is not None
    return [*run_lines(report, simulator, has_proxy=has_proxy), f"#{report.title}", *header_lines(nic=nic, measures=report.measures)]


def run_lines(report: Report, simulator: bool, *, has_proxy: bool = False) -> list[str]:
    """Return comments on where this ran and what was measured."""
    adapter = f", adapter {report.adapter}" if report.adapter else ""
    engine = f", engine {report.engine}" if report.engine else ""
    where = f"# {report.npes} PEs on {place(report.machine, report.gpu)}"
    lines = [f"{where}; transport {report.transport}{adapter}{engine}; {report.date}", f"# {report.command}"]
    if simulator:
        lines.append("# simulator: kernels are interpreted here; these are an interpreter's rates, not hardware's")
    if report.cpus == 1 and has_proxy:
        lines.append("# a PE may run on one CPU, which its proxy thread shares (Open MPI: mpirun --bind-to none)")
    if report.unit is not None:
        lines.append(f"# latency: {report.unit}")
    return lines


def place(machine: str | None, gpu: str | None) -> str:
    """Return machine and GPU, or only the machine if its text names the GPU."""
    return ", ".join(name for name in (machine, gpu if gpu and gpu not in (machine or "") else None) if name)


def header_lines(*, nic: bool = False, measures: str = BANDWIDTH) -> list[str]:
    """Return the line of column names; nic: with those of a NIC."""
    columns = _columns(measures) if nic else _columns(measures)[:-_NIC_COLUMNS]
    return ["".join(f"{name:<{width}}" for name, width in columns).rstrip()]


def row_line(row: Row, measures: str = BANDWIDTH) -> str:
    """Return one line of the table, with dashes for the figures of a row that was not validated."""
    figures = (row.bw_gbps, row.mops) if measures == BANDWIDTH else (row.latency_us,)
    cells = (
        str(row.size),
        row.scope,
        *("-" if figure is None else f"{figure:.6f}" for figure in figures),
        str(row.ctas if measures == BANDWIDTH else row.threads),
        row.datatype,
        "yes" if row.validated else "NO",
        "" if row.wqes is None else str(row.messages),
        "" if row.wqes is None else str(row.wqes),
        "" if row.doorbells is None else str(row.doorbells),
    )
    return "".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, _columns(measures), strict=True)).rstrip()


def command_text(npes: int, prog: str, argv: Sequence[str]) -> str:
    """Return a command that repeats the run."""
    return shlex.join([*starting(npes), prog, *argv])


def said(line: str, simulator: bool) -> str:
    """Return a line with figures in printed form: in the simulator it ends with a comment that they are an interpreter's."""
    return f"{line}  # interpreter" if simulator else line


def proxy_line(rows: Sequence[Row]) -> str | None:
    """Return a line about the proxy thread in the row with the highest message rate; None if no row has samples."""
    known = [row for row in rows if row.proxy and row.mops]
    if not known:
        return None
    peak = max(known, key=lambda row: row.mops or 0)
    shares = dict(peak.proxy or {})
    busy = 1 - shares.pop("waiting", 0)
    did = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return f"# proxy thread at {peak.mops:.3g} MMPS ({peak.size} B): {busy:.0%} busy ({did})"


def now() -> str:
    """Return the local date and time in ISO format, with its UTC offset."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def commit() -> str | None:
    """Return the commit of the repository of these perf tests; None outside a repository."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str | None:
        try:
            command = ["git", "-C", str(here.parent), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:
        return None
    head = git("rev-parse", "HEAD")
    return f"{head}-dirty" if head and git("status", "--porcelain", "--untracked-files=no") else head
