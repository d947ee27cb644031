"""The command ``pgas``, also ``python -m pgas``: starts jobs, and shows what this machine can run and what programs need."""

import argparse
import importlib
import os
import sys

from pgas.base import config
from pgas.base.arguments import Parser
from pgas.base.errors import PgasError
from pgas.base.output import outlive_reader
from pgas.base.version import __version__
from pgas.base.waits import say

#: Commands that take a program with its arguments, and parse their command lines themselves: help text and module.
_OF_PROGRAMS = {
    "run": ("start the PEs of a job without MPI", "pgas.run"),
    "check": ("run a program in the simulator, and report accesses that nothing orders", "pgas.check.__main__"),
}

#: By command, its help text, and the module of its function run(arguments), which may import the compiler. The module of a command with
#: arguments also has a function add_arguments(parser).
_COMMANDS = {
    "info": ("variables, PEs, GPUs, window, heap, transports", "pgas.doctor.info"),
    "hca": ("software NICs of this machine", "pgas.doctor.hca"),
    "topo": ("distances of GPUs and NICs, peer access, the NIC of each GPU", "pgas.doctor.topo"),
    "compile": ("registers, spills and instructions of a program's kernels", "pgas.compile"),
    "trace": ("the timeline of a job that ran with PGAS_TRACE=timeline", "pgas.trace.command"),
    "doctor": ("check this machine and print remedies", "pgas.doctor.report"),
}


def main() -> int:
    """Run the command line."""
    name = "pgas" if os.path.basename(sys.argv[0]) == "pgas" else "python -m pgas"
    if (first := sys.argv[1] if len(sys.argv) > 1 else "") in _OF_PROGRAMS:
        return importlib.import_module(_OF_PROGRAMS[first][1]).main(sys.argv[2:], f"{name} {first}")  # type: ignore[no-any-return]
    outlive_reader()
    unread = config.VARIABLES if sys.argv[1:2] == ["doctor"] else ()  # Because doctor has a finding for them.
    parser = Parser(prog=name, description=__doc__, unread=unread)
    parser.add_argument("--version", action="version", version=f"pgas {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for command, (meaning, _) in _OF_PROGRAMS.items():
        commands.add_parser(command, help=meaning, add_help=False)
    for command, (meaning, path) in _COMMANDS.items():
        asked = commands.add_parser(command, help=meaning, formatter_class=argparse.RawDescriptionHelpFormatter)
        if sys.argv[1:2] == [command]:
            module = importlib.import_module(path)
            asked.description = module.__doc__
            getattr(module, "add_arguments", lambda parser: None)(asked)
    if not sys.argv[1:]:
        parser.print_help(sys.stderr)
        return 2
    arguments = parser.parse_args()
    try:
        return importlib.import_module(_COMMANDS[arguments.command][1]).run(arguments) or 0
    except (PgasError, ValueError) as error:
        say(str(error))
        runtime = sys.modules.get("pgas.job.runtime")
        if runtime is not None and runtime.active():
            runtime.current().health.broken = True
        return 1


if __name__ == "__main__":
    sys.exit(main())
