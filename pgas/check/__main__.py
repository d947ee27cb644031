"""``python -m pgas.check -n 2 prog.py args``: run a program in the simulator, and report accesses that nothing orders.

The checker judges a program by docs/memory-model.md, whatever transport it runs over: it computes which accesses are ordered, so that a
missing fence, wait, or barrier is found in one run, even if that run gave the right result. The exit status is 3 if there is a finding,
otherwise the program's.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pgas.base import interpreter
from pgas.base.arguments import Parser, within
from pgas.base.launcher import MAX_PES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    parser = Parser(prog="python -m pgas.check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=within(1, MAX_PES), default=1, metavar="N", help="number of PEs (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="also write the findings to a file")
    parser.add_argument("program", help="program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments").required = False
    asked = parser.parse_args(arguments)
    if asked.json:
        try:
            Path(asked.json).touch()
        except OSError as error:
            parser.error(f"argument --json: {asked.json}: {error.strerror}")
    with tempfile.TemporaryDirectory(prefix="pgas-check-") as folder:
        os.environ.update(PGAS_CHECK="order", PGAS_CHECK_LOGS=folder, NUMBA_ENABLE_CUDASIM="1")
        status = os.spawnv(os.P_WAIT, sys.executable, interpreter.command("pgas.run", "-n", str(asked.n), asked.program, *asked.args))
        from pgas.check.log import merged
        from pgas.check.order import Order

        order = Order()
        order.follow(merged(Path(folder)))
    text = order.findings.text()
    if text:
        print(text, flush=True)
    if asked.json:
        Path(asked.json).write_text(order.findings.json())
    return 3 if order.findings.all else status


if __name__ == "__main__":
    sys.exit(main())
