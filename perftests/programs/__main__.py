"""Perform random programs on all PEs and compare every byte and every fetched value with the oracle.

    mpirun -n 3 python -m pgas.perftests.programs --count 1000 --seed 1 --transport ibgda

The run ends after the first group with a failing program, which is made smaller and printed with the command that runs it again.
``--soak 300`` instead performs random operations for 300 seconds, without an oracle (soak.py).
``--order`` instead proves the order checker (ordered.py).
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import pgas
from pgas.base import config
from pgas.base.arguments import Parser, one_of, within
from pgas.base.launcher import launched_rank
from pgas.base.output import outlive_reader
from pgas.base.text import printable
from pgas.perftests.harness.jobs import starting
from pgas.perftests.harness.options import TRANSPORTS
from pgas.perftests.programs import soak
from pgas.perftests.programs.draw import DTYPES, GROUP, draw, shape
from pgas.perftests.programs.operation import Operation, Program, line
from pgas.perftests.programs.oracle import Fault
from pgas.perftests.programs.rules import SMALL
from pgas.perftests.programs.shrink import Numbered, legal, shrunk
from pgas.perftests.programs.trial import Trial

#: Default types on GPUs, few because kernels take long to compile: one without atomics, one with some, and one with all.
_TYPES_ON_GPUS = ("uint8", "float32", "uint64")

#: Variables that are not part of the printed command.
_NOT_SAID = ("PGAS_TRANSPORT", "PGAS_TIMEOUT", "PGAS_CHANNELS", "PGAS_LL_BYTES", *config.SECRETS)

#: Number of attempts to make a failing program smaller. Each runs several times in several blocks, because not every run may show the
#: fault.
_TRIALS = 100
_RUNS = 5
_COPIES = 16


def run(argv: Sequence[str] | None = None) -> int:
    """Run from the command line.

    Returns:
        Exit status, the same on all PEs: 0, 1 if a program failed, or 2 if the programs cannot run.
    """
    arguments = _parse(sys.argv[1:] if argv is None else argv)
    if arguments.transport is not None:
        os.environ["PGAS_TRANSPORT"] = arguments.transport
    os.environ.setdefault("PGAS_CHANNELS", str(2 * GROUP))  # Two per team for every program.
    os.environ.setdefault("PGAS_LL_BYTES", str(SMALL) if arguments.order else "256")  # Because regions are small.
    try:
        job = pgas.init()
    except pgas.TransportError as error:  # It is raised on all PEs.
        if not launched_rank():
            print(f"programs: error: {error}", file=sys.stderr, flush=True)
        return 2
    with job:
        if arguments.soak is not None:
            return soak.run(arguments.seed, arguments.soak)
        if arguments.order:
            from pgas.perftests.programs import ordered  # It needs the simulator.

            return ordered.run(arguments.seed, arguments.first, arguments.count)
        trial = Trial()
        status = _kept(arguments, trial) if arguments.keep else _drawn(arguments, trial)
        trial.free()
    return status


def _say(text: str, file: Any = None) -> None:
    if pgas.my_pe() == 0:
        print(f"programs: {text}", file=file or sys.stderr, flush=True)


def _drawn(arguments: Any, trial: Trial) -> int:
    started, number, done, operations = time.monotonic(), arguments.first, 0, 0
    while done < arguments.count:
        numbers = range(number, min((number // GROUP + 1) * GROUP, number + arguments.count - done))
        number = numbers.stop
        if shape(arguments.seed, numbers.start // GROUP, pgas.n_pes()).dtype.name not in arguments.types:
            continue
        programs = draw_together(arguments.seed, numbers)
        operations += sum(len(program.operations) for program in programs)
        try:
            faults = trial.run(programs)
        except pgas.PgasError:
            command = _command(arguments, ["--first", str(numbers.start), "--count", str(len(numbers))])
            text = f"programs: error: programs {numbers.start} to {numbers[-1]} did not end properly; again: {command}\n"
            sys.stderr.write(text)  # On every PE with the error, because the first PE to end ends the job.
            sys.stderr.flush()
            raise
        if faults:
            place = next(iter(faults))
            _tell(arguments, programs[place], faults[place], trial)
            return 1
        done += len(numbers)
    seconds = time.monotonic() - started
    about = pgas.info()
    over = f"{about['transport']}{', weak memory' if config.read('PGAS_SIM_WEAK') is not None else ''}"
    _say(
        f"{arguments.count} programs of {pgas.n_pes()} PEs, seed {arguments.seed}: {operations} operations in {seconds:.1f} s, "
        f"{arguments.count / seconds:.1f} programs per second; 0 failed; over {over}",
        sys.stdout,
    )
    return 0


def draw_together(seed: int, numbers: range) -> list[Program]:
    """Return the programs of these numbers; each PE draws some of them. Collective."""
    me, n_pes = pgas.my_pe(), pgas.n_pes()
    shares = pgas.allgather_object([draw(seed, number, n_pes) for number in numbers[me::n_pes]])
    return [shares[i % n_pes][i // n_pes] for i in range(len(numbers))]


def _kept(arguments: Any, trial: Trial) -> int:
    """Perform the operations --keep of one program."""
    program = draw(arguments.seed, arguments.first, pgas.n_pes())
    kept = []
    for number, nelems in arguments.keep:
        o = program.operations[number]
        kept.append((number, o if nelems is None else o._replace(nelems=nelems)))
    if legal(program, kept) != kept:
        _say("error: argument --keep: these operations have no defined outcome")
        return 2
    smaller = _of(program, kept)
    _lines(smaller)
    faults = trial.run([smaller] * _COPIES)
    for fault in next(iter(faults.values()), []):
        _say(_words(fault))
    _say(f"{len(faults)} of {_COPIES} copies failed")
    return 1 if faults else 0


def _of(program: Program, kept: list[Numbered]) -> Program:
    return program._replace(operations=tuple(o for _, o in kept))


def _tell(arguments: Any, program: Program, faults: list[Fault], trial: Trial) -> None:
    """Print the fault of a program, make the program smaller, and print it."""
    _say(f"error: program {program.number} of seed {program.seed}: {_words(faults[0])}")
    again = _command(arguments, ["--first", str(program.number), "--count", "1"])
    _say(f"again: {again}")
    last: list[Fault] = []

    def fails(candidate: list[Numbered], runs: int = _RUNS) -> bool:
        nonlocal last
        for _ in range(runs):
            if found := trial.run([_of(program, candidate)] * _COPIES):
                last = next(iter(found.values()))
                return True
        return False

    try:
        if not fails(list(enumerate(program.operations)), 4 * _RUNS):
            first = program.number // GROUP * GROUP
            _say(f"alone it did not fail, {4 * _RUNS} times in {_COPIES} copies; it had run together with programs from {first} on")
            return
        small = shrunk(program, fails, _TRIALS)
    except pgas.PgasError as error:
        _say(f"it could not be made smaller in this job: {error}")
        raise
    _say(f"made smaller, from {len(program.operations)} operations to {len(small)}:")
    _lines(_of(program, small))
    _say(_words(last[0]))
    kept = ",".join(_number(program.operations[number], number, o) for number, o in small)
    _say(f"again: {_command(arguments, ['--first', str(program.number), '--keep', kept])}")


def _number(drawn: Operation, number: int, o: Operation) -> str:
    return str(number) if o == drawn else f"{number}:{o.nelems}"


def _words(fault: Fault) -> str:
    return f"PE {fault.pe}, phase {fault.phase}: {fault.text}"


def _lines(program: Program) -> None:
    """Print a program; a[...] are elements of the area."""
    shape = program.shape
    _say(f"  {shape.n_pes} PEs, {shape.threads} thread{'s' if shape.threads > 1 else ''}, {shape.dtype.name}, {shape.region_bytes} bytes")
    for phase in range(max((o.phase for o in program.operations), default=0) + 1):
        _say(f"  phase {phase}{', of hosts' if phase == shape.on_host else ''}, ended by {shape.ends[phase].name.lower()}")
        for o in program.operations:
            if o.phase == phase:
                _say(f"    {line(shape, o)}")


def _command(arguments: Any, which: list[str]) -> str:
    """Return the command that runs programs again, with its environment variables."""
    variables = [f"{name}={os.environ[name]}" for name in sorted(config.VARIABLES) if os.environ.get(name) and name not in _NOT_SAID]
    transport = ["--transport", os.environ["PGAS_TRANSPORT"]] if "PGAS_TRANSPORT" in os.environ else []
    program = [*starting(pgas.n_pes()), "python", "-m", "pgas.perftests.programs"]
    types = [] if arguments.types == DTYPES or "--keep" in which else ["--types", ",".join(arguments.types)]
    return shlex.join([*variables, *program, *transport, *types, "--seed", str(arguments.seed), *which])


def _parse(argv: Sequence[str]) -> Any:
    parser = Parser(
        prog="programs",
        description="Perform random programs on all PEs and compare with an oracle.",
        allow_abbrev=False,
        epilog="mpirun -n 3 python -m pgas.perftests.programs",
    )
    count = 256 if pgas.SIMULATOR else 10_000
    most = 2**40
    parser.add_argument("--count", type=within(1, most), default=count, metavar="N", help=f"programs [{count}]")
    parser.add_argument("--seed", type=within(0, most), default=1, metavar="N", help="seed of all random choices [1]")
    parser.add_argument("--first", type=within(0, most), default=0, metavar="N", help="number of the first program [0]")
    keep = "only these operations of the first program, each a number, or number:elements"
    parser.add_argument("--keep", type=_numbers, metavar="LIST", help=keep)
    seconds = "no programs: concurrent random operations from all threads for this time"
    parser.add_argument("--soak", type=within(1, most), metavar="SECONDS", help=seconds)
    if pgas.SIMULATOR:
        order = "programs under the order checker, whole and without one fence, wait, or barrier"
        parser.add_argument("--order", action="store_true", help=order)
    types = DTYPES if pgas.SIMULATOR else _TYPES_ON_GPUS
    of = f"types of elements, of {', '.join(DTYPES)} [{','.join(types)}]"
    parser.add_argument("--types", type=_types, default=types, metavar="LIST", help=of)
    names = f"{'; '.join(TRANSPORTS)} [pgas chooses]"
    parser.add_argument("--transport", type=one_of(TRANSPORTS), metavar="NAME", help=names)
    parser.set_defaults(order=False)
    return parser.parse_args(argv)


def _types(text: str) -> tuple[str, ...]:
    return tuple(one_of(DTYPES)(name) for name in text.split(","))


def _numbers(text: str) -> list[tuple[int, int | None]]:
    """Parse numbers of operations, each with an optional number of elements after a colon."""
    pairs = [item.partition(":") for item in text.split(",")]
    read = within(0, 2**40)
    try:
        return [(read(number), read(nelems) if colon else None) for number, colon, nelems in pairs]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not a list of numbers; for example 3,4:1,7") from None


def main() -> int:
    """Run from the command line."""
    outlive_reader()
    return run()


if __name__ == "__main__":
    sys.exit(main())
