"""Runs one perf test on two PEs, row by row: warm up, fill with fresh data, time one kernel, and check every byte.

A job with two transports has more than two PEs: the table has rows for PE 0 and its first PE with mapped memory, then for PE 0 and its
first PE behind a NIC.

A row (workload.py divides its bytes into messages):

1. a warm-up launch of ``warmup_iters`` iterations through pgas.launch, which rejects a grid that cannot all be resident;
2. the sources get new random elements, the destinations the complement of the expected ones, between guards (payload.py);
3. one launch of all ``iters`` iterations is timed (timing.py). Bandwidth: a grid barrier after each iteration and quiet once at the end; PE
   0 performs the operations, or both PEs with ``--bidir``. Latency: one CTA, and each iteration waits for its own completion. Ping-pong:
   both PEs run the kernel, and PE 0's is timed;
4. both PEs check their whole destination, including guards and gaps, even if nothing was sent to it; through a NIC, they also compare its
   counters with the operations issued (counts.py);
5. bandwidth = size * iters / time, message rate = messages * iters / time, summed over the sending PEs. GB = 1e9
   bytes. Latency = time / iters.
"""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pgas
from pgas.base.arguments import size_flag
from pgas.base.launcher import launched_rank
from pgas.base.output import outlive_reader
from pgas.job import runtime
from pgas.perftests.harness import counts, plot, report, timing
from pgas.perftests.harness import options as command_line
from pgas.perftests.harness.grid import Counter
from pgas.perftests.harness.options import TRANSPORTS, Defaults, Options
from pgas.perftests.harness.payload import WrongByte
from pgas.perftests.harness.report import BANDWIDTH, Report, Row
from pgas.perftests.harness.transfer import Transfer
from pgas.perftests.harness.workload import Workload

NPES = 2


@dataclass(frozen=True)
class Leg:
    """The two PEs of a row, of which the first is PE 0."""

    other: int
    path: str | None  #: the transport between them, None in a job with one transport
    near: bool = False  #: with two transports: whether their memory is mapped

    def __str__(self) -> str:
        return f"# {'near' if self.near else 'far'}: PE 0 and PE {self.other}, {self.path}"

    def peer_of(self, pe: int) -> int:
        """Return the PE to which a PE sends: itself if it is neither of the two."""
        return {0: self.other, self.other: 0}.get(pe, pe)


def legs() -> list[Leg]:
    """Return the pairs of PEs that are measured one after the other."""
    paths, n = runtime.current().paths, pgas.n_pes()
    if not paths.two:
        return [Leg(1, None)]
    firsts = (next((pe for pe in range(1, n) if (pe in paths.near_pes(0)) is near), None) for near in (True, False))
    return [Leg(pe, paths.between(0, pe), near) for pe, near in zip(firsts, (True, False), strict=True) if pe is not None]


class Pattern(Enum):
    """Which PEs perform operations, and in which direction the payload is sent."""

    PUSH = "from the PE that calls to its peer"
    PULL = "from the peer to the PE that calls"
    PING_PONG = "from PE 0 to PE 1 and back"


@dataclass(frozen=True)
class PerfTest:
    """One test.

    Attributes:
        name: NVSHMEM's name.
        description: first sentence of --help.
        kernels: kernels by scope, the default first, or by atomic operation: kernel(*buffers, *extra, counter, start, iters, pe). The
            kernel leaves start + steps(work, iters) in the counter.
        lent: with --smem, the kernels instead, by scope.
        workload: function that divides one size; options.scope is one of those of kernels.
        wqes: function that returns the minimum and maximum number of WQEs of one iteration through a NIC. Its second argument is
            NIC.coalesces.
        defaults: NVSHMEM's defaults.
        simulator_defaults: smaller defaults, so that a run in the simulator takes seconds.
        measures: report.BANDWIDTH or LATENCY.
        unit: the operation whose time a latency is, for the lines above the table.
        pattern: direction of the payload.
        every_scope: whether all scopes are measured, one after the other, without -s.
        extra: function that returns the kernel arguments between buffers and counter.
        buffers: function that makes the Transfer of a row.
        signals: bytes of signals in an iteration, which a NIC moves in addition to the payload.
        transports: transports over which it can run.
        unmapped: reason why it cannot run over others.
    """

    name: str
    description: str
    kernels: Mapping[str, Any]
    workload: Callable[[int, Options], Workload]
    wqes: Callable[[Workload, bool], tuple[int, int]]
    defaults: Defaults
    simulator_defaults: Defaults
    measures: str = BANDWIDTH
    unit: str | None = None
    pattern: Pattern = Pattern.PUSH
    every_scope: bool = False
    extra: Callable[[Workload], tuple[Any, ...]] = lambda work: ()
    buffers: Callable[[Workload, Options], Any] = lambda work, options: Transfer(work)
    signals: int = 0
    transports: Sequence[str] = TRANSPORTS
    unmapped: str = ""
    lent: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...]:
        """The values of -s, the default first."""
        if self.defaults.atomic_op is not None:
            return ("thread",)
        return ("all", *self.kernels) if self.every_scope else tuple(self.kernels)

    def main(self) -> int:
        return run(self)

    def workloads(self, options: Options) -> Iterator[Workload]:
        for scope in self.kernels if options.scope == "all" else (options.scope,):
            for size in options.sizes():
                yield self.workload(size, replace(options, scope=scope))

    def steps(self, work: Workload, iters: int) -> int:
        """Return what iterations add to the counter: 1 per CTA at each grid barrier, or 1 per iteration of a ping-pong."""
        return iters * (work.ctas if self.measures == BANDWIDTH else 1 if self.pattern is Pattern.PING_PONG else 0)


class RefusedError(Exception):
    """The run cannot go on; raised on all PEs."""


def run(test: PerfTest, argv: Sequence[str] | None = None) -> int:
    """Run a test from the command line.

    Returns:
        Exit status, the same on all PEs: 0, 1 if the data of a row did not arrive, or 2 if the test cannot run.
    """
    return in_job(test, argv, lambda options: options.row_bytes(), _run)


def in_job(
    test: Any, argv: Sequence[str] | None, row_bytes: Callable[[Options], int], perform: Callable[[Any, Options, Sequence[str]], int]
) -> int:
    """Parse a test's command line, and call ``perform(test, options, argv)`` in a job; see run().

    Args:
        test: object with name, description, scopes, defaults, and simulator_defaults.
        argv: arguments of the command; if None, those of the process.
        row_bytes: bytes of symmetric heap for the largest row.
        perform: function that returns the exit status, or raises RefusedError.
    """
    outlive_reader()
    argv = sys.argv[1:] if argv is None else argv
    defaults = test.simulator_defaults if pgas.SIMULATOR else test.defaults
    options = command_line.parse(test.name, test.description, defaults, test.scopes, argv)
    options.set_environment(row_bytes(options))
    try:
        job = pgas.init()
    except (pgas.TransportError, pgas.HeapError) as error:  # It is raised on all PEs.
        asked = f"{_max_size(options)}: " if isinstance(error, pgas.HeapError) else ""
        complain(test, f"{asked}{error}", launched_rank() or 0)
        return 2
    with job:
        try:
            return perform(test, options, argv)
        except RefusedError as refusal:
            complain(test, str(refusal), pgas.my_pe())
            return 2


def _run(test: PerfTest, options: Options, argv: Sequence[str]) -> int:
    if (reason := pgas.broadcast_object(_reason_to_refuse(test, options))) is not None:
        raise RefusedError(reason)
    result = new_report(test.name, options, argv, test.measures, test.unit)
    valid = _print_rows(result, _rows(test, options), len(legs()) * sum(1 for _ in test.workloads(options)))
    if pgas.my_pe() == 0:
        write_files(result, options)
    return 0 if valid else 1


def _reason_to_refuse(test: PerfTest, options: Options) -> str | None:
    """Return why this job cannot run the test, None if it can."""
    if pgas.n_pes() != NPES and not (runtime.current().paths.two and pgas.n_pes() > NPES):
        pes = "1 PE" if pgas.n_pes() == 1 else f"{pgas.n_pes()} PEs"
        return f"needs exactly {NPES} PEs and has {pes}; start it with: {report.command_text(NPES, test.name, [])}"
    if (transport := runtime.current().transport) not in test.transports:
        return f"needs {' or '.join(test.transports)}, and this job's transport is {transport}: {test.unmapped}"
    return _too_large(options) or unwritable(options)


def unwritable(options: Options) -> str | None:
    """Return why a file that a flag requests cannot be written."""
    for flag, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None and (Path(path).is_dir() or not os.access(Path(path).absolute().parent, os.W_OK)):
            return f"argument {flag}: {path} cannot be written; it must be a file in a directory that exists"
    if options.plot is not None and (why := plot.lacking()) is not None:
        return f"argument --plot: {why}"
    return None


def _too_large(options: Options) -> str | None:
    """Return why the largest row does not fit into the heap, or its checks into the machine's memory; None if everything fits."""
    job = runtime.current()
    if (wanted := options.row_bytes()) > job.heap.limit:
        return f"{_max_size(options)} needs {wanted} bytes of symmetric heap on each PE, which may have {job.heap.limit}"
    here = [pe for pe in job.pes if pe.node == job.pes[0].node]
    wanted = len(here) * (options.checking_bytes() + (options.row_bytes() if pgas.SIMULATOR else 0))
    if wanted > (memory := here[0].host_memory):
        return f"{_max_size(options)} needs {wanted} bytes of this machine's memory for its data and the checks, and there are {memory}"
    return None


def _max_size(options: Options) -> str:
    return f"argument -e/--max_size: {size_flag(options.max_size)}"


def complain(test: Any, text: str, pe: int) -> None:
    """Print on PE 0 what is wrong."""
    if pe == 0:
        print(f"{test.name}: error: {text}", file=sys.stderr, flush=True)


def new_report(test: str, options: Options, argv: Sequence[str], measures: str, unit: str | None) -> Report:
    """Return the report of a run, without rows."""
    about = pgas.info()
    described = {key: about[key] for key in ("machine", "gpu", "transport", "adapter", "engine", "npes", "versions")}
    return Report(
        test=test,
        commit=report.commit(),
        command=report.command_text(pgas.n_pes(), test, argv),
        date=report.now(),
        args=asdict(options),
        measures=measures,
        unit=unit,
        cpus=len(os.sched_getaffinity(0)),
        **described,
    )


def _rows(test: PerfTest, options: Options) -> Iterator[Row]:
    """Measure each size; collective. A row with wrong data is reported immediately and has no rate."""
    timing.prepare()
    for leg in legs():
        if leg.path is not None and pgas.my_pe() == 0:
            print(leg, flush=True)
        yield from _rows_of(test, options, leg)


def _rows_of(test: PerfTest, options: Options, leg: Leg) -> Iterator[Row]:
    counter = Counter()
    try:
        for work in test.workloads(options):
            row, faults = _measure(test, options, work, leg, counter)
            for pe, fault in faults.items():
                complain(test, f"size {work.size}: PE {pe}: {fault}", pgas.my_pe())
            yield row
    except RefusedError:  # It is raised on all PEs; after other errors, freeing, which is collective, could hang.
        counter.free()
        raise
    counter.free()


def _measure(test: PerfTest, options: Options, work: Workload, leg: Leg, counter: Counter) -> tuple[Row, dict[int, WrongByte | str]]:
    """Measure one size; collective. Returns the row and the faults by PE."""
    me, peer = pgas.my_pe(), leg.peer_of(pgas.my_pe())
    calls = {0, leg.other} if options.bidir or test.pattern is Pattern.PING_PONG else {0}
    receives = calls if test.pattern is not Pattern.PUSH else set(map(leg.peer_of, calls))
    sent, received = (options.iters if me in pes else 0 for pes in (calls, receives))
    kernels = test.lent if options.smem else test.kernels
    kernel, ctas, threads = kernels[options.atomic_op or work.scope], work.ctas, work.threads
    try:
        buffers = test.buffers(work, options)
    except pgas.HeapError as error:
        raise RefusedError(f"size {work.size}: {error}") from error

    def arguments(iters: int, *, rehearsal: bool) -> tuple[Any, ...]:
        start = counter.reserve(test.steps(work, iters))
        return (*buffers.arguments(rehearsal=rehearsal), *test.extra(work), counter.array, start, iters, peer)

    try:
        pgas.launch(kernel, ctas, threads, arguments(options.warmup_iters if me in calls else 0, rehearsal=True))
    except ValueError as error:  # The CTAs cannot all be resident, here or at the peer.
        buffers.free()
        raise RefusedError(str(error)) from error
    pgas.barrier_all()
    buffers.fill(options.seed, peer)
    pgas.barrier_all()
    before = counts.nic_counts()
    nic = runtime.current().nic
    sampled: AbstractContextManager[dict[str, float]] = nullcontext({}) if nic is None else nic.sampled()
    answers = test.pattern is Pattern.PING_PONG and me == leg.other
    with sampled as proxy:
        seconds = None
        if sent:
            seconds = timing.kernel_seconds(kernel, ctas, threads, arguments(options.iters, rehearsal=False), at_once=answers)
    pgas.barrier_all()
    after = counts.nic_counts()
    given = {name: after[name] - before[name] for name in after}
    fault: WrongByte | str | None = buffers.find_fault(options.seed, peer, sent, received)
    if fault is None and given and not leg.near:
        fewest, most = test.wqes(work, nic is not None and nic.coalesces)
        issued = counts.Issued(sent * work.messages, sent * (work.size + test.signals), (sent * fewest, sent * most))
        fault = counts.find_fault(given, issued)
    fault = fault or counter.find_fault()
    buffers.free()

    results = pgas.allgather_object((None if answers else seconds, fault))
    times = [time for time, _ in results if time is not None]
    faults = {pe: fault for pe, (_, fault) in enumerate(results) if fault is not None}
    return replace(_row(test, work, options, times, given, proxy, not faults), path=leg.path), faults


def _row(
    test: PerfTest,
    work: Workload,
    options: Options,
    times: Iterable[float],
    given: Mapping[str, int],
    proxy: Mapping[str, float],
    validated: bool,
) -> Row:
    per_second = sum(options.iters / seconds for seconds in times)
    is_bandwidth = test.measures == BANDWIDTH
    return Row(
        size=work.size,
        message_bytes=work.message_bytes,
        ctas=work.ctas,
        threads=work.threads,
        scope=work.scope,
        stride=work.stride,
        coalesced=work.coalesced,
        datatype=work.dtype.name,
        bw_gbps=work.size * per_second / 1e9 if validated and is_bandwidth else None,
        latency_us=1e6 / per_second if validated and not is_bandwidth else None,
        mops=work.messages * per_second / 1e6 if validated and is_bandwidth else None,
        messages=options.iters * work.messages,
        wqes=given.get("wqes"),
        doorbells=given.get("doorbells"),
        validated=validated,
        proxy=proxy or None,
    )


def _print_rows(result: Report, rows: Iterable[Row], total: int) -> bool:
    """Print the table on PE 0, each row as soon as it is measured; return True if all are valid."""
    shown, nic = pgas.my_pe() == 0, runtime.current().nic
    if shown:
        print(*report.title_lines(result, pgas.SIMULATOR, has_proxy=nic is not None and nic.on_host), sep="\n", flush=True)
    with progress(result.title, total, shown) as advance:
        for row in rows:
            result.rows.append(row)
            if shown:
                print(report.said(report.row_line(row, result.measures), pgas.SIMULATOR), flush=True)
            advance()
    if shown and (line := report.proxy_line(result.rows)) is not None:
        print(line, flush=True)
    return all(row.validated for row in result.rows)


@contextmanager
def progress(title: str, total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """Count rows on stderr if it is a terminal and stdout, to which the rows are printed, is not."""
    if not (shown and sys.stderr.isatty()) or sys.stdout.isatty():
        yield lambda: None
        return
    done = itertools.count()

    def advance() -> None:
        print(f"\r\033[K{title}: {next(done)} of {total}", end="", file=sys.stderr, flush=True)

    advance()
    try:
        yield advance
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def write_files(result: Report, options: Options) -> None:
    """Write the files that flags request."""
    if options.json is not None:
        result.write_json(options.json)
    if options.plot is not None:
        plot.draw([asdict(result)], options.plot)
