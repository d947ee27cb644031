"""``python -m pgas info``: the variables, and the PEs, heap and transport of a job started here; also under mpirun.

``python -m pgas hca``: objects and counters of this machine's software cards, while their jobs run.

``python -m pgas topo``: distances of GPUs and NICs, peer access, the NIC of each GPU; under mpirun also the job's transport.

``python -m pgas compile prog.py``: registers, spills and instructions of a program's kernels on a GPU, without one.

``python -m pgas doctor``: checks of this machine, with a remedy for each failure.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pgas
from pgas import compile as kernels
from pgas.base import config
from pgas.doctor import report as doctor
from pgas.doctor import topo
from pgas.job import card, ending, runtime
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
            variables = [(v.name, v.type, v.default or "-", _value(v.name), v.meaning) for v in config.VARIABLES.values()]
            print(_table([("variable", "type", "default", "value", "meaning"), *variables]))
            print("\nPEs")
            pes = [
                (str(pe.number), str(pe.pid), pe.node.split("/")[0], f"{pe.gpu_name} {pe.gpu}" if pe.gpu else "simulator") for pe in job.pes
            ]
            print(_table([("PE", "process", "node", "GPU"), *pes]))
            print("\nSymmetric heap")
            print(f"  window  PE p's slot at {window.BASE:#x} + p * 2^{window.STRIDE_SHIFT}; state page at {window.STATE:#x}")
            print(f"  heap    {job.heap.size} bytes at offset {window.HEAP_OFFSET:#x} of every slot")
            plan = job.teams.plan
            size = f"{plan.max_teams} teams of all PEs, {plan.channels} channels each, up to {plan.ll_bytes} bytes a pair through staging"
            print(f"  teams   {plan.nbytes} bytes before it: room for {size}")
            print("\nTransport")
            print("\n".join(f"  {line}" for line in _paths(job)))


def _paths(job: runtime.Job) -> list[str]:
    if not job.paths.two:
        return [f"every pair of PEs: {job.transport} ({job.reason})"]
    names = [f"PE{pe}" for pe in range(job.n_pes)]
    table = _table([("", *names), *((name, *(job.paths.between(a, b) for b in range(job.n_pes))) for a, name in enumerate(names))])
    who = config.read("PGAS_AMO")
    atomics = "as above" if who == "peer" else f"{job.paths.far} for every pair"
    return [
        f"{job.transport} ({job.reason})",
        *table.splitlines(),
        *job.paths.reasons(),
        f"atomics and signals that add: {atomics} (PGAS_AMO={who})",
    ]


def _value(name: str) -> str:
    value = os.environ.get(name, "-")
    return "(set)" if value != "-" and name in config.SECRETS else value


def hca() -> None:
    """Print queue pairs, CQs, keys and counters of every software card of this machine."""
    cards = card.find()
    if not cards:
        print("no software card runs on this machine: a job with PGAS_TRANSPORT=ibgda or ibrc starts one")
    for name in cards:
        try:
            with contextlib.closing(card.observe(name, _ANSWER_S)) as observer:
                text = _seen(name, observer.counters())
        except pgas.TransportError as error:  # it ended meanwhile, does not answer, or is another user's
            text = f"card {name}: cannot be asked: {_printable(str(error))}"
        except (LookupError, TypeError, AttributeError):
            text = f"card {name}: its answer is not understood; it may be of another version of pgas"
        print(text)


#: Seconds to wait for a card's answer.
_ANSWER_S = 10.0


def _seen(name: str, seen: dict[str, Any]) -> str:
    totals = ", ".join(f"{_printable(key)} {_cell('', value)}" for key, value in seen["hca"].items())
    lines = [f"card {name} (process {_cell('', seen['pid'])}): {totals}"]
    for kind in ("qps", "cqs", "keys", "uars"):
        if rows := seen[kind]:
            shown = [key for key in rows[0] if key in _HCA_COLUMNS[kind]]
            lines += ["", kind, _table([tuple(shown), *(tuple(_cell(key, row[key]) for key in shown) for row in rows)])]
    return "\n".join(lines)


def _printable(text: str) -> str:
    """Escape the control characters of a text from another process, which could move the terminal's cursor."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


#: The columns of each kind of object.
_HCA_COLUMNS = {
    "qps": "qpn pe state depth remote_qpn consumer producer wqes nbytes doorbells cqes errors first_error".split(),  # noqa: SIM905
    "cqs": "cqn pe size collapsed cqes".split(),  # noqa: SIM905
    "keys": "key pe access start nbytes".split(),  # noqa: SIM905
    "uars": "page pe qpns".split(),  # noqa: SIM905
}


def _cell(key: str, value: object) -> str:
    if isinstance(value, list):
        return ",".join(_cell(key, item) for item in value) or "-"
    hexadecimal = isinstance(value, int) and key in ("qpn", "qpns", "remote_qpn", "cqn", "key", "start", "first_error")
    return f"{value:#x}" if hexadecimal else _printable(str(value))


#: Command -> its help text, and its function.
_COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace], int | None]]] = {
    "info": ("variables, PEs, GPUs, window, heap, transports", lambda _: info()),
    "hca": ("software cards of this machine", lambda _: hca()),
    "topo": ("distances of GPUs and NICs, peer access, the NIC of each GPU", lambda _: topo.run()),
    "compile": ("registers, spills and instructions of a program's kernels", kernels.run),
    "doctor": ("check this machine and print remedies", doctor.run),
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m pgas", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (meaning, _) in _COMMANDS.items():
        module = {"doctor": doctor, "compile": kernels}.get(name)
        text = module.__doc__ if module else meaning
        command = commands.add_parser(name, help=meaning, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if module:
            module.add_arguments(command)
    arguments = parser.parse_args()
    try:
        return _COMMANDS[arguments.command][1](arguments) or 0
    except (pgas.PgasError, ValueError) as error:
        ending.say(str(error))
        if runtime.active():
            runtime.current().broken = True
        return 1


if __name__ == "__main__":
    sys.exit(main())
