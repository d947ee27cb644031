"""Show what a job with PGAS_TRACE=timeline:FILE did: ``python -m pgas trace FILE -o trace.json``.

FILE is what PGAS_TRACE named, or the trace files FILE.0, FILE.1, and so on, also those of several machines. The JSON file opens in
Perfetto (https://ui.perfetto.dev) and in chrome://tracing. The command prints the number of events, those that were overwritten, and the
error of the alignment of clocks.
"""

import argparse
from collections.abc import Iterable

from pgas.base import events
from pgas.base.errors import PgasError
from pgas.trace import chrome
from pgas.trace.reading import NIC, Trace, read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="trace files, or the FILE of PGAS_TRACE=timeline:FILE")
    parser.add_argument("-o", "--output", metavar="JSON", help="write the timeline for Perfetto")


def run(options: argparse.Namespace) -> int:
    """Run the command line."""
    trace = read(options.files)
    print("\n".join(summary(trace)))
    if options.output:
        try:
            with open(options.output, "w") as file:
                chrome.write(trace, file)
        except OSError as error:
            raise PgasError(f"cannot write {options.output}: {error.strerror}") from error
        print(f"{options.output}: open it in https://ui.perfetto.dev")
    return 0


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
        for ring, count in pe.lost.items():
            of = {events.HOST: "the host", events.PROXY: "the proxy thread", NIC: "the software NIC"}
            where = of.get(ring, f"block {ring - events.BLOCKS}")
            yield f"PE {pe.pe}: the oldest {count} events of {where} were overwritten; set PGAS_TRACE_EVENTS to a larger number"
