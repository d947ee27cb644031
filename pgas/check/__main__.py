"""``pgas check -n 2 prog.py args``, or ``python -m pgas.check``: run a program in the simulator, and report accesses that nothing orders.

The checker judges a program by docs/memory-model.md, whatever transport it runs over: it computes which accesses are ordered, so that a
missing fence, wait, or barrier is found in one run, even if that run gave the right result. The exit status is 3 if there is a finding,
otherwise the program's.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pgas.base import config, interpreter
from pgas.base.arguments import Parser, within
from pgas.base.launcher import MAX_PES, parents_launcher
from pgas.base.output import outlive_reader

if TYPE_CHECKING:
    from pgas.check.order import Order

#: PGAS_TIMEOUT of replays, in seconds, if it is not set: the other order can leave a wait without end.
_TIMEOUT_S = 20


def main(arguments: Sequence[str] | None = None, name: str = "python -m pgas.check") -> int:
    """Run the command line. name: the command's name in help and errors. Returns the exit status."""
    outlive_reader()
    parser = Parser(prog=name, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=within(1, MAX_PES), default=1, metavar="N", help="number of PEs (default: 1)")
    parser.add_argument("-np", dest="n", type=within(1, MAX_PES), default=argparse.SUPPRESS, help=argparse.SUPPRESS)  # as for mpirun
    parser.add_argument("--json", metavar="FILE", help="also write the findings to a file")
    replay = "run again with the accesses of report N in the other order, and print the wrong value"
    parser.add_argument("--replay", type=within(1, 10**6), metavar="N", help=replay)
    parser.add_argument("--as-nvshmem", action="store_true", help="let `import nvshmem` find pgas.nvshmem")
    parser.add_argument("-m", action="store_true", dest="module", help="the program is a Python module")
    parser.add_argument("program", help="program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments").required = False
    asked = parser.parse_args(arguments)
    try:
        started = parents_launcher()
    except ValueError as error:
        parser.error(str(error))
    if started is not None and started.size != 1:
        parser.error(f"this command was started by {started.launcher} already, but starts the PEs itself (-n)")
    if asked.json:
        try:
            Path(asked.json).touch()
        except OSError as error:
            parser.error(f"argument --json: {asked.json}: {error.strerror}")
    if asked.replay is not None and config.read("PGAS_TRANSPORT") not in ("auto", "p2p"):
        parser.error("argument --replay: runs over p2p only, and PGAS_TRANSPORT is another transport")
    with tempfile.TemporaryDirectory(prefix="pgas-check-") as folder:
        status = _run(asked, Path(folder))
        from pgas.check.order import Order

        order = Order.of(Path(folder))
    text = order.findings.text()
    if text:
        print(text, flush=True)
    if asked.json:
        Path(asked.json).write_text(order.findings.json())
    if asked.replay is not None:
        print(_replayed(asked, order), flush=True)
    return 3 if order.findings.certain else status


def _run(asked: argparse.Namespace, folder: Path, **options: int) -> int:
    """Run the program with logs in a folder. Returns its exit status."""
    os.environ.update(PGAS_CHECK="order", PGAS_CHECK_LOGS=str(folder), NUMBA_ENABLE_CUDASIM="1")
    flags = ["--as-nvshmem"] * asked.as_nvshmem + ["-m"] * asked.module
    command = interpreter.command("pgas.run", "-n", str(asked.n), *flags, asked.program, *asked.args)
    return subprocess.run(command, check=False, **options).returncode  # type: ignore[call-overload, no-any-return]


def _replayed(asked: argparse.Namespace, order: "Order") -> str:
    """Run the program again with the accesses of a report in the other order. Returns what the reader sees."""
    from pgas.check import replay

    number, found = asked.replay, order.findings.all
    if number > len(found):
        return f"pgas: report {number} does not exist: the program has {len(found)}"
    plan = replay.Rerun.of(found[number - 1], order)
    if plan is None:
        return f"pgas: report {number} cannot be replayed: it is not about the order of two accesses"
    os.environ.pop("PGAS_SIM_WEAK", None)
    os.environ.setdefault("PGAS_TIMEOUT", str(_TIMEOUT_S))
    seen = []
    for each, options in ((plan.normal(), {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}), (plan, {})):
        with tempfile.TemporaryDirectory(prefix="pgas-check-") as folder:
            each.write_to(Path(folder))
            _run(asked, Path(folder), **options)
            seen.append(replay.values(Path(folder), plan))
            reordered = replay.is_reordered(Path(folder))
    begin = f"pgas: report {number} with {plan.how}"
    different = replay.difference(*seen)
    if different is not None:
        normal, late = different
        _, file, line, _ = plan.shown
        verb = "reads {} instead of {} from" if plan.read else f"and line {plan.second[2]} leave {{}} instead of {{}} in"
        what = verb.format(replay.shown(late), replay.shown(normal))
        return f"{begin}: {os.path.basename(file)}:{line} {what} {order.findings.element(late[0])}"
    if not reordered or not seen[1]:
        return f"{begin}: nothing to show, because the other access did not come before it"
    last = seen[1][-1]
    or_not = ", unless the collective has not made its access yet" if plan.calls else ""
    return f"{begin}: both orders give {replay.shown(last)} in {order.findings.element(last[0])}: the program writes the same value{or_not}"


if __name__ == "__main__":
    sys.exit(main())
