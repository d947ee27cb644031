"""Runs one perf test on two PEs, row by row: warm up, fill with fresh data, time one kernel, check every byte.

A row (sizes, shares and messages are workload.py's):

1. a warm-up launch of ``warmup_iters`` iterations through pgas.launch, which refuses a grid that cannot all be
   resident;
2. sources get fresh random elements, destinations the complement of what is to come, between guards (payload.py);
3. one launch that does all ``iters`` iterations, a grid barrier after each and quiet once at the end, is timed
   (timing.py). Plain: PE 0 sends. ``--bidir``: both do;
4. both PEs compare their whole destination, guards and gaps included, also where nothing should have come; through a
   NIC, also what the card counted for them with what was issued: a WQE that is lost or sent twice is a fault;
5. bandwidth = size * iters / time, message rate = messages * iters / time, summed over the sending PEs. GB = 1e9
   bytes.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pgas
from pgas import runtime
from pgas.backend import launched_rank
from pgas.perftests import options as command_line
from pgas.perftests import payload, report, timing
from pgas.perftests.grid import GridCounter
from pgas.perftests.options import Defaults, Options
from pgas.perftests.payload import Fault
from pgas.perftests.report import Report, Row
from pgas.perftests.workload import Workload

__all__ = ["PerfTest", "RefusedError", "run"]

NPES = 2


@dataclass(frozen=True)
class PerfTest:
    """One test.

    Attributes:
        name: as NVSHMEM's.
        description: first sentence of --help.
        kernels: by scope, the default first: kernel(dest, source, *extra, counter, start, iters, pe).
        workload: divides one size.
        wqes: the fewest and the most WQEs that one iteration may become under a NIC transport.
        extra: kernel arguments between source and counter.
        defaults: NVSHMEM's.
        simulator_defaults: small enough to be interpreted within seconds.
    """

    name: str
    description: str
    kernels: Mapping[str, Any]
    workload: Callable[[int, Options], Workload]
    wqes: Callable[[Workload, str], tuple[int, int]]
    extra: Callable[[Workload], tuple[Any, ...]]
    defaults: Defaults
    simulator_defaults: Defaults


class RefusedError(Exception):
    """Why the run cannot go on; raised on all PEs alike."""


def run(test: PerfTest, argv: Sequence[str] | None = None) -> int:
    """Run a test from the command line.

    Returns:
        Exit status: 0, or 1 if the data of a row did not arrive, or 2 if the run was refused (the same on all PEs).
    """
    argv = sys.argv[1:] if argv is None else argv
    defaults = test.simulator_defaults if pgas.SIMULATOR else test.defaults
    options = command_line.parse(test.name, test.description, defaults, tuple(test.kernels), argv)
    options.set_environment()
    try:
        job = pgas.init()
    except pgas.TransportError as error:  # init decides this on all PEs alike
        _complain(test, str(error), launched_rank() or 0)
        return 2
    with job:
        try:
            return _run(test, options, argv)
        except RefusedError as refusal:
            _complain(test, str(refusal), pgas.my_pe())
            return 2


def _run(test: PerfTest, options: Options, argv: Sequence[str]) -> int:
    if (reason := pgas.broadcast_object(_reason_to_refuse(test, options))) is not None:
        raise RefusedError(reason)
    result = _new_report(test, options, argv)
    valid = _print_rows(result, _rows(test, options), sum(1 for _ in options.sizes()))
    if pgas.my_pe() == 0:
        _write_files(result, options)
    return 0 if valid else 1


def _reason_to_refuse(test: PerfTest, options: Options) -> str | None:
    """Return why this job cannot run the test."""
    if pgas.n_pes() != NPES:
        pes = "1 PE" if pgas.n_pes() == 1 else f"{pgas.n_pes()} PEs"
        return f"needs exactly {NPES} PEs and has {pes}; start it with: mpirun -n {NPES} {test.name}"
    for flag, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None and (Path(path).is_dir() or not os.access(Path(path).absolute().parent, os.W_OK)):
            return f"argument {flag}: {path} cannot be written; it must be a file in a folder that exists"
    return None


def _complain(test: PerfTest, text: str, pe: int) -> None:
    if pe == 0:
        print(f"{test.name}: error: {text}", file=sys.stderr, flush=True)


def _new_report(test: PerfTest, options: Options, argv: Sequence[str]) -> Report:
    about = pgas.info()
    described = {key: about[key] for key in ("machine", "gpu", "transport", "adapter", "engine", "npes", "versions")}
    return Report(
        test=test.name,
        commit=report.commit(),
        command=report.command_text(pgas.n_pes(), test.name, argv),
        date=report.now(),
        args=asdict(options),
        **described,
    )


def _rows(test: PerfTest, options: Options) -> Iterator[Row]:
    """Measure each size; collective. A row whose data did not arrive is reported at once and has no rate."""
    timing.prepare()
    counter = GridCounter()
    try:
        for size in options.sizes():
            row, faults = _measure(test, options, test.workload(size, options), counter)
            for pe, fault in faults.items():
                _complain(test, f"size {size}: PE {pe}: {fault}", pgas.my_pe())
            yield row
    except RefusedError:
        counter.free()
        raise
    counter.free()


class _Buffers:
    """Source and guarded destination of one row on this PE. Collective to make and to free."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        guard = payload.GUARD_BYTES // work.dtype.itemsize
        self.source = pgas.empty(work.span, work.dtype)
        try:
            self._guarded = pgas.empty(guard + work.span + guard, work.dtype)
        except pgas.HeapError:
            pgas.free(self.source)
            raise
        self.dest = self._guarded[guard : guard + work.span]

    def fill(self, seed: int) -> None:
        """Put this PE's payload into the source, and into the destination whatever differs from the peer's."""
        mine, peers = (payload.random_elements(self._work, seed, pe) for pe in (pgas.my_pe(), 1 - pgas.my_pe()))
        self.source.copy_to_device(payload.source_image(self._work, mine))
        self._guarded.copy_to_device(payload.dest_image(self._work, peers, arrived=False))

    def find_fault(self, seed: int, arrived: bool) -> Fault | None:
        """Compare the destination, guards included, with the peer's payload, or with what fill() left."""
        peers = payload.random_elements(self._work, seed, 1 - pgas.my_pe())
        expected = payload.dest_image(self._work, peers, arrived=arrived)
        return payload.find_fault(self._work, self._guarded.copy_to_host(), expected)

    def free(self) -> None:
        """Give both back."""
        pgas.free(self._guarded)
        pgas.free(self.source)


def _measure(test: PerfTest, options: Options, work: Workload, counter: GridCounter) -> tuple[Row, dict[int, Fault | str]]:
    """Measure one size; collective. Returns the row and, by PE, what arrived or was counted wrong."""
    me, peer = pgas.my_pe(), 1 - pgas.my_pe()
    sends, receives = options.bidir or me == 0, options.bidir or me == 1
    kernel, ctas, threads = test.kernels[work.scope], work.ctas, work.threads
    try:
        buffers = _Buffers(work)
    except pgas.HeapError as error:
        raise RefusedError(f"size {work.size}: {error}") from error

    def arguments(iters: int) -> tuple[Any, ...]:
        start = counter.reserve(ctas, iters)
        return (buffers.dest, buffers.source, *test.extra(work), counter.array, start, iters, peer)

    try:
        pgas.launch(kernel, ctas, threads, arguments(options.warmup_iters if sends else 0))
    except ValueError as error:  # the CTAs cannot all be resident, here or at the peer
        buffers.free()
        raise RefusedError(str(error)) from error
    pgas.barrier_all()
    buffers.fill(options.seed)
    pgas.barrier_all()
    before = _nic_counts()
    nic = runtime.current().nic
    sampled: AbstractContextManager[dict[str, float]] = nullcontext({}) if nic is None else nic.sampled()
    with sampled as proxy:
        seconds = timing.kernel_seconds(kernel, ctas, threads, arguments(options.iters)) if sends else None
    pgas.barrier_all()
    after = _nic_counts()
    given = {name: after[name] - before[name] for name in after}
    fault: Fault | str | None = buffers.find_fault(options.seed, arrived=receives)
    if fault is None and given:
        iters = options.iters if sends else 0
        fault = count_fault(given, test.wqes(work, runtime.current().transport), work, iters)
    buffers.free()

    results = pgas.allgather_object((seconds, fault))
    times = [time for time, _ in results if time is not None]
    faults = {pe: fault for pe, (_, fault) in enumerate(results) if fault is not None}
    return _row(work, options, times, given, proxy, not faults), faults


def _nic_counts() -> dict[str, int]:
    """What the NIC has executed for this PE; nothing under p2p."""
    nic = runtime.current().nic
    return {} if nic is None else nic.counts()


def count_fault(given: Mapping[str, int], wqes: tuple[int, int], work: Workload, iters: int) -> str | None:
    """Return what is wrong with the counts of a card.

    Args:
        given: what it counted of the PE: wqes, nbytes, doorbells, errors.
        wqes: the fewest and the most that one iteration may become.
        work: what the PE issued in each iteration.
        iters: how many it issued; 0 for a PE that does not send.
    """
    fewest, most = (iters * count for count in wqes)
    issued = f"for {iters * work.messages} messages of {iters * work.size} bytes"
    if given["errors"]:
        return f"the card counted {given['errors']} errors {issued}"
    if not fewest <= given["wqes"] <= most:
        wanted = str(fewest) if fewest == most else f"{fewest} to {most}"
        return f"the card executed {given['wqes']} WQEs instead of {wanted} {issued}"
    if given["nbytes"] != iters * work.size:
        return f"the card moved {given['nbytes']} bytes in {given['wqes']} WQEs {issued}"
    if not min(iters, 1) <= given["doorbells"] <= given["wqes"]:
        return f"the card saw {given['doorbells']} doorbells for {given['wqes']} WQEs {issued}"
    return None


def _row(
    work: Workload, options: Options, times: Iterable[float], given: Mapping[str, int], proxy: Mapping[str, float], validated: bool
) -> Row:
    per_second = sum(options.iters / seconds for seconds in times)
    return Row(
        size=work.size,
        message_bytes=work.message_bytes,
        ctas=work.ctas,
        threads=work.threads,
        scope=work.scope,
        stride=work.stride,
        coalesced=work.coalesced,
        datatype=work.dtype.name,
        bw_gbps=work.size * per_second / 1e9 if validated else None,
        latency_us=None,
        mops=work.messages * per_second / 1e6 if validated else None,
        messages=options.iters * work.messages,
        wqes=given.get("wqes"),
        doorbells=given.get("doorbells"),
        validated=validated,
        proxy=proxy or None,
    )


def _print_rows(result: Report, rows: Iterable[Row], total: int) -> bool:
    """Print the table on PE 0 while rows come in; return True if all of them are valid."""
    shown = pgas.my_pe() == 0
    if shown:
        print(*report.title_lines(result, pgas.SIMULATOR), sep="\n", flush=True)
    with _progress(result.title, total, shown) as advance:
        for row in rows:
            result.rows.append(row)
            if shown:
                print(report.row_line(row), flush=True)
            advance()
    if shown and (line := report.proxy_line(result.rows)) is not None:
        print(line, flush=True)
    return all(row.validated for row in result.rows)


@contextmanager
def _progress(title: str, total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr if that is a terminal; the table stays on stdout."""
    if not (shown and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console, redirect = Console(stderr=True), sys.stdout.isatty()
    with Progress(console=console, transient=True, redirect_stdout=redirect, redirect_stderr=False) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


def _write_files(result: Report, options: Options) -> None:
    if options.json is not None:
        result.write_json(options.json)
    if options.plot is not None:
        from pgas.perftests import plot  # Here: it takes matplotlib half a second to load.

        plot.draw([asdict(result)], options.plot)
