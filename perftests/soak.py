"""Many random operations from inside kernels, every byte checked: kind, scope, size, alignment, target and queue pair are drawn.

    mpirun -n 2 python -m pgas.perftests.soak --ops 1e8 --seed 7

A round is one kernel, in which every thread performs some operations on random PEs (also its own), alone or with its warp or block. When
all are complete, each PE draws again what all PEs did (draws.py). Compared are

* every byte of the PE's area, also those that nobody wrote to (on the device);
* its signals, sums and counters with what was added, and what was fetched from its counters: every value once;
* through a NIC, what the card counted: a WQE that is lost or sent twice is a fault.

Area and source are new in every round. The run ends at the first round in which something is wrong.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pgas  # Before numba.cuda: it selects the simulator where there is no GPU.

# isort: split
import numpy as np
from numba import cuda

from pgas.base import config
from pgas.base.backend import launched_rank
from pgas.job import runtime
from pgas.perftests import options, report
from pgas.perftests.draws import LANES, WORDS, Kind, Shape, scrambled
from pgas.perftests.traffic import (
    ALL_WORDS,
    BEGIN,
    COUNTERS,
    COUNTERS_4,
    FAULT,
    FEWEST,
    MOST,
    NBYTES,
    SUMS_4,
    TALLIES,
    TOLD,
    WRONG,
    Heap,
    Notes,
    check,
    fill,
    operate,
)

__all__ = ["main", "run"]


class Soak:
    """The arrays of a PE and its rounds. Collective throughout.

    Raises:
        HeapError: the area does not fit on the heap.
    """

    def __init__(self, seed: int, ctas: int, threads: int, steps: int, lane_bytes: int, source_bytes: int) -> None:
        n_pes = pgas.n_pes()
        queue_pairs = config.read("PGAS_IBGDA_NUM_RC_PER_PE")
        self.seed, self.shape = seed, Shape(n_pes, queue_pairs, ctas, threads, steps, lane_bytes, source_bytes)
        self._arrays: list[Any] = []
        try:
            area = self._keep(pgas.empty(n_pes * steps * ctas * threads * lane_bytes, np.uint8))
            source = self._keep(pgas.empty(source_bytes, np.uint8))
            self._words8 = self._keep(pgas.full(3 * WORDS, np.int64(BEGIN).astype(np.uint64)))
            self._words4 = self._keep(pgas.full(2 * WORDS, np.int64(BEGIN).astype(np.uint32)))
        except pgas.HeapError:
            self.free()
            raise
        dtypes = (np.uint8, np.uint16, np.uint32, np.uint64, np.complex128)
        views = [array.view(dtype) for array in (area, source) for dtype in dtypes]
        self.heap = Heap._make([*views, self._words8, self._words4])
        notes = {"tallies": TALLIES, "sums": ALL_WORDS, "fetched": n_pes * 2 * WORDS, "faults": TOLD}
        self._notes = Notes(*(cuda.to_device(np.zeros(n, FAULT if name == "faults" else np.int64)) for name, n in notes.items()))
        self._counted = np.zeros(2 * WORDS, np.int64)  # additions to this PE's counters
        self._hashed = np.zeros(2 * WORDS, np.int64)  # and the hash of what they fetched
        if pgas.my_pe() == 0 and not pgas.SIMULATOR:
            print("soak: its kernels are compiled, a minute unless they are in the disk cache", file=sys.stderr, flush=True)
        operate[ctas, threads](self.shape._replace(steps=0), self.heap, self._notes, seed, 0)  # compiled in nobody's time
        pgas.barrier_all()
        self._card = _card_counts()

    def _keep(self, array: Any) -> Any:
        self._arrays.append(array)
        return array

    def free(self) -> None:
        """Give the arrays back."""
        for array in reversed(self._arrays):
            pgas.free(array)

    def round(self, number: int, between: Callable[[int, Heap], None] | None) -> tuple[float, Any, list[str]]:
        """Do a round; return the seconds of its operations, the tallies of this PE, and what is wrong here.

        Args:
            number: of the round.
            between: called with the number and the heap when all operations are complete, before they are checked.
        """
        grid = self.shape.ctas, self.shape.threads
        fill[grid](self.heap, self.seed, number)
        pgas.barrier_all()
        started = time.perf_counter()
        operate[grid](self.shape, self.heap, self._notes, self.seed, number)
        pgas.barrier_all()
        seconds = time.perf_counter() - started
        if between is not None:
            between(number, self.heap)
        self._notes.tallies.copy_to_device(np.zeros(TALLIES, np.int64))
        check[grid](self.shape, self.heap, self._notes, self.seed, number)
        pgas.synchronize()
        tallies = self._notes.tallies.copy_to_host()
        return seconds, tallies, [*self._wrong_bytes(number, tallies), *self._wrong_words(), *self._wrong_counts(tallies)]

    def _wrong_bytes(self, round_: int, tallies: Any) -> list[str]:
        count = int(tallies[WRONG])
        if not count:
            return []
        faults = np.sort(self._notes.faults.copy_to_host()[:count], order="at")
        return [f"{count} wrong byte{'s' if count > 1 else ''}", *(self._words_of(fault, round_) for fault in faults)]

    def _words_of(self, fault: Any, round_: int) -> str:
        shape, at = self.shape, int(fault["at"])
        rest, thread = divmod(int(fault["lot"]), shape.threads)
        rest, cta = divmod(rest, shape.ctas)
        sender, step = divmod(rest, shape.steps)
        name = Kind(fault["kind"]).name.lower() + ("", "_warp", "_block")[fault["scope"]]
        start, nbytes = int(fault["start"]), int(fault["nbytes"])
        what = f"{name} of {nbytes} bytes at {start} of PE {fault['pe']}"
        if fault["written"] and start <= at < start + nbytes:
            where = f"byte {at - start} of a {what}"
        else:
            where = f"which nobody writes to, beside a {what}"
        return (
            f"byte {at} is {fault['found']:#04x} instead of {fault['wanted']:#04x}: {where} "
            f"by PE {sender}, CTA {cta}, thread {thread}, step {step} of round {round_}, seed {self.seed}"
        )

    def _wrong_words(self) -> list[str]:
        """Compare the words of this PE with what was added to them, and what was fetched with what that leads to."""
        added = self._notes.sums.copy_to_host().astype(np.uint64)
        names = [f"{name} {i}" for name in _WORD_NAMES for i in range(WORDS)]
        found = np.concatenate([self._words8.copy_to_host(), self._words4.copy_to_host().astype(np.uint64)])
        right = added + np.int64(BEGIN).astype(np.uint64)
        right[SUMS_4:] &= np.uint64(0xFFFF_FFFF)
        wrong = [f"{names[i]} is {found[i]:#x} instead of {right[i]:#x}" for i in np.flatnonzero(found != right)]

        counted = np.concatenate([added[COUNTERS:SUMS_4], added[COUNTERS_4:]]).astype(np.int64)
        for i in range(2 * WORDS):
            fetched = (np.arange(self._counted[i], counted[i]) + BEGIN).astype(np.uint64 if i < WORDS else np.uint32)
            self._hashed[i] += int((scrambled(fetched) >> np.uint64(32)).sum())
        self._counted = counted
        everywhere = sum(pgas.allgather_object(self._notes.fetched.copy_to_host()))
        here = everywhere.reshape(-1, 2 * WORDS)[pgas.my_pe()]
        counters = [*range(COUNTERS, SUMS_4), *range(COUNTERS_4, ALL_WORDS)]
        wrong += [
            f"what was fetched from {names[counters[i]]} is not each of its {counted[i]} values once"
            for i in np.flatnonzero(here != self._hashed)
        ]
        return wrong[:TOLD]

    def _wrong_counts(self, tallies: Any) -> list[str]:
        """Compare what the card counted in this round."""
        before, self._card = self._card, _card_counts()
        given = {name: count - before[name] for name, count in self._card.items()}
        if not given:
            return []
        calls, nbytes, fewest, most = int(tallies[: len(Kind)].sum()), *(int(tallies[i]) for i in (NBYTES, FEWEST, MOST))
        wrong = []
        if given["errors"]:
            wrong.append(f"the card counted {given['errors']} errors for {calls} operations")
        if given["nbytes"] != nbytes:
            wrong.append(f"the card moved {given['nbytes']} bytes instead of {nbytes} for {calls} operations")
        if not fewest <= given["wqes"] <= most:
            wrong.append(f"the card executed {given['wqes']} WQEs instead of {fewest} to {most} for {calls} operations")
        return wrong


_WORD_NAMES = ("signal", "sum", "counter", "4-byte sum", "4-byte counter")


def _card_counts() -> dict[str, int]:
    nic = runtime.current().nic
    return {} if nic is None else nic.counts()


def run(argv: Sequence[str] | None = None, between: Callable[[int, Heap], None] | None = None) -> int:
    """Run from the command line; between: see Soak.round().

    Returns:
        Exit status: 0, or 1 if something was wrong, or 2 if the run was refused (the same on all PEs).
    """
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    if arguments.transport is not None:
        os.environ["PGAS_TRANSPORT"] = arguments.transport
    try:
        job = pgas.init()
    except pgas.TransportError as error:  # init decides this on all PEs alike
        return _refuse(str(error), launched_rank() or 0)
    with job:
        try:
            steps, lane_bytes, source_bytes = (8, 32, 16 << 10) if pgas.SIMULATOR else (16, 256, 1 << 20)
            soak = Soak(arguments.seed, arguments.ctas, arguments.threads, steps, lane_bytes, source_bytes)
        except pgas.HeapError as error:
            return _refuse(f"{arguments.ctas} CTAs: {error}", pgas.my_pe())
        result = _rounds(soak, arguments.ops, between)
        soak.free()
        if pgas.my_pe() == 0:
            print(_summary(result), flush=True)
            if arguments.json is not None:
                _write(arguments, argv, result)
        return 1 if result["faults"] else 0


def _refuse(text: str, pe: int) -> int:
    if pe == 0:
        print(f"soak: error: {text}", file=sys.stderr, flush=True)
    return 2


def _rounds(soak: Soak, ops: int, between: Callable[[int, Heap], None] | None) -> dict[str, Any]:
    """Do rounds until all PEs together have performed so many operations, or something is wrong; return the results of all PEs."""
    total, seconds, faults, number = np.zeros(TALLIES, np.int64), 0.0, list[str](), 0
    started = time.monotonic()
    with _progress(ops) as advance:
        while not faults and total[: len(Kind)].sum() < ops:
            results = pgas.allgather_object(soak.round(number, between))
            seconds += max(result[0] for result in results)
            total += sum(result[1] for result in results)
            faults = [f"PE {pe}: {text}" for pe, (_, _, texts) in enumerate(results) for text in texts]
            number += 1
            advance(int(total[: len(Kind)].sum()))
    if pgas.my_pe() == 0:
        for fault in faults:
            print(f"soak: error: {fault}", file=sys.stderr, flush=True)
    operations = int(total[: len(Kind)].sum())
    return {
        "operations": operations,
        "kinds": {kind.name.lower(): int(total[kind]) for kind in Kind},
        "nbytes": int(total[NBYTES]),
        "rounds": number,
        "elapsed_s": time.monotonic() - started,
        "seconds": seconds,
        "mops": operations / seconds / 1e6,
        "mismatches": int(total[WRONG]),
        "faults": faults,
        "seed": soak.seed,
        "shape": soak.shape._asdict(),
    }


@contextmanager
def _progress(ops: int) -> Iterator[Callable[[int], None]]:
    """Show how far it is on stderr of PE 0: each second if that is a terminal, else a line every 20."""
    terminal, last = sys.stderr.isatty(), time.monotonic()

    def advance(operations: int) -> None:
        nonlocal last
        if pgas.my_pe() == 0 and time.monotonic() - last >= (1 if terminal else 20):
            last = time.monotonic()
            begin, end = ("\r", "") if terminal else ("", "\n")
            print(f"{begin}soak: {operations:,} of {ops:,} operations", end=end, file=sys.stderr, flush=True)

    yield advance
    if pgas.my_pe() == 0 and terminal:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _summary(result: dict[str, Any]) -> str:
    kinds = ", ".join(f"{name} {count}" for name, count in result["kinds"].items())
    wrong = f"{result['mismatches']} wrong bytes" + (f", {len(result['faults'])} faults" if result["faults"] else "")
    return (
        f"soak: {result['operations']} operations ({kinds}), {result['nbytes']} bytes in {result['rounds']} rounds of "
        f"{result['shape']['n_pes']} PEs, seed {result['seed']}: {result['elapsed_s']:.1f} s, {result['seconds']:.2f} of them in "
        f"operations: {result['mops']:.3f} million operations/s; {wrong}"
    )


def _write(arguments: argparse.Namespace, argv: Sequence[str], result: dict[str, Any]) -> None:
    about = pgas.info()
    described = {key: about[key] for key in ("machine", "gpu", "transport", "adapter", "engine", "npes", "versions")}
    command = report.command_text(pgas.n_pes(), "python", ["-m", "pgas.perftests.soak", *argv])
    heading = {"test": "soak", **described, "commit": report.commit(), "command": command, "date": report.now(), "args": vars(arguments)}
    Path(arguments.json).write_text(json.dumps({**heading, **result}, indent=2) + "\n", encoding="utf-8")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    ops, ctas, threads = (20_000, 2, 64) if pgas.SIMULATOR else (100_000_000, 32, 256)
    parser = options.Parser(prog="soak", description="Random operations from inside kernels, every byte checked.", allow_abbrev=False)
    parser.add_argument("--ops", type=options.within(1, 10**15, _count), default=ops, metavar="N", help=f"of all PEs together [{ops:.0e}]")
    parser.add_argument("--seed", type=options.within(0, 2**63 - 1), default=1, metavar="N", help="of everything that is drawn [1]")
    names = f"{', '.join(options.TRANSPORTS)} [pgas chooses]"
    parser.add_argument("--transport", type=options.one_of(options.TRANSPORTS), metavar="NAME", help=names)
    parser.add_argument("--ctas", type=options.within(1, 65535), default=ctas, metavar="N", help=f"CTAs (blocks) of the kernels [{ctas}]")
    parser.add_argument("--threads", type=options.within(LANES, 1024), default=threads, metavar="N", help=f"of each CTA [{threads}]")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON")
    arguments = parser.parse_args(argv)
    if arguments.threads % LANES:
        parser.error(f"argument --threads: {arguments.threads} makes a broken warp; it must be a multiple of {LANES}, {LANES} to 1024")
    return arguments


def _count(text: str) -> int:
    """Return an integer, also of a text such as 1e8."""
    value = float(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def main() -> int:
    """Run the test from the command line."""
    return run()


if __name__ == "__main__":
    sys.exit(main())
