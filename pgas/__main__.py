"""``python -m pgas info``: the variables, and what a job started here would look like. Also under mpirun."""

import argparse
import os
import sys
from collections.abc import Sequence

import pgas
from pgas import config, runtime
from pgas.kernels import window


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows)


def info() -> None:
    """Print the variables, the PEs, the window and the transport of every pair."""
    with pgas.init() as job:
        if job.my_pe == 0:
            print(f"pgas {pgas.__version__}")
            print("\nEnvironment variables")
            variables = [(v.name, v.type, v.default or "-", os.environ.get(v.name, "-"), v.meaning) for v in config.VARIABLES.values()]
            print(_table([("variable", "type", "default", "value", "meaning"), *variables]))
            print("\nPEs")
            pes = [
                (str(pe.number), str(pe.pid), pe.node.split("/")[0], f"{pe.gpu_name} {pe.gpu}" if pe.gpu else "simulator") for pe in job.pes
            ]
            print(_table([("PE", "process", "node", "GPU"), *pes]))
            print("\nSymmetric heap")
            print(f"  window  PE p's slot at {window.BASE:#x} + p * 2^{window.STRIDE_SHIFT}; state page at {window.STATE:#x}")
            print(f"  heap    {job.heap.size} bytes at offset {window.HEAP_OFFSET:#x} of every slot")
            print("\nTransport")
            print(f"  every pair of PEs: {job.transport} ({job.reason})")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m pgas", description=__doc__)
    parser.add_argument("command", choices=["info"], help="info: variables, PEs, GPUs, window, heap and transports")
    parser.parse_args()
    try:
        info()
    except (pgas.PgasError, ValueError) as error:
        print(f"pgas: {error}", file=sys.stderr)
        if runtime.active():
            runtime.current().broken = True
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
