"""Speed between two machines of one PE: ibrc over Soft-RoCE, then the NIC transports over the wire of the software NIC.

In the guest: make check-rxe-netem, which prints a table of medians. ``python -m rxe.speed job`` is the program of each PE.
"""

import os
import re
import statistics
import sys
import tempfile
from pathlib import Path

from rxe import nodes

#: By figure: test, arguments, the column of its table that has the figure, and the factor of the unit.
TESTS = {
    "1 MiB puts, MB/s": ("shmem_put_bw", "-b 1M -e 1M -c 1 -t 1 -s thread -n 10 -w 2", 2, 1e3),
    "8-byte puts, 1/ms": ("shmem_put_bw", "-b 8 -e 8 -c 1 -t 1 -s thread -n 300 -w 30", 3, 1e3),
    "put_signal there and back, us": ("shmem_put_signal_ping_pong_latency", "-b 8 -e 8 -t 1 -n 100 -w 20", 2, 1),
}
RUNS = 3

JOB = {
    "PGAS_SYMMETRIC_SIZE": "64M", "PGAS_QP_DEPTH": "128", "PGAS_IBRC_RING_SIZE": "64", "PGAS_TIMEOUT": "120", "NUMBA_ENABLE_CUDASIM": "1",
    "PYTHONPATH": str(Path(__file__).parents[1]),
}  # fmt: skip


def job() -> int:
    """Run all tests in one job, as one of its PEs."""
    from importlib import import_module

    import pgas
    from pgas.perftests.harness import options, pair

    status = 0
    with pgas.init():
        for name, flags, _, _ in RUNS * [*TESTS.values()]:
            test = import_module(f"pgas.perftests.{name}").TEST
            arguments = flags.split()
            parsed = options.parse(name, test.description, test.simulator_defaults, test.scopes, arguments)
            status |= pair._run(test, parsed, arguments)
    return status


def measure(transport: str, hca: dict[str, str]) -> list[list[float]]:
    """Return the figures of the runs of each test."""
    with tempfile.TemporaryDirectory() as folder:
        ended = nodes.run(Path(folder), ["-m", "rxe.speed", "job"], {**os.environ, **JOB, **hca, "PGAS_TRANSPORT": transport}, n=1)
    assert ended.statuses == [0, 0], ended
    rows = [line.split() for line in re.findall(r"^\[PE 0\] (\d+ .*yes.*)$", ended.outs[0], re.MULTILINE)]
    assert len(rows) == RUNS * len(TESTS), ended
    return [[factor * float(row[column]) for row in rows[i :: len(TESTS)]] for i, (_, _, column, factor) in enumerate(TESTS.values())]


def show(name: str, figures: list[list[float]]) -> None:
    """Print a row: medians, and the runs of each."""
    cells = (f"{statistics.median(of):.4g} ({', '.join(f'{run:.4g}' for run in of)})" for of in figures)
    print(f"{name:24}", *(f"{cell:>36}" for cell in cells), flush=True)


def main() -> None:
    print(f"{'':24}", *(f"{name:>36}" for name in TESTS), flush=True)
    with nodes.connected():
        show("ibrc, Soft-RoCE", measure("ibrc", {}))
    for transport in ("ibrc", "ibgda"):
        with nodes.apart():
            show(f"{transport}, software NIC", measure(transport, {"PGAS_HCA": "softhca"}))


if __name__ == "__main__":
    sys.exit(job() if sys.argv[1:] == ["job"] else main())
