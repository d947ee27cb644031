"""``pgas info``: the variables, and the PEs, heap, and transport of a job started here, with or without a launcher."""

import argparse
import os
from collections.abc import Sequence

from pgas.api.host import init
from pgas.base import config
from pgas.base.version import __version__
from pgas.job import runtime
from pgas.kernels import window


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of cells in columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows)


def run(_: argparse.Namespace) -> None:
    """Print the variables, the PEs, the window, and the transport of every pair."""
    # Before init(), because that sets PGAS_STARTED_BY.
    variables = [(v.name, v.type, v.default or "-", _value(v.name), v.meaning) for v in config.VARIABLES.values()]
    with init() as job:
        if job.my_pe == 0:
            print(f"pgas {__version__}")
            print("\nEnvironment variables")
            print(table([("variable", "type", "default", "value", "meaning"), *variables]))
            print("\nPEs")
            pes = [
                (str(pe.number), str(pe.pid), pe.node.split("/")[0], f"{pe.gpu_name} {pe.gpu}" if pe.gpu else "simulator") for pe in job.pes
            ]
            print(table([("PE", "process", "node", "GPU"), *pes]))
            print("\nSymmetric heap")
            print(f"  window  PE p's slot at {window.BASE:#x} + p * 2^{window.STRIDE_SHIFT}; state page at {window.STATE:#x}")
            print(f"  heap    {job.heap.size} bytes at offset {window.HEAP_OFFSET:#x} of every slot")
            plan = job.teams.plan
            size = f"{plan.max_teams} teams of all PEs, {plan.channels} channels each, up to {plan.ll_bytes} bytes per pair through staging"
            print(f"  teams   {plan.nbytes} bytes before it: room for {size}")
            print("\nTransport")
            print("\n".join(f"  {line}" for line in _paths(job)))


def _paths(job: runtime.Job) -> list[str]:
    if not job.paths.two:
        return [f"every pair of PEs: {job.transport} ({job.reason})"]
    names = [f"PE{pe}" for pe in range(job.n_pes)]
    rows = table([("", *names), *((name, *(job.paths.between(a, b) for b in range(job.n_pes))) for a, name in enumerate(names))])
    who = config.read("PGAS_AMO")
    atomics = "as above" if who == "peer" else f"{job.paths.far} for every pair"
    return [
        f"{job.transport} ({job.reason})",
        *rows.splitlines(),
        *job.paths.reasons(),
        f"atomics and signals that add: {atomics} (PGAS_AMO={who})",
    ]


def _value(name: str) -> str:
    value = os.environ.get(name, "-")
    return "(set)" if value != "-" and name in config.SECRETS else value
