"""Show what a job with PGAS_TRACE=timeline:FILE did: ``python -m pgas trace FILE -o trace.json``.

FILE is what PGAS_TRACE named, or the trace files FILE.0, FILE.1, and so on, also those of several machines. The JSON file opens in
Perfetto (https://ui.perfetto.dev) and in chrome://tracing. The command prints the number of events, those that were overwritten, and the
error of the alignment of clocks.

FILE may also be what PGAS_TRACE=traffic:FILE named, for --plot.
"""

import argparse
import contextlib
from collections.abc import Iterable, Iterator

from pgas.base import events
from pgas.base.errors import PgasError
from pgas.base.text import ranges
from pgas.trace import chrome, matrix, page, why
from pgas.trace.reading import NIC, Trace, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files, or the FILE of PGAS_TRACE=timeline:FILE or traffic:FILE")
    parser.add_argument("-o", "--output", metavar="JSON", help="write the timeline for Perfetto")
    parser.add_argument("--html", metavar="PAGE", help="write one self-contained page with the timeline and the traffic")
    parser.add_argument("--why", action="store_true", help="print the longest waits, where their time went, and the critical path")
    parser.add_argument("--kernel", metavar="NAME", default="", help="with --why: only kernels of this name")
    parser.add_argument("--plot", metavar="PNG", help="draw heat maps of the traffic between PEs")


def run(options: argparse.Namespace) -> int:
    """Run the command line."""
    if tables := matrix.csv_files(options.files):
        if options.output or options.html or options.why:
            raise PgasError(f"{tables[0]} has traffic, from which there is no timeline; run the job with PGAS_TRACE=timeline:FILE")
        traffic = matrix.of_csv(tables)
        for family, cells in traffic.items():
            operations, nbytes = (sum(cell[which] for cell in cells.values()) for which in (0, 1))
            print(f"{family}: {operations} operations, {nbytes} bytes")
    else:
        trace = read(options.files)
        traffic = matrix.of_trace(trace)
        lines = list(summary(trace))
        print("\n".join(lines))
        if options.output:
            with _written(options.output), open(options.output, "w") as file:
                chrome.write(trace, file)
            print(f"{options.output}: open it in https://ui.perfetto.dev")
        if options.why:
            print("\n".join(why.report(trace, options.kernel)))
        if options.html:
            with _written(options.html), open(options.html, "w", encoding="utf-8") as file:
                page.write(trace, lines, file)
            print(f"{options.html}: open it in a browser")
    if options.plot:
        with _written(options.plot):
            matrix.plot(traffic, options.plot)
        print(f"{options.plot}: heat maps of the traffic between PEs")
    return 0


@contextlib.contextmanager
def _written(path: str) -> Iterator[None]:
    """Make the context in which a file is written."""
    try:
        yield
    except OSError as error:
        raise PgasError(f"cannot write {path}: {error.strerror}") from error


#: Rings of events that are not of blocks.
_OTHERS = {events.HOST: "the host", events.PROXY: "the proxy thread", NIC: "the software NIC"}


def summary(trace: Trace) -> Iterable[str]:
    """Yield lines about the whole trace."""
    first, total = trace.pes[0], sum(len(pe.events) for pe in trace.pes)
    pes = f"{len(trace.pes)} of {first.job['n_pes']} PEs, transport {first.job['transport']}"
    yield f"{pes}: {total} events in {trace.duration / 1e6:.3f} ms"
    if trace.card_error:
        yield f"the clock of the software NIC is aligned to {trace.card_error / 1e3:.1f} us"
    for i, pe in enumerate(trace.pes):
        error = trace.alignment.error(i)
        if error:
            yield f"PE {pe.pe}: its clock is aligned with that of PE {first.pe} to {error / 1e3:.1f} us"
    if lost := sum(sum(pe.lost.values()) for pe in trace.pes):
        rings = {ring for pe in trace.pes for ring in pe.lost}
        blocks = len(rings - _OTHERS.keys())
        of = [name for ring, name in _OTHERS.items() if ring in rings] + [f"{blocks} block{'s' * (blocks > 1)}"] * (blocks > 0)
        numbers = [pe.pe for pe in trace.pes if pe.lost]
        which = f"PE{'s' * (len(numbers) > 1)} {ranges(numbers)}"
        yield f"the oldest {lost} events were overwritten, of {', '.join(of)} ({which}); set PGAS_TRACE_EVENTS to a larger number"
