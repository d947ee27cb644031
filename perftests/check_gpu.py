"""``make check-gpu``: the tests and measurements that need GPUs, on this machine, with the Python that is active.

Two PEs, and three and four for some tests, on a GPU each if there are enough. What shares a GPU does so under MPS, which is started here
and ended again if it does not run: several PEs, the NIC's kernel where none is spare. Writes perftests/baselines/<test>-<gpus>.json, and
what the conformance suite has shown, conformance-<gpus>.txt, once all has passed.
``--quick`` leaves the tests out, ``--tests`` the measurements; ``--only REGEX`` performs the steps in whose name it is found (``ibrc 3``,
``soak``), also those that have passed before. ``--at-once 4`` performs four steps of the tests at once on each GPU, all PEs of a step on
one: compiling kernels takes most of their time; build/check-gpu/ (build/check-gpu-only/) has what they say. ``--seconds`` ends after that
time, and the next run on this machine with these sources goes on (build/check-gpu.json), until nothing is left.
"""

import argparse
import contextlib
import hashlib
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pgas.perftests import compare
from pgas.perftests.jobs import BASELINES, ROOT, ended_by_signals, gpus, machine_name, mpirun, mps, run
from pgas.perftests.pool import Pool, Step
from pgas.perftests.report import commit, now

#: Through the NIC that a kernel plays: scattered and neighbouring p, block puts; a queue pair a CTA.
NIC_MEASUREMENTS = {
    "shmem_p_bw-ibgda-8x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 8 -t 1024 -i 2 -b 64K -e 512K",
    "shmem_p_bw-ibgda-64x1024-scattered": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -i 2 -b 512K -e 4M",
    "shmem_p_bw-ibgda-64x1024": "shmem_p_bw --transport ibgda -n 20 -w 5 -c 64 -t 1024 -b 512K -e 4M",
    "shmem_put_bw-ibgda-32x1024": "shmem_put_bw --transport ibgda -n 20 -w 5 -c 32 -t 1024 -b 1K -e 32M",
}

#: Of the soak test through that NIC: a queue pair performs its atomics one at a time.
SOAK_QUEUES = {"PGAS_IBGDA_NUM_RC_PER_PE": "16", "PGAS_QP_DEPTH": "4096"}

#: What of tests/mpi runs through the NIC.
NIC_TESTS = tuple(f"tests/mpi/test_{name}.py" for name in ("nic", "requests", "register", "reset", "streams", "heap_growth"))

#: What of tests/mpi is skipped without one, or is of the simulator.
NOT_OF_P2P = ("nic", "requests", "weak")

#: What PEs do that have more than one neighbour, by the name of the step that does it.
OF_3 = {"d to g": ("d_", "e_programs", "f_", "g_"), "atomics": ("e_atomics",)}

#: In how many parts the tests of a chapter are, where it would be the last by far: each of them compiles kernels.
PARTS = {"b_heap": 2, "c_rma": 6, "c_strided": 4, "e_atomics": 4, "l_python": 2, "streams": 3}

#: Variables of most chapters, as many PEs are on a GPU at once; and of those that need a heap of gigabytes or sizes of their own, or long
#: for a kernel.
SMALL = {"PGAS_SYMMETRIC_SIZE": "512M"}
OWN_VARIABLES = {"b_heap": {}, "c_rma": {}, "heap_growth": {}, "programs": {**SMALL, "TEST_TIMEOUT": "600"}}

#: What has passed, of a run in several parts.
KEPT = ROOT / "build" / "check-gpu.json"

#: The same of a run with --only, for its own time.
ONLY = ROOT / "build" / "check-gpu-only.json"

#: What the conformance suite has shown on this machine.
REPORT = ROOT / "build" / "conformance-gpu.json"

#: What the card executes, checks and refuses, with the machine code that is measured, whose hash they print.
CARD_TESTS = [f"tests/test_softhca_{name}.py" for name in ("rig", "wqes", "errors", "atomics", "states", "faults", "replay")]

#: The flags of NVSHMEM's figures that ours are compared with (compare.py), both ways, and plain stores.
MEASUREMENTS = {
    "shmem_put_bw-32x1024": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M",
    "shmem_put_bw-4x1024": "shmem_put_bw -n 200 -w 20 -c 4 -t 1024 -b 4 -e 32M",
    "shmem_put_bw-32x1024-bidir": "shmem_put_bw -n 200 -w 20 -c 32 -t 1024 -b 1024 -e 64M --bidir",
    "shmem_p_bw-32x1024": "shmem_p_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_p_bw-4x1024": "shmem_p_bw -n 10 -w 10 -c 4 -t 1024 -b 1024 -e 64K",
    "shmem_get_bw-32x1024": "shmem_get_bw -n 200 -w 20 -c 32 -t 1024 -e 64M",
    "shmem_g_bw-32x1024": "shmem_g_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_st_bw-32x1024": "shmem_st_bw -n 100 -w 10 -c 32 -t 1024 -b 32K -e 16M",
    "shmem_atomic_bw-32x256": "shmem_atomic_bw -n 100 -w 10",
    "shmem_atomic_bw-fetch_add-32x256": "shmem_atomic_bw -n 100 -w 10 -a fetch_add",
    **compare.LATENCIES,
}

#: Latencies through that NIC.
NIC_LATENCIES = {
    f"{name}-ibgda": f"{line} --transport ibgda"
    for name, line in {
        "shmem_put_latency": "shmem_put_latency -n 100 -w 10 -e 64K -f 16",
        "shmem_p_latency": "shmem_p_latency -n 100 -w 10 -e 1K -f 16",
        "shmem_atomic_latency-fetch_add": "shmem_atomic_latency -n 100 -w 10 -a fetch_add",
        "shmem_put_signal_ping_pong_latency": "shmem_put_signal_ping_pong_latency -n 100 -w 10 -e 64K -f 16",
        "shmem_signal_ping_pong_latency": "shmem_signal_ping_pong_latency -n 100 -w 10",
    }.items()
}

#: What tests are run with: arguments of Python, the report of the conformance suite, variables.
PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
REPORTED = ["--conformance-report", str(REPORT)]
ON_GPUS = {"NUMBA_ENABLE_CUDASIM": "0"}


class Part(NamedTuple):
    """Steps in turn, under MPS where fewer GPUs are there than places; or several at once on each GPU, under an MPS server of its own."""

    places: int
    at_once: bool
    steps: list[Step]


def _on(n: int) -> list[str]:
    return [*mpirun(n), sys.executable]


def _chapters(transport: str) -> Iterator[Step]:
    """The conformance suite and what looks into pgas: at two PEs, a file or a part of one a step; at more; with heaps for gigabytes."""
    variables = {**ON_GPUS, "PGAS_TRANSPORT": transport}
    files = sorted(str(path.relative_to(ROOT)) for folder in ("conformance", "mpi") for path in (ROOT / "tests" / folder).glob("test_*.py"))
    for file in files:
        chapter = Path(file).stem.removeprefix("test_")
        if file.startswith("tests/mpi") and (chapter in NOT_OF_P2P if transport == "p2p" else file not in NIC_TESTS):
            continue
        own = OWN_VARIABLES.get(chapter, SMALL)
        reported = REPORTED if file.startswith("tests/conformance") else []
        parts = PARTS.get(chapter, 1)
        for part in (f"{number}/{parts}" for number in range(1, parts + 1)):
            name, chosen = f"{transport} 2 {chapter}", ["--part", part] if parts > 1 else []
            yield Step(f"{name} {part}" if chosen else name, [*_on(2), *PYTEST, *reported, *chosen, file], 900, {**variables, **own})
    for n in (3, 4):
        for name, chapters in OF_3.items():
            chosen = [file for file in files if Path(file).name.startswith(tuple(f"test_{chapter}" for chapter in chapters))]
            yield Step(f"{transport} {n} {name}", [*_on(n), *PYTEST, *REPORTED, *chosen], 900, {**variables, **SMALL})
    of_gigabytes = [*_on(2), *PYTEST, *REPORTED, "tests/conformance/test_c_rma.py", "-k", "gigabytes"]
    yield Step(f"{transport} 2 gigabytes", of_gigabytes, 300, {**variables, "PGAS_SYMMETRIC_SIZE": "5G"})


def _tests() -> Iterator[Step]:
    yield from _chapters("p2p")
    operands = [*_on(2), *PYTEST, *REPORTED, "tests/conformance/test_c_operands.py"]
    yield Step("checks in kernels", operands, 600, {**ON_GPUS, "PGAS_DEBUG": "check"})


def _nic_tests() -> Iterator[Step]:
    for transport in ("ibgda", "ibrc"):
        yield from _chapters(transport)


def _alone() -> Iterator[Step]:
    """What prints a hash, and what counts GPU memory or kills processes, last: the death of a client may take the MPS server with it."""
    yield from (
        Step(name, [sys.executable, *PYTEST, "-s", *files], 900, ON_GPUS)
        for name, files in (
            ("the card's checks", CARD_TESTS),
            ("hang reports", ["tests/test_hang_report.py"]),
            ("deaths", ["tests/test_faults_nic.py"]),
        )
    )


def _sources() -> str:
    """Return what changes with any source here; a copy of the repository has no commit."""
    found = hashlib.sha256()
    for folder in ("pgas", "kernels", "transports", "perftests", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def _measurements(machine: str) -> Iterator[Step]:
    """What needs no NIC."""
    output = str(BASELINES / f"compile_time-{machine}.json")
    yield from compare.steps(MEASUREMENTS, machine, 200)
    yield Step("programs", [*_on(2), "-m", "pgas.perftests.programs", "--transport", "p2p"], 300)
    yield Step("compile_time", [sys.executable, "-m", "pgas.perftests.compile_time", "--json", output], 100)
    yield Step("demo", [*_on(2), "-m", "pgas.perftests.demo"], 100)


def _nic_measurements(machine: str) -> Iterator[Step]:
    """What needs one; each CTA has a queue pair of its own."""
    yield from compare.steps(NIC_LATENCIES, machine, 200)
    for step in compare.steps(NIC_MEASUREMENTS, machine, 200):
        ctas = NIC_MEASUREMENTS[step.name].partition("-c ")[2].split()[0]
        yield Step(step.name, step.command, step.seconds, {"PGAS_IBGDA_NUM_RC_PER_PE": ctas, "PGAS_QP_DEPTH": "8192"})
    yield Step("soak", [*_on(2), "-m", "pgas.perftests.programs", "--soak", "60", "--transport", "ibgda"], 300, SOAK_QUEUES)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error


def _count(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError(text)
    return number


def main() -> int:
    """Run everything, report what failed; the exit status is 1 if something has, and 3 if only time was too short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measurements only")
    parser.add_argument("--tests", action="store_true", help="tests only")
    parser.add_argument("--only", type=_pattern, default="", metavar="REGEX", help="the steps in whose name this is found")
    parser.add_argument("--at-once", type=_count, default=0, metavar="N", help="steps of the tests at once on each GPU, under MPS")
    parser.add_argument("--seconds", type=float, help="end after this time; the next run goes on")
    options = parser.parse_args()
    names, uuids = gpus(), gpus("uuid")
    if not names or len(uuids) < len(names) or shutil.which("mpirun") is None:
        print("check-gpu needs a GPU and an mpirun", file=sys.stderr)
        return 2
    machine = machine_name(names)
    plan = _plan(machine, options)
    if not plan:
        print(f"check-gpu: --only {options.only.pattern!r} is found in the name of no step", file=sys.stderr)
        return 2
    BASELINES.mkdir(exist_ok=True)
    kept = ONLY if options.only.pattern else KEPT
    if kept == ONLY:
        kept.unlink(missing_ok=True)
    pool = Pool(kept, f"{', '.join(uuids)}; {_sources()}", options.seconds, uuids, options.at_once)
    if kept == KEPT and not pool.goes_on:
        REPORT.unlink(missing_ok=True)
    with ended_by_signals():
        _perform(pool, len(names), plan)
    found = pool.outcome
    all_tests = kept == KEPT and not (options.quick or found.failed or found.left)
    if REPORT.exists():
        _show_report(BASELINES / f"conformance-{machine}.txt" if all_tests else None)
    counts = f"{len(found.passed)} steps passed, {len(found.before)} had before, {len(found.failed)} failed, {len(found.left)} left"
    print(f"check-gpu on {machine}: {counts}")
    for verb, steps in (("FAILED", found.failed), ("left", found.left)):
        print(*(f"{verb}: {name}" for name in steps), sep="\n", end="\n" if steps else "")
    if kept == ONLY or not (found.failed or found.left):
        kept.unlink(missing_ok=True)
    return 1 if found.failed else 3 if found.left else 0


def _show_report(path: Path | None) -> None:
    """Print what the conformance suite has shown, and keep it in a file if one is named."""
    shown = [sys.executable, "-m", "conformance.report", str(REPORT)], 60, {"PYTHONPATH": str(ROOT / "tests")}
    run(*shown)
    if path is not None:
        with path.open("wb") as file:
            file.write(f"# {shlex.join(['check_gpu', *sys.argv[1:]])}; commit {commit() or 'unknown'}; {now()}\n".encode())
            file.flush()  # what follows is another process's
            run(*shown, file)


def _plan(machine: str, options: argparse.Namespace) -> list[Part]:
    """What is chosen, in order."""
    parts = []
    if not options.tests:
        # The NIC's kernel takes a spare GPU, or shares PE 0's.
        parts += [Part(2, False, list(_measurements(machine))), Part(3, False, list(_nic_measurements(machine)))]
    if not options.quick:
        if options.at_once:
            parts += [Part(0, True, [*_tests(), *_nic_tests()])]
        else:
            parts += [Part(4, False, list(_tests())), Part(5, False, list(_nic_tests()))]
        parts += [Part(4, False, list(_alone()))]
    chosen = [part._replace(steps=[step for step in part.steps if options.only.search(step.name)]) for part in parts]
    return [part for part in chosen if part.steps]


def _perform(pool: Pool, n_gpus: int, plan: list[Part]) -> None:
    for part in plan:
        if part.at_once:
            pool.share(part.steps)
        else:
            with mps() if n_gpus < part.places else contextlib.nullcontext():
                pool.in_turn(part.steps)


if __name__ == "__main__":
    sys.exit(main())
